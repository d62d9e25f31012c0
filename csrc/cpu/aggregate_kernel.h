// Sum and mean of rows, and one hop of propagate, on the CPU. Included once per level (GNNAGG_LEVEL).
//
// What: out[i, f] = dst_scale[i] / (deg_i if mean, else 1) * sum over slots s of row i of c[s, f] * x[col[s], f], where
// c[s, f] = weight[perm[s], head(f)] * src_scale[col[s]]; a missing factor is 1 and then costs no multiplication. With
// x0, a hop of propagate: (1 - teleport) times that, plus teleport * x0[i, f]. A hop reads all of the hop before, so its
// caller lets every item of one hop end before the next begins.
// How: an item is one span of one batch. Its rows are walked slot by slot; the accumulators of a block of up to 8
// vectors of features stay in registers over the whole row, and source rows are prefetched kPrefetchSlots ahead, across
// rows. A wider F is walked block by block. Rows inside the span are stored at once; a piece of a split row goes to
// partials.
// Traffic: F * s bytes per slot from whichever cache holds x, 4 bytes of col, and with weights 4 of perm and 4 of weight;
// F * s per row written, and F * s of x0 read.
// Determinism: a row is summed in slot order within a span, and its partials in span order. Nothing depends on the
// thread or on the level.
#pragma once

#include "cpu/blocks.h"
#include "cpu/kernels.h"
#include "cpu/span_walk.h"

namespace gnnagg::cpu::GNNAGG_LEVEL {

enum Weighting { kUnweighted, kPerSlot, kPerFeature };

// Slots whose coefficients are prepared together; per feature they are spread over a block, so fewer.
constexpr int64_t kSlotsPerChunk = 128;
constexpr int64_t kSpreadSlots = 16;
constexpr int kMostSumVectors = 8;

template <typename T>
struct SumTask {
  using Acc = Accumulate<T>;
  SpanView view;
  IndexArray perm;
  const Acc* weight;
  const Acc* src_scale;
  const Acc* dst_scale;
  const T* x0;
  double teleport;
  int64_t width, heads, last_slot;
  bool mean, acc_out;

  explicit SumTask(const SumArgs& args)
      : view(args.csr),
        perm(args.perm),
        weight(static_cast<const Acc*>(args.weight)),
        src_scale(static_cast<const Acc*>(args.src_scale)),
        dst_scale(static_cast<const Acc*>(args.dst_scale)),
        x0(static_cast<const T*>(args.x0)),
        teleport(args.teleport),
        width(args.width),
        heads(args.heads),
        last_slot(view.live_edges() - 1),
        mean(args.mean),
        acc_out(args.acc_out) {}

  GNNAGG_INLINE int64_t weight_row(int64_t slot) const { return perm ? perm[slot] : slot; }

  // c[s] for one head, of the slots [begin, end), at most kSlotsPerChunk.
  __attribute__((noinline)) void coefficients(int64_t begin, int64_t end, Acc* out) const {
    const int64_t count = end - begin;
    int64_t row[kSlotsPerChunk];
    if (weight && perm) {
      perm.read(begin, count, row);
      for (int64_t k = 0; k < count; ++k) out[k] = weight[row[k]];
    } else {
      for (int64_t k = 0; k < count; ++k) out[k] = weight ? weight[begin + k] : Acc(1);
    }
    if (!src_scale) return;
    view.col.read(begin, count, row);
    for (int64_t k = 0; k < count; ++k) out[k] *= src_scale[row[k]];
  }

  // c[s, f] for the features [first, first + stride) of several heads, [slots, stride]. `out` has a vector to spare.
  __attribute__((noinline)) void spread_coefficients(int64_t begin, int64_t end, int64_t first, int64_t stride,
                                                     Acc* out) const {
    const int64_t channels = width / heads, last = first + stride < width ? first + stride : width;
    for (int64_t slot = begin; slot < end; ++slot, out += stride) {
      __builtin_prefetch(weight +
                         weight_row(slot + kPrefetchSlots < last_slot ? slot + kPrefetchSlots : last_slot) * heads);
      const Acc* row = weight + weight_row(slot) * heads;
      const Acc scale = src_scale ? src_scale[view.col[slot]] : Acc(1);
      int64_t head = first / channels;
      for (int64_t feature = first; feature < last; ++head) {
        const Vector<Acc> value = broadcast<Acc>(row[head] * scale);
        const int64_t head_end = (head + 1) * channels < last ? (head + 1) * channels : last;
        // Runs past the head's end are overwritten by the next head.
        for (int64_t at = feature; at < head_end; at += kWidth<T>) store(out + (at - first), value);
        feature = head_end;
      }
    }
  }
};

// Adds the slots [begin, end) of one row to kVectors accumulators. x points at the block's first feature of source 0.
template <int kVectors, Weighting kWeighting, typename T, typename Index>
GNNAGG_INLINE void add_slots(const SumTask<T>& task, const Index* col, const T* x, int64_t begin, int64_t end,
                             const Accumulate<T>* coefficient, const Tail<T>& tail,
                             Vector<Accumulate<T>> (&sum)[kVectors]) {
  using Acc = Accumulate<T>;
  for (int64_t slot = begin; slot < end; ++slot) {
    const int64_t ahead = slot + kPrefetchSlots < task.last_slot ? slot + kPrefetchSlots : task.last_slot;
    prefetch<kVectors * kWidth<T> * int64_t(sizeof(T))>(x + int64_t(col[ahead]) * task.width);
    Vector<Acc> value[kVectors];
    load_block(x + int64_t(col[slot]) * task.width, tail, value);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      if constexpr (kWeighting == kPerSlot) value[v] = product(value[v], broadcast<Acc>(coefficient[slot - begin]));
      if constexpr (kWeighting == kPerFeature) {
        value[v] = product(value[v], load(coefficient + ((slot - begin) * kVectors + v) * kWidth<T>));
      }
      sum[v] += value[v];
    }
  }
}

// Sums the slots [begin, end) of one row for a block of features.
template <int kVectors, Weighting kWeighting, typename T, typename Index>
GNNAGG_INLINE void sum_block(const SumTask<T>& task, const Index* col, const T* x, int64_t first, int64_t begin,
                             int64_t end, const Tail<T>& tail, Vector<Accumulate<T>> (&sum)[kVectors]) {
  using Acc = Accumulate<T>;
  constexpr int kSpan = kVectors * kWidth<T>;
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) sum[v] = Vector<Acc>{};
  if constexpr (kWeighting == kUnweighted) {
    add_slots<kVectors, kWeighting>(task, col, x, begin, end, nullptr, tail, sum);
  } else {
    constexpr int64_t kSlots = kWeighting == kPerSlot ? kSlotsPerChunk : kSpreadSlots;
    Acc coefficient[kWeighting == kPerSlot ? kSlots : kSlots * kSpan + kWidth<T>];
    for (int64_t from = begin; from < end; from += kSlots) {
      const int64_t to = from + kSlots < end ? from + kSlots : end;
      if constexpr (kWeighting == kPerSlot) {
        task.coefficients(from, to, coefficient);
      } else {
        task.spread_coefficients(from, to, first, kSpan, coefficient);
      }
      add_slots<kVectors, kWeighting>(task, col, x, from, to, coefficient, tail, sum);
    }
  }
}

// Mean, scale and the share of x0, then the store: sums of row `row` for the features from `first`.
template <int kVectors, typename T>
GNNAGG_INLINE void finish_block(const SumTask<T>& task, int64_t row, int64_t degree, void* out, int64_t first,
                                int in_last, Vector<Accumulate<T>> (&sum)[kVectors]) {
  using Acc = Accumulate<T>;
  if (degree > 0 && (task.mean || task.dst_scale)) {
    const Vector<Acc> divisor = broadcast<Acc>(task.mean ? Acc(degree) : Acc(1));
    const Vector<Acc> scale = broadcast<Acc>(task.dst_scale ? task.dst_scale[row] : Acc(1));
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sum[v] = sum[v] / divisor * scale;
  }
  const int64_t at = row * task.width + first;
  if (task.x0) {
    const Vector<Acc> keep = broadcast<Acc>(Acc(1.0 - task.teleport)), teleport = broadcast<Acc>(Acc(task.teleport));
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const int count = v + 1 < kVectors ? kWidth<T> : in_last;
      sum[v] = product(sum[v], keep) + product(load_count(task.x0 + at + v * kWidth<T>, count), teleport);
    }
  }
  if (task.acc_out) {
    store_block<kVectors, Acc, Acc>(static_cast<Acc*>(out) + at, in_last, sum);
  } else {
    store_block<kVectors, T, Acc>(static_cast<T*>(out) + at, in_last, sum);
  }
}

template <typename T, Weighting kWeighting, typename Index>
void sum_spans_weighted(const SumArgs& args, const Index* col, int64_t begin_item, int64_t end_item) {
  using Acc = Accumulate<T>;
  SumTask<T> task(args);
  const int64_t num_spans = task.view.num_spans, width = task.width;
  const T* x_all = static_cast<const T*>(args.x);
  for (int64_t item = begin_item; item < end_item; ++item) {
    const int64_t batch = item / num_spans, span = item % num_spans;
    const T* x = x_all + batch * args.num_src * width;
    const T* x_end = x + args.num_src * width;
    const int64_t out_bytes = args.acc_out ? int64_t(sizeof(Acc)) : int64_t(sizeof(T));
    void* out = static_cast<char*>(args.out) + batch * task.view.num_rows * width * out_bytes;
    Acc* partials = static_cast<Acc*>(args.partials) + batch * 2 * num_spans * width;
    SpanWalk walk(task.view, span);
    while (walk.next()) {
      for_each_block<T, kMostOf<Index, kMostSumVectors>>(width, [&](auto size, int64_t first, int in_last) {
        const Tail<T> tail(in_last, x_end);
        Vector<Acc> sum[size.value];
        sum_block<size.value, kWeighting>(task, col, x + first, first, walk.begin, walk.end, tail, sum);
        if (walk.partial == walk.kWholeRow) {
          finish_block<size.value>(task, walk.row, walk.end - walk.begin, out, first, in_last, sum);
        } else {
          store_block<size.value, Acc, Acc>(partials + walk.partial * width + first, in_last, sum);
        }
      });
    }
  }
}

template <typename T>
void sum_spans(const SumArgs& args, int64_t begin, int64_t end) {
  args.csr.col.with_type([&](const auto* col) {
    if (args.weight && args.heads > 1) {
      sum_spans_weighted<T, kPerFeature>(args, col, begin, end);
    } else if (args.weight || args.src_scale) {
      sum_spans_weighted<T, kPerSlot>(args, col, begin, end);
    } else {
      sum_spans_weighted<T, kUnweighted>(args, col, begin, end);
    }
  });
}

template <typename T>
void sum_combine(const SumArgs& args, int64_t begin_item, int64_t end_item) {
  using Acc = Accumulate<T>;
  SumTask<T> task(args);
  const SpanView& view = task.view;
  const int64_t width = task.width, num_splits = view.num_split_rows();
  for (int64_t item = begin_item; item < end_item; ++item) {
    const int64_t batch = item / num_splits;
    const SplitRow split = view.split_row(item % num_splits);
    const int64_t row = view.row_of(split), degree = view.rowptr[row + 1] - view.rowptr[row];
    const int64_t out_bytes = args.acc_out ? int64_t(sizeof(Acc)) : int64_t(sizeof(T));
    void* out = static_cast<char*>(args.out) + batch * view.num_rows * width * out_bytes;
    const Acc* partials = static_cast<const Acc*>(args.partials) + batch * 2 * view.num_spans * width;
    for (int64_t first = 0; first < width; first += kWidth<T>) {
      const int count = int(width - first < kWidth<T> ? width - first : kWidth<T>);
      Vector<Acc> sum[1] = {};
      for (int64_t p = 0; p < view.num_partials(split); ++p) {
        sum[0] += load_count(partials + view.partial(split, p) * width + first, count);
      }
      finish_block<1>(task, row, degree, out, first, count, sum);
    }
  }
}

}  // namespace gnnagg::cpu::GNNAGG_LEVEL
