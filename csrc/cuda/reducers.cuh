// Reducers: the running values of one packet of features of one row, kept by one lane. The rules are in common/reduce.h.
#pragma once

#include <type_traits>

#include "common/reduce.h"
#include "cuda/vector.cuh"

namespace gnnagg {

// Where a lane writes. Lanes beyond the last feature write nothing.
struct LanePlace {
  int64_t features;       // F
  int64_t offset;         // the lane's first feature
  int64_t first_row;      // of this batch entry in the output
  int64_t first_partial;  // of this batch entry in the partials
  bool active;

  __device__ __forceinline__ int64_t row(int64_t row) const { return (first_row + row) * features + offset; }
  __device__ __forceinline__ int64_t partial(int64_t slot) const { return (first_partial + slot) * features + offset; }
};

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
