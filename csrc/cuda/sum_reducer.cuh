// A reducer: the running values of one packet of features of one row, kept by one lane. The rules are in common/reduce.h.
#pragma once

#include "cuda/group.cuh"
#include "cuda/vector.cuh"

namespace gnnagg {

// Sum and mean. out[row] = scale[row] * sum, divided by the number of edges for a mean.
template <typename T, int kBytes>
struct SumReducer {
  using Vector = Packet<T, kBytes>;
  using Acc = acc_t<T>;
  static constexpr int kSize = Vector::kSize;

  struct Target {
    T* __restrict__ out;                // [num_rows, F], or null
    Acc* __restrict__ acc_out;          // the same in the accumulate type, or null
    Acc* __restrict__ partials;         // [2 num_spans, F]
    const Acc* __restrict__ row_scale;  // [num_rows] or null
    bool mean;
  };
  struct State {
    Acc value[kSize];
  };

  Target target;
  LanePlace place;
  State state;

  __device__ __forceinline__ SumReducer(const Target& to, const LanePlace& at) : target(to), place(at) {}

  __device__ __forceinline__ void reset() {
#pragma unroll
    for (int i = 0; i < kSize; ++i) state.value[i] = Acc(0);
  }
  template <typename Index>
  __device__ __forceinline__ void add(const Acc (&values)[kSize], Index, Index) {
#pragma unroll
    for (int i = 0; i < kSize; ++i) state.value[i] += values[i];
  }
  __device__ __forceinline__ void merge(const State& other) {
#pragma unroll
    for (int i = 0; i < kSize; ++i) state.value[i] += other.value[i];
  }
  __device__ __forceinline__ void store_partial(int64_t slot) const {
    if (place.active) Span<Acc, kSize>::store(target.partials + place.partial(slot), state.value);
  }
  template <typename Index>
  __device__ __forceinline__ void merge_partial(int64_t slot, Index) {
    State other;
    if (place.active) {
      Span<Acc, kSize>::load(target.partials + place.partial(slot), other.value);
      merge(other);
    }
  }
  template <typename Index>
  __device__ __forceinline__ void store_row(Index row, Index edges) const {
    if (!place.active) return;
    Acc values[kSize];
#pragma unroll
    for (int i = 0; i < kSize; ++i) values[i] = state.value[i];
    if (target.mean && edges > 1) {
#pragma unroll
      for (int i = 0; i < kSize; ++i) values[i] /= Acc(edges);
    }
    if (target.row_scale) {
      const Acc scale = __ldg(target.row_scale + row);
#pragma unroll
      for (int i = 0; i < kSize; ++i) values[i] *= scale;
    }
    if (target.acc_out) {
      Span<Acc, kSize>::store(target.acc_out + place.row(row), values);
    } else {
      Vector::store(target.out + place.row(row), values);
    }
  }
};

}  // namespace gnnagg
