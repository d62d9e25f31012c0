"""Every op in plain torch: the specification that the kernels are tested against.

Slow and memory hungry (messages are materialised); differentiable to any order; give it float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ._reference_dot import dot_attention, gatv2_attention, propagate
from ._reference_gat import dropout_mask, edge_softmax, gat_attention
from .graph import Graph

__all__ = [
    "aggregate",
    "dot_attention",
    "dropout_mask",
    "edge_dot",
    "edge_softmax",
    "edges",
    "gat_attention",
    "gatv2_attention",
    "propagate",
]


def edges(graph: Graph) -> tuple[Tensor, Tensor, Tensor]:
    """(source, target, edge id) of every live edge, in row order, int64."""
    degree = graph.rowptr.diff().long()
    target = torch.arange(graph.num_dst, device=graph.device).repeat_interleave(degree)
    live = target.size(0)
    source = graph.col[:live].long()
    edge = torch.arange(live, device=graph.device) if graph.perm is None else graph.perm[:live].long()
    return source, target, edge


def aggregate(
    x: Tensor, graph: Graph, weight: Tensor | None = None, reduce: str | Sequence[str] = "sum"
) -> Tensor | tuple[Tensor, ...]:
    """As :func:`gnnagg.aggregate`, for x ``[num_src, F]``, ``[num_src, H, C]`` or ``[B, num_src, F]``."""
    if not isinstance(reduce, str):
        return tuple(_aggregate_one(x, graph, weight, name) for name in reduce)
    return _aggregate_one(x, graph, weight, reduce)


def _aggregate_one(x: Tensor, graph: Graph, weight: Tensor | None, reduce: str) -> Tensor:
    if x.dim() == 3 and x.size(0) != graph.num_src:
        return torch.stack([_aggregate_one(each, graph, weight, reduce) for each in x])
    shape = x.shape[1:]
    source, target, edge = edges(graph)
    messages = x.flatten(1)[source]
    if weight is not None:
        heads = weight.size(1) if weight.dim() == 2 else 1
        weighted = messages.unflatten(1, (heads, -1)) * weight[edge].view(-1, heads, 1)
        messages = weighted.flatten(1)
    out = _reduce(messages, target, graph.num_dst, reduce)
    return out.unflatten(1, shape) if len(shape) > 1 else out


def _reduce(messages: Tensor, target: Tensor, num_dst: int, reduce: str) -> Tensor:
    empty = messages.new_zeros(num_dst, messages.size(1))
    total = empty.index_add(0, target, messages)
    if reduce == "sum":
        return total
    count = torch.bincount(target, minlength=num_dst).clamp(min=1).to(messages.dtype).unsqueeze(1)
    if reduce == "mean":
        return total / count
    if reduce in ("var", "std"):
        centred = messages - (total / count)[target]
        variance = empty.index_add(0, target, centred * centred) / count
        if reduce == "var":
            return variance
        root = variance.clamp(min=1e-5).sqrt()
        return root.masked_fill(variance <= 1e-5, 0.0)
    if reduce in ("max", "min"):
        # From infinity on, not from 0: torch's gradient counts an initial value that equals the result as one more tie,
        # include_self=False or not, and would lose a share of it.
        index = target.unsqueeze(1).expand_as(messages)
        worst = -math.inf if reduce == "max" else math.inf
        name = "amax" if reduce == "max" else "amin"
        is_empty = (torch.bincount(target, minlength=num_dst) == 0).unsqueeze(1)
        out: Tensor = (empty + worst).scatter_reduce(0, index, messages, name).masked_fill(is_empty, 0.0)
        return out
    raise ValueError(f"reference: unknown reduce {reduce!r}")


def edge_dot(a: Tensor, b: Tensor, graph: Graph, heads: int = 1) -> Tensor:
    """As :func:`gnnagg.edge_dot.edge_dot`, for ``[N, F]`` inputs."""
    source, target, edge = edges(graph)
    product: Tensor = (a[target] * b[source]).unflatten(1, (heads, -1)).sum(-1)
    return product.new_zeros(graph.num_edges, heads).index_copy(0, edge, product)
