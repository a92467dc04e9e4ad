// The thread team of the process: it runs the tasks of kernels on several threads.
//
// The caller of a model owns the team while a stretch of kernels runs; each job, one
// kernel or several that do not need each other, that is worth more than one thread is offered to
// the workers, which spin for the next one for a short while and then sleep. Kernels for one thread are called by the owner directly and cost no synchronisation:
// a worker sees their results through the release store that offers the next shared kernel.
#pragma once

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>

#include "kernel.hpp"

namespace tilewright {

constexpr int kMaximumThreads = 256;
constexpr int kThreadsPerWord = 64;  // of a set of threads, one bit for each

// Nanoseconds of work that one more thread has to be given to pay: offering a kernel, joining and
// the cold caches of another core cost about one microsecond; from twice as much on, two threads are
// faster than one. SHARED_NS of tilewright.cost is twice that as well.
constexpr std::int64_t kWorkPerThread = 3000;

// Nanoseconds of work per piece that threads take at a time. Pieces let the others take over what a
// delayed thread has not begun; larger pieces keep what kernels prepare per piece worth while.
constexpr std::int64_t kWorkPerPiece = 10000;
constexpr std::int64_t kMaximumPieces = 8;  // per thread

constexpr int kMostParts = 8;  // kernels of one job
static_assert(kMostParts * kMaximumPieces * kMaximumThreads < 1 << 16, "pieces have 16 bits");

// Signals are for the threads of Python: threads that are started while this exists get none.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

// Processors, as many as Linux can have.
using Processors = std::array<cpu_set_t, 8>;

// A kernel of a job. Its pieces belong to `first_thread` and to those after it, round the team.
// `grid` are the tasks of a round, where the job has several.
struct Part {
  KernelFunction function;
  const std::int64_t* parameters;
  void* const* buffers;
  std::int64_t grid;
  int threads;            // 1 … min(grid, threads of the job)
  int first_thread;       // 0 … threads of the job - 1
  int pieces_per_thread;  // 1 … min(grid / threads, kMaximumPieces)
};

// Into how many pieces each of `threads` threads splits its share of so many tasks, which take so
// many nanoseconds in all.
int pieces_per_thread(std::int64_t work, std::int64_t tasks, int threads);

// Kernels none of which needs another one: they run side by side, and threads meet at the end of
// all of them.
struct Job {
  const Part* parts;
  int part_count;               // 1 … kMostParts
  std::int64_t rounds;          // no task of a round begins before all of the one before have ended
  char* scratch;                // of thread 0
  std::int64_t scratch_stride;  // bytes from one thread's scratch to the next one's
  Status* statuses;             // one per thread; `kernel` becomes 1 + the part that failed
  int threads;                  // 2 … kMaximumThreads
  unsigned float_control;       // of the vector units
};

class Team {
 public:
  static Team& shared();

  // Makes the caller the owner, unless another call is; `threads` include the caller. Returns how
  // many threads the owner may use, 0 when the team is busy. Allocates nothing, so that nothing can
  // be left half done; where the system allows no more threads, those that exist do all the work.
  //
  // Workers run where the process may run, that is, its main thread, whoever calls first. That is
  // looked up now and then, as it may change.
  int try_acquire(int threads) noexcept;
  void release();

  // Runs all tasks of the job; only for the owner. Everything the kernels wrote is visible after.
  void run(const Job& job);

 private:
  // `range` is what is left of one thread's pieces of the job numbered `sequence`:
  // sequence << 32 | next << 16 | end. A thread takes a piece by a compare-and-swap that fails as
  // soon as the job is another one, so a late worker can never touch a job that is over.
  struct alignas(64) Slot {
    std::atomic<std::uint64_t> range{0};
    std::atomic<std::uint32_t> parked{0};
    Team* team = nullptr;
    pthread_t thread{};
    std::chrono::steady_clock::time_point moved{};  // when it last left the owner's processor
    // Of a job in rounds, in a line of its own, since all threads look at it after every round: how
    // many rounds of this thread's share have been run, by whomever.
    alignas(64) std::atomic<std::int64_t> rounds_run{0};
    // From which round on the thread runs its share itself; -1 as long as the owner does.
    alignas(64) std::atomic<std::int64_t> first_round{-1};
  };

  // What all threads of a job write, in one line: how many pieces are not yet finished, and which
  // threads have pieces that nobody has taken. Whoever takes the last one of a thread says so, and
  // a thread without pieces looks only where there are some.
  struct alignas(64) Progress {
    std::atomic<std::uint32_t> remaining{0};
    std::atomic<std::uint64_t> untaken[kMaximumThreads / kThreadsPerWord]{};
  };

  Team();
  void start(int threads) noexcept;
  void place(int first) noexcept;
  void step_aside(Slot& slot, int processor) noexcept;
  static void* enter(void* slot);
  void work(int rank);
  std::uint64_t await_job(Slot& slot, std::uint32_t last);
  void wake_two(int rank, std::uint32_t sequence);
  void participate(int rank, std::uint32_t sequence);
  void run_piece(int rank, std::uint32_t piece);
  std::uint32_t run_rounds(int rank, std::uint32_t sequence);
  void run_round(int rank, int share, std::int64_t round);
  void run_part(int rank, int number, std::int64_t begin, std::int64_t end);
  std::uint32_t lead_rounds(std::uint32_t sequence);
  void await_round(std::int64_t round) const;
  bool has_come(int rank) const;
  void await_completion();
  bool take(int rank, std::uint32_t sequence, std::uint32_t& piece);
  bool take_over(int rank, std::uint32_t sequence, std::uint32_t& piece);

  std::unique_ptr<Slot[]> slots_;
  std::atomic<bool> busy_{false};
  // Guarded by ownership:
  int threads_ = 1;  // started, the owner's included
  int processor_count_ = 0;
  std::chrono::steady_clock::time_point looked_up_{};
  std::uint32_t sequence_ = 0;
  Job job_{};
  std::uint32_t pieces_per_thread_ = 1;  // of all parts
  Progress progress_;
  // On which the owner was when it offered the job; -1 where not every thread has one of its own.
  std::atomic<int> owner_processor_{-1};
  // Where threads may run: changed by the owner, and read by workers that move, with `placing_`.
  std::mutex placing_;
  Processors processors_{};
  alignas(64) std::atomic<std::uint32_t> owner_parked_{0};
};

// Ownership of the team for as long as it exists, taken when first needed.
class TeamLease {
 public:
  TeamLease() = default;
  ~TeamLease() {
    if (threads_ > 0) team_->release();
  }
  TeamLease(const TeamLease&) = delete;
  TeamLease& operator=(const TeamLease&) = delete;

  // How many threads may be used; 1 while another call has the team.
  int acquire(int threads) {
    if (threads_ == 0) {
      team_ = &Team::shared();
      threads_ = team_->try_acquire(threads);
    }
    return std::max(threads_, 1);
  }
  Team& team() { return *team_; }

 private:
  Team* team_ = nullptr;
  int threads_ = 0;
};

}  // namespace tilewright
