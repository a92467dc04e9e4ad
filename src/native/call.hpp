// One call of a model: from Python arguments to Python results.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gil.hpp"
#include "model.hpp"

namespace tilewright {

// "[2, 3]"
std::string shape_text(const std::int64_t* dims, std::size_t rank);

// Element `index` of a buffer of integers; those of 2^63 and more are negative.
std::int64_t read_integer(const BufferInfo& buffer, const void* data, std::int64_t index);

// Lets Python handle what signals have come; `without_gil` is null where the lock is held.
void handle_signals(WithoutGil* without_gil);

// A row-major array whose type is known.
struct Tensor {
  const void* data;
  const std::int64_t* dims;
  int rank;
};

// Where the outputs of a body go.
class BodyOutputs {
 public:
  virtual ~BodyOutputs() = default;
  // Memory for an output of these sizes; once in a call, before anything is written to it.
  virtual char* place(std::uint32_t output, const std::int64_t* dims, std::int64_t bytes) = 0;
};

class Call {
 public:
  Call(Model& model, Context& context, std::vector<std::int64_t>* times)
      : model_(model),
        program_(model.program()),
        context_(context),
        times_(times),
        threads_(model.num_threads()),
        float_control_(model.flush_denormals ? kFlushing : kKeeping),
        max_bytes_(model.max_bytes) {}
  // Of a body, by a step of `outer`, which holds so many bytes. Runs without the interpreter's lock.
  Call(Model& body, Context& context, const Call& outer, BodyOutputs& outputs,
       WithoutGil& without_gil, std::int64_t held_bytes)
      : model_(body),
        program_(body.program()),
        context_(context),
        times_(nullptr),
        threads_(outer.threads_),
        float_control_(outer.float_control_),
        max_bytes_(outer.max_bytes_),
        outside_bytes_(held_bytes),
        body_outputs_(&outputs),
        without_gil_(&without_gil) {}

  // `out`: None, or what the results are to be written to.
  nb::object run(nb::tuple arguments, nb::dict keywords, nb::handle out);
  // Runs a body on arrays of the types of its inputs.
  void run_body(const std::vector<Tensor>& inputs);

 private:
  friend class ControlRun;

  // Round to nearest, no traps; denormals kept, or taken and made as zeros.
  static constexpr unsigned kKeeping = 0x1f80, kFlushing = 0x9fc0;

  // In arguments.cpp: what comes in and what goes out.
  void read_inputs(nb::tuple arguments, nb::dict keywords);
  void read_input(std::uint32_t input, PyObject* value);
  void copy_inputs();
  [[noreturn]] static void refuse_input(const BufferInfo& buffer);
  bool can_write(nb::handle out) const;
  void read_outputs(nb::object out);
  void refuse_overlap(std::size_t output, const char* data, std::int64_t bytes) const;

  void provide_output(std::uint32_t buffer, std::int64_t bytes, const std::int64_t* dims);
  std::int64_t bytes_of(std::uint32_t buffer) const;
  nb::object results();
  nb::object result(std::uint32_t buffer);
  nb::object returned(std::uint32_t output) const;

  // In call.cpp: what happens between.
  void run_phases();
  void run_phase(std::uint32_t number);
  void check_shape(std::uint32_t buffer, const std::int64_t* expected) const;
  std::vector<std::int64_t> told_sizes(const OpaqueInfo& opaque, std::uint32_t buffer);
  void provide_memory(const PhaseInfo& phase, const PhasePlan& plan);
  std::int64_t claimed_bytes() const;
  void check_limit(std::int64_t more = 0) const;
  void reserve(Block& block, std::int64_t bytes);

  // Runs the kernels of [first, end). Signals are looked at now and then.
  void run_kernels(const PhaseInfo& phase, const PhasePlan& plan, std::uint32_t first,
                   std::uint32_t end);
  // Runs the first of them without the GIL, until it is time to look at signals; returns the next.
  std::uint32_t run_stretch(const PhaseInfo& phase, const PhasePlan& plan, std::uint32_t first,
                            std::uint32_t end);
  // Runs the kernels of [first, end) as one job, or the only one without a team. Returns the work.
  std::int64_t run_job(const PhaseInfo& phase, const PhasePlan& plan, std::uint32_t first,
                       std::uint32_t end, int threads, Team* team);
  void run_opaque(std::uint32_t step, const OpaqueInfo& opaque, std::uint32_t phase);
  // The three ways to run an opaque step.
  void run_in_python(std::uint32_t step, const OpaqueInfo& opaque);
  void run_built_in(const OpaqueInfo& opaque);
  void run_control(const OpaqueInfo& opaque);
  // The output that is a result of a step's operator; null where nobody wants it.
  const std::uint32_t* output_for(const OpaqueInfo& opaque, std::size_t result) const;
  // Memory for a result of an operator of this type; or its block itself.
  char* make_result(const OpaqueInfo& opaque, std::size_t result, ElementType type,
                    const std::vector<std::int64_t>& dims);
  void adopt_result(const OpaqueInfo& opaque, std::size_t result, ElementType type,
                    const std::vector<std::int64_t>& dims, Block block);
  void size_result(const OpaqueInfo& opaque, std::uint32_t number, ElementType type,
                   const std::vector<std::int64_t>& dims);
  void run_bind(const BindInfo& bind);
  nb::object operand(std::uint32_t buffer) const;

  class StepWork;

  Model& model_;
  const ProgramInfo& program_;
  Context& context_;
  std::vector<std::int64_t>* times_;
  // As they are now: the model's may change while kernels run.
  int threads_;
  unsigned float_control_;
  std::int64_t max_bytes_;
  std::int64_t outside_bytes_ = 0;         // that calls around this one hold
  BodyOutputs* body_outputs_ = nullptr;    // of a body
  WithoutGil* without_gil_ = nullptr;      // where the lock is not held, as in bodies
  bool is_converted_ = false;  // whether an input was no array that kernels can use
  std::vector<std::uint32_t> uncopied_;  // inputs that are views kernels cannot use yet
  nb::object own_;             // by output: what the caller gave, where Python has looked at it
};

}  // namespace tilewright
