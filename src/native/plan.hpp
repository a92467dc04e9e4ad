// All numbers of one phase at one shape: sizes, kernel parameters, grids, offsets in the arena.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <unordered_map>
#include <vector>

#include "program.hpp"

namespace tilewright {

struct KernelPlan {
  std::int64_t grid;         // tasks of all rounds
  std::int64_t rounds;       // 1, or how many there are, one after the other
  std::int64_t scratch;      // bytes per thread, a multiple of the alignment
  std::int64_t work;         // nanoseconds
  std::uint32_t parameters;  // position of the first one in PhasePlan::parameters
  std::int32_t threads;      // that are worth while, if there are as many
  // Of the first kernel of a job (see team.hpp): how many steps from it on belong to it, and the
  // threads that are worth while for all of them.
  std::uint32_t job_steps;
  std::int32_t job_threads;
};

struct PhasePlan {
  std::vector<KernelPlan> kernels;       // one per step of the phase; those of others are empty
  std::vector<std::int64_t> parameters;  // of all kernels
  std::vector<std::int64_t> dims;        // of all buffers of the phase, one after the other
  std::vector<std::uint32_t> first_dim;  // of each buffer of the phase
  std::vector<std::int64_t> bytes;       // of each buffer of the phase
  std::vector<std::int64_t> offsets;     // of each item in the arena block
  std::vector<std::int64_t> symbols;     // as they were when the plan was made
  std::int64_t arena_bytes = 0;
  std::int64_t scratch_bytes = 0;  // of all threads
  std::int64_t output_bytes = 0;

  std::size_t footprint() const;
};

// Finds the symbols that the sizes of the inputs determine. Throws Failure(dimension) for a broken
// guard.
void solve_symbols(const ProgramInfo& program, std::vector<std::int64_t>& symbols);

// Evaluates guards, choices, sizes and parameters at `symbols` for `threads` threads and places the
// buffers. Throws
// Failure(dimension) for a broken guard, a negative size or an overflow.
std::shared_ptr<const PhasePlan> make_plan(const ProgramInfo& program, const PhaseInfo& phase,
                                           const std::vector<std::int64_t>& symbols, int threads);

// The plans made last, bounded in number and in bytes. Not locked.
class PlanTable {
 public:
  // Key: the number of the phase, that of threads, then the values of the phase's symbols. Null when not there.
  std::shared_ptr<const PhasePlan> find(const std::vector<std::int64_t>& key);
  void insert(std::vector<std::int64_t> key, std::shared_ptr<const PhasePlan> plan);
  void clear();
  std::size_t size() const { return entries_.size(); }

 private:
  struct Hash {
    std::size_t operator()(const std::vector<std::int64_t>& key) const noexcept;
  };
  struct Entry {
    std::vector<std::int64_t> key;
    std::shared_ptr<const PhasePlan> plan;
  };
  std::list<Entry> entries_;  // used last first
  std::unordered_map<std::vector<std::int64_t>, std::list<Entry>::iterator, Hash> index_;
  std::size_t bytes_ = 0;
};

}  // namespace tilewright
