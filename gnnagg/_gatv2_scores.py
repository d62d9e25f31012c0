"""Scores of gatv2_attention as a tensor of every edge and head: for the attention weights that a caller asks for.

Made of differentiable gathers, a few features of all edges at a time, so that nothing of every edge and feature exists.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ._attention import edge_gather
from ._registration import being_traced
from .graph import Graph

__all__ = ["gatv2_scores"]

# Features whose edge terms exist at once while attention weights are computed for the caller.
_FEATURES_AT_ONCE = 16


def gatv2_scores(
    left: Tensor,
    right: Tensor,
    att: Tensor,
    attr: Tensor | None,
    matrix: Tensor | None,
    graph: Graph,
    negative_slope: float,
) -> Tensor:
    """``[num_edges, H]``, a few features of all edges at a time; backward computes them again."""
    heads, channels = att.shape
    lefts, rights = left.view(-1, heads, channels), right.view(-1, heads, channels)
    matrices = None if matrix is None else matrix.view(heads, channels, -1)
    channels_at_once, heads_at_once = min(channels, _FEATURES_AT_ONCE), max(1, _FEATURES_AT_ONCE // channels)
    recomputed = torch.is_grad_enabled() and not being_traced()
    parts = []
    for head in range(0, heads, heads_at_once):
        h = slice(head, min(head + heads_at_once, heads))
        total: Tensor | None = None
        for channel in range(0, channels, channels_at_once):
            c = slice(channel, min(channel + channels_at_once, channels))
            arguments = (
                graph,
                negative_slope,
                lefts[:, h, c].flatten(1),
                rights[:, h, c].flatten(1),
                att[h, c],
                attr,
                None if matrices is None else matrices[h, c].flatten(0, 1),
            )
            score: Tensor = (
                checkpoint(_partial_scores, *arguments, use_reentrant=False, preserve_rng_state=False)
                if recomputed
                else _partial_scores(*arguments)
            )
            total = score if total is None else total + score
        assert total is not None
        parts.append(total)
    return torch.cat(parts, 1)


def _partial_scores(
    graph: Graph,
    negative_slope: float,
    left: Tensor,
    right: Tensor,
    att: Tensor,
    attr: Tensor | None,
    matrix: Tensor | None,
) -> Tensor:
    """``[num_edges, h]``: what the features ``[h, c]`` of ``att`` add to the scores."""
    wide, device = att.dtype, att.device.type
    u = edge_gather(left, graph, "source").to(wide) + edge_gather(right, graph, "target").to(wide)
    if attr is not None and matrix is not None:
        with torch.autocast(device, enabled=False):
            u = u + attr.to(wide) @ matrix.t()
    score: Tensor = (F.leaky_relu(u, negative_slope).unflatten(1, att.shape) * att).sum(-1)
    return score
