#include "tensors.hpp"

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_2_0_API_VERSION
#include <numpy/arrayobject.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "memory.hpp"

namespace tilewright {
namespace {

// The parts of the DLPack protocol that are read; the layout is that of its stable C interface.
struct DlDevice {
  std::int32_t type;
  std::int32_t id;
};
struct DlType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};
struct DlTensor {
  void* data;
  DlDevice device;
  std::int32_t rank;
  DlType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; null: row-major
  std::uint64_t byte_offset;
};
struct DlManagedTensor {
  DlTensor tensor;
  void* context;
  void (*deleter)(DlManagedTensor*);
};

// The capsule of version 1 and later.
struct DlVersionedTensor {
  struct {
    std::uint32_t major;
    std::uint32_t minor;
  } version;
  void* context;
  void (*deleter)(DlVersionedTensor*);
  std::uint64_t flags;
  DlTensor tensor;
};

constexpr std::uint32_t kKnownMajor = 1;
constexpr std::uint64_t kReadOnlyFlag = 1;

bool same_type(int actual, int expected) {
  if (actual == expected) return true;
  // Equal types under two names, such as long and long long.
  return actual < NPY_NTYPES_LEGACY && expected < NPY_NTYPES_LEGACY &&
         PyArray_EquivTypenums(actual, expected);
}

nb::object new_array(PyObject* dtype, int rank, const npy_intp* dims, const npy_intp* strides,
                     void* data, nb::object owner, int flags) {
  Py_INCREF(dtype);  // the reference that numpy takes over
  PyObject* array =
      PyArray_NewFromDescr(&PyArray_Type, reinterpret_cast<PyArray_Descr*>(dtype), rank, dims,
                           strides, data != nullptr ? data : no_elements, flags, nullptr);
  if (array == nullptr) throw nb::python_error();
  nb::object result = nb::steal(array);
  if (PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(array), owner.release().ptr()) < 0)
    throw nb::python_error();
  return result;
}

int import_array_functions() {
  import_array1(-1);
  return 0;
}

static_assert(sizeof(npy_intp) == sizeof(std::int64_t));

const npy_intp* as_intp(const std::int64_t* values) {
  return reinterpret_cast<const npy_intp*>(values);
}

}  // namespace

void import_numpy() {
  if (import_array_functions() < 0) throw nb::python_error();
}

bool view_array(PyObject* value, PyObject* dtype, ArrayView& view) {
  if (!PyArray_CheckExact(value)) return false;
  auto* const array = reinterpret_cast<PyArrayObject*>(value);
  const int expected = reinterpret_cast<PyArray_Descr*>(dtype)->type_num;
  if (!same_type(PyArray_DESCR(array)->type_num, expected)) return false;
  if (!PyArray_CHKFLAGS(array, NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED)) return false;
  if (!PyArray_ISNOTSWAPPED(array)) return false;
  view.data = PyArray_DATA(array);
  view.is_writeable = PyArray_ISWRITEABLE(array);
  view.rank = PyArray_NDIM(array);
  view.dims = reinterpret_cast<const std::int64_t*>(PyArray_DIMS(array));
  return true;
}

bool view_shape(PyObject* value, ArrayView& view) {
  if (!PyArray_Check(value)) return false;
  auto* const array = reinterpret_cast<PyArrayObject*>(value);
  view.rank = PyArray_NDIM(array);
  view.dims = reinterpret_cast<const std::int64_t*>(PyArray_DIMS(array));
  return true;
}

nb::object make_array(PyObject* dtype, int rank, const std::int64_t* dims, void* data,
                      nb::object owner, bool writeable) {
  const int flags = writeable ? NPY_ARRAY_CARRAY : NPY_ARRAY_CARRAY_RO;
  return new_array(dtype, rank, as_intp(dims), nullptr, data, std::move(owner), flags);
}

nb::object make_output(PyObject* dtype, int rank, const std::int64_t* dims, Block block,
                       bool writeable) {
  auto owned = std::make_unique<Block>(std::move(block));
  void* const data = owned->data();
  nb::capsule owner(owned.get(), [](void* pointer) noexcept {
    const std::unique_ptr<Block> freed(static_cast<Block*>(pointer));
    Memory::shared().give_back(Memory::Purpose::output, std::move(*freed));
  });
  owned.release();
  return make_array(dtype, rank, dims, data, std::move(owner), writeable);
}

namespace {

// Takes a capsule over, which is then used; `owner` calls the deleter.
template <typename Managed>
Managed* take_over(nb::handle capsule, const char* fresh, const char* used, nb::object& owner) {
  auto* const managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule.ptr(), fresh));
  if (managed == nullptr) throw nb::python_error();
  if (PyCapsule_SetName(capsule.ptr(), used) < 0) throw nb::python_error();
  owner = nb::capsule(managed, [](void* pointer) noexcept {
    auto* const freed = static_cast<Managed*>(pointer);
    if (freed->deleter != nullptr) freed->deleter(freed);
  });
  return managed;
}

}  // namespace

nb::object from_dlpack(nb::handle capsule, nb::dict dtypes, bool writeable) {
  nb::object owner;
  const DlTensor* described = nullptr;
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
    const auto* const managed = take_over<DlVersionedTensor>(capsule, "dltensor_versioned",
                                                             "used_dltensor_versioned", owner);
    if (managed->version.major != kKnownMajor)
      throw nb::value_error("its version of DLPack is not known");
    if (writeable && (managed->flags & kReadOnlyFlag) != 0)
      throw nb::value_error("it is read-only");
    described = &managed->tensor;
  } else {
    described = &take_over<DlManagedTensor>(capsule, "dltensor", "used_dltensor", owner)->tensor;
  }
  const DlTensor& tensor = *described;
  const nb::tuple key = nb::make_tuple(tensor.dtype.code, tensor.dtype.bits);
  if (tensor.dtype.lanes != 1 || !dtypes.contains(key))
    throw nb::value_error("its element type is not known");
  const nb::object dtype = dtypes[key];
  std::vector<npy_intp> strides;
  const npy_intp item = tensor.dtype.bits / 8;
  if (tensor.strides != nullptr)
    for (int axis = 0; axis < tensor.rank; ++axis) strides.push_back(tensor.strides[axis] * item);
  char* data = static_cast<char*>(tensor.data);
  if (data != nullptr) {
    data += tensor.byte_offset;
  } else if (std::find(tensor.shape, tensor.shape + tensor.rank, 0) == tensor.shape + tensor.rank) {
    throw nb::value_error("it has no memory");
  }
  // Without strides numpy takes the memory as row-major and sets the flags itself.
  const int layout = tensor.strides != nullptr ? 0 : NPY_ARRAY_CARRAY_RO;
  nb::object array = new_array(dtype.ptr(), tensor.rank, as_intp(tensor.shape),
                               tensor.strides != nullptr ? strides.data() : nullptr, data,
                               std::move(owner), layout | (writeable ? NPY_ARRAY_WRITEABLE : 0));
  PyArray_UpdateFlags(reinterpret_cast<PyArrayObject*>(array.ptr()),
                      NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_F_CONTIGUOUS | NPY_ARRAY_ALIGNED);
  return array;
}

}  // namespace tilewright
