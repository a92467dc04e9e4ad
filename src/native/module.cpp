// The Python names of the extension.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unordered_map.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <tuple>

#include "arena.hpp"
#include "buffer.hpp"
#include "compute.hpp"
#include "cpu.hpp"
#include "exchange.hpp"
#include "expression.hpp"
#include "failure.hpp"
#include "files.hpp"
#include "gil.hpp"
#include "image.hpp"
#include "memory.hpp"
#include "model.hpp"
#include "team.hpp"
#include "tensors.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace tilewright {
namespace {

const char* error_class(FailureKind kind) {
  switch (kind) {
    case FailureKind::dimension:
      return "DimensionError";
    case FailureKind::input:
      return "InputError";
    case FailureKind::artifact:
      return "ArtifactError";
    case FailureKind::execution:
      return "ExecutionError";
    default:
      return "ResourceError";
  }
}

void raise(const Failure& failure) {
  const auto text = [](const std::string& value) -> nb::object {
    return value.empty() ? nb::none() : nb::object(nb::str(value.c_str()));
  };
  const nb::object type =
      nb::module_::import_("tilewright.support.errors").attr(error_class(failure.kind));
  const nb::object error =
      type(failure.message, "where"_a = text(failure.where), "hint"_a = text(failure.hint));
  PyErr_SetObject(type.ptr(), error.ptr());
}

void translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const Failure& failure) {
    raise(failure);
  } catch (const std::bad_alloc&) {
    raise(Failure(FailureKind::resource, "The system has no more memory."));
  }
}

std::shared_ptr<Image> make_image(
    nb::bytes data, std::unordered_map<std::string, std::int64_t> functions,
    const std::vector<std::tuple<std::int64_t, std::string, std::int64_t>>& fixups) {
  std::vector<Fixup> converted;
  for (const auto& [offset, symbol, addend] : fixups) converted.push_back({offset, symbol, addend});
  return std::make_shared<Image>(std::string_view(data.c_str(), data.size()), std::move(functions),
                                 converted);
}

std::int64_t evaluate(std::vector<std::int64_t> code, std::string text,
                      const std::vector<std::int64_t>& symbols) {
  return Expression(std::move(code), std::move(text), symbols.size()).evaluate(symbols.data());
}

std::pair<std::vector<std::int64_t>, std::int64_t> place(
    const std::vector<std::int64_t>& sizes,
    const std::vector<std::pair<std::int64_t, std::int64_t>>& lifetimes) {
  std::vector<Conflicts::Interval> intervals;
  for (const auto& [first, last] : lifetimes) intervals.push_back({first, last});
  if (intervals.size() != sizes.size()) throw nb::value_error("one lifetime per size is expected");
  std::vector<std::int64_t> offsets;
  const std::int64_t total = Conflicts(intervals).place(sizes, offsets);
  return {offsets, total};
}

// The checksums of all parts of `size` bytes of a buffer, the last one shorter, 8 bytes each.
nb::bytes part_checksums(nb::handle object, std::size_t size) {
  if (size == 0) throw nb::value_error("a part is at least one byte");
  const Buffer buffer(object);
  std::vector<std::uint64_t> sums;
  {
    const WithoutGil without_gil;
    const auto* data = buffer.data<const unsigned char>();
    for (std::size_t begin = 0; begin < buffer.bytes(); begin += size)
      sums.push_back(checksum(data + begin, std::min(size, buffer.bytes() - begin)));
  }
  return nb::bytes(reinterpret_cast<const char*>(sums.data()), sums.size() * sizeof sums[0]);
}

nb::object call_into(Model& model, nb::tuple arguments, nb::dict keywords, nb::object out) {
  return in_python([&] {
    return model.call(std::move(arguments), std::move(keywords), std::move(out), nullptr);
  });
}

nb::object call(Model& model, nb::tuple arguments, nb::dict keywords) {
  return call_into(model, std::move(arguments), std::move(keywords), nb::none());
}

nb::object call_profiled(Model& model, nb::tuple arguments, nb::dict keywords) {
  std::vector<std::int64_t> times;
  nb::object result = in_python([&] {
    return model.call(std::move(arguments), std::move(keywords), nb::none(), &times);
  });
  return nb::make_tuple(result, times);
}

void set_idle_seconds(double seconds) {
  Memory::shared().set_idle_time(std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9)));
}

nb::dict memory_use() {
  const MemoryUse use = Memory::shared().use();
  nb::dict result;
  result["held"] = use.held;
  result["idle"] = use.idle;
  result["peak"] = use.peak;
  result["limit"] = use.limit;
  return result;
}

}  // namespace
}  // namespace tilewright

NB_MODULE(_native, module) {
  using namespace tilewright;
  import_numpy();
  // What a daemon thread still holds when the process ends is no defect.
  nb::set_leak_warnings(false);
  nb::register_exception_translator(translate);
  module.def("cpu_features", &cpu_features);
  module.def("exchange_seconds", &exchange_seconds, "first"_a, "second"_a);
  module.attr("most_threads") = kMaximumThreads;
  module.attr("most_parts") = kMostParts;
  module.def("evaluate", &evaluate, "code"_a, "text"_a, "symbols"_a);
  module.def("place", &place, "sizes"_a, "lifetimes"_a);
  module.def("from_dlpack", &from_dlpack, "capsule"_a, "dtypes"_a, "writeable"_a);
  module.def("part_checksums", &part_checksums, "buffer"_a, "size"_a);
  module.def("compute", &compute, "operator"_a, "attributes"_a, "operands"_a);
  nb::class_<FileWatch>(module, "FileWatch")
      .def(nb::init<int, std::string>(), "descriptor"_a, "path"_a)
      .def("check", &FileWatch::check);
  module.def("memory_use", &memory_use);
  module.def("set_memory_limit", [](std::int64_t bytes) { Memory::shared().set_limit(bytes); });
  module.def("set_idle_seconds", &set_idle_seconds);
  nb::class_<Image>(module, "Image")
      .def(nb::new_(&make_image), "data"_a, "functions"_a, "fixups"_a)
      .def(
          "address",
          [](const Image& image, const std::string& name) {
            return reinterpret_cast<std::uintptr_t>(image.address(name));
          },
          "name"_a);
  nb::class_<Model>(module, "Model")
      .def(nb::init<nb::dict, std::shared_ptr<Image>, nb::list, nb::object, nb::object>(),
           "description"_a, "image"_a.none(), "constants"_a, "owner"_a, "hooks"_a)
      // Two methods without names and defaults of arguments, which would make calling them slower.
      .def("call", &call)
      .def("call_into", &call_into)
      .def("watch", &Model::watch, "files"_a)
      .def("profile", &call_profiled)
      .def("explain", &Model::explain, "symbols"_a)
      .def("stats", &Model::stats)
      .def("shrink", &Model::shrink)
      .def_prop_rw("num_threads", &Model::num_threads, &Model::set_num_threads)
      .def_rw("max_bytes", &Model::max_bytes)
      .def_rw("flush_denormals", &Model::flush_denormals);
}
