// The kernels of gat_attention and edge_softmax for AVX-512 F, BW, DQ and VL; CMakeLists.txt gives this file its flags.
#if defined(__x86_64__)
#define GNNAGG_LEVEL avx512
#include "cpu/gat_attention_table.h"

namespace gnnagg::cpu {

const AttentionKernels kAttentionAvx512 = avx512::kAttentionTable;

}  // namespace gnnagg::cpu
#endif
