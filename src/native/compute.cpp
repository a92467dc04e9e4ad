#include "compute.hpp"

#include <nanobind/stl/string.h>

#include "built_in.hpp"
#include "tensors.hpp"

namespace tilewright {
namespace {

class ArrayWork final : public Work {
 public:
  ArrayWork(const std::string& name, std::vector<std::optional<Operand>> operands,
            const std::vector<std::int64_t>& attributes)
      : Work(name, std::move(operands), attributes, 1) {}

  void* result(std::size_t index, ElementType type, const std::vector<std::int64_t>& dims) override {
    std::int64_t bytes = bytes_of(type);
    for (const std::int64_t size : dims) bytes *= size;
    Block block = Memory::shared().take(Memory::Purpose::output, bytes, bytes / 2);
    void* const data = block.data();
    const nb::object dtype =
        nb::module_::import_("tilewright.runtime.tensors").attr("native_dtype")(name_of(type));
    while (results.size() <= index) results.append(nb::none());
    results[index] = make_output(dtype.ptr(), static_cast<int>(dims.size()), dims.data(),
                                 std::move(block), true);
    return data;
  }

  nb::list results;
};

}  // namespace

nb::list compute(const std::string& name, const std::vector<std::int64_t>& attributes,
                 nb::list operands) {
  const BuiltIn function = find_built_in(name);
  if (function == nullptr) throw nb::value_error("there is no such operator");
  std::vector<std::optional<Operand>> given;
  for (nb::handle array : operands) {
    given.emplace_back();
    if (array.is_none()) continue;
    const nb::object dtype = array.attr("dtype");
    ArrayView view{};
    if (!view_array(array.ptr(), dtype.ptr(), view))
      throw nb::type_error("an operand is no row-major array");
    given.back() = {element_type(nb::cast<std::string>(dtype.attr("name"))), view.rank, view.dims,
                    view.data};
  }
  ArrayWork work(name, std::move(given), attributes);
  function(work);
  return work.results;
}

}  // namespace tilewright
