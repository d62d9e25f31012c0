// The kernels of gatv2_attention and dot_attention for AVX-512 F, BW, DQ and VL; CMakeLists.txt gives this file its flags.
#if defined(__x86_64__)
#define GNNAGG_LEVEL avx512
#include "cpu/score_attention_table.h"

namespace gnnagg::cpu {

const ScoreKernels kScoreAvx512 = avx512::kScoreTable;

}  // namespace gnnagg::cpu
#endif
