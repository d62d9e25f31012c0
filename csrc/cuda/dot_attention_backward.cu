// dot_attention_backward: dq, dk and dv of dot_attention, by four gathers (scored_gradient.cuh): k and v on the CSR, for the scores and
// dq; q and dO on the transpose, for dk and dv.
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
  STD_TORCH_CHECK(!edge_query && !edge_attr && grad_edge_out.numel() == 0 && edge_out.numel() == 0, op,
                  ": edge features are not implemented on CUDA");
  const auto grads = bridge::scored_gradient<DotScore>(op, shape, grad, k, v, q, std::nullopt, out, lse, csr, reverse,
                                                       t_slot, perm, seed, scale, dropout);
  const Tensor none = bridge::empty_like_device(k, {0}, bridge::accumulate_type(k.scalar_type()));
  return {grads.d_targets, grads.d_keys, grads.d_values, none, bridge::empty_like_device(k, {0}, k.scalar_type())};
}

}  // namespace gnnagg
