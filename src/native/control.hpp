// If, Loop and Scan: calls of bodies, which are models, without the interpreter's lock.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "call.hpp"

namespace tilewright {

// One run of an operator with bodies. What a turn makes of a state is what the next one is given, and
// the memory of the one before is written by the turn after that; what is stacked is written to its
// place at once where it lies together there.
class ControlRun final : public BodyOutputs {
 public:
  ControlRun(Call& call, const OpaqueInfo& opaque, WithoutGil& without_gil);
  ~ControlRun() override;
  ControlRun(const ControlRun&) = delete;
  ControlRun& operator=(const ControlRun&) = delete;

  void run();
  char* place(std::uint32_t output, const std::int64_t* dims, std::int64_t bytes) override;

 private:
  struct State {
    std::vector<std::int64_t> dims, next_dims;  // of what was made last, and of what is being made
    Block block, next;
    char* next_data = nullptr;
  };
  struct Share {  // of a turn in an array [outer, length, …], with so many bytes of each outer one
    std::vector<std::int64_t> dims;
    std::int64_t outer, length, bytes;
    Block block;  // where there are several outer ones
  };
  struct Stack {  // [outer, turns, …]
    std::vector<std::int64_t> dims;  // of one turn's
    std::int64_t outer = 1, bytes = 0;
    std::int64_t capacity = 0;  // turns
    Block block;
    Block turn;  // one turn's, where there are several outer ones
  };

  void run_branch();
  void run_loop();
  void run_scan();
  void begin();
  void pick(std::size_t number);
  void make_turn();
  void call_body(std::size_t number);
  char* place_result(std::uint32_t output, const std::int64_t* dims, std::int64_t bytes);
  char* place_stacked(std::size_t number, const std::int64_t* dims, std::int64_t bytes);
  std::int64_t position(std::size_t number) const;
  void reserve(Stack& stack, std::int64_t turns);
  void finish();
  void finish_state(std::size_t number);
  void finish_stacked(std::size_t number);
  std::vector<std::int64_t> sizes_without_turns(const ControlInfo::Stacked& info,
                                                std::size_t result) const;

  const void* scalar(std::int64_t buffer) const;
  const BufferInfo& body_output(std::size_t body, std::size_t output) const;
  std::int64_t held_bytes() const;
  [[noreturn]] void refuse(const std::string& why) const;

  Call& call_;
  const OpaqueInfo& opaque_;
  const ControlInfo& control_;
  WithoutGil& without_gil_;
  std::vector<State> states_;
  std::vector<Share> shares_;
  std::vector<Stack> stacks_;
  std::vector<Tensor> parameters_, inputs_;
  std::vector<Block> unread_;  // results of a branch that nobody wants
  std::size_t first_state_ = 0;  // among the parameters
  std::int64_t most_turns_ = 0, turn_ = 0;
  bool was_going_ = true, condition_ = true;
  bool is_watching_;  // for signals
  std::int64_t next_look_ = 0;
};

}  // namespace tilewright
