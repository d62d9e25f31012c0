// Softmax of edge scores over rows on the CPU, forward and backward. Included once per level (GNNAGG_LEVEL).
//
// What: alpha[e, h] = exp(score[e, h] - max) / (sum + 1e-16) over the edges of e's row; backward alpha * (grad - sum
// over the row of alpha * grad).
// How: a row is walked in chunks (attention_lanes.h) twice: to its maximum and sum (or its sum of alpha * grad), then
// to its results; a row of one chunk is gathered once. A piece of a split row leaves what it found, the pieces are
// combined, and the spans write the results of their pieces.
// Traffic: 2 H s bytes per slot, and s H more per slot of rows of several chunks.
// Determinism: slots in order within a chunk, chunks in order, pieces in span order. Nothing depends on the thread or
// on the level.
#pragma once

#include "cpu/attention_lanes.h"
#include "cpu/gat_attention_args.h"
#include "cpu/span_walk.h"

namespace gnnagg::cpu::GNNAGG_LEVEL {

// What is known of a piece, spread over the lanes of a turn: maximum and sum, or the sum of alpha * grad.
template <typename Acc>
struct PieceState {
  HeadBuffer<Acc> field[2];
};

template <typename Acc>
struct EdgeChunk {
  LaneBuffer<Acc> value, alpha;
  HeadBuffer<Acc> highest, total;
};

template <typename T>
struct EdgeHeads {
  using Acc = Accumulate<T>;
  int64_t first_head;
  HeadLanes lanes;
  HeadTable<T> values, alpha;

  EdgeHeads(const EdgeSoftmaxArgs& args, int64_t first)
      : first_head(first),
        lanes(args.heads - first < kMostHeads ? args.heads - first : kMostHeads),
        values(args.values, first, args.heads, args.num_edges),
        alpha(args.alpha, first, args.heads, args.num_edges) {}
};

// The two directions: gather a chunk, take it into the state, write results from what was gathered and the state.
template <typename T>
struct SoftmaxForward {
  using Acc = Accumulate<T>;
  static constexpr int kFields = 2;

  static GNNAGG_INLINE void gather(const EdgeHeads<T>& heads, const ChunkRows& rows, EdgeChunk<Acc>& chunk) {
    const HeadLanes& lanes = heads.lanes;
    heads.values.gather(lanes, rows.edge, rows.count, chunk.value.lane);
    fill_behind(lanes, rows.count, chunk.value.lane, Acc(-__builtin_inf()));
  }

  static GNNAGG_INLINE void take(const HeadLanes& lanes, int count, bool is_first, EdgeChunk<Acc>& chunk,
                                 PieceState<Acc>& state) {
    const int end = lanes.lanes(count);
    Acc *highest = state.field[0].lane, *total = state.field[1].lane;
    for (int p = 0; p < lanes.span; p += kLanesOf<Acc>) {
      Vector<Acc> best = broadcast<Acc>(SoftmaxLimits<Acc>::kLowestScore);
      for (int at = p; at < end; at += lanes.span) best = greater(best, load(chunk.value.lane + at));
      store(chunk.highest.lane + p, best);
    }
    fold_heads(lanes, chunk.highest.lane, [](Vector<Acc> a, Vector<Acc> b) { return greater(a, b); });
    for (int p = 0; p < lanes.span; p += kLanesOf<Acc>) {
      Vector<Acc> best = load(chunk.highest.lane + p);
      if (!is_first) best = greater(load(highest + p), best);
      Vector<Acc> sum = {};
      for (int at = p; at < end; at += lanes.span) sum += exp_lanes<Acc>(load(chunk.value.lane + at) - best);
      store(chunk.highest.lane + p, best);
      store(chunk.total.lane + p, sum);
    }
    sum_heads(lanes, chunk.total.lane);
    for (int p = 0; p < lanes.span; p += kLanesOf<Acc>) {
      Vector<Acc> sum = load(chunk.total.lane + p), best = load(chunk.highest.lane + p);
      if (!is_first) sum += product(load(total + p), exp_lanes<Acc>(load(highest + p) - best));
      store(highest + p, best);
      store(total + p, sum);
    }
  }

  static GNNAGG_INLINE void finish(const HeadLanes& lanes, int count, const PieceState<Acc>& state,
                                   EdgeChunk<Acc>& chunk) {
    const int end = lanes.lanes(count);
    const Vector<Acc> nothing = broadcast<Acc>(Acc(__builtin_nan("")));
    for (int p = 0; p < lanes.span; p += kLanesOf<Acc>) {
      const Vector<Acc> best = load(state.field[0].lane + p), total = load(state.field[1].lane + p);
      const Vector<Acc> sum = total == Vector<Acc>{} ? nothing : total + Acc(kSoftmaxFloor);
      for (int at = p; at < end; at += lanes.span) {
        store(chunk.value.lane + at, exp_lanes<Acc>(load(chunk.value.lane + at) - best) / sum);
      }
    }
  }

  // Takes the state of a later piece into that of the pieces before it.
  static GNNAGG_INLINE void merge(const HeadLanes& lanes, const PieceState<Acc>& later, PieceState<Acc>& state) {
    for (int p = 0; p < lanes.span; p += kLanesOf<Acc>) {
      const Vector<Acc> before = load(state.field[0].lane + p), added = load(later.field[0].lane + p);
      const Vector<Acc> best = greater(before, added);
      const Vector<Acc> sum = product(load(state.field[1].lane + p), exp_lanes<Acc>(before - best)) +
                              product(load(later.field[1].lane + p), exp_lanes<Acc>(added - best));
      store(state.field[0].lane + p, best);
      store(state.field[1].lane + p, sum);
    }
  }
};

template <typename T>
struct SoftmaxBackward {
  using Acc = Accumulate<T>;
  static constexpr int kFields = 1;

  static GNNAGG_INLINE void gather(const EdgeHeads<T>& heads, const ChunkRows& rows, EdgeChunk<Acc>& chunk) {
    const HeadLanes& lanes = heads.lanes;
    heads.values.gather(lanes, rows.edge, rows.count, chunk.value.lane);
    heads.alpha.gather(lanes, rows.edge, rows.count, chunk.alpha.lane);
    fill_behind(lanes, rows.count, chunk.value.lane, Acc(0));
    fill_behind(lanes, rows.count, chunk.alpha.lane, Acc(0));
  }

  static GNNAGG_INLINE void take(const HeadLanes& lanes, int count, bool is_first, EdgeChunk<Acc>& chunk,
                                 PieceState<Acc>& state) {
    const int end = lanes.lanes(count);
    for (int p = 0; p < lanes.span; p += kLanesOf<Acc>) {
      Vector<Acc> sum = {};
      for (int at = p; at < end; at += lanes.span) {
        sum += product(load(chunk.value.lane + at), load(chunk.alpha.lane + at));
      }
      store(chunk.total.lane + p, sum);
    }
    sum_heads(lanes, chunk.total.lane);
    for (int p = 0; p < lanes.span; p += kLanesOf<Acc>) {
      const Vector<Acc> sum = load(chunk.total.lane + p);
      store(state.field[0].lane + p, is_first ? sum : load(state.field[0].lane + p) + sum);
    }
  }

  static GNNAGG_INLINE void finish(const HeadLanes& lanes, int count, const PieceState<Acc>& state,
                                   EdgeChunk<Acc>& chunk) {
    const int end = lanes.lanes(count);
    for (int p = 0; p < lanes.span; p += kLanesOf<Acc>) {
      const Vector<Acc> total = load(state.field[0].lane + p);
      for (int at = p; at < end; at += lanes.span) {
        store(chunk.value.lane + at, load(chunk.alpha.lane + at) * (load(chunk.value.lane + at) - total));
      }
    }
  }

  static GNNAGG_INLINE void merge(const HeadLanes& lanes, const PieceState<Acc>& later, PieceState<Acc>& state) {
    for (int p = 0; p < lanes.span; p += kLanesOf<Acc>) {
      store(state.field[0].lane + p, load(state.field[0].lane + p) + load(later.field[0].lane + p));
    }
  }
};

// State of a piece of a split row, [fields, H] in partial `place`.
template <typename Direction, typename Acc>
GNNAGG_INLINE Acc* piece_fields(const EdgeSoftmaxArgs& args, int64_t place, int64_t first_head) {
  return static_cast<Acc*>(args.partial_state) + place * Direction::kFields * args.heads + first_head;
}

template <typename Direction, typename Acc>
GNNAGG_INLINE void read_state(const EdgeSoftmaxArgs& args, const HeadLanes& lanes, int64_t place, int64_t first_head,
                              PieceState<Acc>& state) {
  const Acc* from = piece_fields<Direction, Acc>(args, place, first_head);
  for (int field = 0; field < Direction::kFields; ++field) {
    Acc* to = state.field[field].lane;
    for (int lane = 0; lane < lanes.span; ++lane) {
      const int head = lane % lanes.stride;
      to[lane] = head < lanes.heads ? from[field * args.heads + head] : Acc(0);
    }
  }
}

template <typename Direction, typename Acc>
GNNAGG_INLINE void write_state(const EdgeSoftmaxArgs& args, const HeadLanes& lanes, int64_t place, int64_t first_head,
                               const PieceState<Acc>& state) {
  Acc* to = piece_fields<Direction, Acc>(args, place, first_head);
  for (int field = 0; field < Direction::kFields; ++field) {
    for (int head = 0; head < lanes.heads; ++head) to[field * args.heads + head] = state.field[field].lane[head];
  }
}

template <typename Direction, typename T>
GNNAGG_INLINE void write_chunk(const EdgeSoftmaxArgs& args, const EdgeHeads<T>& heads, const ChunkRows& rows,
                               const PieceState<Accumulate<T>>& state, EdgeChunk<Accumulate<T>>& chunk) {
  const HeadLanes& lanes = heads.lanes;
  Direction::finish(lanes, rows.count, state, chunk);
  T* out = static_cast<T*>(args.out) + heads.first_head;
  for (int k = 0; k < rows.count; ++k) {
    write_row<T>(out + rows.edge[k] * args.heads, chunk.value.lane + k * lanes.stride, lanes.heads);
  }
}

// Whole rows to their results, pieces of split rows to their state; or, with `only_pieces`, pieces to their results.
template <typename Direction, typename T>
__attribute__((noinline)) void edge_rows(const EdgeSoftmaxArgs& args, int64_t begin_span, int64_t end_span,
                                         bool only_pieces) {
  using Acc = Accumulate<T>;
  enum Pass { kTake, kWrite };
  const SpanView view(args.csr);
  EdgeChunk<Acc> chunk;
  PieceState<Acc> state;
  ChunkRows rows;
  for (int64_t first = 0; first < args.heads; first += kMostHeads) {
    const EdgeHeads<T> heads(args, first);
    const int64_t slots = heads.lanes.slots;
    for (int64_t span = begin_span; span < end_span; ++span) {
      SpanWalk walk(view, span);
      while (walk.next()) {
        const bool is_whole = walk.partial == walk.kWholeRow;
        if (walk.begin == walk.end || (only_pieces && is_whole)) continue;
        if (only_pieces) read_state<Direction>(args, heads.lanes, walk.partial, first, state);
        const bool is_long = walk.end - walk.begin > slots;
        const int last_pass = is_whole || only_pieces ? kWrite : kTake;
        for (int pass = only_pieces ? kWrite : kTake; pass <= last_pass; ++pass) {
          for (int64_t from = walk.begin; from < walk.end; from += slots) {
            if (pass == kTake || only_pieces || is_long) {  // else the row's only chunk is there already
              rows.count = int(walk.end - from < slots ? walk.end - from : slots);
              rows.identify(args.perm, from);
              Direction::gather(heads, rows, chunk);
            }
            if (pass == kTake) {
              Direction::take(heads.lanes, rows.count, from == walk.begin, chunk, state);
            } else {
              write_chunk<Direction>(args, heads, rows, state, chunk);
            }
          }
        }
        if (!is_whole && !only_pieces) write_state<Direction>(args, heads.lanes, walk.partial, first, state);
      }
    }
  }
}

// Gives every piece of a split row the state of the whole row.
template <typename Direction, typename T>
void combine_pieces(const EdgeSoftmaxArgs& args, int64_t begin, int64_t end) {
  using Acc = Accumulate<T>;
  const SpanView view(args.csr);
  for (int64_t first = 0; first < args.heads; first += kMostHeads) {
    const HeadLanes lanes(args.heads - first < kMostHeads ? args.heads - first : kMostHeads);
    for (int64_t item = begin; item < end; ++item) {
      const SplitRow split = view.split_row(item);
      PieceState<Acc> state, later;
      read_state<Direction>(args, lanes, view.partial(split, 0), first, state);
      for (int64_t p = 1; p < view.num_partials(split); ++p) {
        read_state<Direction>(args, lanes, view.partial(split, p), first, later);
        Direction::merge(lanes, later, state);
      }
      for (int64_t p = 0; p < view.num_partials(split); ++p) {
        write_state<Direction>(args, lanes, view.partial(split, p), first, state);
      }
    }
  }
}

template <typename T>
void edge_softmax_spans(const EdgeSoftmaxArgs& args, int64_t begin, int64_t end) {
  edge_rows<SoftmaxForward<T>, T>(args, begin, end, false);
}
template <typename T>
void edge_softmax_combine(const EdgeSoftmaxArgs& args, int64_t begin, int64_t end) {
  combine_pieces<SoftmaxForward<T>, T>(args, begin, end);
}
template <typename T>
void edge_softmax_pieces(const EdgeSoftmaxArgs& args, int64_t begin, int64_t end) {
  edge_rows<SoftmaxForward<T>, T>(args, begin, end, true);
}
template <typename T>
void edge_softmax_backward_spans(const EdgeSoftmaxArgs& args, int64_t begin, int64_t end) {
  edge_rows<SoftmaxBackward<T>, T>(args, begin, end, false);
}
template <typename T>
void edge_softmax_backward_combine(const EdgeSoftmaxArgs& args, int64_t begin, int64_t end) {
  combine_pieces<SoftmaxBackward<T>, T>(args, begin, end);
}
template <typename T>
void edge_softmax_backward_pieces(const EdgeSoftmaxArgs& args, int64_t begin, int64_t end) {
  edge_rows<SoftmaxBackward<T>, T>(args, begin, end, true);
}

}  // namespace gnnagg::cpu::GNNAGG_LEVEL
