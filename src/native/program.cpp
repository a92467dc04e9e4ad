#include "program.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <typeinfo>

#include "failure.hpp"

namespace tilewright {
namespace {

[[noreturn]] void inconsistent(const std::string& what) {
  throw Failure(FailureKind::artifact, "The program is inconsistent: " + what + ".");
}

template <typename T>
T get(nb::handle record, const char* key) {
  return nb::cast<T>(record[key]);
}

std::vector<Conflicts::Interval> read_intervals(nb::handle items) {
  std::vector<Conflicts::Interval> intervals;
  for (nb::handle item : nb::cast<nb::list>(items))
    intervals.push_back({nb::cast<std::int64_t>(item[0]), nb::cast<std::int64_t>(item[1])});
  return intervals;
}

void check(const std::vector<std::uint32_t>& numbers, std::size_t limit, const char* what) {
  for (const std::uint32_t number : numbers)
    if (number >= limit)
      inconsistent(std::string("there is no ") + what + " " + std::to_string(number));
}

}  // namespace

ProgramInfo::ProgramInfo(nb::dict description, const Image* image) {
  try {
    read(description, image);
  } catch (const std::bad_cast&) {
    inconsistent("a number is out of its range");
  }
}

void ProgramInfo::read(nb::dict description, const Image* image) {
  symbols = get<std::vector<std::string>>(description, "symbols");
  for (nb::handle item : get<nb::list>(description, "expressions"))
    expressions.emplace_back(nb::cast<std::vector<std::int64_t>>(item[0]),
                             nb::cast<std::string>(item[1]), symbols.size());
  threads_slot = get<std::int64_t>(description, "threads_slot");
  if (threads_slot >= static_cast<std::int64_t>(symbols.size()))
    inconsistent("the number of threads goes nowhere");
  block_count = get<std::uint32_t>(description, "block_count");
  constant_count = get<std::uint32_t>(description, "constant_count");
  read_buffers(get<nb::list>(description, "buffers"));
  number_positions();
  read_steps(get<nb::list>(description, "steps"), image);
  read_sizes(get<nb::list>(description, "sizes"));
  read_solving(get<nb::list>(description, "solving"));
  read_choosers(get<nb::list>(description, "choosers"), image);
  read_phases(get<nb::list>(description, "phases"));
}

void ProgramInfo::read_buffers(nb::list items) {
  for (nb::handle item : items) {
    BufferInfo buffer{};
    buffer.name = get<std::string>(item, "name");
    buffer.kind = static_cast<BufferKind>(get<std::uint32_t>(item, "kind"));
    buffer.index = get<std::uint32_t>(item, "index");
    buffer.native = get<bool>(item, "native");
    buffer.shaped = get<bool>(item, "shaped");
    buffer.storage = static_cast<Storage>(get<std::uint32_t>(item, "storage"));
    buffer.item_size = get<std::int64_t>(item, "item_size");
    buffer.shape = get<std::vector<std::uint32_t>>(item, "shape");
    buffer.packed = get<std::int64_t>(item, "packed");
    buffer.phase = get<std::uint32_t>(item, "phase");
    buffer.dtype = nb::object(item["dtype"]);
    buffer.is_unsigned = buffer.native && nb::cast<std::string>(buffer.dtype.attr("kind")) == "u";
    if (buffer.native)
      buffer.element = element_type(nb::cast<std::string>(buffer.dtype.attr("name")));
    buffer.expected = get<std::string>(item, "expected");
    check(buffer.shape, expressions.size(), "expression");
    if (buffer.packed >= static_cast<std::int64_t>(expressions.size()))
      inconsistent("a buffer's size is no expression");
    buffers.push_back(std::move(buffer));
  }
}

void ProgramInfo::number_positions() {
  const auto collect = [this](BufferKind kind, std::vector<std::uint32_t>& positions) {
    for (std::uint32_t number = 0; number < buffers.size(); ++number) {
      if (buffers[number].kind != kind) continue;
      if (buffers[number].index >= buffers.size()) inconsistent("a buffer's index is too large");
      if (positions.size() <= buffers[number].index)
        positions.resize(buffers[number].index + 1, UINT32_MAX);
      positions[buffers[number].index] = number;
    }
    check(positions, buffers.size(), "input or output");
  };
  collect(BufferKind::input, inputs);
  collect(BufferKind::output, outputs);
  for (const BufferInfo& buffer : buffers)
    if (buffer.kind == BufferKind::constant && buffer.index >= constant_count)
      inconsistent("there is no constant " + std::to_string(buffer.index));
}

void ProgramInfo::read_steps(nb::list items, const Image* image) {
  for (nb::handle item : items) {
    const auto kind = get<std::string>(item, "step");
    if (kind == "kernel") {
      KernelInfo kernel{};
      const auto address = get<std::uintptr_t>(item, "address");
      if (address == 0 && image == nullptr) inconsistent("it has kernels, but no code");
      kernel.function = address != 0 ? reinterpret_cast<KernelFunction>(address)
                                     : image->function(get<std::string>(item, "function"));
      kernel.label = get<std::string>(item, "label");
      kernel.checks = get<std::vector<std::string>>(item, "checks");
      kernel.parameters = get<std::vector<std::uint32_t>>(item, "parameters");
      kernel.buffers = get<std::vector<std::uint32_t>>(item, "buffers");
      kernel.written = get<std::vector<std::uint32_t>>(item, "written");
      kernel.is_foreign = address != 0;
      kernel.grid = get<std::uint32_t>(item, "grid");
      kernel.rounds = get<std::uint32_t>(item, "rounds");
      kernel.scratch = get<std::uint32_t>(item, "scratch");
      kernel.work = get<std::uint32_t>(item, "work");
      kernel.used = get<std::uint32_t>(item, "used");
      check(kernel.parameters, expressions.size(), "expression");
      check({kernel.grid, kernel.rounds, kernel.scratch, kernel.work, kernel.used}, expressions.size(),
            "expression");
      check(kernel.buffers, buffers.size(), "buffer");
      for (const std::uint32_t number : kernel.buffers)
        if (!buffers[number].native) inconsistent("a kernel uses a buffer of Python objects");
      steps.emplace_back(std::move(kernel));
    } else if (kind == "opaque") {
      OpaqueInfo opaque{};
      opaque.label = get<std::string>(item, "label");
      opaque.inputs = get<std::vector<std::uint32_t>>(item, "inputs");
      opaque.outputs = get<std::vector<std::uint32_t>>(item, "outputs");
      check(opaque.inputs, buffers.size(), "buffer");
      check(opaque.outputs, buffers.size(), "buffer");
      for (nb::handle bound : get<nb::list>(item, "bindings")) {
        const OpaqueInfo::Binding binding{nb::cast<std::uint32_t>(bound[0]),
                                          nb::cast<std::uint32_t>(bound[1]),
                                          nb::cast<std::uint32_t>(bound[2])};
        if (binding.output >= opaque.outputs.size() || binding.slot >= symbols.size() ||
            binding.axis >= buffers[opaque.outputs[binding.output]].shape.size())
          inconsistent("an opaque step binds a symbol from nowhere");
        opaque.bindings.push_back(binding);
      }
      const auto record = nb::cast<nb::dict>(item);
      if (record.contains("built_in")) read_built_in(item["built_in"], opaque);
      if (record.contains("control")) read_control(item["control"], opaque);
      steps.emplace_back(std::move(opaque));
    } else {
      BindInfo bind{get<std::uint32_t>(item, "buffer"),
                    get<std::vector<std::uint32_t>>(item, "slots")};
      check({bind.buffer}, buffers.size(), "buffer");
      check(bind.slots, symbols.size(), "symbol");
      if (!buffers[bind.buffer].native) inconsistent("symbols are read from Python objects");
      steps.emplace_back(std::move(bind));
    }
  }
}

void ProgramInfo::read_built_in(nb::handle item, OpaqueInfo& opaque) const {
  const auto name = get<std::string>(item, "operator");
  opaque.built_in = find_built_in(name);
  if (opaque.built_in == nullptr) inconsistent("there is no operator " + name + " in this version");
  opaque.operands = get<std::vector<std::int64_t>>(item, "operands");
  opaque.attributes = get<std::vector<std::int64_t>>(item, "attributes");
  for (const std::int64_t operand : opaque.operands)
    if (operand < -1 || operand >= static_cast<std::int64_t>(opaque.inputs.size()))
      inconsistent("an operator has an operand from nowhere");
  read_results(item, opaque);
}

void ProgramInfo::read_results(nb::handle item, OpaqueInfo& opaque) const {
  opaque.results = get<std::vector<std::size_t>>(item, "results");
  if (opaque.results.size() != opaque.outputs.size())
    inconsistent("an operator has other results than its step has outputs");
  for (const std::uint32_t number : opaque.inputs)
    if (!buffers[number].native) inconsistent("an operator uses a buffer of Python objects");
  for (const std::uint32_t number : opaque.outputs)
    if (buffers[number].storage != Storage::made) inconsistent("an operator's results lie elsewhere");
}

void ProgramInfo::read_sizes(nb::list items) {
  for (nb::handle item : items) {
    const SizeInfo size{nb::cast<std::uint32_t>(item[0]), nb::cast<std::uint32_t>(item[1]),
                        nb::cast<std::uint32_t>(item[2])};
    if (size.slot >= symbols.size() || size.input >= inputs.size() ||
        size.axis >= buffers[inputs[size.input]].shape.size() ||
        !buffers[inputs[size.input]].shaped)
      inconsistent("a size is read from nowhere");
    sizes.push_back(size);
  }
}

void ProgramInfo::read_solving(nb::list items) {
  for (nb::handle item : items) {
    SolvingInfo info{read_guards(nb::cast<nb::list>(item[0])), nb::cast<std::uint32_t>(item[1]),
                     nb::cast<std::uint32_t>(item[2])};
    check({info.slot}, symbols.size(), "symbol");
    check({info.formula}, expressions.size(), "expression");
    solving.push_back(std::move(info));
  }
}

void ProgramInfo::read_choosers(nb::list items, const Image* image) {
  for (nb::handle item : items) {
    if (image == nullptr) inconsistent("it has choices, but no code");
    choosers.push_back({image->choice(nb::cast<std::string>(item[0])),
                        nb::cast<std::vector<std::uint32_t>>(item[1])});
    check(choosers.back().arguments, symbols.size(), "symbol");
  }
}

std::vector<GuardInfo> ProgramInfo::read_guards(nb::list items) const {
  std::vector<GuardInfo> guards;
  for (nb::handle item : items) {
    guards.push_back({nb::cast<std::uint32_t>(item[0]), nb::cast<std::string>(item[1])});
    check({guards.back().condition}, expressions.size(), "expression");
  }
  return guards;
}

void ProgramInfo::read_phases(nb::list items) {
  std::uint32_t next_step = 0;
  for (nb::handle item : items) {
    PhaseInfo phase{};
    phase.first_step = get<std::uint32_t>(item, "first_step");
    phase.end_step = get<std::uint32_t>(item, "end_step");
    phase.slots = get<std::vector<std::uint32_t>>(item, "slots");
    phase.buffers = get<std::vector<std::uint32_t>>(item, "buffers");
    phase.block = get<std::uint32_t>(item, "block");
    check(phase.slots, symbols.size(), "symbol");
    check(phase.buffers, buffers.size(), "buffer");
    if (phase.first_step != next_step || phase.end_step < next_step ||
        phase.end_step > steps.size() || phase.block >= block_count)
      inconsistent("the phases do not cover the steps");
    next_step = phase.end_step;
    phase.guards = read_guards(get<nb::list>(item, "guards"));
    for (nb::handle choice : get<nb::list>(item, "choices")) {
      phase.choices.push_back({nb::cast<std::uint32_t>(choice[0]),
                               nb::cast<std::uint32_t>(choice[1])});
      check({phase.choices.back().slot}, symbols.size(), "symbol");
      check({phase.choices.back().chooser}, choosers.size(), "chooser");
    }
    const std::vector<Conflicts::Interval> intervals = read_intervals(item["intervals"]);
    const std::vector<Conflicts::Interval> beside = read_intervals(item["beside"]);
    for (std::uint32_t position = 0; position < phase.buffers.size(); ++position)
      if (buffers[phase.buffers[position]].storage == Storage::arena)
        phase.items.push_back(position);
    if (intervals.size() != phase.items.size() || beside.size() != phase.items.size())
      inconsistent("a phase lacks lifetimes");
    phase.conflicts = std::make_unique<Conflicts>(intervals);
    const auto is_same = [](const Conflicts::Interval& one, const Conflicts::Interval& other) {
      return one.first == other.first && one.last == other.last;
    };
    if (!std::equal(intervals.begin(), intervals.end(), beside.begin(), is_same))
      phase.conflicts_beside = std::make_unique<Conflicts>(beside);
    phases.push_back(std::move(phase));
  }
  if (next_step != steps.size() || phases.empty())
    inconsistent("the phases do not cover the steps");
}

}  // namespace tilewright
