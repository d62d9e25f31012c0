// dropout_mask on the CPU: the rule of common/philox.h for every edge and head.
#include "cpu/attention_host.h"

namespace gnnagg::cpu {

Tensor dropout_mask(Tensor seed, int64_t num_edges, int64_t heads, double p) {
  constexpr const char* kOp = "dropout_mask";
  constexpr int64_t kEdgesPerTurn = 1024;
  STD_TORCH_CHECK(num_edges >= 0 && heads >= 0, kOp, ": num_edges and heads must not be negative, got ", num_edges,
                  " and ", heads);
  STD_TORCH_CHECK(p >= 0.0 && p <= 1.0, kOp, ": p must be in [0, 1], got ", p);
  bridge::check_tensor(seed, kOp, "seed", ScalarType::Long, {1});
  Tensor out = bridge::empty_like_device(seed, {num_edges, heads}, ScalarType::Float);
  const DropoutRule rule = {uint64_t(*bridge::read_pointer<int64_t>(seed)), DropoutRule::threshold_of(p)};
  const float scale = float(DropoutRule::scale_of(p));
  float* mask = bridge::write_pointer<float>(out);
  bridge::parallel_items(
      num_edges, kEdgesPerTurn, num_edges * heads * int64_t(sizeof(float)), [&](int64_t begin, int64_t end) {
        for (int64_t edge = begin; edge < end; ++edge) {
          for (int64_t block = 0; block * kPhiloxWords < heads; ++block) {
            const uint32_t kept = rule.kept_of_block(edge, block);
            for (int64_t h = block * kPhiloxWords; h < heads && h < (block + 1) * kPhiloxWords; ++h) {
              mask[edge * heads + h] = kept >> (h % kPhiloxWords) & 1u ? scale : 0.0f;
            }
          }
        }
      });
  return out;
}

}  // namespace gnnagg::cpu
