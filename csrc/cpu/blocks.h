// How a row of F features is cut into blocks of vectors whose accumulators fit in registers. Included per level.
#pragma once

#include <cstdint>

#include "cpu/simd_lanes.h"

namespace gnnagg::cpu::GNNAGG_LEVEL {

// How many slots ahead a source row is requested. About the latency of a shared cache over the time of one row.
constexpr int64_t kPrefetchSlots = 16;
constexpr int64_t kCacheLine = 64;

// Greatest size of blocks of kernels whose loop over slots is compiled for either width of indices: small ones for
// int64_t, which few graphs need, because they are less code. What that costs wide rows there was not timed.
template <typename Index, int kMost>
constexpr int kMostOf = sizeof(Index) == sizeof(int32_t) || kMost < 2 ? kMost : 2;

// Calls block(std::integral_constant-like size, first feature, features in its last vector) for every block of a row.
// Sizes are powers of two up to kMost, largest first.
template <int kVectors>
struct BlockSize {
  static constexpr int value = kVectors;
};

template <typename T, int kMost, typename Block>
GNNAGG_INLINE void for_each_block(int64_t width, const Block& block) {
  int64_t feature = 0;
  while (feature < width) {
    const int64_t left = width - feature;
    const int64_t vectors = (left + kWidth<T> - 1) / kWidth<T>;
    const auto last = [&](int64_t size) {
      const int64_t in_last = left - (size - 1) * kWidth<T>;
      return int(in_last < kWidth<T> ? in_last : kWidth<T>);
    };
    if (kMost >= 8 && vectors >= 8) {
      block(BlockSize<kMost >= 8 ? 8 : 1>{}, feature, last(8));
      feature += 8 * kWidth<T>;
    } else if (kMost >= 4 && vectors >= 4) {
      block(BlockSize<kMost >= 4 ? 4 : 1>{}, feature, last(4));
      feature += 4 * kWidth<T>;
    } else if (kMost >= 2 && vectors >= 2) {
      block(BlockSize<kMost >= 2 ? 2 : 1>{}, feature, last(2));
      feature += 2 * kWidth<T>;
    } else {
      block(BlockSize<1>{}, feature, last(1));
      feature += kWidth<T>;
    }
  }
}

// Requests the cache lines of kBytes at `from`.
template <int64_t kBytes>
GNNAGG_INLINE void prefetch(const void* from) {
#pragma GCC unroll 32
  for (int64_t at = 0; at < kBytes; at += kCacheLine) __builtin_prefetch(static_cast<const char*>(from) + at);
}

// Features [0, kVectors * kWidth<T>) of one row, the last vector as `tail` says.
template <int kVectors, typename T>
GNNAGG_INLINE void load_block(const T* row, const Tail<T>& tail, Vector<Accumulate<T>> (&value)[kVectors]) {
#pragma GCC unroll 8
  for (int v = 0; v + 1 < kVectors; ++v) value[v] = load(row + v * kWidth<T>);
  value[kVectors - 1] = load_tail(row + (kVectors - 1) * kWidth<T>, tail);
}

// Narrowed to To; the last vector holds `in_last` features.
template <int kVectors, typename To, typename Acc>
GNNAGG_INLINE void store_block(To* to, int in_last, const Vector<Acc> (&sum)[kVectors]) {
#pragma GCC unroll 8
  for (int v = 0; v + 1 < kVectors; ++v) store(to + v * kWidth<To>, sum[v]);
  store_count(to + (kVectors - 1) * kWidth<To>, sum[kVectors - 1], in_last);
}

}  // namespace gnnagg::cpu::GNNAGG_LEVEL
