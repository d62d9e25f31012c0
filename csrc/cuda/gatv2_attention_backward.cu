// gatv2_attention_backward: dl, dr and datt of gatv2_attention, by three gathers (scored_gradient.cuh): l on the CSR, for the scores and
// dr; r and dO on the transpose, for dl.
#include "cuda/scored_gradient.cuh"

namespace gnnagg {

using bridge::OptionalTensor;
using bridge::Tensor;

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gatv2_attention_backward_cuda(
    const Tensor& grad, const Tensor& l, const Tensor& r, const Tensor& att, const OptionalTensor& edge_attr,
    const OptionalTensor& edge_weight, const Tensor& out, const Tensor& lse, const Tensor& rowptr, const Tensor& col,
    const Tensor& spans, const Tensor& splits, const OptionalTensor& perm, const Tensor& t_rowptr, const Tensor& t_col,
    const Tensor& t_slot, const Tensor& t_spans, const Tensor& t_splits, const OptionalTensor& seed,
    double negative_slope, double dropout, bool) {
  const char* op = "gatv2_attention_backward";
  const bridge::CsrArguments csr(op, rowptr, col, spans, splits), reverse(op, t_rowptr, t_col, t_spans, t_splits);
  const bridge::HeadShape shape(op, "l", l, att.size(0));
  const auto acc = bridge::accumulate_type(l.scalar_type());
  bridge::check_tensor(att, op, "att", acc, {shape.heads, shape.channels});
  STD_TORCH_CHECK(!edge_attr && !edge_weight, op, ": edge features are not implemented on CUDA");
  const auto grads = bridge::scored_gradient<Gatv2Score>(op, shape, grad, l, l, r, att, out, lse, csr, reverse, t_slot,
                                                         perm, seed, negative_slope, dropout);
  const Tensor none = bridge::empty_like_device(l, {0}, l.scalar_type());
  const int64_t sizes[] = {shape.heads, shape.channels};
  Tensor datt = torch::stable::view(grads.d_constant, torch::headeronly::IntHeaderOnlyArrayRef(sizes, 2));
  return {grads.d_keys, grads.d_targets, datt, none, bridge::empty_like_device(l, {0}, acc)};
}

}  // namespace gnnagg
