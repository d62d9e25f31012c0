// Packs the edge features of gatv2_attention: [num_edges, D] in edge order become [num_edges, D'] by slot, D' = D rounded up to
// kEdgeDims by zeros; and W is transposed and padded alike.
//
// How. One thread copies kEdgeDims features of one edge. Every walk over edges, and every tile of it, then reads them in order, or with
// the slot that it has anyway.
//
// Traffic. Per edge D * s bytes read at random (perm), D' * s written, 4 of perm.
//
// Launch contract. One ordinary launch; any grid size is right. Entries of dead slots are not written.
//
// Determinism. Copies only.
#include "cuda/gatv2_edges.h"

#include "cuda/edge_features.cuh"

namespace gnnagg {
namespace {

template <typename Element, typename Index>
struct PackArgs {
  const Index* __restrict__ rowptr;  // [num_rows + 1]
  const Index* __restrict__ perm;    // [num_edges] or null
  const Element* __restrict__ attr;  // [num_edges, dims]
  Element* __restrict__ packed;      // [num_edges, kEdgeDims * blocks]
  int64_t num_rows;
  int64_t dims;
  int64_t blocks;
  Phases phases;
};

template <typename Element, typename Index>
__global__ __launch_bounds__(kBlockThreads, kBlocksPerSm) void pack_kernel(const PackArgs<Element, Index> args) {
  const int64_t items = int64_t(args.rowptr[args.num_rows]) * args.blocks;
  const int64_t step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t item = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; item < items; item += step) {
    const int64_t slot = item / args.blocks, d = (item - slot * args.blocks) * kEdgeDims;
    const int64_t edge = args.perm ? int64_t(args.perm[slot]) : slot;
#pragma unroll
    for (int j = 0; j < kEdgeDims; ++j) {
      args.packed[item * kEdgeDims + j] = d + j < args.dims ? args.attr[edge * args.dims + d + j] : Element(0);
    }
  }
}

}  // namespace

namespace bridge {

std::optional<PackedEdges> pack_edges(const char* op, const HeadShape& shape, const CsrArguments& csr, const Tensor& l,
                                      const OptionalTensor& perm, const OptionalTensor& attr,
                                      const OptionalTensor& weight) {
  STD_TORCH_CHECK(attr.has_value() == weight.has_value(), op, ": edge_attr and edge_weight go together");
  if (!attr) return std::nullopt;
  const CudaCall call(l);
  const ScalarType type = l.scalar_type();
  check_tensor(*attr, op, "edge_attr", type, {csr.num_edges, -1});
  if (perm) check_tensor(*perm, op, "perm", csr.index, {csr.num_edges});
  const int64_t dims = attr->size(1);
  STD_TORCH_CHECK(dims >= 1 && dims < (int64_t(1) << 30), op, ": edge_attr must have from 1 to 2^30 features, got ",
                  dims);
  check_tensor(*weight, op, "edge_weight", accumulate_type(type), {shape.width(), dims});
  const int64_t blocks = ceil_div<int64_t>(dims, kEdgeDims), padded = blocks * kEdgeDims;
  Tensor columns = zeros_like_device(*weight, {padded, shape.width()}, weight->scalar_type());
  Tensor used = torch::stable::narrow(columns, 0, 0, dims);
  torch::stable::copy_(used, torch::stable::transpose(*weight, 0, 1));
  const bool in_order = !perm && padded == dims && load_bytes(dims, attr->element_size(), {&*attr}) == kLaneBytes;
  if (in_order || csr.num_edges == 0) return PackedEdges{*attr, columns, dims};
  Tensor packed = empty_like_device(l, {csr.num_edges, padded}, type);
  const auto launch = [&](auto element, auto index) {
    using Element = decltype(element);
    using Index = decltype(index);
    const PackArgs<Element, Index> args{static_cast<const Index*>(csr.rowptr),
                                        read_pointer<Index>(perm),
                                        read_pointer<Element>(*attr),
                                        write_pointer<Element>(packed),
                                        csr.num_rows,
                                        dims,
                                        blocks,
                                        {}};
    const auto* kernel = reinterpret_cast<const void*>(&pack_kernel<Element, Index>);
    launch_phases(LaunchPlan::of(kernel, kBlockThreads, ceil_div<int64_t>(csr.num_edges * blocks, kBlockThreads), 1),
                  args, 1, call.stream);
  };
  const auto with_index = [&](auto element) {
    csr.index == ScalarType::Int ? launch(element, int32_t{}) : launch(element, int64_t{});
  };
  switch (type) {
    case ScalarType::Float: with_index(uint32_t{}); break;
    case ScalarType::Double: with_index(uint64_t{}); break;
    default: with_index(uint16_t{}); break;
  }
  return PackedEdges{packed, columns, dims};
}

}  // namespace bridge
}  // namespace gnnagg
