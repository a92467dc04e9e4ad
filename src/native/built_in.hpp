// Operators that the runtime computes itself: what one is given, and where its results go.
//
// Unlike a kernel, such an operator may find out how large its results are, and it may be one whose
// work no loop of a tile program describes. Add one to the table in built_in.cpp, and what it is
// given to tilewright.runtime.built_in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "elements.hpp"

namespace tilewright {

// A row-major array that an operator reads.
struct Operand {
  ElementType type;
  int rank;
  const std::int64_t* dims;
  const void* data;

  std::int64_t count(int first = 0, int end = -1) const;  // elements of axes [first, end)
  template <typename T>
  const T* as() const {
    return static_cast<const T*>(data);
  }
};

// An array as [outer, length, inner] around one of its axes, or all of its elements as one axis.
struct Along {
  std::optional<int> axis;
  std::int64_t outer, length, inner;

  // The sizes of the array with so many elements along the axis.
  std::vector<std::int64_t> dims(const Operand& data, std::int64_t count) const;
};

// One call of an operator. Runs without the interpreter's lock.
class Work {
 public:
  Work(std::string label, std::vector<std::optional<Operand>> operands,
       std::vector<std::int64_t> attributes, int threads)
      : label_(std::move(label)),
        operands_(std::move(operands)),
        attributes_(std::move(attributes)),
        threads_(threads) {}
  virtual ~Work() = default;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  // Null where the operand is left out.
  const Operand* optional(std::size_t index) const {
    return index < operands_.size() && operands_[index] ? &*operands_[index] : nullptr;
  }
  const Operand& operand(std::size_t index) const;
  // The only element of an operand, or of what stands for one that is left out.
  template <typename T>
  T scalar(std::size_t index, T otherwise) const;
  // An attribute; INT64_MIN stands for one that is left out.
  std::int64_t attribute(std::size_t index) const;
  // An attribute that counts the axes of something, from behind where it is negative.
  int axis(std::size_t index, int rank) const;
  // An array along the axis that an attribute names, or flat where that is left out.
  Along along(std::size_t index, const Operand& data) const;

  // Memory for a result of these sizes; null where nobody wants it.
  virtual void* result(std::size_t index, ElementType type,
                       const std::vector<std::int64_t>& dims) = 0;

  // Calls run(begin, end) for pieces of [0, tasks), on several threads if the tasks, of about so many
  // nanoseconds each, are worth it.
  template <typename Run>
  void share(std::int64_t tasks, std::int64_t nanoseconds, Run&& run) {
    using Function = std::remove_reference_t<Run>;
    const auto call = [](void* function, std::int64_t begin, std::int64_t end) {
      (*static_cast<Function*>(function))(begin, end);
    };
    share_tasks(tasks, nanoseconds, {call, &run});
  }

  [[noreturn]] void refuse(const std::string& why) const;

 private:
  struct Task {
    void (*call)(void* function, std::int64_t begin, std::int64_t end);
    void* function;
  };
  void share_tasks(std::int64_t tasks, std::int64_t nanoseconds, Task task) const;

  std::string label_;
  std::vector<std::optional<Operand>> operands_;
  std::vector<std::int64_t> attributes_;
  int threads_;
};

using BuiltIn = void (*)(Work& work);

// Null where there is none of this name.
BuiltIn find_built_in(const std::string& name);

// Results: values and places (int64) of the best elements along an axis, the best first and of equal
// ones the first; what is not a number is the greatest. Operands: data, how many. Attributes: axis,
// whether the largest are the best, whether the order matters.
void top_k(Work& work);
// Places, int64 [rank, found], of elements other than 0, in their order. Operand: data.
void non_zero(Work& work);
// The elements along an axis, or of all, where a condition holds. Operands: data, condition.
// Attribute: axis.
void compress(Work& work);
// Boxes that no better one overlaps, int64 [found, 3]: image, class, box. Of equal scores the first
// box comes first; boxes without area, or with a coordinate that is no number, suppress none.
// Operands: boxes [images, boxes, 4], scores [images, classes, boxes], the most of a class, from
// which share in common a box is left out, what a score has to exceed. Attribute: whether boxes are
// centres and sizes.
void non_max_suppression(Work& work);
// Different elements, or slices along an axis, with the places of the first of each, which of them
// each one is and how often each is there. Operand: data. Attributes: axis, whether they are sorted
// or as they come first.
void unique(Work& work);

}  // namespace tilewright
