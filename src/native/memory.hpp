// Blocks of 64-byte aligned memory, and a pool that keeps freed output blocks for the next call.
#pragma once

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace tilewright {

class Block {
 public:
  Block() = default;
  // Contents are arbitrary; throws Failure(resource) when the system has no more memory.
  explicit Block(std::int64_t bytes);
  ~Block();
  Block(Block&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        capacity_(std::exchange(other.capacity_, 0)),
        mapped_(std::exchange(other.mapped_, 0)) {}
  Block& operator=(Block&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(capacity_, other.capacity_);
    std::swap(mapped_, other.mapped_);
    return *this;
  }

  char* data() const { return data_; }
  std::int64_t capacity() const { return capacity_; }

  // Replaces the memory by at least `bytes`, dropping the contents, unless it is large enough.
  void reserve(std::int64_t bytes);

 private:
  char* data_ = nullptr;
  std::int64_t capacity_ = 0;
  std::int64_t mapped_ = 0;  // bytes of the mapping; 0: from the heap
};

// Keeps blocks of outputs that were freed: fresh pages from the system cost about as much time as
// filling them. Blocks may come back on any thread.
class OutputPool {
 public:
  Block take(std::int64_t bytes);
  void give_back(Block block);
  void clear();
  std::int64_t retained_bytes();

 private:
  std::mutex mutex_;
  std::vector<Block> blocks_;
  std::int64_t retained_ = 0;
};

}  // namespace tilewright
