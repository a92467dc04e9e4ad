// The instruction-set features of the processor.
#pragma once

#include <string>
#include <vector>

namespace tilewright {

// Names of the features the code levels are made of, of those this CPU and kernel support.
std::vector<std::string> cpu_features();

}  // namespace tilewright
