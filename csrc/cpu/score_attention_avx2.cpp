// The kernels of gatv2_attention and dot_attention for AVX2 with FMA and F16C; CMakeLists.txt gives this file its flags.
#if defined(__x86_64__)
#define GNNAGG_LEVEL avx2
#include "cpu/score_attention_table.h"

namespace gnnagg::cpu {

const ScoreKernels kScoreAvx2 = avx2::kScoreTable;

}  // namespace gnnagg::cpu
#endif
