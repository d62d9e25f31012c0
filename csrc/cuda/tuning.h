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

// Attention keeps a softmax or a gradient, and the row's packets, beside what it adds up: 128 registers, so two blocks of 256. What is in
// flight takes no registers (packet_flight.cuh).
constexpr int kAttentionThreads = 256;
constexpr int kAttentionBlocksPerSm = 2;
// GAT's forward pass keeps less: 80 registers, packets in flight among them. H200, reddit-like 1x64 fp32 in training: 4.11 ms, and 4.47
// with two blocks and packets in shared memory.
constexpr int kGatBlocksPerSm = 3;
// Of the kernels whose edges carry single numbers.
constexpr int kEdgeBlocksPerSm = 4;

// Shared memory of a block for packets in flight (packet_flight.cuh), and how many batches it holds at most beside the one in use. Two
// blocks an SM fit where it has 164 KB or more (A100, H100), and one where it has 100.
constexpr int kRingBytes = 72 * 1024;
constexpr int kMostAhead = 2;

// Bytes that one lane loads at once: the widest load there is.
constexpr int kLaneBytes = 16;

// Edges whose feature rows are requested before the first is used. Eight spill at 64 registers and halve the speed; eight
// with one block an SM are level on long rows and up to a third slower on short ones (H200: reddit-like, hub, arxiv-like).
constexpr int kEdgeBatch = 4;

// Widest tile of a feature row, in lanes. A warp's 512 bytes, or 256 where rows are long: each tile then works on half of the
// feature table, and more of it stays in L2, while the ids are read once more. H200, fp32 F = 256: reddit-like (492 edges a
// row) 12.16 ms against 12.84, hub (20) 4.10 against 4.29, arxiv-like (14) .374 against .366.
constexpr int kMaxTileLanes = 32;
constexpr int kLongRowTileLanes = 16;
constexpr int64_t kLongRowEdges = 16;

constexpr int tile_lanes(int64_t num_edges, int64_t num_rows) {
  return num_edges >= kLongRowEdges * num_rows ? kLongRowTileLanes : kMaxTileLanes;
}

}  // namespace gnnagg
