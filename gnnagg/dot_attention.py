"""dot_attention: scaled dot-product attention over the edges of a graph, without a tensor per edge.

Shi et al., "Masked Label Prediction", IJCAI 2021 (TransformerConv). Running softmax as in gatv2_attention. Edge
features enter keys and values after projection by W; since ``q . (k + W e) = q . k + (W' q) . e`` and
``sum alpha (v + W e) = sum alpha v + W sum alpha e``, the kernels see the features themselves, D of them for each edge,
and the projections are made per node.
"""

from __future__ import annotations

import math
from typing import Any, Literal, overload

import torch
from torch import Tensor

from ._attention import as_heads, as_number, as_seed, check_dropout, check_graph, dropped_edges
from ._edge_features import as_edge_features
from ._head_products import project
from ._operands import (
    TRANSPOSE,
    accumulate_dtype,
    attention_gradient_operands,
    graph_from_operands,
    row_bytes,
    transpose_operands,
)
from ._reference_dot import dot_rows
from ._registration import being_traced, declare, differentiable
from ._second_derivatives import second_derivatives
from .edge_dot import edge_dot
from .edge_softmax import edge_softmax
from .graph import Graph
from .schedule import ATTENTION_THREADS

__all__ = ["dot_attention"]


@overload
def dot_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    graph: Graph,
    *,
    edge_attr: Tensor | None = None,
    edge_weight_matrix: Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    seed: Tensor | int | None = None,
    return_alpha: Literal[False] = False,
) -> Tensor: ...
@overload
def dot_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    graph: Graph,
    *,
    edge_attr: Tensor | None = None,
    edge_weight_matrix: Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    seed: Tensor | int | None = None,
    return_alpha: bool,
) -> Tensor | tuple[Tensor, Tensor]: ...
def dot_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    graph: Graph,
    *,
    edge_attr: Tensor | None = None,
    edge_weight_matrix: Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    seed: Tensor | int | None = None,
    return_alpha: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Returns ``out[i] = sum over edges e = (j -> i) of alpha[e] * mask[e] * (v[j] + W e)``, per head.

    ``alpha`` is the softmax over the edges of i of ``scale * sum over c of (q[i] * (k[j] + W e))[c]``.

    Args:
        q: ``[num_dst, H, C]``, float32, float64, float16 or bfloat16, on the graph's device.
        k: ``[num_src, H, C]``.
        v: ``[num_src, H, C]``. Where the dtypes of q, k and v differ, they are promoted.
        graph: plan of the edges, see :class:`gnnagg.Graph`.
        edge_attr: ``[num_edges, D]`` or ``[num_edges]`` floating point, in the caller's edge order; taken in the dtype
            of the features. Together with edge_weight_matrix or not at all.
        edge_weight_matrix: W, ``[H * C, D]`` floating point.
        scale: None is ``1 / sqrt(C)``.
        dropout: probability in [0, 1] that an (edge, head) is left out; what stays is divided by 1 - dropout.
        seed: int64 tensor ``[1]`` on the device, or an int; the same seed drops the same edges. None draws one from
            torch's generator of the device.
        return_alpha: also returns the attention weights, before dropout.

    Returns:
        ``[num_dst, H, C]`` in the dtype of q; 0 for an empty neighbourhood. With return_alpha, (out, alpha) with alpha
        ``[num_edges, H]`` float32 (float64 for float64) in the caller's edge order. A score of -inf beside finite ones
        weighs 0; scores that are all -inf, or hold +inf or NaN, give NaN.

    Raises:
        TypeError: an argument is not a floating-point tensor.
        ValueError: shape, device or dropout does not fit.

    Gradients reach q, k, v, edge_attr and edge_weight_matrix. Sums are kept in float32 (float64 for float64). Forward
    and backward are deterministic, and keep no tensor per edge; on CUDA backward, and with edge_attr both directions,
    use workspaces of ``[num_edges, H, 2]``. Second derivatives hold several of ``[num_edges, H, C]``. Runs in the
    dtype of q under autocast.

    Example:
        >>> edge_index = torch.tensor([[0, 1, 2], [1, 1, 0]])
        >>> graph = gnnagg.Graph.from_edge_index(edge_index, size=(3, 3))
        >>> ones = torch.ones(3, 2, 4)
        >>> gnnagg.dot_attention(ones, ones, ones, graph)[:, 0, 0].tolist()
        [1.0, 1.0, 0.0]
    """
    name = "dot_attention"
    check_graph(name, graph)
    query = as_heads(name, "q", q, "num_dst", graph)
    key, value = as_heads(name, "k", k, "num_src", graph), as_heads(name, "v", v, "num_src", graph)
    heads, channels = q.size(1), q.size(2)
    for arg, given in (("k", k), ("v", v)):
        if given.size(1) != heads or given.size(2) != channels:
            raise ValueError(
                f"{name}: {arg} must be [num_src, H, C] with [H, C] = {[heads, channels]} of q, got {list(given.shape)}"
            )
    if query.dtype != key.dtype or query.dtype != value.dtype:
        dtype = torch.promote_types(torch.promote_types(query.dtype, key.dtype), value.dtype)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    attr, matrix = as_edge_features(name, edge_attr, edge_weight_matrix, query, graph)
    scale = 1 / math.sqrt(channels) if scale is None else as_number(name, "scale", scale)
    dropout = check_dropout(name, dropout)
    drawn = as_seed(name, seed, dropout, graph.device)
    wide = accumulate_dtype(query.dtype)
    edge_query = None
    if matrix is not None:
        matrix = matrix.view(heads, channels, -1)
        edge_query = project(query.view(-1, heads, channels).to(wide), matrix).contiguous()
    traced = being_traced()
    schedule = graph.csr.schedule(row_bytes(query), ATTENTION_THREADS)
    rows, _, edge_out = _call(
        graph,
        query,
        key,
        value,
        edge_query,
        attr,
        graph.rowptr,
        graph.col,
        schedule.spans,
        schedule.splits,
        None if attr is None and drawn is None else graph.perm,
        drawn,
        heads,
        scale,
        dropout,
        *transpose_operands(graph, query, traced),
    )
    out: Tensor = rows.view(-1, heads, channels)
    if matrix is not None:
        out = (out.to(wide) + project(edge_out, matrix.transpose(1, 2))).to(query.dtype)
    if not return_alpha:
        return out
    return out, edge_softmax(_scores(query, key, edge_query, attr, graph, heads, scale), graph)


def _scores(
    query: Tensor, key: Tensor, edge_query: Tensor | None, attr: Tensor | None, graph: Graph, heads: int, scale: float
) -> Tensor:
    """``[num_edges, heads]`` in the accumulate dtype, in edge order."""
    score = edge_dot(query, key, graph, heads)
    if edge_query is not None and attr is not None:
        # Every edge is its own source here; the results come in the order of slots.
        edges, rows = graph.edge_view(), attr.to(edge_query.dtype)
        term = torch.cat([edge_dot(edge_query[:, head].contiguous(), rows, edges) for head in range(heads)], 1)
        score = score + (term if graph.perm is None else torch.empty_like(term).index_copy(0, graph.perm.long(), term))
    return score * scale


# --- schemas and fakes ---------------------------------------------------------------------------------------------


@declare(
    "dot_attention",
    "(Tensor q, Tensor k, Tensor v, Tensor? edge_query, Tensor? edge_attr, Tensor rowptr, Tensor col, Tensor spans, "
    "Tensor splits, Tensor? perm, Tensor? seed, SymInt heads, float scale, float dropout, "
    f"{TRANSPOSE}) -> (Tensor, Tensor, Tensor)",
)
def _dot_attention_fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    edge_query: Tensor | None,
    edge_attr: Tensor | None,
    rowptr: Tensor,
    col: Tensor,
    spans: Tensor,
    splits: Tensor,
    perm: Tensor | None,
    seed: Tensor | None,
    heads: int,
    *rest: Any,
    **named: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    wide = accumulate_dtype(q.dtype)
    return (
        q.new_empty(q.shape),
        q.new_empty((q.size(0), heads), dtype=wide),
        q.new_empty((0,) if edge_query is None else edge_query.shape, dtype=wide),
    )


@declare(
    "dot_attention_backward",
    "(Tensor grad, Tensor grad_edge_out, Tensor q, Tensor k, Tensor v, Tensor? edge_query, Tensor? edge_attr, "
    "Tensor out, Tensor lse, Tensor edge_out, Tensor rowptr, Tensor col, Tensor spans, Tensor splits, Tensor? perm, "
    "Tensor t_rowptr, Tensor t_col, Tensor t_slot, Tensor t_spans, Tensor t_splits, Tensor? seed, SymInt heads, "
    "float scale, float dropout) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _dot_attention_backward_fake(
    grad: Tensor,
    grad_edge_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    edge_query: Tensor | None,
    edge_attr: Tensor | None,
    *rest: Any,
    **named: Any,
) -> tuple[Tensor, ...]:
    wide = accumulate_dtype(q.dtype)
    return (
        q.new_empty(q.shape),
        k.new_empty(k.shape),
        v.new_empty(v.shape),
        q.new_empty((0,) if edge_query is None else edge_query.shape, dtype=wide),
        q.new_empty((0,) if edge_attr is None else edge_attr.shape),
    )


# --- autograd ------------------------------------------------------------------------------------------------------


def _graph_of(args: tuple[Any, ...]) -> Graph:
    key, (rowptr, col, spans, splits, perm) = args[1], args[5:10]
    return graph_from_operands(key, rowptr, col, spans, splits, perm, args[14:])


def _save(ctx: Any, args: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    # The inputs, and what the rows gave: nothing per edge.
    ctx.save_for_backward(*args[:5], *output, args[10])
    ctx.heads, ctx.scale, ctx.dropout = args[11:14]
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: Tensor | None, _: Tensor | None, grad_edge_out: Tensor | None) -> tuple[Any, ...]:
    if grad is None and grad_edge_out is None:
        return (None,) * 19
    query, key, value, edge_query, attr, out, lse, edge_out, seed = ctx.saved_tensors
    graph: Graph = ctx.graph
    grads = _call_backward(
        graph,
        torch.zeros_like(out) if grad is None else grad.contiguous(),
        torch.zeros_like(edge_out) if grad_edge_out is None else grad_edge_out.contiguous(),
        query,
        key,
        value,
        edge_query,
        attr,
        out,
        lse,
        edge_out,
        *attention_gradient_operands(graph, query, attr is not None or seed is not None),
        seed,
        ctx.heads,
        ctx.scale,
        ctx.dropout,
    )
    wanted = [each if need else None for each, need in zip(grads, ctx.needs[:5], strict=True)]
    return (*wanted, *(None,) * 14)


def _graph_of_backward(args: tuple[Any, ...]) -> Graph:
    key, (rowptr, col, spans, splits, perm) = args[3], args[10:15]
    return graph_from_operands(key, rowptr, col, spans, splits, perm, args[15:20])


def _save_backward(ctx: Any, args: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*args[:7], args[20])
    ctx.heads, ctx.scale, ctx.dropout = args[21:24]
    ctx.set_materialize_grads(False)


def _backward_of_backward(ctx: Any, *seconds: Tensor | None) -> tuple[Any, ...]:
    """Differentiates the reference twice, E * F memory; the parts of out, lse and edge_out are in it."""
    *grads, query, key, value, edge_query, attr, seed = ctx.saved_tensors
    graph: Graph = ctx.graph
    wide = accumulate_dtype(query.dtype)
    mask = dropped_edges(seed, graph, ctx.heads, ctx.dropout, wide)

    def function(
        query: Tensor, key: Tensor, value: Tensor, edge_query: Tensor | None, attr: Tensor | None
    ) -> list[Tensor]:
        out, edge_out = dot_rows(query, key, value, edge_query, attr, graph, ctx.heads, ctx.scale, mask)
        return [out] if edge_out is None else [out, edge_out]

    has_edges = edge_query is not None
    inputs = [query, key, value, edge_query, attr]
    results = second_derivatives(function, grads if has_edges else grads[:1], inputs, seconds, wide)
    if not has_edges:
        results = (results[0], None, *results[1:])
    return (*results, *(None,) * 17)


_call = differentiable("dot_attention", graph_of=_graph_of, save=_save, backward=_backward)
_call_backward = differentiable(
    "dot_attention_backward", graph_of=_graph_of_backward, save=_save_backward, backward=_backward_of_backward
)
