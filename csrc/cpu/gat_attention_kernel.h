// Additive attention on the CPU, forward. Included once per level (GNNAGG_LEVEL).
//
// What: out[i, h, c] = sum over slots s of row i of alpha[s, h] * mask[s, h] * z[col[s], h, c], where alpha is the
// softmax over the row of leaky(a_src[col[s], h] + a_dst[i, h] + edge_score[edge, h]); and its logsumexp. On request
// also both sums over the slots whose score before the leaky ReLU is positive.
// How: a row is walked in chunks (attention_lanes.h). The scores of a chunk are gathered and turned into weights for
// several slots and heads at a time, exp once per slot and head; then the rows of z are added, a block of features in
// registers. Chunk follows chunk with a running maximum. A piece of a split row leaves (maximum, sum, weighted
// features); gat_combine.h adds the pieces up.
// Traffic: F * s + 4 H bytes per slot from whichever cache holds z and a_src, 4 bytes of col; F * s per row written.
// Determinism: slots in order within a chunk, chunks in order, pieces in span order. Nothing depends on the thread or
// on the level.
#pragma once

#include "cpu/blocks.h"
#include "cpu/gat_softmax.h"
#include "cpu/span_walk.h"

namespace gnnagg::cpu::GNNAGG_LEVEL {

constexpr int kMostAttentionVectors = 8;

// Where a block of features goes: the features of a row while its chunks are added, and its result.
template <typename T>
struct BlockTarget {
  const Accumulate<T>* earlier;  // sums of earlier chunks, to be rescaled; null for none
  Accumulate<T>* sums;           // sums so far; null when finished
  T* out;                        // result
};

// sum over the chunk's slots of weight[k, head(f)] * z[row[k], f] for a block of features.
template <int kVectors, typename T>
GNNAGG_INLINE void add_weighted(const GatTask<T>& task, const GatHeads<T>& heads, const ChunkRows& rows,
                                const Accumulate<T>* weight, const SoftmaxRow<Accumulate<T>>& row, int64_t first,
                                int in_last, const BlockTarget<T>& target) {
  using Acc = Accumulate<T>;
  const Tail<T> tail(in_last, task.z_end);
  const T* z = task.z + heads.first_feature + first;
  int head[kVectors];
  Lanes<Acc> pick[kVectors];
  task.spread.locate(first, head, pick);
  Vector<Acc> sum[kVectors];
  if (target.earlier) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const int lanes_left = v + 1 < kVectors ? kWidth<T> : in_last;
      sum[v] = product(load_count(target.earlier + first + v * kWidth<T>, lanes_left),
                       permute<Acc>(load(row.rescale.lane + head[v]), pick[v]));
    }
  } else {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sum[v] = Vector<Acc>{};
  }
  const int stride = heads.lanes.stride;
  for (int k = 0; k < rows.count; ++k, weight += stride) {
    prefetch<kVectors * kWidth<T> * int64_t(sizeof(T))>(z + rows.row[k + kPrefetchSlots] * task.width);
    Vector<Acc> value[kVectors];
    load_block(z + rows.row[k] * task.width, tail, value);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      sum[v] += product(value[v], permute<Acc>(load(weight + head[v]), pick[v]));
    }
  }
  if (target.sums) {
    store_block<kVectors, Acc, Acc>(target.sums + first, in_last, sum);
    return;
  }
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    sum[v] = product(sum[v], permute<Acc>(load(row.inverse.lane + head[v]), pick[v]));
  }
  store_block<kVectors, T, Acc>(target.out + first, in_last, sum);
}

template <typename T>
__attribute__((noinline)) void add_all_features(const GatTask<T>& task, const GatHeads<T>& heads, const ChunkRows& rows,
                                                const Accumulate<T>* weight, const SoftmaxRow<Accumulate<T>>& row,
                                                const BlockTarget<T>& target) {
  for_each_block<T, kMostAttentionVectors>(heads.num_features, [&](auto size, int64_t first, int in_last) {
    add_weighted<size.value>(task, heads, rows, weight, row, first, in_last, target);
  });
}

// One chunk of a row: from rows and edge ids to the row's next state. `is_last` with `partial` < 0 writes the result;
// otherwise the sums go to partial `place`.
template <bool kPositive, typename T>
__attribute__((noinline)) void attend_chunk(const GatTask<T>& task, const GatHeads<T>& heads, const ChunkRows& rows,
                                            const Accumulate<T>* dst, bool is_first, bool is_finished, int64_t row,
                                            int64_t place, ChunkWeights<Accumulate<T>>& chunk,
                                            SoftmaxRow<Accumulate<T>>& state) {
  using Acc = Accumulate<T>;
  const GatArgs& args = task.args;
  const HeadLanes& lanes = heads.lanes;
  Acc *weight = chunk.weight.lane, *positive = chunk.positive.lane;
  heads.a_src.gather(lanes, rows.row, rows.count, weight);
  const Acc* edge_score = nullptr;
  if (heads.edge_score.values) {
    edge_score = chunk.edge_score.lane;
    heads.edge_score.gather(lanes, rows.edge, rows.count, chunk.edge_score.lane);
  }
  score_lanes<kPositive, Acc>(lanes, rows.count, dst, edge_score, Acc(args.negative_slope), weight, positive,
                              state.chunk_highest.lane);
  weigh_lanes<kPositive, Acc>(lanes, rows.count, is_first, weight, positive, state);
  if (args.dropout.is_on) {
    chunk.kept.draw(args.dropout, lanes, heads.first_head, rows.edge, rows.count);
    const int end = lanes.lanes(rows.count);
    for (int at = 0; at < end; at += kLanesOf<Acc>) {
      store(weight + at, chunk.kept.template apply<Acc>(at, load(weight + at)));
      if constexpr (kPositive) store(positive + at, chunk.kept.template apply<Acc>(at, load(positive + at)));
    }
  }
  if (is_finished) {
    finish_softmax(lanes, Acc(args.dropout.scale), state);
    write_scalars<kPositive>(task, heads, row, state);
  }
  const auto target = [&](void* partials, void* out) {
    Acc* sums = static_cast<Acc*>(partials) + place * task.width + heads.first_feature;
    T* result = static_cast<T*>(out) + row * task.width + heads.first_feature;
    return BlockTarget<T>{is_first ? nullptr : sums, is_finished ? nullptr : sums, is_finished ? result : nullptr};
  };
  add_all_features(task, heads, rows, weight, state, target(args.partials, args.out));
  if constexpr (kPositive) {
    add_all_features(task, heads, rows, positive, state, target(args.positive_partials, args.positive_out));
  }
}

template <typename T>
void write_empty_row(const GatTask<T>& task, int64_t row) {
  using Acc = Accumulate<T>;
  const GatArgs& args = task.args;
  T* out = static_cast<T*>(args.out) + row * task.width;
  Acc* lse = static_cast<Acc*>(args.lse) + row * task.heads;
  for (int64_t f = 0; f < task.width; ++f) out[f] = T{};
  for (int64_t h = 0; h < task.heads; ++h) lse[h] = Acc(0);
  if (!args.positive_out) return;
  T* positive_out = static_cast<T*>(args.positive_out) + row * task.width;
  Acc* positive_alpha = static_cast<Acc*>(args.positive_alpha) + row * task.heads;
  for (int64_t f = 0; f < task.width; ++f) positive_out[f] = T{};
  for (int64_t h = 0; h < task.heads; ++h) positive_alpha[h] = Acc(0);
}

// What a piece of a split row leaves beside its features, [3, H]: maximum, sum, sum of the positive.
template <bool kPositive, typename T>
GNNAGG_INLINE void write_state(const GatTask<T>& task, const GatHeads<T>& heads, int64_t place,
                               const SoftmaxRow<Accumulate<T>>& state) {
  using Acc = Accumulate<T>;
  Acc* to = static_cast<Acc*>(task.args.partial_state) + place * 3 * task.heads + heads.first_head;
  for (int h = 0; h < heads.lanes.heads; ++h) {
    to[h] = state.highest.lane[h];
    to[task.heads + h] = state.total.lane[h];
    if constexpr (kPositive) to[2 * task.heads + h] = state.positive.lane[h];
  }
}

template <bool kPositive, typename T>
void gat_spans_of(const GatArgs& args, int64_t begin_span, int64_t end_span) {
  using Acc = Accumulate<T>;
  const GatTask<T> task(args);
  const SpanView view(args.csr);
  const IndexArray perm = args.perm;
  const bool wants_ids = args.edge_score || args.dropout.is_on;
  const int64_t last_slot = view.live_edges() - 1;
  ChunkWeights<Acc> chunk;
  SoftmaxRow<Acc> state;
  HeadBuffer<Acc> dst;
  ChunkRows rows;
  for (int64_t first = 0; first < task.heads; first += kMostHeads) {
    const GatHeads<T> heads(task, first);
    for (int64_t span = begin_span; span < end_span; ++span) {
      SpanWalk walk(view, span);
      while (walk.next()) {
        if (walk.begin == walk.end) {
          write_empty_row(task, walk.row);
          continue;
        }
        const bool is_whole = walk.partial == walk.kWholeRow;
        // The sums of a row of several chunks wait where the span's last piece will put its own.
        const int64_t place = is_whole ? 2 * span + 1 : walk.partial;
        heads.a_dst.spread(walk.row, heads.lanes, dst.lane);
        for (int64_t from = walk.begin; from < walk.end; from += heads.lanes.slots) {
          const int64_t to = from + heads.lanes.slots < walk.end ? from + heads.lanes.slots : walk.end;
          rows.fill(view.col, from, to, last_slot);
          if (wants_ids) rows.identify(perm, from);
          attend_chunk<kPositive>(task, heads, rows, dst.lane, from == walk.begin, is_whole && to == walk.end, walk.row,
                                  place, chunk, state);
        }
        if (!is_whole) write_state<kPositive>(task, heads, place, state);
      }
    }
  }
}

template <typename T>
void gat_spans(const GatArgs& args, int64_t begin, int64_t end) {
  if (args.positive_out) {
    gat_spans_of<true, T>(args, begin, end);
  } else {
    gat_spans_of<false, T>(args, begin, end);
  }
}

}  // namespace gnnagg::cpu::GNNAGG_LEVEL
