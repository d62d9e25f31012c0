// The gradient of max and min by scattering each target's gradient to its winners.
//
// How. dx is summed in 64-bit fixed point, so that the order of the additions does not matter. prepare zeroes the sums and
// finds the greatest finite |grad|, from which the unit follows: no sum of num_dst gradients can overflow. scatter adds each
// (i, f) whose winner is known by its slot. share walks the rows where several edges tied and adds 1 / winners of the
// gradient to each; it runs only if there are such rows. convert writes dx. poison, only where a gradient is not finite, adds
// those to dx as they are: infinity and NaN do not depend on the order either.
//
// Accuracy. The unit is the greatest |grad| times 2^-(61 - log2 num_dst), 2^-40 of it for two million targets, against the
// 2^-24 of a float: exact to the last bit of a float for every sum within 2^16 of the greatest gradient.
//
// Traffic. 8 bytes a cell of dx zeroed, one random 8-byte atomic (a 32-byte sector, read and written) for each of N * F
// winners, 8 + s bytes a cell to convert. No term grows with the number of edges, unless edges tie.
//
// Launch contract. One cooperative launch of five phases, or five ordinary ones. `Found` must be zero: a memset before.
//
// Determinism. Integer addition commutes; the unit is a maximum.
#include "cuda/extremum_backward.cuh"
#include "cuda/winners.cuh"

namespace gnnagg {
namespace {

constexpr int kPhases = 5;
constexpr int kFixedBits = 61;  // of 63, one for rounding up log2 of the counts and one for the sign of the sum
constexpr int kUnroll = 4;      // cells a thread has in flight

// What the phases tell each other.
struct Found {
  unsigned int greatest;  // bits of the greatest finite |grad|: order as those of the floats
  unsigned int not_finite;
  unsigned int tied;
};

template <typename T, int kBytes, typename Index>
struct ScatterArgs {
  RowsView<T, Index> view;           // rows = targets; x = the forward's input
  const T* __restrict__ grad;        // [B, num_dst, F]
  const T* __restrict__ out;         // [B, num_dst, F]
  const Index* __restrict__ winner;  // [B, num_dst, F]
  long long* __restrict__ sums;      // [B, num_src, F]
  T* __restrict__ dx;                // [B, num_src, F]
  Found* __restrict__ found;
  int64_t cells_in, cells_out;  // B * num_dst * F, B * num_src * F
  int headroom;                 // bits that num_dst summands may carry
  Phases phases;
};

__device__ __forceinline__ bool is_finite(float value) { return fabsf(value) < INFINITY; }

// Calls body(cell) for every cell of [0, count), kUnroll at a time per thread; body must be free of order.
template <typename Load, typename Use>
__device__ __forceinline__ void for_each_cell(int64_t count, Load load, Use use) {
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  const int64_t thread = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  for (int64_t cell = thread; cell < count; cell += kUnroll * stride) {
    decltype(load(cell)) values[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (cell + u * stride < count) values[u] = load(cell + u * stride);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (cell + u * stride < count) use(cell + u * stride, values[u]);
    }
  }
}

template <typename Args>
__device__ __forceinline__ void prepare(const Args& args) {
  for_each_cell(args.cells_out, [](int64_t) { return 0; }, [&](int64_t cell, int) { args.sums[cell] = 0; });
  float greatest = 0;
  bool strange = false;
  for_each_cell(
      args.cells_in, [&](int64_t cell) { return to_acc(args.grad[cell]); },
      [&](int64_t, float value) {
        if (is_finite(value)) {
          greatest = fmaxf(greatest, fabsf(value));
        } else {
          strange = true;
        }
      });
  const unsigned most = __reduce_max_sync(~0u, __float_as_uint(greatest));
  if ((threadIdx.x & 31) == 0) atomicMax(&args.found->greatest, most);
  if (strange) atomicOr(&args.found->not_finite, 1u);
}

// 2^shift units make 1.
__device__ __forceinline__ int fixed_shift(const Found* found, int headroom) {
  const float greatest = __uint_as_float(__ldcg(&found->greatest));
  int exponent = 0;
  frexpf(greatest, &exponent);  // greatest < 2^exponent
  return kFixedBits - headroom - exponent;
}

template <typename Args>
__device__ __forceinline__ void add_fixed(const Args& args, int64_t cell, float value, int shift) {
  if (value == 0.0f || !is_finite(value)) return;
  const long long units = __double2ll_rn(ldexp(double(value), shift));
  atomicAdd(reinterpret_cast<unsigned long long*>(args.sums) + cell, static_cast<unsigned long long>(units));
}

template <typename T, int kBytes, typename Index>
__device__ __forceinline__ void scatter(const ScatterArgs<T, kBytes, Index>& args) {
  struct Entry {
    Index winner;
    T grad;
  };
  const int shift = fixed_shift(args.found, args.headroom);
  const int64_t features = args.view.tiles.features, rows = args.view.table.num_rows;
  bool tied = false;
  for_each_cell(
      args.cells_in, [&](int64_t cell) { return Entry{__ldcs(args.winner + cell), args.grad[cell]}; },
      [&](int64_t cell, const Entry& entry) {
        if (entry.winner < kNoWinner) tied = true;
        if (entry.winner < 0) return;
        const int64_t row = cell / features, feature = cell - row * features, layer = row / rows;
        const int64_t source = layer * args.view.num_src + __ldg(args.view.table.col + entry.winner);
        add_fixed(args, source * features + feature, to_acc(entry.grad), shift);
      });
  if (tied) atomicOr(&args.found->tied, 1u);
}

// One row's ties, as seen by the span that owns slots [from, to) of it. Called by every active lane of a group.
template <typename T, int kBytes, typename Index>
__device__ __forceinline__ void share_row(const ScatterArgs<T, kBytes, Index>& args, const LanePlace& place,
                                          int64_t entry, const PlainRows<T, kBytes, Index>& rows, Index row, Index from,
                                          Index to, int shift) {
  using Vector = Packet<T, kBytes>;
  using Acc = acc_t<T>;
  constexpr int kSize = Vector::kSize;
  Index winner[kSize];
  Span<Index, kSize>::load(args.winner + place.row(row), winner);
  bool tied = false;
#pragma unroll
  for (int i = 0; i < kSize; ++i) tied |= winner[i] < kNoWinner;
  if (!tied) return;
  Acc best[kSize], share[kSize];
  Vector::unpack(Vector::load(args.out + place.row(row)), best);
  Vector::unpack(Vector::load(args.grad + place.row(row)), share);
#pragma unroll
  for (int i = 0; i < kSize; ++i) share[i] = winner[i] < kNoWinner ? share[i] / Acc(-winner[i]) : Acc(0);
  const Index* col = args.view.table.col;
  for (Index slot = from; slot < to; slot += kEdgeBatch) {
    typename Vector::Raw raw[kEdgeBatch];
    Index ids[kEdgeBatch];
#pragma unroll
    for (int u = 0; u < kEdgeBatch; ++u) {
      if (slot + u >= to) continue;
      ids[u] = __ldg(col + slot + u);
      raw[u] = rows.load(ids[u]);
    }
#pragma unroll
    for (int u = 0; u < kEdgeBatch; ++u) {
      if (slot + u >= to) continue;
      Acc values[kSize];
      Vector::unpack(raw[u], values);
      const int64_t cell = (entry * args.view.num_src + ids[u]) * place.features + place.offset;
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        if (ties_with(values[i], best[i])) add_fixed(args, cell + i, float(share[i]), shift);
      }
    }
  }
}

template <typename T, int kBytes, typename Index>
__device__ __forceinline__ void share_ties(const ScatterArgs<T, kBytes, Index>& args, const Group& group) {
  const auto& table = args.view.table;
  const int shift = fixed_shift(args.found, args.headroom);
  const int64_t items = table.num_spans * num_layers(args.view);
  for (int64_t item = group.index(); item < items; item += group.count()) {
    const int64_t layer = item / table.num_spans, k = item - layer * table.num_spans;
    const LanePlace place = lane_place<T, kBytes>(args.view, group, layer);
    if (!place.active) continue;
    const auto rows = plain_rows<T, kBytes>(args.view, place, layer);
    const Index begin = table.span_edge(k), end = table.span_edge(k + 1), end_row = table.span_row(k + 1);
    for (Index row = table.span_row(k); row <= end_row && row < Index(table.num_rows); ++row) {
      const Index row_begin = table.rowptr[row], row_end = table.rowptr[row + 1];
      const Index from = row_begin > begin ? row_begin : begin, to = row_end < end ? row_end : end;
      if (from < to) share_row(args, place, layer / args.view.tiles.tiles, rows, row, from, to, shift);
    }
  }
}

template <typename T, int kBytes, typename Index>
__device__ __forceinline__ void convert(const ScatterArgs<T, kBytes, Index>& args) {
  const int shift = fixed_shift(args.found, args.headroom);
  for_each_cell(
      args.cells_out, [&](int64_t cell) { return __ldcg(args.sums + cell); },
      [&](int64_t cell, long long sum) { args.dx[cell] = from_acc<T>(float(ldexp(double(sum), -shift))); });
}

// Adds what is not finite, by the same winners. Rare: it takes its time.
template <typename T, int kBytes, typename Index>
__device__ __forceinline__ void poison(const ScatterArgs<T, kBytes, Index>& args) {
  const int64_t features = args.view.tiles.features, rows = args.view.table.num_rows;
  for_each_cell(
      args.cells_in, [&](int64_t cell) { return args.grad[cell]; },
      [&](int64_t cell, T grad) {
        if (is_finite(to_acc(grad))) return;
        const int64_t row = cell / features, feature = cell - row * features, layer = row / rows;
        const Index winner = args.winner[cell], in_layer = Index(row - layer * rows);
        const auto hit = [&](Index slot) {
          const int64_t source = layer * args.view.num_src + args.view.table.col[slot];
          atomicAdd(args.dx + source * features + feature, grad);
        };
        if (winner >= 0) hit(winner);
        if (winner >= kNoWinner) return;
        for (Index slot = args.view.table.rowptr[in_layer]; slot < args.view.table.rowptr[in_layer + 1]; ++slot) {
          const int64_t source = layer * args.view.num_src + args.view.table.col[slot];
          if (ties_with(to_acc(args.view.x[source * features + feature]), to_acc(args.out[cell]))) hit(slot);
        }
      });
}

template <typename T, int kBytes, typename Index>
__global__ __launch_bounds__(kBlockThreads, kBlocksPerSm) void extremum_scatter_kernel(
    const ScatterArgs<T, kBytes, Index> args) {
  const auto grid = cooperative_groups::this_grid();
  if (args.phases.has(0)) prepare(args);
  if (args.phases.together) grid.sync();  // sums are zero, and the greatest gradient is known, before any is added
  if (args.phases.has(1)) scatter(args);
  if (args.phases.together) grid.sync();  // every block knows whether there are ties
  if (args.phases.has(2) && __ldcg(&args.found->tied)) share_ties(args, Group(args.view.tiles.lanes));
  if (args.phases.together) grid.sync();  // all sums are complete
  if (args.phases.has(3)) convert(args);
  if (args.phases.together) grid.sync();  // dx is written before something is added to it
  if (args.phases.has(4) && __ldcg(&args.found->not_finite)) poison(args);
}

int bits_of(int64_t count) {
  int bits = 1;
  while ((int64_t(1) << bits) < count) ++bits;
  return bits;
}

}  // namespace

void extremum_backward_by_scatter(const ExtremumBackward& call) {
  const auto& shape = call.shape;
  bridge::Tensor sums =
      bridge::empty_like_device(call.x, {shape.batch * shape.rows, shape.width}, bridge::ScalarType::Long);
  bridge::Tensor found = bridge::empty_like_device(call.x, {int64_t(sizeof(Found))}, bridge::ScalarType::Byte);
  check_cuda(cudaMemsetAsync(found.data_ptr(), 0, sizeof(Found), call.stream), "memset");
  bridge::dispatch_features(
      call.x, shape.width, call.csr.index, {&call.x, &call.out, &call.grad, &call.dx, &call.winner}, [&](auto types) {
        using Types = decltype(types);
        using T = typename Types::Element;
        using Index = typename Types::Index;
        if constexpr (sizeof(T) < sizeof(double)) {
          constexpr int kBytes = Types::kBytes;
          ScatterArgs<T, kBytes, Index> args{};
          args.view = bridge::rows_view<T, Index>(call.csr, shape, call.x, Packet<T, kBytes>::kSize);
          args.grad = bridge::read_pointer<T>(call.grad);
          args.out = bridge::read_pointer<T>(call.out);
          args.winner = bridge::read_pointer<Index>(call.winner);
          args.sums = reinterpret_cast<long long*>(bridge::write_pointer<int64_t>(sums));
          args.dx = bridge::write_pointer<T>(call.dx);
          args.found = reinterpret_cast<Found*>(bridge::write_pointer<uint8_t>(found));
          args.cells_in = shape.batch * call.csr.num_rows * shape.width;
          args.cells_out = shape.batch * shape.rows * shape.width;
          args.headroom = bits_of(call.csr.num_rows + 1);
          const auto* kernel = reinterpret_cast<const void*>(&extremum_scatter_kernel<T, kBytes, Index>);
          const int64_t cells = args.cells_in > args.cells_out ? args.cells_in : args.cells_out;
          const LaunchPlan plan =
              LaunchPlan::of(kernel, kBlockThreads, ceil_div<int64_t>(cells, kBlockThreads * kUnroll), kPhases);
          launch_phases(plan, args, kPhases, call.stream);
        }
      });
}

}  // namespace gnnagg
