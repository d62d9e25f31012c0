// A reducer: the running values of one packet of features of one row, kept by one lane. The rules are in common/reduce.h.
#pragma once

#include "cuda/group.cuh"
#include "cuda/winners.cuh"

namespace gnnagg {

// Max, or min as the max of the negated values. kWinner also keeps who won (common/reduce.h, kNoWinner).
template <typename T, int kBytes, typename Index, bool kWinner>
struct ExtremumReducer {
  using Vector = Packet<T, kBytes>;
  using Acc = acc_t<T>;
  static constexpr int kSize = Vector::kSize;
  static constexpr int kWinners = kWinner ? kSize : 1;

  struct Target {
    T* __restrict__ out;                    // [num_rows, F]
    Index* __restrict__ winner;             // [num_rows, F] when kWinner
    Acc* __restrict__ partials;             // [2 num_spans, F]
    Index* __restrict__ partial_winners;    // [2 num_spans, F] when kWinner
    uint8_t* __restrict__ partial_repeats;  // likewise
    const Index* __restrict__ col;          // [num_edges]
    Acc sign;                               // 1, or -1 for min
  };
  struct State {
    Acc value[kSize];
    Index winner[kWinners];
    Repeats<kSize> repeats;
  };

  Target target;
  LanePlace place;
  State state;
  Index last_source;  // of the edge before, in this row

  __device__ __forceinline__ ExtremumReducer(const Target& to, const LanePlace& at) : target(to), place(at) {}

  __device__ __forceinline__ void reset() {
    last_source = -1;
    state.repeats.bytes = 0;
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      state.value[i] = -Acc(INFINITY);
      if constexpr (kWinner) state.winner[i] = kNoWinner;
    }
  }
  __device__ __forceinline__ void add(const Acc (&values)[kSize], Index slot, Index source) {
    Acc candidate[kSize];
#pragma unroll
    for (int i = 0; i < kSize; ++i) candidate[i] = target.sign * values[i];
    if constexpr (kWinner) {
      update_winners(state.value, state.winner, state.repeats, candidate, slot, source == last_source);
      last_source = source;
    } else {
#pragma unroll
      for (int i = 0; i < kSize; ++i) state.value[i] = greater_or_nan(candidate[i], state.value[i]);
    }
  }
  __device__ __forceinline__ void merge(const State& other) {
    if constexpr (kWinner) {
      merge_winners(state.value, state.winner, state.repeats, other.value, other.winner, other.repeats, target.col);
    } else {
#pragma unroll
      for (int i = 0; i < kSize; ++i) state.value[i] = greater_or_nan(other.value[i], state.value[i]);
    }
  }
  __device__ __forceinline__ void store_partial(int64_t slot) const {
    if (!place.active) return;
    Span<Acc, kSize>::store(target.partials + place.partial(slot), state.value);
    if constexpr (kWinner) {
      Span<Index, kSize>::store(target.partial_winners + place.partial(slot), state.winner);
      state.repeats.store(target.partial_repeats + place.partial(slot));
    }
  }
  __device__ __forceinline__ void merge_partial(int64_t slot, Index) {
    if (!place.active) return;
    State other;
    Span<Acc, kSize>::load(target.partials + place.partial(slot), other.value);
    if constexpr (kWinner) {
      Span<Index, kSize>::load(target.partial_winners + place.partial(slot), other.winner);
      other.repeats.load(target.partial_repeats + place.partial(slot));
    }
    merge(other);
  }
  __device__ __forceinline__ void store_row(Index row, Index edges) const {
    if (!place.active) return;
    Acc values[kSize];
#pragma unroll
    for (int i = 0; i < kSize; ++i) values[i] = edges > 0 ? target.sign * state.value[i] : Acc(0);
    Vector::store(target.out + place.row(row), values);
    if constexpr (kWinner) Span<Index, kSize>::store(target.winner + place.row(row), state.winner);
  }
};

}  // namespace gnnagg
