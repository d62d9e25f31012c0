// Gradient of max and min on the CPU. Included once per level (GNNAGG_LEVEL).
//
// What: dx[j, f] = sum over slots s with col[s] = j that won at (i, f) of grad[i, f] / ties(i, f).
// How: the work is N * F, not E * F: a feature with one winner adds to one place of dx. Only a row where values tie looks at
// its slots again, and adds the share wherever x equals the row's result. A call handles the features [first, last) of the
// sources [src_begin, src_end), so that calls for other features or sources write elsewhere and need no lock.
// Traffic: grad and arg once per call, one cache line of dx per winner; tied rows F * s per slot for x and again for dx.
// Determinism: every element of dx is summed in the order of rows and slots, however the calls are cut.
#pragma once

#include "common/reduce.h"
#include "cpu/blocks.h"
#include "cpu/kernels.h"
#include "cpu/span_walk.h"

namespace gnnagg::cpu::GNNAGG_LEVEL {

// Features that one call handles at most: a cache line of float.
constexpr int64_t kMostBackwardFeatures = 16;

template <typename T, typename Index>
void extremum_backward(const ExtremumBackwardArgs& args, int64_t batch, int64_t first, int64_t last, int64_t src_begin,
                       int64_t src_end) {
  using Acc = Accumulate<T>;
  const SpanView<Index> view(args.csr);
  const int64_t width = args.width, count = last - first;
  const T* grad = static_cast<const T*>(args.grad) + batch * view.num_rows * width + first;
  const T* out = static_cast<const T*>(args.out) + batch * view.num_rows * width + first;
  const Index* arg = static_cast<const Index*>(args.arg) + batch * view.num_rows * width + first;
  const T* x = static_cast<const T*>(args.x) + batch * args.num_src * width + first;
  Acc* dx = static_cast<Acc*>(args.dx) + batch * args.num_src * width + first;
  const uint64_t num_mine = uint64_t(src_end - src_begin);
  for (int64_t row = 0; row < view.num_rows; ++row, grad += width, out += width, arg += width) {
    bool has_ties = false;
    for (int64_t f = 0; f < count; ++f) {
      const Index winner = arg[f];
      if (winner >= 0) {
        const int64_t source = view.col[winner];
        if (uint64_t(source - src_begin) < num_mine) dx[source * width + f] += widen(grad[f]);
      }
      has_ties |= winner < kNoWinner;
    }
    if (!has_ties) continue;
    Acc share[kMostBackwardFeatures], best[kMostBackwardFeatures];
    for (int64_t f = 0; f < count; ++f) {
      const bool tied = arg[f] < kNoWinner;
      share[f] = tied ? widen(grad[f]) / Acc(winner_count(arg[f])) : Acc(0);
      best[f] = widen(out[f]);
    }
    for (int64_t slot = view.rowptr[row]; slot < int64_t(view.rowptr[row + 1]); ++slot) {
      const int64_t source = view.col[slot];
      if (uint64_t(source - src_begin) >= num_mine) continue;
      const T* value = x + source * width;
      Acc* to = dx + source * width;
      for (int64_t f = 0; f < count; ++f) {
        to[f] += ties_with<Acc>(widen(value[f]), best[f]) ? share[f] : Acc(0);
      }
    }
  }
}

}  // namespace gnnagg::cpu::GNNAGG_LEVEL
