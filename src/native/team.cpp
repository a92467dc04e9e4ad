#include "team.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <xmmintrin.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace tilewright {
namespace {

constexpr auto kSpinTime = std::chrono::microseconds(50);
constexpr auto kLookUpTime = std::chrono::milliseconds(100);
constexpr auto kMoveTime = std::chrono::milliseconds(10);

std::atomic<Team*> instance{nullptr};

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected) {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT_PRIVATE, expected, nullptr,
          nullptr, 0);
}

void futex_wake(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE_PRIVATE, 1, nullptr,
          nullptr, 0);
}

// Spins until `ready()`; false when that took too long.
template <typename Ready>
bool spin(Ready ready) {
  const auto start = std::chrono::steady_clock::now();
  do {
    for (int round = 0; round < 64; ++round) {
      if (ready()) return true;
      _mm_pause();
    }
  } while (std::chrono::steady_clock::now() - start < kSpinTime);
  return false;
}

// Waits for what another thread, which is running, does in less than a microsecond as a rule; the
// system may have taken it off its processor.
class Patience {
 public:
  void wait() {
    if (++turns_ < kTurns) {
      _mm_pause();
    } else {
      sched_yield();
    }
  }

 private:
  static constexpr int kTurns = 1024;
  int turns_ = 0;
};

std::uint32_t sequence_of(std::uint64_t range) { return static_cast<std::uint32_t>(range >> 32); }

}  // namespace

int pieces_per_thread(std::int64_t work, std::int64_t tasks, int threads) {
  const std::int64_t worth_while = work / (kWorkPerPiece * threads);
  const std::int64_t possible = std::min(kMaximumPieces, tasks / threads);
  return static_cast<int>(std::clamp<std::int64_t>(worth_while, 1, possible));
}

Team::Team() : slots_(std::make_unique<Slot[]>(kMaximumThreads)) {
  for (int rank = 0; rank < kMaximumThreads; ++rank) slots_[rank].team = this;
}

Team& Team::shared() {
  if (Team* team = instance.load(std::memory_order_acquire)) return *team;
  // Never destroyed: workers may still look at it while the process ends.
  auto* created = new Team();
  Team* expected = nullptr;
  if (!instance.compare_exchange_strong(expected, created)) {
    delete created;
    return *expected;
  }
  // A forked child has none of the workers, and the team may be in any state: start afresh.
  pthread_atfork(nullptr, nullptr, [] { instance.store(new Team(), std::memory_order_release); });
  return *created;
}

int Team::try_acquire(int threads) noexcept {
  if (busy_.load(std::memory_order_relaxed) || busy_.exchange(true, std::memory_order_acquire))
    return 0;
  const auto now = std::chrono::steady_clock::now();
  if (now - looked_up_ >= kLookUpTime) {
    looked_up_ = now;
    Processors allowed{};
    // The main thread of a process has its number.
    if (sched_getaffinity(getpid(), sizeof allowed, allowed.data()) >= 0 &&
        std::memcmp(&allowed, &processors_, sizeof allowed) != 0) {
      const std::lock_guard lock(placing_);
      processors_ = allowed;
      processor_count_ = CPU_COUNT_S(sizeof allowed, allowed.data());
      place(1);
    }
  }
  if (threads > threads_) start(std::min(threads, kMaximumThreads));
  return std::min(threads, threads_);
}

void Team::start(int threads) noexcept {
  const int first = threads_;
  const SignalsBlocked signals_blocked;
  while (threads_ < threads) {
    Slot& slot = slots_[threads_];
    if (pthread_create(&slot.thread, nullptr, &Team::enter, &slot) != 0) break;
    // Workers never end, so the handle stays good.
    pthread_detach(slot.thread);
    ++threads_;
  }
  const std::lock_guard lock(placing_);
  place(first);
}

// Tells the workers from `first` on where they may run; with `placing_`.
void Team::place(int first) noexcept {
  for (int rank = first; rank < threads_; ++rank)
    pthread_setaffinity_np(slots_[rank].thread, sizeof processors_, processors_.data());
}

// Moves the calling worker away from the processor of the owner, on which it would only run while
// the owner does not. Systems leave both together for long, even where other processors are idle.
void Team::step_aside(Slot& slot, int processor) noexcept {
  const auto now = std::chrono::steady_clock::now();
  if (now - slot.moved < kMoveTime) return;
  slot.moved = now;
  const std::lock_guard lock(placing_);
  Processors others = processors_;
  constexpr int size = sizeof others;
  CPU_CLR_S(static_cast<std::size_t>(processor), size, others.data());
  if (pthread_setaffinity_np(pthread_self(), size, others.data()) == 0)
    pthread_setaffinity_np(pthread_self(), size, processors_.data());
}

void* Team::enter(void* slot) {
  Slot& own = *static_cast<Slot*>(slot);
  own.team->work(static_cast<int>(&own - own.team->slots_.get()));
  return nullptr;
}

void Team::release() { busy_.store(false, std::memory_order_release); }

void Team::run(const Job& job) {
  std::uint32_t pieces = 0;
  for (int part = 0; part < job.part_count; ++part)
    pieces += static_cast<std::uint32_t>(job.parts[part].pieces_per_thread);
  if (job.rounds > 1) {  // a thread has its share of all parts
    pieces = 1;
    for (int rank = 0; rank < job.threads; ++rank) {
      slots_[rank].rounds_run.store(0, std::memory_order_relaxed);
      slots_[rank].first_round.store(-1, std::memory_order_relaxed);
    }
  }
  owner_processor_.store(job.threads <= processor_count_ ? sched_getcpu() : -1,
                         std::memory_order_relaxed);
  job_ = job;
  pieces_per_thread_ = pieces;
  if (++sequence_ == 0) sequence_ = 1;
  progress_.remaining.store(static_cast<std::uint32_t>(job.threads) * pieces,
                            std::memory_order_relaxed);
  for (int first = 0; first < job.threads; first += kThreadsPerWord) {
    const int none = std::max(0, kThreadsPerWord - (job.threads - first));
    progress_.untaken[first / kThreadsPerWord].store(~std::uint64_t{0} >> none,
                                                     std::memory_order_relaxed);
  }
  // The last one first: who sees a range of its own finds those of the two that it wakes.
  for (int rank = job.threads - 1; rank >= 0; --rank) {
    const std::uint64_t first = static_cast<std::uint32_t>(rank) * pieces;
    const std::uint64_t range =
        static_cast<std::uint64_t>(sequence_) << 32 | first << 16 | (first + pieces);
    slots_[rank].range.store(range, std::memory_order_release);
  }
  wake_two(0, sequence_);
  participate(0, sequence_);
  await_completion();
}

// Threads are woken as a binary tree, each by one that is awake, so that the last of them starts
// after a number of system calls that is the logarithm of theirs. Ranks outside of the job have a
// range of an older one.
void Team::wake_two(int rank, std::uint32_t sequence) {
  const auto takes_part = [this, sequence](int other) {
    return other < kMaximumThreads &&
           sequence_of(slots_[other].range.load(std::memory_order_relaxed)) == sequence;
  };
  const int first = 2 * rank + 1;
  if (!takes_part(first)) return;
  // Pairs with the fence in await_job: either we see it parked, or it sees the new range.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (int other = first; other <= first + 1 && takes_part(other); ++other) {
    Slot& slot = slots_[other];
    if (slot.parked.load(std::memory_order_relaxed) == 0) continue;
    slot.parked.store(0, std::memory_order_relaxed);
    futex_wake(slot.parked);
  }
}

// A piece of the thread `rank`. False where there is none, or the job is another one.
bool Team::take(int rank, std::uint32_t sequence, std::uint32_t& piece) {
  Slot& slot = slots_[rank];
  std::uint64_t range = slot.range.load(std::memory_order_acquire);
  for (;;) {
    const auto next = static_cast<std::uint32_t>(range >> 16) & 0xffff;
    const auto end = static_cast<std::uint32_t>(range) & 0xffff;
    if (sequence_of(range) != sequence || next >= end) return false;
    if (!slot.range.compare_exchange_weak(range, range + (1ULL << 16), std::memory_order_acq_rel,
                                          std::memory_order_acquire))
      continue;
    piece = next;
    // The piece keeps the job open, so that this is the set of its threads.
    if (next + 1 == end)
      progress_.untaken[rank / kThreadsPerWord].fetch_and(
          ~(std::uint64_t{1} << rank % kThreadsPerWord), std::memory_order_relaxed);
    return true;
  }
}

// A piece of another thread, the next ones first, so that threads do not all ask the same one.
// Only for who holds a piece, or owns the team. What is found empty here is empty, and stays so.
bool Team::take_over(int rank, std::uint32_t sequence, std::uint32_t& piece) {
  constexpr int words = kMaximumThreads / kThreadsPerWord;
  const int own = rank / kThreadsPerWord;
  const std::uint64_t later = ~std::uint64_t{0} << rank % kThreadsPerWord;
  // The first word is looked at twice: what follows the rank, and at the end what comes before it.
  for (int visited = 0; visited <= words; ++visited) {
    const int word = (own + visited) % words;
    std::uint64_t left = progress_.untaken[word].load(std::memory_order_relaxed);
    if (visited == 0) left &= later;
    if (visited == words) left &= ~later;
    for (; left != 0; left &= left - 1)
      if (take(word * kThreadsPerWord + std::countr_zero(left), sequence, piece)) return true;
  }
  return false;
}

void Team::participate(int rank, std::uint32_t sequence) {
  std::uint32_t piece = 0;
  // Without a piece of its own a worker may not look at the job; the owner may.
  if (!take(rank, sequence, piece) && (rank != 0 || !take_over(rank, sequence, piece))) return;
  // A piece is held, so the job stays as it is until `remaining` is lowered below.
  if (rank != 0) _mm_setcsr(job_.float_control);
  std::uint32_t finished = 0;
  if (job_.rounds > 1) {
    finished = run_rounds(rank, sequence);
  } else {
    do {
      run_piece(rank, piece);
      ++finished;
    } while (take(rank, sequence, piece) || take_over(rank, sequence, piece));
  }
  if (progress_.remaining.fetch_sub(finished, std::memory_order_seq_cst) == finished && rank != 0 &&
      owner_parked_.load(std::memory_order_seq_cst) != 0)
    futex_wake(progress_.remaining);
}

// Runs a piece, which may be nothing: where a part has fewer threads than the job.
void Team::run_piece(int rank, std::uint32_t piece) {
  const Job& job = job_;
  const auto owner = static_cast<int>(piece / pieces_per_thread_);
  auto own = static_cast<int>(piece % pieces_per_thread_);
  int number = 0;
  while (own >= job.parts[number].pieces_per_thread) own -= job.parts[number++].pieces_per_thread;
  const Part& part = job.parts[number];
  const int turn = (owner - part.first_thread + job.threads) % job.threads;
  if (turn >= part.threads) return;
  const std::int64_t place = static_cast<std::int64_t>(turn) * part.pieces_per_thread + own;
  const std::int64_t pieces = static_cast<std::int64_t>(part.threads) * part.pieces_per_thread;
  const std::int64_t share = part.grid / pieces;
  const std::int64_t extra = part.grid % pieces;
  // What does not divide evenly is spread over the pieces of all threads.
  const std::int64_t begin = place * share + place * extra / pieces;
  const std::int64_t end = (place + 1) * share + (place + 1) * extra / pieces;
  run_part(rank, number, begin, end);
}

// Runs tasks of a part.
void Team::run_part(int rank, int number, std::int64_t begin, std::int64_t end) {
  const Job& job = job_;
  const Part& part = job.parts[number];
  // The first part that fails is the one that is told of.
  Status& status = job.statuses[rank];
  Status later{};
  const bool is_first = status.kernel == 0 || status.kernel == number + 1;
  part.function(part.parameters, part.buffers, begin, end, job.scratch + rank * job.scratch_stride,
                is_first ? &status : &later);
  if (is_first && status.code != 0) status.kernel = number + 1;
}

// Runs the rounds of a job for the thread `rank`, which holds its share; how many shares it ends.
//
// The owner runs the shares of those that have not come yet, and tells who comes from which round on
// the share is its own, so that a worker that has to be woken, or that there is none of, delays
// nobody. After each round all threads wait until every share of it is done.
std::uint32_t Team::run_rounds(int rank, std::uint32_t sequence) {
  if (rank == 0) return lead_rounds(sequence);
  Slot& slot = slots_[rank];
  std::int64_t round = -1;
  for (Patience patience; round < 0; patience.wait())
    round = slot.first_round.load(std::memory_order_acquire);
  for (const std::int64_t rounds = job_.rounds; round < rounds; ++round) {
    run_round(rank, rank, round);
    if (round + 1 < rounds) await_round(round + 1);
  }
  return 1;
}

std::uint32_t Team::lead_rounds(std::uint32_t sequence) {
  const std::int64_t rounds = job_.rounds;
  int absent = job_.threads - 1;
  for (std::int64_t round = 0; round < rounds; ++round) {
    run_round(0, 0, round);
    for (int other = 1; absent > 0 && other < job_.threads; ++other) {
      Slot& slot = slots_[other];
      if (slot.first_round.load(std::memory_order_relaxed) >= 0) continue;
      if (has_come(other)) {
        slot.first_round.store(round, std::memory_order_release);
        --absent;
      } else {
        run_round(0, other, round);
      }
    }
    await_round(round + 1);
  }
  // Who comes now finds no share, or that all has been done.
  std::uint32_t finished = 1, piece = 0;
  for (int other = 1; absent > 0 && other < job_.threads; ++other) {
    Slot& slot = slots_[other];
    if (slot.first_round.load(std::memory_order_relaxed) >= 0) continue;
    if (take(other, sequence, piece)) {
      ++finished;
    } else {
      slot.first_round.store(rounds, std::memory_order_release);
    }
  }
  return finished;
}

// Whether a worker has taken its share.
bool Team::has_come(int rank) const {
  const std::uint64_t range = slots_[rank].range.load(std::memory_order_acquire);
  return (range >> 16 & 0xffff) == (range & 0xffff);
}

// Runs the share of one thread in a round, of all parts.
void Team::run_round(int rank, int share, std::int64_t round) {
  for (int number = 0; number < job_.part_count; ++number) {
    const Part& part = job_.parts[number];
    const int turn = (share - part.first_thread + job_.threads) % job_.threads;
    if (turn >= part.threads) continue;
    const std::int64_t first = round * part.grid;
    run_part(rank, number, first + part.grid * turn / part.threads,
             first + part.grid * (turn + 1) / part.threads);
  }
  slots_[share].rounds_run.store(round + 1, std::memory_order_release);
}

// Waits until all shares of so many rounds have been run.
void Team::await_round(std::int64_t round) const {
  Patience patience;
  for (int other = 0; other < job_.threads; ++other)
    while (slots_[other].rounds_run.load(std::memory_order_acquire) < round) patience.wait();
}

void Team::await_completion() {
  const auto done = [this] { return progress_.remaining.load(std::memory_order_acquire) == 0; };
  if (done() || spin(done)) return;
  owner_parked_.store(1, std::memory_order_seq_cst);
  for (;;) {
    const std::uint32_t left = progress_.remaining.load(std::memory_order_seq_cst);
    if (left == 0) break;
    futex_wait(progress_.remaining, left);
  }
  owner_parked_.store(0, std::memory_order_relaxed);
}

void Team::work(int rank) {
  pthread_setname_np(pthread_self(), "tilewright");
  Slot& slot = slots_[rank];
  std::uint32_t last = 0;
  for (;;) {
    last = sequence_of(await_job(slot, last));
    wake_two(rank, last);
    const int processor = sched_getcpu();
    if (processor == owner_processor_.load(std::memory_order_relaxed)) step_aside(slot, processor);
    participate(rank, last);
  }
}

std::uint64_t Team::await_job(Slot& slot, std::uint32_t last) {
  std::uint64_t range = 0;
  const auto offered = [&slot, &range, last] {
    range = slot.range.load(std::memory_order_acquire);
    return sequence_of(range) != last;
  };
  if (spin(offered)) return range;
  for (;;) {
    slot.parked.store(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (offered()) break;
    futex_wait(slot.parked, 1);
    if (offered()) break;
  }
  slot.parked.store(0, std::memory_order_relaxed);
  return range;
}

}  // namespace tilewright
