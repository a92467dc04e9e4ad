#include "cpu.hpp"

#include <cpuid.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include "team.hpp"

namespace tilewright {
namespace {

// Whether a bit of the third register of a CPUID leaf is set.
bool cpuid_bit(unsigned leaf, unsigned bit) {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(leaf, &a, &b, &c, &d) && (c & bit) != 0;
}

int affinity_count() {
  const int available = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  cpu_set_t set;
  // Fails on machines with more processors than a cpu_set_t holds.
  if (sched_getaffinity(0, sizeof set, &set) != 0) return available;
  return std::max(1, CPU_COUNT(&set));
}

// The quota of one directory of the control-group tree in processors, 0 when there is none.
double directory_quota(const std::string& directory) {
  std::string quota_text;
  double period = 0;
  if (std::ifstream file(directory + "/cpu.max"); file >> quota_text >> period) {
    if (quota_text == "max" || period <= 0) return 0;
    return std::atof(quota_text.c_str()) / period;
  }
  double quota = 0;
  std::ifstream quota_file(directory + "/cpu.cfs_quota_us");
  std::ifstream period_file(directory + "/cpu.cfs_period_us");
  if (quota_file >> quota && period_file >> period && quota > 0 && period > 0)
    return quota / period;
  return 0;
}

// The least quota from this process's group up to the root, for versions 1 and 2; 0: no limit.
double group_quota() {
  double least = 0;
  const auto consider = [&least](const std::string& mount, std::string path) {
    for (;;) {
      const double quota = directory_quota(mount + (path == "/" ? "" : path));
      if (quota > 0) least = least > 0 ? std::min(least, quota) : quota;
      const std::size_t slash = path.rfind('/');
      if (path.empty() || slash == std::string::npos) break;
      path = path.substr(0, slash);
    }
  };
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) consider("/sys/fs/cgroup", path);
    std::stringstream list(controllers);
    for (std::string controller; std::getline(list, controller, ',');)
      if (controller == "cpu") consider("/sys/fs/cgroup/cpu", path);
  }
  return least;
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
  return features;
}

std::string cpu_level() {
  const std::vector<std::string> features = cpu_features();
  const auto all = [&features](std::initializer_list<const char*> names) {
    return std::all_of(names.begin(), names.end(), [&features](const char* name) {
      return std::find(features.begin(), features.end(), name) != features.end();
    });
  };
  if (!all({"avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe", "popcnt"})) return "x86-64";
  if (!all({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"})) return "avx2";
  return "avx512";
}

int default_threads() {
  if (const char* text = std::getenv("TILEWRIGHT_NUM_THREADS")) {
    const int wanted = std::atoi(text);
    if (wanted > 0) return std::min(wanted, kMaximumThreads);
  }
  int threads = affinity_count();
  const double quota = group_quota();
  // A part of a processor still lets one more thread make progress.
  if (quota > 0) threads = std::min(threads, std::max(1, static_cast<int>(std::ceil(quota))));
  return std::clamp(threads, 1, kMaximumThreads);
}

}  // namespace tilewright
