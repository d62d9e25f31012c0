// From tensors to typed kernel arguments: the device and stream of a call, the checks of a CSR with its schedule, and the
// choice of element type, load width and index type.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>

#include "bridge/check.h"
#include "cuda/reduce_rows.cuh"

namespace gnnagg::bridge {

// The device of `like` is current, and `stream` is its current stream, while this lives.
struct CudaCall {
  torch::stable::accelerator::DeviceGuard guard;
  cudaStream_t stream;

  explicit CudaCall(const Tensor& like) : guard(like.get_device_index()), stream(nullptr) {
    void* handle = nullptr;
    const AOTITorchError error = aoti_torch_get_current_cuda_stream(like.get_device_index(), &handle);
    STD_TORCH_CHECK(error == 0, "gnnagg: torch gave no current CUDA stream");
    stream = static_cast<cudaStream_t>(handle);
  }
};

// One CSR and its schedule, checked against each other.
struct CsrArguments {
  ScalarType index;
  int64_t num_rows, num_edges, num_spans;
  const void *rowptr, *col, *spans, *splits;

  CsrArguments(const char* op, const Tensor& rowptr_, const Tensor& col_, const Tensor& spans_, const Tensor& splits_)
      : index(check_csr(rowptr_, col_, op)),
        num_rows(rowptr_.size(0) - 1),
        num_edges(col_.size(0)),
        num_spans(check_schedule(spans_, index, op)),
        rowptr(rowptr_.const_data_ptr()),
        col(col_.const_data_ptr()),
        spans(spans_.const_data_ptr()),
        splits(splits_.const_data_ptr()) {
    check_tensor(splits_, op, "splits", index, {num_spans + 1, 2});
  }

  template <typename Index>
  SpanTable<Index> table() const {
    return {static_cast<const Index*>(rowptr),
            static_cast<const Index*>(col),
            static_cast<const Index*>(spans),
            static_cast<const Index*>(splits),
            num_rows,
            num_spans};
  }
};

// Checks the factors of a weighted sum; returns the number of heads.
inline int64_t check_factors(const char* op, const CsrArguments& csr, const FeatureShape& shape, ScalarType acc,
                             const OptionalTensor& perm, const OptionalTensor& weight, const OptionalTensor& src_scale,
                             const OptionalTensor& dst_scale) {
  if (perm) check_tensor(*perm, op, "perm", csr.index, {csr.num_edges});
  if (src_scale) check_tensor(*src_scale, op, "src_scale", acc, {shape.rows});
  if (dst_scale) check_tensor(*dst_scale, op, "dst_scale", acc, {csr.num_rows});
  if (!weight) return 1;
  if (weight->dim() == 1) {
    check_tensor(*weight, op, "weight", acc, {csr.num_edges});
    return 1;
  }
  check_tensor(*weight, op, "weight", acc, {csr.num_edges, -1});
  const int64_t heads = weight->size(1);
  STD_TORCH_CHECK(heads >= 1 && shape.width % heads == 0, op, ": weight must be [num_edges, H] with H dividing ",
                  shape.width, ", got H = ", heads);
  return heads;
}

template <typename T, int kBytes_, typename Index_>
struct FeatureTypes {
  using Element = T;
  using Index = Index_;
  static constexpr int kBytes = kBytes_;
};

// Whether rows of `width` elements at these addresses allow loads of so many bytes.
inline bool allows(int bytes, int64_t width, int64_t element_size, std::initializer_list<const Tensor*> tensors) {
  uintptr_t bits = uintptr_t(width * element_size);
  for (const Tensor* tensor : tensors) bits |= reinterpret_cast<uintptr_t>(tensor->const_data_ptr());
  return bits % uintptr_t(bytes) == 0;
}

// Widest load, in bytes, that rows of `width` elements at these addresses allow: 16, 4 for pairs of half types, or one
// element.
inline int load_bytes(int64_t width, int64_t element_size, std::initializer_list<const Tensor*> tensors) {
  if (allows(kLaneBytes, width, element_size, tensors)) return kLaneBytes;
  if (element_size == 2 && allows(4, width, element_size, tensors)) return 4;
  return int(element_size);
}

template <typename T, typename Index, typename Body>
void dispatch_bytes(int bytes, Body&& body) {
  if (bytes == kLaneBytes) return body(FeatureTypes<T, kLaneBytes, Index>{});
  if constexpr (sizeof(T) == 2) {
    if (bytes == 4) return body(FeatureTypes<T, 4, Index>{});
  }
  body(FeatureTypes<T, int(sizeof(T)), Index>{});
}

// Calls body(FeatureTypes<...>) for the dtype of x, the index dtype, and the width that x and `tensors` allow.
template <typename Body>
void dispatch_features(const Tensor& x, int64_t width, ScalarType index, std::initializer_list<const Tensor*> tensors,
                       Body&& body) {
  const auto with_index = [&](auto element) {
    using T = decltype(element);
    const int bytes = load_bytes(width, sizeof(T), tensors);
    if (index == ScalarType::Int) return dispatch_bytes<T, int32_t>(bytes, body);
    dispatch_bytes<T, int64_t>(bytes, body);
  };
  switch (x.scalar_type()) {
    case ScalarType::Float: return with_index(float{});
    case ScalarType::Double: return with_index(double{});
    case ScalarType::Half: return with_index(__half{});
    case ScalarType::BFloat16: return with_index(__nv_bfloat16{});
    default: STD_TORCH_CHECK(false, "gnnagg: features must be float32, float64, float16 or bfloat16");
  }
}

// As dispatch_features, with fewer types for kernels that are large: 16-byte loads, or kMostValues elements, where they fit, single
// elements for everything else, for double, and for 64-bit indices.
template <int kMostValues = kLaneBytes, typename Body>
void dispatch_widest(const Tensor& x, int64_t width, ScalarType index, std::initializer_list<const Tensor*> tensors,
                     Body&& body) {
  const auto with_index = [&](auto element) {
    using T = decltype(element);
    constexpr int kElement = int(sizeof(T)),
                  kWide = kLaneBytes < kMostValues * kElement ? kLaneBytes : kMostValues * kElement;
    if (index == ScalarType::Long) return body(FeatureTypes<T, kElement, int64_t>{});
    if constexpr (kElement < int(sizeof(double))) {
      if (allows(kWide, width, kElement, tensors)) return body(FeatureTypes<T, kWide, int32_t>{});
    }
    body(FeatureTypes<T, kElement, int32_t>{});
  };
  switch (x.scalar_type()) {
    case ScalarType::Float: return with_index(float{});
    case ScalarType::Double: return with_index(double{});
    case ScalarType::Half: return with_index(__half{});
    case ScalarType::BFloat16: return with_index(__nv_bfloat16{});
    default: STD_TORCH_CHECK(false, "gnnagg: features must be float32, float64, float16 or bfloat16");
  }
}

template <typename T, typename Index>
RowsView<T, Index> rows_view(const CsrArguments& csr, const FeatureShape& shape, const Tensor& x,
                             int elements_per_lane) {
  const int most_lanes = tile_lanes(csr.num_edges, csr.num_rows);
  return {csr.table<Index>(), FeatureTiles::of(shape.width, elements_per_lane, most_lanes), shape.batch, shape.rows,
          read_pointer<T>(x)};
}

// A launch with one group for every span and layer, or the whole device where that is less.
template <typename View>
LaunchPlan plan_rows(const void* kernel, const View& view, int num_phases = kReducePhases) {
  const int64_t items = view.table.num_spans * view.batch * view.tiles.tiles;
  return LaunchPlan::of(kernel, kBlockThreads, ceil_div<int64_t>(items * view.tiles.lanes, kBlockThreads), num_phases);
}

}  // namespace gnnagg::bridge
