// When to let Python handle signals.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>

namespace tilewright {

// Signals are looked at after so many nanoseconds without the interpreter's lock.
constexpr std::int64_t kSignalTime = 100'000'000;

inline std::int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Python handles signals in the main thread only.
inline bool is_main_thread() { return syscall(SYS_gettid) == getpid(); }

}  // namespace tilewright
