// The gradients of edge features in gatv2_attention, where u = l[j] + r[i] + W e.
//
// What. With g = ds att LeakyReLU'(u) in R^F, the gradient of W e:  de = W' g for every edge, and dW = the sum over edges of g e'.
//
// How. ds of every edge and head is known (scored_gradient.cuh). A group walks a span of the CSR as there, with r[i] and att in
// registers, gathers l[j], and makes u and g again. It takes kEdgeDims of the D features in one launch: 4 x 4 products of a batch are
// added across the group by exchanging halves, so that each lane ends with one sum, and a packet of dW for each of the 4 features stays
// in registers. A row of several tiles is walked tile after tile by the same group, which adds to what it left for the edge before. dW
// comes as one sum per span; torch adds those up.
//
// Traffic. For every 4 features of e, per edge: F * s bytes of l at random, D * s of e in order for each tile, 4 H of ds in order,
// 4 of col and perm, 4 * s written at random (perm); D packets of W per batch and lane come from the caches. Work grows as D * D / 4. Per
// span 4 F * 4 bytes. With several tiles 4 D bytes per edge of workspace, read and written once a tile.
//
// Launch contract. One ordinary launch for every kEdgeDims features; any grid size is right. d_attr must be zero where edges are dead.
//
// Determinism. One group sums one edge, and one span, in a fixed order; no atomics.
#include "cuda/gatv2_edges.h"

#include "cuda/packet_flight.cuh"
#include "cuda/packet_sum.cuh"
#include "cuda/scored_attention.cuh"

namespace gnnagg {
namespace {

constexpr int kProducts = kEdgeBatch * kEdgeDims;

template <typename T, typename Index>
struct EdgeGradientArgs {
  using Acc = acc_t<T>;
  SpanTable<Index> table;
  HeadTiles tiles;
  const T* __restrict__ keys;        // l [num_src, H * C]
  const T* __restrict__ targets;     // r [num_dst, H * C]
  const Acc* __restrict__ constant;  // att [H * C]
  const Index* __restrict__ perm;    // [num_edges] or null
  const Acc* __restrict__ ds;        // [num_edges, H] by slot
  EdgeProjection<T> projection;
  Gatv2Score<Acc> family;
  int dims;                    // D
  int first;                   // of the features that this launch takes
  T* __restrict__ d_attr;      // [num_edges, D], zeroed
  Acc* sums;                   // [num_edges, D] by slot, where a row has several tiles
  Acc* __restrict__ d_weight;  // [num_spans, kEdgeDims, H * C]
  Phases phases;
};

// Sums of kCount values over the lanes of a group: each lane is left with some of them, at the front of `values`, from the one whose
// number is returned; how many, says sums_of_lane. Called by every lane of the group.
template <int kCount, int kHalf = kCount / 2, int kStep = 1, typename Acc>
__device__ __forceinline__ int scatter_sums(Acc (&values)[kCount], const Group& group) {
  if constexpr (kHalf == 0) {
    for (int step = kStep; step < group.lanes; step *= 2) {
      values[0] += __shfl_xor_sync(group.mask(), values[0], step, group.lanes);
    }
    return 0;
  } else {
    if (kStep >= group.lanes) return 0;
    const bool upper = group.lane & kStep;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const Acc keep = upper ? values[i + kHalf] : values[i], give = upper ? values[i] : values[i + kHalf];
      values[i] = keep + __shfl_xor_sync(group.mask(), give, kStep, group.lanes);
    }
    return (upper ? kHalf : 0) + scatter_sums<kCount, kHalf / 2, 2 * kStep>(values, group);
  }
}
// 0 in lanes whose sums others have as well.
template <int kCount>
__device__ __forceinline__ int sums_of_lane(const Group& group) {
  if (group.lane >= kCount) return 0;
  return group.lanes < kCount ? kCount / group.lanes : 1;
}

template <typename T, int kBytes, typename Index>
struct EdgesOfTarget {
  using Vector = Packet<T, kBytes>;
  using Acc = acc_t<T>;
  static constexpr int kSize = Vector::kSize;
  using Flight = PacketFlight<kBytes, kEdgeBatch>;
  struct Batch {
    typename Flight::Batch packets;
    Acc ds[kEdgeBatch];
  };

  const EdgeGradientArgs<T, Index>& args;
  PlainRows<T, kBytes, Index> keys;
  const HeadPlace& place;
  const Group& group;
  int tile;
  ConstantPacket<Gatv2Score<Acc>, kSize, Acc> constant_packet;
  Acc (&d_weight)[kEdgeDims][kSize];
  Flight flight;

  __device__ __forceinline__ void start(Index, Index, Index) {}
  template <bool kWhole>
  __device__ __forceinline__ void request(Batch& batch, Index slot, Index begin, Index end,
                                          const Index (&ids)[kEdgeBatch]) {
    flight.begin(batch.packets);
#pragma unroll
    for (int u = 0; u < kEdgeBatch; ++u) {
      if (!inside<kWhole>(Index(slot + u), begin, end)) continue;
      flight.request(batch.packets, u, keys.row(ids[u]));
      batch.ds[u] = __ldg(args.ds + place.score(slot + u));
    }
  }
  // g of edges [from, to) of a batch; 0 for others, and in lanes without features.
  template <typename Cursor>
  __device__ __forceinline__ void gradients(const Batch& batch, const Index (&slots)[kEdgeBatch], int from, int to,
                                            const Cursor& cursor, Acc (&g)[kEdgeBatch][kSize]) const {
#pragma unroll
    for (int u = 0; u < kEdgeBatch; ++u) Vector::unpack(cursor.reducer.of_row, g[u]);
    args.projection.add(slots, from, to, place.features, place.offset, g);
    Acc constant[kSize];
    constant_packet.get(constant);
#pragma unroll
    for (int u = 0; u < kEdgeBatch; ++u) {
      const bool counts = u >= from && u < to && place.active;
      Acc key[kSize];
      Vector::unpack(Flight::get(batch.packets, u), key);
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        g[u][i] = counts ? batch.ds[u] * args.family.of_target(key[i], g[u][i], constant[i]) : Acc(0);
      }
    }
  }
  // Adds the sum of one product over this tile to the gradient of an edge. Always the same lane for one sum.
  __device__ __forceinline__ void leave(int64_t slot, int d, Acc sum) const {
    const int64_t at = slot * args.dims + d;
    if (args.tiles.tiles > 1) {
      if (tile > 0) sum += __ldcg(args.sums + at);
      if (tile + 1 < args.tiles.tiles) {
        __stcg(args.sums + at, sum);
        return;
      }
    }
    const int64_t edge = args.perm ? int64_t(__ldg(args.perm + slot)) : slot;
    args.d_attr[edge * args.dims + d] = from_acc<T>(sum);
  }
  template <typename Cursor>
  __device__ __forceinline__ void feed_segment(const Batch& batch, Index slot, int from, int to, Cursor& cursor) const {
    Acc g[kEdgeBatch][kSize], attr[kEdgeBatch][kEdgeDims], products[kProducts] = {};
    Index slots[kEdgeBatch];
    batch_slots(slot, slots);
    gradients(batch, slots, from, to, cursor, g);
    args.projection.load(slots, from, to, args.first, attr);
    if (place.active) {
#pragma unroll
      for (int j = 0; j < kEdgeDims; ++j) {
        Acc weight[kSize];
        args.projection.column(args.first + j, place.features, place.offset, weight);
#pragma unroll
        for (int u = 0; u < kEdgeBatch; ++u) {
#pragma unroll
          for (int i = 0; i < kSize; ++i) {
            products[u * kEdgeDims + j] += g[u][i] * weight[i];
            d_weight[j][i] += g[u][i] * attr[u][j];
          }
        }
      }
    }
    const int number = scatter_sums(products, group), left = sums_of_lane<kProducts>(group);
#pragma unroll
    for (int p = 0; p < kProducts; ++p) {
      const int u = (number + p) / kEdgeDims, d = args.first + (number + p) % kEdgeDims;
      if (p < left && u >= from && u < to && d < args.dims) leave(int64_t(slot) + u, d, products[p]);
    }
  }
};

template <typename T, int kBytes, typename Index>
__global__ __launch_bounds__(kAttentionThreads, kAttentionBlocksPerSm) void gatv2_edge_gradient_kernel(
    const EdgeGradientArgs<T, Index> args) {
  using Acc = acc_t<T>;
  constexpr int kSize = Packet<T, kBytes>::kSize;
  const Group group(args.tiles.lanes);
  for_each_span(args.table, 1, group, [&](int64_t k, int64_t) {
    for (int tile = 0; tile < args.tiles.tiles; ++tile) {
      const HeadPlace place(args.tiles, group, tile, kSize);
      Acc d_weight[kEdgeDims][kSize] = {};
      EdgesOfTarget<T, kBytes, Index> edges{args,     {args.keys + place.offset, uint32_t(place.features * sizeof(T))},
                                            place,    group,
                                            tile,     {args.constant, place},
                                            d_weight, {}};
      reduce_span(args.table, k, edges, RowPacket<T, kBytes>(args.targets, place));
      if (!place.active) continue;
#pragma unroll
      for (int j = 0; j < kEdgeDims; ++j) {
        Acc* sums = args.d_weight + (k * kEdgeDims + j) * place.features + place.offset;
        Span<Acc, kSize>::store(sums, d_weight[j]);
      }
    }
  });
}

}  // namespace

namespace bridge {

EdgeFeatureGradients gatv2_edge_gradient(const HeadShape& shape, const Tensor& l, const Tensor& r, const Tensor& att,
                                         const PackedEdges& edges, const Tensor& ds, const CsrArguments& csr,
                                         const OptionalTensor& perm, double negative_slope) {
  const CudaCall call(l);
  const ScalarType type = l.scalar_type(), acc = accumulate_type(type);
  const int64_t dims = edges.dims, width = shape.width(), num_edges = csr.num_edges;
  Tensor d_attr = zeros_like_device(l, {num_edges, dims}, type);
  if (num_edges == 0 || csr.num_rows == 0) return {d_attr, zeros_like_device(l, {width, dims}, acc)};
  Tensor of_spans = empty_like_device(l, {csr.num_spans, kEdgeDims, width}, acc);
  Tensor by_feature = empty_like_device(l, {dims, width}, acc);
  dispatch_widest<kEdgeDims>(l, shape.channels, csr.index, {&l, &r, &att}, [&](auto types) {
    using Types = decltype(types);
    using T = typename Types::Element;
    using Index = typename Types::Index;
    using Acc = acc_t<T>;
    constexpr int kBytes = Types::kBytes;
    EdgeGradientArgs<T, Index> args{};
    args.table = csr.table<Index>();
    args.tiles = HeadTiles::of(int(shape.heads), int(shape.channels), Packet<T, kBytes>::kSize, kMaxTileLanes);
    Tensor sums = empty_like_device(l, {args.tiles.tiles > 1 ? num_edges : 0, dims}, acc);
    args.keys = read_pointer<T>(l);
    args.targets = read_pointer<T>(r);
    args.constant = read_pointer<Acc>(att);
    args.perm = read_pointer<Index>(perm);
    args.ds = read_pointer<Acc>(ds);
    args.projection = edge_projection<T>(edges.attr, edges.weight);
    args.dims = int(dims);
    args.family = {Acc(negative_slope)};
    args.d_attr = write_pointer<T>(d_attr);
    args.sums = write_pointer<Acc>(sums);
    args.d_weight = write_pointer<Acc>(of_spans);
    const auto* kernel = reinterpret_cast<const void*>(&gatv2_edge_gradient_kernel<T, kBytes, Index>);
    const LaunchPlan plan = LaunchPlan::of(kernel, kAttentionThreads,
                                           ceil_div<int64_t>(csr.num_spans * args.tiles.lanes, kAttentionThreads), 1,
                                           PacketFlight<kBytes, kEdgeBatch>::kSharedBytes);
    for (int64_t first = 0; first < dims; first += kEdgeDims) {
      args.first = int(first);
      launch_phases(plan, args, 1, call.stream);
      const int64_t over_spans[] = {0}, taken = dims - first < kEdgeDims ? dims - first : kEdgeDims;
      Tensor sum = torch::stable::sum(of_spans, torch::headeronly::IntHeaderOnlyArrayRef(over_spans, 1));
      Tensor to = torch::stable::narrow(by_feature, 0, first, taken);
      torch::stable::copy_(to, torch::stable::narrow(sum, 0, 0, taken));
    }
  });
  Tensor d_weight = empty_like_device(l, {width, dims}, acc);
  torch::stable::copy_(d_weight, torch::stable::transpose(by_feature, 0, 1));
  return {d_attr, d_weight};
}

}  // namespace bridge
}  // namespace gnnagg
