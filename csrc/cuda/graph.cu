// csr_from_coo, csr_transpose: the two directions of a graph plan.
//
// How. A stable radix sort of (row, edge id) over just the bits that num_rows needs; removed self-loops and edges with an id
// out of range take the key num_rows and so end behind the last row. Row pointers are binary searches in the sorted keys.
// The transpose sorts (source, slot), so that a transposed row lists its slots in ascending order.
//
// Traffic. Per edge and direction: 16 bytes a radix pass (8 bits) of the sort, 4 to 8 to make keys, one random 4-byte read
// (a 32-byte sector) to fetch the other end. 124 M edges, 22-bit ids: three passes, about 9 GB a direction.
//
// Launch contract. Ordinary launches; workspace from torch's allocator. No host synchronisation.
//
// Determinism. The sort is stable; the fault report is the lowest faulty edge.
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>

#include "bridge/check.h"
#include "bridge/cuda_dispatch.h"
#include "cuda/launch.cuh"

namespace gnnagg {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 132 * 16;
constexpr unsigned long long kNoFault = 0x7fffffffffffffffull;  // 2^63 - 1, as in _csr.py

// Values of `loops`, as in gnnagg/graph.py.
enum LoopMode : int64_t { kKeepLoops = 0, kAddLoops = 1, kReplaceLoops = 2, kRemoveLoops = 3 };

int blocks_for(int64_t items) {
  return int(std::max<int64_t>(1, std::min(ceil_div<int64_t>(items, kThreads), kMaxBlocks)));
}

// Grid-stride loop over [0, count).
template <typename Body>
__device__ __forceinline__ void for_each(int64_t count, Body body) {
  const int64_t stride = int64_t(gridDim.x) * kThreads;
  for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < count; i += stride) body(i);
}

// The caller's edge list, extended by one loop per node when loops are added.
template <typename Input>
struct EdgeList {
  const Input* __restrict__ row;  // [num_given]
  const Input* __restrict__ col;  // [num_given]
  int64_t num_given;
  int64_t num_rows, num_cols;
  int64_t loops;

  __device__ __forceinline__ int64_t row_of(int64_t edge) const {
    return edge < num_given ? int64_t(row[edge]) : edge - num_given;
  }
  __device__ __forceinline__ int64_t col_of(int64_t edge) const {
    return edge < num_given ? int64_t(col[edge]) : edge - num_given;
  }
  __device__ __forceinline__ bool in_range(int64_t r, int64_t c) const {
    return r >= 0 && r < num_rows && c >= 0 && c < num_cols;
  }
  __device__ __forceinline__ bool removes(int64_t edge, int64_t r, int64_t c) const {
    return (loops == kReplaceLoops || loops == kRemoveLoops) && edge < num_given && r == c;
  }
};

__global__ void reset_fault(unsigned long long* fault) { fault[0] = kNoFault; }

template <typename Input, typename Key, typename Index>
__global__ __launch_bounds__(kThreads) void make_keys(const EdgeList<Input> edges, int64_t count,
                                                      Key* __restrict__ keys, Index* __restrict__ ids,
                                                      unsigned long long* __restrict__ fault) {
  for_each(count, [&](int64_t edge) {
    const int64_t r = edges.row_of(edge), c = edges.col_of(edge);
    const bool sound = edges.in_range(r, c);
    if (!sound) atomicMin(fault, static_cast<unsigned long long>(edge));
    keys[edge] = Key(sound && !edges.removes(edge, r, c) ? r : edges.num_rows);
    ids[edge] = Index(edge);
  });
}

// col of each slot, and the ids of the faulty edge where there is one. An id out of range becomes 0.
template <typename Input, typename Index>
__global__ __launch_bounds__(kThreads) void fetch_columns(const EdgeList<Input> edges, int64_t count,
                                                          const Index* __restrict__ perm, Index* __restrict__ col,
                                                          int64_t* __restrict__ fault) {
  for_each(count, [&](int64_t slot) {
    const int64_t edge = perm[slot], c = edges.col_of(edge);
    col[slot] = c >= 0 && c < edges.num_cols ? Index(c) : Index(0);
  });
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    const bool faulty = fault[0] != int64_t(kNoFault);
    fault[1] = faulty ? edges.row_of(fault[0]) : 0;
    fault[2] = faulty ? edges.col_of(fault[0]) : 0;
  }
}

// rowptr[r] = number of sorted keys below r.
template <typename Key, typename Index>
__global__ __launch_bounds__(kThreads) void find_row_pointers(const Key* __restrict__ keys, int64_t count,
                                                              int64_t num_rows, Index* __restrict__ rowptr) {
  for_each(num_rows + 1, [&](int64_t r) {
    int64_t low = 0, high = count;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (int64_t(keys[middle]) < r) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    rowptr[r] = Index(low);
  });
}

// Keys of the transpose: the source of every live slot.
template <typename Key, typename Index>
__global__ __launch_bounds__(kThreads) void make_source_keys(const Index* __restrict__ rowptr,
                                                             const Index* __restrict__ col, int64_t count,
                                                             int64_t num_rows, int64_t num_cols, Key* __restrict__ keys,
                                                             Index* __restrict__ slots) {
  const int64_t live = rowptr[num_rows];
  for_each(count, [&](int64_t slot) {
    keys[slot] = Key(slot < live ? int64_t(col[slot]) : num_cols);
    slots[slot] = Index(slot);
  });
}

// marks[slot] = row where a row begins (the last of those that begin there is the one that has edges), else 0.
template <typename Index>
__global__ __launch_bounds__(kThreads) void mark_row_starts(const Index* __restrict__ rowptr, int64_t num_rows,
                                                            Index* __restrict__ marks) {
  for_each(num_rows, [&](int64_t r) {
    if (rowptr[r] < rowptr[r + 1]) marks[rowptr[r]] = Index(r);
  });
}

template <typename Index>
__global__ __launch_bounds__(kThreads) void fetch_rows(const Index* __restrict__ slots,
                                                       const Index* __restrict__ row_of_slot, int64_t count,
                                                       Index* __restrict__ col) {
  for_each(count, [&](int64_t i) { col[i] = row_of_slot[slots[i]]; });
}

struct Larger {
  template <typename Value>
  __device__ __forceinline__ Value operator()(Value a, Value b) const {
    return a > b ? a : b;
  }
};

int bits_for(int64_t values) {
  int bits = 1;
  while (bits < 63 && (int64_t(1) << bits) < values) ++bits;
  return bits;
}

using bridge::ScalarType;
using bridge::Tensor;

Tensor workspace(const Tensor& like, size_t bytes) {
  return bridge::empty_like_device(like, {int64_t(bytes < 1 ? 1 : bytes)}, ScalarType::Byte);
}

// Stable sort of (keys, ids) by the lowest bits of keys; the sorted arrays are left in `keys` and `ids`.
template <typename Key, typename Index>
void sort_pairs(const Tensor& like, cub::DoubleBuffer<Key>& keys, cub::DoubleBuffer<Index>& ids, int64_t count,
                int bits, cudaStream_t stream) {
  size_t bytes = 0;
  check_cuda(cub::DeviceRadixSort::SortPairs(nullptr, bytes, keys, ids, count, 0, bits, stream), "radix sort size");
  const Tensor space = workspace(like, bytes);
  check_cuda(cub::DeviceRadixSort::SortPairs(space.data_ptr(), bytes, keys, ids, count, 0, bits, stream), "radix sort");
}

// The two arrays of a double buffer, allocated so that the result can be handed out without a copy.
template <typename Value>
struct PingPong {
  Tensor first, second;

  PingPong(const Tensor& like, int64_t count, ScalarType type)
      : first(bridge::empty_like_device(like, {count}, type)), second(bridge::empty_like_device(like, {count}, type)) {}

  cub::DoubleBuffer<Value> buffer() {
    return cub::DoubleBuffer<Value>(static_cast<Value*>(first.mutable_data_ptr()),
                                    static_cast<Value*>(second.mutable_data_ptr()));
  }
  Tensor current(const cub::DoubleBuffer<Value>& buffer) const { return buffer.selector == 0 ? first : second; }
};

template <typename Index>
constexpr ScalarType index_type() {
  return sizeof(Index) == 4 ? ScalarType::Int : ScalarType::Long;
}

struct CsrTensors {
  Tensor rowptr, col, perm, fault;
};

template <typename Input, typename Key, typename Index>
CsrTensors csr_from_coo_typed(const Tensor& row, const EdgeList<Input>& edges, int64_t count, cudaStream_t stream) {
  Tensor rowptr = bridge::empty_like_device(row, {edges.num_rows + 1}, index_type<Index>());
  Tensor col = bridge::empty_like_device(row, {count}, index_type<Index>());
  Tensor fault = bridge::empty_like_device(row, {3}, ScalarType::Long);
  PingPong<Key> keys(row, count, sizeof(Key) == 4 ? ScalarType::Int : ScalarType::Long);
  PingPong<Index> ids(row, count, index_type<Index>());
  auto key_buffer = keys.buffer();
  auto id_buffer = ids.buffer();
  auto* position = reinterpret_cast<unsigned long long*>(fault.mutable_data_ptr());
  reset_fault<<<1, 1, 0, stream>>>(position);
  make_keys<<<blocks_for(count), kThreads, 0, stream>>>(edges, count, key_buffer.Current(), id_buffer.Current(),
                                                        position);
  if (count > 0) sort_pairs(row, key_buffer, id_buffer, count, bits_for(edges.num_rows + 1), stream);
  find_row_pointers<<<blocks_for(edges.num_rows + 1), kThreads, 0, stream>>>(
      key_buffer.Current(), count, edges.num_rows, bridge::write_pointer<Index>(rowptr));
  fetch_columns<<<blocks_for(count), kThreads, 0, stream>>>(
      edges, count, id_buffer.Current(), bridge::write_pointer<Index>(col), bridge::write_pointer<int64_t>(fault));
  check_cuda(cudaGetLastError(), "csr_from_coo launch");
  return {rowptr, col, ids.current(id_buffer), fault};
}

template <typename Key, typename Index>
std::tuple<Tensor, Tensor, Tensor> csr_transpose_typed(const Tensor& rowptr, const Tensor& col, int64_t num_cols,
                                                       cudaStream_t stream) {
  const int64_t count = col.numel(), num_rows = rowptr.numel() - 1;
  Tensor t_rowptr = bridge::empty_like_device(rowptr, {num_cols + 1}, index_type<Index>());
  Tensor t_col = bridge::empty_like_device(rowptr, {count}, index_type<Index>());
  const Index* pointers = bridge::read_pointer<Index>(rowptr);
  Tensor t_slot = t_col;
  {
    PingPong<Key> keys(rowptr, count, sizeof(Key) == 4 ? ScalarType::Int : ScalarType::Long);
    PingPong<Index> slots(rowptr, count, index_type<Index>());
    auto key_buffer = keys.buffer();
    auto slot_buffer = slots.buffer();
    make_source_keys<<<blocks_for(count), kThreads, 0, stream>>>(pointers, bridge::read_pointer<Index>(col), count,
                                                                 num_rows, num_cols, key_buffer.Current(),
                                                                 slot_buffer.Current());
    if (count > 0) sort_pairs(rowptr, key_buffer, slot_buffer, count, bits_for(num_cols + 1), stream);
    find_row_pointers<<<blocks_for(num_cols + 1), kThreads, 0, stream>>>(key_buffer.Current(), count, num_cols,
                                                                         bridge::write_pointer<Index>(t_rowptr));
    t_slot = slots.current(slot_buffer);
  }
  Tensor row_of_slot = bridge::zeros_like_device(rowptr, {count}, index_type<Index>());
  Index* marks = bridge::write_pointer<Index>(row_of_slot);
  mark_row_starts<<<blocks_for(num_rows), kThreads, 0, stream>>>(pointers, num_rows, marks);
  if (count > 0) {
    size_t bytes = 0;
    check_cuda(cub::DeviceScan::InclusiveScan(nullptr, bytes, marks, marks, Larger{}, count, stream), "scan size");
    const Tensor space = workspace(rowptr, bytes);
    check_cuda(cub::DeviceScan::InclusiveScan(space.data_ptr(), bytes, marks, marks, Larger{}, count, stream), "scan");
  }
  fetch_rows<<<blocks_for(count), kThreads, 0, stream>>>(bridge::read_pointer<Index>(t_slot), marks, count,
                                                         bridge::write_pointer<Index>(t_col));
  check_cuda(cudaGetLastError(), "csr_transpose launch");
  return {t_rowptr, t_col, t_slot};
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor> csr_from_coo_cuda(const Tensor& row, const Tensor& col, int64_t num_rows,
                                                             int64_t num_cols, int64_t loops, bool wide) {
  const char* op = "csr_from_coo";
  const bridge::CudaCall call(row);
  const ScalarType input = row.scalar_type();
  STD_TORCH_CHECK(bridge::is_index_type(input), op, ": row must be int32 or int64");
  bridge::check_tensor(row, op, "row", input, {-1});
  bridge::check_tensor(col, op, "col", input, {row.numel()});
  STD_TORCH_CHECK(num_rows >= 0 && num_cols >= 0, op, ": num_rows and num_cols must be >= 0");
  const bool adds = loops == kAddLoops || loops == kReplaceLoops;
  const int64_t count = row.numel() + (adds ? std::min(num_rows, num_cols) : 0);
  const auto build = [&](auto zero) {
    using Input = decltype(zero);
    const EdgeList<Input> edges{
        bridge::read_pointer<Input>(row), bridge::read_pointer<Input>(col), row.numel(), num_rows, num_cols, loops};
    return wide ? csr_from_coo_typed<Input, uint64_t, int64_t>(row, edges, count, call.stream)
                : csr_from_coo_typed<Input, uint32_t, int32_t>(row, edges, count, call.stream);
  };
  const CsrTensors built = input == ScalarType::Int ? build(int32_t{}) : build(int64_t{});
  return {built.rowptr, built.col, built.perm, built.fault};
}

std::tuple<Tensor, Tensor, Tensor> csr_transpose_cuda(const Tensor& rowptr, const Tensor& col, int64_t num_cols) {
  const bridge::CudaCall call(rowptr);
  if (bridge::check_csr(rowptr, col, "csr_transpose") == ScalarType::Int) {
    return csr_transpose_typed<uint32_t, int32_t>(rowptr, col, num_cols, call.stream);
  }
  return csr_transpose_typed<uint64_t, int64_t>(rowptr, col, num_cols, call.stream);
}

}  // namespace gnnagg
