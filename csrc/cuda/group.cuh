// Sub-warp groups: `lanes` neighbouring lanes (a power of two, 1..32) that walk one span together, each holding one packet
// of the feature tile.
#pragma once

#include <cstdint>

#include "common/numeric.h"
#include "cuda/tuning.h"

namespace gnnagg {

struct Group {
  int lanes;     // lanes of a group
  int lane;      // this thread's, in [0, lanes)
  int in_block;  // this group's, in [0, groups_in_block)
  int groups_in_block;

  __device__ __forceinline__ explicit Group(int lanes_of_group)
      : lanes(lanes_of_group),
        lane(int(threadIdx.x) & (lanes_of_group - 1)),
        in_block(int(threadIdx.x) / lanes_of_group),
        groups_in_block(int(blockDim.x) / lanes_of_group) {}

  __device__ __forceinline__ int64_t index() const { return int64_t(blockIdx.x) * groups_in_block + in_block; }
  __device__ __forceinline__ int64_t count() const { return int64_t(gridDim.x) * groups_in_block; }
  // Lanes of this group within its warp.
  __device__ __forceinline__ unsigned mask() const {
    const unsigned ones = lanes == 32 ? 0xffffffffu : (1u << lanes) - 1u;
    return ones << ((threadIdx.x & 31) & ~(lanes - 1));
  }
};

// How a feature row is cut: tiles of lanes * elements features. Chosen on the host, once per launch.
struct FeatureTiles {
  int64_t features;  // F
  int lanes;         // lanes of a group
  int tiles;         // tiles of a row

  static FeatureTiles of(int64_t features, int elements_per_lane, int most_lanes) {
    const int64_t packets = features < 1 ? 1 : ceil_div<int64_t>(features, elements_per_lane);
    const int64_t lanes = next_power_of_two(packets);
    const int64_t used = lanes < most_lanes ? lanes : most_lanes;
    return {features, int(used), int(ceil_div<int64_t>(packets, used))};
  }
};

// Where a lane writes. Lanes beyond the last feature write nothing.
struct LanePlace {
  int64_t features;       // F
  int64_t offset;         // the lane's first feature
  int64_t first_row;      // of this batch entry in the output
  int64_t first_partial;  // of this batch entry in the partials
  bool active;

  __device__ __forceinline__ int64_t row(int64_t row) const { return (first_row + row) * features + offset; }
  __device__ __forceinline__ int64_t partial(int64_t slot) const { return (first_partial + slot) * features + offset; }
};

}  // namespace gnnagg
