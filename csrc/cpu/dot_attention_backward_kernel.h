// Gradient of dot_attention on the CPU. Included once per level (GNNAGG_LEVEL). Letters as in dot_attention_kernel.h.
//
// What: alpha = exp(s - logsumexp_i), D_i = <dO_i, out_i> + <dEO_i, edge_out_i>,
// ds = scale * alpha * (mask * (<dO_i, v_j> + <dEO_i, e>) - D_i): dq_i = sum ds k_j, dp_i = sum ds e, dk_j = sum ds q_i,
// dv_j = sum alpha mask dO_i, de = sum over heads of ds p_i + alpha mask dEO_i.
// How: two passes. dot_rows walks the rows of the forward's CSR and gathers k and v: dq, dp and de; it leaves
// alpha * mask and ds / scale, 2 H numbers per slot. dot_sources walks the transpose and gathers q and dO.
// Traffic: four gathers of F * s bytes per slot, 8 H bytes written and read at random, the edge features once.
// Determinism: as score_task.h says.
#pragma once

#include "cpu/dot_attention_kernel.h"
#include "cpu/score_backward.h"

namespace gnnagg::cpu::GNNAGG_LEVEL {

template <typename T>
void dot_rows(const DotRowsArgs& args, int64_t begin_span, int64_t end_span) {
  using Acc = Accumulate<T>;
  using Room = Scratch<Acc>;
  const ScoreTask<T> task(args.score);
  const T* k = static_cast<const T*>(args.k);
  const T* v = static_cast<const T*>(args.v);
  const T* k_end = k + args.score.num_cols * task.width;
  const T* v_end = v + args.score.num_cols * task.width;
  const int64_t num_rows = task.view.num_rows, slots_size = task.heads * kChunkSlots;
  const int64_t edges_size = task.edge_stride * kChunkSlots, edge_row = task.heads * task.edge_dim;
  const Acc scale = Acc(args.scale);
  Scratch<Acc> scratch(Room::room(args.result.piece) + 3 * Room::room(task.padded) + 2 * Room::room(slots_size) +
                       Room::room(task.masks_size()) + Room::room(task.heads) + 3 * Room::room(edges_size));
  const RowSums<T> sums{task, args.result, scratch.take(args.result.piece)};
  Acc* mine = scratch.take(task.padded);
  Acc* grad = scratch.take(task.padded);
  Acc* out = scratch.take(task.padded);
  Acc* scores = scratch.take(slots_size);
  Acc* products = scratch.take(slots_size);
  Acc* masks = scratch.take(task.masks_size());
  Acc* d = scratch.take(task.heads);
  Acc* edge_rows = scratch.take(edges_size);
  Acc* edge_columns = scratch.take(edges_size);
  Acc* d_edges = scratch.take(edges_size);
  const Tail<T> k_tail(task.in_last, k_end), v_tail(task.in_last, v_end);
  const auto widen_row = [&](const void* table, int64_t row, Acc* to) {
    const T* rows = static_cast<const T*>(table);
    task.widen_row(rows + row * task.width, rows + num_rows * task.width, to);
  };
  Chunk<T> chunk;
  for (int64_t span = begin_span; span < end_span; ++span) {
    SpanWalk walk(task.view, span);
    while (walk.next()) {
      sums.reset();
      widen_row(args.q, walk.row, mine);
      widen_row(args.grad, walk.row, grad);
      widen_row(args.out, walk.row, out);
      const Acc* query = static_cast<const Acc*>(args.edge_query) + walk.row * edge_row;
      const Acc* grad_edge_out = static_cast<const Acc*>(args.grad_edge_out) + walk.row * edge_row;
      const Acc* edge_out = static_cast<const Acc*>(args.edge_out) + walk.row * edge_row;
      for (int64_t head = 0; head < task.heads; ++head) {
        d[head] = padded_dot<Acc>(grad + head * task.stride, out + head * task.stride, task.stride);
        for (int64_t at = head * task.edge_dim; at < (head + 1) * task.edge_dim; ++at) {
          d[head] += rounded_product(grad_edge_out[at], edge_out[at]);
        }
      }
      const Acc* lse = static_cast<const Acc*>(args.lse) + walk.row * task.heads;
      for (int64_t slot = walk.begin; slot < walk.end; slot += kChunkSlots) {
        task.fill(chunk, slot, walk.end, k, v);
        for (int s = 0; s < chunk.count; s += kBatchSlots) {
          task.dot_batch(chunk.row + s, chunk.row_ahead + s, mine, k_tail, scores + s);
          task.dot_batch(chunk.other + s, chunk.other_ahead + s, grad, v_tail, products + s);
        }
        if (task.edge_dim) {
          task.load_edges(chunk, edge_rows, edge_columns);
          add_edge_dots(task, query, edge_columns, scores);
          add_edge_dots(task, grad_edge_out, edge_columns, products);
        }
        scale_slots(slots_size, scale, scores);
        if (task.dropout.is_on) task.draw_masks(chunk, masks);
        weigh_gradients<Acc>(task.heads, chunk.count, lse, d, task.dropout.is_on ? masks : nullptr, scores, products,
                             static_cast<Acc*>(args.weights) + slot * 2 * task.heads);
        task.template add_rows<false>(chunk.row, nullptr, chunk.count, products, k_end, sums.first());
        if (!task.edge_dim) continue;
        add_edge_sums(task, chunk.count, products, edge_rows, sums.wide());
        for (int64_t e = 0; e < task.edge_dim; ++e) {
          Vector<Acc> sum[kLaneVectors<Acc>] = {};
          for (int64_t head = 0; head < task.heads; ++head) {
            const int64_t at_edge = head * task.edge_dim + e;
            const Vector<Acc> by_score = broadcast<Acc>(rounded_product(query[at_edge], scale));
            const Vector<Acc> by_value = broadcast<Acc>(grad_edge_out[at_edge]);
            for_each_slot_vector<Acc>([&](int at) {
              sum[at / kLanesOf<Acc>] += product(by_score, load(products + head * kChunkSlots + at)) +
                                         product(by_value, load(scores + head * kChunkSlots + at));
            });
          }
          for_each_slot_vector<Acc>([&](int at) { store(d_edges + e * kChunkSlots + at, sum[at / kLanesOf<Acc>]); });
        }
        for (int s = 0; s < chunk.count; ++s) {
          T* to = static_cast<T*>(args.d_edge_attr) + chunk.edge[s] * task.edge_dim;
          for (int64_t e = 0; e < task.edge_dim; ++e) to[e] = narrow<T>(d_edges[e * kChunkSlots + s]);
        }
      }
      sums.end_of(walk);
    }
  }
}

template <typename T>
void dot_sources(const DotSourcesArgs& args, int64_t begin_span, int64_t end_span) {
  using Acc = Accumulate<T>;
  using Room = Scratch<Acc>;
  const ScoreTask<T> task(args.score);
  const T* q = static_cast<const T*>(args.q);
  const T* q_end = q + args.score.num_cols * task.width;
  const T* grad = static_cast<const T*>(args.grad);
  const T* grad_end = grad + args.score.num_cols * task.width;
  const int64_t slots_size = task.heads * kChunkSlots;
  Scratch<Acc> scratch(Room::room(args.result.piece) + 2 * Room::room(slots_size));
  const RowSums<T> sums{task, args.result, scratch.take(args.result.piece)};
  Acc* weights = scratch.take(slots_size);
  Acc* gradients = scratch.take(slots_size);
  Chunk<T> chunk;
  for (int64_t span = begin_span; span < end_span; ++span) {
    SpanWalk walk(task.view, span);
    while (walk.next()) {
      sums.reset();
      for (int64_t slot = walk.begin; slot < walk.end; slot += kChunkSlots) {
        task.fill(chunk, slot, walk.end, q, grad);
        load_weights(task, chunk, args.weights, weights, gradients);
        task.template add_rows<true>(chunk.row, chunk.row_ahead, chunk.count, gradients, q_end, sums.first());
        task.template add_rows<true>(chunk.other, chunk.other_ahead, chunk.count, weights, grad_end, sums.second());
      }
      sums.end_of(walk);
    }
  }
}

}  // namespace gnnagg::cpu::GNNAGG_LEVEL
