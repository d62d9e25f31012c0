// aggregate_extremum and its gradient on the CPU: checks, outputs, and the phases of extremum_kernel.h.
#include <algorithm>

#include "cpu/ops.h"

namespace gnnagg::cpu {
namespace {

// Features that one backward task handles: one cache line of float accumulators, so that tasks do not share lines.
constexpr int64_t kFeaturesPerTask = 16;

}  // namespace

std::tuple<Tensor, Tensor> aggregate_extremum(Tensor x, Tensor rowptr, Tensor col, Tensor spans, Tensor splits,
                                              bool minimum, bool with_arg, OptionalTensor, OptionalTensor,
                                              OptionalTensor, OptionalTensor, OptionalTensor) {
  constexpr const char* kOp = "aggregate_extremum";
  const bridge::FeatureShape shape(x, kOp, "x");
  const ScalarType type = x.scalar_type(), acc = bridge::accumulate_type(type), index = rowptr.scalar_type();
  ExtremumArgs args = {};
  args.csr = csr_args(kOp, rowptr, col, spans, &splits);
  const int64_t num_rows = args.csr.num_rows;
  Tensor out = bridge::empty_rows(x, num_rows, shape.width, type);
  Tensor arg =
      with_arg ? bridge::empty_rows(x, num_rows, shape.width, index) : bridge::empty_like_device(x, {0}, index);
  if (out.numel() == 0) return {out, arg};
  const int64_t num_splits = count_split_rows(splits);
  const int64_t num_partials = num_splits ? shape.batch * 2 * args.csr.num_spans : 0;
  Tensor partials = bridge::empty_like_device(x, {num_partials, shape.width}, acc);
  Tensor partial_args = bridge::empty_like_device(x, {with_arg ? num_partials : 0, shape.width}, index);
  args.x = x.const_data_ptr();
  args.out = out.mutable_data_ptr();
  if (with_arg) args.arg = index_output(arg);
  args.partials = partials.mutable_data_ptr();
  if (with_arg) args.partial_args = index_output(partial_args);
  args.num_src = shape.rows;
  args.width = shape.width;
  args.minimum = minimum;

  const FeatureType t = feature_type(type);
  const Kernels& table = kernels();
  bridge::parallel_items(shape.batch * args.csr.num_spans, 1, bytes_moved(shape, col.numel() + num_rows, type),
                         [&](int64_t begin, int64_t end) { table.extremum_spans[t](args, begin, end); });
  bridge::parallel_items(shape.batch * num_splits, 1, bytes_moved(shape, 2 * num_splits, acc),
                         [&](int64_t begin, int64_t end) { table.extremum_combine[t](args, begin, end); });
  return {out, arg};
}

// The transpose and the schedules are for the GPU; see extremum_backward_kernel.h.
Tensor extremum_backward(Tensor grad, Tensor arg, Tensor x, Tensor out, Tensor rowptr, Tensor col, Tensor spans,
                         Tensor splits, Tensor, Tensor, Tensor, Tensor, Tensor) {
  constexpr const char* kOp = "extremum_backward";
  const bridge::FeatureShape shape(x, kOp, "x");
  const ScalarType type = x.scalar_type(), acc = bridge::accumulate_type(type), index = rowptr.scalar_type();
  ExtremumBackwardArgs args = {};
  args.csr = csr_args(kOp, rowptr, col, spans, &splits);
  const int64_t num_rows = args.csr.num_rows;
  const auto check_rows = [&](const Tensor& tensor, const char* name, ScalarType expected) {
    if (x.dim() == 3) {
      bridge::check_tensor(tensor, kOp, name, expected, {shape.batch, num_rows, shape.width});
    } else {
      bridge::check_tensor(tensor, kOp, name, expected, {num_rows, shape.width});
    }
  };
  check_rows(grad, "grad", type);
  check_rows(out, "out", type);
  check_rows(arg, "arg", index);
  Tensor dx = bridge::zeros_rows(x, shape.rows, shape.width, acc);
  if (dx.numel() == 0 || grad.numel() == 0) return acc == type ? dx : torch::stable::to(dx, type);
  args.grad = grad.const_data_ptr();
  args.arg = index_array(arg);
  args.x = x.const_data_ptr();
  args.out = out.const_data_ptr();
  args.dx = dx.mutable_data_ptr();
  args.num_src = shape.rows;
  args.width = shape.width;

  // Features first; where they are too few for the threads, ranges of sources too. How it is cut changes no bit.
  const int64_t feature_tasks = shape.batch * ceil_div(shape.width, kFeaturesPerTask);
  const int64_t ranges =
      std::clamp<int64_t>(ceil_div<int64_t>(torch::stable::get_num_threads(), feature_tasks), 1, shape.rows);
  const FeatureType t = feature_type(type);
  const Kernels& table = kernels();
  const int64_t bytes = bytes_moved(shape, 3 * num_rows, acc);
  bridge::parallel_items(feature_tasks * ranges, 1, bytes, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t range = task % ranges, block = task / ranges;
      const int64_t batch = block % shape.batch, first = block / shape.batch * kFeaturesPerTask;
      table.extremum_backward[t](args, batch, first, std::min(first + kFeaturesPerTask, shape.width),
                                 shape.rows * range / ranges, shape.rows * (range + 1) / ranges);
    }
  });
  return acc == type ? dx : torch::stable::to(dx, type);
}

}  // namespace gnnagg::cpu
