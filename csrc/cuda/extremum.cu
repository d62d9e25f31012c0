// aggregate_extremum: out[i] = max (or min) over edges (j -> i) of x[j], and for training who won (common/reduce.h).
//
// How. The walk and the two phases of every aggregation (reduce_rows.cuh); a lane keeps the greatest value of each of its
// features, and with it the slot of the only winner or the number of tied ones. Min is the max of the negated values.
//
// Traffic. As aggregate_sum; the winners add 4 bytes a feature and row, written once.
//
// Launch contract. As aggregate_sum.
//
// Determinism. max is exact whatever the order; winners are merged in span order.
#include "bridge/check.h"
#include "bridge/cuda_dispatch.h"
#include "cuda/extremum_reducer.cuh"
#include "cuda/reduce_rows.cuh"

namespace gnnagg {
namespace {

template <typename Reducer, typename T, typename Index>
struct ExtremumArgs {
  RowsView<T, Index> view;
  typename Reducer::Target target;
  Phases phases;
};

template <typename Reducer, typename T, int kBytes, typename Index>
__global__ __launch_bounds__(kBlockThreads, kBlocksPerSm) void aggregate_extremum_kernel(
    const ExtremumArgs<Reducer, T, Index> args) {
  const Group group(args.view.tiles.lanes);
  if (args.phases.has(0)) {
    accumulate_spans<Reducer, kBytes>(args.view, args.target, group, [&](const LanePlace& place, int64_t layer) {
      return plain_rows<T, kBytes>(args.view, place, layer);
    });
  }
  if (!args.phases.has(1) || !has_split_rows(args.view.table)) return;  // the same in every block
  if (args.phases.together) cooperative_groups::this_grid().sync();     // every block's partials are visible to all
  combine_split_rows<Reducer, kBytes>(args.view, args.target, group);
}

}  // namespace

using bridge::FeatureShape;
using bridge::OptionalTensor;
using bridge::ScalarType;
using bridge::Tensor;

std::tuple<Tensor, Tensor> aggregate_extremum_cuda(const Tensor& x, const Tensor& rowptr, const Tensor& col,
                                                   const Tensor& spans, const Tensor& splits, bool minimum,
                                                   bool with_arg, const OptionalTensor&, const OptionalTensor&,
                                                   const OptionalTensor&, const OptionalTensor&,
                                                   const OptionalTensor&) {
  const char* op = "aggregate_extremum";
  const bridge::CudaCall call(x);
  const FeatureShape shape(x, op, "x");
  const bridge::CsrArguments csr(op, rowptr, col, spans, splits);
  Tensor out = bridge::empty_rows(x, csr.num_rows, shape.width, x.scalar_type());
  Tensor winner = with_arg ? bridge::empty_rows(x, csr.num_rows, shape.width, csr.index)
                           : bridge::empty_like_device(x, {0}, csr.index);
  if (out.numel() == 0) return {out, winner};
  const int64_t partial_rows = shape.batch * 2 * csr.num_spans;
  Tensor partials = bridge::empty_like_device(x, {partial_rows, shape.width}, bridge::accumulate_type(x.scalar_type()));
  Tensor partial_winners = bridge::empty_like_device(x, {with_arg ? partial_rows : 0, shape.width}, csr.index);
  Tensor partial_repeats = bridge::empty_like_device(x, {with_arg ? partial_rows : 0, shape.width}, ScalarType::Byte);

  bridge::dispatch_features(x, shape.width, csr.index, {&x, &out}, [&](auto types) {
    using Types = decltype(types);
    using T = typename Types::Element;
    using Index = typename Types::Index;
    constexpr int kBytes = Types::kBytes;
    const auto launch = [&](auto keeps_winner) {
      using Reducer = ExtremumReducer<T, kBytes, Index, decltype(keeps_winner)::value>;
      ExtremumArgs<Reducer, T, Index> args{};
      args.view = bridge::rows_view<T, Index>(csr, shape, x, Packet<T, kBytes>::kSize);
      args.target = {bridge::write_pointer<T>(out),
                     bridge::write_pointer<Index>(winner),
                     bridge::write_pointer<acc_t<T>>(partials),
                     bridge::write_pointer<Index>(partial_winners),
                     bridge::write_pointer<uint8_t>(partial_repeats),
                     args.view.table.col,
                     acc_t<T>(minimum ? -1 : 1)};
      const auto* kernel = reinterpret_cast<const void*>(&aggregate_extremum_kernel<Reducer, T, kBytes, Index>);
      launch_phases(bridge::plan_rows(kernel, args.view), args, kReducePhases, call.stream);
    };
    if (with_arg) {
      launch(std::true_type{});
    } else {
      launch(std::false_type{});
    }
  });
  return {out, winner};
}

}  // namespace gnnagg
