#include "call.hpp"

#include <algorithm>
#include <cstring>

#include "failure.hpp"
#include "gil.hpp"
#include "tensors.hpp"

namespace tilewright {

std::string shape_text(const std::int64_t* dims, std::size_t rank) {
  std::string text = "[";
  for (std::size_t axis = 0; axis < rank; ++axis)
    text += (axis > 0 ? ", " : "") + std::to_string(dims[axis]);
  return text + "]";
}

void Call::read_inputs(nb::tuple arguments, nb::dict keywords) {
  const std::size_t count = program_.inputs.size();
  const std::size_t positional = arguments.size();
  const auto reject = [&] { in_python([&] { model_.reject()(arguments, keywords); }); };
  if (positional + keywords.size() != count) reject();
  for (std::uint32_t input = 0; input < count; ++input) {
    PyObject* value = nullptr;
    if (input < positional) {
      value = PyTuple_GET_ITEM(arguments.ptr(), static_cast<Py_ssize_t>(input));
    } else {
      value = PyDict_GetItemWithError(keywords.ptr(), model_.input_names()[input].ptr());
      if (value == nullptr && PyErr_Occurred()) throw nb::python_error();
      if (value == nullptr) reject();
    }
    if (value == nullptr) throw Failure(FailureKind::input, "An input is missing.");
    read_input(input, value);
  }
}

void Call::read_input(std::uint32_t input, PyObject* value) {
  const std::uint32_t number = program_.inputs[input];
  const BufferInfo& buffer = program_.buffers[number];
  nb::object& object = context_.objects[number];
  const int rank = static_cast<int>(buffer.shape.size());
  ArrayView view{};
  const auto is_usable = [&](PyObject* given) {
    const bool is_array = buffer.native ? view_array(given, buffer.dtype.ptr(), view)
                                        : !buffer.shaped || view_shape(given, view);
    return is_array && (!buffer.shaped || view.rank == rank);
  };
  object = nb::borrow(value);
  if (!buffer.native || !is_usable(value)) {
    is_converted_ = true;
    object = in_python([&] { return model_.convert()(input, nb::handle(value)); });
    if (!is_usable(object.ptr())) {
      if (!buffer.native || !view_shape(object.ptr(), view) || view.rank != rank)
        refuse_input(buffer);
      uncopied_.push_back(input);
      view.data = nullptr;
    }
  }
  if (buffer.native) context_.pointers[number] = view.data;
  if (buffer.shaped) context_.set_dims(number, view.dims, rank);
}

// Views may be far larger than what they are views of, so sizes are asked for before copies.
void Call::copy_inputs() {
  for (const std::uint32_t input : uncopied_) {
    const std::uint32_t number = program_.inputs[input];
    const BufferInfo& buffer = program_.buffers[number];
    nb::object& object = context_.objects[number];
    object = in_python([&] { return model_.copy()(input, object); });
    ArrayView view{};
    if (!view_array(object.ptr(), buffer.dtype.ptr(), view) ||
        view.rank != static_cast<int>(buffer.shape.size()) ||
        !std::equal(view.dims, view.dims + view.rank, context_.dims[number]))
      refuse_input(buffer);
    context_.pointers[number] = view.data;
  }
  uncopied_.clear();
}

void Call::refuse_input(const BufferInfo& buffer) {
  throw Failure(FailureKind::input, "An input cannot be used as " + buffer.expected,
                "input '" + buffer.name + "'");
}

namespace {

// One array for one output, or a tuple with a value for each.
PyObject* given_for(nb::handle out, std::size_t output) {
  return PyTuple_CheckExact(out.ptr())
             ? PyTuple_GET_ITEM(out.ptr(), static_cast<Py_ssize_t>(output))
             : out.ptr();
}

}  // namespace

// Whether `out` is what given_for takes, and kernels can write to it as it is.
bool Call::can_write(nb::handle out) const {
  const std::size_t given =
      PyTuple_CheckExact(out.ptr()) ? static_cast<std::size_t>(PyTuple_GET_SIZE(out.ptr())) : 1;
  if (given != program_.outputs.size()) return false;
  for (std::size_t output = 0; output < given; ++output) {
    const BufferInfo& buffer = program_.buffers[program_.outputs[output]];
    PyObject* const value = given_for(out, output);
    ArrayView view{};
    if (value == Py_None) continue;
    if (!buffer.native || !view_array(value, buffer.dtype.ptr(), view) || !view.is_writeable ||
        view.rank != static_cast<int>(buffer.shape.size()))
      return false;
  }
  return true;
}

void Call::read_outputs(nb::object out) {
  if (is_converted_ || !can_write(out)) {
    const nb::object found = in_python([&] { return model_.place_outputs()(out); });
    own_ = found[0];
    out = found[1];
  }
  for (std::size_t output = 0; output < program_.outputs.size(); ++output) {
    const BufferInfo& buffer = program_.buffers[program_.outputs[output]];
    const nb::object array = nb::borrow(given_for(out, output));
    if (array.is_none()) continue;
    ArrayView view{};
    if (!view_array(array.ptr(), buffer.dtype.ptr(), view) || !view.is_writeable ||
        view.rank != static_cast<int>(buffer.shape.size()))
      throw Failure(FailureKind::input, "An output cannot be written as " + buffer.expected,
                    "output '" + buffer.name + "'");
    std::int64_t bytes = buffer.item_size;
    for (int axis = 0; axis < view.rank; ++axis) bytes *= view.dims[axis];
    refuse_overlap(output, static_cast<const char*>(view.data), bytes);
    context_.given[output] = array;
  }
}

void Call::refuse_overlap(std::size_t output, const char* data, std::int64_t bytes) const {
  const auto check = [&](const char* other, std::int64_t size, const std::string& name) {
    if (size > 0 && bytes > 0 && data < other + size && other < data + bytes)
      throw Failure(FailureKind::input,
                    "The array given for output '" + program_.buffers[program_.outputs[output]].name +
                        "' shares memory with " + name,
                    {}, "Give an array of its own");
  };
  for (const std::uint32_t number : program_.inputs)
    if (program_.buffers[number].native && context_.pointers[number] != nullptr)
      check(static_cast<const char*>(context_.pointers[number]), bytes_of(number),
            "input '" + program_.buffers[number].name + "'");
  for (std::size_t other = 0; other < output; ++other) {
    if (!context_.given[other].is_valid()) continue;
    const BufferInfo& buffer = program_.buffers[program_.outputs[other]];
    ArrayView view{};
    view_array(context_.given[other].ptr(), buffer.dtype.ptr(), view);
    std::int64_t size = buffer.item_size;
    for (int axis = 0; axis < view.rank; ++axis) size *= view.dims[axis];
    check(static_cast<const char*>(view.data), size, "that for output '" + buffer.name + "'");
  }
}

std::int64_t Call::bytes_of(std::uint32_t number) const {
  const BufferInfo& buffer = program_.buffers[number];
  std::int64_t bytes = buffer.item_size;
  for (std::size_t axis = 0; axis < buffer.shape.size(); ++axis)
    bytes *= context_.dims[number][axis];
  return bytes;
}

void Call::provide_output(std::uint32_t number, std::int64_t bytes, const std::int64_t* dims) {
  const BufferInfo& buffer = program_.buffers[number];
  if (body_outputs_ != nullptr) {
    context_.pointers[number] = body_outputs_->place(buffer.index, dims, bytes);
    return;
  }
  const nb::object& given = context_.given[buffer.index];
  if (!given.is_valid()) {
    Block& output = context_.outputs[buffer.index];
    output = Memory::shared().take(Memory::Purpose::output, bytes, bytes / 2);
    context_.pointers[number] = output.data();
    return;
  }
  // Looked at only now: Python may have run since the array was checked.
  ArrayView view{};
  if (!view_array(given.ptr(), buffer.dtype.ptr(), view) ||
      view.rank != static_cast<int>(buffer.shape.size()) ||
      !std::equal(view.dims, view.dims + view.rank, dims))
    throw Failure(FailureKind::input,
                  "The array given for output '" + buffer.name + "' has the shape " +
                      shape_text(view.dims, static_cast<std::size_t>(view.rank)) +
                      ", but the result has " + shape_text(dims, buffer.shape.size()),
                  "output '" + buffer.name + "', " + buffer.expected,
                  "Give an array of the shape of the result, or None");
  context_.pointers[number] = view.data;
}

// What the caller gets for an output that it has given memory for.
nb::object Call::returned(std::uint32_t output) const {
  return own_.is_valid() ? nb::object(own_[output]) : context_.given[output];
}

nb::object Call::result(std::uint32_t number) {
  const BufferInfo& buffer = program_.buffers[number];
  const nb::object& given = context_.given[buffer.index];
  const int rank = static_cast<int>(buffer.shape.size());
  if (buffer.storage == Storage::output)
    return given.is_valid() ? returned(buffer.index)
                            : make_output(buffer.dtype.ptr(), rank, context_.dims[number],
                                          std::exchange(context_.outputs[buffer.index], Block()),
                                          true);
  if (!given.is_valid())
    return buffer.storage != Storage::made
               ? context_.objects[number]
               : make_output(buffer.dtype.ptr(), rank, context_.dims[number],
                             std::exchange(context_.made[number], Block()), true);
  void* const made = context_.pointers[number];
  provide_output(number, bytes_of(number), context_.dims[number]);
  if (bytes_of(number) > 0)
    std::memcpy(context_.pointers[number], made, static_cast<std::size_t>(bytes_of(number)));
  return returned(buffer.index);
}

nb::object Call::results() {
  if (program_.outputs.size() == 1) return result(program_.outputs[0]);
  nb::object values = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(program_.outputs.size())));
  for (std::size_t position = 0; position < program_.outputs.size(); ++position)
    PyTuple_SET_ITEM(values.ptr(), static_cast<Py_ssize_t>(position),
                     result(program_.outputs[position]).release().ptr());
  return values;
}

}  // namespace tilewright
