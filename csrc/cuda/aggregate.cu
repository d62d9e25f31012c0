// aggregate_sum: out[i] = dst_scale[i] * (1 / deg_i if mean) * sum over edges e = (j -> i) of weight[e] * src_scale[j] * x[j].
//
// How. A group of lanes (G = F * s / 16 bytes, at most a warp) walks one span of edges of equal cost; each lane holds 16
// bytes of the feature row and asks for the rows of kEdgeBatch edges before it adds the first. A row that lies whole in a
// span is stored once; a row cut by a span boundary leaves partials in the accumulate type, which are added in span order
// after the grid has synchronised.
//
// Traffic. Per edge: F * s bytes of x at random, 4 of col, and with weights 4 of perm and a 32-byte sector of weight. Per
// row: F * s written, 4 of rowptr. Roofline: the random-row gather of L2 or HBM (benchmarks/gather_ceiling.py).
//
// Launch contract. One cooperative launch of at most the co-resident blocks, or two ordinary ones with the same grid; any
// grid size is right. Nothing need be zeroed: every row of out is written by exactly one group.
//
// Determinism. Edges of a span in slot order, partials in span order; no atomics; bit-equal in both launch modes.
#include "bridge/check.h"
#include "bridge/cuda_dispatch.h"
#include "cuda/reduce_rows.cuh"
#include "cuda/sum_reducer.cuh"

namespace gnnagg {
namespace {

template <typename T, int kBytes, typename Index>
struct SumArgs {
  RowsView<T, Index> view;
  EdgeFactors<acc_t<T>, Index> factors;
  typename SumReducer<T, kBytes>::Target target;
  Phases phases;
};

template <bool kScaled, typename T, int kBytes, typename Index>
__device__ __forceinline__ void accumulate_sum(const SumArgs<T, kBytes, Index>& args, const Group& group) {
  accumulate_spans<SumReducer<T, kBytes>, kBytes>(
      args.view, args.target, group, [&](const LanePlace& place, int64_t layer) {
        const auto rows = plain_rows<T, kBytes>(args.view, place, layer);
        if constexpr (kScaled) {
          const int64_t head = place.offset * args.factors.heads / args.view.tiles.features;
          return ScaledRows<T, kBytes, Index>{rows, args.factors, head};
        } else {
          return rows;
        }
      });
}

template <bool kScaled, typename T, int kBytes, typename Index>
__global__ __launch_bounds__(kBlockThreads, kBlocksPerSm) void aggregate_sum_kernel(
    const SumArgs<T, kBytes, Index> args) {
  const Group group(args.view.tiles.lanes);
  if (args.phases.has(0)) accumulate_sum<kScaled>(args, group);
  if (!args.phases.has(1) || !has_split_rows(args.view.table)) return;  // the same in every block
  if (args.phases.together) cooperative_groups::this_grid().sync();     // every block's partials are visible to all
  combine_split_rows<SumReducer<T, kBytes>, kBytes>(args.view, args.target, group);
}

}  // namespace

using bridge::FeatureShape;
using bridge::OptionalTensor;
using bridge::ScalarType;
using bridge::Tensor;

Tensor aggregate_sum_cuda(const Tensor& x, const Tensor& rowptr, const Tensor& col, const Tensor& spans,
                          const Tensor& splits, const OptionalTensor& perm, const OptionalTensor& weight,
                          const OptionalTensor& src_scale, const OptionalTensor& dst_scale, bool mean, bool acc_out,
                          const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                          const OptionalTensor&) {
  const char* op = "aggregate_sum";
  const bridge::CudaCall call(x);
  const FeatureShape shape(x, op, "x");
  const ScalarType acc = bridge::accumulate_type(x.scalar_type());
  const bridge::CsrArguments csr(op, rowptr, col, spans, splits);
  const int64_t heads = bridge::check_factors(op, csr, shape, acc, perm, weight, src_scale, dst_scale);
  Tensor out = bridge::empty_rows(x, csr.num_rows, shape.width, acc_out ? acc : x.scalar_type());
  if (out.numel() == 0) return out;
  Tensor partials = bridge::empty_like_device(x, {shape.batch * 2 * csr.num_spans, shape.width}, acc);

  // A lane's packet must lie within one head; where heads are too narrow or odd for that, lanes load single elements.
  const int64_t unit = shape.width / heads;
  bridge::dispatch_features(x, heads > 1 ? unit : shape.width, csr.index, {&x, &out}, [&](auto types) {
    using Types = decltype(types);
    using T = typename Types::Element;
    using Index = typename Types::Index;
    constexpr int kBytes = Types::kBytes;
    SumArgs<T, kBytes, Index> args{};
    args.view = bridge::rows_view<T, Index>(csr, shape, x, Packet<T, kBytes>::kSize);
    args.factors = {bridge::read_pointer<Index>(perm), bridge::read_pointer<acc_t<T>>(weight),
                    bridge::read_pointer<acc_t<T>>(src_scale), heads};
    args.target = {acc_out ? nullptr : bridge::write_pointer<T>(out),
                   acc_out ? bridge::write_pointer<acc_t<T>>(out) : nullptr, bridge::write_pointer<acc_t<T>>(partials),
                   bridge::read_pointer<acc_t<T>>(dst_scale), mean};
    const bool scaled = weight.has_value() || src_scale.has_value();
    const auto* kernel = scaled ? reinterpret_cast<const void*>(&aggregate_sum_kernel<true, T, kBytes, Index>)
                                : reinterpret_cast<const void*>(&aggregate_sum_kernel<false, T, kBytes, Index>);
    launch_phases(bridge::plan_rows(kernel, args.view), args, kReducePhases, call.stream);
  });
  return out;
}

}  // namespace gnnagg
