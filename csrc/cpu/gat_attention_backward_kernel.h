// Additive attention on the CPU, backward. Included once per level (GNNAGG_LEVEL).
//
// What: with D[i, h] = sum over c of grad[i, h, c] * out[i, h, c], alpha = exp(score - logsumexp[i]) and ds = alpha *
// (mask * <grad[i], z[j]> - D[i]) * leaky'(score), per source j: dz[j] = sum of alpha * mask * grad[i], da_src[j] =
// sum of ds. The gradient of a_dst is the sum of ds over the edges of i.
// How: node by node, (a_dst, logsumexp, D) of every target is laid side by side. Then the transpose is walked in chunks
// as the forward walks its rows: one gather of grad per edge serves both the dot product and the sum. ds is written out
// where a gradient of edge_score or a_dst is wanted, and summed over the rows of the forward in a last pass; where the
// forward left its sums over positive scores, a_dst's gradient is known node by node: the sum of all alpha * (...) of a
// row is 0, so the positive part alone gives the whole.
// Traffic: F * s + 12 H bytes per slot from whichever cache holds grad and the records, 4 to 12 bytes of indices; 4 H
// bytes written and read again for a_dst.
// Determinism: as the forward's.
#pragma once

#include "cpu/attention_dots.h"
#include "cpu/attention_dropout.h"
#include "cpu/edge_dot_kernel.h"
#include "cpu/gat_attention_args.h"
#include "cpu/span_walk.h"

namespace gnnagg::cpu::GNNAGG_LEVEL {

enum RecordField { kRecordDst, kRecordLse, kRecordDot, kRecordFields };

// dots[h] = <a[h], b[h]> of two rows of features.
template <typename T>
GNNAGG_INLINE void row_dots(const T* a, const T* b, int64_t heads, int64_t channels, const T* a_end, const T* b_end,
                            Accumulate<T>* dots) {
  const bool is_short = channels < kDotLanes;
  const int64_t per_turn = is_short ? kTermsPerTurn / channels : 1;
  for (int64_t head = 0; head < heads; head += per_turn) {
    const int64_t turn = heads - head < per_turn ? heads - head : per_turn, first = head * channels;
    const Tail<T> a_tail(int(turn * channels % kWidth<T>), a_end), b_tail(a_tail.count, b_end);
    if (is_short) {
      short_dots(a + first, b + first, turn, channels, a_tail, b_tail, dots + head, false);
    } else {
      dots[head] = long_dot(a + first, b + first, channels, a_tail, b_tail);
    }
  }
}

template <typename T>
void gat_prepare(const GatPrepareArgs& args, int64_t begin, int64_t end) {
  using Acc = Accumulate<T>;
  const int64_t width = args.width, heads = args.heads, channels = width / heads, features = args.num_dst * width;
  const T *grad = static_cast<const T*>(args.grad), *out = static_cast<const T*>(args.out);
  const T* positive_out = static_cast<const T*>(args.positive_out);
  const Acc* positive_alpha = static_cast<const Acc*>(args.positive_alpha);
  for (int64_t row = begin; row < end; ++row) {
    Acc* record = static_cast<Acc*>(args.record) + row * kRecordFields * heads;
    const Acc* lse = static_cast<const Acc*>(args.lse) + row * heads;
    for (int64_t h = 0; h < heads; ++h) {
      record[kRecordDst * heads + h] = args.a_dst ? static_cast<const Acc*>(args.a_dst)[row * heads + h] : Acc(0);
      record[kRecordLse * heads + h] = lse[h];
    }
    Acc* dot = record + kRecordDot * heads;
    row_dots(grad + row * width, out + row * width, heads, channels, grad + features, out + features, dot);
    if (!args.da_dst || !positive_out) continue;
    Acc* da_dst = static_cast<Acc*>(args.da_dst) + row * heads;
    row_dots(grad + row * width, positive_out + row * width, heads, channels, grad + features, positive_out + features,
             da_dst);
    for (int64_t h = 0; h < heads; ++h) {
      const Acc rest = rounded_product(dot[h], positive_alpha[row * heads + h]);
      da_dst[h] = (Acc(1) - Acc(args.negative_slope)) * (da_dst[h] - rest);
    }
  }
}

template <typename T>
struct GatBackwardTask {
  using Acc = Accumulate<T>;
  const GatBackwardArgs& args;
  const T* grad;
  const T* z;
  int64_t num_src, width, heads, channels;

  explicit GatBackwardTask(const GatBackwardArgs& given)
      : args(given),
        grad(static_cast<const T*>(given.grad)),
        z(static_cast<const T*>(given.z)),
        num_src(given.csr.num_rows),
        width(given.width),
        heads(given.heads),
        channels(given.width / given.heads) {}
};

template <typename T>
struct GatBackwardHeads {
  using Acc = Accumulate<T>;
  int64_t first_head, first_feature;
  HeadLanes lanes;
  HeadTable<Acc> a_src, edge_score, dst, lse, dot;

  GatBackwardHeads(const GatBackwardTask<T>& task, int64_t first)
      : first_head(first),
        first_feature(first * task.channels),
        lanes(task.heads - first < kMostHeads ? task.heads - first : kMostHeads),
        a_src(task.args.a_src, first, task.heads, task.num_src),
        edge_score(task.args.edge_score, first, task.heads, task.args.num_edges),
        dst(field(task, kRecordDst, first)),
        lse(field(task, kRecordLse, first)),
        dot(field(task, kRecordDot, first)) {}

 private:
  static HeadTable<Acc> field(const GatBackwardTask<T>& task, RecordField which, int64_t first) {
    return {task.args.record, which * task.heads + first, kRecordFields * task.heads, task.args.num_dst};
  }
};

// Of a chunk, slot by slot and head by head.
template <typename Acc>
struct ChunkGradients {
  LaneBuffer<Acc> slope;  // score before the leaky ReLU, then the slope there
  LaneBuffer<Acc> alpha;
  LaneBuffer<Acc> weight;  // alpha * mask
  LaneBuffer<Acc> lse, row_dot, dot, edge_score;
  HeadBuffer<Acc> total;  // of the gradients of the scores
  KeptLanes kept;
};

template <typename T>
GNNAGG_INLINE void gather_records(const GatBackwardHeads<T>& heads, const ChunkRows& rows,
                                  ChunkGradients<Accumulate<T>>& chunk) {
  const HeadLanes& lanes = heads.lanes;
  heads.dst.gather(lanes, rows.row, rows.count, chunk.slope.lane);
  heads.lse.gather(lanes, rows.row, rows.count, chunk.lse.lane);
  heads.dot.gather(lanes, rows.row, rows.count, chunk.row_dot.lane);
  if (heads.edge_score.values) heads.edge_score.gather(lanes, rows.edge, rows.count, chunk.edge_score.lane);
}

// One chunk of a source's edges. `src`: a_src of the source, spread. Adds ds to `total`.
template <typename T>
__attribute__((noinline)) void backward_chunk(const GatBackwardTask<T>& task, const GatBackwardHeads<T>& heads,
                                              const ChunkRows& rows, const Accumulate<T>* src, bool is_first,
                                              bool is_finished, int64_t row, int64_t place,
                                              ChunkGradients<Accumulate<T>>& chunk, Accumulate<T>* total) {
  using Acc = Accumulate<T>;
  const GatBackwardArgs& args = task.args;
  const HeadLanes& lanes = heads.lanes;
  const int end = lanes.lanes(rows.count);
  const Vector<Acc> slope = broadcast<Acc>(Acc(args.negative_slope)), one = broadcast<Acc>(Acc(1));
  gather_records(heads, rows, chunk);
  for (int p = 0; p < lanes.span; p += kLanesOf<Acc>) {
    const Vector<Acc> mine = load(src + p);
    for (int at = p; at < end; at += lanes.span) {
      Vector<Acc> before = load(chunk.slope.lane + at) + mine;
      if (heads.edge_score.values) before += load(chunk.edge_score.lane + at);
      store(chunk.alpha.lane + at, exp_lanes<Acc>(leaky_relu_lanes<Acc>(before, slope) - load(chunk.lse.lane + at)));
      store(chunk.slope.lane + at, before > Vector<Acc>{} ? one : slope);
    }
  }
  fill_behind(lanes, rows.count, chunk.alpha.lane, Acc(0));
  fill_behind(lanes, rows.count, chunk.row_dot.lane, Acc(0));
  fill_behind(lanes, rows.count, chunk.dot.lane, Acc(0));
  const Acc* weight = chunk.alpha.lane;
  if (args.dropout.is_on) {
    chunk.kept.draw(args.dropout, lanes, heads.first_head, rows.edge, rows.count);
    const Vector<Acc> scale = broadcast<Acc>(Acc(args.dropout.scale));
    for (int at = 0; at < end; at += kLanesOf<Acc>) {
      store(chunk.weight.lane + at, chunk.kept.template apply<Acc>(at, product(load(chunk.alpha.lane + at), scale)));
    }
    weight = chunk.weight.lane;
  }

  Acc* sums = static_cast<Acc*>(args.partials) + place * task.width + heads.first_feature;
  const int64_t at_row = row * task.width + heads.first_feature;
  add_and_dot_heads<T>({task.grad + heads.first_feature, task.grad + args.num_dst * task.width, task.z + at_row,
                        task.z + task.num_src * task.width, task.width, rows, weight, chunk.dot.lane, lanes.stride,
                        false, is_first ? nullptr : sums, is_finished ? nullptr : sums,
                        is_finished ? static_cast<T*>(args.dz) + at_row : nullptr},
                       lanes.heads, task.channels);

  for (int p = 0; p < lanes.span; p += kLanesOf<Acc>) {
    Vector<Acc> sum = {};
    for (int at = p; at < end; at += lanes.span) {
      const Vector<Acc> gained = product(load(weight + at), load(chunk.dot.lane + at));
      const Vector<Acc> spent = product(load(chunk.alpha.lane + at), load(chunk.row_dot.lane + at));
      const Vector<Acc> ds = product(gained - spent, load(chunk.slope.lane + at));
      store(chunk.dot.lane + at, ds);
      sum += ds;
    }
    store(chunk.total.lane + p, sum);
  }
  sum_heads(lanes, chunk.total.lane);
  for (int h = 0; h < lanes.heads; ++h) total[h] = is_first ? chunk.total.lane[h] : total[h] + chunk.total.lane[h];
}

template <typename T>
void gat_backward_spans(const GatBackwardArgs& args, int64_t begin_span, int64_t end_span) {
  using Acc = Accumulate<T>;
  const GatBackwardTask<T> task(args);
  const SpanView view(args.csr);
  const IndexArray perm = args.perm, slot = args.slot;
  const bool wants_ids = args.edge_score || args.dropout.is_on || args.ds_by_edge;
  const int64_t last_slot = view.live_edges() - 1;
  ChunkGradients<Acc> chunk;
  HeadBuffer<Acc> src, total;
  ChunkRows rows;
  for (int64_t first = 0; first < task.heads; first += kMostHeads) {
    const GatBackwardHeads<T> heads(task, first);
    const HeadLanes& lanes = heads.lanes;
    for (int64_t span = begin_span; span < end_span; ++span) {
      SpanWalk walk(view, span);
      while (walk.next()) {
        const bool is_whole = walk.partial == walk.kWholeRow;
        const int64_t place = is_whole ? 2 * span + 1 : walk.partial;
        Acc* da_src = is_whole ? static_cast<Acc*>(args.da_src) + walk.row * task.heads
                               : static_cast<Acc*>(args.partial_scores) + place * task.heads;
        if (walk.begin == walk.end) {
          T* dz = static_cast<T*>(args.dz) + walk.row * task.width + heads.first_feature;
          for (int64_t f = 0; f < lanes.heads * task.channels; ++f) dz[f] = T{};
          for (int h = 0; h < lanes.heads; ++h) da_src[first + h] = Acc(0);
          continue;
        }
        heads.a_src.spread(walk.row, lanes, src.lane);
        for (int64_t from = walk.begin; from < walk.end; from += lanes.slots) {
          const int64_t to = from + lanes.slots < walk.end ? from + lanes.slots : walk.end;
          rows.fill(view.col, from, to, last_slot);
          if (wants_ids) {
            slot.read(from, rows.count, rows.edge);
            for (int k = 0; perm && k < rows.count; ++k) rows.edge[k] = perm[rows.edge[k]];
          }
          backward_chunk(task, heads, rows, src.lane, from == walk.begin, is_whole && to == walk.end, walk.row, place,
                         chunk, total.lane);
          if (!args.ds) continue;
          Acc* ds = static_cast<Acc*>(args.ds) + first;
          for (int k = 0; k < rows.count; ++k) {
            const int64_t at = args.ds_by_edge ? rows.edge[k] : slot[from + k];
            write_row(ds + at * task.heads, chunk.dot.lane + k * lanes.stride, lanes.heads);
          }
        }
        for (int h = 0; h < lanes.heads; ++h) da_src[first + h] = total.lane[h];
      }
    }
  }
}

// sum over the pieces of a split row of `count` accumulators each, from [2 K, count], in span order.
template <typename T>
GNNAGG_INLINE void sum_pieces(const SpanView& view, const SplitRow& split, const void* partials, int64_t count,
                              T* out) {
  using Acc = Accumulate<T>;
  const Acc* from = static_cast<const Acc*>(partials);
  for (int64_t f = 0; f < count; f += kWidth<T>) {
    const int here = int(count - f < kWidth<T> ? count - f : kWidth<T>);
    Vector<Acc> sum = {};
    for (int64_t p = 0; p < view.num_partials(split); ++p) {
      sum += load_count(from + view.partial(split, p) * count + f, here);
    }
    store_count<T>(out + f, sum, here);
  }
}

template <typename T>
void gat_backward_combine(const GatBackwardArgs& args, int64_t begin, int64_t end) {
  const SpanView view(args.csr);
  for (int64_t item = begin; item < end; ++item) {
    const SplitRow split = view.split_row(item);
    const int64_t row = view.row_of(split);
    sum_pieces<T>(view, split, args.partials, args.width, static_cast<T*>(args.dz) + row * args.width);
    sum_pieces<Accumulate<T>>(view, split, args.partial_scores, args.heads,
                              static_cast<Accumulate<T>*>(args.da_src) + row * args.heads);
  }
}

// --- sums of scores over rows ----------------------------------------------------------------------------------------

template <typename Acc>
void score_sum_spans(const ScoreSumArgs& args, int64_t begin_span, int64_t end_span) {
  const SpanView view(args.csr);
  const IndexArray perm = args.perm;
  const Acc* values = static_cast<const Acc*>(args.values);
  const Acc* values_end = values + args.num_edges * args.heads;
  for (int64_t span = begin_span; span < end_span; ++span) {
    SpanWalk walk(view, span);
    while (walk.next()) {
      Acc* to = walk.partial == walk.kWholeRow ? static_cast<Acc*>(args.out) + walk.row * args.heads
                                               : static_cast<Acc*>(args.partials) + walk.partial * args.heads;
      for_each_block<Acc, 2>(args.heads, [&](auto size, int64_t first, int in_last) {
        const Tail<Acc> tail(in_last, values_end);
        Vector<Acc> sum[size.value] = {};
        for (int64_t slot = walk.begin; slot < walk.end; ++slot) {
          Vector<Acc> value[size.value];
          load_block(values + (perm ? perm[slot] : slot) * args.heads + first, tail, value);
          for (int v = 0; v < size.value; ++v) sum[v] += value[v];
        }
        store_block<size.value, Acc, Acc>(to + first, in_last, sum);
      });
    }
  }
}

template <typename Acc>
void score_sum_combine(const ScoreSumArgs& args, int64_t begin, int64_t end) {
  const SpanView view(args.csr);
  for (int64_t item = begin; item < end; ++item) {
    const SplitRow split = view.split_row(item);
    sum_pieces<Acc>(view, split, args.partials, args.heads,
                    static_cast<Acc*>(args.out) + view.row_of(split) * args.heads);
  }
}

}  // namespace gnnagg::cpu::GNNAGG_LEVEL
