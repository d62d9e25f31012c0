// The walk that every aggregation shares: a group goes along one span, feeds each edge's feature row to a reducer, and
// hands over what it has at every row's end; later the partials of split rows are merged in span order.
//
// A Source loads the feature rows of kEdgeBatch edges (start once, request batch after batch, kWhole where all of the batch belongs
// to the span) and feeds them to the reducer. A Reducer keeps the running values of one packet of features: reset, add, store_row,
// store_partial, merge_partial, merge (see sum_reducer.cuh). One that needs values of its row as well has ahead(row), which asks for
// them, and enter(), which takes what was asked for; the walk asks one row ahead.
#pragma once

#include "common/schedule.h"
#include "cuda/group.cuh"
#include "cuda/vector.cuh"

namespace gnnagg {

template <typename Index>
struct SpanTable {
  const Index* __restrict__ rowptr;  // [num_rows + 1]
  const Index* __restrict__ col;     // [num_edges]
  const Index* __restrict__ spans;   // [num_spans + 1, 2]
  const Index* __restrict__ splits;  // [num_spans + 1, 2]
  int64_t num_rows;
  int64_t num_spans;

  __device__ __forceinline__ Index span_row(int64_t k) const { return spans[2 * k]; }
  __device__ __forceinline__ Index span_edge(int64_t k) const { return spans[2 * k + 1]; }
  __device__ __forceinline__ int64_t num_short() const { return splits[0]; }
  __device__ __forceinline__ int64_t num_long() const { return splits[1]; }
  // Inside boundaries of the i-th split row: short rows are listed from the front, long rows from the back.
  __device__ __forceinline__ SplitRow short_row(int64_t i) const {
    return {splits[2 * (i + 1)], splits[2 * (i + 1) + 1]};
  }
  __device__ __forceinline__ SplitRow long_row(int64_t i) const {
    return {splits[2 * (num_spans - i)], splits[2 * (num_spans - i) + 1]};
  }
};

// Entries of kEdgeBatch slots from `slot` on, 16 bytes a load where the array allows (slot is a multiple of kEdgeBatch away
// from a 16-byte boundary where that exists); slots outside [begin, end) are not read.
template <typename Value, typename Index>
__device__ __forceinline__ void load_batch(const Value* __restrict__ array, Index slot, Index begin, Index end,
                                           Value (&values)[kEdgeBatch]) {
  constexpr int kPerLoad = kLaneBytes / int(sizeof(Value));
  static_assert(kEdgeBatch % kPerLoad == 0, "a batch is whole loads");
  if (slot >= begin && slot + kEdgeBatch <= end &&
      (reinterpret_cast<uintptr_t>(array + slot) & (kLaneBytes - 1)) == 0) {
#pragma unroll
    for (int u = 0; u < kEdgeBatch; u += kPerLoad) {
      const uint4 raw = __ldg(reinterpret_cast<const uint4*>(array + slot + u));
      const Value* unpacked = reinterpret_cast<const Value*>(&raw);
#pragma unroll
      for (int i = 0; i < kPerLoad; ++i) values[u + i] = unpacked[i];
    }
    return;
  }
#pragma unroll
  for (int u = 0; u < kEdgeBatch; ++u)
    values[u] = slot + u >= begin && slot + u < end ? __ldg(array + slot + u) : Value(0);
}

// Whether a slot of a batch lies in [begin, end): known where the whole batch does.
template <bool kWhole, typename Index>
__device__ __forceinline__ bool inside(Index slot, Index begin, Index end) {
  return kWhole || (slot >= begin && slot < end);
}

// First slot of the batch that holds `begin`, so that batches start on 16-byte boundaries of `array`. May be negative.
template <typename Index>
__device__ __forceinline__ Index batch_start(const Index* array, Index begin) {
  constexpr int kPerLoad = kLaneBytes / int(sizeof(Index));
  const int misaligned = int((reinterpret_cast<uintptr_t>(array + begin) & (kLaneBytes - 1)) / sizeof(Index));
  static_assert(kEdgeBatch % kPerLoad == 0, "a batch is whole loads");
  return begin - misaligned;
}

// The rows of one span in turn, and the reducer of the row that the walk is in. A row that lies whole in the span is stored;
// a row cut by the span's begin or end leaves its partial in slot 2k or 2k + 1 (common/schedule.h).
template <typename Index, typename Reducer>
struct RowCursor {
  const SpanTable<Index>& table;
  int64_t k;
  Reducer reducer;
  Index row, row_begin, row_end;
  Index next_end;  // end of the row after, asked for one row ahead
  bool cut_before;

  __device__ __forceinline__ RowCursor(const SpanTable<Index>& rows, int64_t span, const Reducer& empty)
      : table(rows), k(span), reducer(empty), row(rows.span_row(span)) {
    row_begin = row_pointer(row);
    row_end = row_pointer(row + 1);
    next_end = row_pointer(row + 2);
    cut_before = table.span_edge(k) > row_begin;
    reducer.reset();
    look_ahead(row);
    enter_row();
  }

  // Ends every row before the one that holds `slot`.
  __device__ __forceinline__ void move_to(Index slot) {
    while (slot >= row_end) end_row();
  }
  // Ends the rows that the span still owns, and leaves the partial of the row that its end cuts.
  __device__ __forceinline__ void finish() {
    const Index last_row = table.span_row(k + 1);
    while (row < last_row) end_row();
    if (row < Index(table.num_rows) && table.span_edge(k + 1) > row_begin) {
      reducer.store_partial(cut_before ? 2 * k : 2 * k + 1);
    }
  }

 private:
  __device__ __forceinline__ Index row_pointer(Index r) const {
    return __ldg(table.rowptr + (r < Index(table.num_rows) ? r : Index(table.num_rows)));
  }
  __device__ __forceinline__ void end_row() {
    if (cut_before) {
      reducer.store_partial(2 * k);
    } else {
      reducer.store_row(row, row_end - row_begin);
    }
    cut_before = false;
    reducer.reset();
    ++row;
    row_begin = row_end;
    row_end = next_end;
    next_end = row_pointer(row + 2);
    enter_row();
  }
  __device__ __forceinline__ void look_ahead(Index r) {
    if constexpr (requires { reducer.ahead(r); }) reducer.ahead(r < Index(table.num_rows) ? r : Index(0));
  }
  __device__ __forceinline__ void enter_row() {
    if constexpr (requires { reducer.enter(); }) {
      reducer.enter();
      look_ahead(row + 1);
    }
  }
};

// A Source that works on several edges at once has feed_segment: edges [from, to) of the batch at `slot`, in one row.
template <typename Source, typename Cursor>
concept FeedsSegments = requires(const Source& source, const typename Source::Batch& batch, Cursor& cursor) {
  source.feed_segment(batch, cursor.row, 0, kEdgeBatch, cursor);
};

// Feeds the edges of a batch that lie in [begin, end), row by row.
template <typename Source, typename Index, typename Cursor>
__device__ __forceinline__ void feed_rows(const Source& source, const typename Source::Batch& batch, Index slot,
                                          Index begin, Index end, Cursor& cursor) {
  if constexpr (FeedsSegments<Source, Cursor>) {
    const Index stop = slot + kEdgeBatch < end ? Index(slot + kEdgeBatch) : end;
    for (Index at = slot < begin ? begin : slot; at < stop;) {
      cursor.move_to(at);
      const Index to = cursor.row_end < stop ? cursor.row_end : stop;
      source.feed_segment(batch, slot, int(at - slot), int(to - slot), cursor);
      at = to;
    }
  } else {
#pragma unroll
    for (int u = 0; u < kEdgeBatch; ++u) {
      if (slot + u >= begin && slot + u < end) {
        cursor.move_to(Index(slot + u));
        source.feed(batch, u, Index(slot + u), cursor);
      }
    }
  }
}

// The same for a whole batch that lies in the cursor's row.
template <typename Source, typename Index, typename Cursor>
__device__ __forceinline__ void feed_row(const Source& source, const typename Source::Batch& batch, Index slot,
                                         Cursor& cursor) {
  if constexpr (FeedsSegments<Source, Cursor>) {
    source.feed_segment(batch, slot, 0, kEdgeBatch, cursor);
  } else {
#pragma unroll
    for (int u = 0; u < kEdgeBatch; ++u) source.feed(batch, u, Index(slot + u), cursor);
  }
}

// Whole batches have code of their own, unless the code is large, as with segments, and loads of single elements gain little from it.
template <typename Source>
concept Narrow = Source::Vector::kSize == 1;
template <typename Source, typename Cursor>
constexpr bool kTellsWholeBatches = !(FeedsSegments<Source, Cursor> && Narrow<Source>);

// Asks for the rows of the batch at `slot`, of the ids that are there, and for the ids of the batch after.
template <bool kTellsWhole, typename Index, typename Source>
__device__ __forceinline__ void request_batch(const SpanTable<Index>& table, Source& source,
                                              typename Source::Batch& batch, Index slot, Index begin, Index end,
                                              Index (&ids)[kEdgeBatch]) {
  if (kTellsWhole && slot >= begin && slot + kEdgeBatch <= end) {
    source.template request<true>(batch, slot, begin, end, ids);
  } else {
    source.template request<false>(batch, slot, begin, end, ids);
  }
  load_batch(table.col, Index(slot + kEdgeBatch), begin, end, ids);
}

template <typename Index, typename Source, typename Cursor>
__device__ __forceinline__ void feed_batch(const Source& source, const typename Source::Batch& batch, Index slot,
                                           Index begin, Index end, Cursor& cursor) {
  if constexpr (!kTellsWholeBatches<Source, Cursor>) {
    feed_rows(source, batch, slot, begin, end, cursor);
  } else {
    const bool one_row = slot >= begin && slot + kEdgeBatch <= end && slot + kEdgeBatch <= cursor.row_end;
    if (__all_sync(__activemask(), one_row)) {  // a choice of code, not of result: groups of a warp stay together
      feed_row(source, batch, slot, cursor);
    } else {
      feed_rows(source, batch, slot, begin, end, cursor);
    }
  }
}

// A Source whose packets fly (packet_flight.cuh): batches are requested Flight::kAhead before they are used.
template <typename Source>
concept Flies = requires { typename Source::Flight; };

// Called by every thread of a group: reduces the rows of span k.
template <typename Index, typename Source, typename Reducer>
__device__ __forceinline__ void reduce_span(const SpanTable<Index>& table, int64_t k, Source source,
                                            const Reducer& empty) {
  const Index begin = table.span_edge(k), end = table.span_edge(k + 1);
  RowCursor<Index, Reducer> cursor(table, k, empty);
  constexpr bool kTellsWhole = kTellsWholeBatches<Source, RowCursor<Index, Reducer>>;
  if (begin < end) {
    Index slot = batch_start(table.col, begin);
    Index ids[kEdgeBatch];
    load_batch(table.col, slot, begin, end, ids);
    source.start(slot, begin, end);
    if constexpr (Flies<Source>) {
      using Flight = typename Source::Flight;
      constexpr int kAhead = Flight::kAhead;
      typename Source::Batch batches[kAhead + 1];
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        request_batch<kTellsWhole>(table, source, batches[a], Index(slot + a * kEdgeBatch), begin, end, ids);
        Flight::commit();
      }
      for (; slot < end; slot += kEdgeBatch) {
        request_batch<kTellsWhole>(table, source, batches[kAhead], Index(slot + kAhead * kEdgeBatch), begin, end, ids);
        Flight::commit();
        Flight::wait();
        feed_batch(source, batches[0], slot, begin, end, cursor);
#pragma unroll
        for (int a = 0; a < kAhead; ++a) batches[a] = batches[a + 1];
      }
    } else {
      typename Source::Batch batch;
      for (; slot < end; slot += kEdgeBatch) {
        request_batch<kTellsWhole>(table, source, batch, slot, begin, end, ids);
        feed_batch(source, batch, slot, begin, end, cursor);
      }
    }
  }
  cursor.finish();
}

// Edges behind one partial of the split row.
template <typename Index>
__device__ __forceinline__ Index partial_edges(const SpanTable<Index>& table, const SplitRow& split, Index row,
                                               int64_t k) {
  if (k < split.first) return table.span_edge(split.first) - table.rowptr[row];
  const Index stop = k < split.last ? table.span_edge(k + 1) : table.rowptr[row + 1];
  return stop - table.span_edge(k);
}

// Merges the partials of spans [from, to) of a split row, in span order. Called by every thread of a group.
template <typename Index, typename Reducer>
__device__ __forceinline__ void merge_partials(const SpanTable<Index>& table, const SplitRow& split, Index row,
                                               int64_t from, int64_t to, Reducer& reducer) {
  constexpr int kAbreast = sizeof(typename Reducer::State) > 2 * kLaneBytes ? 1 : 4;  // partials asked for at once
#pragma unroll kAbreast
  for (int64_t k = from; k < to; ++k) {
    reducer.merge_partial(k < split.first ? 2 * k + 1 : 2 * k, partial_edges(table, split, row, k));
  }
}

// Called by every thread of a group: a split row with few partials.
template <typename Index, typename Reducer>
__device__ __forceinline__ void combine_short_row(const SpanTable<Index>& table, int64_t i, Reducer reducer) {
  const SplitRow split = table.short_row(i);
  const Index row = table.span_row(split.first);
  reducer.reset();
  merge_partials(table, split, row, split.first - 1, split.last + 1, reducer);
  reducer.store_row(row, table.rowptr[row + 1] - table.rowptr[row]);
}

// Called by every thread of a block: a split row with many partials. Each group merges a run of them; the runs are merged
// pairwise through shared memory in a fixed order.
template <typename Index, typename Reducer>
__device__ __forceinline__ void combine_long_row(const SpanTable<Index>& table, int64_t i, const Group& group,
                                                 Reducer reducer) {
  __shared__ typename Reducer::State exchange[kBlockThreads / 2];  // blocks may have fewer threads
  const SplitRow split = table.long_row(i);
  const Index row = table.span_row(split.first);
  const int64_t first = split.first - 1, count = split.last + 1 - first;
  const int64_t run = ceil_div<int64_t>(count, group.groups_in_block);
  const int64_t from = first + run * group.in_block, last = first + count;
  reducer.reset();
  merge_partials(table, split, row, from < last ? from : last, from + run < last ? from + run : last, reducer);
  for (int half = group.groups_in_block / 2; half > 0; half /= 2) {
    const int place = (group.in_block - half) * group.lanes + group.lane;
    if (group.in_block >= half && group.in_block < 2 * half) exchange[place] = reducer.state;
    __syncthreads();
    if (group.in_block < half) reducer.merge(exchange[group.in_block * group.lanes + group.lane]);
    __syncthreads();
  }
  if (group.in_block == 0) reducer.store_row(row, table.rowptr[row + 1] - table.rowptr[row]);
}

}  // namespace gnnagg
