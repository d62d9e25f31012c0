// Additive attention on the CPU, forward. Included once per level (GNNAGG_LEVEL).
//
// What: out[i, h, c] = sum over slots s of row i of alpha[s, h] * mask[s, h] * z[col[s], h, c], where alpha is the
// softmax over the row of leaky(a_src[col[s], h] + a_dst[i, h] + edge_score[edge, h]); and its logsumexp. On request
// also both sums over the slots whose score before the leaky ReLU is positive.
// How: a row is walked in chunks (attention_lanes.h). The scores of a chunk are gathered and turned into weights for
// several slots and heads at a time, exp once per slot and head; then the rows of z are added, a block of features in
// registers. Chunk follows chunk with a running maximum. A piece of a split row leaves (maximum, sum, weighted
// features).
// Traffic: F * s + 4 H bytes per slot from whichever cache holds z and a_src, 4 bytes of col; F * s per row written.
// Determinism: slots in order within a chunk, chunks in order, pieces in span order. Nothing depends on the thread or
// on the level.
#pragma once

#include "cpu/attention_dropout.h"
#include "cpu/attention_lanes.h"
#include "cpu/blocks.h"
#include "cpu/gat_attention_args.h"
#include "cpu/span_walk.h"

namespace gnnagg::cpu::GNNAGG_LEVEL {

constexpr int kMostAttentionVectors = 8;

// What a row's softmax needs between chunks, one value per head.
template <typename Acc>
struct SoftmaxRow {
  HeadBuffer<Acc> highest, total, positive;
  HeadBuffer<Acc> rescale;  // of what was added before this chunk
  HeadBuffer<Acc> inverse;  // factor of the finished sums
  HeadBuffer<Acc> chunk_highest, chunk_total, chunk_positive;
};

// The weights of a chunk, and those of its slots with a positive score.
template <typename Acc>
struct ChunkWeights {
  LaneBuffer<Acc> weight, positive, edge_score;
  KeptLanes kept;
};

template <typename T>
struct GatTask {
  using Acc = Accumulate<T>;
  const GatArgs& args;
  const T* z;
  const T* z_end;
  int64_t width, heads, channels;
  HeadSpread<T> spread;

  explicit GatTask(const GatArgs& given)
      : args(given),
        z(static_cast<const T*>(given.z)),
        z_end(z + given.num_src * given.width),
        width(given.width),
        heads(given.heads),
        channels(given.width / given.heads),
        spread(channels) {}
};

// One head block of a task: its tables, and how its scores lie.
template <typename T>
struct GatHeads {
  using Acc = Accumulate<T>;
  int64_t first_head, first_feature, num_features;
  HeadLanes lanes;
  HeadTable<Acc> a_src, a_dst, edge_score;

  GatHeads(const GatTask<T>& task, int64_t first)
      : first_head(first),
        first_feature(first * task.channels),
        num_features((task.heads - first < kMostHeads ? task.heads - first : kMostHeads) * task.channels),
        lanes(task.heads - first < kMostHeads ? task.heads - first : kMostHeads),
        a_src(task.args.a_src, first, task.heads, task.args.num_src),
        a_dst(task.args.a_dst, first, task.heads, task.args.csr.num_rows),
        edge_score(task.args.edge_score, first, task.heads, task.args.num_edges) {}
};

// The scores of a chunk, from what was gathered of them; leaves the highest of every head in `highest`.
template <bool kPositive, typename Acc>
GNNAGG_INLINE void score_lanes(const HeadLanes& lanes, int count, const Acc* dst, const Acc* edge_score,
                               Acc negative_slope, Acc* score, Acc* positive, Acc* highest) {
  const int end = lanes.lanes(count);
  const Vector<Acc> slope = broadcast<Acc>(negative_slope);
  // Behind the last slot NaN, which no maximum takes, until the weights there are to be 0.
  fill_behind(lanes, count, score, Acc(__builtin_nan("")));
  for (int p = 0; p < lanes.span; p += kLanesOf<Acc>) {
    const Vector<Acc> mine = load(dst + p);
    Vector<Acc> best = broadcast<Acc>(SoftmaxLimits<Acc>::kLowestScore);
    for (int at = p; at < end; at += lanes.span) {
      Vector<Acc> before = load(score + at) + mine;
      if (edge_score) before += load(edge_score + at);
      const Vector<Acc> value = leaky_relu_lanes<Acc>(before, slope);
      if constexpr (kPositive) {
        store(positive + at, before > Vector<Acc>{} ? broadcast<Acc>(Acc(1)) : Vector<Acc>{});
      }
      store(score + at, value);
      best = greater(best, value);
    }
    store(highest + p, best);
  }
  fill_behind(lanes, count, score, Acc(-__builtin_inf()));
  fold_heads(lanes, highest, [](Vector<Acc> a, Vector<Acc> b) { return greater(a, b); });
}

// Scores to weights exp(score - highest), and the row's state to that after the chunk.
template <bool kPositive, typename Acc>
GNNAGG_INLINE void weigh_lanes(const HeadLanes& lanes, int count, bool is_first, Acc* score, Acc* positive,
                               SoftmaxRow<Acc>& row) {
  const int end = lanes.lanes(count);
  for (int p = 0; p < lanes.span; p += kLanesOf<Acc>) {
    Vector<Acc> best = load(row.chunk_highest.lane + p);
    if (!is_first) {
      const Vector<Acc> before = load(row.highest.lane + p);
      best = greater(before, best);
      store(row.rescale.lane + p, exp_lanes<Acc>(before - best));
    }
    store(row.highest.lane + p, best);
    Vector<Acc> sum = {}, positive_sum = {};
    for (int at = p; at < end; at += lanes.span) {
      const Vector<Acc> weight = exp_lanes<Acc>(load(score + at) - best);
      sum += weight;
      store(score + at, weight);
      if constexpr (kPositive) {
        const Vector<Acc> counted = product(weight, load(positive + at));
        positive_sum += counted;
        store(positive + at, counted);
      }
    }
    store(row.chunk_total.lane + p, sum);
    store(row.chunk_positive.lane + p, positive_sum);
  }
  sum_heads(lanes, row.chunk_total.lane);
  if constexpr (kPositive) sum_heads(lanes, row.chunk_positive.lane);
  for (int p = 0; p < lanes.span; p += kLanesOf<Acc>) {
    Vector<Acc> sum = load(row.chunk_total.lane + p), positive_sum = load(row.chunk_positive.lane + p);
    if (!is_first) {
      const Vector<Acc> rescale = load(row.rescale.lane + p);
      sum += product(load(row.total.lane + p), rescale);
      if constexpr (kPositive) positive_sum += product(load(row.positive.lane + p), rescale);
    }
    store(row.total.lane + p, sum);
    if constexpr (kPositive) store(row.positive.lane + p, positive_sum);
  }
}

// Factors that turn a row's weighted sums into its result, from maximum and sum of its heads.
template <typename Acc>
GNNAGG_INLINE void finish_softmax(const HeadLanes& lanes, Acc scale, SoftmaxRow<Acc>& row) {
  const Vector<Acc> nothing = broadcast<Acc>(Acc(__builtin_nan("")));
  for (int p = 0; p < lanes.span; p += kLanesOf<Acc>) {
    const Vector<Acc> total = load(row.total.lane + p);
    // A row that is not empty and sums to 0 has no finite score.
    const Vector<Acc> sum = total == Vector<Acc>{} ? nothing : total + Acc(kSoftmaxFloor);
    store(row.inverse.lane + p, broadcast<Acc>(scale) / sum);
    store(row.total.lane + p, sum);
  }
}

// Logsumexp of a finished row, and the share of the positive scores.
template <bool kPositive, typename T>
GNNAGG_INLINE void write_scalars(const GatTask<T>& task, const GatHeads<T>& heads, int64_t row,
                                 const SoftmaxRow<Accumulate<T>>& state) {
  using Acc = Accumulate<T>;
  Acc* lse = static_cast<Acc*>(task.args.lse) + row * task.heads + heads.first_head;
  for (int h = 0; h < heads.lanes.heads; ++h) {
    if constexpr (sizeof(Acc) == sizeof(float)) {
      lse[h] = state.highest.lane[h] + __builtin_logf(state.total.lane[h]);
    } else {
      lse[h] = state.highest.lane[h] + __builtin_log(state.total.lane[h]);
    }
  }
  if constexpr (kPositive) {
    Acc* share = static_cast<Acc*>(task.args.positive_alpha) + row * task.heads + heads.first_head;
    for (int h = 0; h < heads.lanes.heads; ++h) share[h] = state.positive.lane[h] / state.total.lane[h];
  }
}

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
