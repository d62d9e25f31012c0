// Attention dropout: which (edge, head) is kept. Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As
// Easy as 1, 2, 3", SC 2011, so that any order of evaluation, forward or backward, CPU or CUDA, draws the same mask.
//
// Key: the 64-bit seed. Counter: (edge id low, edge id high, head / 4, 0); word head % 4 decides. Its upper 24 bits, as a
// number in [0, 1), are compared with the dropout probability.
#pragma once

#include <cstdint>

#include "common/numeric.h"

namespace gnnagg {

constexpr int kPhiloxWords = 4;
constexpr int kPhiloxRounds = 10;
// Multipliers, and what the key grows by in a round.
constexpr uint32_t kPhiloxFirstFactor = 0xD2511F53u, kPhiloxSecondFactor = 0xCD9E8D57u;
constexpr uint32_t kPhiloxFirstWeyl = 0x9E3779B9u, kPhiloxSecondWeyl = 0xBB67AE85u;

struct PhiloxWords {
  uint32_t word[kPhiloxWords];
};

GNNAGG_HOST_DEVICE PhiloxWords philox(uint64_t seed, uint64_t edge, uint32_t block) {
  uint32_t c0 = uint32_t(edge), c1 = uint32_t(edge >> 32), c2 = block, c3 = 0;
  uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
#if defined(__CUDACC__)
#pragma unroll
#endif
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t first = uint64_t(kPhiloxFirstFactor) * c0, second = uint64_t(kPhiloxSecondFactor) * c2;
    c0 = uint32_t(second >> 32) ^ c1 ^ k0;
    c2 = uint32_t(first >> 32) ^ c3 ^ k1;
    c1 = uint32_t(second);
    c3 = uint32_t(first);
    k0 += kPhiloxFirstWeyl;
    k1 += kPhiloxSecondWeyl;
  }
  return {{c0, c1, c2, c3}};
}

// Which heads of an edge are dropped. `threshold` = ceil(p * 2^24): 0 keeps every edge, 2^24 none.
struct DropoutRule {
  static constexpr int kBits = 24;
  uint64_t seed;
  uint32_t threshold;

  GNNAGG_HOST_DEVICE static uint32_t threshold_of(double p) {
    const double scaled = p * double(uint32_t(1) << kBits);
    const uint32_t floor = uint32_t(scaled);
    return double(floor) < scaled ? floor + 1 : floor;
  }
  // Factor of what is kept: 1 / (1 - p), and 0 where nothing is.
  GNNAGG_HOST_DEVICE static double scale_of(double p) { return p < 1.0 ? 1.0 / (1.0 - p) : 0.0; }

  GNNAGG_HOST_DEVICE bool keeps_word(uint32_t word) const { return (word >> (32 - kBits)) >= threshold; }
  // Bit w: whether head 4 * block + w of this edge is kept.
  GNNAGG_HOST_DEVICE uint32_t kept_of_block(int64_t edge, int64_t block) const {
    const PhiloxWords words = philox(seed, uint64_t(edge), uint32_t(block));
    uint32_t kept = 0;
    for (int w = 0; w < kPhiloxWords; ++w) kept |= uint32_t(keeps_word(words.word[w])) << w;
    return kept;
  }
  GNNAGG_HOST_DEVICE bool keeps(int64_t edge, int64_t head) const {
    return kept_of_block(edge, head / kPhiloxWords) >> (head % kPhiloxWords) & 1u;
  }
};

}  // namespace gnnagg
