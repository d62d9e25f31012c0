// One hop of propagate on the CPU. Included once per level (GNNAGG_LEVEL).
//
// What: out[i, f] = keep * sum over slots s of row i of weight[perm[s]] * h[col[s], f] + teleport * x0[i, f].
// How: the sums of aggregate_kernel.h, one span per item, with the share of x0 added at the store. Pieces of split rows
// go to partials and are combined afterwards. A hop reads all of the hop before, so the caller lets every item of one
// hop end before the next begins.
// Traffic: F * s bytes per slot from whichever cache holds h, 4 bytes of col and of perm and weight where there are
// weights, F * s read and F * s written per row.
// Determinism: as aggregate_kernel.h.
#pragma once

#include "cpu/aggregate_kernel.h"

namespace gnnagg::cpu::GNNAGG_LEVEL {

// The end of one block of a row: sums of row `row` for the features from `first`.
template <int kVectors, typename T, typename Index>
GNNAGG_INLINE void finish_hop(const PropagateArgs& args, int64_t row, int64_t first, int in_last,
                              Vector<Accumulate<T>> (&sum)[kVectors]) {
  using Acc = Accumulate<T>;
  const int64_t at = row * args.sum.width + first;
  if (args.x0) {
    const Vector<Acc> keep = broadcast<Acc>(Acc(1.0 - args.teleport)), teleport = broadcast<Acc>(Acc(args.teleport));
    const T* x0 = static_cast<const T*>(args.x0) + at;
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const Vector<Acc> origin = load_count(x0 + v * kWidth<T>, v + 1 < kVectors ? kWidth<T> : in_last);
      sum[v] = product(sum[v], keep) + product(origin, teleport);
    }
  }
  store_block<kVectors, T, Acc>(static_cast<T*>(args.sum.out) + at, in_last, sum);
}

template <typename T, typename Index, Weighting kWeighting>
void hop_spans_weighted(const PropagateArgs& args, int64_t begin_span, int64_t end_span) {
  using Acc = Accumulate<T>;
  const SumTask<T, Index> task(args.sum);
  const int64_t width = task.width;
  const T* h = static_cast<const T*>(args.sum.x);
  const T* h_end = h + args.sum.num_src * width;
  Acc* partials = static_cast<Acc*>(args.sum.partials);
  for (int64_t span = begin_span; span < end_span; ++span) {
    SpanWalk<Index> walk(task.view, span);
    while (walk.next()) {
      for_each_block<T, kMostSumVectors>(width, [&](auto size, int64_t first, int in_last) {
        const Tail<T> tail(in_last, h_end);
        Vector<Acc> sum[size.value];
        sum_block<size.value, kWeighting>(task, h + first, first, walk.begin, walk.end, tail, sum);
        if (walk.partial == walk.kWholeRow) {
          finish_hop<size.value, T, Index>(args, walk.row, first, in_last, sum);
        } else {
          store_block<size.value, Acc, Acc>(partials + walk.partial * width + first, in_last, sum);
        }
      });
    }
  }
}

template <typename T, typename Index>
void hop_spans(const PropagateArgs& args, int64_t begin, int64_t end) {
  if (args.sum.weight) {
    hop_spans_weighted<T, Index, kPerSlot>(args, begin, end);
  } else {
    hop_spans_weighted<T, Index, kUnweighted>(args, begin, end);
  }
}

template <typename T, typename Index>
void hop_combine(const PropagateArgs& args, int64_t begin_item, int64_t end_item) {
  using Acc = Accumulate<T>;
  const SpanView<Index> view(args.sum.csr);
  const int64_t width = args.sum.width;
  const Acc* partials = static_cast<const Acc*>(args.sum.partials);
  for (int64_t item = begin_item; item < end_item; ++item) {
    const SplitRow split = view.split_row(item);
    for (int64_t first = 0; first < width; first += kWidth<T>) {
      const int count = int(width - first < kWidth<T> ? width - first : kWidth<T>);
      Vector<Acc> sum[1] = {};
      for (int64_t p = 0; p < view.num_partials(split); ++p) {
        sum[0] += load_count(partials + view.partial(split, p) * width + first, count);
      }
      finish_hop<1, T, Index>(args, view.row_of(split), first, count, sum);
    }
  }
}

}  // namespace gnnagg::cpu::GNNAGG_LEVEL
