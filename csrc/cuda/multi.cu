// aggregate_multi: sum, mean, variance, max and min of every row, those that are asked for, in one pass over the edges.
//
// How. The walk and the two phases of every aggregation (reduce_rows.cuh); a lane keeps all accumulators of its features.
// The variance is kept by sums shifted by the row's first value and merged by the formula of Chan, Golub and LeVeque, so that
// it does not cancel.
//
// Traffic. One gather as aggregate_sum, where one op for each reduction would make up to four; each output is written once.
//
// Launch contract. As aggregate_sum, with half of the threads: the accumulators take the registers.
//
// Determinism. As aggregate_sum.
#include "bridge/check.h"
#include "bridge/cuda_dispatch.h"
#include "cuda/multi_reducer.cuh"
#include "cuda/reduce_rows.cuh"

namespace gnnagg {
namespace {

constexpr int kWantSum = 1, kWantMean = 2, kWantVar = 4, kWantMax = 8, kWantMin = 16;

template <typename Reducer, typename T, typename Index>
struct MultiArgs {
  RowsView<T, Index> view;
  typename Reducer::Target target;
  Phases phases;
};

template <typename Reducer, typename T, int kBytes, typename Index>
__global__ __launch_bounds__(kBlockThreads, kBlocksPerSmLarge) void aggregate_multi_kernel(
    const MultiArgs<Reducer, T, Index> args) {
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

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> aggregate_multi_cuda(
    const Tensor& x, const Tensor& rowptr, const Tensor& col, const Tensor& spans, const Tensor& splits, int64_t which,
    bool with_arg, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
    const OptionalTensor&) {
  const char* op = "aggregate_multi";
  const bridge::CudaCall call(x);
  const FeatureShape shape(x, op, "x");
  const bridge::CsrArguments csr(op, rowptr, col, spans, splits);
  const auto make = [&](bool wanted, ScalarType type) {
    return wanted ? bridge::empty_rows(x, csr.num_rows, shape.width, type) : bridge::empty_like_device(x, {0}, type);
  };
  const ScalarType type = x.scalar_type(), acc = bridge::accumulate_type(type);
  Tensor sum = make(which & kWantSum, type), mean = make(which & kWantMean, type), var = make(which & kWantVar, type);
  Tensor greatest = make(which & kWantMax, type), least = make(which & kWantMin, type);
  Tensor winner_greatest = make(with_arg && (which & kWantMax), csr.index);
  Tensor winner_least = make(with_arg && (which & kWantMin), csr.index);
  if (shape.batch * csr.num_rows * shape.width > 0) {
    const int64_t partial_rows = shape.batch * 2 * csr.num_spans;
    Tensor partials = bridge::empty_like_device(x, {6 * partial_rows, shape.width}, acc);
    Tensor partial_winners = bridge::empty_like_device(x, {with_arg ? 2 * partial_rows : 0, shape.width}, csr.index);
    Tensor partial_repeats =
        bridge::empty_like_device(x, {with_arg ? 2 * partial_rows : 0, shape.width}, ScalarType::Byte);
    bridge::dispatch_features(x, shape.width, csr.index, {&x, &sum, &mean, &var, &greatest, &least}, [&](auto types) {
      using Types = decltype(types);
      using T = typename Types::Element;
      using Index = typename Types::Index;
      // Half the packet for the half types: 4 features a lane are what the registers hold.
      constexpr int kBytes = sizeof(T) == 2 && Types::kBytes > 8 ? 8 : Types::kBytes;
      const auto pointer = [](const Tensor& tensor) {
        return tensor.numel() > 0 ? bridge::write_pointer<T>(tensor) : nullptr;
      };
      const auto winner_pointer = [](const Tensor& tensor) {
        return tensor.numel() > 0 ? bridge::write_pointer<Index>(tensor) : nullptr;
      };
      const auto launch = [&](auto keeps_winner) {
        using Reducer = MultiReducer<T, kBytes, Index, decltype(keeps_winner)::value>;
        static_assert(Reducer::kFields == 6, "partials are allocated for six fields");
        MultiArgs<Reducer, T, Index> args{};
        args.view = bridge::rows_view<T, Index>(csr, shape, x, Packet<T, kBytes>::kSize);
        args.target = {pointer(sum),
                       pointer(mean),
                       pointer(var),
                       pointer(greatest),
                       pointer(least),
                       winner_pointer(winner_greatest),
                       winner_pointer(winner_least),
                       bridge::write_pointer<acc_t<T>>(partials),
                       bridge::write_pointer<Index>(partial_winners),
                       bridge::write_pointer<uint8_t>(partial_repeats),
                       partial_rows,
                       args.view.table.col};
        const auto* kernel = reinterpret_cast<const void*>(&aggregate_multi_kernel<Reducer, T, kBytes, Index>);
        launch_phases(bridge::plan_rows(kernel, args.view), args, kReducePhases, call.stream);
      };
      if (with_arg) {
        launch(std::true_type{});
      } else {
        launch(std::false_type{});
      }
    });
  }
  return {sum, mean, var, greatest, least, winner_greatest, winner_least};
}

}  // namespace gnnagg
