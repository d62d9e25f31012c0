// dot_attention: out[i, h] = sum over edges e = (j -> i) of alpha[e, h] * mask[e, h] * v[j, h], where alpha is the softmax over
// the edges of i of scale * <q[i, h], k[j, h]>.
//
// How, traffic. scored_attention.cuh: k[j] and v[j] are read together; q[i] stays in registers for the row.
//
// Launch contract, determinism. As gat_attention.
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
  STD_TORCH_CHECK(!edge_query && !edge_attr, op, ": edge features are not implemented on CUDA");
  const auto [out, lse] =
      bridge::scored_attention<DotScore>(op, shape, k, v, q, std::nullopt, csr, perm, seed, scale, dropout);
  return {out, lse, bridge::empty_like_device(k, {0}, bridge::accumulate_type(k.scalar_type()))};
}

}  // namespace gnnagg
