// The gradient of max and min by gathering on the transpose.
//
// How. The walk of every aggregation (reduce_rows.cuh) over the rows of the transpose, with a source of its own: for each
// edge (j -> i) a lane reads the winners of its features at i, one batch ahead, and reads grad[i] only where this edge's slot
// has won, or where several edges tied: those compare out[i] with x[j] and take 1 / winners of the gradient.
//
// Traffic. Per edge: 4 F bytes of winners at random, 8 of ids, and of grad the sectors where it won: N * F features in all.
//
// Launch contract. As aggregate_sum, with half of the threads: winners and gradients of a batch take the registers.
//
// Determinism. As aggregate_sum.
#include "common/reduce.h"
#include "cuda/extremum_backward.cuh"
#include "cuda/sum_reducer.cuh"

namespace gnnagg {
namespace {

template <typename T, int kBytes, typename Index>
struct WinningRows {
  using Vector = Packet<T, kBytes>;
  using Acc = acc_t<T>;
  static constexpr int kSize = Vector::kSize;
  struct Batch {
    typename Vector::Raw raw[kEdgeBatch];
    Index target[kEdgeBatch];
    uint32_t won[kEdgeBatch], tied[kEdgeBatch];
  };

  PlainRows<T, kBytes, Index> grad;
  const Index* __restrict__ col;     // [num_edges] of the transpose: targets
  const Index* __restrict__ slots;   // [num_edges] slot of each edge of the transpose
  const Index* __restrict__ winner;  // this lane's packet of target 0
  const T* __restrict__ out;         // likewise
  const T* __restrict__ x;           // this lane's packet of source 0
  int64_t features;
  Index slot_ahead[kEdgeBatch];
  Index winner_ahead[kEdgeBatch][kSize];

  __device__ __forceinline__ void read_winners(Index at, Index begin, Index end) {
    load_batch(slots, at, begin, end, slot_ahead);
#pragma unroll
    for (int u = 0; u < kEdgeBatch; ++u) {
      if (at + u >= begin && at + u < end) {
        Span<Index, kSize>::load(winner + int64_t(__ldg(col + at + u)) * features, winner_ahead[u]);
      }
    }
  }
  __device__ __forceinline__ void start(Index at, Index begin, Index end) { read_winners(at, begin, end); }
  template <bool kWhole>
  __device__ __forceinline__ void request(Batch& batch, Index at, Index begin, Index end,
                                          const Index (&ids)[kEdgeBatch]) {
#pragma unroll
    for (int u = 0; u < kEdgeBatch; ++u) {
      batch.won[u] = batch.tied[u] = 0;
      if (!inside<kWhole>(Index(at + u), begin, end)) continue;
      batch.target[u] = ids[u];
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        batch.won[u] |= uint32_t(winner_ahead[u][i] == slot_ahead[u]) << i;
        batch.tied[u] |= uint32_t(winner_ahead[u][i] < kNoWinner) << i;
      }
      if (batch.won[u] | batch.tied[u]) batch.raw[u] = grad.load(ids[u]);
    }
    read_winners(Index(at + kEdgeBatch), begin, end);
  }
  template <typename Cursor>
  __device__ __forceinline__ void feed(const Batch& batch, int u, Index slot, Cursor& cursor) const {
    if ((batch.won[u] | batch.tied[u]) == 0) return;
    Acc values[kSize];
    Vector::unpack(batch.raw[u], values);
    if (batch.tied[u] != 0) share_ties(batch, u, cursor.row, values);
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      if (!((batch.won[u] | batch.tied[u]) >> i & 1u)) values[i] = Acc(0);
    }
    cursor.reducer.add(values, slot, batch.target[u]);
  }

 private:
  __device__ __forceinline__ void share_ties(const Batch& batch, int u, Index source, Acc (&values)[kSize]) const {
    const int64_t at = int64_t(batch.target[u]) * features;
    Acc best[kSize], mine[kSize];
    Index winners[kSize];
    Vector::unpack(Vector::load(out + at), best);
    Vector::unpack(Vector::load(x + int64_t(source) * features), mine);
    Span<Index, kSize>::load(winner + at, winners);
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      if (batch.tied[u] >> i & 1u) values[i] = ties_with(mine[i], best[i]) ? values[i] / Acc(-winners[i]) : Acc(0);
    }
  }
};

template <typename T, int kBytes, typename Index>
struct GatherArgs {
  RowsView<T, Index> view;                      // rows = sources; x = grad, so that num_src of the view counts targets
  const Index* __restrict__ slots;              // [num_edges]
  const Index* __restrict__ winner;             // [B, num_dst, F]
  const T* __restrict__ out, * __restrict__ x;  // [B, num_dst, F], [B, num_src, F]
  typename SumReducer<T, kBytes>::Target target;
  Phases phases;
};

template <typename T, int kBytes, typename Index>
__global__ __launch_bounds__(kBlockThreads, kBlocksPerSmLarge) void extremum_gather_kernel(
    const GatherArgs<T, kBytes, Index> args) {
  const Group group(args.view.tiles.lanes);
  if (args.phases.has(0)) {
    accumulate_spans<SumReducer<T, kBytes>, kBytes>(
        args.view, args.target, group, [&](const LanePlace& place, int64_t layer) {
          const int64_t entry = layer / args.view.tiles.tiles;
          const int64_t at = entry * args.view.num_src * place.features + place.offset;
          return WinningRows<T, kBytes, Index>{
              plain_rows<T, kBytes>(args.view, place, layer),
              args.view.table.col,
              args.slots,
              args.winner + at,
              args.out + at,
              args.x + entry * args.view.table.num_rows * place.features + place.offset,
              place.features};
        });
  }
  if (!args.phases.has(1) || !has_split_rows(args.view.table)) return;  // the same in every block
  if (args.phases.together) cooperative_groups::this_grid().sync();     // every block's partials are visible to all
  combine_split_rows<SumReducer<T, kBytes>, kBytes>(args.view, args.target, group);
}

}  // namespace

void extremum_backward_by_gather(const ExtremumBackward& call) {
  const auto& shape = call.shape;
  bridge::Tensor partials = bridge::empty_like_device(call.x, {shape.batch * 2 * call.reverse.num_spans, shape.width},
                                                      bridge::accumulate_type(call.x.scalar_type()));
  bridge::FeatureShape grad_shape = shape;
  grad_shape.rows = call.csr.num_rows;
  bridge::dispatch_features(
      call.x, shape.width, call.csr.index, {&call.x, &call.out, &call.grad, &call.dx, &call.winner}, [&](auto types) {
        using Types = decltype(types);
        using T = typename Types::Element;
        using Index = typename Types::Index;
        // Half the packet for the half types: the winners of four features are 16 bytes already.
        constexpr int kBytes = sizeof(T) == 2 && Types::kBytes > 8 ? 8 : Types::kBytes;
        GatherArgs<T, kBytes, Index> args{};
        args.view = bridge::rows_view<T, Index>(call.reverse, grad_shape, call.grad, Packet<T, kBytes>::kSize);
        args.slots = bridge::read_pointer<Index>(call.t_slot);
        args.winner = bridge::read_pointer<Index>(call.winner);
        args.out = bridge::read_pointer<T>(call.out);
        args.x = bridge::read_pointer<T>(call.x);
        args.target = {bridge::write_pointer<T>(call.dx), nullptr, bridge::write_pointer<acc_t<T>>(partials), nullptr,
                       false};
        const auto* kernel = reinterpret_cast<const void*>(&extremum_gather_kernel<T, kBytes, Index>);
        launch_phases(bridge::plan_rows(kernel, args.view), args, kReducePhases, call.stream);
      });
}

}  // namespace gnnagg
