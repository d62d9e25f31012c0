// The kernels for the plain instruction set of the machine.
#define GNNAGG_LEVEL baseline
#include "cpu/kernel_table.h"

namespace gnnagg::cpu {

const Kernels kKernelsBaseline = baseline::kTable;

}  // namespace gnnagg::cpu
