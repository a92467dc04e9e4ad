// A loaded model: its program, its code, its constants, and the contexts its calls run in.
//
// Everything here is guarded by the GIL, but for what bodies of other models do without it: these
// make plans and run in contexts of their own.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "files.hpp"
#include "image.hpp"
#include "kernel.hpp"
#include "memory.hpp"
#include "plan.hpp"
#include "program.hpp"
#include "team.hpp"

namespace tilewright {

// What one call works with. Contexts are kept for later calls; each concurrent call has its own.
struct Context {
  struct Memo {
    std::vector<std::int64_t> key;
    std::shared_ptr<const PhasePlan> plan;
  };

  std::vector<std::int64_t> symbols;
  std::vector<void*> pointers;            // by buffer
  std::vector<const std::int64_t*> dims;  // by buffer; null: not known yet
  // Copies of the sizes of arrays, by buffer: an array's own can change while Python runs.
  std::vector<std::vector<std::int64_t>> own_dims;
  std::vector<nb::object> objects;  // by buffer: inputs, results of opaque steps, constants
  std::vector<Block> outputs;       // by output
  std::vector<Block> made;          // by buffer: results of operators that the runtime computes
  std::vector<nb::object> given;    // by output: the caller's array that it is written to
  std::vector<Memo> memos;                // by phase: the plan used last
  std::vector<Block> blocks;              // arena
  std::vector<std::int64_t> needed;       // bytes of each block that this call needs
  Block scratch;
  std::int64_t scratch_needed = 0;
  std::int64_t output_bytes = 0;
  std::vector<Status> statuses;  // by thread
  std::vector<void*> arguments;  // of the kernels of the job that runs
  std::vector<Part> parts;       // of that job
  std::vector<std::int64_t> key;
  std::vector<std::unique_ptr<Context>> bodies;  // those of the bodies that steps call

  void set_dims(std::uint32_t buffer, const std::int64_t* sizes, int rank);
  // What arena and scratch have, or will need where that is more.
  std::int64_t claimed_bytes() const;
};

struct Constant {
  void* data;
  std::int64_t bytes;
  nb::object array;  // read-only, where an opaque step needs it
};

class Model {
 public:
  // `constants`: (address, bytes, array or None) by position. `hooks` has the methods that the
  // extension calls back: convert(input, value), copy(input, array), reject(args, kwargs),
  // place_outputs(out), adapt(args, kwargs, results, given), run_opaque(step, inputs).
  Model(nb::dict description, std::shared_ptr<Image> image, nb::list constants, nb::object owner,
        nb::object hooks);
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // The output, or a tuple of outputs. `out` is None, or what the results are to be written to: an
  // array for one output, a tuple with an array or None for each, or else what the hook
  // place_outputs makes such a tuple of. `times`, if given, is filled with nanoseconds by step, -1 for those that did not
  // run.
  nb::object call(nb::tuple arguments, nb::dict keywords, nb::object out,
                  std::vector<std::int64_t>* times);

  // One dict per phase whose symbols are all given (None: unknown).
  nb::list explain(nb::list symbols);

  nb::dict stats() const;
  void shrink();

  // Every call asks `files` first whether the constants are still what they were.
  void watch(std::shared_ptr<FileWatch> files) { files_ = std::move(files); }

  int num_threads() const { return num_threads_; }
  void set_num_threads(int threads);

  std::int64_t max_bytes = 0;  // 0: no limit
  bool flush_denormals = false;

  const ProgramInfo& program() const { return program_; }
  const std::vector<Constant>& constants() const { return constants_; }
  const std::vector<nb::object>& input_names() const { return input_names_; }
  nb::handle convert() const { return convert_; }
  nb::handle copy() const { return copy_; }
  nb::handle reject() const { return reject_; }
  nb::handle place_outputs() const { return place_outputs_; }
  nb::handle adapt() const { return adapt_; }
  nb::handle run_opaque() const { return run_opaque_; }

  // The plan of a phase at the context's symbols, from the context, the table, or made now.
  // Needs no GIL.
  const PhasePlan& plan(Context& context, std::uint32_t phase, int threads);

  // Forgets what a call has made, and gives memory back that is of use to nobody.
  static void forget_results(const ProgramInfo& program, Context& context);

 private:
  std::unique_ptr<Context> acquire();
  std::unique_ptr<Context> make_context() const;
  void clear(Context& context) const;
  void release(std::unique_ptr<Context> context);
  nb::dict explain_phase(std::uint32_t number, const PhasePlan& plan,
                         std::vector<std::int64_t>& bytes) const;

  std::shared_ptr<Image> image_;
  ProgramInfo program_;
  std::vector<Constant> constants_;
  std::shared_ptr<FileWatch> files_;
  std::vector<nb::object> input_names_;
  nb::object owner_, convert_, copy_, reject_, place_outputs_, adapt_, run_opaque_;
  std::vector<std::unique_ptr<Context>> idle_;
  mutable std::mutex plans_mutex_;
  PlanTable plans_;
  int num_threads_ = 1;
  std::int64_t calls_ = 0;
  std::atomic<std::int64_t> plans_made_{0}, plan_hits_{0};
};

}  // namespace tilewright
