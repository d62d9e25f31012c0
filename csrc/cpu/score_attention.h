// What the kernels of gatv2_attention and dot_attention share on the CPU. Included once per level (GNNAGG_LEVEL).
//
// Terms. A chunk is up to kChunkSlots slots of one row: their feature rows stay in the first cache while they are read
// for the scores and again for the sums, so each comes from memory once. What belongs to (head, slot) of a chunk lies as
// [H, kChunkSlots], so that an exponential takes a vector of slots; the slots that a short chunk lacks have a weight of 0.
// Rows in the accumulate type are padded (score_attention_args.h); feature rows in memory are not. The sums of a row are
// one array, laid out as the piece that a split row leaves.
//
// Channels are added up in kScoreLanes lanes, lane = channel modulo kScoreLanes, folded halves first: the same bits at
// every level. Slots are added in order, chunks from the begin of the row's piece on, pieces in span order.
#pragma once

#include "cpu/attention_dots.h"
#include "cpu/attention_dropout.h"
#include "cpu/score_attention_args.h"
#include "cpu/span_walk.h"

namespace gnnagg::cpu::GNNAGG_LEVEL {

constexpr int kChunkSlots = kScoreLanes;
// Slots whose dot products are taken together, so that one fold serves them all.
constexpr int kBatchSlots = 4;
// Vectors of a head whose sums are kept in registers together.
constexpr int kMostHeadVectors = 4;
// Vectors that make up kScoreLanes numbers.
template <typename Acc>
constexpr int kLaneVectors = kScoreLanes / kLanesOf<Acc>;

// --- memory ----------------------------------------------------------------------------------------------------------

// Rows and chunks of one call: memory is zero and begins at cache lines.
template <typename Acc>
class Scratch {
 public:
  explicit Scratch(int64_t count) {
    const int64_t bytes = count * int64_t(sizeof(Acc)) + kCacheLine;
    memory_ = __builtin_malloc(size_t(bytes));
    __builtin_memset(memory_, 0, size_t(bytes));
    next_ = reinterpret_cast<Acc*>((uintptr_t(memory_) + kCacheLine - 1) / kCacheLine * kCacheLine);
  }
  ~Scratch() { __builtin_free(memory_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // What take(count) uses up.
  static constexpr int64_t room(int64_t count) {
    constexpr int64_t kInLine = kCacheLine / int64_t(sizeof(Acc));
    return (count + kInLine - 1) / kInLine * kInLine;
  }
  Acc* take(int64_t count) {
    Acc* taken = next_;
    next_ += room(count);
    return taken;
  }

 private:
  void* memory_;
  Acc* next_;
};

// --- chunks: [kChunkSlots] numbers -----------------------------------------------------------------------------------

// Calls body(offset) for every vector of a chunk.
template <typename Acc, typename Body>
GNNAGG_INLINE void for_each_slot_vector(const Body& body) {
#pragma GCC unroll 8
  for (int v = 0; v < kLaneVectors<Acc>; ++v) body(v * kLanesOf<Acc>);
}

template <typename Acc>
GNNAGG_INLINE Acc fold_lane_vectors(Vector<Acc> (&part)[kLaneVectors<Acc>]) {
#pragma GCC unroll 8
  for (int half = kLaneVectors<Acc> / 2; half > 0; half /= 2) {
    for (int v = 0; v < half; ++v) part[v] += part[v + half];
  }
  return fold_lanes(part[0]);
}

template <typename Acc>
GNNAGG_INLINE Acc sum_of_slots(const Acc* a) {
  Vector<Acc> part[kLaneVectors<Acc>];
  for_each_slot_vector<Acc>([&](int at) { part[at / kLanesOf<Acc>] = load(a + at); });
  return fold_lane_vectors<Acc>(part);
}

template <typename Acc>
GNNAGG_INLINE Acc greatest_lane(Vector<Acc> value) {
#pragma GCC unroll 8
  for (int half = kLanesOf<Acc> / 2; half > 0; half /= 2) {
    value = greater(value, permute<Acc>(value, lane_numbers<Acc>() ^ LaneInt<Acc>(half)));
  }
  return value[0];
}

// The first `count` lanes, and 0 behind them.
template <typename Acc>
GNNAGG_INLINE Vector<Acc> zero_behind(Vector<Acc> value, int count) {
  return lane_numbers<Acc>() < LaneInt<Acc>(count) ? value : Vector<Acc>{};
}

GNNAGG_INLINE float log_of(float value) { return __builtin_logf(value); }
GNNAGG_INLINE double log_of(double value) { return __builtin_log(value); }

// --- the task --------------------------------------------------------------------------------------------------------

// A chunk: the feature rows of its slots in up to two tables, repeated up to a whole batch; its edges; and the rows that
// come kChunkSlots later, which are requested while these are read.
template <typename T>
struct Chunk {
  int64_t first_slot;
  int count;
  const T* row[kChunkSlots];
  const T* other[kChunkSlots];
  const T* row_ahead[kChunkSlots];
  const T* other_ahead[kChunkSlots];
  int64_t edge[kChunkSlots];
};

// ScoreArgs in their types, and the steps that several passes take.
template <typename T>
struct ScoreTask {
  using Acc = Accumulate<T>;
  SpanView view;
  IndexArray slot;
  IndexArray perm;
  const T* edge_attr;
  DropoutArgs dropout;
  int64_t heads, channels, width, stride, padded, edge_dim, edge_stride, last_slot;
  int vectors, whole, in_last;  // vectors of a head, whole ones among them, and channels in the last one

  explicit ScoreTask(const ScoreArgs& args)
      : view(args.csr),
        slot(args.slot),
        perm(args.perm),
        edge_attr(static_cast<const T*>(args.edge_attr)),
        dropout(args.dropout),
        heads(args.heads),
        channels(args.channels),
        width(args.heads * args.channels),
        stride(args.stride),
        padded(args.heads * args.stride),
        edge_dim(args.edge_dim),
        edge_stride(args.edge_stride),
        last_slot(view.live_edges() - 1),
        vectors(int((args.channels + kWidth<T> - 1) / kWidth<T>)),
        whole(int(args.channels / kWidth<T>)),
        in_last(int(args.channels - (vectors - 1) * kWidth<T>)) {}

  // --- feature rows

  // Vector v of the head that begins at `head_row`, 0 behind the head.
  GNNAGG_INLINE Vector<Acc> load_of_head(const T* head_row, int v, const Tail<T>& tail) const {
    if (v < whole) return load(head_row + v * kWidth<T>);
    return first_lanes<Acc>(load_tail(head_row + v * kWidth<T>, tail), in_last);
  }

  // How vector v of a head ends, for loops that read it of many rows.
  GNNAGG_INLINE Tail<T> tail_of(int v, const Tail<T>& tail) const {
    Tail<T> result = tail;
    if (v < whole) result.count = kWidth<T>;
    return result;
  }
  static GNNAGG_INLINE Vector<Acc> load_part(const T* from, const Tail<T>& tail) {
    return first_lanes<Acc>(load_tail(from, tail), tail.count);
  }

  // A feature row as a padded row. `end`: of its table.
  void widen_row(const T* row, const T* end, Acc* to) const {
    const Tail<T> tail(in_last, end);
    for (int64_t head = 0; head < heads; ++head) {
      for (int v = 0; v < vectors; ++v) {
        store(to + head * stride + v * kWidth<T>, load_of_head(row + head * channels, v, tail));
      }
    }
  }

  // The other way; value(vector, head, offset in the padded row) is what is stored.
  template <typename Value>
  GNNAGG_INLINE void narrow_row(const Acc* row, T* to, const Value& value) const {
    for (int64_t head = 0; head < heads; ++head) {
      for (int v = 0; v < vectors; ++v) {
        const int64_t at = head * stride + v * kWidth<T>;
        store_count(to + head * channels + v * kWidth<T>, value(load(row + at), head, at),
                    v + 1 < vectors ? kWidth<T> : in_last);
      }
    }
  }

  // --- chunks

  GNNAGG_INLINE int64_t forward_slot(int64_t at) const { return slot ? slot[at] : at; }
  GNNAGG_INLINE int64_t edge_of(int64_t at) const {
    const int64_t forward = forward_slot(at);
    return perm ? perm[forward] : forward;
  }

  GNNAGG_INLINE void fill(Chunk<T>& chunk, int64_t begin, int64_t end, const T* table, const T* other) const {
    chunk.first_slot = begin;
    chunk.count = int(end - begin < kChunkSlots ? end - begin : kChunkSlots);
    const int num_slots = ceil_div(chunk.count, kBatchSlots) * kBatchSlots;
    for (int s = 0; s < num_slots; ++s) {
      const int64_t row = view.col[begin + (s < chunk.count ? s : chunk.count - 1)] * width;
      const int64_t at_ahead = begin + s + kChunkSlots;
      const int64_t row_ahead = view.col[at_ahead < last_slot ? at_ahead : last_slot] * width;
      chunk.row[s] = table + row;
      chunk.row_ahead[s] = table + row_ahead;
      if (!other) continue;
      chunk.other[s] = other + row;
      chunk.other_ahead[s] = other + row_ahead;
    }
    if (dropout.is_on || edge_dim) {
      for (int s = 0; s < chunk.count; ++s) chunk.edge[s] = edge_of(begin + s);
    }
  }

  // Edge features of the chunk, as rows [kChunkSlots, edge stride] and as columns [D, kChunkSlots]; 0 for the slots that it
  // lacks. The next chunk's are requested.
  void load_edges(const Chunk<T>& chunk, Acc* rows, Acc* columns) const {
    const int64_t bytes = edge_dim * int64_t(sizeof(T));
    for (int s = 0; s < chunk.count; ++s) {
      const int64_t ahead = chunk.first_slot + s + kChunkSlots;
      const char* soon =
          reinterpret_cast<const char*>(edge_attr + edge_of(ahead < last_slot ? ahead : last_slot) * edge_dim);
      for (int64_t byte = 0; byte < bytes; byte += kCacheLine) __builtin_prefetch(soon + byte);
      __builtin_prefetch(soon + bytes - 1);
      const T* attr = edge_attr + chunk.edge[s] * edge_dim;
      int64_t d = 0;
      for (; d + kWidth<T> <= edge_dim; d += kWidth<T>) store(rows + s * edge_stride + d, load(attr + d));
      for (; d < edge_dim; ++d) rows[s * edge_stride + d] = widen(attr[d]);
    }
    for (int s = chunk.count; s < kChunkSlots; ++s) {
      for (int64_t d = 0; d < edge_stride; d += kLanesOf<Acc>) store(rows + s * edge_stride + d, Vector<Acc>{});
    }
    for (int64_t d = 0; d < edge_dim; ++d) {
#pragma GCC unroll 16
      for (int s = 0; s < kChunkSlots; ++s) columns[d * kChunkSlots + s] = rows[s * edge_stride + d];
    }
  }

  // Multipliers of the attention weights of the chunk, [H, kChunkSlots]; H up to the next multiple of kPhiloxWords.
  void draw_masks(const Chunk<T>& chunk, Acc* to) const {
    const Acc scale = Acc(dropout.scale);
    for (int s = 0; s < chunk.count; s += kWideLanes) {
      uint64_t ids[kWideLanes], kept[kWideLanes];
      for (int lane = 0; lane < kWideLanes; ++lane) {
        ids[lane] = uint64_t(chunk.edge[s + lane < chunk.count ? s + lane : s]);
      }
      for (int64_t head = 0; head < heads; head += kPhiloxWords) {
        store_bits(kept, kept_of_blocks(dropout, load_bits<Wide>(ids), Wide{} + uint64_t(head / kPhiloxWords)));
        for (int lane = 0; lane < kWideLanes; ++lane) {
#pragma GCC unroll 4
          for (int w = 0; w < kPhiloxWords; ++w) {
            to[(head + w) * kChunkSlots + s + lane] = kept[lane] >> w & 1u ? scale : Acc(0);
          }
        }
      }
    }
  }
  int64_t masks_size() const { return ceil_div(heads, int64_t(kPhiloxWords)) * kPhiloxWords * kChunkSlots; }

  // --- products and sums of a chunk's rows

  // to[h, s] = sum over c of term(batch slot, vector of row[s], offset in a padded row). Requests the rows `ahead`.
  template <typename Term>
  GNNAGG_INLINE void sum_batch(const T* const* row, const T* const* ahead, int64_t head, const Tail<T>& tail,
                               const Term& term, Acc* to) const {
    constexpr int kParts = kLaneVectors<Acc>;
    Vector<Acc> part[kBatchSlots][kParts] = {};
    int v = 0;
    const auto step = [&](int group, int at, const auto& load_one) {
#pragma GCC unroll 4
      for (int s = 0; s < kBatchSlots; ++s) {
        __builtin_prefetch(ahead[s] + head * channels + at * kWidth<T>);
        const Vector<Acc> value = load_one(row[s] + head * channels, at);
        part[s][group] += term(s, value, head * stride + at * kWidth<T>);
      }
    };
    for (; v + kParts <= whole; v += kParts) {
#pragma GCC unroll 8
      for (int group = 0; group < kParts; ++group) {
        step(group, v + group, [](const T* from, int at) { return load(from + at * kWidth<T>); });
      }
    }
#pragma GCC unroll 8
    for (int group = 0; group < kParts; ++group) {
      if (v + group < vectors) {
        step(group, v + group, [&](const T* from, int at) { return load_of_head(from, at, tail); });
      }
    }
    fold_batch(part, to);
  }

  template <int kParts>
  static GNNAGG_INLINE void fold_batch(Vector<Acc> (&part)[kBatchSlots][kParts], Acc* to) {
    Vector<Acc> folded[kBatchSlots];
#pragma GCC unroll 4
    for (int s = 0; s < kBatchSlots; ++s) {
#pragma GCC unroll 8
      for (int half = kParts / 2; half > 0; half /= 2) {
        for (int v = 0; v < half; ++v) part[s][v] += part[s][v + half];
      }
      folded[s] = part[s][0];
    }
    store_sums<kLanesOf<Acc>, kBatchSlots, kBatchSlots, Acc>(folded, to);
  }

  // to[h, s] = <row[s], mine> head by head; `mine` is a padded row.
  GNNAGG_INLINE void dot_batch(const T* const* row, const T* const* ahead, const Acc* mine, const Tail<T>& tail,
                               Acc* to) const {
    for (int64_t head = 0; head < heads; ++head) {
      sum_batch(
          row, ahead, head, tail, [&](int, Vector<Acc> value, int64_t at) { return product(value, load(mine + at)); },
          to + head * kChunkSlots);
    }
  }

  // sums[h, c] += sum over s of weight[h, s] * row[s][h, c]. Requests the rows `ahead` where kAhead.
  template <bool kAhead>
  __attribute__((noinline)) void add_rows(const T* const* row, const T* const* ahead, int count, const Acc* weight,
                                          const T* table_end, Acc* sums) const {
    const Tail<T> tail(in_last, table_end);
    for (int64_t head = 0; head < heads; ++head) {
      for_each_vector_block([&](auto size, int v, const auto& load_one) {
        constexpr int kVectors = size.value;
        Acc* to = sums + head * stride + v * kWidth<T>;
        Vector<Acc> sum[kVectors];
#pragma GCC unroll 4
        for (int i = 0; i < kVectors; ++i) sum[i] = load(to + i * kWidth<T>);
        for (int s = 0; s < count; ++s) {
          const Vector<Acc> factor = broadcast<Acc>(weight[head * kChunkSlots + s]);
#pragma GCC unroll 4
          for (int i = 0; i < kVectors; ++i) {
            const int64_t first = head * channels + (v + i) * kWidth<T>;
            if constexpr (kAhead) __builtin_prefetch(ahead[s] + first);
            sum[i] += product(load_one(row[s] + first, tail), factor);
          }
        }
#pragma GCC unroll 4
        for (int i = 0; i < kVectors; ++i) store(to + i * kWidth<T>, sum[i]);
      });
    }
  }

  // Calls block(size, first vector, how to load from an address and a Tail) until every vector of a head is covered.
  template <typename Block>
  GNNAGG_INLINE void for_each_vector_block(const Block& block) const {
    const auto load_whole = [](const T* from, const Tail<T>&) { return load(from); };
    const auto load_last = [&](const T* from, const Tail<T>& tail) {
      return first_lanes<Acc>(load_tail(from, tail), in_last);
    };
    int v = 0;
    for (; v + kMostHeadVectors <= whole; v += kMostHeadVectors) block(BlockSize<kMostHeadVectors>{}, v, load_whole);
    for (; v + 2 <= whole; v += 2) block(BlockSize<2>{}, v, load_whole);
    if (v < whole) block(BlockSize<1>{}, v, load_whole);
    if (whole < vectors) block(BlockSize<1>{}, whole, load_last);
  }
};

// --- softmax of the rows that pass by --------------------------------------------------------------------------------

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

// --- plain sums of rows ----------------------------------------------------------------------------------------------

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

// --- backward --------------------------------------------------------------------------------------------------------

// <a, b> of `count` numbers of padded rows, a multiple of kScoreLanes.
template <typename Acc>
GNNAGG_INLINE Acc padded_dot(const Acc* a, const Acc* b, int64_t count) {
  Vector<Acc> part[kLaneVectors<Acc>] = {};
  for (int64_t first = 0; first < count; first += kScoreLanes) {
    for_each_slot_vector<Acc>(
        [&](int at) { part[at / kLanesOf<Acc>] += product(load(a + first + at), load(b + first + at)); });
  }
  return fold_lane_vectors<Acc>(part);
}

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
