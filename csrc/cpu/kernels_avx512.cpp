// The kernels for AVX-512 F, BW, DQ and VL; CMakeLists.txt gives this file its flags.
#if defined(__x86_64__)
#define GNNAGG_LEVEL avx512
#include "cpu/kernel_table.h"

namespace gnnagg::cpu {

const Kernels kKernelsAvx512 = avx512::kTable;

}  // namespace gnnagg::cpu
#endif
