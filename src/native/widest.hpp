// Loops written once, compiled for several lengths of vectors.
#pragma once

#include <cstdint>

namespace tilewright {

constexpr std::int64_t kLeastVectorBytes = 16;

#if defined(__x86_64__) && defined(__GNUC__)

// The longest vectors of this processor that there is code for.
inline std::int64_t widest_vector_bytes() {
  static const std::int64_t bytes = [] {
    if (!__builtin_cpu_supports("avx2")) return kLeastVectorBytes;
    const bool is_64 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                       __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return is_64 ? 4 * kLeastVectorBytes : 2 * kLeastVectorBytes;
  }();
  return bytes;
}

template <typename Call>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl"), gnu::flatten, gnu::noinline]]
void in_vectors_of_64_bytes(const Call& call) {
  call();
}

template <typename Call>
[[gnu::target("avx2"), gnu::flatten, gnu::noinline]]
void in_vectors_of_32_bytes(const Call& call) {
  call();
}

// Makes the call, all of which is compiled for the longest vectors that the processor has. It may
// not multiply and add floats, which such code could round once: results are the same everywhere.
template <typename Call>
void in_widest_vectors(const Call& call) {
  const std::int64_t bytes = widest_vector_bytes();
  if (bytes == 4 * kLeastVectorBytes) {
    in_vectors_of_64_bytes(call);
  } else if (bytes == 2 * kLeastVectorBytes) {
    in_vectors_of_32_bytes(call);
  } else {
    call();
  }
}

#else

inline std::int64_t widest_vector_bytes() { return kLeastVectorBytes; }

template <typename Call>
void in_widest_vectors(const Call& call) {
  call();
}

#endif

}  // namespace tilewright
