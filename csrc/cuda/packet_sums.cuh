// The reducer of gradients: sums of packets, one row at a time, with the heads laid out as heads.cuh says.
#pragma once

#include "cuda/heads.cuh"

namespace gnnagg {

// A sum of packets, one row at a time, of `kSums` outputs.
template <typename T, int kBytes, int kSums>
struct PacketSums {
  using Vector = Packet<T, kBytes>;
  using Acc = acc_t<T>;
  static constexpr int kSize = Vector::kSize;
  struct Target {
    T* out[kSums];
    Acc* partials[kSums];
  };
  struct State {
    Acc value[kSums][kSize];
  };
  Target target;
  HeadPlace place;
  State state;

  __device__ __forceinline__ PacketSums(const Target& to, const HeadPlace& at) : target(to), place(at) {}
  __device__ __forceinline__ void reset() {
#pragma unroll
    for (int s = 0; s < kSums; ++s) {
#pragma unroll
      for (int i = 0; i < kSize; ++i) state.value[s][i] = Acc(0);
    }
  }
  __device__ __forceinline__ void merge(const State& other) {
#pragma unroll
    for (int s = 0; s < kSums; ++s) {
#pragma unroll
      for (int i = 0; i < kSize; ++i) state.value[s][i] += other.value[s][i];
    }
  }
  __device__ __forceinline__ void store_partial(int64_t slot) const {
    if (!place.active) return;
#pragma unroll
    for (int s = 0; s < kSums; ++s) Span<Acc, kSize>::store(target.partials[s] + place.row(slot), state.value[s]);
  }
  template <typename Index>
  __device__ __forceinline__ void merge_partial(int64_t slot, Index) {
    State other;
#pragma unroll
    for (int s = 0; s < kSums; ++s) Span<Acc, kSize>::load(target.partials[s] + place.row(slot), other.value[s]);
    merge(other);
  }
  template <typename Index>
  __device__ __forceinline__ void store_row(Index row, Index) const {
    if (!place.active) return;
#pragma unroll
    for (int s = 0; s < kSums; ++s) Vector::store(target.out[s] + place.row(row), state.value[s]);
  }
};

}  // namespace gnnagg
