// What gatv2_attention and dot_attention do with the feature rows of a chunk: find them, read them for products with one
// row, add them up with weights. Included per level.
//
// Terms. The feature rows of a chunk (score_slots.h) stay in the first cache while they are read for the scores and
// again for the sums, so each comes from memory once. Rows in the accumulate type are padded (score_attention_args.h);
// feature rows in memory are not. The slots that a short chunk lacks have a weight of 0.
//
// Slots are added in order, chunks from the begin of the row's piece on, pieces in span order. Nothing depends on the
// thread or on the level.
#pragma once

#include "cpu/attention_dots.h"
#include "cpu/attention_dropout.h"
#include "cpu/score_slots.h"
#include "cpu/span_walk.h"

namespace gnnagg::cpu::GNNAGG_LEVEL {

// Vectors of a head whose sums are kept in registers together.
constexpr int kMostHeadVectors = 4;

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

}  // namespace gnnagg::cpu::GNNAGG_LEVEL
