// A program as the runtime walks it: the Python records, resolved to numbers and addresses.
//
// tilewright.runtime.lower makes the description that is read here, and explains its parts: phases
// (stretches of steps between points where symbols are learned), liveness and arena blocks.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "arena.hpp"
#include "built_in.hpp"
#include "expression.hpp"
#include "image.hpp"

namespace tilewright {

namespace nb = nanobind;

class Model;

enum class BufferKind { input, output, constant, intermediate };

// Where a buffer's memory comes from: the caller, a constant or an opaque step in Python; the arena
// block of its phase; a block of its own that is handed to the caller; or one that an operator takes
// when it knows how large its result is.
enum class Storage { external, arena, output, made };

struct BufferInfo {
  std::string name;
  BufferKind kind;
  std::uint32_t index;  // within its kind
  bool native;          // false: lives in Python objects only
  bool shaped;          // false: a sequence or another value without a shape
  bool is_unsigned;     // its elements are unsigned integers
  Storage storage;
  std::int64_t item_size;
  std::vector<std::uint32_t> shape;  // expressions
  std::int64_t packed;               // expression of the size in bytes, or -1: dense
  std::uint32_t phase;               // in which its sizes become known
  nb::object dtype;                  // of numpy, for native buffers
  ElementType element;               // for native buffers
  std::string expected;              // "float32[batch, 768]", for errors
};

struct KernelInfo {
  KernelFunction function;
  std::string label;
  std::vector<std::string> checks;
  std::vector<std::uint32_t> parameters;  // expressions
  std::vector<std::uint32_t> buffers;
  std::vector<std::uint32_t> written;  // those of them that it writes
  bool is_foreign;                     // a function of another library
  std::uint32_t grid, rounds, scratch, work, used;  // expressions; the tasks are those of all rounds
};

// An If, Loop or Scan whose bodies the extension calls itself.
struct ControlInfo {
  struct Body {
    nb::object owner;
    Model* model;
    // What its inputs are given: a parameter, or -1 - n for input n of the step.
    std::vector<std::int64_t> inputs;
    std::size_t context;  // its number among those of all bodies of the program
  };
  // An array of which each turn is given its share along an axis.
  struct Scanned {
    std::uint32_t buffer;
    int axis;
    bool backward;
  };
  // What all turns have made, along a new axis.
  struct Stacked {
    int axis;
    bool backward;
    // Of what one turn makes, where none does: a buffer and its axis, or -1 and the size.
    std::vector<std::pair<std::int64_t, std::int64_t>> sizes;
  };
  enum class Kind { branch, loop, scan };

  Kind kind;
  std::string name;  // of the operator
  std::int64_t count, condition;  // buffers, or -1 for those that are left out
  std::vector<std::uint32_t> states;  // buffers that the first turn is given
  std::vector<Scanned> scanned;
  std::vector<Stacked> stacked;
  std::vector<Body> bodies;
};

struct OpaqueInfo {
  struct Binding {
    std::uint32_t output, axis, slot;
  };
  std::string label;
  std::vector<std::uint32_t> inputs, outputs;  // buffers
  std::vector<Binding> bindings;
  // Where the runtime computes it itself, or null; then which input each operand is (-1: none), which
  // result each output is, and the attributes.
  BuiltIn built_in = nullptr;
  std::vector<std::int64_t> operands;
  std::vector<std::size_t> results;
  std::vector<std::int64_t> attributes;
  // Where it has bodies that the extension calls, or null.
  std::unique_ptr<ControlInfo> control;
};

struct BindInfo {
  std::uint32_t buffer;
  std::vector<std::uint32_t> slots;
};

using StepInfo = std::variant<KernelInfo, OpaqueInfo, BindInfo>;

struct GuardInfo {
  std::uint32_t condition;  // expression
  std::string message;
};

// Where the actual size of an input's axis goes.
struct SizeInfo {
  std::uint32_t input, axis, slot;
};

// One step of finding the symbols that input sizes determine: the guards that can be decided, then
// the next symbol.
struct SolvingInfo {
  std::vector<GuardInfo> guards;
  std::uint32_t slot, formula;  // symbol, expression
};

// A function that returns the position of the least of several costs.
struct ChooserInfo {
  ChoiceFunction function;
  std::vector<std::uint32_t> arguments;  // slots
};

// A symbol that becomes what a chooser returns.
struct ChoiceInfo {
  std::uint32_t slot;
  std::uint32_t chooser;
};

struct PhaseInfo {
  std::uint32_t first_step, end_step;
  std::vector<std::uint32_t> slots;    // sizes and learned symbols that decide its plan
  std::vector<GuardInfo> guards;       // that can be decided now
  std::vector<ChoiceInfo> choices;     // that its sizes depend on
  std::vector<std::uint32_t> buffers;  // whose sizes become known
  std::vector<std::uint32_t> items;    // positions in `buffers` of those in the arena
  std::uint32_t block;                 // arena block it uses
  std::unique_ptr<Conflicts> conflicts;
  std::unique_ptr<Conflicts> conflicts_beside;  // with jobs of several kernels; null: the same
};

struct ProgramInfo {
  // Reads the description; throws Failure(artifact) where numbers do not fit together.
  ProgramInfo(nb::dict description, const Image* image);

  std::vector<std::string> symbols;  // the names of all slots: symbols, then sizes of inputs
  std::vector<Expression> expressions;
  std::vector<BufferInfo> buffers;
  std::vector<StepInfo> steps;
  std::vector<SizeInfo> sizes;
  std::vector<SolvingInfo> solving;
  std::vector<ChooserInfo> choosers;
  std::vector<PhaseInfo> phases;
  std::vector<std::uint32_t> inputs, outputs;  // buffers by position
  std::uint32_t constant_count = 0;
  std::uint32_t block_count = 0;
  std::vector<Model*> bodies;  // that its steps call, one for each body of each step
  std::int64_t threads_slot = -1;  // symbol that is the number of threads, or -1

 private:
  void read(nb::dict description, const Image* image);
  void read_buffers(nb::list items);
  void read_steps(nb::list items, const Image* image);
  void read_built_in(nb::handle item, OpaqueInfo& opaque) const;
  void read_results(nb::handle item, OpaqueInfo& opaque) const;
  // In control_info.cpp.
  void read_control(nb::handle item, OpaqueInfo& opaque);
  void read_sizes(nb::list items);
  void read_solving(nb::list items);
  void read_choosers(nb::list items, const Image* image);
  std::vector<GuardInfo> read_guards(nb::list items) const;
  void read_phases(nb::list items);
  void number_positions();
};

}  // namespace tilewright
