// extremum_backward: dx[j] = sum over edges (j -> i) that won at (i, f) of grad[i, f] / winners(i, f).
//
// Two ways, chosen by the mean degree. By gather (extremum_gather.cu): every edge of the transpose reads the winners of its
// target, E * F * 4 bytes; right where a target has few neighbours. By scatter (extremum_scatter.cu): every (i, f) adds its
// gradient to its winner, N * F random cells, whatever the number of edges. Both are deterministic.
#include "cuda/extremum_backward.cuh"

namespace gnnagg {
namespace {

// Edges per target from which the scatter is taken. H200, fp32, F = 128, ms, gather against scatter: hub (20 edges a row)
// 7.3 / 5.5, arxiv-like (14) 1.03 / .75. At four edges a row the gather takes 1.8; the scatter was not run there, but its
// one million rows hold as many winners as the hub graph's.
constexpr int64_t kScatterMeanDegree = 8;

}  // namespace

using bridge::FeatureShape;
using bridge::ScalarType;
using bridge::Tensor;

Tensor extremum_backward_cuda(const Tensor& grad, const Tensor& winner, const Tensor& x, const Tensor& out,
                              const Tensor& rowptr, const Tensor& col, const Tensor& spans, const Tensor& splits,
                              const Tensor& t_rowptr, const Tensor& t_col, const Tensor& t_slot, const Tensor& t_spans,
                              const Tensor& t_splits) {
  const char* op = "extremum_backward";
  const bridge::CudaCall call(x);
  const FeatureShape shape(x, op, "x"), grad_shape(grad, op, "grad"), out_shape(out, op, "out");
  const bridge::CsrArguments csr(op, rowptr, col, spans, splits), reverse(op, t_rowptr, t_col, t_spans, t_splits);
  STD_TORCH_CHECK(grad_shape.rows == csr.num_rows && out_shape.rows == csr.num_rows &&
                      grad_shape.width == shape.width && out_shape.width == shape.width &&
                      grad_shape.batch == shape.batch && out_shape.batch == shape.batch,
                  op, ": grad and out must be [B, num_dst, F]");
  STD_TORCH_CHECK(grad.scalar_type() == x.scalar_type() && out.scalar_type() == x.scalar_type(), op,
                  ": grad and out must have the dtype of x");
  STD_TORCH_CHECK(winner.scalar_type() == csr.index && winner.numel() == out.numel() && winner.is_contiguous(), op,
                  ": winner must be [B, num_dst, F] of the index dtype");
  STD_TORCH_CHECK(reverse.num_rows == shape.rows && reverse.num_edges == csr.num_edges && reverse.index == csr.index,
                  op, ": the transpose does not belong to the CSR");
  bridge::check_tensor(t_slot, op, "t_slot", csr.index, {csr.num_edges});
  Tensor dx = bridge::empty_rows(x, shape.rows, shape.width, x.scalar_type());
  if (dx.numel() == 0) return dx;
  const ExtremumBackward task{grad, winner, x, out, t_slot, dx, csr, reverse, shape, call.stream};
  const bool scatter = csr.num_edges >= kScatterMeanDegree * csr.num_rows && x.scalar_type() != ScalarType::Double;
  if (scatter) {
    extremum_backward_by_scatter(task);
  } else {
    extremum_backward_by_gather(task);
  }
  return dx;
}

}  // namespace gnnagg
