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

std::tuple<Tensor, Tensor, Tensor, Tensor> gat_attention_cuda(
    const Tensor& z, const Tensor& a_src, const OptionalTensor& a_dst, const OptionalTensor& edge_score,
    const Tensor& rowptr, const Tensor& col, const Tensor& spans, const Tensor& splits, const OptionalTensor& perm,
    const OptionalTensor& seed, double negative_slope, double dropout, bool with_positive,
    const OptionalTensor& t_rowptr, const OptionalTensor& t_col, const OptionalTensor& t_slot,
    const OptionalTensor& t_spans, const OptionalTensor& t_splits);
std::tuple<Tensor, Tensor, Tensor, Tensor> gat_attention_backward_cuda(
    const Tensor& grad, const Tensor& z, const Tensor& a_src, const OptionalTensor& a_dst,
    const OptionalTensor& edge_score, const Tensor& out, const Tensor& lse, const Tensor& positive_out,
    const Tensor& positive_alpha, const Tensor& rowptr, const Tensor& col, const Tensor& spans, const Tensor& splits,
    const OptionalTensor& perm, const Tensor& t_rowptr, const Tensor& t_col, const Tensor& t_slot,
    const Tensor& t_spans, const Tensor& t_splits, const OptionalTensor& seed, double negative_slope, double dropout,
    bool need_dst, bool need_edge);
std::tuple<Tensor, Tensor> gatv2_attention_cuda(const Tensor& l, const Tensor& r, const Tensor& att,
                                                const OptionalTensor& edge_attr, const OptionalTensor& edge_weight,
                                                const Tensor& rowptr, const Tensor& col, const Tensor& spans,
                                                const Tensor& splits, const OptionalTensor& perm,
                                                const OptionalTensor& seed, double negative_slope, double dropout,
                                                const OptionalTensor& t_rowptr, const OptionalTensor& t_col,
                                                const OptionalTensor& t_slot, const OptionalTensor& t_spans,
                                                const OptionalTensor& t_splits);
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gatv2_attention_backward_cuda(
    const Tensor& grad, const Tensor& l, const Tensor& r, const Tensor& att, const OptionalTensor& edge_attr,
    const OptionalTensor& edge_weight, const Tensor& out, const Tensor& lse, const Tensor& rowptr, const Tensor& col,
    const Tensor& spans, const Tensor& splits, const OptionalTensor& perm, const Tensor& t_rowptr, const Tensor& t_col,
    const Tensor& t_slot, const Tensor& t_spans, const Tensor& t_splits, const OptionalTensor& seed,
    double negative_slope, double dropout, bool need_edge);
std::tuple<Tensor, Tensor, Tensor> dot_attention_cuda(const Tensor& q, const Tensor& k, const Tensor& v,
                                                      const OptionalTensor& edge_query, const OptionalTensor& edge_attr,
                                                      const Tensor& rowptr, const Tensor& col, const Tensor& spans,
                                                      const Tensor& splits, const OptionalTensor& perm,
                                                      const OptionalTensor& seed, int64_t heads, double scale,
                                                      double dropout, const OptionalTensor& t_rowptr,
                                                      const OptionalTensor& t_col, const OptionalTensor& t_slot,
                                                      const OptionalTensor& t_spans, const OptionalTensor& t_splits);
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> dot_attention_backward_cuda(
    const Tensor& grad, const Tensor& grad_edge_out, const Tensor& q, const Tensor& k, const Tensor& v,
    const OptionalTensor& edge_query, const OptionalTensor& edge_attr, const Tensor& out, const Tensor& lse,
    const Tensor& edge_out, const Tensor& rowptr, const Tensor& col, const Tensor& spans, const Tensor& splits,
    const OptionalTensor& perm, const Tensor& t_rowptr, const Tensor& t_col, const Tensor& t_slot,
    const Tensor& t_spans, const Tensor& t_splits, const OptionalTensor& seed, int64_t heads, double scale,
    double dropout);
Tensor edge_softmax_cuda(const Tensor& score, const Tensor& rowptr, const Tensor& spans, const Tensor& splits,
                         const OptionalTensor& perm);
Tensor edge_softmax_backward_cuda(const Tensor& grad, const Tensor& alpha, const Tensor& rowptr, const Tensor& spans,
                                  const Tensor& splits, const OptionalTensor& perm);
Tensor dropout_mask_cuda(const Tensor& seed, int64_t num_edges, int64_t heads, double p);
Tensor propagate_cuda(const Tensor& x, const OptionalTensor& x0, const Tensor& rowptr, const Tensor& col,
                      const Tensor& spans, const Tensor& splits, const OptionalTensor& perm,
                      const OptionalTensor& weight, int64_t hops, double teleport, bool return_all,
                      const OptionalTensor& t_rowptr, const OptionalTensor& t_col, const OptionalTensor& t_slot,
                      const OptionalTensor& t_spans, const OptionalTensor& t_splits);

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
  m.impl("gat_attention", TORCH_BOX(&gnnagg::gat_attention_cuda));
  m.impl("gat_attention_backward", TORCH_BOX(&gnnagg::gat_attention_backward_cuda));
  m.impl("gatv2_attention", TORCH_BOX(&gnnagg::gatv2_attention_cuda));
  m.impl("gatv2_attention_backward", TORCH_BOX(&gnnagg::gatv2_attention_backward_cuda));
  m.impl("dot_attention", TORCH_BOX(&gnnagg::dot_attention_cuda));
  m.impl("dot_attention_backward", TORCH_BOX(&gnnagg::dot_attention_backward_cuda));
  m.impl("edge_softmax", TORCH_BOX(&gnnagg::edge_softmax_cuda));
  m.impl("edge_softmax_backward", TORCH_BOX(&gnnagg::edge_softmax_backward_cuda));
  m.impl("dropout_mask", TORCH_BOX(&gnnagg::dropout_mask_cuda));
  m.impl("propagate", TORCH_BOX(&gnnagg::propagate_cuda));
}

STABLE_TORCH_LIBRARY_IMPL(gnnagg, CompositeExplicitAutograd, m) {
  m.impl("set_launch_mode", TORCH_BOX(&gnnagg::set_launch_mode_boxed));
  m.impl("last_launch_plan", TORCH_BOX(&gnnagg::last_launch_plan_boxed));
}
