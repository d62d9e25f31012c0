// The two phases that every aggregation is made of, over the schedule of one CSR.
//
// accumulate: each group of lanes walks spans, one tile of features at a time; tile after tile, so that what is live in L2
// is one tile of the feature table. combine: split rows are put together from their partials, short ones by a group, long
// ones by a block. Between the two every partial must be visible to every block.
#pragma once

#include <cooperative_groups.h>

#include "cuda/launch.cuh"
#include "cuda/sources.cuh"

namespace gnnagg {

constexpr int kReducePhases = 2;

// What every aggregation kernel is given; an op adds its Target and its sources' arrays.
template <typename T, typename Index>
struct RowsView {
  SpanTable<Index> table;
  FeatureTiles tiles;
  int64_t batch;  // B
  int64_t num_src;
  const T* __restrict__ x;  // [B, num_src, F]
};

template <typename T, int kBytes, typename Index>
__device__ __forceinline__ LanePlace lane_place(const RowsView<T, Index>& view, const Group& group, int64_t layer) {
  const int64_t tile = layer % view.tiles.tiles, entry = layer / view.tiles.tiles;
  const int64_t offset = (tile * group.lanes + group.lane) * Packet<T, kBytes>::kSize;
  const bool active = offset < view.tiles.features;
  return {view.tiles.features, active ? offset : 0, entry * view.table.num_rows, entry * 2 * view.table.num_spans,
          active};
}

template <typename T, int kBytes, typename Index>
__device__ __forceinline__ PlainRows<T, kBytes, Index> plain_rows(const RowsView<T, Index>& view,
                                                                  const LanePlace& place, int64_t layer) {
  const int64_t entry = layer / view.tiles.tiles;
  return {view.x + entry * view.num_src * view.tiles.features + place.offset,
          uint32_t(view.tiles.features * sizeof(T))};
}

// Layers: tiles of each batch entry, entry by entry.
template <typename View>
__device__ __forceinline__ int64_t num_layers(const View& view) {
  return view.batch * view.tiles.tiles;
}

// Calls body(span, layer) for this group's share of every span of every layer. Called by every thread.
template <typename Index, typename Body>
__device__ __forceinline__ void for_each_span(const SpanTable<Index>& table, int64_t layers, const Group& group,
                                              Body body) {
  const int64_t items = table.num_spans * layers;
  for (int64_t item = group.index(); item < items; item += group.count()) {
    const int64_t layer = item / table.num_spans;
    body(item - layer * table.num_spans, layer);
  }
}

// Puts the split rows of every layer together. `make_reducer(layer)` gives a lane's empty reducer. Called by every thread, once
// the partials are visible.
template <typename Index, typename MakeReducer>
__device__ __forceinline__ void combine_rows(const SpanTable<Index>& table, int64_t layers, const Group& group,
                                             MakeReducer make_reducer) {
  const int64_t short_items = table.num_short() * layers;
  for (int64_t item = group.index(); item < short_items; item += group.count()) {
    combine_short_row(table, item / layers, make_reducer(item % layers));
  }
  const int64_t long_items = table.num_long() * layers;
  for (int64_t item = blockIdx.x; item < long_items; item += gridDim.x) {
    combine_long_row(table, item / layers, group, make_reducer(item % layers));
  }
}

// Called by every thread. `make_source(place, layer)` gives the Source of a lane.
template <typename Reducer, int kBytes, typename T, typename Index, typename MakeSource>
__device__ __forceinline__ void accumulate_spans(const RowsView<T, Index>& view, const typename Reducer::Target& target,
                                                 const Group& group, MakeSource make_source) {
  for_each_span(view.table, num_layers(view), group, [&](int64_t k, int64_t layer) {
    const LanePlace place = lane_place<T, kBytes>(view, group, layer);
    reduce_span(view.table, k, make_source(place, layer), Reducer(target, place));
  });
}

// Called by every thread, once the partials are visible.
template <typename Reducer, int kBytes, typename T, typename Index>
__device__ __forceinline__ void combine_split_rows(const RowsView<T, Index>& view,
                                                   const typename Reducer::Target& target, const Group& group) {
  combine_rows(view.table, num_layers(view), group,
               [&](int64_t layer) { return Reducer(target, lane_place<T, kBytes>(view, group, layer)); });
}

// True in every block alike, before and after accumulate: the lists were made with the schedule.
template <typename Index>
__device__ __forceinline__ bool has_split_rows(const SpanTable<Index>& table) {
  return table.num_short() + table.num_long() > 0;
}

}  // namespace gnnagg
