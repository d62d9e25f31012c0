// Which function implements which op on the CPU. The schemas are declared in Python, each on its op's page.
#include "cpu/ops.h"

STABLE_TORCH_LIBRARY_IMPL(gnnagg, CPU, m) {
  m.impl("csr_from_coo", TORCH_BOX(&gnnagg::cpu::csr_from_coo));
  m.impl("csr_transpose", TORCH_BOX(&gnnagg::cpu::csr_transpose));
  m.impl("build_spans", TORCH_BOX(&gnnagg::cpu::build_spans));
  m.impl("aggregate_sum", TORCH_BOX(&gnnagg::cpu::aggregate_sum));
  m.impl("aggregate_extremum", TORCH_BOX(&gnnagg::cpu::aggregate_extremum));
  m.impl("extremum_backward", TORCH_BOX(&gnnagg::cpu::extremum_backward));
  m.impl("aggregate_multi", TORCH_BOX(&gnnagg::cpu::aggregate_multi));
  m.impl("edge_dot", TORCH_BOX(&gnnagg::cpu::edge_dot));
  m.impl("dropout_mask", TORCH_BOX(&gnnagg::cpu::dropout_mask));
  m.impl("edge_softmax", TORCH_BOX(&gnnagg::cpu::edge_softmax));
  m.impl("edge_softmax_backward", TORCH_BOX(&gnnagg::cpu::edge_softmax_backward));
  m.impl("gat_attention", TORCH_BOX(&gnnagg::cpu::gat_attention));
  m.impl("gat_attention_backward", TORCH_BOX(&gnnagg::cpu::gat_attention_backward));
  m.impl("gatv2_attention", TORCH_BOX(&gnnagg::cpu::gatv2_attention));
  m.impl("gatv2_attention_backward", TORCH_BOX(&gnnagg::cpu::gatv2_attention_backward));
  m.impl("dot_attention", TORCH_BOX(&gnnagg::cpu::dot_attention));
  m.impl("dot_attention_backward", TORCH_BOX(&gnnagg::cpu::dot_attention_backward));
  m.impl("propagate", TORCH_BOX(&gnnagg::cpu::propagate));
}
