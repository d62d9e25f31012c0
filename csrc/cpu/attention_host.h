// What the host sides of the attention ops share: the dropout rule from its operands.
#pragma once

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

}  // namespace gnnagg::cpu
