#include "arena.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "failure.hpp"

namespace tilewright {
namespace {

[[noreturn]] void refuse() {
  throw Failure(FailureKind::resource, "The intermediate tensors need more than 2^63 bytes.", {},
                "use smaller dimensions");
}

}  // namespace

std::int64_t align_up(std::int64_t bytes) {
  if (bytes > std::numeric_limits<std::int64_t>::max() - (kAlignment - 1)) refuse();
  return (bytes + kAlignment - 1) & -kAlignment;
}

Conflicts::Conflicts(const std::vector<Interval>& intervals) : neighbours_(intervals.size()) {
  std::vector<std::uint32_t> order(intervals.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(), [&intervals](std::uint32_t a, std::uint32_t b) {
    return intervals[a].first < intervals[b].first;
  });
  std::vector<std::uint32_t> alive;
  for (const std::uint32_t item : order) {
    std::erase_if(
        alive, [&](std::uint32_t other) { return intervals[other].last < intervals[item].first; });
    for (const std::uint32_t other : alive) {
      neighbours_[item].push_back(other);
      neighbours_[other].push_back(item);
    }
    alive.push_back(item);
  }
}

std::int64_t Conflicts::place(const std::vector<std::int64_t>& sizes,
                              std::vector<std::int64_t>& offsets) const {
  constexpr std::int64_t unplaced = -1;
  const std::size_t count = neighbours_.size();
  std::vector<std::int64_t> rounded(count);
  for (std::size_t item = 0; item < count; ++item) rounded[item] = align_up(sizes[item]);
  std::vector<std::uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(), [&rounded](std::uint32_t a, std::uint32_t b) {
    return rounded[a] > rounded[b];
  });

  offsets.assign(count, unplaced);
  std::int64_t total = 0;
  std::vector<std::pair<std::int64_t, std::int64_t>> taken;  // begin, end
  for (const std::uint32_t item : order) {
    const std::int64_t size = rounded[item];
    if (size == 0) {
      offsets[item] = 0;
      continue;
    }
    taken.clear();
    for (const std::uint32_t other : neighbours_[item])
      if (offsets[other] != unplaced && rounded[other] != 0)
        taken.emplace_back(offsets[other], offsets[other] + rounded[other]);
    std::sort(taken.begin(), taken.end());
    std::int64_t best = unplaced, best_gap = std::numeric_limits<std::int64_t>::max(), free = 0;
    for (const auto& [begin, end] : taken) {
      const std::int64_t gap = begin - free;
      if (gap >= size && gap < best_gap) {
        best = free;
        best_gap = gap;
      }
      free = std::max(free, end);
    }
    offsets[item] = best != unplaced ? best : free;
    std::int64_t end = 0;
    if (__builtin_add_overflow(offsets[item], size, &end)) refuse();
    total = std::max(total, end);
  }
  return total;
}

}  // namespace tilewright
