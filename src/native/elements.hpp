// The elements of tensors as C++ knows them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace tilewright {

// clang-format off
enum class ElementType {
  boolean, int8, int16, int32, int64, uint8, uint16, uint32, uint64,
  float16, bfloat16, float32, float64
};
// clang-format on

// Of the name that numpy gives it. Throws Failure(artifact) for one that no kernel works on.
ElementType element_type(const std::string& name);
const char* name_of(ElementType type);
std::int64_t bytes_of(ElementType type);

// Floats that are compared and copied, but not computed with.
template <std::uint16_t infinity>
struct ShortFloat {
  std::uint16_t bits;
  static constexpr std::uint16_t kMagnitude = 0x7fff;
  bool is_number() const { return (bits & kMagnitude) <= infinity; }
  bool is_zero() const { return (bits & kMagnitude) == 0; }
};
using Float16 = ShortFloat<0x7c00>;
using BFloat16 = ShortFloat<0x7f80>;

// Calls function.operator()<T>() for the C++ type of the elements.
template <typename Function>
void with_type(ElementType type, Function&& function) {
  switch (type) {
    case ElementType::boolean:
    case ElementType::uint8:
      return function.template operator()<std::uint8_t>();
    case ElementType::int8:
      return function.template operator()<std::int8_t>();
    case ElementType::int16:
      return function.template operator()<std::int16_t>();
    case ElementType::int32:
      return function.template operator()<std::int32_t>();
    case ElementType::int64:
      return function.template operator()<std::int64_t>();
    case ElementType::uint16:
      return function.template operator()<std::uint16_t>();
    case ElementType::uint32:
      return function.template operator()<std::uint32_t>();
    case ElementType::uint64:
      return function.template operator()<std::uint64_t>();
    case ElementType::float16:
      return function.template operator()<Float16>();
    case ElementType::bfloat16:
      return function.template operator()<BFloat16>();
    case ElementType::float32:
      return function.template operator()<float>();
    case ElementType::float64:
      return function.template operator()<double>();
  }
}

template <typename T>
bool is_zero(T value) {
  if constexpr (requires { value.is_zero(); }) {
    return value.is_zero();
  } else {
    return value == T{0};
  }
}

}  // namespace tilewright
