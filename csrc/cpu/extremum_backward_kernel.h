// Gradient of max and min on the CPU. Included once per level (GNNAGG_LEVEL).
//
// What: dx[j, f] = sum over slots s with col[s] = j that won at (i, f) of grad[i, f] / ties(i, f).
// How: the work is N * F, not E * F: a feature with one winner adds to one place of dx. Only a row where values tie
// looks at its slots again, and adds the share wherever x equals the row's result. A call handles the features [first,
// last) of the sources [src_begin, src_end), so that calls for other features or sources write elsewhere and need no
// lock.
// Traffic: grad and arg once per call, one cache line of dx per winner; tied rows F * s per slot for x and again for
// dx.
// Determinism: every element of dx is summed in the order of rows and slots, however the calls are cut.
#pragma once

#include "common/reduce.h"
#include "cpu/blocks.h"
#include "cpu/kernels.h"
#include "cpu/span_walk.h"

namespace gnnagg::cpu::GNNAGG_LEVEL {

// Features that one call handles at most: a cache line of float.
constexpr int kMostBackwardFeatures = 16;

// Rows whose winners are looked up, and their place in dx requested, before they are added.
constexpr int64_t kRowsAhead = 16;
constexpr int64_t kNowhere = -1;

// One call's task; pointers stand at its batch and first feature.
template <typename T>
struct BackwardTask {
  using Acc = Accumulate<T>;
  SpanView view;
  const T* grad;   // row stride F
  const T* out;    // row stride F
  IndexArray arg;  // row stride F
  const T* x;      // row stride F
  Acc* dx;         // row stride F
  int64_t width, count, src_begin;
  uint64_t num_sources;

  GNNAGG_INLINE bool is_mine(int64_t source) const { return uint64_t(source - src_begin) < num_sources; }

  // Offsets in dx that the only winners of `row` add to, and kNowhere for features that add nothing here.
  GNNAGG_INLINE void look_up(int64_t row, int64_t* place) const {
    // Strided by a whole row: too far apart for the hardware to see a stream.
    const int64_t later = row + kRowsAhead < view.num_rows ? row + kRowsAhead : row;
    __builtin_prefetch(arg.from(later * width).data);
    __builtin_prefetch(grad + later * width);
    __builtin_prefetch(view.col.from(view.rowptr[later]).data);
    for (int64_t f = 0; f < count; ++f) {
      const int64_t winner = arg[row * width + f];
      place[f] = kNowhere;
      if (winner < 0) continue;
      const int64_t source = view.col[winner];
      if (!is_mine(source)) continue;
      place[f] = source * width + f;
      __builtin_prefetch(dx + place[f], 1);
    }
  }

  // Adds the shares of the features of `row` where several slots tie.
  void add_ties(int64_t row) const {
    Acc share[kMostBackwardFeatures], best[kMostBackwardFeatures];
    for (int64_t f = 0; f < count; ++f) {
      const int64_t winner = arg[row * width + f];
      share[f] = winner < kNoWinner ? widen(grad[row * width + f]) / Acc(winner_count(winner)) : Acc(0);
      best[f] = widen(out[row * width + f]);
    }
    const int64_t end = view.rowptr[row + 1];
    for (int64_t slot = view.rowptr[row]; slot < end; ++slot) {
      const int64_t source = view.col[slot], ahead = view.col[slot + kRowsAhead < end ? slot + kRowsAhead : end - 1];
      __builtin_prefetch(x + ahead * width);
      if (is_mine(ahead)) __builtin_prefetch(dx + ahead * width, 1);
      if (!is_mine(source)) continue;
      const T* value = x + source * width;
      Acc* to = dx + source * width;
      if (count == kMostBackwardFeatures) {
#pragma GCC unroll 8
        for (int f = 0; f < kMostBackwardFeatures; f += kWidth<T>) {
          const Vector<Acc> mine = load(value + f), best_of_row = load(best + f);
          const auto wins = (mine == best_of_row) | ((mine != mine) & (best_of_row != best_of_row));
          store(to + f, load(to + f) + (wins ? load(share + f) : Vector<Acc>{}));
        }
      } else {
        for (int64_t f = 0; f < count; ++f) to[f] += ties_with<Acc>(widen(value[f]), best[f]) ? share[f] : Acc(0);
      }
    }
  }
};

template <typename T>
void extremum_backward(const ExtremumBackwardArgs& args, int64_t batch, int64_t first, int64_t last, int64_t src_begin,
                       int64_t src_end) {
  using Acc = Accumulate<T>;
  const int64_t width = args.width, num_rows = args.csr.num_rows, count = last - first;
  const int64_t row_offset = batch * num_rows * width + first, src_offset = batch * args.num_src * width + first;
  const BackwardTask<T> task = {SpanView(args.csr),
                                static_cast<const T*>(args.grad) + row_offset,
                                static_cast<const T*>(args.out) + row_offset,
                                args.arg.from(row_offset),
                                static_cast<const T*>(args.x) + src_offset,
                                static_cast<Acc*>(args.dx) + src_offset,
                                width,
                                count,
                                src_begin,
                                uint64_t(src_end - src_begin)};
  int64_t places[kRowsAhead][kMostBackwardFeatures];
  for (int64_t row = 0; row < kRowsAhead && row < num_rows; ++row) task.look_up(row, places[row]);
  for (int64_t row = 0; row < num_rows; ++row) {
    int64_t* place = places[row % kRowsAhead];
    bool has_ties = false;
    for (int64_t f = 0; f < count; ++f) {
      if (place[f] != kNowhere) task.dx[place[f]] += widen(task.grad[row * width + f]);
      has_ties |= task.arg[row * width + f] < kNoWinner;
    }
    if (has_ties) task.add_ties(row);
    if (row + kRowsAhead < num_rows) task.look_up(row + kRowsAhead, place);
  }
}

}  // namespace gnnagg::cpu::GNNAGG_LEVEL
