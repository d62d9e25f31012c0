// Chooses the instruction set of the kernels: once, by what the processor reports.
#include <atomic>

#include "cpu/kernels.h"

namespace gnnagg::cpu {
namespace {

Level highest_level() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (avx2 && avx512) return kAvx512;
  if (avx2) return kAvx2;
#endif
  return kBaseline;
}

const Level kHighestLevel = highest_level();
std::atomic<int> current_level{kHighestLevel};

}  // namespace

const Kernels& kernels() {
#if defined(__x86_64__)
  const int level = current_level.load(std::memory_order_relaxed);
  if (level == kAvx512) return kKernelsAvx512;
  if (level == kAvx2) return kKernelsAvx2;
#endif
  return kKernelsBaseline;
}

}  // namespace gnnagg::cpu

// For tests, through ctypes: uses `level` (0 baseline, 1 AVX2, 2 AVX-512) where the machine has it; a negative level
// returns to the highest. Returns the level in use.
extern "C" __attribute__((visibility("default"))) int gnnagg_cpu_level(int level) {
  using namespace gnnagg::cpu;
  const int wanted = level < 0 || level > kHighestLevel ? int(kHighestLevel) : level;
  current_level.store(wanted, std::memory_order_relaxed);
  return wanted;
}
