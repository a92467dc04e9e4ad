#include "cpu.hpp"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tilewright {
namespace {

// Whether a bit of the third register of a CPUID leaf is set.
bool cpuid_bit(unsigned leaf, unsigned bit) {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(leaf, &a, &b, &c, &d) && (c & bit) != 0;
}

// Whether a bit of the fourth register of the CPUID leaf of structured features is set.
bool extended_bit(unsigned bit) {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & (1U << bit)) != 0;
}

// Whether Linux lets this process use tile registers, which it must be asked for once: their 8 KiB
// are saved with every thread that has used them (Documentation/arch/x86/xstate.rst).
bool may_use_tiles() {
  constexpr long request_permission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long tile_data = 18;               // XFEATURE_XTILEDATA
  static const bool granted = syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
  return granted;
}

}  // namespace

std::vector<std::string> cpu_features() {
  __builtin_cpu_init();
  std::vector<std::string> features;
  if (__builtin_cpu_supports("avx")) features.emplace_back("avx");
  if (__builtin_cpu_supports("avx2")) features.emplace_back("avx2");
  if (__builtin_cpu_supports("fma")) features.emplace_back("fma");
  // F16C values live in AVX registers, which the system has to save, too.
  if (cpuid_bit(1, bit_F16C) && __builtin_cpu_supports("avx")) features.emplace_back("f16c");
  if (cpuid_bit(1, bit_MOVBE)) features.emplace_back("movbe");
  if (cpuid_bit(1, bit_XSAVE)) features.emplace_back("xsave");
  if (cpuid_bit(0x80000001, bit_ABM)) features.emplace_back("lzcnt");
  if (__builtin_cpu_supports("bmi")) features.emplace_back("bmi");
  if (__builtin_cpu_supports("bmi2")) features.emplace_back("bmi2");
  if (__builtin_cpu_supports("popcnt")) features.emplace_back("popcnt");
  if (__builtin_cpu_supports("avx512f")) features.emplace_back("avx512f");
  if (__builtin_cpu_supports("avx512bw")) features.emplace_back("avx512bw");
  if (__builtin_cpu_supports("avx512dq")) features.emplace_back("avx512dq");
  if (__builtin_cpu_supports("avx512vl")) features.emplace_back("avx512vl");
  if (__builtin_cpu_supports("avx512cd")) features.emplace_back("avx512cd");
  if (__builtin_cpu_supports("avx512vnni")) features.emplace_back("avx512vnni");
  if (__builtin_cpu_supports("avx512bf16")) features.emplace_back("avx512bf16");
  if (extended_bit(24) && may_use_tiles()) {
    features.emplace_back("amx-tile");
    if (extended_bit(25)) features.emplace_back("amx-int8");
    if (extended_bit(22)) features.emplace_back("amx-bf16");
  }
  return features;
}

}  // namespace tilewright
