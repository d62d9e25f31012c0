// edge_dot: out[e, h] = sum_c a[target(e), h, c] * b[source(e), h, c], in edge order.
//
// How. A group of lanes walks one span; each lane holds one packet of the target's row and of kEdgeBatch source rows, and the
// group adds its products head by head with shuffles. Rows wider than a tile, and batches, are added up tile after tile by
// the same group.
//
// Traffic. Per edge: F * s bytes of b at random, 4 of col and perm, 4 H written at random (perm). a is read once a row.
//
// Launch contract. One ordinary launch; spans need no combining, because every edge has its own output. out must be zero.
//
// Determinism. One group computes one edge, in a fixed order; no atomics.
#include "bridge/check.h"
#include "bridge/cuda_dispatch.h"
#include "cuda/reduce_rows.cuh"

namespace gnnagg {
namespace {

template <typename T, typename Index>
struct DotArgs {
  RowsView<T, Index> view;         // x = b
  const T* __restrict__ a;         // [B, num_rows, F]
  const Index* __restrict__ perm;  // [num_edges] or null
  acc_t<T>* __restrict__ out;      // [num_edges, heads], zeroed
  int64_t heads;
  Phases phases;
};

// Adds a lane's products to out[edge, head] for every head that this tile holds. Called by every lane of a group.
template <int kSize, typename Acc>
__device__ __forceinline__ void add_dots(const Acc (&products)[kSize], const LanePlace& place, const Group& group,
                                         int64_t tile_begin, int64_t tile_end, int64_t heads, Acc* out) {
  const int64_t head_features = place.features / heads;
  const int64_t first = tile_begin / head_features, last = (tile_end - 1) / head_features;
  for (int64_t head = first; head <= last; ++head) {
    const int64_t from = head * head_features, to = from + head_features;
    Acc total = Acc(0);
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      const int64_t feature = place.offset + i;
      if (place.active && feature >= from && feature < to) total += products[i];
    }
    for (int step = group.lanes / 2; step > 0; step /= 2)
      total += __shfl_xor_sync(group.mask(), total, step, group.lanes);
    if (group.lane == 0) out[head] += total;
  }
}

template <typename T, int kBytes, typename Index>
__device__ __forceinline__ void dot_span(const DotArgs<T, Index>& args, const Group& group, int64_t k, int64_t layer) {
  using Vector = Packet<T, kBytes>;
  using Acc = acc_t<T>;
  const auto& table = args.view.table;
  const LanePlace place = lane_place<T, kBytes>(args.view, group, layer);
  const auto rows = plain_rows<T, kBytes>(args.view, place, layer);
  const int64_t tile_begin = layer % args.view.tiles.tiles * group.lanes * Vector::kSize;
  const int64_t tile_stop = tile_begin + int64_t(group.lanes) * Vector::kSize;
  const int64_t tile_end = tile_stop < place.features ? tile_stop : place.features;
  const Index end = table.span_edge(k + 1);
  Index row = table.span_row(k);
  Acc target[Vector::kSize];
  Index row_end = -1;
  for (Index slot = table.span_edge(k); slot < end; slot += kEdgeBatch) {
    typename Vector::Raw raw[kEdgeBatch];
#pragma unroll
    for (int u = 0; u < kEdgeBatch; ++u) {
      if (slot + u < end) raw[u] = rows.load(table.col[slot + u]);
    }
#pragma unroll
    for (int u = 0; u < kEdgeBatch; ++u) {
      if (slot + u >= end) continue;
      if (slot + u >= row_end) {
        if (row_end >= 0) ++row;
        while (table.rowptr[row + 1] <= slot + u) ++row;
        row_end = table.rowptr[row + 1];
        Vector::unpack(Vector::load(args.a + place.row(row)), target);
      }
      Acc products[Vector::kSize];
      Vector::unpack(raw[u], products);
#pragma unroll
      for (int i = 0; i < Vector::kSize; ++i) products[i] *= target[i];
      const int64_t edge = args.perm ? args.perm[slot + u] : Index(slot + u);
      add_dots(products, place, group, tile_begin, tile_end, args.heads, args.out + edge * args.heads);
    }
  }
}

template <typename T, int kBytes, typename Index>
__global__ __launch_bounds__(kBlockThreads, kBlocksPerSm) void edge_dot_kernel(const DotArgs<T, Index> args) {
  const Group group(args.view.tiles.lanes);
  for (int64_t k = group.index(); k < args.view.table.num_spans; k += group.count()) {
    for (int64_t layer = 0; layer < num_layers(args.view); ++layer) dot_span<T, kBytes>(args, group, k, layer);
  }
}

}  // namespace

using bridge::FeatureShape;
using bridge::OptionalTensor;
using bridge::ScalarType;
using bridge::Tensor;

Tensor edge_dot_cuda(const Tensor& a, const Tensor& b, const Tensor& rowptr, const Tensor& col, const Tensor& spans,
                     const OptionalTensor& perm, int64_t heads) {
  const char* op = "edge_dot";
  const bridge::CudaCall call(b);
  const FeatureShape shape(b, op, "b"), a_shape(a, op, "a");
  const bridge::CsrArguments csr(op, rowptr, col, spans, spans);
  STD_TORCH_CHECK(a.scalar_type() == b.scalar_type(), op, ": a and b must have one dtype");
  STD_TORCH_CHECK(a_shape.rows == csr.num_rows && a_shape.width == shape.width && a_shape.batch == shape.batch, op,
                  ": a must be [B, num_dst, F]");
  STD_TORCH_CHECK(heads >= 1 && shape.width % heads == 0, op, ": heads must divide ", shape.width, ", got ", heads);
  if (perm) bridge::check_tensor(*perm, op, "perm", csr.index, {csr.num_edges});
  Tensor out = bridge::zeros_like_device(a, {csr.num_edges, heads}, bridge::accumulate_type(a.scalar_type()));
  if (out.numel() == 0 || shape.width * shape.batch == 0) return out;

  bridge::dispatch_features(b, shape.width, csr.index, {&a, &b}, [&](auto types) {
    using Types = decltype(types);
    using T = typename Types::Element;
    using Index = typename Types::Index;
    constexpr int kBytes = Types::kBytes;
    DotArgs<T, Index> args{};
    args.view = bridge::rows_view<T, Index>(csr, shape, b, Packet<T, kBytes>::kSize);
    args.a = bridge::read_pointer<T>(a);
    args.perm = bridge::read_pointer<Index>(perm);
    args.out = bridge::write_pointer<acc_t<T>>(out);
    args.heads = heads;
    const auto* kernel = reinterpret_cast<const void*>(&edge_dot_kernel<T, kBytes, Index>);
    launch_phases(bridge::plan_rows(kernel, args.view, 1), args, 1, call.stream);
  });
  return out;
}

}  // namespace gnnagg
