// Reductions over the edges of a row where the edges themselves carry the values, [num_edges, H]: the walk that edge_softmax and the
// gradient of GAT share.
//
// A group takes the edges of a row side by side: lane l has head l % head_lanes and every (lanes / head_lanes)-th edge. The lanes of
// a head are merged in a fixed order when the row ends; split rows are combined as everywhere (span_walk.cuh).
//
// A Rule says what is kept: Value of a lane, empty(), take(value, edge, head) for one edge, merge(value, other), and the partials and
// results that the one lane of a head writes.
#pragma once

#include "cuda/reduce_rows.cuh"

namespace gnnagg {

template <typename Index>
struct EdgeRows {
  SpanTable<Index> table;  // col is not read
  const Index* edge;       // [num_edges] edge id of each slot; null: the slot itself
  int heads;
  int head_lanes;  // power of two
  int lanes;       // of a group

  static EdgeRows of(const SpanTable<Index>& table, const Index* edge, int64_t heads) {
    constexpr int kEdgesAbreast = 8;
    const int head_lanes = int(next_power_of_two(heads < kMaxTileLanes ? heads : kMaxTileLanes));
    const int lanes = head_lanes * kEdgesAbreast;
    return {table, edge, int(heads), head_lanes, lanes < kMaxTileLanes ? lanes : kMaxTileLanes};
  }
  __device__ __forceinline__ int64_t layers() const { return ceil_div(heads, head_lanes); }
  __device__ __forceinline__ int64_t edge_of(Index slot) const {
    return edge ? int64_t(__ldg(edge + slot)) : int64_t(slot);
  }
};

template <typename Rule, typename Index>
struct EdgeRowReducer {
  struct State {
    typename Rule::Value value;
  };
  const EdgeRows<Index>& rows;
  const Rule& rule;
  const Group& group;
  int head;
  State state;

  __device__ __forceinline__ EdgeRowReducer(const EdgeRows<Index>& what, const Rule& how, const Group& lanes,
                                            int64_t layer)
      : rows(what),
        rule(how),
        group(lanes),
        head(int(layer) * what.head_lanes + (lanes.lane & (what.head_lanes - 1))) {}

  __device__ __forceinline__ bool has_head() const { return head < rows.heads; }
  __device__ __forceinline__ bool leads() const { return has_head() && group.lane < rows.head_lanes; }
  __device__ __forceinline__ void reset() { state.value = rule.empty(); }
  __device__ __forceinline__ typename Rule::Value total() const {
    typename Rule::Value value = state.value;
    for (int step = rows.head_lanes; step < group.lanes; step *= 2) {
      rule.merge(value, rule.from_lane(value, group, step));
    }
    return value;
  }
  __device__ __forceinline__ void merge(const State& other) { rule.merge(state.value, other.value); }
  __device__ __forceinline__ void merge_partial(int64_t slot, Index) {
    if (leads()) rule.merge(state.value, rule.load_partial(slot * rows.heads + head));
  }
  __device__ __forceinline__ void store_partial(int64_t slot) const {
    const auto value = total();
    if (leads()) rule.store_partial(slot * rows.heads + head, value);
  }
  __device__ __forceinline__ void store_row(Index row, Index edges) const {
    const auto value = total();
    if (leads()) rule.store(int64_t(row) * rows.heads + head, value, edges > 0);
  }
};

// Calls visit(row of the cursor, edge id, head) for every edge and head of the spans of this group, `begin(cursor)` first for each
// stretch of one row.
template <typename Index, typename Cursor, typename Visit>
__device__ __forceinline__ void visit_span(const EdgeRows<Index>& rows, int64_t k, const Group& group, Cursor& cursor,
                                           Visit visit) {
  const Index end = rows.table.span_edge(k + 1), stride = group.lanes / rows.head_lanes;
  for (Index at = rows.table.span_edge(k); at < end;) {
    cursor.move_to(at);
    const Index to = cursor.row_end < end ? cursor.row_end : end;
    if (cursor.reducer.has_head()) {
      for (Index slot = at + group.lane / rows.head_lanes; slot < to; slot += stride) visit(rows.edge_of(slot));
    }
    __syncwarp(group.mask());
    at = to;
  }
}

// Called by every thread, once the values are visible.
template <typename Rule, typename Index>
__device__ __forceinline__ void reduce_edge_spans(const EdgeRows<Index>& rows, const Rule& rule) {
  const Group group(rows.lanes);
  for_each_span(rows.table, rows.layers(), group, [&](int64_t k, int64_t layer) {
    RowCursor<Index, EdgeRowReducer<Rule, Index>> cursor(rows.table, k, {rows, rule, group, layer});
    visit_span(rows, k, group, cursor,
               [&](int64_t edge) { rule.take(cursor.reducer.state.value, edge * rows.heads + cursor.reducer.head); });
    cursor.finish();
  });
}

// Called by every thread, once the partials are visible.
template <typename Rule, typename Index>
__device__ __forceinline__ void combine_edge_rows(const EdgeRows<Index>& rows, const Rule& rule) {
  const Group group(rows.lanes);
  combine_rows(rows.table, rows.layers(), group,
               [&](int64_t layer) { return EdgeRowReducer<Rule, Index>(rows, rule, group, layer); });
}

// A cursor's reducer that only knows its head.
struct HeadOnly {
  int head, heads;
  __device__ __forceinline__ bool has_head() const { return head < heads; }
  __device__ __forceinline__ void reset() {}
  __device__ __forceinline__ void store_partial(int64_t) const {}
  template <typename Index>
  __device__ __forceinline__ void store_row(Index, Index) const {}
};

// Calls map(row * H + head, edge * H + head) for every edge and head. Called by every thread, once the rows' results are visible.
template <typename Index, typename Map>
__device__ __forceinline__ void map_edges(const EdgeRows<Index>& rows, Map map) {
  const Group group(rows.lanes);
  for_each_span(rows.table, rows.layers(), group, [&](int64_t k, int64_t layer) {
    const int head = int(layer) * rows.head_lanes + (group.lane & (rows.head_lanes - 1));
    RowCursor<Index, HeadOnly> cursor(rows.table, k, {head, rows.heads});
    visit_span(rows, k, group, cursor,
               [&](int64_t edge) { map(int64_t(cursor.row) * rows.heads + head, edge * rows.heads + head); });
  });
}

// The sum over a row of one value per edge and head. `Load` gives the value at [edge, head].
template <typename Acc, typename Load>
struct SumRule {
  using Value = Acc;
  Load load;
  Acc* __restrict__ out;       // [num_rows, H]
  Acc* __restrict__ partials;  // [2 num_spans, H]

  __device__ __forceinline__ Acc empty() const { return Acc(0); }
  __device__ __forceinline__ void take(Acc& value, int64_t at) const { value += load(at); }
  __device__ __forceinline__ void merge(Acc& value, Acc other) const { value += other; }
  __device__ __forceinline__ Acc from_lane(Acc value, const Group& group, int step) const {
    return __shfl_xor_sync(group.mask(), value, step, group.lanes);
  }
  __device__ __forceinline__ Acc load_partial(int64_t at) const { return __ldcg(partials + at); }
  __device__ __forceinline__ void store_partial(int64_t at, Acc value) const { __stcg(partials + at, value); }
  __device__ __forceinline__ void store(int64_t at, Acc value, bool) const { __stcg(out + at, value); }
};

}  // namespace gnnagg
