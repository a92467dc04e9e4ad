// One call of a model: from Python arguments to Python results.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <vector>

#include "model.hpp"

namespace tilewright {

// "[2, 3]"
std::string shape_text(const std::int64_t* dims, std::size_t rank);

class Call {
 public:
  Call(Model& model, Context& context, std::vector<std::int64_t>* times)
      : model_(model),
        program_(model.program()),
        context_(context),
        times_(times),
        threads_(model.num_threads()),
        float_control_(model.flush_denormals ? kFlushing : kKeeping) {}

  // `out`: None, or what the results are to be written to.
  nb::object run(nb::tuple arguments, nb::dict keywords, nb::handle out);

 private:
  // Round to nearest, no traps; denormals kept, or taken and made as zeros.
  static constexpr unsigned kKeeping = 0x1f80, kFlushing = 0x9fc0;

  // In arguments.cpp: what comes in and what goes out.
  void read_inputs(nb::tuple arguments, nb::dict keywords);
  void read_input(std::uint32_t input, PyObject* value);
  bool can_write(nb::handle out) const;
  void read_outputs(nb::object out);
  void refuse_overlap(std::size_t output, const char* data, std::int64_t bytes) const;

  void provide_output(std::uint32_t buffer, std::int64_t bytes, const std::int64_t* dims);
  std::int64_t bytes_of(std::uint32_t buffer) const;
  nb::object results();
  nb::object result(std::uint32_t buffer);
  nb::object returned(std::uint32_t output) const;

  // In call.cpp: what happens between.
  void run_phase(std::uint32_t number);
  void check_shape(std::uint32_t buffer, const std::int64_t* expected) const;
  void provide_memory(const PhaseInfo& phase, const PhasePlan& plan);
  void check_limit() const;
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
  // The two ways to run an opaque step.
  void run_in_python(std::uint32_t step, const OpaqueInfo& opaque);
  void run_built_in(const OpaqueInfo& opaque);
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
  bool is_converted_ = false;  // whether an input was no array that kernels can use
  nb::object own_;             // by output: what the caller gave, where Python has looked at it
};

}  // namespace tilewright
