// What the steps of If, Loop and Scan say, read and checked: a body is given what it can take.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <optional>

#include "failure.hpp"
#include "model.hpp"
#include "program.hpp"

namespace tilewright {
namespace {

[[noreturn]] void inconsistent(const std::string& what) {
  throw Failure(FailureKind::artifact, "The program is inconsistent: a step " + what + ".");
}

// What a body is given, or makes.
struct Kind {
  ElementType element;
  std::size_t rank;
  bool operator==(const Kind&) const = default;
};

Kind kind_of(const BufferInfo& buffer) { return {buffer.element, buffer.shape.size()}; }

class Reader {
 public:
  Reader(const ProgramInfo& program, const OpaqueInfo& opaque) : program_(program), opaque_(opaque) {}

  std::unique_ptr<ControlInfo> read(nb::handle item) {
    const std::array<std::string, 3> names{"If", "Loop", "Scan"};
    info_->name = nb::cast<std::string>(item["operator"]);
    const auto* const found = std::find(names.begin(), names.end(), info_->name);
    if (found == names.end()) inconsistent("has bodies of " + info_->name);
    info_->kind = static_cast<ControlInfo::Kind>(found - names.begin());
    info_->count = optional_buffer(item["count"]);
    info_->condition = optional_buffer(item["condition"]);
    for (nb::handle state : nb::cast<nb::list>(item["states"]))
      info_->states.push_back(buffer(nb::cast<std::int64_t>(state)));
    read_scanned(nb::cast<nb::list>(item["scanned"]));
    read_bodies(nb::cast<nb::list>(item["bodies"]));
    read_stacked(nb::cast<nb::list>(item["stacked"]));
    check_counts();
    for (const ControlInfo::Body& body : info_->bodies) check(body);
    return std::move(info_);
  }

 private:
  std::uint32_t buffer(std::int64_t input) const {
    if (input < 0 || input >= static_cast<std::int64_t>(opaque_.inputs.size()))
      inconsistent("with bodies has an operand from nowhere");
    const std::uint32_t number = opaque_.inputs[static_cast<std::size_t>(input)];
    if (!program_.buffers[number].native) inconsistent("gives Python objects to a body");
    return number;
  }

  std::int64_t optional_buffer(nb::handle item) const {
    const auto input = nb::cast<std::int64_t>(item);
    return input < 0 ? -1 : std::int64_t{buffer(input)};
  }

  void read_scanned(nb::list items) {
    for (nb::handle item : items) {
      const ControlInfo::Scanned scanned{buffer(nb::cast<std::int64_t>(item[0])),
                                         nb::cast<int>(item[1]), nb::cast<bool>(item[2])};
      if (scanned.axis < 0 ||
          scanned.axis >= static_cast<int>(program_.buffers[scanned.buffer].shape.size()))
        inconsistent("scans an axis that is not there");
      info_->scanned.push_back(scanned);
    }
  }

  void read_bodies(nb::list items) {
    for (nb::handle item : items) {
      ControlInfo::Body body{};
      body.owner = nb::object(item[0]);
      body.model = nb::cast<Model*>(item[0]);
      for (const std::int64_t place : nb::cast<std::vector<std::int64_t>>(item[1]))
        body.inputs.push_back(place >= 0 ? place : -1 - static_cast<std::int64_t>(buffer(-1 - place)));
      body.context = program_.bodies.size() + info_->bodies.size();
      info_->bodies.push_back(std::move(body));
    }
  }

  void read_stacked(nb::list items) {
    for (nb::handle item : items) {
      ControlInfo::Stacked stacked{nb::cast<int>(item[0]), nb::cast<bool>(item[1]), {}};
      for (nb::handle size : nb::cast<nb::list>(item[2])) {
        const auto place = nb::cast<std::int64_t>(size[0]);
        const auto axis = nb::cast<std::int64_t>(size[1]);
        const std::int64_t from = place < 0 ? -1 : std::int64_t{buffer(place)};
        if (axis < 0 || (from >= 0 && axis >= static_cast<std::int64_t>(
                                                  program_.buffers[static_cast<std::size_t>(from)]
                                                      .shape.size())))
          inconsistent("makes sizes of what is not there");
        stacked.sizes.emplace_back(from, axis);
      }
      if (stacked.axis < 0 || stacked.axis > static_cast<int>(stacked.sizes.size()))
        inconsistent("stacks along an axis that is not there");
      info_->stacked.push_back(std::move(stacked));
    }
  }

  void check_counts() const {
    const auto is = [this](std::int64_t buffer, ElementType type) {
      return buffer < 0 || program_.buffers[static_cast<std::size_t>(buffer)].element == type;
    };
    if (!is(info_->count, ElementType::int64) || !is(info_->condition, ElementType::boolean))
      inconsistent("counts turns by something else");
    const bool is_branch = info_->kind == ControlInfo::Kind::branch;
    if (info_->bodies.size() != (is_branch ? 2U : 1U) || (is_branch && info_->condition < 0) ||
        (info_->kind == ControlInfo::Kind::scan && info_->scanned.empty()))
      inconsistent("with bodies lacks some of what it needs");
  }

  // What a body is given beside what it reads of the program around it.
  std::vector<Kind> parameters() const {
    std::vector<Kind> kinds;
    if (info_->kind == ControlInfo::Kind::loop)
      kinds = {{ElementType::int64, 0}, {ElementType::boolean, 0}};
    for (const std::uint32_t state : info_->states) kinds.push_back(kind_of(program_.buffers[state]));
    for (const ControlInfo::Scanned& scanned : info_->scanned) {
      const Kind whole = kind_of(program_.buffers[scanned.buffer]);
      kinds.push_back({whole.element, whole.rank - 1});
    }
    return kinds;
  }

  void check(const ControlInfo::Body& body) const {
    const ProgramInfo& inner = body.model->program();
    for (const StepInfo& step : inner.steps)
      if (const auto* opaque = std::get_if<OpaqueInfo>(&step))
        if (opaque->built_in == nullptr && opaque->control == nullptr)
          inconsistent("has a body that needs Python");
    const std::vector<Kind> given = parameters();
    if (body.inputs.size() != inner.inputs.size()) inconsistent("gives a body too little or too much");
    for (std::size_t input = 0; input < body.inputs.size(); ++input) {
      const std::int64_t place = body.inputs[input];
      if (place >= static_cast<std::int64_t>(given.size())) inconsistent("lacks a parameter");
      const Kind kind = place >= 0
                            ? given[static_cast<std::size_t>(place)]
                            : kind_of(program_.buffers[static_cast<std::size_t>(-1 - place)]);
      const BufferInfo& taken = inner.buffers[inner.inputs[input]];
      if (!taken.native || kind_of(taken) != kind) inconsistent("gives a body another type");
    }
    check_outputs(inner);
  }

  void check_outputs(const ProgramInfo& inner) const {
    for (const std::uint32_t number : inner.outputs) {
      const Storage storage = inner.buffers[number].storage;
      if (storage != Storage::output && storage != Storage::made)
        inconsistent("has a body whose results lie elsewhere");
    }
    const bool is_loop = info_->kind == ControlInfo::Kind::loop;
    const bool is_branch = info_->kind == ControlInfo::Kind::branch;
    const std::size_t first = is_loop ? 1 : 0;
    const std::size_t made = is_branch ? inner.outputs.size()
                                       : info_->states.size() + info_->stacked.size();
    if (inner.outputs.size() != first + made) inconsistent("has a body with other results");
    const auto output = [&inner](std::size_t number) -> const BufferInfo& {
      return inner.buffers[inner.outputs[number]];
    };
    if (is_loop && kind_of(output(0)).element != ElementType::boolean)
      inconsistent("has a body without a condition");
    for (std::size_t state = 0; state < info_->states.size(); ++state)
      if (kind_of(output(first + state)) != kind_of(program_.buffers[info_->states[state]]))
        inconsistent("has a state that changes its type");
    for (std::size_t stacked = 0; stacked < info_->stacked.size(); ++stacked)
      if (kind_of(output(first + info_->states.size() + stacked)).rank !=
          info_->stacked[stacked].sizes.size())
        inconsistent("stacks something else");
    for (const std::size_t result : opaque_.results)
      if (result >= made) inconsistent("has a result from nowhere");
  }

  const ProgramInfo& program_;
  const OpaqueInfo& opaque_;
  std::unique_ptr<ControlInfo> info_ = std::make_unique<ControlInfo>();
};

}  // namespace

void ProgramInfo::read_control(nb::handle item, OpaqueInfo& opaque) {
  read_results(item, opaque);
  opaque.control = Reader(*this, opaque).read(item);
  for (const ControlInfo::Body& body : opaque.control->bodies) bodies.push_back(body.model);
}

}  // namespace tilewright
