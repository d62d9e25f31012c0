"""gatv2_attention, dot_attention and propagate in plain torch: see reference.py, which gives them out."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._reference_gat import edge_softmax
from .graph import Graph

__all__ = ["dot_attention", "dot_rows", "gatv2_attention", "propagate"]


def gatv2_attention(
    l: Tensor,  # noqa: E741
    r: Tensor,
    att: Tensor,
    graph: Graph,
    *,
    edge_attr: Tensor | None = None,
    edge_weight_matrix: Tensor | None = None,
    negative_slope: float = 0.2,
    mask: Tensor | None = None,
    return_alpha: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """As :func:`gnnagg.gatv2_attention`, with the multiplier of every attention weight ``mask [E, H]`` for dropout."""
    source, target, edge = _edges(graph)
    u = l[source] + r[target]
    if edge_attr is not None and edge_weight_matrix is not None:
        u = u + _per_edge(edge_attr, edge_weight_matrix, l.size(1))[edge]
    score = (torch.nn.functional.leaky_relu(u, negative_slope) * att).sum(-1)
    return _attend(score, l[source], graph, mask, return_alpha)


def dot_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    graph: Graph,
    *,
    edge_attr: Tensor | None = None,
    edge_weight_matrix: Tensor | None = None,
    scale: float | None = None,
    mask: Tensor | None = None,
    return_alpha: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """As :func:`gnnagg.dot_attention`, with the multiplier of every attention weight ``mask [E, H]`` for dropout."""
    source, target, edge = _edges(graph)
    key, value = k[source], v[source]
    if edge_attr is not None and edge_weight_matrix is not None:
        term = _per_edge(edge_attr, edge_weight_matrix, q.size(1))[edge]
        key, value = key + term, value + term
    score = (q[target] * key).sum(-1) * (1 / math.sqrt(q.size(2)) if scale is None else scale)
    return _attend(score, value, graph, mask, return_alpha)


def dot_rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    edge_query: Tensor | None,
    edge_attr: Tensor | None,
    graph: Graph,
    heads: int,
    scale: float,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """As the op ``gnnagg::dot_attention``, which takes features ``[N, H * C]``: its out and its edge_out."""
    source, target, edge = _edges(graph)
    q, k, v = (features.unflatten(1, (heads, -1)) for features in (q, k, v))
    score = (q[target] * k[source]).sum(-1)
    value = v[source]
    if edge_query is not None and edge_attr is not None:
        attr = edge_attr[edge].unsqueeze(1)
        score = score + (edge_query[target] * attr).sum(-1)
        value = torch.cat([value, attr.expand(-1, heads, -1)], 2)
    out = _attend(score * scale, value, graph, mask, False)
    assert isinstance(out, Tensor)
    if edge_query is None:
        return out.flatten(1), None
    channels = q.size(2)
    return out[..., :channels].flatten(1), out[..., channels:]


def propagate(
    x: Tensor,
    graph: Graph,
    hops: int,
    *,
    weight: Tensor | None = None,
    teleport: float = 0.0,
    x0: Tensor | None = None,
    return_all: bool = False,
) -> Tensor:
    """As :func:`gnnagg.propagate`."""
    source, target, edge = _edges(graph)
    origin = x if x0 is None else x0
    all_hops = [x]
    for _ in range(hops):
        messages = all_hops[-1][source]
        if weight is not None:
            messages = messages * weight[edge].unsqueeze(1)
        arrived = torch.zeros_like(x).index_add(0, target, messages)
        all_hops.append((1 - teleport) * arrived + teleport * origin)
    return torch.stack(all_hops) if return_all else all_hops[-1]


def _edges(graph: Graph) -> tuple[Tensor, Tensor, Tensor]:
    from .reference import edges

    return edges(graph)


def _per_edge(edge_attr: Tensor, edge_weight_matrix: Tensor, heads: int) -> Tensor:
    """``W e`` of every edge, ``[E, H, C]``."""
    attr = edge_attr.unsqueeze(1) if edge_attr.dim() == 1 else edge_attr
    term: Tensor = (attr @ edge_weight_matrix.t()).unflatten(1, (heads, -1))
    return term


def _attend(
    score: Tensor, value: Tensor, graph: Graph, mask: Tensor | None, return_alpha: bool
) -> Tensor | tuple[Tensor, Tensor]:
    """Softmax of ``score [live, H]`` over every row, and the weighted sum of ``value [live, H, C]``; in row order."""
    _, target, edge = _edges(graph)
    alpha = edge_softmax(score.new_zeros(graph.num_edges, score.size(1)).index_copy(0, edge, score), graph)
    weight = (alpha if mask is None else alpha * mask)[edge]
    out = value.new_zeros(graph.num_dst, *value.shape[1:]).index_add(0, target, value * weight.unsqueeze(-1))
    return (out, alpha) if return_alpha else out
