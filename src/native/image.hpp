// Machine code mapped into the process, ready to be called; unmapped with the last user.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kernel.hpp"

namespace tilewright {

struct Fixup {
  std::int64_t offset;
  std::string symbol;  // "" is the base of the image
  std::int64_t addend;
};

class Image {
 public:
  // Maps a copy of `data`, writes the fix-ups and makes the pages read-and-execute. Throws
  // Failure(artifact) for offsets outside the data and unknown symbols, Failure(resource) when the
  // system refuses the mapping.
  Image(std::string_view data, std::unordered_map<std::string, std::int64_t> functions,
        const std::vector<Fixup>& fixups);
  ~Image();
  Image(const Image&) = delete;
  Image& operator=(const Image&) = delete;

  // Throw Failure(artifact) when there is no such function.
  void* address(const std::string& name) const;
  KernelFunction function(const std::string& name) const;
  ChoiceFunction choice(const std::string& name) const;

 private:
  void apply(const Fixup& fixup, std::size_t size);

  char* base_ = nullptr;
  std::size_t mapped_bytes_ = 0;
  std::unordered_map<std::string, std::int64_t> functions_;
};

}  // namespace tilewright
