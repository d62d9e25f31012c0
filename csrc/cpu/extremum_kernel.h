// Max and min of rows, who won, and their gradient, on the CPU. Included once per level (GNNAGG_LEVEL).
//
// What: out[i, f] = max over slots s of row i of x[col[s], f], by the rules of reduce.h; min is the max of the negated
// values. arg[i, f] = who won.
// How: as the sum (aggregate_kernel.h). The usual path only watches for NaN; a block of a row that met one is done
// again by a slower one. With arg, a vector of winners runs beside the values: slots counted from the piece's begin, or
// minus the number of ties.
// Traffic: as the sum, plus the winners, 4 or 8 bytes per feature of a row.
// Determinism: pieces of a split row merge in span order.
#pragma once

#include "common/reduce.h"
#include "cpu/blocks.h"
#include "cpu/kernels.h"
#include "cpu/span_walk.h"

namespace gnnagg::cpu::GNNAGG_LEVEL {

constexpr int kMostValueVectors = 8;
constexpr int kMostWinnerVectors = 4;
// Winners are counted in 32 bits beside float values; a row with more slots than this goes feature by feature.
constexpr int64_t kMostCountedSlots = int64_t(1) << 30;

template <typename T>
struct ExtremumTask {
  using Acc = Accumulate<T>;
  SpanView view;
  int64_t width, last_slot;
  bool minimum;
  Lanes<Acc> sign;

  explicit ExtremumTask(const ExtremumArgs& args)
      : view(args.csr),
        width(args.width),
        last_slot(view.live_edges() - 1),
        minimum(args.minimum),
        sign(sign_if<Acc>(args.minimum)) {}

  GNNAGG_INLINE Acc value(const T* x, int64_t slot, int64_t feature) const {
    const Acc wide = widen(x[view.col[slot] * width + feature]);
    return minimum ? -wide : wide;
  }
};

// The signed features of one block of source col[slot], and a request for those of a later slot.
template <int kVectors, typename T, typename Index>
GNNAGG_INLINE void load_slot(const ExtremumTask<T>& task, const Index* col, const T* x, int64_t slot,
                             const Tail<T>& tail, Vector<Accumulate<T>> (&value)[kVectors]) {
  const int64_t ahead = slot + kPrefetchSlots < task.last_slot ? slot + kPrefetchSlots : task.last_slot;
  prefetch<kVectors * kWidth<T> * int64_t(sizeof(T))>(x + int64_t(col[ahead]) * task.width);
  load_block(x + int64_t(col[slot]) * task.width, tail, value);
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) value[v] = flip_sign<Accumulate<T>>(value[v], task.sign);
}

// Greatest value of the slots [begin, end), begin < end, for a block of features. Returns whether a NaN was met; unless
// kKeepsNan, nothing here is valid then.
template <int kVectors, bool kKeepsNan, typename T, typename Index>
GNNAGG_INLINE bool greatest_of(const ExtremumTask<T>& task, const Index* col, const T* x, int64_t begin, int64_t end,
                               const Tail<T>& tail, Vector<Accumulate<T>> (&best)[kVectors]) {
  NanWatch<Accumulate<T>> watch;
  load_slot(task, col, x, begin, tail, best);
  watch.see_all(best);
  for (int64_t slot = begin + 1; slot < end; ++slot) {
    Vector<Accumulate<T>> value[kVectors];
    load_slot(task, col, x, slot, tail, value);
    if constexpr (!kKeepsNan) watch.see_all(value);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const Vector<Accumulate<T>> next = greater(best[v], value[v]);
      best[v] = kKeepsNan ? (value[v] != value[v] ? value[v] : next) : next;  // nothing is greater than a NaN: it stays
    }
  }
  return watch.any();
}

// The greatest values and their winners: slots from `begin`, or minus the number of ties. Returns whether a NaN was met
// (then nothing here is valid). At most kMostCountedSlots slots.
template <int kVectors, typename T, typename Index>
GNNAGG_INLINE bool winners_of(const ExtremumTask<T>& task, const Index* col, const T* x, int64_t begin, int64_t end,
                              const Tail<T>& tail, Vector<Accumulate<T>> (&best)[kVectors],
                              Lanes<Accumulate<T>> (&winner)[kVectors]) {
  using Acc = Accumulate<T>;
  NanWatch<Acc> watch;
  load_slot(task, col, x, begin, tail, best);
  watch.see_all(best);
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) winner[v] = Lanes<Acc>{};
  for (int64_t slot = begin + 1; slot < end; ++slot) {
    Vector<Acc> value[kVectors];
    load_slot(task, col, x, slot, tail, value);
    watch.see_all(value);
    const Lanes<Acc> here = Lanes<Acc>{} + LaneInt<Acc>(slot - begin);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) update_winner<Acc>(value[v], here, best[v], winner[v]);
  }
  return watch.any();
}

// Slots from `begin` to slots of the CSR; numbers of ties stay.
template <typename Acc>
GNNAGG_INLINE void store_winners(const IndexOutput& to, Lanes<Acc> who, int64_t begin, int count) {
  constexpr int kLanes = kVectorBytes / int(sizeof(Acc));
  if (to.is_wide == (sizeof(LaneInt<Acc>) == sizeof(int64_t)) && count == kLanes) {
    store_bits(to.data, who + (who < 0 ? Lanes<Acc>{} : Lanes<Acc>{} + LaneInt<Acc>(begin)));
    return;
  }
  LaneInt<Acc> buffer[kLanes];
  store_bits(buffer, who);
  for (int lane = 0; lane < count; ++lane) to.set(lane, buffer[lane] + (buffer[lane] < 0 ? 0 : begin));
}

// Where the result of one piece of a row goes. A whole row is stored as the op returns it; a partial keeps the
// accumulate type and, for min, the negated values.
template <typename T>
struct ExtremumOutput {
  T* out;                  // [F], or null for a partial
  Accumulate<T>* partial;  // [F], or null for a whole row
  IndexOutput winner;      // [F], or null when not wanted
};

// `count` features one by one: any values, any number of slots.
template <typename T>
__attribute__((noinline)) void winners_one_by_one(const ExtremumTask<T>& task, const T* x, int64_t begin, int64_t end,
                                                  int64_t count, const ExtremumOutput<T>& to, int64_t first) {
  for (int64_t f = first; f < first + count; ++f) {
    Accumulate<T> best = task.value(x, begin, f);
    int64_t winner = begin;
    for (int64_t slot = begin + 1; slot < end; ++slot) merge_winner(best, winner, task.value(x, slot, f), slot);
    if (to.out) {
      to.out[f] = narrow<T>(task.minimum ? -best : best);
    } else {
      to.partial[f] = best;
    }
    to.winner.set(f, winner);
  }
}

template <typename T>
GNNAGG_INLINE void store_no_slots(int64_t width, const ExtremumOutput<T>& to) {
  for (int64_t f = 0; f < width; ++f) {
    if (to.out) {
      to.out[f] = T{};
    } else {
      to.partial[f] = -__builtin_huge_val();
    }
    if (to.winner) to.winner.set(f, kNoWinner);
  }
}

template <typename T, bool kWithArg, typename Index>
void extremum_spans_of(const ExtremumArgs& args, const Index* col, int64_t begin_item, int64_t end_item) {
  using Acc = Accumulate<T>;
  const ExtremumTask<T> task(args);
  const int64_t width = task.width, num_spans = task.view.num_spans;
  for (int64_t item = begin_item; item < end_item; ++item) {
    const int64_t batch = item / num_spans;
    const T* x = static_cast<const T*>(args.x) + batch * args.num_src * width;
    const T* x_end = x + args.num_src * width;
    SpanWalk walk(task.view, item % num_spans);
    while (walk.next()) {
      const bool whole = walk.partial == walk.kWholeRow;
      const int64_t out_row = (batch * task.view.num_rows + walk.row) * width;
      const int64_t partial_row = (batch * 2 * num_spans + walk.partial) * width;
      ExtremumOutput<T> to = {};
      if (whole) {
        to.out = static_cast<T*>(args.out) + out_row;
      } else {
        to.partial = static_cast<Acc*>(args.partials) + partial_row;
      }
      if (kWithArg) {
        to.winner = whole ? args.arg.from(out_row) : args.partial_args.from(partial_row);
      }
      if (walk.begin == walk.end) {
        store_no_slots(width, to);
        continue;
      }
      for_each_block<T, kMostOf<Index, kWithArg ? kMostWinnerVectors : kMostValueVectors>>(
          width, [&](auto size, int64_t first, int in_last) {
            constexpr int kVectors = size.value;
            const Tail<T> tail(in_last, x_end);
            Vector<Acc> best[kVectors];
            if constexpr (kWithArg) {
              Lanes<Acc> winner[kVectors];
              if (walk.end - walk.begin > kMostCountedSlots ||
                  winners_of<kVectors>(task, col, x + first, walk.begin, walk.end, tail, best, winner)) {
                const int64_t count = (kVectors - 1) * kWidth<T> + in_last;
                winners_one_by_one(task, x, walk.begin, walk.end, count, to, first);
                return;
              }
#pragma GCC unroll 8
              for (int v = 0; v < kVectors; ++v) {
                const int count = v + 1 < kVectors ? kWidth<T> : in_last;
                store_winners<Acc>(to.winner.from(first + v * kWidth<T>), winner[v], walk.begin, count);
              }
            } else {
              if (greatest_of<kVectors, false>(task, col, x + first, walk.begin, walk.end, tail, best)) {
                greatest_of<kVectors, true>(task, col, x + first, walk.begin, walk.end, tail, best);
              }
            }
            if (whole) {
#pragma GCC unroll 8
              for (int v = 0; v < kVectors; ++v) best[v] = flip_sign<Acc>(best[v], task.sign);
              store_block<kVectors, T, Acc>(to.out + first, in_last, best);
            } else {
              store_block<kVectors, Acc, Acc>(to.partial + first, in_last, best);
            }
          });
    }
  }
}

template <typename T>
void extremum_spans(const ExtremumArgs& args, int64_t begin, int64_t end) {
  args.csr.col.with_type([&](const auto* col) {
    if (args.arg) {
      extremum_spans_of<T, true>(args, col, begin, end);
    } else {
      extremum_spans_of<T, false>(args, col, begin, end);
    }
  });
}

template <typename T>
void extremum_combine(const ExtremumArgs& args, int64_t begin_item, int64_t end_item) {
  using Acc = Accumulate<T>;
  const SpanView view(args.csr);
  const int64_t width = args.width, num_splits = view.num_split_rows();
  for (int64_t item = begin_item; item < end_item; ++item) {
    const int64_t batch = item / num_splits;
    const SplitRow split = view.split_row(item % num_splits);
    const int64_t out_row = (batch * view.num_rows + view.row_of(split)) * width;
    for (int64_t f = 0; f < width; ++f) {
      Acc best = -__builtin_huge_val();
      int64_t winner = kNoWinner;
      for (int64_t p = 0; p < view.num_partials(split); ++p) {
        const int64_t at = (batch * 2 * view.num_spans + view.partial(split, p)) * width + f;
        const int64_t other = args.arg ? args.partial_args[at] : kNoWinner;
        merge_winner(best, winner, static_cast<const Acc*>(args.partials)[at], other);
      }
      static_cast<T*>(args.out)[out_row + f] = narrow<T>(args.minimum ? -best : best);
      if (args.arg) args.arg.set(out_row + f, winner);
    }
  }
}

}  // namespace gnnagg::cpu::GNNAGG_LEVEL
