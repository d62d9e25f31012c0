// dot_attention_backward: dq, dk and dv of dot_attention, by four gathers (scored_gradient.cuh): v and k on the CSR, for the scores and
// dq; dO and q on the transpose, for dv and dk. The gradients of edge features and of their queries come before and after that, from
// edge_terms.cu, with another workspace of 8 H bytes per edge.
#include "cuda/edge_terms.h"
#include "cuda/scored_gradient.cuh"

namespace gnnagg {

using bridge::OptionalTensor;
using bridge::Tensor;

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> dot_attention_backward_cuda(
    const Tensor& grad, const Tensor& grad_edge_out, const Tensor& q, const Tensor& k, const Tensor& v,
    const OptionalTensor& edge_query, const OptionalTensor& edge_attr, const Tensor& out, const Tensor& lse,
    const Tensor& edge_out, const Tensor& rowptr, const Tensor& col, const Tensor& spans, const Tensor& splits,
    const OptionalTensor& perm, const Tensor& t_rowptr, const Tensor& t_col, const Tensor& t_slot,
    const Tensor& t_spans, const Tensor& t_splits, const OptionalTensor& seed, int64_t heads, double scale,
    double dropout) {
  const char* op = "dot_attention_backward";
  const bridge::CsrArguments csr(op, rowptr, col, spans, splits), reverse(op, t_rowptr, t_col, t_spans, t_splits);
  const bridge::HeadShape shape(op, "k", k, heads);
  const auto type = k.scalar_type(), acc = bridge::accumulate_type(type);
  const auto differentiate = [&](const bridge::ScoredEdges& edges, const bridge::EdgeOutputs& outputs) {
    return bridge::scored_gradient<DotScore>(op, shape, grad, k, v, q, std::nullopt, out, lse, csr, reverse, t_slot,
                                             perm, seed, scale, dropout, edges, outputs);
  };
  STD_TORCH_CHECK(edge_attr.has_value() == edge_query.has_value(), op, ": edge_attr and edge_query go together");
  if (!edge_attr) {
    const auto grads = differentiate({}, {});
    return {grads.d_targets, grads.d_keys, grads.d_values, bridge::empty_like_device(k, {0}, acc),
            bridge::empty_like_device(k, {0}, type)};
  }
  const bridge::EdgeAttributes edges(op, csr, perm, *edge_attr, heads, type);
  const std::initializer_list<int64_t> sizes = {csr.num_rows, heads, edges.dims()};
  bridge::check_tensor(*edge_query, op, "edge_query", acc, sizes);
  bridge::check_tensor(edge_out, op, "edge_out", acc, sizes);
  bridge::check_tensor(grad_edge_out, op, "grad_edge_out", acc, sizes);
  const auto [terms, dots] = bridge::edge_terms(edges, *edge_query, grad_edge_out, scale);
  const auto grads = differentiate({std::nullopt, std::nullopt, terms, dots}, {edge_out, grad_edge_out});
  const Tensor d_query = bridge::edge_sums(op, edges, grads.ds, std::nullopt, std::nullopt, 0.0);
  const Tensor d_attr = bridge::edge_gradient(edges, *edge_query, grad_edge_out, grads.weights, grads.ds);
  return {grads.d_targets, grads.d_keys, grads.d_values, d_query, d_attr};
}

}  // namespace gnnagg
