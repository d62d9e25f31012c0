// Small wrappers over the stable Tensor: typed pointers, the shape and dtype checks that memory safety needs,
// allocation. Messages for users are raised in Python; these name the op and the argument for a direct caller.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <cstdint>
#include <initializer_list>
#include <optional>

namespace gnnagg::bridge {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;

inline ScalarType accumulate_type(ScalarType type) {
  return type == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

inline bool is_feature_type(ScalarType type) {
  return type == ScalarType::Float || type == ScalarType::Double || type == ScalarType::Half ||
         type == ScalarType::BFloat16;
}

inline bool is_index_type(ScalarType type) { return type == ScalarType::Int || type == ScalarType::Long; }

// Sizes where -1 stands for any.
inline void check_tensor(const Tensor& tensor, const char* op, const char* name, ScalarType type,
                         std::initializer_list<int64_t> sizes) {
  STD_TORCH_CHECK(tensor.scalar_type() == type, op, ": ", name, " has the wrong dtype");
  STD_TORCH_CHECK(tensor.is_contiguous(), op, ": ", name, " must be contiguous");
  STD_TORCH_CHECK(tensor.dim() == int64_t(sizes.size()), op, ": ", name, " must be ", sizes.size(), "-D, got ",
                  tensor.dim(), "-D");
  int64_t dim = 0;
  for (const int64_t expected : sizes) {
    const int64_t got = tensor.size(dim);
    STD_TORCH_CHECK(expected < 0 || got == expected, op, ": ", name, " must have size ", expected, " in dimension ",
                    dim, ", got ", got);
    ++dim;
  }
}

inline Tensor empty_like_device(const Tensor& like, std::initializer_list<int64_t> sizes, ScalarType type) {
  return torch::stable::new_empty(like, torch::headeronly::IntHeaderOnlyArrayRef(sizes.begin(), sizes.size()), type);
}

inline Tensor zeros_like_device(const Tensor& like, std::initializer_list<int64_t> sizes, ScalarType type) {
  return torch::stable::new_zeros(like, torch::headeronly::IntHeaderOnlyArrayRef(sizes.begin(), sizes.size()), type);
}

template <typename T>
const T* read_pointer(const Tensor& tensor) {
  return static_cast<const T*>(tensor.const_data_ptr());
}

template <typename T>
const T* read_pointer(const OptionalTensor& tensor) {
  return tensor.has_value() ? static_cast<const T*>(tensor->const_data_ptr()) : nullptr;
}

template <typename T>
T* write_pointer(const Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}

// The features of an op: [num_src, F], or [B, num_src, F] with B read as 1 for the former.
struct FeatureShape {
  int64_t batch, rows, width;

  FeatureShape(const Tensor& x, const char* op, const char* name) {
    STD_TORCH_CHECK(is_feature_type(x.scalar_type()), op, ": ", name, " must be float32, float64, float16 or bfloat16");
    STD_TORCH_CHECK(x.dim() == 2 || x.dim() == 3, op, ": ", name, " must be 2-D or 3-D, got ", x.dim(), "-D");
    STD_TORCH_CHECK(x.is_contiguous(), op, ": ", name, " must be contiguous");
    const bool batched = x.dim() == 3;
    batch = batched ? x.size(0) : 1;
    rows = x.size(batched ? 1 : 0);
    width = x.size(batched ? 2 : 1);
  }
};

// [rows, width], or [batch, rows, width] when `like` is 3-D.
inline Tensor empty_rows(const Tensor& like, int64_t rows, int64_t width, ScalarType type) {
  if (like.dim() == 3) return empty_like_device(like, {like.size(0), rows, width}, type);
  return empty_like_device(like, {rows, width}, type);
}

inline Tensor zeros_rows(const Tensor& like, int64_t rows, int64_t width, ScalarType type) {
  if (like.dim() == 3) return zeros_like_device(like, {like.size(0), rows, width}, type);
  return zeros_like_device(like, {rows, width}, type);
}

// Checks the tensors of one CSR and its schedule against each other; returns their index dtype.
inline ScalarType check_csr(const Tensor& rowptr, const Tensor& col, const char* op) {
  const ScalarType index = rowptr.scalar_type();
  STD_TORCH_CHECK(is_index_type(index), op, ": rowptr must be int32 or int64");
  check_tensor(rowptr, op, "rowptr", index, {-1});
  check_tensor(col, op, "col", index, {-1});
  STD_TORCH_CHECK(rowptr.numel() >= 1, op, ": rowptr must be [num_rows + 1], got [0]");
  return index;
}

inline int64_t check_schedule(const Tensor& spans, ScalarType index, const char* op) {
  check_tensor(spans, op, "spans", index, {-1, 2});
  STD_TORCH_CHECK(spans.size(0) >= 2, op, ": spans must be [num_spans + 1, 2] with num_spans >= 1");
  return spans.size(0) - 1;
}

}  // namespace gnnagg::bridge
