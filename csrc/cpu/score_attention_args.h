// Arguments of the kernels of gatv2_attention and dot_attention, and their table. No torch header. Letters as in kernels.h;
// D edge features, C channels of a head. A padded row is [H, S] acc with S = C rounded up to kScoreLanes and 0 behind
// each head; a padded row of edge features likewise.
#pragma once

#include "cpu/gat_attention_args.h"

namespace gnnagg::cpu {

// Channels of a head are added up in this many lanes, and a chunk has as many slots: an AVX-512 vector of float.
constexpr int kScoreLanes = 16;

// What every pass has.
struct ScoreArgs {
  CsrArgs csr;            // of the pass: rows are the targets, or for gradients of the sources the sources
  IndexArray slot;        // [E] slot in the forward's CSR of each slot; null where csr is that one
  IndexArray perm;        // [E] edge id of each slot of the forward's CSR, or null
  const void* edge_attr;  // [E, D], or null
  int64_t num_edges, num_cols, heads, channels, stride, edge_dim, edge_stride;
  DropoutArgs dropout;
};

// Result of a pass with a softmax. A piece of a split row leaves [H, S] weighted sums, [H, edge stride] of edge
// features, and the maximum and the sum of each head.
struct SoftmaxRows {
  void* out;       // [R, F]
  void* lse;       // [R, H] acc
  void* edge_out;  // [R, H, D] acc, or null
  void* partials;  // [2 K, piece] acc
  int64_t piece;
};

// Result of a pass that sums: one or two feature rows, then numbers in acc. A piece leaves the sums themselves.
struct SummedRows {
  void* first;          // [R, F]
  const void* factors;  // padded row that `first` is multiplied with, or null
  double first_scale;
  void* second;    // [R, F], or null
  void* wide;      // [R, H, D] acc, or null; its sums are [H, edge stride]
  void* partials;  // [2 K, piece] acc
  int64_t piece;
  double wide_scale;
};

struct Gatv2Args {
  ScoreArgs score;
  const void* l;       // [N, F]
  const void* r;       // [R, F]
  const void* att;     // padded row
  const void* matrix;  // [D, padded row], or null
  double negative_slope;
  SoftmaxRows result;
};

// Gradients of r, of the edge features and of what all edges share; leaves the weights for Gatv2SourcesArgs.
struct Gatv2RowsArgs {
  ScoreArgs score;
  const void* grad;    // [R, F]
  const void* l;       // [N, F]
  const void* r;       // [R, F]
  const void* out;     // [R, F]
  const void* lse;     // [R, H] acc
  const void* att;     // padded row
  const void* matrix;  // [D, padded row], or null
  double negative_slope;
  void* weights;       // [E, 2, H] acc, by slot: alpha * mask, and the gradient of the score
  void* d_att;         // [groups, padded row], zero beforehand
  void* d_matrix;      // [groups, D, padded row], zero beforehand, or null
  void* d_edge_attr;   // [E, D], or null
  int64_t num_groups;  // runs of spans whose shared gradients are added up one by one
  SummedRows result;
};

struct Gatv2SourcesArgs {
  ScoreArgs score;
  const void* grad;     // [R, F]
  const void* l;        // [N, F]
  const void* r;        // [R, F]
  const void* att;      // padded row
  const void* matrix;   // [D, padded row], or null
  const void* weights;  // [E, 2, H] acc
  double negative_slope;
  SummedRows result;
};

struct DotArgs {
  ScoreArgs score;
  const void* q;           // [R, F]
  const void* k;           // [N, F]
  const void* v;           // [N, F]
  const void* edge_query;  // [R, H, D] acc, or null
  double scale;
  SoftmaxRows result;
};

struct DotRowsArgs {
  ScoreArgs score;
  const void* grad;           // [R, F]
  const void* grad_edge_out;  // [R, H, D] acc, or null
  const void* q;              // [R, F]
  const void* k;              // [N, F]
  const void* v;              // [N, F]
  const void* edge_query;     // [R, H, D] acc, or null
  const void* out;            // [R, F]
  const void* lse;            // [R, H] acc
  const void* edge_out;       // [R, H, D] acc, or null
  double scale;
  void* weights;      // [E, 2, H] acc, by slot, as Gatv2RowsArgs
  void* d_edge_attr;  // [E, D], or null
  SummedRows result;
};

struct DotSourcesArgs {
  ScoreArgs score;
  const void* grad;     // [R, F]
  const void* q;        // [R, F]
  const void* weights;  // [E, 2, H] acc
  SummedRows result;
};

struct ScoreKernels {
  // Spans [begin, end); gatv2_rows: groups of spans.
  using Gatv2 = void (*)(const Gatv2Args&, int64_t begin, int64_t end);
  using Gatv2Rows = void (*)(const Gatv2RowsArgs&, int64_t begin, int64_t end);
  using Gatv2Sources = void (*)(const Gatv2SourcesArgs&, int64_t begin, int64_t end);
  using Dot = void (*)(const DotArgs&, int64_t begin, int64_t end);
  using DotRows = void (*)(const DotRowsArgs&, int64_t begin, int64_t end);
  using DotSources = void (*)(const DotSourcesArgs&, int64_t begin, int64_t end);
  // Split rows [begin, end).
  using CombineSoftmax = void (*)(const ScoreArgs&, const SoftmaxRows&, int64_t begin, int64_t end);
  using CombineSums = void (*)(const ScoreArgs&, const SummedRows&, int64_t begin, int64_t end);

  Gatv2 gatv2_spans[kNumFeatureTypes];
  Gatv2Rows gatv2_rows[kNumFeatureTypes];
  Gatv2Sources gatv2_sources[kNumFeatureTypes];
  Dot dot_spans[kNumFeatureTypes];
  DotRows dot_rows[kNumFeatureTypes];
  DotSources dot_sources[kNumFeatureTypes];
  CombineSoftmax combine_softmax[kNumFeatureTypes];
  CombineSums combine_sums[kNumFeatureTypes];
};

extern const ScoreKernels kScoreBaseline;
#if defined(__x86_64__)
extern const ScoreKernels kScoreAvx2;
extern const ScoreKernels kScoreAvx512;
#endif

// The table of the level that kernels() has.
const ScoreKernels& score_kernels();

}  // namespace gnnagg::cpu
