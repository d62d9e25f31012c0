// What the host sides of the attention ops share: the dropout rule from its operands, results of removed edges.
#pragma once

#include <cstring>

#include "common/philox.h"
#include "cpu/gat_attention_args.h"
#include "cpu/ops.h"

namespace gnnagg::cpu {

inline DropoutArgs dropout_args(const char* op, const OptionalTensor& seed, double dropout) {
  STD_TORCH_CHECK(dropout >= 0.0 && dropout <= 1.0, op, ": dropout must be in [0, 1], got ", dropout);
  if (dropout == 0.0) return {false, 0, 0, 1.0};
  STD_TORCH_CHECK(seed.has_value(), op, ": dropout needs a seed");
  bridge::check_tensor(*seed, op, "seed", ScalarType::Long, {1});
  return {true, uint64_t(*bridge::read_pointer<int64_t>(*seed)), DropoutRule::threshold_of(dropout),
          DropoutRule::scale_of(dropout)};
}

inline int64_t element_bytes(ScalarType type) {
  return type == ScalarType::Double ? 8 : type == ScalarType::Float ? 4 : 2;
}

// Slots behind rowptr[R] are removed edges: their rows of `out` [E, ...] become 0.
template <typename Index>
void clear_removed_edges(const Tensor& rowptr, const OptionalTensor& perm, int64_t num_edges, Tensor& out) {
  const int64_t live = bridge::read_pointer<Index>(rowptr)[rowptr.numel() - 1];
  if (live >= num_edges) return;
  const Index* ids = bridge::read_pointer<Index>(perm);
  const int64_t bytes = out.numel() / num_edges * element_bytes(out.scalar_type());
  char* to = static_cast<char*>(out.mutable_data_ptr());
  for (int64_t slot = live; slot < num_edges; ++slot) {
    std::memset(to + (ids ? int64_t(ids[slot]) : slot) * bytes, 0, size_t(bytes));
  }
}

inline void clear_removed_edges(const Tensor& rowptr, const OptionalTensor& perm, int64_t num_edges, Tensor& out) {
  if (rowptr.scalar_type() == ScalarType::Long) {
    clear_removed_edges<int64_t>(rowptr, perm, num_edges, out);
  } else {
    clear_removed_edges<int32_t>(rowptr, perm, num_edges, out);
  }
}

}  // namespace gnnagg::cpu
