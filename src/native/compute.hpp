// One operator that the runtime computes itself, on arrays of Python.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tilewright {

namespace nb = nanobind;

// Its results, in order. `operands` are row-major arrays, or None for what is left out. Throws
// Failure(execution) for what the operator refuses.
nb::list compute(const std::string& name, const std::vector<std::int64_t>& attributes,
                 nb::list operands);

}  // namespace tilewright
