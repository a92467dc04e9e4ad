#include "image.hpp"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "failure.hpp"

namespace tilewright {
namespace {

// All that code may refer to outside its image. Sorted, for binary search.
constexpr std::string_view kExternals[] = {
    "acos",      "acosf",      "acosh",     "acoshf",     "asin",       "asinf",     "asinh",
    "asinhf",    "atan",       "atan2",     "atan2f",     "atanf",      "atanh",     "atanhf",
    "cbrt",      "cbrtf",      "ceil",      "ceilf",      "copysign",   "copysignf", "cos",
    "cosf",      "cosh",       "coshf",     "erf",        "erfc",       "erfcf",     "erff",
    "exp",       "exp10",      "exp10f",    "exp2",       "exp2f",      "expf",      "expm1",
    "expm1f",    "fabs",       "fabsf",     "fdim",       "fdimf",      "floor",     "floorf",
    "fma",       "fmaf",       "fmax",      "fmaxf",      "fmin",       "fminf",     "fmod",
    "fmodf",     "frexp",      "frexpf",    "hypot",      "hypotf",     "ldexp",     "ldexpf",
    "lgamma",    "lgammaf",    "log",       "log10",      "log10f",     "log1p",     "log1pf",
    "log2",      "log2f",      "logb",      "logbf",      "logf",       "memcpy",    "memmove",
    "memset",    "modf",       "modff",     "nearbyint",  "nearbyintf", "nextafter", "nextafterf",
    "pow",       "powf",       "remainder", "remainderf", "rint",       "rintf",     "round",
    "roundeven", "roundevenf", "roundf",    "scalbn",     "scalbnf",    "sin",       "sincos",
    "sincosf",   "sinf",       "sinh",      "sinhf",      "sqrt",       "sqrtf",     "tan",
    "tanf",      "tanh",       "tanhf",     "tgamma",     "tgammaf",    "trunc",     "truncf"};
static_assert(std::is_sorted(std::begin(kExternals), std::end(kExternals)));

std::uint64_t external_address(const std::string& name) {
  void* address = nullptr;
  if (std::binary_search(std::begin(kExternals), std::end(kExternals), std::string_view(name)))
    address = dlsym(RTLD_DEFAULT, name.c_str());
  if (address == nullptr)
    throw Failure(FailureKind::artifact,
                  "The code needs the function '" + name + "', which the runtime does not offer.");
  return reinterpret_cast<std::uint64_t>(address);
}

std::size_t round_to_pages(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return std::max<std::size_t>(1, (bytes + page - 1) / page) * page;
}

[[noreturn]] void refuse(const char* what) {
  throw Failure(FailureKind::resource,
                std::string("The system refuses to ") + what + ": " + std::strerror(errno) + ".");
}

}  // namespace

Image::Image(std::string_view data, std::unordered_map<std::string, std::int64_t> functions,
             const std::vector<Fixup>& fixups)
    : functions_(std::move(functions)) {
  for (const auto& [name, offset] : functions_)
    if (offset < 0 || static_cast<std::uint64_t>(offset) >= data.size())
      throw Failure(FailureKind::artifact, "A function lies outside the code image.", name);
  mapped_bytes_ = round_to_pages(data.size());
  void* mapping =
      mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) refuse("map memory for code");
  base_ = static_cast<char*>(mapping);
  try {
    std::memcpy(base_, data.data(), data.size());
    for (const Fixup& fixup : fixups) apply(fixup, data.size());
    if (mprotect(base_, mapped_bytes_, PROT_READ | PROT_EXEC) != 0) refuse("make code executable");
  } catch (...) {
    munmap(base_, mapped_bytes_);
    throw;
  }
}

Image::~Image() { munmap(base_, mapped_bytes_); }

void Image::apply(const Fixup& fixup, std::size_t size) {
  if (fixup.offset < 0 || size < 8 || static_cast<std::uint64_t>(fixup.offset) > size - 8)
    throw Failure(FailureKind::artifact, "A fix-up lies outside the code image.", fixup.symbol);
  const std::uint64_t target = fixup.symbol.empty() ? reinterpret_cast<std::uint64_t>(base_)
                                                    : external_address(fixup.symbol);
  const std::uint64_t value = target + static_cast<std::uint64_t>(fixup.addend);
  std::memcpy(base_ + fixup.offset, &value, sizeof value);
}

void* Image::address(const std::string& name) const {
  const auto found = functions_.find(name);
  if (found == functions_.end())
    throw Failure(FailureKind::artifact, "The code image has no function '" + name + "'.");
  return base_ + found->second;
}

KernelFunction Image::function(const std::string& name) const {
  return reinterpret_cast<KernelFunction>(address(name));
}

ChoiceFunction Image::choice(const std::string& name) const {
  return reinterpret_cast<ChoiceFunction>(address(name));
}

}  // namespace tilewright
