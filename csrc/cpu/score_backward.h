// What the gradients of gatv2_attention and dot_attention share: sums of rows without a softmax, and the two numbers per
// slot and head that the pass over the targets leaves for the pass over the sources. Included per level.
#pragma once

#include <cstring>

#include "cpu/score_task.h"

namespace gnnagg::cpu::GNNAGG_LEVEL {

// --- sums of rows ----------------------------------------------------------------------------------------------------

template <typename T>
struct RowSums {
  using Acc = Accumulate<T>;
  const ScoreTask<T>& task;
  const SummedRows& rows;
  Acc* sums;

  Acc* first() const { return sums; }
  Acc* second() const { return sums + task.padded; }
  Acc* wide() const { return sums + (rows.second ? 2 : 1) * task.padded; }

  void reset() const { __builtin_memset(sums, 0, size_t(rows.piece) * sizeof(Acc)); }

  void finish(int64_t row) const {
    const Acc* factors = static_cast<const Acc*>(rows.factors);
    const Vector<Acc> scale = broadcast<Acc>(Acc(rows.first_scale));
    task.narrow_row(
        first(), static_cast<T*>(rows.first) + row * task.width,
        [&](Vector<Acc> value, int64_t, int64_t at) { return value * (factors ? load(factors + at) : scale); });
    if (rows.second) {
      task.narrow_row(second(), static_cast<T*>(rows.second) + row * task.width,
                      [](Vector<Acc> value, int64_t, int64_t) { return value; });
    }
    if (!rows.wide) return;
    Acc* to = static_cast<Acc*>(rows.wide) + row * task.heads * task.edge_dim;
    for (int64_t head = 0; head < task.heads; ++head) {
      for (int64_t d = 0; d < task.edge_dim; ++d) {
        to[head * task.edge_dim + d] = wide()[head * task.edge_stride + d] * Acc(rows.wide_scale);
      }
    }
  }

  GNNAGG_INLINE void end_of(const SpanWalk& walk) const {
    if (walk.partial == walk.kWholeRow) {
      finish(walk.row);
    } else {
      std::memcpy(static_cast<Acc*>(rows.partials) + walk.partial * rows.piece, sums, size_t(rows.piece) * sizeof(Acc));
    }
  }
};

template <typename T>
void combine_sums(const ScoreArgs& args, const SummedRows& rows, int64_t begin, int64_t end) {
  using Acc = Accumulate<T>;
  const ScoreTask<T> task(args);
  Scratch<Acc> scratch(rows.piece);
  const RowSums<T> sums{task, rows, scratch.take(rows.piece)};
  for (int64_t item = begin; item < end; ++item) {
    const SplitRow split = task.view.split_row(item);
    sums.reset();
    for (int64_t p = 0; p < task.view.num_partials(split); ++p) {
      const Acc* piece = static_cast<const Acc*>(rows.partials) + task.view.partial(split, p) * rows.piece;
      for (int64_t at = 0; at < rows.piece; ++at) sums.sums[at] += piece[at];
    }
    sums.finish(task.view.row_of(split));
  }
}

// --- weights of slots ------------------------------------------------------------------------------------------------

// Scores and <grad, value> of a chunk, both [H, kChunkSlots], become alpha * mask and the gradients of the scores,
// alpha * (mask * <grad, value> - D). Both are also left for the sources, [slot, 2, H]; 0 for the slots that are lacking.
template <typename Acc>
GNNAGG_INLINE void weigh_gradients(int64_t heads, int count, const Acc* lse, const Acc* d, const Acc* mask, Acc* scores,
                                   Acc* products, Acc* left) {
  for (int64_t head = 0; head < heads; ++head) {
    Acc* score = scores + head * kChunkSlots;
    Acc* gradient = products + head * kChunkSlots;
    const Vector<Acc> shift = broadcast<Acc>(lse[head]), mean = broadcast<Acc>(d[head]);
    for_each_slot_vector<Acc>([&](int at) {
      const Vector<Acc> alpha = exp_lanes<Acc>(load(score + at) - shift);
      Vector<Acc> kept = alpha, product_kept = load(gradient + at);
      if (mask) {
        const Vector<Acc> factor = load(mask + head * kChunkSlots + at);
        kept = product(alpha, factor);
        product_kept = product(product_kept, factor);
      }
      store(score + at, kept);
      store(gradient + at, product(alpha, product_kept - mean));
    });
    for (int s = count; s < kChunkSlots; ++s) score[s] = gradient[s] = Acc(0);
    for (int s = 0; s < count; ++s) {
      left[s * 2 * heads + head] = score[s];
      left[s * 2 * heads + heads + head] = gradient[s];
    }
  }
}

// What weigh_gradients left for the slots of a chunk of the transpose, as [H, kChunkSlots] each.
template <typename T>
GNNAGG_INLINE void load_weights(const ScoreTask<T>& task, const Chunk<T>& chunk, const void* weights,
                                Accumulate<T>* weight, Accumulate<T>* gradient) {
  using Acc = Accumulate<T>;
  const Acc* all = static_cast<const Acc*>(weights);
  for (int s = 0; s < chunk.count; ++s) {
    const int64_t at = chunk.first_slot + s, later = at + 2 * kChunkSlots;
    const int64_t ahead = later < task.last_slot ? later : task.last_slot;
    __builtin_prefetch(all + task.forward_slot(ahead) * 2 * task.heads);
    const Acc* from = all + task.forward_slot(at) * 2 * task.heads;
    for (int64_t head = 0; head < task.heads; ++head) {
      weight[head * kChunkSlots + s] = from[head];
      gradient[head * kChunkSlots + s] = from[task.heads + head];
    }
  }
}

}  // namespace gnnagg::cpu::GNNAGG_LEVEL
