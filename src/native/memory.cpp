#include "memory.hpp"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <thread>

#include "arena.hpp"
#include "failure.hpp"
#include "team.hpp"

namespace tilewright {
namespace {

// From this size on a block is mapped by itself, at the alignment of huge pages.
constexpr std::int64_t kMappedBytes = 4 << 20;
constexpr std::int64_t kHugePage = 2 << 20;

// Smaller outputs are cheap to get from the heap.
constexpr std::int64_t kPooledOutput = 64 << 10;
// The pool may always hold this much, and less is not worth a thread that frees it.
constexpr std::int64_t kRetainedBytes = 512 << 20;
constexpr std::int64_t kNeglectedBytes = 1 << 20;
// A new working block takes the place of one that has at least this part of its size.
constexpr std::int64_t kSuperseded = 4;

constexpr std::size_t kMostIdle = 256;  // blocks

constexpr std::int64_t kLargest = INT64_MAX - 2 * kHugePage;

[[noreturn]] void refuse(std::int64_t bytes) {
  throw Failure(FailureKind::resource,
                "The system has no " + std::to_string(bytes) + " bytes of memory left", {},
                "Use smaller dimensions, or call shrink() on any model to free what is kept");
}

// The time of Clock to a few milliseconds, for a fraction of the price.
std::chrono::steady_clock::time_point roughly_now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
  return std::chrono::steady_clock::time_point(std::chrono::seconds(time.tv_sec) +
                                               std::chrono::nanoseconds(time.tv_nsec));
}

}  // namespace

std::int64_t Block::rounded(std::int64_t bytes) {
  if (bytes > kLargest) refuse(bytes);
  const std::int64_t capacity = std::max(kAlignment, align_up(bytes));
  return capacity < kMappedBytes ? capacity : (capacity + kHugePage - 1) / kHugePage * kHugePage;
}

Block::Block(std::int64_t bytes) : capacity_(rounded(bytes)) {
  Memory& memory = Memory::shared();
  memory.admit(capacity_);
  if (allocate()) return;
  memory.free_idle();
  if (allocate()) return;
  memory.dismiss(std::exchange(capacity_, 0));
  refuse(bytes);
}

bool Block::allocate() {
  if (capacity_ < kMappedBytes) {
    // Not aligned_alloc, which knows no cache of small blocks and takes several times as long.
    heap_ = std::malloc(static_cast<std::size_t>(capacity_ + kAlignment));
    if (heap_ == nullptr) return false;
    data_ = reinterpret_cast<char*>(align_up(reinterpret_cast<std::int64_t>(heap_)));
    return true;
  }
  const std::int64_t reserved = capacity_ + kHugePage;
  void* mapping = mmap(nullptr, static_cast<std::size_t>(reserved), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return false;
  auto* const begin = static_cast<char*>(mapping);
  const std::int64_t before =
      (kHugePage - reinterpret_cast<std::int64_t>(begin) % kHugePage) % kHugePage;
  data_ = begin + before;
  if (before > 0) munmap(begin, static_cast<std::size_t>(before));
  if (before < kHugePage)
    munmap(data_ + capacity_, static_cast<std::size_t>(kHugePage - before));
  madvise(data_, static_cast<std::size_t>(capacity_), MADV_HUGEPAGE);
  mapped_ = capacity_;
  return true;
}

Block::~Block() {
  if (data_ == nullptr) return;
  if (mapped_ != 0) {
    munmap(data_, static_cast<std::size_t>(mapped_));
  } else {
    std::free(heap_);
  }
  Memory::shared().dismiss(capacity_);
}

Memory::Memory() { idle_.reserve(kMostIdle); }

Memory& Memory::shared() {
  // Never destroyed: outputs may be freed while the process ends.
  static Memory* const memory = [] {
    // A forked child has no keeper, and finds the pool as it is between two uses.
    pthread_atfork([] { shared().mutex_.lock(); }, [] { shared().mutex_.unlock(); },
                   [] {
                     shared().has_keeper_ = false;
                     shared().mutex_.unlock();
                   });
    return new Memory();
  }();
  return *memory;
}

Block Memory::take(Purpose purpose, std::int64_t bytes, std::int64_t excess) {
  if (purpose == Purpose::working || bytes >= kPooledOutput) {
    const std::int64_t rounded = Block::rounded(bytes);
    const std::lock_guard lock(mutex_);
    auto best = idle_.end();
    auto superseded = idle_.end();
    for (auto entry = idle_.begin(); entry != idle_.end(); ++entry) {
      const std::int64_t capacity = entry->block.capacity();
      if (entry->purpose != purpose) continue;
      if (capacity >= bytes) {
        const bool fits = capacity <= rounded || capacity - bytes <= excess;
        if (fits && (best == idle_.end() || capacity < best->block.capacity())) best = entry;
      } else if (superseded == idle_.end() || capacity > superseded->block.capacity()) {
        superseded = entry;
      }
    }
    if (best != idle_.end()) {
      Block found = std::move(best->block);
      idle_bytes_ -= found.capacity();
      idle_.erase(best);
      note_use();
      return found;
    }
    if (purpose == Purpose::working && superseded != idle_.end() &&
        superseded->block.capacity() >= bytes / kSuperseded) {
      idle_bytes_ -= superseded->block.capacity();
      idle_.erase(superseded);
    }
  }
  return Block(bytes);
}

void Memory::give_back(Purpose purpose, Block block) {
  if (block.data() == nullptr) return;
  if (purpose == Purpose::output && block.capacity() < kPooledOutput) return;
  const Clock::time_point now = roughly_now();
  const std::lock_guard lock(mutex_);
  note_use();
  if (idle_.size() == kMostIdle) free_oldest();
  idle_bytes_ += block.capacity();
  idle_.push_back({std::move(block), purpose, now});
  free_expired(now);
  // What was in use at a time may be kept; blocks of many sizes could add up to more.
  const std::int64_t limit = limit_.load(std::memory_order_relaxed);
  while (held_ > std::max(most_in_use_, kRetainedBytes) || (limit > 0 && held_ > limit))
    if (!free_oldest()) break;
  if (idle_bytes_ >= kNeglectedBytes && !has_keeper_) start_keeper();
}

void Memory::free_idle() {
  const std::lock_guard lock(mutex_);
  while (free_oldest()) {
  }
  most_in_use_ = held_;
}

void Memory::set_limit(std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  limit_ = bytes;
  while (bytes > 0 && held_ > bytes)
    if (!free_oldest()) break;
}

void Memory::set_idle_time(std::chrono::nanoseconds time) {
  const std::lock_guard lock(mutex_);
  idle_time_ = time;
}

MemoryUse Memory::use() {
  const std::lock_guard lock(mutex_);
  return {held_, idle_bytes_, peak_, limit_};
}

void Memory::admit(std::int64_t capacity) {
  std::int64_t before = held_.load(std::memory_order_relaxed);
  std::int64_t after = 0;
  do {
    for (;;) {
      after = before + capacity;
      const std::int64_t limit = limit_.load(std::memory_order_relaxed);
      if (limit == 0 || after <= limit) break;
      const std::lock_guard lock(mutex_);
      const bool is_freed = free_oldest();
      before = held_.load(std::memory_order_relaxed);
      if (!is_freed && before + capacity > limit)
        throw Failure(
            FailureKind::resource,
            "Another " + std::to_string(capacity) + " bytes are needed, but the calls and outputs " +
                "of this process hold " + std::to_string(before) + " of the " +
                std::to_string(limit) + " that its memory limit allows",
            {}, "Free outputs, call fewer models at once, or raise tilewright.set_memory_limit");
    }
  } while (!held_.compare_exchange_weak(before, after, std::memory_order_relaxed));
  std::int64_t peak = peak_.load(std::memory_order_relaxed);
  while (after > peak && !peak_.compare_exchange_weak(peak, after, std::memory_order_relaxed)) {
  }
}

bool Memory::free_oldest() {
  if (idle_.empty()) return false;
  idle_bytes_ -= idle_.front().block.capacity();
  idle_.erase(idle_.begin());
  return true;
}

void Memory::free_expired(Clock::time_point now) {
  while (!idle_.empty() && now - idle_.front().since >= idle_time_) {
    free_oldest();
    most_in_use_ = held_ - idle_bytes_;
  }
}

void Memory::note_use() { most_in_use_ = std::max(most_in_use_, held_ - idle_bytes_); }

void Memory::start_keeper() {
  // Signals are for the threads of Python; the new thread inherits this mask.
  const SignalsBlocked signals_blocked;
  pthread_t keeper{};
  if (pthread_create(&keeper, nullptr, &Memory::keep, this) != 0) return;
  pthread_detach(keeper);
  has_keeper_ = true;
}

// Frees what nobody takes, and ends when there is little left.
void* Memory::keep(void* memory) {
  Memory& self = *static_cast<Memory*>(memory);
  pthread_setname_np(pthread_self(), "tilewright-idle");
  for (;;) {
    Clock::time_point due;
    {
      const std::lock_guard lock(self.mutex_);
      self.free_expired(Clock::now());
      if (self.idle_bytes_ < kNeglectedBytes) {
        self.has_keeper_ = false;
        return nullptr;
      }
      due = self.idle_.front().since + self.idle_time_;
    }
    std::this_thread::sleep_until(due);
  }
}

}  // namespace tilewright
