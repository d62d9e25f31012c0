"""Additive attention, the softmax over edges and the dropout mask, in plain torch; part of gnnagg.reference."""

from __future__ import annotations

import math
from typing import Literal, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from .graph import Graph

__all__ = ["dropout_mask", "edge_softmax", "gat_attention"]


@overload
def gat_attention(
    z: Tensor,
    a_src: Tensor,
    a_dst: Tensor | None,
    graph: Graph,
    *,
    edge_score: Tensor | None = None,
    negative_slope: float = 0.2,
    mask: Tensor | None = None,
    return_alpha: Literal[False] = False,
) -> Tensor: ...
@overload
def gat_attention(
    z: Tensor,
    a_src: Tensor,
    a_dst: Tensor | None,
    graph: Graph,
    *,
    edge_score: Tensor | None = None,
    negative_slope: float = 0.2,
    mask: Tensor | None = None,
    return_alpha: bool,
) -> Tensor | tuple[Tensor, Tensor]: ...
def gat_attention(
    z: Tensor,
    a_src: Tensor,
    a_dst: Tensor | None,
    graph: Graph,
    *,
    edge_score: Tensor | None = None,
    negative_slope: float = 0.2,
    mask: Tensor | None = None,
    return_alpha: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """As :func:`gnnagg.gat_attention`, with ``mask [num_edges, H]`` in place of dropout: it multiplies alpha."""
    from .reference import edges

    source, target, edge = edges(graph)
    before = a_src[source]
    if a_dst is not None:
        before = before + a_dst[target]
    if edge_score is not None:
        before = before + edge_score[edge]
    score = F.leaky_relu(before, negative_slope)
    placed = score.new_zeros(graph.num_edges, score.size(1)).index_copy(0, edge, score)
    alpha = edge_softmax(placed, graph)
    weight = alpha if mask is None else alpha * mask
    messages = weight[edge].unsqueeze(2) * z[source]
    out = messages.new_zeros(graph.num_dst, *z.shape[1:]).index_add(0, target, messages)
    return (out, alpha) if return_alpha else out


def edge_softmax(score: Tensor, graph: Graph) -> Tensor:
    """As :func:`gnnagg.edge_softmax`."""
    from .reference import edges

    _, target, edge = edges(graph)
    live = score[edge]
    index = target.view(-1, *[1] * (score.dim() - 1)).expand_as(live)
    lowest = live.new_full((graph.num_dst, *live.shape[1:]), -math.inf)
    highest = lowest.scatter_reduce(0, index, live.detach(), "amax")
    weight = (live - highest[target]).exp()
    total = torch.zeros_like(lowest).index_add(0, target, weight)
    alpha = weight / (total[target] + 1e-16)
    return score.new_zeros(score.shape).index_copy(0, edge, alpha)


def dropout_mask(seed: Tensor | int, num_edges: int, heads: int, dropout: float) -> Tensor:
    """As :func:`gnnagg.dropout_mask.dropout_mask`: Philox4x32-10 in 64-bit arithmetic."""
    key = int(seed) & (2**64 - 1)
    words = 4
    blocks = -(-heads // words)
    edge = torch.arange(num_edges, dtype=torch.int64).unsqueeze(1).expand(num_edges, blocks)
    c = [edge & _LOW, edge >> 32, torch.arange(blocks).expand(num_edges, blocks), torch.zeros_like(edge)]
    keys = [key & _LOW, key >> 32]
    for _ in range(10):
        (first_high, first_low), (second_high, second_low) = _product(0xD2511F53, c[0]), _product(0xCD9E8D57, c[2])
        c = [second_high ^ c[1] ^ keys[0], second_low, first_high ^ c[3] ^ keys[1], first_low]
        keys = [(keys[0] + 0x9E3779B9) & _LOW, (keys[1] + 0xBB67AE85) & _LOW]
    word = torch.stack(c, 2).flatten(1)[:, :heads]
    kept = (word >> 8) >= math.ceil(dropout * 2**24)
    return kept.float() / (1.0 - dropout) if dropout < 1.0 else torch.zeros(num_edges, heads)


_LOW = 2**32 - 1


def _product(factor: int, value: Tensor) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of ``factor * value``, both below 2**32; in halves, as int64 is signed."""
    low, high = value & 0xFFFF, value >> 16
    first, second = factor * low, factor * high  # each below 2**48
    total = second + (first >> 16)
    return total >> 16, ((total & 0xFFFF) << 16) | (first & 0xFFFF)
