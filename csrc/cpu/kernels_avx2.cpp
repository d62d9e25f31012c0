// The kernels for AVX2 with FMA and F16C; CMakeLists.txt gives this file its flags.
#if defined(__x86_64__)
#define GNNAGG_LEVEL avx2
#include "cpu/kernel_table.h"

namespace gnnagg::cpu {

const Kernels kKernelsAvx2 = avx2::kTable;

}  // namespace gnnagg::cpu
#endif
