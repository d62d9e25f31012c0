// The CPU kernels as tables of functions, one table per instruction set, and their arguments. No torch header.
//
// Letters: N sources, R rows, E slots, F features, B batches, K spans, H heads. "acc" is the accumulate type of the
// feature type (float, double for double).
#pragma once

#include <cstdint>

#include "cpu/index_array.h"

namespace gnnagg::cpu {

enum FeatureType { kFloat, kDouble, kHalf, kBFloat16, kNumFeatureTypes };

// One CSR with its schedule, as common/schedule.h says.
struct CsrArgs {
  IndexArray rowptr;  // [R + 1]
  IndexArray col;     // [E]
  IndexArray spans;   // [K + 1, 2]
  IndexArray splits;  // [K + 1, 2]; null for ops that need no combine
  int64_t num_rows;
  int64_t num_spans;
};

struct SumArgs {
  CsrArgs csr;
  const void* x;          // [B, N, F]
  IndexArray perm;        // [E] or null
  const void* weight;     // [E, H] acc or null
  const void* src_scale;  // [N] acc or null
  const void* dst_scale;  // [R] acc or null
  void* out;              // [B, R, F], x's type, or acc
  void* partials;         // [B, 2 K, F] acc
  const void* x0;         // [R, F], or null: a hop of propagate, with one batch and one head
  double teleport;
  int64_t num_src, width, heads;
  bool mean, acc_out;
};

struct ExtremumArgs {
  CsrArgs csr;
  const void* x;             // [B, N, F]
  void* out;                 // [B, R, F]
  IndexOutput arg;           // [B, R, F], or null
  void* partials;            // [B, 2 K, F] acc
  IndexOutput partial_args;  // [B, 2 K, F], or null
  int64_t num_src, width;
  bool minimum;
};

struct ExtremumBackwardArgs {
  CsrArgs csr;       // spans and splits unused
  const void* grad;  // [B, R, F]
  IndexArray arg;    // [B, R, F]
  const void* x;     // [B, N, F]
  const void* out;   // [B, R, F]
  void* dx;          // [B, N, F] acc, zero beforehand
  int64_t num_src, width;
};

// What one piece of a row leaves for each feature; null where not wanted. All [F].
struct MultiFields {
  void* sum;      // acc
  void* shift;    // acc; the moments of reduce.h
  void* moment1;  // acc
  void* moment2;  // acc
  void* max;      // acc
  void* min;      // acc
  IndexOutput arg_max;
  IndexOutput arg_min;
};

struct EdgeDotArgs {
  CsrArgs csr;
  const void* a;    // [B, R, F]
  const void* b;    // [B, N, F]
  IndexArray perm;  // [E] or null
  void* out;        // [E, H] acc
  int64_t batch, num_src, width, heads;
};

struct Kernels {
  // Items [begin, end) of B * K (batch-major): whole rows to out, pieces of split rows to partials.
  using SumSpans = void (*)(const SumArgs&, int64_t begin, int64_t end);
  using ExtremumSpans = void (*)(const ExtremumArgs&, int64_t begin, int64_t end);
  // Items [begin, end) of B * (split rows): partials in span order to out.
  using SumCombine = void (*)(const SumArgs&, int64_t begin, int64_t end);
  using ExtremumCombine = void (*)(const ExtremumArgs&, int64_t begin, int64_t end);
  // Batch b, features [first, last), sources [src_begin, src_end): adds every winner's share to dx.
  using ExtremumBackward = void (*)(const ExtremumBackwardArgs&, int64_t batch, int64_t first, int64_t last,
                                    int64_t src_begin, int64_t src_end);
  // Slots [begin, end), not empty, of one row.
  using MultiPiece = void (*)(const void* x, int64_t num_src, int64_t width, const IndexArray& col, int64_t live_edges,
                              int64_t begin, int64_t end, const MultiFields& fields);
  // Spans [begin, end) of K.
  using EdgeDotSpans = void (*)(const EdgeDotArgs&, int64_t begin, int64_t end);

  SumSpans sum_spans[kNumFeatureTypes];
  SumCombine sum_combine[kNumFeatureTypes];
  ExtremumSpans extremum_spans[kNumFeatureTypes];
  ExtremumCombine extremum_combine[kNumFeatureTypes];
  ExtremumBackward extremum_backward[kNumFeatureTypes];
  MultiPiece multi_piece[kNumFeatureTypes];
  EdgeDotSpans edge_dot_spans[kNumFeatureTypes];
};

// Instruction sets in ascending order.
enum Level { kBaseline, kAvx2, kAvx512, kNumLevels };

extern const Kernels kKernelsBaseline;
#if defined(__x86_64__)
extern const Kernels kKernelsAvx2;
extern const Kernels kKernelsAvx512;
#endif

// The table of the highest level that this machine has, or of the level that a test forced.
const Kernels& kernels();

}  // namespace gnnagg::cpu
