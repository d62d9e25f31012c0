// Gradient of gatv2_attention on the CPU. Included once per level (GNNAGG_LEVEL). Letters as in gatv2_attention_kernel.h.
//
// What: alpha = exp(s - logsumexp_i), D_i = <dO_i, out_i>, ds = alpha * (mask * <dO_i, l_j> - D_i), g = ds att leaky'(u):
// dr_i = sum g, datt = sum ds leaky(u), de = W' g, dW = sum g (x) e, dl_j = sum alpha mask dO_i + sum g.
// How: two passes. gatv2_rows walks the rows of the forward's CSR and gathers l: everything but dl, leaving alpha * mask
// and ds, 2 H numbers per slot. Its items are groups of spans, each with sums of its own for datt and dW, which the caller
// adds up. gatv2_sources walks the transpose, gathers r and dO, and needs u again for its sign alone.
// Traffic: three gathers of F * s bytes per slot, 8 H bytes written and read at random, and twice the edge features.
// Determinism: as score_task.h says; groups are fixed by the schedule.
#pragma once

#include "cpu/gatv2_attention_kernel.h"
#include "cpu/score_backward.h"

namespace gnnagg::cpu::GNNAGG_LEVEL {

// Gradients of what all edges share, of one group of spans, and of a chunk's edge features.
template <typename T>
struct Gatv2Shared {
  using Acc = Accumulate<T>;
  const Gatv2Task<T>& task;
  Acc* d_att;      // padded row
  Acc* d_matrix;   // [D, padded row], or null
  T* d_edge_attr;  // [E, D], or null

  // dW += sum over the chunk's slots of g (x) e; `gradients` holds g as padded rows, 0 behind heads.
  void add_matrix(const Acc* gradients, const Acc* edges, int count) const {
    for (int64_t at = 0; at < task.padded; at += kLanesOf<Acc>) {
      for (int64_t d = 0; d < task.edge_dim; d += kBatchSlots) {
        const int columns = int(task.edge_dim - d < kBatchSlots ? task.edge_dim - d : kBatchSlots);
        Vector<Acc> sum[kBatchSlots] = {};
        for (int s = 0; s < count; ++s) {
          const Vector<Acc> g = load(gradients + s * task.padded + at);
#pragma GCC unroll 4
          for (int i = 0; i < kBatchSlots; ++i) {
            if (i < columns) sum[i] += product(g, broadcast<Acc>(edges[(d + i) * kChunkSlots + s]));
          }
        }
        for (int i = 0; i < columns; ++i) {
          Acc* to = d_matrix + (d + i) * task.padded + at;
          store(to, load(to) + sum[i]);
        }
      }
    }
  }

  // de = W' g of every slot of the chunk, kBatchSlots features at a time.
  void store_edges(const Chunk<T>& chunk, const Acc* gradients) const {
    constexpr int kParts = kLaneVectors<Acc>;
    for (int s = 0; s < chunk.count; ++s) {
      const Acc* g = gradients + s * task.padded;
      T* to = d_edge_attr + chunk.edge[s] * task.edge_dim;
      for (int64_t d = 0; d < task.edge_dim; d += kBatchSlots) {
        const int columns = int(task.edge_dim - d < kBatchSlots ? task.edge_dim - d : kBatchSlots);
        Vector<Acc> part[kBatchSlots][kParts] = {};
        for (int64_t first = 0; first < task.padded; first += kScoreLanes) {
          for_each_slot_vector<Acc>([&](int at) {
            const Vector<Acc> value = load(g + first + at);
#pragma GCC unroll 4
            for (int i = 0; i < kBatchSlots; ++i) {
              const int64_t column = d + (i < columns ? i : 0);
              part[i][at / kLanesOf<Acc>] += product(value, load(task.matrix + column * task.padded + first + at));
            }
          });
        }
        Acc sums[kBatchSlots];
        task.fold_batch(part, sums);
        for (int i = 0; i < columns; ++i) to[d + i] = narrow<T>(sums[i]);
      }
    }
  }
};

template <typename T>
void gatv2_rows(const Gatv2RowsArgs& args, int64_t begin_group, int64_t end_group) {
  using Acc = Accumulate<T>;
  using Room = Scratch<Acc>;
  constexpr int kParts = kLaneVectors<Acc>;
  const Gatv2Task<T> task(args.score, args.att, args.matrix, args.negative_slope);
  const T* l = static_cast<const T*>(args.l);
  const T* l_end = l + args.score.num_cols * task.width;
  const int64_t num_rows = task.view.num_rows, slots_size = task.heads * kChunkSlots;
  const int64_t edges_size = task.edge_stride * kChunkSlots, bases_size = task.edge_dim ? kChunkSlots * task.padded : 0;
  Scratch<Acc> scratch(4 * Room::room(task.padded) + 2 * Room::room(slots_size) + Room::room(task.masks_size()) +
                       Room::room(task.heads) + 2 * Room::room(edges_size) + 2 * Room::room(bases_size));
  const RowSums<T> sums{task, args.result, scratch.take(task.padded)};
  Acc* mine = scratch.take(task.padded);
  Acc* grad = scratch.take(task.padded);
  Acc* out = scratch.take(task.padded);
  Acc* scores = scratch.take(slots_size);
  Acc* products = scratch.take(slots_size);
  Acc* masks = scratch.take(task.masks_size());
  Acc* d = scratch.take(task.heads);
  Acc* edge_rows = scratch.take(edges_size);
  Acc* edges = scratch.take(edges_size);
  Acc* bases = scratch.take(bases_size);
  Acc* gradients = scratch.take(bases_size);
  const Tail<T> tail(task.in_last, l_end);
  const auto widen_row = [&](const void* table, int64_t row, Acc* to) {
    const T* rows = static_cast<const T*>(table);
    task.widen_row(rows + row * task.width, rows + num_rows * task.width, to);
  };
  Chunk<T> chunk;
  for (int64_t group = begin_group; group < end_group; ++group) {
    Gatv2Shared<T> shared{task, static_cast<Acc*>(args.d_att) + group * task.padded, nullptr,
                          static_cast<T*>(args.d_edge_attr)};
    if (args.d_matrix) shared.d_matrix = static_cast<Acc*>(args.d_matrix) + group * task.edge_dim * task.padded;
    const int64_t num_spans = task.view.num_spans;
    for (int64_t span = group * num_spans / args.num_groups; span < (group + 1) * num_spans / args.num_groups; ++span) {
      SpanWalk walk(task.view, span);
      while (walk.next()) {
        sums.reset();
        widen_row(args.r, walk.row, mine);
        widen_row(args.grad, walk.row, grad);
        widen_row(args.out, walk.row, out);
        for (int64_t head = 0; head < task.heads; ++head) {
          d[head] = padded_dot<Acc>(grad + head * task.stride, out + head * task.stride, task.stride);
        }
        const Acc* lse = static_cast<const Acc*>(args.lse) + walk.row * task.heads;
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
              // One read of l for the score and for <dO, l>.
              Vector<Acc> product_part[kBatchSlots][kParts] = {};
              task.sum_batch(
                  chunk.row + s, chunk.row_ahead + s, head, tail,
                  [&](int i, Vector<Acc> value, int64_t at) {
                    const int part = int((at - head * task.stride) / kWidth<T>) % kParts;
                    product_part[i][part] += product(value, load(grad + at));
                    const Vector<Acc> u = value + load(base.of(s + i) + at);
                    return product(leaky_relu_lanes<Acc>(u, task.negative_slope), load(task.att + at));
                  },
                  scores + head * kChunkSlots + s);
              task.fold_batch(product_part, products + head * kChunkSlots + s);
            }
          }
          if (task.dropout.is_on) task.draw_masks(chunk, masks);
          weigh_gradients<Acc>(task.heads, chunk.count, lse, d, task.dropout.is_on ? masks : nullptr, scores, products,
                               static_cast<Acc*>(args.weights) + slot * 2 * task.heads);
          for (int64_t head = 0; head < task.heads; ++head) {
            for (int v = 0; v < task.vectors; ++v) {
              const int64_t at = head * task.stride + v * kWidth<T>;
              const Vector<Acc> att = load(task.att + at);
              const Tail<T> tail_here = task.tail_of(v, tail);
              Vector<Acc> d_row = load(sums.first() + at), d_att = load(shared.d_att + at);
              for (int s = 0; s < chunk.count; ++s) {
                const Vector<Acc> ds = broadcast<Acc>(products[head * kChunkSlots + s]);
                const Vector<Acc> u = task.load_part(chunk.row[s] + head * task.channels + v * kWidth<T>, tail_here) +
                                      load(base.of(s) + at);
                const Vector<Acc> slope_ds = u > Vector<Acc>{} ? ds : product(ds, task.negative_slope);
                d_row += slope_ds;  // times att at the end of the row
                d_att += product(slope_ds, u);
                if (args.d_edge_attr) store(gradients + s * task.padded + at, product(slope_ds, att));
              }
              store(sums.first() + at, d_row);
              store(shared.d_att + at, d_att);
            }
          }
          if (args.d_edge_attr) {
            shared.add_matrix(gradients, edges, chunk.count);
            shared.store_edges(chunk, gradients);
          }
        }
        sums.end_of(walk);
      }
    }
  }
}

template <typename T>
void gatv2_sources(const Gatv2SourcesArgs& args, int64_t begin_span, int64_t end_span) {
  using Acc = Accumulate<T>;
  using Room = Scratch<Acc>;
  const Gatv2Task<T> task(args.score, args.att, args.matrix, args.negative_slope);
  const T* r = static_cast<const T*>(args.r);
  const T* r_end = r + args.score.num_cols * task.width;
  const T* grad = static_cast<const T*>(args.grad);
  const T* grad_end = grad + args.score.num_cols * task.width;
  const T* l = static_cast<const T*>(args.l);
  const T* l_end = l + task.view.num_rows * task.width;
  const int64_t slots_size = task.heads * kChunkSlots, edges_size = task.edge_stride * kChunkSlots;
  const int64_t bases_size = task.edge_dim ? kChunkSlots * task.padded : 0;
  Scratch<Acc> scratch(2 * Room::room(task.padded) + 2 * Room::room(slots_size) + 2 * Room::room(edges_size) +
                       Room::room(bases_size));
  const RowSums<T> sums{task, args.result, scratch.take(task.padded)};
  Acc* mine = scratch.take(task.padded);
  Acc* weights = scratch.take(slots_size);
  Acc* gradients = scratch.take(slots_size);
  Acc* edge_rows = scratch.take(edges_size);
  Acc* edges = scratch.take(edges_size);
  Acc* bases = scratch.take(bases_size);
  const Tail<T> tail(task.in_last, r_end), grad_tail(task.in_last, grad_end);
  Chunk<T> chunk;
  for (int64_t span = begin_span; span < end_span; ++span) {
    SpanWalk walk(task.view, span);
    while (walk.next()) {
      sums.reset();
      task.widen_row(l + walk.row * task.width, l_end, mine);
      for (int64_t slot = walk.begin; slot < walk.end; slot += kChunkSlots) {
        task.fill(chunk, slot, walk.end, r, grad);
        load_weights(task, chunk, args.weights, weights, gradients);
        BaseRows<Acc> base{mine, 0};
        if (task.edge_dim) {
          task.load_edges(chunk, edge_rows, edges);
          task.add_edges(mine, edges, chunk.count, bases);
          base = {bases, task.padded};
        }
        for (int64_t head = 0; head < task.heads; ++head) {
          for (int v = 0; v < task.vectors; ++v) {
            const int64_t at = head * task.stride + v * kWidth<T>;
            const Vector<Acc> att = load(task.att + at);
            const int64_t first = head * task.channels + v * kWidth<T>;
            const Tail<T> tail_here = task.tail_of(v, tail), grad_tail_here = task.tail_of(v, grad_tail);
            Vector<Acc> sum = load(sums.first() + at);
            for (int s = 0; s < chunk.count; ++s) {
              __builtin_prefetch(chunk.row_ahead[s] + first);
              __builtin_prefetch(chunk.other_ahead[s] + first);
              const Vector<Acc> ds = broadcast<Acc>(gradients[head * kChunkSlots + s]);
              const Vector<Acc> u = task.load_part(chunk.row[s] + first, tail_here) + load(base.of(s) + at);
              const Vector<Acc> slope_ds = u > Vector<Acc>{} ? ds : product(ds, task.negative_slope);
              const Vector<Acc> d_out = task.load_part(chunk.other[s] + first, grad_tail_here);
              sum += product(slope_ds, att) + product(d_out, broadcast<Acc>(weights[head * kChunkSlots + s]));
            }
            store(sums.first() + at, sum);
          }
        }
      }
      sums.end_of(walk);
    }
  }
}

}  // namespace gnnagg::cpu::GNNAGG_LEVEL
