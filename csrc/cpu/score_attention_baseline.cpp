// The kernels of gatv2_attention and dot_attention for the plain instruction set of the machine.
#define GNNAGG_LEVEL baseline
#include "cpu/score_attention_table.h"

namespace gnnagg::cpu {

const ScoreKernels kScoreBaseline = baseline::kScoreTable;

}  // namespace gnnagg::cpu
