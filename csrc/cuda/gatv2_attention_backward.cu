// gatv2_attention_backward: dl, dr and datt of gatv2_attention, by three gathers (scored_gradient.cuh): l on the CSR, for the scores and
// dr; r and dO on the transpose, for dl. The gradients of edge features and of W follow in launches of their own
// (gatv2_edge_gradient.cu).
#include "cuda/gatv2_edges.h"
#include "cuda/scored_gradient.cuh"

namespace gnnagg {

using bridge::OptionalTensor;
using bridge::Tensor;

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gatv2_attention_backward_cuda(
    const Tensor& grad, const Tensor& l, const Tensor& r, const Tensor& att, const OptionalTensor& edge_attr,
    const OptionalTensor& edge_weight, const Tensor& out, const Tensor& lse, const Tensor& rowptr, const Tensor& col,
    const Tensor& spans, const Tensor& splits, const OptionalTensor& perm, const Tensor& t_rowptr, const Tensor& t_col,
    const Tensor& t_slot, const Tensor& t_spans, const Tensor& t_splits, const OptionalTensor& seed,
    double negative_slope, double dropout, bool need_edge) {
  const char* op = "gatv2_attention_backward";
  const bridge::CsrArguments csr(op, rowptr, col, spans, splits), reverse(op, t_rowptr, t_col, t_spans, t_splits);
  const bridge::HeadShape shape(op, "l", l, att.size(0));
  const auto acc = bridge::accumulate_type(l.scalar_type());
  bridge::check_tensor(att, op, "att", acc, {shape.heads, shape.channels});
  const auto packed = bridge::pack_edges(op, shape, csr, l, perm, edge_attr, edge_weight);
  bridge::ScoredEdges edges;
  if (packed) edges = {packed->attr, packed->weight, std::nullopt, std::nullopt};
  const auto grads =
      packed ? bridge::scored_gradient<Gatv2EdgeScore>(op, shape, grad, l, l, r, att, out, lse, csr, reverse, t_slot,
                                                       perm, seed, negative_slope, dropout, edges)
             : bridge::scored_gradient<Gatv2Score>(op, shape, grad, l, l, r, att, out, lse, csr, reverse, t_slot, perm,
                                                   seed, negative_slope, dropout);
  const int64_t sizes[] = {shape.heads, shape.channels};
  Tensor datt = torch::stable::view(grads.d_constant, torch::headeronly::IntHeaderOnlyArrayRef(sizes, 2));
  if (!packed || !need_edge) {
    return {grads.d_keys, grads.d_targets, datt, bridge::empty_like_device(l, {0}, l.scalar_type()),
            bridge::empty_like_device(l, {0}, acc)};
  }
  const auto of_edges = bridge::gatv2_edge_gradient(shape, l, r, att, *packed, grads.ds, csr, perm, negative_slope);
  return {grads.d_keys, grads.d_targets, datt, of_edges.d_attr, of_edges.d_weight};
}

}  // namespace gnnagg
