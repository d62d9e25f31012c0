// dot_attention: out[i, h] = sum over edges e = (j -> i) of alpha[e, h] * mask[e, h] * v[j, h], where alpha is the softmax over
// the edges of i of scale * <q[i, h], k[j, h]>. With edge features e in R^D the score is scale * (<q[i, h], k[j, h]> + <p[i, h], e>), and
// edge_out[i, h] = sum of alpha * mask * e.
//
// How, traffic. scored_attention.cuh: k[j] and v[j] are read together; q[i] stays in registers for the row. Edge features have launches
// of their own before and after it (edge_terms.cu), with a workspace of 8 H bytes per edge.
//
// Launch contract, determinism. As gat_attention.
#include "cuda/edge_terms.h"
#include "cuda/scored_attention.cuh"

namespace gnnagg {

using bridge::OptionalTensor;
using bridge::Tensor;

std::tuple<Tensor, Tensor, Tensor> dot_attention_cuda(
    const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& edge_query,
    const OptionalTensor& edge_attr, const Tensor& rowptr, const Tensor& col, const Tensor& spans, const Tensor& splits,
    const OptionalTensor& perm, const OptionalTensor& seed, int64_t heads, double scale, double dropout,
    const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&) {
  const char* op = "dot_attention";
  const bridge::CsrArguments csr(op, rowptr, col, spans, splits);
  const bridge::HeadShape shape(op, "k", k, heads);
  const auto acc = bridge::accumulate_type(k.scalar_type());
  const auto attend = [&](const bridge::ScoredEdges& edges) {
    return bridge::scored_attention<DotScore>(op, shape, k, v, q, std::nullopt, csr, perm, seed, scale, dropout, edges);
  };
  STD_TORCH_CHECK(edge_attr.has_value() == edge_query.has_value(), op, ": edge_attr and edge_query go together");
  if (!edge_attr) {
    const auto [out, lse] = attend({});
    return {out, lse, bridge::empty_like_device(k, {0}, acc)};
  }
  const bridge::EdgeAttributes edges(op, csr, perm, *edge_attr, heads, k.scalar_type());
  bridge::check_tensor(*edge_query, op, "edge_query", acc, {csr.num_rows, heads, edges.dims()});
  const auto [terms, scores] = bridge::edge_terms(edges, *edge_query, std::nullopt, scale);
  const auto [out, lse] = attend({std::nullopt, std::nullopt, terms, scores});
  return {out, lse, bridge::edge_sums(op, edges, scores, lse, seed, dropout)};
}

}  // namespace gnnagg
