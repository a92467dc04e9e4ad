#include <algorithm>
#include <functional>
#include <vector>

#include "built_in.hpp"
#include "ordering.hpp"

namespace tilewright {
namespace {

struct Box {
  float low[2], high[2], area;  // the area is 0 where a coordinate is no number
};

Box box_at(const float* coordinates, bool centred) {
  Box box{};
  bool is_known = true;
  for (int axis = 0; axis < 2; ++axis) {
    const float first = coordinates[axis], second = coordinates[axis + 2];
    is_known = is_known && first == first && second == second;
    box.low[axis] = centred ? first - second / 2 : std::min(first, second);
    box.high[axis] = centred ? first + second / 2 : std::max(first, second);
  }
  box.area = is_known ? (box.high[0] - box.low[0]) * (box.high[1] - box.low[1]) : 0.0f;
  return box;
}

constexpr std::size_t kTogether = 16;  // boxes that are compared before asking whether one overlaps

// Boxes with each of their numbers side by side.
class Taken {
 public:
  void clear() { count_ = 0; }

  void add(const Box& box) {
    if (count_ == area_.size())
      for (std::vector<float>* numbers : {&low_[0], &low_[1], &high_[0], &high_[1], &area_})
        numbers->resize(std::max(2 * count_, 4 * kTogether));
    for (int axis = 0; axis < 2; ++axis) {
      low_[axis][count_] = box.low[axis];
      high_[axis][count_] = box.high[axis];
    }
    area_[count_++] = box.area;
  }

  // Whether a box has more than the allowed share in common with one of these.
  bool overlap(const Box& box, float allowed) const {
    if (!(box.area > 0)) return false;
    for (std::size_t begin = 0; begin < count_; begin += kTogether) {
      // Most boxes are far from each other, and a quotient takes long.
      const std::size_t end = std::min(begin + kTogether, count_);
      int is_near = 0;
      for (std::size_t at = begin; at < end; ++at) is_near |= static_cast<int>(common(box, at) > 0);
      if (is_near != 0 && is_too_much(box, begin, end, allowed)) return true;
    }
    return false;
  }

 private:
  float common(const Box& box, std::size_t at) const {
    const float down = std::min(box.high[0], high_[0][at]) - std::max(box.low[0], low_[0][at]);
    const float along = std::min(box.high[1], high_[1][at]) - std::max(box.low[1], low_[1][at]);
    return std::max(down, 0.0f) * std::max(along, 0.0f);
  }

  bool is_too_much(const Box& box, std::size_t begin, std::size_t end, float allowed) const {
    int found = 0;
    for (std::size_t at = begin; at < end; ++at) {
      const float both = common(box, at), either = box.area + area_[at] - both;
      found |= static_cast<int>(area_[at] > 0) & static_cast<int>(either > 0) &
               static_cast<int>(both / either > allowed);
    }
    return found != 0;
  }

  std::size_t count_ = 0;
  std::vector<float> low_[2], high_[2], area_;
};

struct Rules {
  std::int64_t most;  // of a class
  float allowed;      // of what two boxes cover together, beyond which the worse one is left out
  bool has_least;
  float least;  // what a score has to exceed, if anything
  bool centred;
};

// The boxes of an image that stay for one class, the best first.
class Class {
 public:
  explicit Class(const Rules& rules) : rules_(rules) {}

  std::vector<std::int64_t> chosen(const float* boxes, const float* scores, std::int64_t count) {
    std::vector<std::int64_t> chosen;
    gather(scores, count);
    taken_.clear();
    // A heap of the best: few of many boxes are wanted.
    std::make_heap(waiting_.begin(), waiting_.end(), later);
    while (!waiting_.empty() && static_cast<std::int64_t>(chosen.size()) < rules_.most) {
      std::pop_heap(waiting_.begin(), waiting_.end(), later);
      const std::int64_t place = waiting_.back().place();
      waiting_.pop_back();
      const Box box = box_at(boxes + 4 * place, rules_.centred);
      if (taken_.overlap(box, rules_.allowed)) continue;
      taken_.add(box);
      chosen.push_back(place);
    }
    return chosen;
  }

 private:
  static bool later(const Entry<float>& one, const Entry<float>& other) { return other < one; }

  void gather(const float* scores, std::int64_t count) {
    waiting_.resize(static_cast<std::size_t>(count) + 1);
    std::size_t found = 0;
    for (std::int64_t box = 0; box < count; ++box) {
      const float score = scores[box];
      waiting_[found] = {~key_of(score), box};
      const bool is_wanted = rules_.has_least ? score > rules_.least : score == score;
      found += is_wanted ? 1 : 0;
    }
    waiting_.resize(found);
  }

  Rules rules_;
  Taken taken_;
  std::vector<Entry<float>> waiting_;
};

}  // namespace

void non_max_suppression(Work& work) {
  const Operand& boxes = work.operand(0);
  const Operand& scores = work.operand(1);
  if (boxes.type != ElementType::float32 || scores.type != ElementType::float32)
    work.refuse("Boxes and scores are float32");
  if (boxes.rank != 3 || scores.rank != 3 || boxes.dims[0] != scores.dims[0] ||
      boxes.dims[1] != scores.dims[2] || boxes.dims[2] != 4)
    work.refuse("Boxes are [images, boxes, 4], and scores [images, classes, boxes]");
  const std::int64_t classes = scores.dims[1], count = scores.dims[2];
  if (count > kMostPlaces)
    work.refuse("An image has more than 2^32 - 1 boxes");
  const bool has_least = work.optional(4) != nullptr;
  const Rules rules{work.scalar<std::int64_t>(2, 0), work.scalar<float>(3, 0.0f), has_least,
                    work.scalar<float>(4, 0.0f), work.attribute(0) == 1};
  if (!(rules.allowed >= 0 && rules.allowed <= 1))
    work.refuse("iou_threshold is " + std::to_string(rules.allowed) +
                ", which is not from 0 to 1");
  std::vector<std::vector<std::int64_t>> chosen(
      static_cast<std::size_t>(count == 0 ? 0 : scores.count(0, 2)));
  work.share(static_cast<std::int64_t>(chosen.size()), 4 * count,
             [&](std::int64_t begin, std::int64_t end) {
               Class own(rules);
               for (std::int64_t task = begin; task < end; ++task)
                 chosen[static_cast<std::size_t>(task)] =
                     own.chosen(boxes.as<float>() + task / classes * count * 4,
                                scores.as<float>() + task * count, count);
             });
  std::int64_t found = 0;
  for (const auto& own : chosen) found += static_cast<std::int64_t>(own.size());
  auto* next = static_cast<std::int64_t*>(work.result(0, ElementType::int64, {found, 3}));
  if (next == nullptr) return;
  for (std::size_t task = 0; task < chosen.size(); ++task)
    for (const std::int64_t box : chosen[task]) {
      *next++ = static_cast<std::int64_t>(task) / classes;
      *next++ = static_cast<std::int64_t>(task) % classes;
      *next++ = box;
    }
}

}  // namespace tilewright
