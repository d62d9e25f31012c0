// Who holds the greatest value of a row, feature by feature: what the reducers of max and min share.
#pragma once

#include <type_traits>

#include "common/reduce.h"
#include "cuda/vector.cuh"

namespace gnnagg {

// The greater of two values; NaN if either is.
__device__ __forceinline__ float greater_or_nan(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float greater;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(greater) : "f"(a), "f"(b));
  return greater;
#else
  return beats(a, b) ? a : b;
#endif
}
__device__ __forceinline__ double greater_or_nan(double a, double b) { return beats(a, b) ? a : b; }

// How many more edges than one hold each feature's best value, all duplicates of the edge in `winner`: a byte a feature.
template <int kSize>
struct Repeats {
  using Bytes = typename std::conditional<(kSize > 4), unsigned long long, unsigned>::type;
  static constexpr unsigned kMost = 255;
  Bytes bytes;

  __device__ __forceinline__ unsigned of(int i) const { return unsigned(bytes >> (8 * i)) & kMost; }
  __device__ __forceinline__ void add(int i) { bytes += Bytes(1) << (8 * i); }
  __device__ __forceinline__ void clear(int i) { bytes &= ~(Bytes(kMost) << (8 * i)); }
  __device__ __forceinline__ void set(int i, unsigned count) {
    clear(i);
    bytes |= Bytes(count) << (8 * i);
  }
  __device__ __forceinline__ void store(uint8_t* __restrict__ at) const {
#pragma unroll
    for (int i = 0; i < kSize; ++i) at[i] = uint8_t(of(i));
  }
  __device__ __forceinline__ void load(const uint8_t* at) {
    bytes = 0;
#pragma unroll
    for (int i = 0; i < kSize; ++i) bytes |= Bytes(__ldcg(at + i)) << (8 * i);
  }
};

// One more edge, for a packet of features whose best values and winners are kept. Where every candidate is plainly greater or
// plainly less, which is nearly always, two comparisons and two selects a feature do it. A tie with the edge just before, where
// that came from the same source, is only counted: its source receives the whole gradient either way. (That edge had the same
// value; had another source held it, the winner would be negative by now.)
template <int kSize, typename Acc, typename Index>
__device__ __forceinline__ void update_winners(Acc (&best)[kSize], Index (&winner)[kSize], Repeats<kSize>& repeats,
                                               const Acc (&candidate)[kSize], Index slot, bool same_source) {
  bool plain = true;
#pragma unroll
  for (int i = 0; i < kSize; ++i) plain = plain && (candidate[i] > best[i] || candidate[i] < best[i]);
  if (plain) {
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      const bool wins = candidate[i] > best[i];
      best[i] = wins ? candidate[i] : best[i];
      winner[i] = wins ? slot : winner[i];
      if (repeats.bytes != 0 && wins) repeats.clear(i);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    if (beats(candidate[i], best[i])) {
      best[i] = candidate[i];
      winner[i] = slot;
      repeats.clear(i);
    } else if (ties_with(candidate[i], best[i])) {
      best[i] = greater_or_nan(candidate[i], best[i]);  // of 0 and -0 the former, as without winners
      const unsigned extra = repeats.of(i);
      if (winner[i] >= 0 && same_source && extra < Repeats<kSize>::kMost) {
        repeats.add(i);
      } else {
        winner[i] = winner[i] == kNoWinner ? slot : Index(-(winner_count(winner[i]) + Index(extra) + 1));
        repeats.clear(i);
      }
    }
  }
}

// Merges what later edges of the same row left.
template <int kSize, typename Acc, typename Index>
__device__ __forceinline__ void merge_winners(Acc (&best)[kSize], Index (&winner)[kSize], Repeats<kSize>& repeats,
                                              const Acc (&other_best)[kSize], const Index (&other_winner)[kSize],
                                              const Repeats<kSize>& other_repeats, const Index* __restrict__ col) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    const unsigned mine = repeats.of(i), theirs = other_repeats.of(i);
    if (beats(other_best[i], best[i]) || winner[i] == kNoWinner) {
      best[i] = other_best[i];
      winner[i] = other_winner[i];
      repeats.set(i, theirs);
    } else if (ties_with(other_best[i], best[i]) && other_winner[i] != kNoWinner) {
      best[i] = greater_or_nan(other_best[i], best[i]);
      const bool one_source = winner[i] >= 0 && other_winner[i] >= 0 && mine + theirs < Repeats<kSize>::kMost &&
                              __ldg(col + winner[i]) == __ldg(col + other_winner[i]);
      if (!one_source) {
        winner[i] = -(winner_count(winner[i]) + Index(mine) + winner_count(other_winner[i]) + Index(theirs));
      }
      repeats.set(i, one_source ? mine + theirs + 1 : 0);
    }
  }
}

}  // namespace gnnagg
