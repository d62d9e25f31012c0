// propagate: h_0 = x, h_{k+1}[i] = (1 - teleport) * sum over edges e = (j -> i) of weight[e] * h_k[j] + teleport * x0[i]; h_hops, or all
// of them.
//
// How. Every hop is aggregate_sum's walk over one schedule, with the teleport in the store of a row; the hops follow one another in one
// launch. Unless all are wanted, they alternate between two buffers, of which the last hop's is the result.
//
// Traffic. As aggregate_sum, `hops` times; x0 once a row and hop. Tables that fit L2 stay there from hop to hop.
//
// Launch contract. One cooperative launch with two grid.sync() a hop, one where no row is split; or two ordinary launches a hop. Any
// grid size is right.
//
// Determinism. As aggregate_sum.
#include "bridge/check.h"
#include "bridge/cuda_dispatch.h"
#include "cuda/reduce_rows.cuh"
#include "cuda/sum_reducer.cuh"

namespace gnnagg {
namespace {

template <typename T, int kBytes>
struct HopReducer : SumReducer<T, kBytes> {
  using Base = SumReducer<T, kBytes>;
  using Vector = Packet<T, kBytes>;
  using Acc = acc_t<T>;
  static constexpr int kSize = Vector::kSize;
  struct Target : Base::Target {
    const T* __restrict__ x0;  // [num_rows, F], or null: no teleport
    Acc keep, teleport;
  };
  Target hop;

  __device__ __forceinline__ HopReducer(const Target& to, const LanePlace& at) : Base(to, at), hop(to) {}

  template <typename Index>
  __device__ __forceinline__ void store_row(Index row, Index) const {
    if (!this->place.active) return;
    Acc values[kSize];
    if (hop.x0) {
      Vector::unpack(Vector::load(hop.x0 + this->place.row(row)), values);
#pragma unroll
      for (int i = 0; i < kSize; ++i) values[i] = hop.keep * this->state.value[i] + hop.teleport * values[i];
    } else {
#pragma unroll
      for (int i = 0; i < kSize; ++i) values[i] = this->state.value[i];
    }
    // Not a streaming store: the next hop reads it.
    typename Vector::Bits bits;
#pragma unroll
    for (int i = 0; i < kSize; ++i) bits.element[i] = from_acc<T>(values[i]);
    __stcg(reinterpret_cast<typename Vector::Raw*>(hop.out + this->place.row(row)), bits.raw);
  }
};

template <typename T, int kBytes, typename Index>
struct PropagateArgs {
  RowsView<T, Index> view;
  EdgeFactors<acc_t<T>, Index> factors;
  typename HopReducer<T, kBytes>::Target target;
  T* buffers[2];      // hop k writes buffers[k % 2] + k / 2 * stride
  int64_t stride[2];  // elements between a buffer's hops; 0 where they overwrite each other
  int64_t first_hop, last_hop;
  Phases phases;

  __device__ __forceinline__ T* result_of(int64_t hop) const { return buffers[hop % 2] + hop / 2 * stride[hop % 2]; }
};

// Called by every thread: one hop's spans.
template <bool kWeighted, typename T, int kBytes, typename Index>
__device__ __forceinline__ void accumulate_hop(const PropagateArgs<T, kBytes, Index>& args, const T* input,
                                               const typename HopReducer<T, kBytes>::Target& target,
                                               const Group& group) {
  const uint32_t row_bytes = uint32_t(args.view.tiles.features * sizeof(T));
  accumulate_spans<HopReducer<T, kBytes>, kBytes>(args.view, target, group, [&](const LanePlace& place, int64_t) {
    const PlainRows<T, kBytes, Index, true> rows{input + place.offset, row_bytes};
    if constexpr (kWeighted) {
      return ScaledRows<T, kBytes, Index, true>{rows, args.factors, 0};
    } else {
      return rows;
    }
  });
}

template <bool kWeighted, typename T, int kBytes, typename Index>
__global__ __launch_bounds__(kBlockThreads, kBlocksPerSm) void propagate_kernel(
    const PropagateArgs<T, kBytes, Index> args) {
  const Group group(args.view.tiles.lanes);
  const bool splits = has_split_rows(args.view.table);  // the same in every block
  auto target = args.target;
  for (int64_t hop = args.first_hop; hop < args.last_hop; ++hop) {
    target.out = args.result_of(hop);
    if (args.phases.has(0)) {
      accumulate_hop<kWeighted>(args, hop > 0 ? args.result_of(hop - 1) : args.view.x, target, group);
    }
    if (args.phases.together && splits) cooperative_groups::this_grid().sync();  // every block's partials are visible
    if (args.phases.has(1) && splits) combine_split_rows<HopReducer<T, kBytes>, kBytes>(args.view, target, group);
    // The hop's result is complete, and its input free.
    if (args.phases.together && hop + 1 < args.last_hop) cooperative_groups::this_grid().sync();
  }
}

}  // namespace

using bridge::FeatureShape;
using bridge::OptionalTensor;
using bridge::ScalarType;
using bridge::Tensor;

Tensor propagate_cuda(const Tensor& x, const OptionalTensor& x0, const Tensor& rowptr, const Tensor& col,
                      const Tensor& spans, const Tensor& splits, const OptionalTensor& perm,
                      const OptionalTensor& weight, int64_t hops, double teleport, bool return_all,
                      const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                      const OptionalTensor&) {
  const char* op = "propagate";
  const bridge::CudaCall call(x);
  const ScalarType type = x.scalar_type(), acc = bridge::accumulate_type(type);
  bridge::check_tensor(x, op, "x", type, {-1, -1});
  const FeatureShape shape(x, op, "x");
  const bridge::CsrArguments csr(op, rowptr, col, spans, splits);
  STD_TORCH_CHECK(csr.num_rows == shape.rows, op, ": x must have one row for each of ", csr.num_rows, " nodes, got ",
                  shape.rows);
  STD_TORCH_CHECK(hops >= 0, op, ": hops must be at least 0, got ", hops);
  if (x0) bridge::check_tensor(*x0, op, "x0", type, {shape.rows, shape.width});
  if (weight) bridge::check_tensor(*weight, op, "weight", acc, {csr.num_edges});
  bridge::check_factors(op, csr, shape, acc, perm, weight, std::nullopt, std::nullopt);
  const int64_t cells = shape.rows * shape.width;
  Tensor out = return_all ? bridge::empty_like_device(x, {hops + 1, shape.rows, shape.width}, type)
                          : bridge::empty_like_device(x, {shape.rows, shape.width}, type);
  const int64_t element = type == ScalarType::Double ? 8 : (type == ScalarType::Float ? 4 : 2);
  if (cells > 0 && (return_all || hops == 0)) {
    check_cuda(cudaMemcpyAsync(out.mutable_data_ptr(), x.const_data_ptr(), size_t(cells * element),
                               cudaMemcpyDeviceToDevice, call.stream),
               "copy of x");
  }
  if (cells == 0 || hops == 0) return out;
  Tensor other = bridge::empty_like_device(x, {return_all || hops == 1 ? 0 : shape.rows, shape.width}, type);
  Tensor partials = bridge::empty_like_device(x, {2 * csr.num_spans, shape.width}, acc);
  // All hops: hop k writes [k + 1]. Two buffers: the last hop writes the result.
  bridge::dispatch_widest(x, shape.width, csr.index, {&x, &out, x0 ? &*x0 : &x}, [&](auto types) {
    using Types = decltype(types);
    using T = typename Types::Element;
    using Index = typename Types::Index;
    constexpr int kBytes = Types::kBytes;
    PropagateArgs<T, kBytes, Index> args{};
    args.view = bridge::rows_view<T, Index>(csr, shape, x, Packet<T, kBytes>::kSize);
    args.factors = {bridge::read_pointer<Index>(perm), bridge::read_pointer<acc_t<T>>(weight), nullptr, 1};
    args.target.partials = bridge::write_pointer<acc_t<T>>(partials);
    args.target.x0 = teleport == 0.0 ? nullptr : bridge::read_pointer<T>(x0 ? *x0 : x);
    args.target.keep = acc_t<T>(1.0 - teleport);
    args.target.teleport = acc_t<T>(teleport);
    T* result = bridge::write_pointer<T>(out);
    for (int64_t parity = 0; parity < 2; ++parity) {
      const bool is_result = return_all || parity == (hops - 1) % 2;
      args.buffers[parity] =
          is_result ? result + (return_all ? (parity + 1) * cells : 0) : bridge::write_pointer<T>(other);
      args.stride[parity] = return_all ? 2 * cells : 0;
    }
    const auto* kernel = weight ? reinterpret_cast<const void*>(&propagate_kernel<true, T, kBytes, Index>)
                                : reinterpret_cast<const void*>(&propagate_kernel<false, T, kBytes, Index>);
    launch_rounds(
        bridge::plan_rows(kernel, args.view), args, hops, kReducePhases,
        [&](int64_t first, int64_t last) {
          args.first_hop = first;
          args.last_hop = last;
        },
        call.stream);
  });
  return out;
}

}  // namespace gnnagg
