#include "built_in.hpp"

#include <xmmintrin.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <new>

#include "failure.hpp"
#include "kernel.hpp"
#include "team.hpp"

namespace tilewright {
namespace {

constexpr std::array kNames{"bool",  "int8",   "int16",  "int32",   "int64",    "uint8",  "uint16",
                            "uint32", "uint64", "float16", "bfloat16", "float32", "float64"};
constexpr std::array<std::int64_t, kNames.size()> kBytes{1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8};

constexpr std::int64_t kLeftOut = INT64_MIN;

}  // namespace

ElementType element_type(const std::string& name) {
  const auto* const found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end())
    throw Failure(FailureKind::artifact, "There are no elements of type " + name + ".");
  return static_cast<ElementType>(found - kNames.begin());
}

const char* name_of(ElementType type) { return kNames[static_cast<std::size_t>(type)]; }

std::int64_t bytes_of(ElementType type) { return kBytes[static_cast<std::size_t>(type)]; }

std::int64_t Operand::count(int first, int end) const {
  std::int64_t product = 1;
  for (int axis = first; axis < (end < 0 ? rank : end); ++axis) product *= dims[axis];
  return product;
}

std::vector<std::int64_t> Along::dims(const Operand& data, std::int64_t count) const {
  if (!axis) return {count};
  std::vector<std::int64_t> made(data.dims, data.dims + data.rank);
  made[static_cast<std::size_t>(*axis)] = count;
  return made;
}

const Operand& Work::operand(std::size_t index) const {
  const Operand* const found = optional(index);
  if (found == nullptr) refuse("Operand " + std::to_string(index) + " is missing");
  return *found;
}

template <typename T>
T Work::scalar(std::size_t index, T otherwise) const {
  constexpr ElementType type =
      std::is_same_v<T, float> ? ElementType::float32 : ElementType::int64;
  const Operand* const found = optional(index);
  if (found == nullptr) return otherwise;
  if (found->type != type || found->count() != 1)
    refuse("Operand " + std::to_string(index) + " is not one " + name_of(type));
  return *found->as<T>();
}

template std::int64_t Work::scalar(std::size_t, std::int64_t) const;
template float Work::scalar(std::size_t, float) const;

std::int64_t Work::attribute(std::size_t index) const {
  return index < attributes_.size() ? attributes_[index] : kLeftOut;
}

int Work::axis(std::size_t index, int rank) const {
  const std::int64_t given = attribute(index);
  if (given < -rank || given >= rank)
    refuse("There is no axis " + std::to_string(given) + " of " + std::to_string(rank));
  return static_cast<int>(given < 0 ? given + rank : given);
}

Along Work::along(std::size_t index, const Operand& data) const {
  if (attribute(index) == kLeftOut) return {std::nullopt, 1, data.count(), 1};
  const int own = axis(index, data.rank);
  return {own, data.count(0, own), data.dims[own], data.count(own + 1)};
}

void Work::refuse(const std::string& why) const {
  throw Failure(FailureKind::execution, why, label_);
}

void Work::share_tasks(std::int64_t tasks, std::int64_t nanoseconds, Task task) const {
  if (tasks <= 0) return;
  const std::int64_t work = tasks * std::max<std::int64_t>(nanoseconds, 1);
  const std::int64_t worth_while = std::min(work / kWorkPerThread, tasks);
  int threads = static_cast<int>(std::clamp<std::int64_t>(worth_while, 1, threads_));
  TeamLease lease;
  if (threads > 1) threads = std::min(threads, lease.acquire(threads_));
  if (threads == 1) return task.call(task.function, 0, tasks);
  // Nothing may be thrown on a thread of the team.
  const KernelFunction function = [](const std::int64_t*, void* const* buffers, std::int64_t begin,
                                     std::int64_t end, void*, Status* status) {
    const Task& shared = *static_cast<const Task*>(buffers[0]);
    try {
      shared.call(shared.function, begin, end);
    } catch (const std::bad_alloc&) {
      status->code = 1;
    }
  };
  void* const buffers[] = {&task};
  const Part part{function, nullptr, buffers, tasks, threads, 0,
                  pieces_per_thread(work, tasks, threads)};
  std::vector<Status> statuses(static_cast<std::size_t>(threads));
  lease.team().run({&part, 1, 1, nullptr, 0, statuses.data(), threads, _mm_getcsr()});
  for (const Status& status : statuses)
    if (status.code != 0) throw std::bad_alloc();
}

BuiltIn find_built_in(const std::string& name) {
  static const std::map<std::string, BuiltIn> known{{"Compress", compress},
                                                    {"NonMaxSuppression", non_max_suppression},
                                                    {"NonZero", non_zero},
                                                    {"TopK", top_k},
                                                    {"Unique", unique}};
  const auto found = known.find(name);
  return found == known.end() ? nullptr : found->second;
}

}  // namespace tilewright
