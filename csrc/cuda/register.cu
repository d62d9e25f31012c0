// Registers the CUDA kernels under the schemas that the Python pages define.
#include <tuple>

#include "bridge/check.h"
#include "cuda/launch.cuh"

namespace gnnagg {

using bridge::OptionalTensor;
using bridge::Tensor;

std::tuple<Tensor, Tensor, Tensor, Tensor> csr_from_coo_cuda(const Tensor& row, const Tensor& col, int64_t num_rows,
                                                             int64_t num_cols, int64_t loops, bool wide);
std::tuple<Tensor, Tensor, Tensor> csr_transpose_cuda(const Tensor& rowptr, const Tensor& col, int64_t num_cols);
std::tuple<Tensor, Tensor> build_spans_cuda(const Tensor& rowptr, int64_t num_edges, int64_t num_spans);
Tensor aggregate_sum_cuda(const Tensor& x, const Tensor& rowptr, const Tensor& col, const Tensor& spans,
                          const Tensor& splits, const OptionalTensor& perm, const OptionalTensor& weight,
                          const OptionalTensor& src_scale, const OptionalTensor& dst_scale, bool mean, bool acc_out,
                          const OptionalTensor& t_rowptr, const OptionalTensor& t_col, const OptionalTensor& t_slot,
                          const OptionalTensor& t_spans, const OptionalTensor& t_splits);
std::tuple<Tensor, Tensor> aggregate_extremum_cuda(const Tensor& x, const Tensor& rowptr, const Tensor& col,
                                                   const Tensor& spans, const Tensor& splits, bool minimum,
                                                   bool with_arg, const OptionalTensor& t_rowptr,
                                                   const OptionalTensor& t_col, const OptionalTensor& t_slot,
                                                   const OptionalTensor& t_spans, const OptionalTensor& t_splits);
Tensor extremum_backward_cuda(const Tensor& grad, const Tensor& winner, const Tensor& x, const Tensor& out,
                              const Tensor& rowptr, const Tensor& col, const Tensor& spans, const Tensor& splits,
                              const Tensor& t_rowptr, const Tensor& t_col, const Tensor& t_slot, const Tensor& t_spans,
                              const Tensor& t_splits);
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> aggregate_multi_cuda(
    const Tensor& x, const Tensor& rowptr, const Tensor& col, const Tensor& spans, const Tensor& splits, int64_t which,
    bool with_arg, const OptionalTensor& t_rowptr, const OptionalTensor& t_col, const OptionalTensor& t_slot,
    const OptionalTensor& t_spans, const OptionalTensor& t_splits);
Tensor edge_dot_cuda(const Tensor& a, const Tensor& b, const Tensor& rowptr, const Tensor& col, const Tensor& spans,
                     const OptionalTensor& perm, int64_t heads);

int64_t set_launch_mode_boxed(int64_t mode) { return int64_t(set_launch_mode(LaunchMode(int(mode)))); }

std::tuple<int64_t, int64_t, int64_t, int64_t, bool> last_launch_plan_boxed() {
  const LaunchPlan plan = last_launch_plan();
  return {plan.grid, plan.block, plan.blocks_per_sm, plan.sms, plan.cooperative};
}

}  // namespace gnnagg

STABLE_TORCH_LIBRARY_IMPL(gnnagg, CUDA, m) {
  m.impl("csr_from_coo", TORCH_BOX(&gnnagg::csr_from_coo_cuda));
  m.impl("csr_transpose", TORCH_BOX(&gnnagg::csr_transpose_cuda));
  m.impl("build_spans", TORCH_BOX(&gnnagg::build_spans_cuda));
  m.impl("aggregate_sum", TORCH_BOX(&gnnagg::aggregate_sum_cuda));
  m.impl("aggregate_extremum", TORCH_BOX(&gnnagg::aggregate_extremum_cuda));
  m.impl("extremum_backward", TORCH_BOX(&gnnagg::extremum_backward_cuda));
  m.impl("aggregate_multi", TORCH_BOX(&gnnagg::aggregate_multi_cuda));
  m.impl("edge_dot", TORCH_BOX(&gnnagg::edge_dot_cuda));
}

STABLE_TORCH_LIBRARY_IMPL(gnnagg, CompositeExplicitAutograd, m) {
  m.impl("set_launch_mode", TORCH_BOX(&gnnagg::set_launch_mode_boxed));
  m.impl("last_launch_plan", TORCH_BOX(&gnnagg::last_launch_plan_boxed));
}
