// One call of a model: from Python arguments to Python results.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

#include "model.hpp"

namespace tilewright {

class Call {
 public:
  Call(Model& model, Context& context, std::vector<std::int64_t>* times)
      : model_(model),
        program_(model.program()),
        context_(context),
        times_(times),
        threads_(model.num_threads()) {}

  nb::object run(nb::tuple arguments, nb::dict keywords);

 private:
  void read_inputs(nb::tuple arguments, nb::dict keywords);
  void read_input(std::uint32_t input, PyObject* value);

  void run_phase(std::uint32_t number);
  void check_shape(std::uint32_t buffer, const std::int64_t* expected) const;
  void provide_memory(const PhaseInfo& phase, const PhasePlan& plan);
  void check_limit(const PhaseInfo& phase) const;

  // Runs the kernels of [first, end), without the GIL.
  void run_kernels(const PhaseInfo& phase, const PhasePlan& plan, std::uint32_t first,
                   std::uint32_t end);
  void run_opaque(std::uint32_t step, const OpaqueInfo& opaque, std::uint32_t phase);
  void run_bind(const BindInfo& bind);
  nb::object operand(std::uint32_t buffer) const;
  nb::object results();

  Model& model_;
  const ProgramInfo& program_;
  Context& context_;
  std::vector<std::int64_t>* times_;
  int threads_;  // as it is now: the model's may change while kernels run
};

}  // namespace tilewright
