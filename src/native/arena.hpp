// Places buffers in one block of memory so that buffers alive at the same time never overlap.
#pragma once

#include <cstdint>
#include <vector>

namespace tilewright {

constexpr std::int64_t kAlignment = 64;

// Rounds up to the alignment; throws Failure(resource) where that overflows.
std::int64_t align_up(std::int64_t bytes);

// Which items are alive together. Fixed when a model is loaded, as steps do not depend on shapes.
class Conflicts {
 public:
  struct Interval {
    std::int64_t first;  // step that writes the item first
    std::int64_t last;   // last step that touches it, inclusive
  };
  explicit Conflicts(const std::vector<Interval>& intervals);

  // Greedy: largest first, each into the smallest gap it fits between those placed already that are
  // alive with it. `sizes` in bytes; fills `offsets` (multiples of kAlignment) and returns the size
  // of the block.
  std::int64_t place(const std::vector<std::int64_t>& sizes,
                     std::vector<std::int64_t>& offsets) const;

 private:
  std::vector<std::vector<std::uint32_t>> neighbours_;
};

}  // namespace tilewright
