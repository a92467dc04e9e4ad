#include "exchange.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <limits>
#include <system_error>
#include <thread>

#include "gil.hpp"

namespace tilewright {
namespace {

// A sample takes some microseconds, so that few are interrupted, and the clock adds little to it.
constexpr int kSamples = 8;
constexpr int kTrips = 40;
constexpr std::size_t kApart = 128;  // bytes: processors fetch lines of 64 in pairs

bool bind_to(int processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(processor), &set);
  return pthread_setaffinity_np(pthread_self(), sizeof set, &set) == 0;
}

struct Line {
  alignas(kApart) std::atomic<int> turn{0};
  alignas(kApart) std::atomic<int> bound{0};
  std::atomic<bool> failed{false};

  // Whether both threads are bound.
  bool meet(int processor) {
    if (!bind_to(processor)) failed = true;
    bound.fetch_add(1);
    while (bound.load() < 2 && !failed) std::this_thread::yield();
    return !failed;
  }
};

void answer(Line& line, int processor) {
  if (!line.meet(processor)) return;
  for (int trip = 0; trip < kSamples * kTrips; ++trip) {
    while (line.turn.load(std::memory_order_acquire) != 2 * trip + 1) {
    }
    line.turn.store(2 * trip + 2, std::memory_order_release);
  }
}

void ask(Line& line, int processor, double& fastest) {
  if (!line.meet(processor)) return;
  double least = std::numeric_limits<double>::infinity();
  for (int sample = 0; sample < kSamples; ++sample) {
    const auto start = std::chrono::steady_clock::now();
    for (int trip = sample * kTrips; trip < (sample + 1) * kTrips; ++trip) {
      line.turn.store(2 * trip + 1, std::memory_order_release);
      while (line.turn.load(std::memory_order_acquire) != 2 * trip + 2) {
      }
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    least = std::min(least, took.count() / kTrips);
  }
  fastest = least;
}

}  // namespace

double exchange_seconds(int first, int second) {
  if (std::min(first, second) < 0 || std::max(first, second) >= CPU_SETSIZE || first == second)
    return 0.0;
  const WithoutGil released;
  Line line;
  double fastest = 0.0;
  std::thread other, own;
  try {
    other = std::thread(answer, std::ref(line), second);
    own = std::thread(ask, std::ref(line), first, std::ref(fastest));
    own.join();
  } catch (const std::system_error&) {
    line.failed = true;  // for the other one, if it runs
  }
  if (other.joinable()) other.join();
  return fastest;
}

}  // namespace tilewright
