// A reducer: the running values of one packet of features of one row, kept by one lane. The rules are in common/reduce.h.
#pragma once

#include "cuda/group.cuh"
#include "cuda/winners.cuh"

namespace gnnagg {

// Sum, mean, variance, max and min at once. Outputs that are null are not written.
template <typename T, int kBytes, typename Index, bool kWinner>
struct MultiReducer {
  using Vector = Packet<T, kBytes>;
  using Acc = acc_t<T>;
  static constexpr int kSize = Vector::kSize;
  static constexpr int kWinners = kWinner ? kSize : 1;
  static constexpr int kFields = 6;

  struct Target {
    T* __restrict__ sum, * __restrict__ mean, * __restrict__ var, * __restrict__ greatest, * __restrict__ least;  // [num_rows, F]
    Index* __restrict__ winner_greatest, * __restrict__ winner_least;  // [num_rows, F] when kWinner
    Acc* __restrict__ partials;                                        // [kFields, B, 2 num_spans, F]
    Index* __restrict__ partial_winners;                               // [2, B, 2 num_spans, F] when kWinner
    uint8_t* __restrict__ partial_repeats;                             // likewise
    int64_t partial_slots;                                             // B * 2 num_spans
    const Index* __restrict__ col;                                     // [num_edges]
  };
  struct State {
    Acc count;
    Acc sum[kSize], greatest[kSize], least[kSize];  // least holds the negated minimum
    Moments<Acc> moments[kSize];
    Index winner_greatest[kWinners], winner_least[kWinners];
    Repeats<kSize> repeats_greatest, repeats_least;
  };

  Target target;
  LanePlace place;
  State state;
  Index last_source;  // of the edge before, in this row

  __device__ __forceinline__ MultiReducer(const Target& to, const LanePlace& at) : target(to), place(at) {}

  __device__ __forceinline__ void reset() {
    state.count = Acc(0);
    last_source = -1;
    state.repeats_greatest.bytes = state.repeats_least.bytes = 0;
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      state.sum[i] = Acc(0);
      state.greatest[i] = state.least[i] = -Acc(INFINITY);
      state.moments[i].reset();
      if constexpr (kWinner) state.winner_greatest[i] = state.winner_least[i] = kNoWinner;
    }
  }
  __device__ __forceinline__ void add(const Acc (&values)[kSize], Index slot, Index source) {
    const bool first = state.count == Acc(0);
    state.count += Acc(1);
    Acc negated[kSize];
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      negated[i] = -values[i];
      state.sum[i] += values[i];
      state.moments[i].update(values[i], first);
    }
    if constexpr (kWinner) {
      update_winners(state.greatest, state.winner_greatest, state.repeats_greatest, values, slot,
                     source == last_source);
      update_winners(state.least, state.winner_least, state.repeats_least, negated, slot, source == last_source);
      last_source = source;
    } else {
      merge_extremes(values, negated);
    }
  }
  __device__ __forceinline__ void merge(const State& other) {
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      state.sum[i] += other.sum[i];
      state.moments[i].merge(state.count, other.moments[i], other.count);
    }
    if constexpr (kWinner) {
      merge_winners(state.greatest, state.winner_greatest, state.repeats_greatest, other.greatest,
                    other.winner_greatest, other.repeats_greatest, target.col);
      merge_winners(state.least, state.winner_least, state.repeats_least, other.least, other.winner_least,
                    other.repeats_least, target.col);
    } else {
      merge_extremes(other.greatest, other.least);
    }
    state.count += other.count;
  }
  __device__ __forceinline__ void store_partial(int64_t slot) const {
    if (!place.active) return;
    Acc shift[kSize], shifted[kSize], square[kSize];
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      shift[i] = state.moments[i].shift;
      shifted[i] = state.moments[i].sum;
      square[i] = state.moments[i].square;
    }
    const Acc(*fields[kFields])[kSize] = {&state.sum, &state.greatest, &state.least, &shift, &shifted, &square};
#pragma unroll
    for (int f = 0; f < kFields; ++f) Span<Acc, kSize>::store(partial(f, slot), *fields[f]);
    if constexpr (kWinner) {
      Span<Index, kSize>::store(partial_winner(0, slot), state.winner_greatest);
      Span<Index, kSize>::store(partial_winner(1, slot), state.winner_least);
      state.repeats_greatest.store(partial_repeats(0, slot));
      state.repeats_least.store(partial_repeats(1, slot));
    }
  }
  __device__ __forceinline__ void merge_partial(int64_t slot, Index edges) {
    if (!place.active) return;
    State other;
    other.count = Acc(edges);
    Acc shift[kSize], shifted[kSize], square[kSize];
    Acc(*fields[kFields])[kSize] = {&other.sum, &other.greatest, &other.least, &shift, &shifted, &square};
#pragma unroll
    for (int f = 0; f < kFields; ++f) Span<Acc, kSize>::load(partial(f, slot), *fields[f]);
#pragma unroll
    for (int i = 0; i < kSize; ++i) other.moments[i] = {shift[i], shifted[i], square[i]};
    if constexpr (kWinner) {
      Span<Index, kSize>::load(partial_winner(0, slot), other.winner_greatest);
      Span<Index, kSize>::load(partial_winner(1, slot), other.winner_least);
      other.repeats_greatest.load(partial_repeats(0, slot));
      other.repeats_least.load(partial_repeats(1, slot));
    }
    merge(other);
  }
  __device__ __forceinline__ void store_row(Index row, Index edges) const {
    if (!place.active) return;
    const Acc count = Acc(edges);
    Acc mean[kSize], var[kSize], greatest[kSize], least[kSize];
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      mean[i] = edges > 0 ? state.sum[i] / count : Acc(0);
      var[i] = state.moments[i].variance(count);
      greatest[i] = edges > 0 ? state.greatest[i] : Acc(0);
      least[i] = edges > 0 ? -state.least[i] : Acc(0);
    }
    const int64_t at = place.row(row);
    if (target.sum) Vector::store(target.sum + at, state.sum);
    if (target.mean) Vector::store(target.mean + at, mean);
    if (target.var) Vector::store(target.var + at, var);
    if (target.greatest) Vector::store(target.greatest + at, greatest);
    if (target.least) Vector::store(target.least + at, least);
    if constexpr (kWinner) {
      if (target.winner_greatest) Span<Index, kSize>::store(target.winner_greatest + at, state.winner_greatest);
      if (target.winner_least) Span<Index, kSize>::store(target.winner_least + at, state.winner_least);
    }
  }

 private:
  __device__ __forceinline__ void merge_extremes(const Acc (&high)[kSize], const Acc (&low)[kSize]) {
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      state.greatest[i] = greater_or_nan(high[i], state.greatest[i]);
      state.least[i] = greater_or_nan(low[i], state.least[i]);
    }
  }
  __device__ __forceinline__ Acc* partial(int field, int64_t slot) const {
    return target.partials + place.partial(field * target.partial_slots + slot);
  }
  __device__ __forceinline__ uint8_t* partial_repeats(int field, int64_t slot) const {
    return target.partial_repeats + place.partial(field * target.partial_slots + slot);
  }
  __device__ __forceinline__ Index* partial_winner(int field, int64_t slot) const {
    return target.partial_winners + place.partial(field * target.partial_slots + slot);
  }
};

}  // namespace gnnagg
