// The CPU kernels as tables of functions, one table per instruction set, and their arguments. No torch header.
//
// Letters: N sources, R rows, E slots, F features, B batches, K spans, H heads. "acc" is the accumulate type of the
// feature type (float, double for double); Index is int32_t or int64_t for all index arrays of a call.
#pragma once

#include <cstdint>

namespace gnnagg::cpu {

enum FeatureType { kFloat, kDouble, kHalf, kBFloat16, kNumFeatureTypes };
enum IndexType { kInt32, kInt64, kNumIndexTypes };

// One CSR with its schedule, as in span_walk.h, before Index is known.
struct CsrArgs {
  const void* rowptr;  // [R + 1]
  const void* col;     // [E]
  const void* spans;   // [K + 1, 2]
  const void* splits;  // [K + 1, 2]; null for ops that need no combine
  int64_t num_rows;
  int64_t num_spans;
};

struct SumArgs {
  CsrArgs csr;
  const void* x;          // [B, N, F]
  const void* perm;       // [E] or null
  const void* weight;     // [E, H] acc or null
  const void* src_scale;  // [N] acc or null
  const void* dst_scale;  // [R] acc or null
  void* out;              // [B, R, F], x's type, or acc
  void* partials;         // [B, 2 K, F] acc
  int64_t num_src, width, heads;
  bool mean, acc_out;
};

struct ExtremumArgs {
  CsrArgs csr;
  const void* x;       // [B, N, F]
  void* out;           // [B, R, F]
  void* arg;           // [B, R, F] Index, or null
  void* partials;      // [B, 2 K, F] acc
  void* partial_args;  // [B, 2 K, F] Index, or null
  int64_t num_src, width;
  bool minimum;
};

struct ExtremumBackwardArgs {
  CsrArgs csr;       // spans and splits unused
  const void* grad;  // [B, R, F]
  const void* arg;   // [B, R, F] Index
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
  void* arg_max;  // Index
  void* arg_min;  // Index
};

struct EdgeDotArgs {
  CsrArgs csr;
  const void* a;     // [B, R, F]
  const void* b;     // [B, N, F]
  const void* perm;  // [E] or null
  void* out;         // [E, H] acc
  int64_t batch, num_src, width, heads;
};

// One hop: sum.x is h, sum.out the next one. One batch, one head, no scales.
struct PropagateArgs {
  SumArgs sum;
  const void* x0;  // [R, F], or null without teleport
  double teleport;
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
  using MultiPiece = void (*)(const void* x, int64_t num_src, int64_t width, const void* col, int64_t live_edges,
                              int64_t begin, int64_t end, const MultiFields& fields);
  // Spans [begin, end) of K.
  using EdgeDotSpans = void (*)(const EdgeDotArgs&, int64_t begin, int64_t end);
  // Spans, or split rows, [begin, end).
  using Hop = void (*)(const PropagateArgs&, int64_t begin, int64_t end);

  SumSpans sum_spans[kNumFeatureTypes][kNumIndexTypes];
  SumCombine sum_combine[kNumFeatureTypes][kNumIndexTypes];
  ExtremumSpans extremum_spans[kNumFeatureTypes][kNumIndexTypes];
  ExtremumCombine extremum_combine[kNumFeatureTypes][kNumIndexTypes];
  ExtremumBackward extremum_backward[kNumFeatureTypes][kNumIndexTypes];
  MultiPiece multi_piece[kNumFeatureTypes][kNumIndexTypes];
  EdgeDotSpans edge_dot_spans[kNumFeatureTypes][kNumIndexTypes];
  Hop hop_spans[kNumFeatureTypes][kNumIndexTypes];
  Hop hop_combine[kNumFeatureTypes][kNumIndexTypes];
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
