// The kernels of gat_attention and edge_softmax for AVX2 with FMA and F16C; CMakeLists.txt gives this file its flags.
#if defined(__x86_64__)
#define GNNAGG_LEVEL avx2
#include "cpu/gat_attention_table.h"

namespace gnnagg::cpu {

const AttentionKernels kAttentionAvx2 = avx2::kAttentionTable;

}  // namespace gnnagg::cpu
#endif
