// A process whose memory and threads run out in the worst moment. Exit code 0: the team survived.
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <vector>

#include "team.hpp"

namespace {

bool memory_fails = false;
bool threads_fail = false;

int expect(bool holds, const char* what) {
  if (!holds) std::fprintf(stderr, "not so: %s\n", what);
  return holds ? 0 : 1;
}

void count(const std::int64_t*, void* const* buffers, std::int64_t begin, std::int64_t end, void*,
           tilewright::Status*) {
  for (std::int64_t task = begin; task < end; ++task) ++static_cast<char*>(buffers[0])[task];
}

bool runs_everything(tilewright::Team& team, int threads) {
  std::vector<char> counts(1000);
  void* buffers[] = {counts.data()};
  std::vector<tilewright::Status> statuses(16);
  team.run({count, nullptr, buffers, 1000, nullptr, 0, statuses.data(), threads, 4, 0x1f80});
  for (const char number : counts)
    if (number != 1) return false;
  return true;
}

bool signals_are_blocked() {
  sigset_t now;
  pthread_sigmask(SIG_SETMASK, nullptr, &now);
  return sigismember(&now, SIGINT) == 1;
}

}  // namespace

void* operator new(std::size_t bytes) {
  void* const found = memory_fails ? nullptr : std::malloc(bytes);
  if (found == nullptr) throw std::bad_alloc();
  return found;
}
void operator delete(void* pointer) noexcept { std::free(pointer); }
void operator delete(void* pointer, std::size_t) noexcept { std::free(pointer); }

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*start)(void*), void* argument) noexcept {
  if (threads_fail) return EAGAIN;
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  return create(thread, attributes, start, argument);
}

int main() {
  tilewright::Team& team = tilewright::Team::shared();
  int wrong = 0;
  memory_fails = true;
  try {
    team.try_acquire(3);
    team.release();
  } catch (...) {
  }
  memory_fails = false;
  wrong += expect(!signals_are_blocked(), "signals reach the caller after memory ran out");
  threads_fail = true;
  const int few = team.try_acquire(8);
  threads_fail = false;
  wrong += expect(few >= 1, "the team is free after memory ran out");
  wrong += expect(!signals_are_blocked(), "signals reach the caller after threads ran out");
  if (few > 1) wrong += expect(runs_everything(team, few), "the threads that exist do all the work");
  if (few > 0) team.release();
  const int all = team.try_acquire(8);
  wrong += expect(all == 8, "all threads are there in the end");
  if (all == 8) wrong += expect(runs_everything(team, 8), "they do all the work");
  return wrong;
}
