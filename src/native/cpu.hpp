// What this process may use of the machine: instruction-set features and processors.
#pragma once

#include <string>
#include <vector>

namespace tilewright {

// Names of the features the code levels are made of, of those this CPU and kernel support.
std::vector<std::string> cpu_features();

// "avx512", "avx2" or "x86-64": the best level whose features are all present.
std::string cpu_level();

// Threads a call uses unless told otherwise: TILEWRIGHT_NUM_THREADS, or else the least of the
// affinity mask and the control-group quota.
int default_threads();

}  // namespace tilewright
