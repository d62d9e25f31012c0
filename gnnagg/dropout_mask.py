"""dropout_mask: the attention dropout of every edge and head, written out.

The attention kernels draw the same numbers again wherever they need them, forward and backward, and store none: a
counter-based generator (Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011) keyed by
the seed, counting edge ids and heads. This page is for whoever needs the mask as a tensor: second derivatives, tests.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ._registration import declare

__all__ = ["dropout_mask"]


def dropout_mask(seed: Tensor, num_edges: int, heads: int, dropout: float) -> Tensor:
    """``[num_edges, heads]`` float32: ``1 / (1 - dropout)`` where an edge and head is kept, else 0.

    Args:
        seed: ``[1]`` int64; the mask is made on its device.
        num_edges: edge ids are below this.
        heads: attention heads.
        dropout: probability in [0, 1] that an entry is 0; with 1 all are.
    """
    result: Tensor = torch.ops.gnnagg.dropout_mask(seed, num_edges, heads, dropout)
    return result


# --- schema and fake -----------------------------------------------------------------------------------------------


@declare("dropout_mask", "(Tensor seed, SymInt num_edges, SymInt heads, float p) -> Tensor")
def _dropout_mask_fake(seed: Tensor, num_edges: int, heads: int, p: float) -> Tensor:
    return seed.new_empty((num_edges, heads), dtype=torch.float32)
