// gatv2_attention on the CPU. Included once per level (GNNAGG_LEVEL).
//
// What: u = l_j + r_i + W e, s = sum_c att_c leaky(u_c), alpha = softmax of s over the row, out_i = sum alpha * mask * l_j.
// How: an item is one span. Chunk by chunk (score_task.h) the scores are computed, become weights in a running
// softmax, and weigh the rows of l that are in the first cache by now. W e of a chunk is a small matrix product into a
// buffer of kChunkSlots padded rows, which then stands in for r_i.
// Traffic: F * s bytes of l per slot, once; 4 bytes of col, and with edge features 4 of perm and D * s of attributes.
// Determinism: as score_task.h says.
#pragma once

#include "cpu/score_softmax.h"

namespace gnnagg::cpu::GNNAGG_LEVEL {

// Rows l or r plus W e: the parts of u that the other end of an edge adds to.
template <typename T>
struct Gatv2Task : ScoreTask<T> {
  using Acc = Accumulate<T>;
  const Acc* att;     // padded row
  const Acc* matrix;  // [D, padded row]
  Vector<Acc> negative_slope;

  Gatv2Task(const ScoreArgs& args, const void* att_row, const void* matrix_rows, double slope)
      : ScoreTask<T>(args),
        att(static_cast<const Acc*>(att_row)),
        matrix(static_cast<const Acc*>(matrix_rows)),
        negative_slope(broadcast<Acc>(Acc(slope))) {}

  // to[s] = mine + W e of slot s; padded rows.
  void add_edges(const Acc* mine, const Acc* edges, int count, Acc* to) const {
    for (int64_t head = 0; head < this->heads; ++head) {
      for (int v = 0; v < this->vectors; ++v) {
        const int64_t at = head * this->stride + v * kWidth<T>;
        for (int s = 0; s < count; s += kBatchSlots) {
          Vector<Acc> sum[kBatchSlots];
#pragma GCC unroll 4
          for (int i = 0; i < kBatchSlots; ++i) sum[i] = load(mine + at);
          for (int64_t d = 0; d < this->edge_dim; ++d) {
            const Vector<Acc> column = load(matrix + d * this->padded + at);
#pragma GCC unroll 4
            for (int i = 0; i < kBatchSlots; ++i) {
              sum[i] += product(column, broadcast<Acc>(edges[d * kChunkSlots + s + i]));
            }
          }
#pragma GCC unroll 4
          for (int i = 0; i < kBatchSlots; ++i) {
            // Infinite features times the zeros behind a head would be NaN.
            const Vector<Acc> row = v + 1 < this->vectors ? sum[i] : zero_behind<Acc>(sum[i], this->in_last);
            store(to + (s + i) * this->padded + at, row);
          }
        }
      }
    }
  }
};

// The rows that a chunk's slots add to: one for all, or one per slot where there are edge features.
template <typename Acc>
struct BaseRows {
  const Acc* row;
  int64_t step;
  GNNAGG_INLINE const Acc* of(int s) const { return row + s * step; }
};

template <typename T>
void gatv2_spans(const Gatv2Args& args, int64_t begin_span, int64_t end_span) {
  using Acc = Accumulate<T>;
  using Room = Scratch<Acc>;
  const Gatv2Task<T> task(args.score, args.att, args.matrix, args.negative_slope);
  const T* l = static_cast<const T*>(args.l);
  const T* l_end = l + args.score.num_cols * task.width;
  const T* r = static_cast<const T*>(args.r);
  const T* r_end = r + task.view.num_rows * task.width;
  const int64_t scores_size = task.heads * kChunkSlots, edges_size = task.edge_stride * kChunkSlots;
  const int64_t bases_size = task.edge_dim ? kChunkSlots * task.padded : 0;
  Scratch<Acc> scratch(SoftmaxSums<T>::room(task, args.result) + Room::room(task.padded) + Room::room(scores_size) +
                       Room::room(task.masks_size()) + 2 * Room::room(edges_size) + Room::room(bases_size));
  const SoftmaxSums<T> sums(task, args.result, scratch);
  Acc* mine = scratch.take(task.padded);
  Acc* scores = scratch.take(scores_size);
  Acc* masks = scratch.take(task.masks_size());
  Acc* edge_rows = scratch.take(edges_size);
  Acc* edges = scratch.take(edges_size);
  Acc* bases = scratch.take(bases_size);
  const Tail<T> tail(task.in_last, l_end);
  Chunk<T> chunk;
  for (int64_t span = begin_span; span < end_span; ++span) {
    SpanWalk walk(task.view, span);
    while (walk.next()) {
      sums.reset();
      task.widen_row(r + walk.row * task.width, r_end, mine);
      for (int64_t slot = walk.begin; slot < walk.end; slot += kChunkSlots) {
        task.fill(chunk, slot, walk.end, l, nullptr);
        BaseRows<Acc> base{mine, 0};
        if (task.edge_dim) {
          task.load_edges(chunk, edge_rows, edges);
          task.add_edges(mine, edges, chunk.count, bases);
          base = {bases, task.padded};
        }
        for (int s = 0; s < chunk.count; s += kBatchSlots) {
          for (int64_t head = 0; head < task.heads; ++head) {
            task.sum_batch(
                chunk.row + s, chunk.row_ahead + s, head, tail,
                [&](int i, Vector<Acc> value, int64_t at) {
                  const Vector<Acc> u = value + load(base.of(s + i) + at);
                  return product(leaky_relu_lanes<Acc>(u, task.negative_slope), load(task.att + at));
                },
                scores + head * kChunkSlots + s);
          }
        }
        sums.add_scores(chunk.count, scores);
        if (task.dropout.is_on) {
          task.draw_masks(chunk, masks);
          for (int64_t at = 0; at < scores_size; at += kLanesOf<Acc>) {
            store(scores + at, product(load(scores + at), load(masks + at)));
          }
        }
        task.template add_rows<false>(chunk.row, nullptr, chunk.count, scores, l_end, sums.features());
      }
      sums.end_of(walk);
    }
  }
}

}  // namespace gnnagg::cpu::GNNAGG_LEVEL
