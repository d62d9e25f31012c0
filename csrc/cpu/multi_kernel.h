// Several reductions of one piece of a row in one pass, on the CPU. Included once per level (GNNAGG_LEVEL).
//
// What: for every feature the sum, the moments of reduce.h (shift = first value, sums of distance and of squared
// distance), the greatest and the least value and who holds them, of the slots [begin, end) of one row.
// How: as aggregate_kernel.h, with blocks of at most two vectors, for each carries up to ten accumulators.
// Traffic: F * s bytes per slot once, however many reductions are wanted.
// Determinism: slot order; the caller merges pieces in span order.
#pragma once

#include <type_traits>

#include "cpu/extremum_kernel.h"

namespace gnnagg::cpu::GNNAGG_LEVEL {

constexpr int kMostMultiVectors = kVectorBytes == 64 ? 4 : 2;  // as many as the registers hold

// The extremes of `count` features one by one: any values, any number of slots.
template <typename T>
__attribute__((noinline)) void extremes_one_by_one(const T* x, int64_t width, const IndexArray& col, int64_t begin,
                                                   int64_t end, int64_t first, int64_t count,
                                                   const MultiFields& fields) {
  using Acc = Accumulate<T>;
  for (int64_t f = first; f < first + count; ++f) {
    Acc greatest = widen(x[col[begin] * width + f]), negated = -greatest;
    int64_t arg_max = begin, arg_min = begin;
    for (int64_t slot = begin + 1; slot < end; ++slot) {
      const Acc value = widen(x[col[slot] * width + f]);
      merge_winner<Acc>(greatest, arg_max, value, slot);
      merge_winner<Acc>(negated, arg_min, -value, slot);
    }
    static_cast<Acc*>(fields.max)[f] = greatest;
    static_cast<Acc*>(fields.min)[f] = -negated;
    if (!fields.arg_max) continue;
    fields.arg_max.set(f, arg_max);
    fields.arg_min.set(f, arg_min);
  }
}

template <typename T, bool kMoments, bool kExtremes, bool kWithArg, typename Index>
void multi_piece_of(const void* x_void, int64_t num_src, int64_t width, const Index* col, int64_t live_edges,
                    int64_t begin, int64_t end, const MultiFields& fields) {
  using Acc = Accumulate<T>;
  const T* x_all = static_cast<const T*>(x_void);
  const T* x_end = x_all + num_src * width;
  const auto acc = [](void* field) { return static_cast<Acc*>(field); };
  for_each_block<T, kMostOf<Index, kMostMultiVectors>>(width, [&](auto size, int64_t first, int in_last) {
    constexpr int kVectors = size.value;
    const Tail<T> tail(in_last, x_end);
    const T* x = x_all + first;
    Vector<Acc> value[kVectors], sum[kVectors], shift[kVectors], moment1[kVectors], moment2[kVectors];
    Vector<Acc> greatest[kVectors], negated[kVectors];  // negated: the greatest of the negated values
    Lanes<Acc> arg_max[kVectors], arg_min[kVectors];
    NanWatch<Acc> watch;
    const Lanes<Acc> sign = sign_if<Acc>(true);
    load_block(x + int64_t(col[begin]) * width, tail, value);
    watch.see_all(value);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      sum[v] = Vector<Acc>{} + value[v];  // as a sum that began at 0: a lone -0 gives 0
      shift[v] = value[v];
      moment1[v] = moment2[v] = value[v] - value[v];
      greatest[v] = value[v];
      negated[v] = flip_sign<Acc>(value[v], sign);
      arg_max[v] = arg_min[v] = Lanes<Acc>{};
    }
    for (int64_t slot = begin + 1; slot < end; ++slot) {
      const int64_t ahead = slot + kPrefetchSlots < live_edges ? slot + kPrefetchSlots : live_edges - 1;
      prefetch<kVectors * kWidth<T> * int64_t(sizeof(T))>(x + int64_t(col[ahead]) * width);
      load_block(x + int64_t(col[slot]) * width, tail, value);
      if constexpr (kExtremes) watch.see_all(value);
      const Lanes<Acc> here = Lanes<Acc>{} + LaneInt<Acc>(slot - begin);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        sum[v] += value[v];
        if constexpr (kMoments) {
          const Vector<Acc> distance = value[v] - shift[v];
          moment1[v] += distance;
          moment2[v] += product(distance, distance);
        }
        if constexpr (kExtremes) {
          const Vector<Acc> opposite = flip_sign<Acc>(value[v], sign);
          if constexpr (kWithArg) {
            update_winner<Acc>(value[v], here, greatest[v], arg_max[v]);
            update_winner<Acc>(opposite, here, negated[v], arg_min[v]);
          } else {
            greatest[v] = greater(greatest[v], value[v]);
            negated[v] = greater(negated[v], opposite);
          }
        }
      }
    }
    store_block<kVectors, Acc, Acc>(acc(fields.sum) + first, in_last, sum);
    if constexpr (kMoments) {
      store_block<kVectors, Acc, Acc>(acc(fields.shift) + first, in_last, shift);
      store_block<kVectors, Acc, Acc>(acc(fields.moment1) + first, in_last, moment1);
      store_block<kVectors, Acc, Acc>(acc(fields.moment2) + first, in_last, moment2);
    }
    if constexpr (kExtremes) {
      if (watch.any() || end - begin > kMostCountedSlots) {
        extremes_one_by_one<T>(x_all, width, IndexArray{col, sizeof(Index) == sizeof(int64_t)}, begin, end, first,
                               (kVectors - 1) * kWidth<T> + in_last, fields);
        return;
      }
      if constexpr (kWithArg) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          const int count = v + 1 < kVectors ? kWidth<T> : in_last;
          store_winners<Acc>(fields.arg_max.from(first + v * kWidth<T>), arg_max[v], begin, count);
          store_winners<Acc>(fields.arg_min.from(first + v * kWidth<T>), arg_min[v], begin, count);
        }
      }
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) negated[v] = flip_sign<Acc>(negated[v], sign);
      store_block<kVectors, Acc, Acc>(acc(fields.max) + first, in_last, greatest);
      store_block<kVectors, Acc, Acc>(acc(fields.min) + first, in_last, negated);
    }
  });
}

template <typename T>
void multi_piece(const void* x, int64_t num_src, int64_t width, const IndexArray& col, int64_t live_edges,
                 int64_t begin, int64_t end, const MultiFields& fields) {
  const bool moments = fields.shift != nullptr, extremes = fields.max != nullptr, with_arg = bool(fields.arg_max);
  col.with_type([&](const auto* elements) {
    using Index = std::remove_cvref_t<decltype(*elements)>;
    const auto run = [&](auto piece) { piece(x, num_src, width, elements, live_edges, begin, end, fields); };
    if (!extremes) {
      run(moments ? multi_piece_of<T, true, false, false, Index> : multi_piece_of<T, false, false, false, Index>);
    } else if (!with_arg) {
      run(moments ? multi_piece_of<T, true, true, false, Index> : multi_piece_of<T, false, true, false, Index>);
    } else {
      run(moments ? multi_piece_of<T, true, true, true, Index> : multi_piece_of<T, false, true, true, Index>);
    }
  });
}

}  // namespace gnnagg::cpu::GNNAGG_LEVEL
