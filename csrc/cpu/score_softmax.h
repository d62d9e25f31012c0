// The softmax of the rows that pass by, of gatv2_attention and dot_attention. Included per level.
//
// The sums of a row are one array, laid out as the piece that a split row leaves. They are relative to the greatest
// score so far: a chunk with a greater one scales what was summed before it. By the rules of common/softmax.h.
#pragma once

#include <cstring>

#include "cpu/score_task.h"

namespace gnnagg::cpu::GNNAGG_LEVEL {

// The sums of a row: [H, S] features, [H, edge stride] edge features where there are any, [H] maxima, [H] sums.
template <typename T>
struct SoftmaxSums {
  using Acc = Accumulate<T>;
  const ScoreTask<T>& task;
  const SoftmaxRows& rows;
  int64_t edge_size;
  Acc* sums;
  Acc* now;      // [H], and lanes to spare: the maxima after a chunk
  Acc* factors;  // likewise: what they scale earlier sums by

  SoftmaxSums(const ScoreTask<T>& of, const SoftmaxRows& to, Scratch<Acc>& scratch)
      : task(of),
        rows(to),
        edge_size(to.edge_out ? of.heads * of.edge_stride : 0),
        sums(scratch.take(to.piece)),
        now(scratch.take(of.heads + kScoreLanes)),
        factors(scratch.take(of.heads + kScoreLanes)) {}
  static int64_t room(const ScoreTask<T>& task, const SoftmaxRows& rows) {
    return Scratch<Acc>::room(rows.piece) + 2 * Scratch<Acc>::room(task.heads + kScoreLanes);
  }

  Acc* features() const { return sums; }
  Acc* edges() const { return sums + task.padded; }
  Acc* highest() const { return edges() + edge_size; }
  Acc* total() const { return highest() + task.heads; }

  void reset() const {
    __builtin_memset(sums, 0, size_t(task.padded + edge_size) * sizeof(Acc));
    for (int64_t head = 0; head < task.heads; ++head) {
      highest()[head] = SoftmaxLimits<Acc>::kLowestScore;
      total()[head] = Acc(0);
    }
  }

  // Scales what was summed by factors[head].
  GNNAGG_INLINE void rescale() const {
    for (int64_t head = 0; head < task.heads; ++head) {
      const Vector<Acc> factor = broadcast<Acc>(factors[head]);
      Acc* row = features() + head * task.stride;
      for (int v = 0; v < task.vectors; ++v) store(row + v * kWidth<T>, product(load(row + v * kWidth<T>), factor));
      Acc* edge_row = edges() + head * task.edge_stride;
      for (int64_t d = 0; d < (edge_size ? task.edge_stride : 0); d += kLanesOf<Acc>) {
        store(edge_row + d, product(load(edge_row + d), factor));
      }
      total()[head] = rounded_product(total()[head], factors[head]);
    }
  }

  // Moves the maxima to now[head], and what was summed with them.
  GNNAGG_INLINE void raise() const {
    for (int64_t head = 0; head < task.heads; head += kLanesOf<Acc>) {
      store(factors + head, exp_lanes<Acc>(load(highest() + head) - load(now + head)));
    }
    rescale();
    for (int64_t head = 0; head < task.heads; ++head) highest()[head] = now[head];
  }

  // Scores [H, kChunkSlots] become the weights exp(score - maximum so far); what was summed before is scaled to them.
  GNNAGG_INLINE void add_scores(int count, Acc* scores) const {
    bool is_first = true, is_higher = false;
    for (int64_t head = 0; head < task.heads; ++head) {
      Acc* score = scores + head * kChunkSlots;
      for (int s = count; s < kChunkSlots; ++s) score[s] = -__builtin_huge_val();
      Vector<Acc> best = broadcast<Acc>(highest()[head]);
      for_each_slot_vector<Acc>([&](int at) { best = greater(best, load(score + at)); });
      now[head] = greatest_lane<Acc>(best);
      is_higher |= now[head] != highest()[head];
      is_first &= highest()[head] == SoftmaxLimits<Acc>::kLowestScore;
    }
    if (is_first) {  // nothing but zeros to scale
      for (int64_t head = 0; head < task.heads; ++head) highest()[head] = now[head];
    } else if (is_higher) {
      raise();
    }
    for (int64_t head = 0; head < task.heads; ++head) {
      Acc* score = scores + head * kChunkSlots;
      const Vector<Acc> shift = broadcast<Acc>(now[head]);
      for_each_slot_vector<Acc>([&](int at) { store(score + at, exp_lanes<Acc>(load(score + at) - shift)); });
      total()[head] += sum_of_slots(score);
    }
  }

  // Adds the piece of another span to this row.
  void merge(const Acc* piece) const {
    const Acc* its_highest = piece + task.padded + edge_size;
    const Acc* its_total = its_highest + task.heads;
    for (int64_t head = 0; head < task.heads; ++head) {
      now[head] = its_highest[head] > highest()[head] ? its_highest[head] : highest()[head];
    }
    raise();
    for (int64_t head = 0; head < task.heads; ++head) {
      const Acc factor = exp_lanes<Acc>(broadcast<Acc>(its_highest[head] - now[head]))[0];
      total()[head] += rounded_product(its_total[head], factor);
      const auto add = [&](int64_t first, int64_t count) {
        for (int64_t at = first; at < first + count; at += kLanesOf<Acc>) {
          store(sums + at, load(sums + at) + product(load(piece + at), broadcast<Acc>(factor)));
        }
      };
      add(head * task.stride, task.stride);
      if (edge_size) add(task.padded + head * task.edge_stride, task.edge_stride);
    }
  }

  // The end of a row. A row with slots whose sum is 0 had no score above minus infinity.
  void finish(int64_t row, bool is_empty) const {
    Acc* inverse = highest();  // takes the maximum's place once that is used up
    Acc* lse = static_cast<Acc*>(rows.lse) + row * task.heads;
    for (int64_t head = 0; head < task.heads; ++head) {
      const Acc sum = total()[head];
      const Acc divisor = sum == Acc(0) ? Acc(__builtin_nan("")) : sum + Acc(kSoftmaxFloor);
      lse[head] = is_empty ? Acc(0) : highest()[head] + log_of(divisor);
      inverse[head] = is_empty ? Acc(0) : Acc(1) / divisor;
    }
    task.narrow_row(features(), static_cast<T*>(rows.out) + row * task.width,
                    [&](Vector<Acc> value, int64_t head, int64_t) { return value * broadcast<Acc>(inverse[head]); });
    if (!edge_size) return;
    Acc* edge_out = static_cast<Acc*>(rows.edge_out) + row * task.heads * task.edge_dim;
    for (int64_t head = 0; head < task.heads; ++head) {
      for (int64_t d = 0; d < task.edge_dim; ++d) {
        edge_out[head * task.edge_dim + d] = edges()[head * task.edge_stride + d] * inverse[head];
      }
    }
  }

  GNNAGG_INLINE void end_of(const SpanWalk& walk) const {
    if (walk.partial == walk.kWholeRow) {
      finish(walk.row, walk.begin == walk.end);
    } else {
      std::memcpy(static_cast<Acc*>(rows.partials) + walk.partial * rows.piece, sums, size_t(rows.piece) * sizeof(Acc));
    }
  }
};

template <typename T>
void combine_softmax(const ScoreArgs& args, const SoftmaxRows& rows, int64_t begin, int64_t end) {
  using Acc = Accumulate<T>;
  const ScoreTask<T> task(args);
  Scratch<Acc> scratch(SoftmaxSums<T>::room(task, rows));
  const SoftmaxSums<T> sums(task, rows, scratch);
  for (int64_t item = begin; item < end; ++item) {
    const SplitRow split = task.view.split_row(item);
    sums.reset();
    for (int64_t p = 0; p < task.view.num_partials(split); ++p) {
      sums.merge(static_cast<const Acc*>(rows.partials) + task.view.partial(split, p) * rows.piece);
    }
    sums.finish(task.view.row_of(split), false);
  }
}

}  // namespace gnnagg::cpu::GNNAGG_LEVEL
