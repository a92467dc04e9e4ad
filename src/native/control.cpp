#include "control.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "failure.hpp"
#include "signals.hpp"

namespace tilewright {
namespace {

// How many turns a stack has room for at first, at least, and how many bytes: most loops make few
// turns, and what they make is small.
constexpr std::int64_t kFirstTurns = 4;
constexpr std::int64_t kFirstBytes = 4096;

std::int64_t product(const std::int64_t* dims, int first, int end) {
  std::int64_t count = 1;
  for (int axis = first; axis < end; ++axis) count *= dims[axis];
  return count;
}

// Whether a block for so many bytes is used again, and not another one taken.
bool fits(const Block& block, std::int64_t bytes) {
  return block.capacity() >= bytes && block.capacity() <= Block::rounded(bytes + bytes / 2);
}

char* provide(Block& block, std::int64_t bytes) {
  if (bytes == 0) return no_elements;
  if (!fits(block, bytes)) {
    Memory& memory = Memory::shared();
    memory.give_back(Memory::Purpose::output, std::exchange(block, Block()));
    block = memory.take(Memory::Purpose::output, bytes, bytes / 2);
  }
  return block.data();
}

// Pieces of as many bytes, from one every so many bytes to one every so many others.
void copy_pieces(char* to, std::int64_t to_stride, const char* from, std::int64_t from_stride,
                 std::int64_t bytes, std::int64_t count) {
  const auto run = [=](std::size_t size) {
    for (std::int64_t piece = 0; piece < count; ++piece)
      std::memcpy(to + piece * to_stride, from + piece * from_stride, size);
  };
  // Copies of a known size are single instructions.
  switch (bytes) {
    case 1:
      return run(1);
    case 2:
      return run(2);
    case 4:
      return run(4);
    case 8:
      return run(8);
    default:
      return run(static_cast<std::size_t>(bytes));
  }
}

}  // namespace

ControlRun::ControlRun(Call& call, const OpaqueInfo& opaque, WithoutGil& without_gil)
    : call_(call),
      opaque_(opaque),
      control_(*opaque.control),
      without_gil_(without_gil),
      states_(control_.states.size()),
      shares_(control_.scanned.size()),
      stacks_(control_.stacked.size()),
      is_watching_(is_main_thread()) {}

ControlRun::~ControlRun() {
  Memory& memory = Memory::shared();
  const auto free = [&memory](Block& block) {
    memory.give_back(Memory::Purpose::output, std::exchange(block, Block()));
  };
  for (State& state : states_) {
    free(state.block);
    free(state.next);
  }
  for (Share& share : shares_) free(share.block);
  for (Stack& stack : stacks_) {
    free(stack.block);
    free(stack.turn);
  }
  std::for_each(unread_.begin(), unread_.end(), free);
}

void ControlRun::run() {
  switch (control_.kind) {
    case ControlInfo::Kind::branch:
      return run_branch();
    case ControlInfo::Kind::loop:
      return run_loop();
    case ControlInfo::Kind::scan:
      return run_scan();
  }
}

// The first element of an operand.
const void* ControlRun::scalar(std::int64_t buffer) const {
  const auto number = static_cast<std::uint32_t>(buffer);
  if (call_.bytes_of(number) == 0) refuse("An operand that should be a number has no elements");
  return call_.context_.pointers[number];
}

void ControlRun::run_branch() {
  condition_ = *static_cast<const char*>(scalar(control_.condition)) != 0;
  const std::size_t number = condition_ ? 0 : 1;
  unread_.resize(control_.bodies[number].model->program().outputs.size());
  call_body(number);
}

void ControlRun::run_loop() {
  most_turns_ = INT64_MAX;
  if (control_.count >= 0) {
    const auto number = static_cast<std::uint32_t>(control_.count);
    most_turns_ = read_integer(call_.program_.buffers[number], scalar(control_.count), 0);
  }
  condition_ = control_.condition < 0 || *static_cast<const char*>(scalar(control_.condition)) != 0;
  begin();
  parameters_[0] = {&turn_, nullptr, 0};
  parameters_[1] = {&was_going_, nullptr, 0};
  for (; condition_ && turn_ < most_turns_; ++turn_) {
    was_going_ = true;
    make_turn();
  }
  finish();
}

void ControlRun::run_scan() {
  for (std::size_t number = 0; number < shares_.size(); ++number) {
    const ControlInfo::Scanned& scanned = control_.scanned[number];
    const std::int64_t* const dims = call_.context_.dims[scanned.buffer];
    const BufferInfo& buffer = call_.program_.buffers[scanned.buffer];
    const int rank = static_cast<int>(buffer.shape.size());
    Share& share = shares_[number];
    share.length = dims[scanned.axis];
    share.outer = product(dims, 0, scanned.axis);
    share.bytes = product(dims, scanned.axis + 1, rank) * buffer.item_size;
    share.dims.assign(dims, dims + rank);
    share.dims.erase(share.dims.begin() + scanned.axis);
    if (share.length != shares_[0].length)
      refuse("The arrays to scan have " + std::to_string(shares_[0].length) + " and " +
             std::to_string(share.length) + " elements along their axes");
  }
  most_turns_ = shares_[0].length;
  begin();
  for (; turn_ < most_turns_; ++turn_) {
    for (std::size_t number = 0; number < shares_.size(); ++number) pick(number);
    make_turn();
  }
  finish();
}

// The states that the first turn is given, and room for what else it is.
void ControlRun::begin() {
  first_state_ = control_.kind == ControlInfo::Kind::loop ? 2 : 0;
  parameters_.resize(first_state_ + states_.size() + shares_.size());
  for (std::size_t number = 0; number < states_.size(); ++number) {
    const std::uint32_t buffer = control_.states[number];
    parameters_[first_state_ + number] = {
        call_.context_.pointers[buffer], call_.context_.dims[buffer],
        static_cast<int>(call_.program_.buffers[buffer].shape.size())};
  }
}

// The share of this turn in an array.
void ControlRun::pick(std::size_t number) {
  const ControlInfo::Scanned& scanned = control_.scanned[number];
  Share& share = shares_[number];
  const std::int64_t position = scanned.backward ? share.length - 1 - turn_ : turn_;
  const char* data = static_cast<const char*>(call_.context_.pointers[scanned.buffer]);
  data += position * share.bytes;
  if (share.outer > 1) {
    char* const together = provide(share.block, share.outer * share.bytes);
    copy_pieces(together, share.bytes, data, share.length * share.bytes, share.bytes, share.outer);
    data = together;
  }
  parameters_[first_state_ + states_.size() + number] = {data, share.dims.data(),
                                                         static_cast<int>(share.dims.size())};
}

void ControlRun::make_turn() {
  call_body(0);
  for (std::size_t number = 0; number < states_.size(); ++number) {
    State& state = states_[number];
    std::swap(state.block, state.next);
    std::swap(state.dims, state.next_dims);
    parameters_[first_state_ + number] = {state.next_data, state.dims.data(),
                                          static_cast<int>(state.dims.size())};
  }
  for (std::size_t number = 0; number < stacks_.size(); ++number) {
    Stack& stack = stacks_[number];
    if (stack.outer > 1)
      copy_pieces(stack.block.data() + position(number) * stack.bytes, most_turns_ * stack.bytes,
                  stack.turn.data(), stack.bytes, stack.bytes, stack.outer);
  }
  if (!is_watching_) return;
  const std::int64_t moment = now();
  if (next_look_ == 0) next_look_ = moment + kSignalTime;
  if (moment < next_look_) return;
  handle_signals(&without_gil_);
  next_look_ = now() + kSignalTime;
}

void ControlRun::call_body(std::size_t number) {
  const ControlInfo::Body& body = control_.bodies[number];
  inputs_.clear();
  for (const std::int64_t place : body.inputs) {
    if (place >= 0) {
      inputs_.push_back(parameters_[static_cast<std::size_t>(place)]);
      continue;
    }
    const auto outer = static_cast<std::size_t>(-1 - place);
    inputs_.push_back({call_.context_.pointers[outer], call_.context_.dims[outer],
                       static_cast<int>(call_.program_.buffers[outer].shape.size())});
  }
  Context& context = *call_.context_.bodies[body.context];
  const std::int64_t held = call_.max_bytes_ > 0 ? call_.claimed_bytes() + held_bytes() : 0;
  try {
    Call(*body.model, context, call_, *this, without_gil_, held).run_body(inputs_);
  } catch (const Failure& failure) {
    // Nobody else knows what the body is given.
    if (failure.kind != FailureKind::dimension && failure.kind != FailureKind::input) throw;
    refuse("A body of " + control_.name + " cannot run on what it is given: " + failure.message);
  }
}

char* ControlRun::place(std::uint32_t output, const std::int64_t* dims, std::int64_t bytes) {
  const bool is_loop = control_.kind == ControlInfo::Kind::loop;
  if (control_.kind == ControlInfo::Kind::branch) return place_result(output, dims, bytes);
  if (is_loop && output == 0) {
    if (bytes != 1)
      refuse("The condition of a turn has " + std::to_string(bytes) + " elements, not one");
    return reinterpret_cast<char*>(&condition_);
  }
  const std::size_t number = output - (is_loop ? 1 : 0);
  if (number >= states_.size()) return place_stacked(number - states_.size(), dims, bytes);
  State& state = states_[number];
  const int rank = parameters_[first_state_ + number].rank;
  state.next_dims.assign(dims, dims + rank);
  state.next_data = provide(state.next, bytes);
  return state.next_data;
}

// A result of a branch, which is one of the step.
char* ControlRun::place_result(std::uint32_t output, const std::int64_t* dims, std::int64_t bytes) {
  const BufferInfo& made = body_output(condition_ ? 0 : 1, output);
  char* const data = call_.make_result(opaque_, output, made.element,
                                       {dims, dims + static_cast<int>(made.shape.size())});
  return data != nullptr ? data : provide(unread_[output], bytes);
}

const BufferInfo& ControlRun::body_output(std::size_t body, std::size_t output) const {
  const ProgramInfo& program = control_.bodies[body].model->program();
  return program.buffers[program.outputs[output]];
}

// Where this turn's share lies in what is stacked.
std::int64_t ControlRun::position(std::size_t number) const {
  return control_.stacked[number].backward ? most_turns_ - 1 - turn_ : turn_;
}

char* ControlRun::place_stacked(std::size_t number, const std::int64_t* dims, std::int64_t bytes) {
  Stack& stack = stacks_[number];
  const ControlInfo::Stacked& info = control_.stacked[number];
  const int rank = static_cast<int>(info.sizes.size());
  if (turn_ == 0) {
    stack.dims.assign(dims, dims + rank);
    stack.outer = product(dims, 0, info.axis);
    stack.bytes = bytes / std::max<std::int64_t>(stack.outer, 1);
    if (control_.kind == ControlInfo::Kind::scan) {
      reserve(stack, most_turns_);
    } else {
      // What is not needed may not push a call past its limit.
      const std::int64_t room = call_.max_bytes_ > 0 ? 0 : kFirstBytes;
      const std::int64_t few = room / std::max<std::int64_t>(bytes, 1);
      reserve(stack, std::min(std::max(few, kFirstTurns), most_turns_));
    }
  } else if (!std::equal(dims, dims + rank, stack.dims.begin())) {
    refuse("One turn of " + control_.name + " made " +
           shape_text(stack.dims.data(), stack.dims.size()) + ", and another " +
           shape_text(dims, static_cast<std::size_t>(rank)) + ", which cannot be stacked");
  }
  if (bytes == 0) return no_elements;
  if (turn_ == stack.capacity) reserve(stack, std::min(turn_ + turn_ / 2, most_turns_));
  if (stack.outer > 1) return provide(stack.turn, bytes);
  return stack.block.data() + position(number) * stack.bytes;
}

// Room for so many turns.
void ControlRun::reserve(Stack& stack, std::int64_t turns) {
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(turns, stack.outer * stack.bytes, &bytes))
    throw Failure(FailureKind::resource, "What the turns of a loop make needs too much memory.");
  if (call_.max_bytes_ > 0) call_.check_limit(held_bytes() + bytes);
  stack.capacity = turns;
  if (bytes == 0) return;
  Memory& memory = Memory::shared();
  Block larger = memory.take(Memory::Purpose::output, bytes, bytes / 2);
  if (turn_ > 0)
    std::memcpy(larger.data(), stack.block.data(), static_cast<std::size_t>(turn_ * stack.bytes));
  memory.give_back(Memory::Purpose::output, std::exchange(stack.block, std::move(larger)));
}

void ControlRun::finish() {
  for (std::size_t number = 0; number < states_.size(); ++number) finish_state(number);
  for (std::size_t number = 0; number < stacks_.size(); ++number) finish_stacked(number);
}

void ControlRun::finish_state(std::size_t number) {
  State& state = states_[number];
  const ElementType type = call_.program_.buffers[control_.states[number]].element;
  if (turn_ > 0) {
    call_.adopt_result(opaque_, number, type, state.dims, std::exchange(state.block, Block()));
    return;
  }
  const Tensor& given = parameters_[first_state_ + number];
  char* const data = call_.make_result(opaque_, number, type, {given.dims, given.dims + given.rank});
  const std::int64_t bytes = call_.bytes_of(control_.states[number]);
  if (data != nullptr && bytes > 0) std::memcpy(data, given.data, static_cast<std::size_t>(bytes));
}

void ControlRun::finish_stacked(std::size_t number) {
  const ControlInfo::Stacked& info = control_.stacked[number];
  Stack& stack = stacks_[number];
  const std::size_t first = control_.kind == ControlInfo::Kind::loop ? 1 : 0;
  const ElementType type = body_output(0, first + states_.size() + number).element;
  std::vector<std::int64_t> dims = std::move(stack.dims);
  const std::size_t result = states_.size() + number;
  if (turn_ == 0) dims = sizes_without_turns(info, result);
  dims.insert(dims.begin() + info.axis, turn_);
  const std::int64_t bytes = turn_ * stack.outer * stack.bytes;
  if (fits(stack.block, bytes)) {
    call_.adopt_result(opaque_, result, type, dims, std::exchange(stack.block, Block()));
    return;
  }
  char* const data = call_.make_result(opaque_, result, type, dims);
  if (data != nullptr && bytes > 0)
    std::memcpy(data, stack.block.data(), static_cast<std::size_t>(bytes));
}

// What one turn would make.
std::vector<std::int64_t> ControlRun::sizes_without_turns(const ControlInfo::Stacked& info,
                                                          std::size_t result) const {
  std::vector<std::int64_t> dims;
  for (const auto& [buffer, size] : info.sizes)
    dims.push_back(buffer < 0 ? size : call_.context_.dims[buffer][size]);
  const std::uint32_t* const output = call_.output_for(opaque_, result);
  if (output == nullptr) return dims;
  std::vector<std::int64_t> told = call_.told_sizes(opaque_, *output);
  told.erase(told.begin() + info.axis);
  for (std::size_t axis = 0; axis < dims.size(); ++axis)
    if (dims[axis] == 0) dims[axis] = told[axis];
  return dims;
}

// Beside what the call itself holds and what a turn writes.
std::int64_t ControlRun::held_bytes() const {
  std::int64_t bytes = 0;
  for (const State& state : states_) bytes += state.block.capacity();
  for (const Share& share : shares_) bytes += share.block.capacity();
  for (const Stack& stack : stacks_) bytes += stack.block.capacity();
  return bytes;
}

void ControlRun::refuse(const std::string& why) const {
  throw Failure(FailureKind::execution, why, opaque_.label);
}

}  // namespace tilewright
