// The memory that calls work in: blocks, and what the process keeps of them for later calls.
//
// One pool serves all models. A block that is given back stays until another call takes it, until
// the pool holds more than was ever in use at a time, or until nobody has taken it for a while.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace tilewright {

// What pointers to no elements lead to.
alignas(64) inline char no_elements[64];

// 64-byte aligned memory; counted by Memory for as long as it exists.
class Block {
 public:
  Block() = default;
  // Contents are arbitrary; throws Failure(resource) when the limit of the process or the system
  // allows no more.
  explicit Block(std::int64_t bytes);
  ~Block();
  Block(Block&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        heap_(std::exchange(other.heap_, nullptr)),
        capacity_(std::exchange(other.capacity_, 0)),
        mapped_(std::exchange(other.mapped_, 0)) {}
  Block& operator=(Block&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(heap_, other.heap_);
    std::swap(capacity_, other.capacity_);
    std::swap(mapped_, other.mapped_);
    return *this;
  }

  char* data() const { return data_; }
  std::int64_t capacity() const { return capacity_; }

  // The capacity of a block for so many bytes.
  static std::int64_t rounded(std::int64_t bytes);

 private:
  bool allocate();

  char* data_ = nullptr;
  void* heap_ = nullptr;  // what the heap gave, which begins a little before the data
  std::int64_t capacity_ = 0;
  std::int64_t mapped_ = 0;  // bytes of the mapping; 0: from the heap
};

struct MemoryUse {
  std::int64_t held;   // by calls, by outputs that are still alive, and by the pool
  std::int64_t idle;   // of these by the pool
  std::int64_t peak;   // the most that was ever held
  std::int64_t limit;  // 0: none
};

class Memory {
 public:
  // Arenas and scratch come back when their call ends; outputs are the caller's, who does not see
  // how much larger than needed their blocks are.
  enum class Purpose { working, output };

  static Memory& shared();

  // A block of at least `bytes`; one that is used again has at most `excess` more, or what rounding
  // adds.
  Block take(Purpose purpose, std::int64_t bytes, std::int64_t excess);
  // On any thread.
  void give_back(Purpose purpose, Block block);
  // Frees what the pool holds.
  void free_idle();

  // Bytes that may be held; what the pool has beyond it is freed, what calls have is not. 0: no
  // limit.
  void set_limit(std::int64_t bytes);
  // How long a block stays in the pool without being taken.
  void set_idle_time(std::chrono::nanoseconds time);
  MemoryUse use();

 private:
  friend class Block;
  using Clock = std::chrono::steady_clock;
  struct Idle {
    Block block;
    Purpose purpose;
    Clock::time_point since;
  };

  Memory();
  // Counts a new block, after making room for it if that is possible.
  void admit(std::int64_t capacity);
  void dismiss(std::int64_t capacity) { held_ -= capacity; }
  // These are called with the lock held.
  bool free_oldest();
  void free_expired(Clock::time_point now);
  void note_use();
  void start_keeper();
  static void* keep(void* memory);

  std::mutex mutex_;
  std::vector<Idle> idle_;  // longest there first; never grows beyond what is reserved
  std::atomic<std::int64_t> held_{0}, peak_{0}, limit_{0};
  std::int64_t idle_bytes_ = 0;
  std::int64_t most_in_use_ = 0;  // since blocks were last freed for their age
  std::chrono::nanoseconds idle_time_ = std::chrono::seconds(10);
  bool has_keeper_ = false;
};

}  // namespace tilewright
