#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include <nanobind/nanobind.h>

namespace tilewright {

namespace nb = nanobind;

// A row-major array of another object for as long as it is looked at. Made and released with the
// GIL held.
class Buffer {
 public:
  // Of any rank where none is given.
  explicit Buffer(nb::handle object, std::optional<int> rank = std::nullopt,
                  bool writeable = false) {
    const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writeable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) throw nb::python_error();
    if (!rank || view_.ndim == *rank) return;
    PyBuffer_Release(&view_);
    throw nb::value_error("an array has another rank than is expected");
  }
  ~Buffer() { PyBuffer_Release(&view_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::int64_t size(int axis) const { return view_.shape[axis]; }
  std::size_t bytes() const { return static_cast<std::size_t>(view_.len); }

  // The only letter of the format, such as 'f'.
  char letter() const {
    const std::string format = view_.format == nullptr ? "B" : view_.format;
    return format.size() == 1 ? format[0] : ' ';
  }

  template <typename T>
  T* data() const {
    return static_cast<T*>(view_.buf);
  }

 private:
  Py_buffer view_;
};

}  // namespace tilewright
