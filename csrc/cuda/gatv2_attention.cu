// gatv2_attention: out[i, h] = sum over edges e = (j -> i) of alpha[e, h] * mask[e, h] * l[j, h], where alpha is the softmax over
// the edges of i of <att[h], LeakyReLU(l[j, h] + r[i, h] + (W e)[h])>; W e where edges have features.
//
// How, traffic. scored_attention.cuh: l[j] is read once, for the score and for the sum; r[i] stays in registers for the row. W e is made
// packet by packet where it is used (edge_features.cuh).
//
// Launch contract, determinism. As gat_attention.
#include "cuda/gatv2_edges.h"
#include "cuda/scored_attention.cuh"

namespace gnnagg {

using bridge::OptionalTensor;
using bridge::Tensor;

std::tuple<Tensor, Tensor> gatv2_attention_cuda(const Tensor& l, const Tensor& r, const Tensor& att,
                                                const OptionalTensor& edge_attr, const OptionalTensor& edge_weight,
                                                const Tensor& rowptr, const Tensor& col, const Tensor& spans,
                                                const Tensor& splits, const OptionalTensor& perm,
                                                const OptionalTensor& seed, double negative_slope, double dropout,
                                                const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                                                const OptionalTensor&, const OptionalTensor&) {
  const char* op = "gatv2_attention";
  const bridge::CsrArguments csr(op, rowptr, col, spans, splits);
  const bridge::HeadShape shape(op, "l", l, att.size(0));
  bridge::check_tensor(att, op, "att", bridge::accumulate_type(l.scalar_type()), {shape.heads, shape.channels});
  const auto packed = bridge::pack_edges(op, shape, csr, l, perm, edge_attr, edge_weight);
  if (!packed) {
    return bridge::scored_attention<Gatv2Score>(op, shape, l, l, r, att, csr, perm, seed, negative_slope, dropout);
  }
  const bridge::ScoredEdges edges{packed->attr, packed->weight, std::nullopt, std::nullopt};
  return bridge::scored_attention<Gatv2EdgeScore>(op, shape, l, l, r, att, csr, perm, seed, negative_slope, dropout,
                                                  edges);
}

}  // namespace gnnagg
