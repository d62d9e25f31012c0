// The kernels of gat_attention and edge_softmax for the plain instruction set of the machine.
#define GNNAGG_LEVEL baseline
#include "cpu/gat_attention_table.h"

namespace gnnagg::cpu {

const AttentionKernels kAttentionBaseline = baseline::kAttentionTable;

}  // namespace gnnagg::cpu
