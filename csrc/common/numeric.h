// Macros and small integer helpers shared by host and device code. No torch header, no CUDA header.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define GNNAGG_HOST_DEVICE __host__ __device__ __forceinline__
#else
// Always inlined: the CPU library compiles these for several instruction sets, and an outlined copy would be shared.
#define GNNAGG_HOST_DEVICE inline __attribute__((always_inline))
#endif

namespace gnnagg {

template <typename Integer>
GNNAGG_HOST_DEVICE constexpr Integer ceil_div(Integer value, Integer divisor) {
  return (value + divisor - 1) / divisor;
}

// Smallest power of two that is >= value (value >= 1).
GNNAGG_HOST_DEVICE constexpr int64_t next_power_of_two(int64_t value) {
  int64_t power = 1;
  while (power < value) power *= 2;
  return power;
}

}  // namespace gnnagg
