#include "memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "arena.hpp"
#include "failure.hpp"

namespace tilewright {
namespace {

// From this size on a block is mapped by itself, at the alignment of huge pages.
constexpr std::int64_t kMappedBytes = 4 << 20;
constexpr std::int64_t kHugePage = 2 << 20;

// Smaller blocks are cheap to get from the heap.
constexpr std::int64_t kPooledBytes = 64 << 10;
constexpr std::int64_t kRetainedBytes = 512 << 20;

[[noreturn]] void refuse(std::int64_t bytes) {
  throw Failure(FailureKind::resource,
                "The system has no " + std::to_string(bytes) + " bytes of memory left.", {},
                "smaller dimensions, or shrink() on models that are not in use");
}

}  // namespace

Block::Block(std::int64_t bytes) {
  if (bytes > INT64_MAX - 2 * kHugePage) refuse(bytes);
  const std::int64_t capacity = std::max(kAlignment, align_up(bytes));
  if (capacity < kMappedBytes) {
    data_ = static_cast<char*>(std::aligned_alloc(kAlignment, static_cast<std::size_t>(capacity)));
    if (data_ == nullptr) refuse(bytes);
    capacity_ = capacity;
    return;
  }
  const std::int64_t rounded = (capacity + kHugePage - 1) / kHugePage * kHugePage;
  const std::int64_t reserved = rounded + kHugePage;
  void* mapping = mmap(nullptr, static_cast<std::size_t>(reserved), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) refuse(bytes);
  auto* const begin = static_cast<char*>(mapping);
  const std::int64_t before =
      (kHugePage - reinterpret_cast<std::int64_t>(begin) % kHugePage) % kHugePage;
  data_ = begin + before;
  if (before > 0) munmap(begin, static_cast<std::size_t>(before));
  munmap(data_ + rounded, static_cast<std::size_t>(reserved - before - rounded));
  madvise(data_, static_cast<std::size_t>(rounded), MADV_HUGEPAGE);
  capacity_ = mapped_ = rounded;
}

Block::~Block() {
  if (mapped_ != 0) {
    munmap(data_, static_cast<std::size_t>(mapped_));
  } else {
    std::free(data_);
  }
}

void Block::reserve(std::int64_t bytes) {
  if (data_ != nullptr && capacity_ >= bytes) return;
  *this = Block();  // freed first, so that both are never held at once
  *this = Block(bytes);
}

Block OutputPool::take(std::int64_t bytes) {
  if (bytes >= kPooledBytes) {
    const std::lock_guard lock(mutex_);
    auto best = blocks_.end();
    for (auto block = blocks_.begin(); block != blocks_.end(); ++block) {
      // A block much larger than needed would keep memory that the user does not see.
      const bool fits = block->capacity() >= bytes && block->capacity() - bytes <= bytes / 2;
      if (fits && (best == blocks_.end() || block->capacity() < best->capacity())) best = block;
    }
    if (best != blocks_.end()) {
      Block found = std::move(*best);
      *best = std::move(blocks_.back());
      blocks_.pop_back();
      retained_ -= found.capacity();
      return found;
    }
  }
  return Block(bytes);
}

void OutputPool::give_back(Block block) {
  if (block.capacity() < kPooledBytes) return;
  const std::lock_guard lock(mutex_);
  // A larger block stays as long as it is the only one: the next call is likely to need it.
  if (!blocks_.empty() && retained_ + block.capacity() > kRetainedBytes) return;
  retained_ += block.capacity();
  blocks_.push_back(std::move(block));
}

void OutputPool::clear() {
  const std::lock_guard lock(mutex_);
  blocks_.clear();
  retained_ = 0;
}

std::int64_t OutputPool::retained_bytes() {
  const std::lock_guard lock(mutex_);
  return retained_;
}

}  // namespace tilewright
