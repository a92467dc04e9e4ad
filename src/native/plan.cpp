#include "plan.hpp"

#include <algorithm>
#include <optional>
#include <vector>

#include "failure.hpp"
#include "team.hpp"

namespace tilewright {
namespace {

constexpr std::size_t kMaximumPlans = 512;
constexpr std::size_t kMaximumPlanBytes = 64 << 20;
// Memory that jobs may need where kernels alone need less: a second-level cache holds it. More of
// the arena, a quarter at most, is worth while only for kernels that take longer one after the other,
// by this share of all, as those with fewer tasks than there are threads.
constexpr std::int64_t kLittleMemory = 1 << 20;
constexpr std::int64_t kLargestGrowth = 4;
constexpr std::int64_t kLeastGain = 20;
// Bytes between the scratch memory of two threads. Hardware asks for lines beyond the end of what a
// thread goes through, up to the end of a page: those of the next thread, which writes them.
constexpr std::int64_t kApart = 4096;

// The message with each {symbol} replaced by the symbol's value.
std::string fill_in(const std::string& message, const ProgramInfo& program,
                    const std::vector<std::int64_t>& symbols) {
  std::string text;
  for (std::size_t position = 0; position < message.size();) {
    const std::size_t close =
        message[position] == '{' ? message.find('}', position) : std::string::npos;
    if (close != std::string::npos) {
      const std::string name = message.substr(position + 1, close - position - 1);
      const auto found = std::find(program.symbols.begin(), program.symbols.end(), name);
      if (found != program.symbols.end()) {
        text += std::to_string(symbols[static_cast<std::size_t>(found - program.symbols.begin())]);
        position = close + 1;
        continue;
      }
    }
    text += message[position++];
  }
  return text;
}

[[noreturn]] void too_large(const BufferInfo& buffer) {
  throw Failure(FailureKind::resource, "A tensor needs more than 2^63 bytes.",
                "tensor '" + buffer.name + "'", "use smaller dimensions");
}

std::int64_t dense_bytes(const BufferInfo& buffer, const std::int64_t* dims) {
  const std::int64_t* const end = dims + buffer.shape.size();
  if (std::find(dims, end, 0) != end) return 0;
  std::int64_t bytes = buffer.item_size;
  for (; dims != end; ++dims)
    if (__builtin_mul_overflow(bytes, *dims, &bytes)) too_large(buffer);
  return bytes;
}

void check_guards(const std::vector<GuardInfo>& guards, const ProgramInfo& program,
                  const std::vector<std::int64_t>& symbols) {
  for (const GuardInfo& guard : guards)
    if (program.expressions[guard.condition].evaluate(symbols.data()) == 0)
      throw Failure(FailureKind::dimension, fill_in(guard.message, program, symbols));
}

class Planner {
 public:
  Planner(const ProgramInfo& program, const PhaseInfo& phase,
          const std::vector<std::int64_t>& symbols, int threads)
      : program_(program),
        phase_(phase),
        symbols_(symbols),
        values_(program.expressions.size()),
        threads_(std::min(threads, kMaximumThreads)),
        plan_(std::make_shared<PhasePlan>()) {
    if (program.threads_slot >= 0)
      symbols_[static_cast<std::size_t>(program.threads_slot)] = threads;
  }

  std::shared_ptr<const PhasePlan> make() {
    check_guards(phase_.guards, program_, symbols_);
    choose();
    plan_->symbols = symbols_;
    size_buffers();
    for (std::uint32_t step = phase_.first_step; step < phase_.end_step; ++step) {
      const auto* kernel = std::get_if<KernelInfo>(&program_.steps[step]);
      plan_->kernels.push_back(kernel != nullptr ? plan_kernel(*kernel) : KernelPlan{});
    }
    place_buffers();
    return plan_;
  }

 private:
  // Each chooser once: layers of one kind share theirs.
  void choose() {
    std::vector<std::optional<std::int64_t>> made(program_.choosers.size());
    std::vector<std::int64_t> arguments;
    for (const ChoiceInfo& choice : phase_.choices) {
      std::optional<std::int64_t>& known = made[choice.chooser];
      if (!known) {
        const ChooserInfo& chooser = program_.choosers[choice.chooser];
        arguments.clear();
        for (const std::uint32_t slot : chooser.arguments) arguments.push_back(symbols_[slot]);
        known = chooser.function(arguments.data());
      }
      symbols_[choice.slot] = *known;
    }
  }

  // Each expression once: layers share most of theirs.
  std::int64_t value(std::uint32_t expression) {
    std::optional<std::int64_t>& known = values_[expression];
    if (!known) known = program_.expressions[expression].evaluate(symbols_.data());
    return *known;
  }

  std::int64_t size(std::uint32_t expression, const std::string& place) {
    const std::int64_t result = value(expression);
    if (result < 0)
      throw Failure(FailureKind::dimension,
                    "The size '" + program_.expressions[expression].text() + "' is " +
                        std::to_string(result) + " for these inputs.",
                    place, "larger dimensions");
    return result;
  }

  void size_buffers() {
    for (const std::uint32_t number : phase_.buffers) {
      const BufferInfo& buffer = program_.buffers[number];
      const std::string& place = buffer.name;
      const std::size_t first = plan_->dims.size();
      plan_->first_dim.push_back(static_cast<std::uint32_t>(first));
      for (const std::uint32_t dim : buffer.shape) plan_->dims.push_back(size(dim, place));
      const std::int64_t bytes = buffer.packed >= 0
                                     ? size(static_cast<std::uint32_t>(buffer.packed), place)
                                 : buffer.native ? dense_bytes(buffer, plan_->dims.data() + first)
                                                 : 0;
      plan_->bytes.push_back(bytes);
      if (buffer.storage == Storage::output &&
          __builtin_add_overflow(plan_->output_bytes, align_up(bytes), &plan_->output_bytes))
        too_large(buffer);
    }
  }

  // Kernels can be one job only if what is read there is not overwritten, which may cost memory.
  void place_buffers() {
    std::vector<std::int64_t> sizes;
    sizes.reserve(phase_.items.size());
    for (const std::uint32_t position : phase_.items) sizes.push_back(plan_->bytes[position]);
    plan_->arena_bytes = phase_.conflicts->place(sizes, plan_->offsets);
    join_kernels();
    if (threads_ == 1 || phase_.conflicts_beside == nullptr) return;
    std::vector<std::int64_t> offsets;
    std::int64_t bytes = phase_.conflicts_beside->place(sizes, offsets);
    const std::int64_t alone = plan_->arena_bytes, duration = duration_of_jobs();
    if (bytes > std::max(alone + alone / kLargestGrowth, kLittleMemory)) return;
    const auto exchange = [&] {
      std::swap(plan_->arena_bytes, bytes);
      std::swap(plan_->offsets, offsets);
      join_kernels();
    };
    exchange();
    if (plan_->arena_bytes <= std::max(alone, kLittleMemory)) return;
    if (duration_of_jobs() > duration - duration / kLeastGain) exchange();
  }

  KernelPlan plan_kernel(const KernelInfo& kernel) {
    KernelPlan plan{};
    plan.parameters = static_cast<std::uint32_t>(plan_->parameters.size());
    if (value(kernel.used) == 0) return plan;
    plan.grid = size(kernel.grid, kernel.label);
    if (plan.grid == 0) return plan;
    plan.rounds = std::max<std::int64_t>(size(kernel.rounds, kernel.label), 1);
    for (const std::uint32_t parameter : kernel.parameters)
      plan_->parameters.push_back(value(parameter));
    plan.scratch = align_up(size(kernel.scratch, kernel.label));
    if (plan.scratch > INT64_MAX / kMaximumThreads - kApart)
      throw Failure(FailureKind::resource, "A kernel needs more than 2^55 bytes of scratch memory.",
                    kernel.label, "use smaller dimensions");
    if (plan.scratch > 0 && threads_ > 1) plan.scratch += kApart;
    plan.work = std::max<std::int64_t>(0, value(kernel.work));
    const std::int64_t threads =
        std::min({plan.grid / plan.rounds, std::max<std::int64_t>(1, plan.work / kWorkPerThread),
                  static_cast<std::int64_t>(kMaximumThreads)});
    plan.threads = static_cast<std::int32_t>(threads);
    return plan;
  }

  // ------------------------------------------------------------ jobs

  // Memory that a kernel touches: bytes of the arena block of the phase, or a whole buffer.
  struct Place {
    std::int64_t begin, end;
    std::uint32_t buffer;
    bool is_arena, is_written;

    bool conflicts(const Place& other) const {
      if (!is_written && !other.is_written) return false;
      if (!is_arena || !other.is_arena) return buffer == other.buffer;
      return begin < other.end && other.begin < end;
    }
  };

  // Kernels that follow one another become one job where none of them touches what another one
  // writes, at the addresses that they have at this shape.
  void join_kernels() {
    plan_->scratch_bytes = 0;
    for (KernelPlan& kernel : plan_->kernels) {
      if (kernel.grid == 0) continue;
      kernel.job_steps = 1;
      kernel.job_threads = kernel.threads;
      plan_->scratch_bytes =
          std::max(plan_->scratch_bytes, kernel.scratch * std::min(kernel.threads, threads_));
    }
    if (threads_ == 1) return;
    locate_items();
    const std::int64_t scratch = std::max(plan_->scratch_bytes, kLittleMemory);
    Joined job{};
    std::vector<Place> own;
    for (std::uint32_t at = 0; at < plan_->kernels.size(); ++at) {
      const auto* kernel = std::get_if<KernelInfo>(&program_.steps[phase_.first_step + at]);
      if (kernel == nullptr) {
        job.parts = 0;
        continue;
      }
      const KernelPlan& numbers = plan_->kernels[at];
      if (numbers.grid == 0) continue;
      own.clear();
      const bool is_alone = kernel->is_foreign || !find_places(*kernel, own);
      if (is_alone || !may_join(job, numbers, own, scratch)) {
        job.places.clear();
        job = {at, 0, 0, numbers.rounds, 0, 0, std::move(job.places)};
      }
      job.grid += numbers.grid / numbers.rounds;
      job.work += numbers.work;
      job.scratch = std::max(job.scratch, numbers.scratch);
      job.places.insert(job.places.end(), own.begin(), own.end());
      if (++job.parts > 1) {
        plan_->kernels[job.first].job_steps = at + 1 - job.first;
        plan_->kernels[job.first].job_threads = job_threads(job);
        plan_->scratch_bytes = std::max(plan_->scratch_bytes, job.scratch * job_threads(job));
      }
      if (is_alone) job.parts = 0;
    }
  }

  struct Joined {
    std::uint32_t first;
    int parts;
    std::int64_t grid, rounds, work, scratch;  // the tasks are those of a round
    std::vector<Place> places;
  };

  std::int32_t job_threads(const Joined& job) const {
    const std::int64_t worth_while = std::max<std::int64_t>(1, job.work / kWorkPerThread);
    return static_cast<std::int32_t>(
        std::min({job.grid, worth_while, static_cast<std::int64_t>(threads_)}));
  }

  // `scratch` is what there may be for all threads.
  bool may_join(const Joined& job, const KernelPlan& kernel, const std::vector<Place>& places,
                std::int64_t scratch) const {
    if (job.parts == 0 || job.parts == kMostParts || kernel.rounds != job.rounds) return false;
    for (const Place& place : places)
      for (const Place& other : job.places)
        if (place.conflicts(other)) return false;
    const Joined whole{job.first, job.parts + 1, job.grid + kernel.grid / kernel.rounds, job.rounds,
                    job.work + kernel.work, std::max(job.scratch, kernel.scratch), {}};
    return whole.scratch * job_threads(whole) <= scratch;
  }

  // Nanoseconds of all jobs one after the other, by the work of their kernels.
  std::int64_t duration_of_jobs() const {
    std::int64_t duration = 0;
    const std::vector<KernelPlan>& kernels = plan_->kernels;
    for (std::size_t at = 0; at < kernels.size();) {
      const auto threads = std::max(std::min(kernels[at].job_threads, threads_), 1);
      std::int64_t work = 0, longest = 0;
      for (const std::size_t end = at + std::max(kernels[at].job_steps, 1U); at < end; ++at) {
        work += kernels[at].work;
        const auto own = std::max(std::min(kernels[at].threads, threads_), 1);
        longest = std::max(longest, kernels[at].work / own);
      }
      duration += std::max(longest, work / threads);
    }
    return duration;
  }

  void locate_items() {
    items_.assign(program_.buffers.size(), -1);
    for (std::size_t item = 0; item < phase_.items.size(); ++item)
      items_[phase_.buffers[phase_.items[item]]] = static_cast<std::int32_t>(item);
  }

  // False where it cannot be told: a buffer of an earlier phase may lie anywhere in the block.
  bool find_places(const KernelInfo& kernel, std::vector<Place>& places) const {
    for (const std::uint32_t buffer : kernel.buffers) {
      const bool is_written = std::find(kernel.written.begin(), kernel.written.end(), buffer) !=
                              kernel.written.end();
      const BufferInfo& info = program_.buffers[buffer];
      if (info.storage != Storage::arena) {
        places.push_back({0, 0, buffer, false, is_written});
        continue;
      }
      const std::int32_t item = items_[buffer];
      if (item < 0) return false;
      const std::int64_t begin = plan_->offsets[static_cast<std::size_t>(item)];
      const std::int64_t bytes = plan_->bytes[phase_.items[static_cast<std::size_t>(item)]];
      places.push_back({begin, begin + bytes, buffer, true, is_written});
    }
    return true;
  }

  const ProgramInfo& program_;
  const PhaseInfo& phase_;
  std::vector<std::int64_t> symbols_;
  std::vector<std::optional<std::int64_t>> values_;
  std::vector<std::int32_t> items_;  // by buffer: its item in the arena, or -1
  std::int32_t threads_;
  std::shared_ptr<PhasePlan> plan_;
};

}  // namespace

std::size_t PhasePlan::footprint() const {
  return sizeof *this + kernels.capacity() * sizeof(KernelPlan) +
         8 * (parameters.capacity() + dims.capacity() + bytes.capacity() + offsets.capacity() +
              symbols.capacity()) +
         4 * first_dim.capacity();
}

void solve_symbols(const ProgramInfo& program, std::vector<std::int64_t>& symbols) {
  for (const SolvingInfo& step : program.solving) {
    check_guards(step.guards, program, symbols);
    symbols[step.slot] = program.expressions[step.formula].evaluate(symbols.data());
  }
}

std::shared_ptr<const PhasePlan> make_plan(const ProgramInfo& program, const PhaseInfo& phase,
                                           const std::vector<std::int64_t>& symbols, int threads) {
  return Planner(program, phase, symbols, threads).make();
}

std::size_t PlanTable::Hash::operator()(const std::vector<std::int64_t>& key) const noexcept {
  std::uint64_t hash = key.size();
  for (const std::int64_t word : key) {
    hash = (hash ^ static_cast<std::uint64_t>(word)) * 0x9e3779b97f4a7c15ULL;
    hash ^= hash >> 29;
  }
  return hash;
}

std::shared_ptr<const PhasePlan> PlanTable::find(const std::vector<std::int64_t>& key) {
  const auto found = index_.find(key);
  if (found == index_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->plan;
}

void PlanTable::insert(std::vector<std::int64_t> key, std::shared_ptr<const PhasePlan> plan) {
  if (index_.contains(key)) return;  // another thread has made the same
  bytes_ += plan->footprint();
  entries_.push_front({std::move(key), std::move(plan)});
  index_[entries_.front().key] = entries_.begin();
  while (entries_.size() > kMaximumPlans || (bytes_ > kMaximumPlanBytes && entries_.size() > 1)) {
    bytes_ -= entries_.back().plan->footprint();
    index_.erase(entries_.back().key);
    entries_.pop_back();
  }
}

void PlanTable::clear() {
  index_.clear();
  entries_.clear();
  bytes_ = 0;
}

}  // namespace tilewright
