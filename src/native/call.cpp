#include "call.hpp"

#include <xmmintrin.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "failure.hpp"
#include "team.hpp"
#include "tensors.hpp"

namespace tilewright {
namespace {

alignas(64) char no_elements[64];

// Kernels run with denormals kept and nearest rounding, whatever the caller has set.
class FloatControl {
 public:
  FloatControl() : before_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~FloatControl() { _mm_setcsr(before_); }
  FloatControl(const FloatControl&) = delete;
  FloatControl& operator=(const FloatControl&) = delete;

 private:
  unsigned before_;
};

// Ownership of the team while a stretch of kernels runs, taken when first needed.
class TeamLease {
 public:
  TeamLease() = default;
  ~TeamLease() {
    if (threads_ > 0) team_->release();
  }
  TeamLease(const TeamLease&) = delete;
  TeamLease& operator=(const TeamLease&) = delete;

  // How many threads may be used; 1 while another call has the team.
  int acquire(int threads) {
    if (threads_ == 0) {
      team_ = &Team::shared();
      threads_ = team_->try_acquire(threads);
    }
    return std::max(threads_, 1);
  }
  Team& team() { return *team_; }

 private:
  Team* team_ = nullptr;
  int threads_ = 0;
};

std::int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::string shape_text(const std::int64_t* dims, std::size_t rank) {
  std::string text = "[";
  for (std::size_t axis = 0; axis < rank; ++axis)
    text += (axis > 0 ? ", " : "") + std::to_string(dims[axis]);
  return text + "]";
}

void replace_all(std::string& text, const std::string& what, const std::string& by) {
  for (std::size_t at = text.find(what); at != std::string::npos;
       at = text.find(what, at + by.size()))
    text.replace(at, what.size(), by);
}

[[noreturn]] void fail(const KernelInfo& kernel, std::vector<Status>& statuses) {
  const auto failed =
      std::find_if(statuses.begin(), statuses.end(), [](const Status& s) { return s.code != 0; });
  const Status status = *failed;
  std::fill(statuses.begin(), statuses.end(), Status{});
  std::string message =
      "The kernel reported the unknown status " + std::to_string(status.code) + ".";
  if (status.code > 0 && status.code <= static_cast<std::int64_t>(kernel.checks.size()))
    message = kernel.checks[static_cast<std::size_t>(status.code) - 1];
  replace_all(message, "{0}", std::to_string(status.detail[0]));
  replace_all(message, "{1}", std::to_string(status.detail[1]));
  throw Failure(FailureKind::execution, message, kernel.label);
}

std::int64_t read_integer(const void* data, std::int64_t index, std::int64_t item_size) {
  const char* const at = static_cast<const char*>(data) + index * item_size;
  const auto read = [at]<typename T>(T value) {
    std::memcpy(&value, at, sizeof value);
    return static_cast<std::int64_t>(value);
  };
  switch (item_size) {
    case 1:
      return read(std::int8_t{});
    case 2:
      return read(std::int16_t{});
    case 4:
      return read(std::int32_t{});
    default:
      return read(std::int64_t{});
  }
}

}  // namespace

nb::object Call::run(nb::tuple arguments, nb::dict keywords) {
  std::fill(context_.needed.begin(), context_.needed.end(), 0);
  context_.scratch_needed = context_.output_bytes = 0;
  if (times_ != nullptr) times_->assign(program_.steps.size(), 0);
  read_inputs(arguments, keywords);
  for (const SizeInfo& size : program_.sizes)
    context_.symbols[size.slot] = context_.dims[program_.inputs[size.input]][size.axis];
  for (std::uint32_t phase = 0; phase < program_.phases.size(); ++phase) run_phase(phase);
  return results();
}

void Call::read_inputs(nb::tuple arguments, nb::dict keywords) {
  const std::size_t count = program_.inputs.size();
  const std::size_t positional = arguments.size();
  if (positional + keywords.size() != count) model_.reject()(arguments, keywords);
  for (std::uint32_t input = 0; input < count; ++input) {
    PyObject* value = nullptr;
    if (input < positional) {
      value = PyTuple_GET_ITEM(arguments.ptr(), static_cast<Py_ssize_t>(input));
    } else {
      value = PyDict_GetItemWithError(keywords.ptr(), model_.input_names()[input].ptr());
      if (value == nullptr && PyErr_Occurred()) throw nb::python_error();
      if (value == nullptr) model_.reject()(arguments, keywords);
    }
    if (value == nullptr) throw Failure(FailureKind::input, "An input is missing.");
    read_input(input, value);
  }
}

void Call::read_input(std::uint32_t input, PyObject* value) {
  const std::uint32_t number = program_.inputs[input];
  const BufferInfo& buffer = program_.buffers[number];
  const int rank = static_cast<int>(buffer.shape.size());
  ArrayView view{};
  context_.objects[number] = nb::borrow(value);
  if (!buffer.native) {
    context_.objects[number] = model_.convert()(input, nb::handle(value));
    if (!buffer.shaped) return;
    if (!view_shape(context_.objects[number].ptr(), view) || view.rank != rank)
      throw Failure(FailureKind::input, "An input cannot be used as " + buffer.expected + ".",
                    "input '" + buffer.name + "'");
    context_.dims[number] = view.dims;
    return;
  }
  if (!view_array(value, buffer.dtype.ptr(), view) || view.rank != rank) {
    context_.objects[number] = model_.convert()(input, nb::handle(value));
    if (!view_array(context_.objects[number].ptr(), buffer.dtype.ptr(), view) || view.rank != rank)
      throw Failure(FailureKind::input, "An input cannot be used as " + buffer.expected + ".",
                    "input '" + buffer.name + "'");
  }
  context_.pointers[number] = view.data;
  context_.dims[number] = view.dims;
}

void Call::run_phase(std::uint32_t number) {
  const PhaseInfo& phase = program_.phases[number];
  const PhasePlan& plan = model_.plan(context_, number);
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
                  "An operator run by the reference returned " + shape_text(dims, rank) +
                      ", but axis " + std::to_string(axis) + " must be " + wanted + ".",
                  "tensor '" + buffer.name + "'");
  }
}

void Call::provide_memory(const PhaseInfo& phase, const PhasePlan& plan) {
  std::int64_t& needed = context_.needed[phase.block];
  needed = std::max(needed, plan.arena_bytes);
  for (const KernelPlan& kernel : plan.kernels)
    context_.scratch_needed =
        std::max(context_.scratch_needed, kernel.scratch * std::min(kernel.threads, threads_));
  context_.output_bytes += plan.output_bytes;
  if (model_.max_bytes > 0) check_limit(phase);
  Block& block = context_.blocks[phase.block];
  block.reserve(plan.arena_bytes);
  context_.scratch.reserve(context_.scratch_needed);
  for (std::size_t item = 0; item < phase.items.size(); ++item)
    context_.pointers[phase.buffers[phase.items[item]]] =
        plan.bytes[phase.items[item]] > 0 ? block.data() + plan.offsets[item] : no_elements;
  for (std::size_t position = 0; position < phase.buffers.size(); ++position) {
    const BufferInfo& buffer = program_.buffers[phase.buffers[position]];
    if (buffer.storage != Storage::output) continue;
    Block& output = context_.outputs[buffer.index];
    output = model_.pool()->take(plan.bytes[position]);
    context_.pointers[phase.buffers[position]] = output.data();
  }
}

void Call::check_limit(const PhaseInfo& phase) const {
  std::int64_t total = context_.scratch_needed + context_.output_bytes;
  for (const std::int64_t bytes : context_.needed) total += bytes;
  if (total > model_.max_bytes)
    throw Failure(FailureKind::resource,
                  "This call needs " + std::to_string(total) + " bytes for intermediate tensors (" +
                      std::to_string(total - context_.output_bytes) + ") and outputs (" +
                      std::to_string(context_.output_bytes) + "), but max_bytes is " +
                      std::to_string(model_.max_bytes) + ".",
                  {}, "smaller dimensions, fewer threads, or a larger max_bytes");
  // What earlier calls at larger shapes have left must not push the memory held past the limit.
  if (context_.held_bytes() + context_.output_bytes <= model_.max_bytes) return;
  for (std::size_t block = 0; block < context_.blocks.size(); ++block)
    if (context_.needed[block] == 0 || (block == phase.block && !phase.items.empty()))
      context_.blocks[block] = Block();
  context_.scratch = Block();
}

void Call::run_kernels(const PhaseInfo& phase, const PhasePlan& plan, std::uint32_t first,
                       std::uint32_t end) {
  const nb::gil_scoped_release without_gil;
  const FloatControl float_control;
  TeamLease lease;
  void** const arguments = context_.arguments.data();
  Status* const statuses = context_.statuses.data();
  for (std::uint32_t step = first; step < end; ++step) {
    const KernelPlan& numbers = plan.kernels[step - phase.first_step];
    if (numbers.grid == 0) continue;
    const auto& kernel = *std::get_if<KernelInfo>(&program_.steps[step]);
    for (std::size_t position = 0; position < kernel.buffers.size(); ++position)
      arguments[position] = context_.pointers[kernel.buffers[position]];
    const std::int64_t start = times_ != nullptr ? now() : 0;
    int threads = std::min(numbers.threads, threads_);
    if (threads > 1) threads = std::min(threads, lease.acquire(threads_));
    const std::int64_t* const parameters = plan.parameters.data() + numbers.parameters;
    if (threads > 1) {
      lease.team().run({kernel.function, parameters, arguments, numbers.grid,
                        context_.scratch.data(), numbers.scratch, statuses, threads,
                        pieces_per_thread(numbers, threads)});
    } else {
      kernel.function(parameters, arguments, 0, numbers.grid, context_.scratch.data(), statuses);
    }
    if (times_ != nullptr) (*times_)[step] = now() - start;
    if (kernel.checks.empty()) continue;
    for (int thread = 0; thread < threads; ++thread)
      if (statuses[thread].code != 0) fail(kernel, context_.statuses);
  }
}

nb::object Call::operand(std::uint32_t number) const {
  const BufferInfo& buffer = program_.buffers[number];
  const nb::object& object = context_.objects[number];
  if (object.is_valid() && !(buffer.native && buffer.kind == BufferKind::input)) return object;
  // Read-only, as a reference that wrote to its input would change the caller's array.
  return make_array(buffer.dtype.ptr(), static_cast<int>(buffer.shape.size()),
                    context_.dims[number], context_.pointers[number],
                    object.is_valid() ? object : nb::none(), false);
}

void Call::run_opaque(std::uint32_t step, const OpaqueInfo& opaque, std::uint32_t phase) {
  nb::list inputs;
  for (const std::uint32_t input : opaque.inputs) inputs.append(operand(input));
  const nb::object results = model_.run_opaque()(step, inputs);
  for (std::size_t position = 0; position < opaque.outputs.size(); ++position) {
    const std::uint32_t number = opaque.outputs[position];
    const BufferInfo& buffer = program_.buffers[number];
    context_.objects[number] = nb::object(results[position]);
    const std::int64_t* const expected = context_.dims[number];
    PyObject* const result = context_.objects[number].ptr();
    ArrayView view{};
    const bool is_array = buffer.native ? view_array(result, buffer.dtype.ptr(), view)
                                        : buffer.shaped && view_shape(result, view);
    if (!is_array && (buffer.native || buffer.shaped))
      throw Failure(FailureKind::execution, "An operator run by the reference returned no array.",
                    opaque.label);
    if (!is_array) continue;
    context_.pointers[number] = view.data;
    context_.dims[number] = view.dims;
    if (buffer.phase <= phase && expected != nullptr) check_shape(number, expected);
  }
  for (const OpaqueInfo::Binding& binding : opaque.bindings) {
    const std::int64_t* const dims = context_.dims[opaque.outputs[binding.output]];
    if (dims != nullptr) context_.symbols[binding.slot] = dims[binding.axis];
  }
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
  for (std::size_t position = 0; position < bind.slots.size(); ++position)
    context_.symbols[bind.slots[position]] = read_integer(
        context_.pointers[bind.buffer], static_cast<std::int64_t>(position), buffer.item_size);
}

nb::object Call::results() {
  const auto result = [this](std::uint32_t number) {
    const BufferInfo& buffer = program_.buffers[number];
    if (buffer.storage != Storage::output) return context_.objects[number];
    return make_output(buffer.dtype.ptr(), static_cast<int>(buffer.shape.size()),
                       context_.dims[number],
                       std::exchange(context_.outputs[buffer.index], Block()), model_.pool());
  };
  if (program_.outputs.size() == 1) return result(program_.outputs[0]);
  nb::object values = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(program_.outputs.size())));
  for (std::size_t position = 0; position < program_.outputs.size(); ++position)
    PyTuple_SET_ITEM(values.ptr(), static_cast<Py_ssize_t>(position),
                     result(program_.outputs[position]).release().ptr());
  return values;
}

}  // namespace tilewright
