// Split rows of gat_attention: their pieces, in span order, to results. Included per level.
//
// A piece left its features relative to its own maximum, and per head (maximum, sum, sum of the positive); each is scaled
// to the maximum of all. The features gather in the place of the first piece.
#pragma once

#include "cpu/gat_softmax.h"
#include "cpu/span_walk.h"

namespace gnnagg::cpu::GNNAGG_LEVEL {

// sums[f] = sums[f] * factor[head(f)] (+ added[f] * its factor), of one head block.
template <typename T>
GNNAGG_INLINE void merge_features(const GatTask<T>& task, const GatHeads<T>& heads, const Accumulate<T>* factor,
                                  const Accumulate<T>* added, bool is_first, Accumulate<T>* sums) {
  using Acc = Accumulate<T>;
  for (int64_t f = 0; f < heads.num_features; f += kWidth<T>) {
    const int count = int(heads.num_features - f < kWidth<T> ? heads.num_features - f : kWidth<T>);
    int head[1];
    Lanes<Acc> pick[1];
    task.spread.locate(f, head, pick);
    const Vector<Acc> value = product(load_count(added + f, count), permute<Acc>(load(factor + head[0]), pick[0]));
    store_count<Acc>(sums + f, is_first ? value : load_count(sums + f, count) + value, count);
  }
}

template <typename T>
GNNAGG_INLINE void finish_features(const GatTask<T>& task, const GatHeads<T>& heads, const Accumulate<T>* inverse,
                                   const Accumulate<T>* sums, T* out) {
  using Acc = Accumulate<T>;
  for (int64_t f = 0; f < heads.num_features; f += kWidth<T>) {
    const int count = int(heads.num_features - f < kWidth<T> ? heads.num_features - f : kWidth<T>);
    int head[1];
    Lanes<Acc> pick[1];
    task.spread.locate(f, head, pick);
    store_count<T>(out + f, product(load_count(sums + f, count), permute<Acc>(load(inverse + head[0]), pick[0])),
                   count);
  }
}

// The pieces of a split row to its result; their sums gather in the first one's place.
template <bool kPositive, typename T>
void combine_split_row(const GatTask<T>& task, const SpanView& view, const SplitRow& split) {
  using Acc = Accumulate<T>;
  const GatArgs& args = task.args;
  const int64_t row = view.row_of(split), pieces = view.num_partials(split), first_place = view.partial(split, 0);
  for (int64_t first = 0; first < task.heads; first += kMostHeads) {
    const GatHeads<T> heads(task, first);
    const int count = heads.lanes.heads;
    SoftmaxRow<Acc> state;
    HeadBuffer<Acc> factor;
    const auto piece = [&](int64_t p, int field) {
      return static_cast<const Acc*>(args.partial_state) + (view.partial(split, p) * 3 + field) * task.heads + first;
    };
    const auto features = [&](void* partials, int64_t place) {
      return static_cast<Acc*>(partials) + place * task.width + heads.first_feature;
    };
    for (int h = 0; h < heads.lanes.span; ++h) {
      state.highest.lane[h] = SoftmaxLimits<Acc>::kLowestScore;
      state.total.lane[h] = state.positive.lane[h] = factor.lane[h] = Acc(0);
    }
    for (int64_t p = 0; p < pieces; ++p) {
      const Acc* highest = piece(p, 0);
      for (int h = 0; h < count; ++h) {
        if (highest[h] > state.highest.lane[h]) state.highest.lane[h] = highest[h];
      }
    }
    for (int64_t p = 0; p < pieces; ++p) {
      for (int h = 0; h < count; ++h) factor.lane[h] = piece(p, 0)[h] - state.highest.lane[h];
      for (int h = 0; h < heads.lanes.span; h += kLanesOf<Acc>) {
        store(factor.lane + h, exp_lanes<Acc>(load(factor.lane + h)));
      }
      for (int h = 0; h < count; ++h) {
        const Acc total = piece(p, 1)[h], positive = kPositive ? piece(p, 2)[h] : Acc(0);
        state.total.lane[h] += rounded_product(total, factor.lane[h]);
        if constexpr (kPositive) state.positive.lane[h] += rounded_product(positive, factor.lane[h]);
      }
      merge_features(task, heads, factor.lane, features(args.partials, view.partial(split, p)), p == 0,
                     features(args.partials, first_place));
      if constexpr (kPositive) {
        merge_features(task, heads, factor.lane, features(args.positive_partials, view.partial(split, p)), p == 0,
                       features(args.positive_partials, first_place));
      }
    }
    finish_softmax(heads.lanes, Acc(args.dropout.scale), state);
    write_scalars<kPositive>(task, heads, row, state);
    const int64_t at = row * task.width + heads.first_feature;
    finish_features(task, heads, state.inverse.lane, features(args.partials, first_place),
                    static_cast<T*>(args.out) + at);
    if constexpr (kPositive) {
      finish_features(task, heads, state.inverse.lane, features(args.positive_partials, first_place),
                      static_cast<T*>(args.positive_out) + at);
    }
  }
}

template <typename T>
void gat_combine(const GatArgs& args, int64_t begin, int64_t end) {
  const GatTask<T> task(args);
  const SpanView view(args.csr);
  for (int64_t item = begin; item < end; ++item) {
    if (args.positive_out) {
      combine_split_row<true>(task, view, view.split_row(item));
    } else {
      combine_split_row<false>(task, view, view.split_row(item));
    }
  }
}

}  // namespace gnnagg::cpu::GNNAGG_LEVEL
