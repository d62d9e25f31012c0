// The softmax of gat_attention: from what was gathered of a chunk's scores to weights, and what a row keeps between its
// chunks. Included per level. Heads and slots lie as attention_lanes.h says; by the rules of common/softmax.h.
//
// kPositive: the sums over the slots whose score before the leaky ReLU is positive are wanted too.
#pragma once

#include "cpu/attention_dropout.h"
#include "cpu/attention_lanes.h"
#include "cpu/gat_attention_args.h"

namespace gnnagg::cpu::GNNAGG_LEVEL {

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

}  // namespace gnnagg::cpu::GNNAGG_LEVEL
