// Arrays in and out: the only file pair that talks to numpy and DLPack.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

#include "memory.hpp"

namespace tilewright {

namespace nb = nanobind;

// To be called once, when the module is initialised.
void import_numpy();

struct ArrayView {
  void* data;
  int rank;
  const std::int64_t* dims;  // of the array itself
  bool is_writeable;
};

// Reads a numpy array that kernels can use as it is: this dtype in native byte order, row-major,
// aligned to its elements. False for everything else, subclasses such as masked arrays included.
bool view_array(PyObject* value, PyObject* dtype, ArrayView& view);

// The sizes of any numpy array; false when the value is none.
bool view_shape(PyObject* value, ArrayView& view);

// An array over memory that `owner` keeps alive.
nb::object make_array(PyObject* dtype, int rank, const std::int64_t* dims, void* data,
                      nb::object owner, bool writeable);

// An array that owns its block and gives it back to the pool when it is freed.
nb::object make_output(PyObject* dtype, int rank, const std::int64_t* dims, Block block,
                       bool writeable);

// A numpy array over the memory of a DLPack capsule of either kind, which it keeps alive; read-only
// unless `writeable`. `dtypes` maps DLPack's (type code, bits) to numpy dtypes. ValueError for
// others, and for what its owner says is read-only where it is to be written.
nb::object from_dlpack(nb::handle capsule, nb::dict dtypes, bool writeable);

}  // namespace tilewright
