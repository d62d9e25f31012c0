// Numbers that were chosen by measurement. Each says what was measured, and on which GPU.
#pragma once

#include <cstdint>

namespace gnnagg {

// Threads of a block and blocks of an SM. grid.sync costs 1.0 us at two blocks an SM and 2.2 us at eight (H200), so blocks
// are few and large; two of 512 leave 64 registers a thread, and 1024 threads with four 16-byte loads each keep 64 KB in
// flight on an SM, where 24 KB fill its share of the bandwidth.
constexpr int kBlockThreads = 512;
constexpr int kBlocksPerSm = 2;
// Reductions that keep several accumulators trade half of the threads for twice the registers.
constexpr int kBlocksPerSmLarge = 1;

// Bytes that one lane loads at once: the widest load there is.
constexpr int kLaneBytes = 16;

// Edges whose feature rows are requested before the first is used.
#ifndef GNNAGG_EDGE_BATCH
#define GNNAGG_EDGE_BATCH 4
#endif
constexpr int kEdgeBatch = GNNAGG_EDGE_BATCH;

// Widest tile of a feature row, in lanes: a warp, 512 bytes.
#ifndef GNNAGG_TILE_LANES
#define GNNAGG_TILE_LANES 32
#endif
constexpr int kMaxTileLanes = GNNAGG_TILE_LANES;

}  // namespace gnnagg
