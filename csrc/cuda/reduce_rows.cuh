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

// Called by every thread. `make_source(place, layer)` gives the Source of a lane.
template <typename Reducer, int kBytes, typename T, typename Index, typename MakeSource>
__device__ __forceinline__ void accumulate_spans(const RowsView<T, Index>& view, const typename Reducer::Target& target,
                                                 const Group& group, MakeSource make_source) {
  const int64_t spans = view.table.num_spans, items = spans * num_layers(view);
  for (int64_t item = group.index(); item < items; item += group.count()) {
    const int64_t layer = item / spans;
    const LanePlace place = lane_place<T, kBytes>(view, group, layer);
    reduce_span(view.table, item - layer * spans, make_source(place, layer), Reducer(target, place));
  }
}

// Called by every thread, once the partials are visible.
template <typename Reducer, int kBytes, typename T, typename Index>
__device__ __forceinline__ void combine_split_rows(const RowsView<T, Index>& view,
                                                   const typename Reducer::Target& target, const Group& group) {
  const int64_t layers = num_layers(view);
  const int64_t short_items = view.table.num_short() * layers;
  for (int64_t item = group.index(); item < short_items; item += group.count()) {
    const LanePlace place = lane_place<T, kBytes>(view, group, item % layers);
    combine_short_row(view.table, item / layers, Reducer(target, place));
  }
  const int64_t long_items = view.table.num_long() * layers;
  for (int64_t item = blockIdx.x; item < long_items; item += gridDim.x) {
    const LanePlace place = lane_place<T, kBytes>(view, group, item % layers);
    combine_long_row(view.table, item / layers, group, Reducer(target, place));
  }
}

// True in every block alike, before and after accumulate: the lists were made with the schedule.
template <typename Index>
__device__ __forceinline__ bool has_split_rows(const SpanTable<Index>& table) {
  return table.num_short() + table.num_long() > 0;
}

}  // namespace gnnagg
