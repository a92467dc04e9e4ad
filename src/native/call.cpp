#include "call.hpp"

#include <xmmintrin.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "control.hpp"
#include "failure.hpp"
#include "signals.hpp"
#include "team.hpp"
#include "tensors.hpp"

namespace tilewright {
namespace {

// How long kernels have run is known only by the clock, which is looked at after so much estimated
// work, of which every kernel counts as at least a little.
constexpr std::int64_t kClockWork = 1'000'000;
constexpr std::int64_t kLeastWork = 10'000;

// How much larger than needed memory for arena and scratch may be: what it is, or a little.
constexpr std::int64_t kWorkingExcess = 3;
constexpr std::int64_t kLeastExcess = 64 << 10;

// Kernels run with their own rounding and denormals, whatever the caller has set.
class FloatControl {
 public:
  explicit FloatControl(unsigned control) : before_(_mm_getcsr()) { _mm_setcsr(control); }
  ~FloatControl() { _mm_setcsr(before_); }
  FloatControl(const FloatControl&) = delete;
  FloatControl& operator=(const FloatControl&) = delete;

 private:
  unsigned before_;
};

void replace_all(std::string& text, const std::string& what, const std::string& by) {
  for (std::size_t at = text.find(what); at != std::string::npos;
       at = text.find(what, at + by.size()))
    text.replace(at, what.size(), by);
}

[[noreturn]] void fail(const KernelInfo& kernel, const Status& status) {
  std::string message =
      "The kernel reported the unknown status " + std::to_string(status.code) + ".";
  if (status.code > 0 && status.code <= static_cast<std::int64_t>(kernel.checks.size()))
    message = kernel.checks[static_cast<std::size_t>(status.code) - 1];
  replace_all(message, "{0}", std::to_string(status.detail[0]));
  replace_all(message, "{1}", std::to_string(status.detail[1]));
  throw Failure(FailureKind::execution, message, kernel.label);
}

template <typename Signed, typename Unsigned>
std::int64_t read_as(const void* data, bool is_unsigned) {
  Signed value{};
  std::memcpy(&value, data, sizeof value);
  return is_unsigned ? static_cast<std::int64_t>(static_cast<Unsigned>(value)) : value;
}

}  // namespace

std::int64_t read_integer(const BufferInfo& buffer, const void* data, std::int64_t index) {
  const void* const at = static_cast<const char*>(data) + index * buffer.item_size;
  switch (buffer.item_size) {
    case 1:
      return read_as<std::int8_t, std::uint8_t>(at, buffer.is_unsigned);
    case 2:
      return read_as<std::int16_t, std::uint16_t>(at, buffer.is_unsigned);
    case 4:
      return read_as<std::int32_t, std::uint32_t>(at, buffer.is_unsigned);
    default:
      return read_as<std::int64_t, std::uint64_t>(at, buffer.is_unsigned);
  }
}

void handle_signals(WithoutGil* without_gil) {
  const auto handle = [] {
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  };
  if (without_gil != nullptr) {
    without_gil->interrupt(handle);
  } else {
    handle();
  }
}

nb::object Call::run(nb::tuple arguments, nb::dict keywords, nb::handle out) {
  std::fill(context_.needed.begin(), context_.needed.end(), 0);
  context_.scratch_needed = context_.output_bytes = 0;
  if (times_ != nullptr) times_->assign(program_.steps.size(), -1);
  read_inputs(arguments, keywords);
  if (!out.is_none()) read_outputs(nb::borrow(out));
  run_phases();
  const nb::object made = results();
  if (!is_converted_) return made;
  // Results follow the inputs: tensors come out where tensors went in.
  const nb::object own = own_.is_valid() ? own_ : nb::none();
  return in_python([&] { return model_.adapt()(arguments, keywords, made, own); });
}

void Call::run_body(const std::vector<Tensor>& inputs) {
  Model::forget_results(program_, context_);
  std::fill(context_.needed.begin(), context_.needed.end(), 0);
  context_.scratch_needed = context_.output_bytes = 0;
  for (std::size_t input = 0; input < inputs.size(); ++input) {
    const std::uint32_t number = program_.inputs[input];
    context_.pointers[number] = const_cast<void*>(inputs[input].data);
    context_.set_dims(number, inputs[input].dims, inputs[input].rank);
  }
  run_phases();
}

void Call::run_phases() {
  for (const SizeInfo& size : program_.sizes)
    context_.symbols[size.slot] = context_.dims[program_.inputs[size.input]][size.axis];
  for (std::uint32_t phase = 0; phase < program_.phases.size(); ++phase) run_phase(phase);
}

void Call::run_phase(std::uint32_t number) {
  const PhaseInfo& phase = program_.phases[number];
  const PhasePlan& plan = model_.plan(context_, number, threads_);
  for (std::size_t position = 0; position < phase.buffers.size(); ++position) {
    const std::uint32_t buffer = phase.buffers[position];
    const std::int64_t* const dims = plan.dims.data() + plan.first_dim[position];
    // Arrays that are here already, from the caller or from an opaque step, have their own sizes.
    if (context_.dims[buffer] != nullptr) {
      check_shape(buffer, dims);
    } else {
      context_.dims[buffer] = dims;
    }
  }
  if (!uncopied_.empty()) copy_inputs();
  provide_memory(phase, plan);
  for (std::uint32_t step = phase.first_step; step < phase.end_step;) {
    std::uint32_t end = step;
    while (end < phase.end_step && std::holds_alternative<KernelInfo>(program_.steps[end])) ++end;
    if (end > step) {
      run_kernels(phase, plan, step, end);
      step = end;
      continue;
    }
    const std::int64_t start = times_ != nullptr ? now() : 0;
    if (const auto* opaque = std::get_if<OpaqueInfo>(&program_.steps[step])) {
      run_opaque(step, *opaque, number);
    } else {
      run_bind(std::get<BindInfo>(program_.steps[step]));
    }
    if (times_ != nullptr) (*times_)[step] = now() - start;
    ++step;
  }
}

void Call::check_shape(std::uint32_t number, const std::int64_t* expected) const {
  const BufferInfo& buffer = program_.buffers[number];
  const std::int64_t* const dims = context_.dims[number];
  const std::size_t rank = buffer.shape.size();
  if (!buffer.shaped) return;
  for (std::size_t axis = 0; axis < rank; ++axis) {
    if (dims[axis] == expected[axis]) continue;
    const std::string& text = program_.expressions[buffer.shape[axis]].text();
    const std::string value = std::to_string(expected[axis]);
    const std::string wanted = text == value ? value : value + " (" + text + ")";
    if (buffer.kind == BufferKind::input)
      throw Failure(FailureKind::dimension,
                    "Axis " + std::to_string(axis) + " of input '" + buffer.name + "' is " +
                        std::to_string(dims[axis]) + ", but must be " + wanted + ".",
                    "input '" + buffer.name + "' of shape " + shape_text(dims, rank),
                    "an array of " + buffer.expected);
    throw Failure(FailureKind::execution,
                  "An operator returned " + shape_text(dims, rank) + ", but axis " + std::to_string(axis) + " must be " + wanted + ".",
                  "tensor '" + buffer.name + "'");
  }
}

void Call::provide_memory(const PhaseInfo& phase, const PhasePlan& plan) {
  std::int64_t& needed = context_.needed[phase.block];
  needed = std::max(needed, plan.arena_bytes);
  context_.scratch_needed = std::max(context_.scratch_needed, plan.scratch_bytes);
  context_.output_bytes += plan.output_bytes;
  for (std::size_t position = 0; position < phase.buffers.size(); ++position) {
    const BufferInfo& buffer = program_.buffers[phase.buffers[position]];
    if (buffer.storage == Storage::output && context_.given[buffer.index].is_valid())
      context_.output_bytes -= align_up(plan.bytes[position]);
  }
  if (max_bytes_ > 0) check_limit();
  Block& block = context_.blocks[phase.block];
  reserve(block, plan.arena_bytes);
  reserve(context_.scratch, context_.scratch_needed);
  for (std::size_t item = 0; item < phase.items.size(); ++item)
    context_.pointers[phase.buffers[phase.items[item]]] =
        plan.bytes[phase.items[item]] > 0 ? block.data() + plan.offsets[item] : no_elements;
  for (std::size_t position = 0; position < phase.buffers.size(); ++position)
    if (program_.buffers[phase.buffers[position]].storage == Storage::output)
      provide_output(phase.buffers[position], plan.bytes[position],
                     plan.dims.data() + plan.first_dim[position]);
}

// What earlier calls have left may be larger than needed, but not push a call past its limit.
void Call::reserve(Block& block, std::int64_t bytes) {
  if (block.capacity() >= bytes) return;
  Memory& memory = Memory::shared();
  memory.give_back(Memory::Purpose::working, std::exchange(block, Block()));
  std::int64_t excess = std::max(kWorkingExcess * std::min(bytes, INT64_MAX / 4), kLeastExcess);
  if (max_bytes_ > 0) {
    const std::int64_t left =
        max_bytes_ - outside_bytes_ - context_.claimed_bytes() - context_.output_bytes;
    // Later phases may need it.
    excess = program_.phases.size() > 1 ? 0 : std::clamp<std::int64_t>(left, 0, excess);
  }
  block = memory.take(Memory::Purpose::working, bytes, excess);
}

// What this call and those around it need so far.
std::int64_t Call::claimed_bytes() const {
  std::int64_t total = outside_bytes_ + context_.scratch_needed + context_.output_bytes;
  for (const std::int64_t bytes : context_.needed) total += bytes;
  return total;
}

void Call::check_limit(std::int64_t more) const {
  const std::int64_t total = claimed_bytes() + more;
  if (total > max_bytes_)
    throw Failure(FailureKind::resource,
                  "This call needs " + std::to_string(total) + " bytes for intermediate tensors (" +
                      std::to_string(total - context_.output_bytes) + ") and outputs (" +
                      std::to_string(context_.output_bytes) + "), but max_bytes is " +
                      std::to_string(max_bytes_),
                  {}, "Use smaller dimensions, fewer threads, or a larger max_bytes");
}

void Call::run_kernels(const PhaseInfo& phase, const PhasePlan& plan, std::uint32_t first,
                       std::uint32_t end) {
  while (first < end) {
    first = run_stretch(phase, plan, first, end);
    if (first < end) handle_signals(without_gil_);
  }
}

std::uint32_t Call::run_stretch(const PhaseInfo& phase, const PhasePlan& plan, std::uint32_t first,
                                std::uint32_t end) {
  std::optional<WithoutGil> without_gil;
  if (without_gil_ == nullptr) without_gil.emplace();
  const FloatControl float_control(float_control_);
  TeamLease lease;
  std::int64_t work = 0, deadline = 0;
  for (std::uint32_t step = first; step < end;) {
    const KernelPlan& numbers = plan.kernels[step - phase.first_step];
    if (numbers.grid == 0) {
      ++step;
      continue;
    }
    const std::int64_t start = times_ != nullptr ? now() : 0;
    const bool is_single = times_ != nullptr;  // times are those of single kernels
    int threads = std::min(is_single ? numbers.threads : numbers.job_threads, threads_);
    if (threads > 1) threads = std::min(threads, lease.acquire(threads_));
    const std::uint32_t after = step + (is_single || threads == 1 ? 1 : numbers.job_steps);
    work += run_job(phase, plan, step, after, threads, threads > 1 ? &lease.team() : nullptr);
    if (times_ != nullptr) (*times_)[step] = now() - start;
    step = after;
    if (work < kClockWork) continue;
    work = 0;
    const std::int64_t moment = now();
    if (deadline == 0) deadline = moment + kSignalTime;
    if (moment < deadline) continue;
    if (is_main_thread()) return step;
    deadline = INT64_MAX;
  }
  return end;
}

std::int64_t Call::run_job(const PhaseInfo& phase, const PhasePlan& plan, std::uint32_t first,
                           std::uint32_t end, int threads, Team* team) {
  char* const scratch = context_.scratch.data() != nullptr ? context_.scratch.data() : no_elements;
  std::array<const KernelInfo*, kMostParts> kernels{};
  Part* const parts = context_.parts.data();
  void** arguments = context_.arguments.data();
  std::int64_t work = 0, stride = 0, rounds = 1;
  int count = 0, next_thread = 0;
  bool is_checked = false;
  for (std::uint32_t step = first; step < end; ++step) {
    const KernelPlan& numbers = plan.kernels[step - phase.first_step];
    if (numbers.grid == 0) continue;
    const auto& kernel = *std::get_if<KernelInfo>(&program_.steps[step]);
    const int own = std::min(numbers.threads, threads);
    parts[count] = {kernel.function, plan.parameters.data() + numbers.parameters, arguments,
                    numbers.grid / numbers.rounds, own, own == threads ? 0 : next_thread,
                    pieces_per_thread(numbers.work, numbers.grid / numbers.rounds, own)};
    if (own < threads) next_thread = (next_thread + own) % threads;
    for (const std::uint32_t buffer : kernel.buffers) *arguments++ = context_.pointers[buffer];
    kernels[count++] = &kernel;
    is_checked |= !kernel.checks.empty();
    stride = std::max(stride, numbers.scratch);
    rounds = numbers.rounds;  // those of a job have the same number
    work += std::max(numbers.work, kLeastWork);
  }
  std::vector<Status>& statuses = context_.statuses;
  if (team != nullptr) {
    team->run({parts, count, rounds, scratch, stride, statuses.data(), threads, float_control_});
  } else {
    parts->function(parts->parameters, parts->buffers, 0, parts->grid * rounds, scratch, statuses.data());
  }
  for (int thread = 0; is_checked && thread < threads; ++thread) {
    const Status status = statuses[thread];
    if (status.code == 0) continue;
    std::fill(statuses.begin(), statuses.end(), Status{});
    fail(*kernels[std::max<std::int64_t>(status.kernel, 1) - 1], status);
  }
  return work;
}

// What an opaque step is given, which may keep it: in a traceback, say. The arena is used again.
nb::object Call::operand(std::uint32_t number) const {
  const BufferInfo& buffer = program_.buffers[number];
  const nb::object& object = context_.objects[number];
  const bool is_input = buffer.kind == BufferKind::input;
  if (object.is_valid() && !(buffer.native && is_input)) return object;
  // Read-only, as a reference that wrote to its input would change the caller's array.
  const int rank = static_cast<int>(buffer.shape.size());
  if (object.is_valid())
    return make_array(buffer.dtype.ptr(), rank, context_.dims[number], context_.pointers[number],
                      object, false);
  const std::int64_t bytes = bytes_of(number);
  Block copy = Memory::shared().take(Memory::Purpose::output, bytes, bytes / 2);
  if (bytes > 0) std::memcpy(copy.data(), context_.pointers[number], static_cast<std::size_t>(bytes));
  return make_output(buffer.dtype.ptr(), rank, context_.dims[number], std::move(copy), false);
}

void Call::run_opaque(std::uint32_t step, const OpaqueInfo& opaque, std::uint32_t phase) {
  std::vector<const std::int64_t*> expected;
  for (const std::uint32_t output : opaque.outputs) expected.push_back(context_.dims[output]);
  if (opaque.built_in != nullptr) {
    run_built_in(opaque);
  } else if (opaque.control != nullptr) {
    run_control(opaque);
  } else {
    run_in_python(step, opaque);
  }
  for (std::size_t position = 0; position < opaque.outputs.size(); ++position) {
    const std::uint32_t number = opaque.outputs[position];
    if (program_.buffers[number].phase <= phase && expected[position] != nullptr)
      check_shape(number, expected[position]);
  }
  for (const OpaqueInfo::Binding& binding : opaque.bindings) {
    const std::int64_t* const dims = context_.dims[opaque.outputs[binding.output]];
    if (dims != nullptr) context_.symbols[binding.slot] = dims[binding.axis];
  }
}

// The sizes of a result as the model tells them before the step has run; 0 for those that only the
// result does.
std::vector<std::int64_t> Call::told_sizes(const OpaqueInfo& opaque, std::uint32_t buffer) {
  std::vector<std::int64_t>& symbols = context_.symbols;
  for (const OpaqueInfo::Binding& binding : opaque.bindings) symbols[binding.slot] = 0;
  std::vector<std::int64_t> sizes;
  for (const std::uint32_t size : program_.buffers[buffer].shape) {
    try {
      sizes.push_back(program_.expressions[size].evaluate(symbols.data()));
    } catch (const Failure&) {
      sizes.push_back(0);
    }
  }
  return sizes;
}

void Call::run_in_python(std::uint32_t step, const OpaqueInfo& opaque) {
  nb::list inputs, sizes;
  for (const std::uint32_t input : opaque.inputs) inputs.append(operand(input));
  for (const std::uint32_t output : opaque.outputs) sizes.append(told_sizes(opaque, output));
  const nb::object results = in_python([&] { return model_.run_opaque()(step, inputs, sizes); });
  for (std::size_t position = 0; position < opaque.outputs.size(); ++position) {
    const std::uint32_t number = opaque.outputs[position];
    const BufferInfo& buffer = program_.buffers[number];
    context_.objects[number] = nb::object(results[position]);
    PyObject* const result = context_.objects[number].ptr();
    ArrayView view{};
    const bool is_array = buffer.native ? view_array(result, buffer.dtype.ptr(), view)
                                        : buffer.shaped && view_shape(result, view);
    if (!is_array && (buffer.native || buffer.shaped))
      throw Failure(FailureKind::execution, "An operator run by the reference returned no array.",
                    opaque.label);
    if (!is_array) continue;
    context_.pointers[number] = view.data;
    context_.set_dims(number, view.dims, view.rank);
  }
}

// One operator of a call, whose results are blocks of their own.
class Call::StepWork final : public Work {
 public:
  StepWork(Call& call, const OpaqueInfo& opaque, std::vector<std::optional<Operand>> operands)
      : Work(opaque.label, std::move(operands), opaque.attributes, call.threads_),
        call_(call),
        opaque_(opaque) {}

  void* result(std::size_t index, ElementType type, const std::vector<std::int64_t>& dims) override {
    return call_.make_result(opaque_, index, type, dims);
  }

 private:
  Call& call_;
  const OpaqueInfo& opaque_;
};

const std::uint32_t* Call::output_for(const OpaqueInfo& opaque, std::size_t result) const {
  const auto found = std::find(opaque.results.begin(), opaque.results.end(), result);
  return found == opaque.results.end()
             ? nullptr
             : &opaque.outputs[static_cast<std::size_t>(found - opaque.results.begin())];
}

void Call::size_result(const OpaqueInfo& opaque, std::uint32_t number, ElementType type,
                       const std::vector<std::int64_t>& dims) {
  const BufferInfo& buffer = program_.buffers[number];
  if (buffer.element != type || buffer.shape.size() != dims.size())
    throw Failure(FailureKind::execution,
                  "The result is " + std::string(name_of(type)) +
                      shape_text(dims.data(), dims.size()) + ", but " + buffer.expected +
                      " is expected",
                  opaque.label);
  context_.set_dims(number, dims.data(), static_cast<int>(dims.size()));
  context_.output_bytes += align_up(bytes_of(number));
  if (max_bytes_ > 0) check_limit();
}

char* Call::make_result(const OpaqueInfo& opaque, std::size_t result, ElementType type,
                        const std::vector<std::int64_t>& dims) {
  const std::uint32_t* const output = output_for(opaque, result);
  if (output == nullptr) return nullptr;
  const std::uint32_t number = *output;
  size_result(opaque, number, type, dims);
  const BufferInfo& buffer = program_.buffers[number];
  const std::int64_t bytes = bytes_of(number);
  char* data = no_elements;
  if (body_outputs_ != nullptr && buffer.kind == BufferKind::output) {
    data = body_outputs_->place(buffer.index, context_.dims[number], bytes);
  } else if (bytes > 0) {
    context_.made[number] = Memory::shared().take(Memory::Purpose::output, bytes, bytes / 2);
    data = context_.made[number].data();
  }
  context_.pointers[number] = data;
  return data;
}

void Call::adopt_result(const OpaqueInfo& opaque, std::size_t result, ElementType type,
                        const std::vector<std::int64_t>& dims, Block block) {
  const std::uint32_t* const output = output_for(opaque, result);
  const bool is_elsewhere =
      output != nullptr && body_outputs_ != nullptr &&
      program_.buffers[*output].kind == BufferKind::output;
  if (output == nullptr || is_elsewhere || block.data() == nullptr) {
    char* const data = make_result(opaque, result, type, dims);
    if (data != nullptr && block.data() != nullptr && bytes_of(*output) > 0)
      std::memcpy(data, block.data(), static_cast<std::size_t>(bytes_of(*output)));
    Memory::shared().give_back(Memory::Purpose::output, std::move(block));
    return;
  }
  size_result(opaque, *output, type, dims);
  context_.pointers[*output] = block.data();
  context_.made[*output] = std::move(block);
}

void Call::run_control(const OpaqueInfo& opaque) {
  std::optional<WithoutGil> without_gil;
  if (without_gil_ == nullptr) without_gil.emplace();
  ControlRun(*this, opaque, without_gil ? *without_gil : *without_gil_).run();
}

void Call::run_built_in(const OpaqueInfo& opaque) {
  std::vector<std::optional<Operand>> operands;
  for (const std::int64_t position : opaque.operands) {
    operands.emplace_back();
    if (position < 0) continue;
    const std::uint32_t number = opaque.inputs[static_cast<std::size_t>(position)];
    const BufferInfo& buffer = program_.buffers[number];
    operands.back() = {buffer.element, static_cast<int>(buffer.shape.size()), context_.dims[number],
                       context_.pointers[number]};
  }
  StepWork work(*this, opaque, std::move(operands));
  std::optional<WithoutGil> without_gil;
  if (without_gil_ == nullptr) without_gil.emplace();
  const FloatControl float_control(float_control_);
  opaque.built_in(work);
}

void Call::run_bind(const BindInfo& bind) {
  const BufferInfo& buffer = program_.buffers[bind.buffer];
  const std::int64_t* const dims = context_.dims[bind.buffer];
  std::int64_t count = 1;
  for (std::size_t axis = 0; axis < buffer.shape.size(); ++axis) count *= dims[axis];
  if (count != static_cast<std::int64_t>(bind.slots.size()))
    throw Failure(FailureKind::dimension, "Tensor '" + buffer.name + "' has " +
                                              std::to_string(count) +
                                              " elements, but its values give " +
                                              std::to_string(bind.slots.size()) + " dimensions.");
  for (std::size_t position = 0; position < bind.slots.size(); ++position) {
    const std::int64_t value = read_integer(buffer, context_.pointers[bind.buffer],
                                            static_cast<std::int64_t>(position));
    if (buffer.is_unsigned && value < 0)
      throw Failure(FailureKind::dimension,
                    "Tensor '" + buffer.name + "' gives a dimension the size " +
                        std::to_string(static_cast<std::uint64_t>(value)) +
                        ", which is 2^63 or more");
    context_.symbols[bind.slots[position]] = value;
  }
}

}  // namespace tilewright
