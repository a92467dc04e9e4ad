#include "model.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "call.hpp"
#include "failure.hpp"
#include "gil.hpp"
#include "team.hpp"

namespace tilewright {
namespace {

// Contexts are small and quickly made; those of a peak of callers need not stay.
constexpr std::size_t kMostIdleContexts = 16;

}  // namespace

void Context::set_dims(std::uint32_t buffer, const std::int64_t* sizes, int rank) {
  own_dims[buffer].assign(sizes, sizes + rank);
  dims[buffer] = own_dims[buffer].data();
}

std::int64_t Context::claimed_bytes() const {
  std::int64_t bytes = std::max(scratch.capacity(), scratch_needed);
  for (std::size_t block = 0; block < blocks.size(); ++block)
    bytes += std::max(blocks[block].capacity(), needed[block]);
  return bytes;
}

Model::Model(nb::dict description, std::shared_ptr<Image> image, nb::list constants,
             nb::object owner, nb::object hooks)
    : image_(std::move(image)),
      program_(description, image_.get()),
      owner_(std::move(owner)),
      convert_(hooks.attr("convert")),
      copy_(hooks.attr("copy")),
      reject_(hooks.attr("reject")),
      place_outputs_(hooks.attr("place_outputs")),
      adapt_(hooks.attr("adapt")),
      run_opaque_(hooks.attr("run_opaque")) {
  for (nb::handle item : constants)
    constants_.push_back({reinterpret_cast<void*>(nb::cast<std::uintptr_t>(item[0])),
                          nb::cast<std::int64_t>(item[1]), nb::object(item[2])});
  if (constants_.size() != program_.constant_count)
    throw Failure(FailureKind::artifact,
                  "The program has " + std::to_string(program_.constant_count) +
                      " constants, but " + std::to_string(constants_.size()) + " are given.");
  for (const std::uint32_t input : program_.inputs)
    input_names_.push_back(
        nb::steal<nb::object>(PyUnicode_InternFromString(program_.buffers[input].name.c_str())));
}

std::unique_ptr<Context> Model::acquire() {
  if (!idle_.empty()) {
    std::unique_ptr<Context> context = std::move(idle_.back());
    idle_.pop_back();
    return context;
  }
  return make_context();
}

std::unique_ptr<Context> Model::make_context() const {
  auto context = std::make_unique<Context>();
  const std::size_t buffers = program_.buffers.size();
  context->symbols.resize(program_.symbols.size());
  context->pointers.resize(buffers);
  context->dims.resize(buffers);
  context->own_dims.resize(buffers);
  context->objects.resize(buffers);
  context->outputs.resize(program_.outputs.size());
  context->made.resize(buffers);
  context->given.resize(program_.outputs.size());
  context->memos.resize(program_.phases.size());
  context->blocks.resize(program_.block_count);
  context->needed.resize(program_.block_count);
  context->statuses.resize(kMaximumThreads);
  std::size_t arguments = 0;
  for (const StepInfo& step : program_.steps)
    if (const auto* kernel = std::get_if<KernelInfo>(&step))
      arguments = std::max(arguments, kernel->buffers.size());
  context->arguments.resize(arguments * kMostParts);
  context->parts.resize(kMostParts);
  for (std::size_t number = 0; number < buffers; ++number) {
    const BufferInfo& buffer = program_.buffers[number];
    if (buffer.kind != BufferKind::constant) continue;
    context->pointers[number] = constants_[buffer.index].data;
    context->objects[number] = constants_[buffer.index].array;
    if (!buffer.native) continue;
    std::vector<std::int64_t> sizes;
    for (const std::uint32_t size : buffer.shape)
      sizes.push_back(program_.expressions[size].evaluate(context->symbols.data()));
    context->set_dims(static_cast<std::uint32_t>(number), sizes.data(),
                      static_cast<int>(sizes.size()));
  }
  for (const Model* body : program_.bodies) context->bodies.push_back(body->make_context());
  return context;
}

void Model::forget_results(const ProgramInfo& program, Context& context) {
  for (std::size_t number = 0; number < program.buffers.size(); ++number) {
    if (program.buffers[number].kind == BufferKind::constant) continue;
    context.dims[number] = nullptr;
    if (program.buffers[number].storage == Storage::made && context.made[number].data() != nullptr)
      Memory::shared().give_back(Memory::Purpose::output,
                                 std::exchange(context.made[number], Block()));
  }
}

void Model::clear(Context& context) const {
  forget_results(program_, context);
  for (std::size_t number = 0; number < program_.buffers.size(); ++number)
    if (program_.buffers[number].kind != BufferKind::constant) context.objects[number].reset();
  for (nb::object& array : context.given) array.reset();
  // Other models may have the memory until the next call.
  Memory& memory = Memory::shared();
  for (Block& block : context.outputs)
    memory.give_back(Memory::Purpose::output, std::exchange(block, Block()));
  for (Block& block : context.blocks)
    memory.give_back(Memory::Purpose::working, std::exchange(block, Block()));
  memory.give_back(Memory::Purpose::working, std::exchange(context.scratch, Block()));
  for (std::size_t body = 0; body < context.bodies.size(); ++body)
    program_.bodies[body]->clear(*context.bodies[body]);
}

void Model::release(std::unique_ptr<Context> context) {
  clear(*context);
  if (idle_.size() < kMostIdleContexts) idle_.push_back(std::move(context));
}

nb::object Model::call(nb::tuple arguments, nb::dict keywords, nb::object out,
                       std::vector<std::int64_t>* times) {
  if (files_ != nullptr) files_->check();
  // Gives the context back however the call ends. Freeing arguments may run Python code.
  struct Lease {
    Model& model;
    std::unique_ptr<Context> context;
    ~Lease() {
      in_python([this] { model.release(std::move(context)); });
    }
  };
  const Lease lease{*this, acquire()};
  ++calls_;
  return Call(*this, *lease.context, times).run(arguments, keywords, out);
}

const PhasePlan& Model::plan(Context& context, std::uint32_t number, int threads) {
  const PhaseInfo& phase = program_.phases[number];
  std::vector<std::int64_t>& key = context.key;
  key.clear();
  key.push_back(number);
  key.push_back(threads);
  for (const std::uint32_t slot : phase.slots) key.push_back(context.symbols[slot]);
  Context::Memo& memo = context.memos[number];
  std::shared_ptr<const PhasePlan> plan;
  if (memo.plan != nullptr && memo.key == key) {
    plan = memo.plan;
  } else {
    const std::lock_guard lock(plans_mutex_);
    plan = plans_.find(key);
  }
  if (plan != nullptr) {
    ++plan_hits_;
    if (number == 0) context.symbols = plan->symbols;
  } else {
    if (number == 0) solve_symbols(program_, context.symbols);
    plan = make_plan(program_, phase, context.symbols, threads);
    ++plans_made_;
    const std::lock_guard lock(plans_mutex_);
    plans_.insert(key, plan);
  }
  if (memo.plan != plan) {
    memo.key = key;
    memo.plan = std::move(plan);
  }
  return *memo.plan;
}

nb::list Model::explain(nb::list symbols) {
  std::vector<std::int64_t> values(program_.symbols.size());
  if (symbols.size() != values.size())
    throw Failure(FailureKind::dimension, "One value per symbol is expected.");
  std::vector<std::int64_t> bytes(program_.buffers.size());
  for (std::size_t number = 0; number < bytes.size(); ++number)
    if (program_.buffers[number].kind == BufferKind::constant)
      bytes[number] = constants_[program_.buffers[number].index].bytes;
  for (std::size_t slot = 0; slot < values.size(); ++slot)
    if (!symbols[slot].is_none()) values[slot] = nb::cast<std::int64_t>(symbols[slot]);
  nb::list phases;
  for (std::uint32_t number = 0; number < program_.phases.size(); ++number) {
    const PhaseInfo& phase = program_.phases[number];
    const bool known = std::none_of(phase.slots.begin(), phase.slots.end(),
                                    [&](std::uint32_t slot) { return symbols[slot].is_none(); });
    if (!known) break;
    if (number == 0) solve_symbols(program_, values);
    phases.append(explain_phase(number, *make_plan(program_, phase, values, num_threads_), bytes));
  }
  return phases;
}

nb::dict Model::explain_phase(std::uint32_t number, const PhasePlan& plan,
                              std::vector<std::int64_t>& bytes) const {
  const PhaseInfo& phase = program_.phases[number];
  for (std::size_t position = 0; position < phase.buffers.size(); ++position)
    bytes[phase.buffers[position]] = plan.bytes[position];
  nb::list kernels;
  for (std::uint32_t step = phase.first_step; step < phase.end_step; ++step) {
    const auto* kernel = std::get_if<KernelInfo>(&program_.steps[step]);
    if (kernel == nullptr) continue;
    const KernelPlan& numbers = plan.kernels[step - phase.first_step];
    std::int64_t touched = 0;
    for (const std::uint32_t buffer : kernel->buffers) touched += bytes[buffer];
    const int threads = std::min(numbers.threads, num_threads_);
    nb::list parameters;
    const std::size_t count = numbers.grid == 0 ? 0 : kernel->parameters.size();
    for (std::size_t parameter = 0; parameter < count; ++parameter)
      parameters.append(plan.parameters[numbers.parameters + parameter]);
    kernels.append(nb::make_tuple(step, numbers.grid, threads, numbers.work, numbers.scratch,
                                  touched, parameters, numbers.job_steps));
  }
  nb::list placements;
  for (std::size_t item = 0; item < phase.items.size(); ++item)
    placements.append(nb::make_tuple(phase.buffers[phase.items[item]], plan.offsets[item],
                                     plan.bytes[phase.items[item]]));
  nb::dict result;
  result["kernels"] = kernels;
  result["placements"] = placements;
  result["block"] = phase.block;
  result["arena_bytes"] = plan.arena_bytes;
  result["output_bytes"] = plan.output_bytes;
  result["scratch_bytes"] = plan.scratch_bytes;
  return result;
}

nb::dict Model::stats() const {
  const MemoryUse memory = Memory::shared().use();
  nb::dict result;
  result["calls"] = calls_;
  result["plans_made"] = plans_made_.load();
  result["plan_hits"] = plan_hits_.load();
  const std::lock_guard lock(plans_mutex_);
  result["plans_kept"] = plans_.size();
  result["threads"] = num_threads_;
  result["process_bytes"] = memory.held;
  result["process_idle_bytes"] = memory.idle;
  result["process_peak_bytes"] = memory.peak;
  return result;
}

void Model::shrink() {
  idle_.clear();
  {
    const std::lock_guard lock(plans_mutex_);
    plans_.clear();
  }
  Memory::shared().free_idle();
}

void Model::set_num_threads(int threads) {
  num_threads_ = std::clamp(threads, 1, kMaximumThreads);
}

}  // namespace tilewright
