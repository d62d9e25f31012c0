"""gatv2_attention: the attention of GATv2 over the edges of a graph, without a tensor per edge.

Brody, Alon and Yahav, "How Attentive are Graph Attention Networks?", ICLR 2022. The source's features are read once for
the score and the weighted sum, with a running softmax (Milakov and Gimelshein, "Online normalizer calculation for
softmax", 2018); backward computes the scores again from the logarithm of every row's sum.
"""

from __future__ import annotations

from typing import Any, Literal, overload

import torch
from torch import Tensor

from ._attention import as_heads, as_matrix, as_number, as_seed, check_dropout, check_graph, dropped_edges
from ._edge_features import as_edge_features
from ._gatv2_scores import gatv2_scores
from ._operands import (
    TRANSPOSE,
    accumulate_dtype,
    attention_gradient_operands,
    graph_from_operands,
    row_bytes,
    transpose_operands,
)
from ._registration import being_traced, declare, differentiable
from ._second_derivatives import second_derivatives
from .edge_softmax import edge_softmax
from .graph import Graph
from .schedule import ATTENTION_THREADS

__all__ = ["gatv2_attention"]


@overload
def gatv2_attention(
    l: Tensor,  # noqa: E741
    r: Tensor,
    att: Tensor,
    graph: Graph,
    *,
    edge_attr: Tensor | None = None,
    edge_weight_matrix: Tensor | None = None,
    negative_slope: float = 0.2,
    dropout: float = 0.0,
    seed: Tensor | int | None = None,
    return_alpha: Literal[False] = False,
) -> Tensor: ...
@overload
def gatv2_attention(
    l: Tensor,  # noqa: E741
    r: Tensor,
    att: Tensor,
    graph: Graph,
    *,
    edge_attr: Tensor | None = None,
    edge_weight_matrix: Tensor | None = None,
    negative_slope: float = 0.2,
    dropout: float = 0.0,
    seed: Tensor | int | None = None,
    return_alpha: bool,
) -> Tensor | tuple[Tensor, Tensor]: ...
def gatv2_attention(
    l: Tensor,  # noqa: E741
    r: Tensor,
    att: Tensor,
    graph: Graph,
    *,
    edge_attr: Tensor | None = None,
    edge_weight_matrix: Tensor | None = None,
    negative_slope: float = 0.2,
    dropout: float = 0.0,
    seed: Tensor | int | None = None,
    return_alpha: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Returns ``out[i] = sum over edges e = (j -> i) of alpha[e] * mask[e] * l[j]``, per head.

    ``alpha`` is the softmax over the edges of i of ``sum over c of att[c] * leaky_relu(l[j] + r[i] + W e)[c]``.

    Args:
        l: ``[num_src, H, C]``, float32, float64, float16 or bfloat16, on the graph's device: keys and values.
        r: ``[num_dst, H, C]``: queries. Where its dtype differs from that of l, both are promoted.
        att: ``[H, C]`` floating point.
        graph: plan of the edges, see :class:`gnnagg.Graph`.
        edge_attr: ``[num_edges, D]`` or ``[num_edges]`` floating point, in the caller's edge order; taken in the dtype
            of the features. Together with edge_weight_matrix or not at all.
        edge_weight_matrix: W, ``[H * C, D]`` floating point.
        negative_slope: of the leaky ReLU.
        dropout: probability in [0, 1] that an (edge, head) is left out; what stays is divided by 1 - dropout.
        seed: int64 tensor ``[1]`` on the device, or an int; the same seed drops the same edges. None draws one from
            torch's generator of the device.
        return_alpha: also returns the attention weights, before dropout.

    Returns:
        ``[num_dst, H, C]`` in the dtype of l; 0 for an empty neighbourhood. With return_alpha, (out, alpha) with alpha
        ``[num_edges, H]`` float32 (float64 for float64) in the caller's edge order. A score of -inf beside finite ones
        weighs 0; scores that are all -inf, or hold +inf or NaN, give NaN.

    Raises:
        TypeError: an argument is not a floating-point tensor.
        ValueError: shape, device or dropout does not fit.

    Gradients reach l, r, att, edge_attr and edge_weight_matrix. Sums are kept in float32 (float64 for float64).
    Forward and backward are deterministic, and keep no tensor per edge; on CUDA backward uses a workspace of
    ``[num_edges, H, 2]``. Second derivatives hold several of ``[num_edges, H, C]``. Runs in the dtype of l under
    autocast.

    Example:
        >>> edge_index = torch.tensor([[0, 1, 2], [1, 1, 0]])
        >>> graph = gnnagg.Graph.from_edge_index(edge_index, size=(3, 3))
        >>> ones = torch.ones(3, 2, 4)
        >>> gnnagg.gatv2_attention(ones, ones, torch.ones(2, 4), graph)[:, 0, 0].tolist()
        [1.0, 1.0, 0.0]
    """
    name = "gatv2_attention"
    check_graph(name, graph)
    left, right = as_heads(name, "l", l, "num_src", graph), as_heads(name, "r", r, "num_dst", graph)
    heads, channels = l.size(1), l.size(2)
    if r.size(1) != heads or r.size(2) != channels:
        raise ValueError(
            f"{name}: r must be [num_dst, H, C] with [H, C] = {[heads, channels]} of l, got {list(r.shape)}"
        )
    if left.dtype != right.dtype:
        dtype = torch.promote_types(left.dtype, right.dtype)
        left, right = left.to(dtype), right.to(dtype)
    if isinstance(att, Tensor) and att.device != graph.device:
        raise ValueError(f"{name}: att must be on the graph's device {graph.device}, got {att.device}")
    att = as_matrix(name, "att", att, heads, channels, "[H, C]", accumulate_dtype(left.dtype))
    attr, matrix = as_edge_features(name, edge_attr, edge_weight_matrix, left, graph)
    negative_slope, dropout = as_number(name, "negative_slope", negative_slope), check_dropout(name, dropout)
    drawn = as_seed(name, seed, dropout, graph.device)
    traced = being_traced()
    schedule = graph.csr.schedule(row_bytes(left), ATTENTION_THREADS)
    rows, _ = _call(
        graph,
        left,
        right,
        att,
        attr,
        matrix,
        graph.rowptr,
        graph.col,
        schedule.spans,
        schedule.splits,
        None if attr is None and drawn is None else graph.perm,
        drawn,
        negative_slope,
        dropout,
        *transpose_operands(graph, left, traced),
    )
    out: Tensor = rows.view(-1, heads, channels)
    if not return_alpha:
        return out
    return out, edge_softmax(gatv2_scores(left, right, att, attr, matrix, graph, negative_slope), graph)


# --- schemas and fakes ---------------------------------------------------------------------------------------------


@declare(
    "gatv2_attention",
    "(Tensor l, Tensor r, Tensor att, Tensor? edge_attr, Tensor? edge_weight, Tensor rowptr, Tensor col, Tensor spans, "
    f"Tensor splits, Tensor? perm, Tensor? seed, float negative_slope, float dropout, {TRANSPOSE}) -> (Tensor, Tensor)",
)
def _gatv2_attention_fake(left: Tensor, right: Tensor, att: Tensor, *rest: Any, **named: Any) -> tuple[Tensor, Tensor]:
    return right.new_empty(right.shape), right.new_empty((right.size(0), att.size(0)), dtype=att.dtype)


@declare(
    "gatv2_attention_backward",
    "(Tensor grad, Tensor l, Tensor r, Tensor att, Tensor? edge_attr, Tensor? edge_weight, Tensor out, Tensor lse, "
    "Tensor rowptr, Tensor col, Tensor spans, Tensor splits, Tensor? perm, Tensor t_rowptr, Tensor t_col, "
    "Tensor t_slot, Tensor t_spans, Tensor t_splits, Tensor? seed, float negative_slope, float dropout, bool need_edge)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _gatv2_attention_backward_fake(
    grad: Tensor,
    left: Tensor,
    right: Tensor,
    att: Tensor,
    edge_attr: Tensor | None,
    edge_weight: Tensor | None,
    *rest: Any,
    **named: Any,
) -> tuple[Tensor, ...]:
    need_edge = rest[-1] if len(rest) > 15 else named["need_edge"]
    wanted = need_edge and edge_attr is not None and edge_weight is not None
    return (
        left.new_empty(left.shape),
        right.new_empty(right.shape),
        att.new_empty(att.shape),
        left.new_empty(edge_attr.shape if wanted and edge_attr is not None else (0,)),
        att.new_empty(edge_weight.shape if wanted and edge_weight is not None else (0,)),
    )


# --- autograd ------------------------------------------------------------------------------------------------------


def _graph_of(args: tuple[Any, ...]) -> Graph:
    left, (rowptr, col, spans, splits, perm) = args[0], args[5:10]
    return graph_from_operands(left, rowptr, col, spans, splits, perm, args[13:])


def _save(ctx: Any, args: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    # The inputs, and two tensors of a row each: nothing per edge.
    ctx.save_for_backward(*args[:5], *output, args[10])
    ctx.negative_slope, ctx.dropout = args[11:13]
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Any, ...]:
    if grad is None:
        return (None,) * 18
    left, right, att, attr, matrix, out, lse, seed = ctx.saved_tensors
    graph: Graph = ctx.graph
    grads = _call_backward(
        graph,
        grad.contiguous(),
        left,
        right,
        att,
        attr,
        matrix,
        out,
        lse,
        *attention_gradient_operands(graph, left, attr is not None or seed is not None),
        seed,
        ctx.negative_slope,
        ctx.dropout,
        ctx.needs[3] or ctx.needs[4],
    )
    wanted = [each if need else None for each, need in zip(grads, ctx.needs[:5], strict=True)]
    return (*wanted, *(None,) * 13)


def _graph_of_backward(args: tuple[Any, ...]) -> Graph:
    left, (rowptr, col, spans, splits, perm) = args[1], args[8:13]
    return graph_from_operands(left, rowptr, col, spans, splits, perm, args[13:18])


def _save_backward(ctx: Any, args: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*args[:6], args[18])
    ctx.negative_slope, ctx.dropout, ctx.need_edge = args[19:22]
    ctx.set_materialize_grads(False)


def _backward_of_backward(ctx: Any, *seconds: Tensor | None) -> tuple[Any, ...]:
    """Differentiates the reference twice, E * F memory; the parts of out and lse are in it."""
    from .reference import gatv2_attention as reference

    grad, left, right, att, attr, matrix, seed = ctx.saved_tensors
    graph: Graph = ctx.graph
    heads = att.size(0)
    mask = dropped_edges(seed, graph, heads, ctx.dropout, att.dtype)

    def function(left: Tensor, right: Tensor, att: Tensor, attr: Tensor | None, matrix: Tensor | None) -> list[Tensor]:
        out = reference(
            left.unflatten(1, (heads, -1)),
            right.unflatten(1, (heads, -1)),
            att,
            graph,
            edge_attr=attr,
            edge_weight_matrix=matrix,
            negative_slope=ctx.negative_slope,
            mask=mask,
        )
        assert isinstance(out, Tensor)
        return [out.flatten(1)]

    results = second_derivatives(function, [grad], [left, right, att, attr, matrix], seconds, att.dtype)
    return (*results, *(None,) * 16)


_call = differentiable("gatv2_attention", graph_of=_graph_of, save=_save, backward=_backward)
_call_backward = differentiable(
    "gatv2_attention_backward", graph_of=_graph_of_backward, save=_save_backward, backward=_backward_of_backward
)
