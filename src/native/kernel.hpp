// The calling convention of compiled kernels.
#pragma once

#include <cstdint>

namespace tilewright {

// Code 0: fine. Otherwise 1 + the index of the message among the step's checks; `kernel` is for the
// team. One cache line each, so that threads do not share them.
struct alignas(64) Status {
  std::int64_t code;
  std::int64_t kernel;
  std::int64_t detail[2];
};

using KernelFunction = void (*)(const std::int64_t* parameters, void* const* buffers,
                                std::int64_t begin, std::int64_t end, void* scratch,
                                Status* status);

// Returns the position of the least of the costs of several variants.
using ChoiceFunction = std::int64_t (*)(const std::int64_t* arguments);

}  // namespace tilewright
