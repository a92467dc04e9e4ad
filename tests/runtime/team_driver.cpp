// A process whose memory and threads run out in the worst moment, and one that counts who wakes whom.
// Exit code 0: the team survived, and every thread took part.
#include <dlfcn.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <vector>

#include "team.hpp"

namespace {

bool memory_fails = false;
bool threads_fail = false;
std::atomic<int> all_wakes = 0;
thread_local int own_wakes = 0;

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
  const tilewright::Part part{count, nullptr, buffers, 1000, threads, 0, 4};
  team.run({&part, 1, 1, nullptr, 0, statuses.data(), threads, 0x1f80});
  return std::all_of(counts.begin(), counts.end(), [](char number) { return number == 1; });
}

// Parts of one job with fewer threads than it, which begin anywhere in the team.
bool runs_all_parts(tilewright::Team& team, int threads) {
  std::vector<std::vector<char>> counts;
  std::vector<std::vector<void*>> buffers;
  std::vector<tilewright::Part> parts;
  for (int own = 1; own <= std::min(threads, tilewright::kMostParts); ++own) {
    counts.emplace_back(7 * own);
    buffers.push_back({counts.back().data()});
    const int pieces = own % 3 + 1;
    parts.push_back({count, nullptr, buffers.back().data(), 7 * own, own, (own * own) % threads,
                     pieces});
  }
  for (std::size_t part = 0; part < parts.size(); ++part) parts[part].buffers = buffers[part].data();
  std::vector<tilewright::Status> statuses(static_cast<std::size_t>(threads));
  team.run({parts.data(), static_cast<int>(parts.size()), 1, nullptr, 0, statuses.data(),
            threads, 0x1f80});
  for (const std::vector<char>& own : counts)
    if (std::any_of(own.begin(), own.end(), [](char number) { return number != 1; })) return false;
  return true;
}

constexpr std::int64_t kRounds = 23;

struct Rounds {
  std::vector<std::atomic<char>> counts;
  std::int64_t tasks = 0;  // of a round
  std::atomic<bool> is_early = false;
};

// Counts tasks, and notes whether one begins before all of the round before have ended.
void count_in_rounds(const std::int64_t*, void* const* buffers, std::int64_t begin,
                     std::int64_t end, void*, tilewright::Status*) {
  auto& rounds = *static_cast<Rounds*>(buffers[0]);
  for (std::int64_t task = begin; task < end; ++task) {
    const std::int64_t first = task / rounds.tasks * rounds.tasks;
    for (std::int64_t before = std::max<std::int64_t>(first - rounds.tasks, 0); before < first;
         ++before)
      if (rounds.counts[before] != 1) rounds.is_early = true;
    ++rounds.counts[task];
  }
}

// Rounds of two kernels side by side, the second of which has fewer threads; workers may be asleep.
bool runs_in_rounds(tilewright::Team& team, int threads, bool are_asleep) {
  if (are_asleep) usleep(1000);
  Rounds made[2];
  void* buffers[2][1];
  std::vector<tilewright::Part> parts;
  for (int number = 0; number < 2; ++number) {
    made[number].tasks = threads + 3 * (1 - number);
    made[number].counts = std::vector<std::atomic<char>>(made[number].tasks * kRounds);
    buffers[number][0] = &made[number];
    const int own = number == 0 ? threads : (threads + 1) / 2;
    parts.push_back({count_in_rounds, nullptr, buffers[number], made[number].tasks, own, number, 1});
  }
  std::vector<tilewright::Status> statuses(static_cast<std::size_t>(threads));
  team.run({parts.data(), 2, kRounds, nullptr, 0, statuses.data(), threads, 0x1f80});
  for (const Rounds& rounds : made)
    if (rounds.is_early || std::any_of(rounds.counts.begin(), rounds.counts.end(),
                                       [](const auto& number) { return number != 1; }))
      return false;
  return true;
}

void fail_at_once(const std::int64_t*, void* const*, std::int64_t, std::int64_t, void*,
                  tilewright::Status* status) {
  status->code = 1;
}

// Whoever fails first on a thread is told of, and what fails after it is not.
bool tells_what_failed(tilewright::Team& team) {
  std::vector<char> counts(2);
  void* buffers[] = {counts.data()};
  const tilewright::Part parts[] = {{count, nullptr, buffers, 2, 2, 0, 1},
                                    {fail_at_once, nullptr, buffers, 2, 2, 0, 1},
                                    {fail_at_once, nullptr, buffers, 1, 1, 1, 1}};
  std::vector<tilewright::Status> statuses(2);
  team.run({parts, 3, 1, nullptr, 0, statuses.data(), 2, 0x1f80});
  bool is_told = false;
  for (const tilewright::Status& status : statuses) {
    if ((status.code != 0) != (status.kernel != 0)) return false;
    is_told = is_told || status.kernel == 2;
  }
  return is_told;
}

struct Together {
  std::atomic<int> arrived = 0;
  int awaited = 0;
};

// A task that ends only when as many of them have begun, each on a thread of its own.
void meet(const std::int64_t*, void* const* buffers, std::int64_t begin, std::int64_t end, void*,
          tilewright::Status*) {
  auto& together = *static_cast<Together*>(buffers[0]);
  together.arrived += static_cast<int>(end - begin);
  while (together.arrived < together.awaited) sched_yield();
}

// The first task ends last, so that others have to take over all that its thread has left.
void hold(const std::int64_t*, void* const* buffers, std::int64_t begin, std::int64_t end, void*,
          tilewright::Status*) {
  auto& together = *static_cast<Together*>(buffers[0]);
  for (; begin == 0 && together.arrived + 1 < together.awaited;) sched_yield();
  together.arrived += static_cast<int>(end - begin);
}

int arrive(tilewright::Team& team, tilewright::KernelFunction function, int threads, int pieces) {
  Together together;
  together.awaited = threads * pieces;
  void* buffers[] = {&together};
  std::vector<tilewright::Status> statuses(static_cast<std::size_t>(threads));
  const tilewright::Part part{function, nullptr, buffers, together.awaited, threads, 0, pieces};
  team.run({&part, 1, 1, nullptr, 0, statuses.data(), threads, 0x1f80});
  return together.arrived;
}

// Every thread is needed and asleep; they wake each other, two each.
int check_waking(tilewright::Team& team, int threads) {
  usleep(20'000);
  all_wakes = own_wakes = 0;
  int wrong = expect(arrive(team, meet, threads, 1) == threads, "every thread takes part");
  wrong += expect(own_wakes <= 2, "the owner wakes two threads at most");
  wrong += expect(all_wakes >= threads - 1, "every thread is woken");
  return wrong;
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

extern "C" long syscall(long number, ...) noexcept {
  std::va_list list;
  va_start(list, number);
  long given[6];
  for (long& argument : given) argument = va_arg(list, long);
  va_end(list);
  if (number == SYS_futex && static_cast<int>(given[1]) == FUTEX_WAKE_PRIVATE) {
    ++all_wakes;
    ++own_wakes;
  }
  using Call = long (*)(long, ...);
  static const auto call = reinterpret_cast<Call>(dlsym(RTLD_NEXT, "syscall"));
  return call(number, given[0], given[1], given[2], given[3], given[4], given[5]);
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
  team.release();
  for (const int threads : {2, 3, 8, 64, 65, 200}) {
    wrong += expect(team.try_acquire(threads) == threads, "there are as many threads as asked for");
    wrong += check_waking(team, threads);
    wrong += expect(arrive(team, hold, threads, 8) == threads * 8, "others take over what is left");
    wrong += expect(runs_all_parts(team, threads), "every task of every part runs once");
    wrong += expect(tells_what_failed(team), "what failed first is told of");
    for (int turn = 0; turn < 20; ++turn)
      wrong += expect(runs_in_rounds(team, threads, turn % 4 == 0), "rounds follow each other");
    team.release();
  }
  return wrong;
}
