// Arguments of the kernels of gat_attention and edge_softmax, and their table. No torch header. Letters as in
// kernels.h.
#pragma once

#include "cpu/kernels.h"

namespace gnnagg::cpu {

// The rule of common/philox.h, and the factor of what is kept: 1 where nothing is dropped.
struct DropoutArgs {
  bool is_on;
  uint64_t seed;
  uint32_t threshold;
  double scale;
};

struct GatArgs {
  CsrArgs csr;
  const void* z;            // [N, F]
  const void* a_src;        // [N, H] acc
  const void* a_dst;        // [R, H] acc, or null
  const void* edge_score;   // [E, H] acc, or null
  IndexArray perm;          // [E], or null
  void* out;                // [R, F]
  void* lse;                // [R, H] acc
  void* positive_out;       // [R, F], or null
  void* positive_alpha;     // [R, H] acc, or null
  void* partials;           // [2 K, F] acc
  void* positive_partials;  // [2 K, F] acc, or null
  void* partial_state;      // [2 K, 3, H] acc
  int64_t num_src, num_edges, width, heads;
  double negative_slope;
  DropoutArgs dropout;
};

// csr is that of the transpose: its rows are the sources, N of them, and its columns the R targets.
struct GatBackwardArgs {
  CsrArgs csr;
  IndexArray slot;         // [E] slot in the forward's CSR of each slot
  IndexArray perm;         // [E] edge id of each slot of the forward's CSR, or null
  const void* grad;        // [R, F]
  const void* z;           // [N, F]
  const void* a_src;       // [N, H] acc
  const void* edge_score;  // [E, H] acc, or null
  const void* record;      // [R, 3, H] acc: a_dst, logsumexp, D
  void* dz;                // [N, F]
  void* da_src;            // [N, H] acc
  void* ds;                // [E, H] acc, or null: gradient of the scores
  void* partials;          // [2 K, F] acc
  void* partial_scores;    // [2 K, H] acc
  int64_t num_dst, num_edges, width, heads;
  double negative_slope;
  DropoutArgs dropout;
  bool ds_by_edge;  // ds in the order of edge ids, else in that of the forward's slots
};

// Node by node: the record, and where the forward left its positive sums the gradient of a_dst.
struct GatPrepareArgs {
  const void* grad;            // [R, F]
  const void* out;             // [R, F]
  const void* lse;             // [R, H] acc
  const void* a_dst;           // [R, H] acc, or null
  const void* positive_out;    // [R, F], or null
  const void* positive_alpha;  // [R, H] acc, or null
  void* record;                // [R, 3, H] acc
  void* da_dst;                // [R, H] acc, or null
  int64_t num_dst, width, heads;
  double negative_slope;
};

// out[i, h] = sum over the slots s of row i of values[perm[s], h], or [s, h] without perm.
struct ScoreSumArgs {
  CsrArgs csr;         // col unused
  const void* values;  // [E, H] acc
  IndexArray perm;     // [E], or null
  void* out;           // [R, H] acc
  void* partials;      // [2 K, H] acc
  int64_t num_edges, heads;
};

// col unused. Backward: values is the gradient of alpha.
struct EdgeSoftmaxArgs {
  CsrArgs csr;
  const void* values;   // [E, H]
  const void* alpha;    // [E, H], backward only
  IndexArray perm;      // [E], or null
  void* out;            // [E, H]
  void* partial_state;  // [2 K, 2, H] acc: maximum and sum, or the sum of alpha * gradient in the first
  int64_t num_edges, heads;
};

struct AttentionKernels {
  // Spans, or split rows, [begin, end).
  using Gat = void (*)(const GatArgs&, int64_t begin, int64_t end);
  using GatBackward = void (*)(const GatBackwardArgs&, int64_t begin, int64_t end);
  using ScoreSum = void (*)(const ScoreSumArgs&, int64_t begin, int64_t end);
  using EdgeSoftmax = void (*)(const EdgeSoftmaxArgs&, int64_t begin, int64_t end);
  // Rows [begin, end).
  using GatPrepare = void (*)(const GatPrepareArgs&, int64_t begin, int64_t end);

  Gat gat_spans[kNumFeatureTypes];
  Gat gat_combine[kNumFeatureTypes];
  GatPrepare gat_prepare[kNumFeatureTypes];
  GatBackward gat_backward_spans[kNumFeatureTypes];
  GatBackward gat_backward_combine[kNumFeatureTypes];
  // By accumulate type: kFloat or kDouble.
  ScoreSum score_sum_spans[2];
  ScoreSum score_sum_combine[2];
  // Whole rows at once; split rows in three steps, of which the last writes their pieces.
  EdgeSoftmax edge_softmax_spans[kNumFeatureTypes];
  EdgeSoftmax edge_softmax_combine[kNumFeatureTypes];
  EdgeSoftmax edge_softmax_pieces[kNumFeatureTypes];
  EdgeSoftmax edge_softmax_backward_spans[kNumFeatureTypes];
  EdgeSoftmax edge_softmax_backward_combine[kNumFeatureTypes];
  EdgeSoftmax edge_softmax_backward_pieces[kNumFeatureTypes];
};

extern const AttentionKernels kAttentionBaseline;
#if defined(__x86_64__)
extern const AttentionKernels kAttentionAvx2;
extern const AttentionKernels kAttentionAvx512;
#endif

// The table of the level that kernels() has.
const AttentionKernels& attention_kernels();

}  // namespace gnnagg::cpu
