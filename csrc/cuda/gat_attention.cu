// gat_attention: out[i, h] = sum over edges e = (j -> i) of alpha[e, h] * mask[e, h] * z[j, h], where alpha is the softmax over
// the edges of i of LeakyReLU(a_src[j, h] + a_dst[i, h] + edge_score[e, h]) and mask is 1, or dropout's 0 or 1 / (1 - p).
//
// How. The walk of every aggregation (reduce_rows.cuh) with a group that holds whole heads (heads.cuh): each lane loads a packet
// of z[j] for every edge of a batch, works out the scores of the edges that it owns, and takes the others' by shuffle. Kept are
// greatest score, sum of exponentials and weighted sum of the row; a greater score scales what was kept. All heads of a row are
// served by one read of the ids and one gather of z. Rows cut by a span boundary
// leave (greatest, sum, weighted sum), which are merged in span order after the grid has synchronised.
//
// Traffic. As aggregate_sum, and per edge the sector of a_src[j]; with edge scores or dropout 4 bytes of perm, and a sector of
// edge_score. Per row 4 H bytes of logsumexp, and with kPositive another F * s.
//
// Launch contract. As aggregate_sum.
//
// Determinism. Edges of a span in slot order, partials in span order; bit-equal in both launch modes. Dropout is a function of
// (seed, edge id, head).
#include "bridge/attention.h"
#include "cuda/edge_options.cuh"
#include "cuda/packet_flight.cuh"
#include "cuda/reduce_rows.cuh"
#include "cuda/softmax_reducer.cuh"

namespace gnnagg {
namespace {

template <typename T, int kBytes, typename Index, int kOwners, bool kPositive>
struct GatArgs {
  SpanTable<Index> table;
  HeadTiles tiles;
  const T* __restrict__ z;             // [num_src, H * C]
  const acc_t<T>* __restrict__ a_src;  // [num_src, H]
  const acc_t<T>* __restrict__ a_dst;  // [num_rows, H] or null
  EdgeOptions<acc_t<T>, Index> options;
  typename SoftmaxReducer<T, kBytes, kOwners, kPositive>::Target target;
  acc_t<T> negative_slope;
  Phases phases;
};

// The softmax of one row, with the target's share of its scores.
template <typename T, int kBytes, int kOwners, bool kPositive>
struct GatReducer : SoftmaxReducer<T, kBytes, kOwners, kPositive> {
  using Base = SoftmaxReducer<T, kBytes, kOwners, kPositive>;
  using Acc = acc_t<T>;
  const Acc* __restrict__ a_dst;  // of this lane's head at row 0, or null
  Acc of_row, of_next;            // scaled

  __device__ __forceinline__ GatReducer(const typename Base::Target& target, const HeadPlace& place,
                                        const typename Base::Owner& owner, const Acc* dst)
      : Base(target, place, owner), a_dst(dst ? dst + place.head : nullptr), of_row(0), of_next(0) {}

  template <typename Index>
  __device__ __forceinline__ void ahead(Index row) {
    if (a_dst) of_next = __ldg(a_dst + int64_t(row) * this->place.heads);
  }
  __device__ __forceinline__ void enter() { of_row = of_next * Exponent<Acc>::kScale; }
};

template <typename T, int kBytes, typename Index, int kOwners>
struct GatRows {
  using Vector = Packet<T, kBytes>;
  using Acc = acc_t<T>;
  using Owner = EdgeOwner<kOwners>;
  using Flight = RegisterFlight<kBytes, kEdgeBatch>;
  struct Batch {
    typename Flight::Batch packets;
    Acc score[Owner::kOwned];  // the source's and the edge's share
    Acc factor[Owner::kOwned];
  };

  PlainRows<T, kBytes, Index> rows;
  const Acc* __restrict__ a_src;  // of this lane's head at source 0
  const EdgeOptions<Acc, Index>& options;
  const HeadPlace& place;
  const Owner& owner;
  Acc negative_slope;
  Flight flight;

  __device__ __forceinline__ void start(Index, Index, Index) {}
  template <bool kWhole>
  __device__ __forceinline__ void request(Batch& batch, Index slot, Index begin, Index end,
                                          const Index (&ids)[kEdgeBatch]) {
    request_rows<kWhole>(flight, batch.packets, rows, slot, begin, end, ids);
#pragma unroll
    for (int o = 0; o < Owner::kOwned; ++o) {
      const Index mine = slot + owner.edge(o);
      batch.score[o] = Acc(0);
      batch.factor[o] = Acc(1);
      if (!inside<kWhole>(mine, begin, end)) continue;
      batch.score[o] = __ldg(a_src + int64_t(owner.pick(ids, o)) * place.heads);
      if (options.any()) {
        const int64_t edge = options.edge_of(mine);
        batch.score[o] += options.score_of(edge, place);
        batch.factor[o] = options.factor_of(edge, place);
      }
    }
  }
  template <typename Cursor>
  __device__ __forceinline__ void feed_segment(const Batch& batch, Index, int from, int to, Cursor& cursor) const {
    Acc score[Owner::kOwned];
    bool positive[Owner::kOwned];
#pragma unroll
    for (int o = 0; o < Owner::kOwned; ++o) {
      const Acc before = batch.score[o] * Exponent<Acc>::kScale + cursor.reducer.of_row;
      positive[o] = before > Acc(0);
      score[o] = leaky_relu(before, negative_slope);
    }
    cursor.reducer.add(from, to, score, positive, batch.factor, [&](int u) { return Flight::get(batch.packets, u); });
  }
};

template <typename T, int kBytes, typename Index, int kOwners, bool kPositive>
__device__ __forceinline__ void accumulate(const GatArgs<T, kBytes, Index, kOwners, kPositive>& args,
                                           const Group& group) {
  for_each_span(args.table, args.tiles.tiles, group, [&](int64_t k, int64_t tile) {
    const HeadPlace place(args.tiles, group, int(tile), Packet<T, kBytes>::kSize);
    const EdgeOwner<kOwners> owner(args.tiles, group);
    const GatRows<T, kBytes, Index, kOwners> rows{{args.z + place.offset, uint32_t(place.features * sizeof(T))},
                                                  args.a_src + place.head,
                                                  args.options,
                                                  place,
                                                  owner,
                                                  args.negative_slope,
                                                  {}};
    reduce_span(args.table, k, rows, GatReducer<T, kBytes, kOwners, kPositive>(args.target, place, owner, args.a_dst));
  });
}

template <typename T, int kBytes, typename Index, int kOwners, bool kPositive>
__global__ __launch_bounds__(kAttentionThreads, kGatBlocksPerSm) void gat_attention_kernel(
    const GatArgs<T, kBytes, Index, kOwners, kPositive> args) {
  const Group group(args.tiles.lanes);
  if (args.phases.has(0)) accumulate(args, group);
  if (!args.phases.has(1) || !has_split_rows(args.table)) return;    // the same in every block
  if (args.phases.together) cooperative_groups::this_grid().sync();  // every block's partials are visible to all
  combine_rows(args.table, args.tiles.tiles, group, [&](int64_t tile) {
    return SoftmaxReducer<T, kBytes, kOwners, kPositive>(
        args.target, HeadPlace(args.tiles, group, int(tile), Packet<T, kBytes>::kSize),
        EdgeOwner<kOwners>(args.tiles, group));
  });
}

}  // namespace

using bridge::OptionalTensor;
using bridge::ScalarType;
using bridge::Tensor;

std::tuple<Tensor, Tensor, Tensor, Tensor> gat_attention_cuda(
    const Tensor& z, const Tensor& a_src, const OptionalTensor& a_dst, const OptionalTensor& edge_score,
    const Tensor& rowptr, const Tensor& col, const Tensor& spans, const Tensor& splits, const OptionalTensor& perm,
    const OptionalTensor& seed, double negative_slope, double dropout, bool with_positive, const OptionalTensor&,
    const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&) {
  const char* op = "gat_attention";
  const bridge::CudaCall call(z);
  const bridge::CsrArguments csr(op, rowptr, col, spans, splits);
  const bridge::HeadShape shape(op, "z", z, a_src.size(1));
  const ScalarType acc = bridge::accumulate_type(z.scalar_type());
  bridge::check_tensor(a_src, op, "a_src", acc, {shape.rows, shape.heads});
  if (a_dst) bridge::check_tensor(*a_dst, op, "a_dst", acc, {csr.num_rows, shape.heads});
  if (edge_score) bridge::check_tensor(*edge_score, op, "edge_score", acc, {csr.num_edges, shape.heads});
  Tensor out = bridge::empty_like_device(z, {csr.num_rows, shape.width()}, z.scalar_type());
  Tensor lse = bridge::empty_like_device(z, {csr.num_rows, shape.heads}, acc);
  const auto empty = [&](ScalarType type) { return bridge::empty_like_device(z, {0}, type); };
  Tensor positive_out = with_positive ? bridge::empty_like_device(z, {csr.num_rows, shape.width()}, z.scalar_type())
                                      : empty(z.scalar_type());
  Tensor positive_alpha = with_positive ? bridge::empty_like_device(z, {csr.num_rows, shape.heads}, acc) : empty(acc);
  if (csr.num_rows == 0) return {out, lse, positive_out, positive_alpha};
  const int64_t partial_rows = 2 * csr.num_spans;
  Tensor partials = bridge::empty_like_device(z, {partial_rows, shape.width()}, acc);
  Tensor partial_scores = bridge::empty_like_device(z, {partial_rows, shape.heads, kPartialScores}, acc);
  Tensor partial_positives =
      with_positive ? bridge::empty_like_device(z, {partial_rows, shape.width()}, acc) : empty(acc);

  bridge::dispatch_heads<true, bridge::Long::kAlike>(z, shape, csr.index, {&z, &out, &positive_out}, [&](auto types) {
    using Types = decltype(types);
    using T = typename Types::Element;
    using Index = typename Types::Index;
    constexpr int kBytes = Types::kBytes;
    constexpr int kOwners = Types::kOwners;
    const auto launch = [&](auto positive) {
      constexpr bool kPositive = decltype(positive)::value;
      GatArgs<T, kBytes, Index, kOwners, kPositive> args{};
      args.table = csr.table<Index>();
      args.tiles = shape.tiles(csr, Packet<T, kBytes>::kSize);
      args.z = bridge::read_pointer<T>(z);
      args.a_src = bridge::read_pointer<acc_t<T>>(a_src);
      args.a_dst = bridge::read_pointer<acc_t<T>>(a_dst);
      args.options = bridge::edge_options<acc_t<T>, Index>(op, csr, perm, edge_score, seed, dropout);
      args.target = {bridge::write_pointer<T>(out),
                     bridge::write_pointer<acc_t<T>>(lse),
                     bridge::write_pointer<T>(positive_out),
                     bridge::write_pointer<acc_t<T>>(positive_alpha),
                     bridge::write_pointer<acc_t<T>>(partials),
                     bridge::write_pointer<acc_t<T>>(partial_scores),
                     bridge::write_pointer<acc_t<T>>(partial_positives)};
      args.negative_slope = acc_t<T>(negative_slope);
      const auto* kernel = reinterpret_cast<const void*>(&gat_attention_kernel<T, kBytes, Index, kOwners, kPositive>);
      launch_phases(bridge::plan_heads(kernel, args.table, args.tiles), args, kReducePhases, call.stream);
    };
    if (with_positive) {
      launch(std::true_type{});
    } else {
      launch(std::false_type{});
    }
  });
  return {out, lse, positive_out, positive_alpha};
}

}  // namespace gnnagg
