// Threads that meet a finalizing interpreter.
//
// Before version 3.14 Python ends a thread that asks for the interpreter's lock while the process
// exits, by unwinding its stack. Destructors may not be left that way, and would touch objects that
// the exiting thread is freeing; so such a thread sleeps for good instead, until the process is gone.
#pragma once

#include <Python.h>
#include <unistd.h>

#include <exception>
#include <utility>

namespace tilewright {

[[noreturn]] inline void sleep_for_good() {
  for (;;) pause();
}

// Runs what may ask for the lock: everything that can run Python code.
template <typename Function>
decltype(auto) in_python(Function&& function) {
  try {
    return std::forward<Function>(function)();
  } catch (...) {
    // What unwinds a thread that is to end is no exception of C++.
    if (std::current_exception() == nullptr) sleep_for_good();
    throw;
  }
}

// Gives the interpreter's lock to others for as long as it exists.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() {
    if (state_ != nullptr) take_back();
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

  // Takes the lock back for a moment, in which `function` runs; and for good where that throws.
  template <typename Function>
  void interrupt(Function&& function) {
    take_back();
    std::forward<Function>(function)();
    state_ = PyEval_SaveThread();
  }

 private:
  void take_back() {
    in_python([this] { PyEval_RestoreThread(std::exchange(state_, nullptr)); });
  }

  PyThreadState* state_;
};

}  // namespace tilewright
