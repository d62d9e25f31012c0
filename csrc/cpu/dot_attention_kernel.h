// dot_attention on the CPU. Included once per level (GNNAGG_LEVEL).
//
// What: s = scale * (<q_i, k_j> + <p_i, e>), alpha = softmax of s over the row, out_i = sum alpha * mask * v_j and
// edge_out_i = sum alpha * mask * e, with p = edge_query.
// How: an item is one span, walked in chunks (score_task.h). Edge features of a chunk lie with the slots side by
// side, so that <p, e> of all its slots is D multiplications of vectors.
// Traffic: F * s bytes each of k and v per slot, once; 4 bytes of col, and with edge features 4 of perm and D * s of
// attributes.
// Determinism: as score_task.h says.
#pragma once

#include "cpu/score_softmax.h"

namespace gnnagg::cpu::GNNAGG_LEVEL {

// sums[h, d] += sum over s of weight[h, s] * rows[s, d]; both padded by the edge stride.
template <typename T>
GNNAGG_INLINE void add_edge_sums(const ScoreTask<T>& task, int count, const Accumulate<T>* weight,
                                 const Accumulate<T>* rows, Accumulate<T>* sums) {
  using Acc = Accumulate<T>;
  for (int64_t head = 0; head < task.heads; ++head) {
    for (int64_t d = 0; d < task.edge_stride; d += kLanesOf<Acc>) {
      Acc* to = sums + head * task.edge_stride + d;
      Vector<Acc> sum = load(to);
      for (int s = 0; s < count; ++s) {
        sum += product(load(rows + s * task.edge_stride + d), broadcast<Acc>(weight[head * kChunkSlots + s]));
      }
      store(to, sum);
    }
  }
}

// to[h, s] += sum over d of mine[h, d] * columns[d, s]; `mine` is not padded.
template <typename T>
GNNAGG_INLINE void add_edge_dots(const ScoreTask<T>& task, const Accumulate<T>* mine, const Accumulate<T>* columns,
                                 Accumulate<T>* to) {
  using Acc = Accumulate<T>;
  for (int64_t head = 0; head < task.heads; ++head) {
    Vector<Acc> sum[kLaneVectors<Acc>] = {};
    for (int64_t d = 0; d < task.edge_dim; ++d) {
      const Vector<Acc> factor = broadcast<Acc>(mine[head * task.edge_dim + d]);
      for_each_slot_vector<Acc>(
          [&](int at) { sum[at / kLanesOf<Acc>] += product(load(columns + d * kChunkSlots + at), factor); });
    }
    for_each_slot_vector<Acc>([&](int at) {
      Acc* score = to + head * kChunkSlots + at;
      store(score, load(score) + sum[at / kLanesOf<Acc>]);
    });
  }
}

template <typename Acc>
GNNAGG_INLINE void scale_slots(int64_t count, Acc factor, Acc* slots) {
  for (int64_t at = 0; at < count; at += kLanesOf<Acc>) {
    store(slots + at, product(load(slots + at), broadcast<Acc>(factor)));
  }
}

template <typename T>
void dot_spans(const DotArgs& args, int64_t begin_span, int64_t end_span) {
  using Acc = Accumulate<T>;
  using Room = Scratch<Acc>;
  const ScoreTask<T> task(args.score);
  const T* k = static_cast<const T*>(args.k);
  const T* v = static_cast<const T*>(args.v);
  const T* k_end = k + args.score.num_cols * task.width;
  const T* v_end = v + args.score.num_cols * task.width;
  const T* q = static_cast<const T*>(args.q);
  const T* q_end = q + task.view.num_rows * task.width;
  const int64_t slots_size = task.heads * kChunkSlots, edges_size = task.edge_stride * kChunkSlots;
  Scratch<Acc> scratch(SoftmaxSums<T>::room(task, args.result) + Room::room(task.padded) + Room::room(slots_size) +
                       Room::room(task.masks_size()) + 2 * Room::room(edges_size));
  const SoftmaxSums<T> sums(task, args.result, scratch);
  Acc* mine = scratch.take(task.padded);
  Acc* scores = scratch.take(slots_size);
  Acc* masks = scratch.take(task.masks_size());
  Acc* edge_rows = scratch.take(edges_size);
  Acc* edge_columns = scratch.take(edges_size);
  const Tail<T> tail(task.in_last, k_end);
  Chunk<T> chunk;
  for (int64_t span = begin_span; span < end_span; ++span) {
    SpanWalk walk(task.view, span);
    while (walk.next()) {
      sums.reset();
      task.widen_row(q + walk.row * task.width, q_end, mine);
      for (int64_t slot = walk.begin; slot < walk.end; slot += kChunkSlots) {
        task.fill(chunk, slot, walk.end, k, v);
        for (int s = 0; s < chunk.count; s += kBatchSlots) {
          task.dot_batch(chunk.row + s, chunk.row_ahead + s, mine, tail, scores + s);
        }
        if (task.edge_dim) {
          task.load_edges(chunk, edge_rows, edge_columns);
          const Acc* query = static_cast<const Acc*>(args.edge_query) + walk.row * task.heads * task.edge_dim;
          add_edge_dots(task, query, edge_columns, scores);
        }
        scale_slots(slots_size, Acc(args.scale), scores);
        sums.add_scores(chunk.count, scores);
        if (task.dropout.is_on) {
          task.draw_masks(chunk, masks);
          for (int64_t at = 0; at < slots_size; at += kLanesOf<Acc>) {
            store(scores + at, product(load(scores + at), load(masks + at)));
          }
        }
        task.template add_rows<true>(chunk.other, chunk.other_ahead, chunk.count, scores, v_end, sums.features());
        if (task.edge_dim) add_edge_sums(task, chunk.count, scores, edge_rows, sums.edges());
      }
      sums.end_of(walk);
    }
  }
}

}  // namespace gnnagg::cpu::GNNAGG_LEVEL
