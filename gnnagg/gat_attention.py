"""gat_attention: the attention of GAT over the edges of a graph, without a tensor per edge.

Veličković et al., "Graph Attention Networks", ICLR 2018. A running softmax (Milakov and Gimelshein, "Online normalizer
calculation for softmax", 2018) reads the features of every edge's source once; backward computes the attention weights
again from the logarithm of every row's sum, and reads one row of features per edge too.
"""

from __future__ import annotations

from typing import Any, Literal, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from ._attention import as_heads, as_number, as_scores, as_seed, check_dropout, check_graph, dropped_edges, edge_gather
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
from .schedule import GAT_THREADS

__all__ = ["gat_attention"]

# Mean degree from which the CPU keeps sums over positive scores, see _wants_positive.
_POSITIVE_SUMS_DEGREE = 12


@overload
def gat_attention(
    z: Tensor,
    a_src: Tensor,
    a_dst: Tensor | None,
    graph: Graph,
    *,
    edge_score: Tensor | None = None,
    negative_slope: float = 0.2,
    dropout: float = 0.0,
    seed: Tensor | int | None = None,
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
    dropout: float = 0.0,
    seed: Tensor | int | None = None,
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
    dropout: float = 0.0,
    seed: Tensor | int | None = None,
    return_alpha: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Returns ``out[i] = sum over edges e = (j -> i) of alpha[e] * mask[e] * z[j]``, per head.

    ``alpha`` is the softmax over the edges of i of ``leaky_relu(a_src[j] + a_dst[i] + edge_score[e])``.

    Args:
        z: ``[num_src, H, C]``, float32, float64, float16 or bfloat16, on the graph's device.
        a_src: ``[num_src, H]`` floating point: the source's part of the score.
        a_dst: ``[num_dst, H]`` floating point: the target's part; None for none.
        graph: plan of the edges, see :class:`gnnagg.Graph`.
        edge_score: ``[num_edges, H]`` floating point, the edge's part, in the caller's edge order; None for none.
        negative_slope: of the leaky ReLU.
        dropout: probability in [0, 1] that an (edge, head) is left out; what stays is divided by 1 - dropout.
        seed: int64 tensor ``[1]`` on the device, or an int; the same seed drops the same edges. None draws one from
            torch's generator of the device.
        return_alpha: also returns the attention weights, before dropout.

    Returns:
        ``[num_dst, H, C]`` in the dtype of z; 0 for an empty neighbourhood. With return_alpha, (out, alpha) with alpha
        ``[num_edges, H]`` float32 (float64 for float64) in the caller's edge order. A score of -inf beside finite ones
        weighs 0; scores that are all -inf, or hold +inf or NaN, give NaN.

    Raises:
        TypeError: a tensor is not floating point, or negative_slope or dropout is no number.
        ValueError: shape, device or dropout does not fit.

    Gradients reach z, a_src, a_dst and edge_score. Scores and sums are kept in float32 (float64 for float64). Forward
    and backward are deterministic, and keep no tensor per edge; second derivatives hold several of
    ``[num_edges, H, C]``. Runs in the dtype of z under autocast.

    Example:
        >>> edge_index = torch.tensor([[0, 1, 2], [1, 1, 0]])
        >>> graph = gnnagg.Graph.from_edge_index(edge_index, size=(3, 3))
        >>> z, scores = torch.ones(3, 2, 4), torch.zeros(3, 2)
        >>> gnnagg.gat_attention(z, scores, scores, graph)[:, 0, 0].tolist()
        [1.0, 1.0, 0.0]
    """
    name = "gat_attention"
    check_graph(name, graph)
    features = as_heads(name, "z", z, "num_src", graph)
    heads, wide = z.size(1), accumulate_dtype(features.dtype)
    a_src = as_scores(name, "a_src", a_src, "num_src", heads, wide, graph)
    if a_dst is not None:
        a_dst = as_scores(name, "a_dst", a_dst, "num_dst", heads, wide, graph)
    if edge_score is not None:
        edge_score = as_scores(name, "edge_score", edge_score, "num_edges", heads, wide, graph)
    negative_slope, dropout = as_number(name, "negative_slope", negative_slope), check_dropout(name, dropout)
    drawn = as_seed(name, seed, dropout, graph.device)
    traced = being_traced()
    schedule = graph.csr.schedule(row_bytes(features), GAT_THREADS)
    outputs: tuple[Tensor, ...] = _call(
        graph,
        features,
        a_src,
        a_dst,
        edge_score,
        graph.rowptr,
        graph.col,
        schedule.spans,
        schedule.splits,
        None if edge_score is None and drawn is None else graph.perm,
        drawn,
        negative_slope,
        dropout,
        _wants_positive(graph, a_dst, edge_score),
        *transpose_operands(graph, features, traced),
    )
    out = outputs[0].view(-1, heads, z.size(2))
    if not return_alpha:
        return out
    return out, edge_softmax(_scores(a_src, a_dst, edge_score, graph, negative_slope), graph)


def _wants_positive(graph: Graph, a_dst: Tensor | None, edge_score: Tensor | None) -> bool:
    """Whether the forward should keep its sums over positive scores for the gradient of a_dst.

    The alternative is the gradient of every edge's score, stored by the backward and added up. On CUDA the sums always
    cost less: forward and backward together, fp32, ms, reddit-like 1 x 64 11.9 against 15.8, arxiv-like 4 x 32 1.02 and
    1.09, four edges a row 4 x 32 2.9 and 3.2 (H200). On the CPU they do where rows are long: 8 x 8 with 100 edges a row
    87 against 156, 36 edges 47 and 58, 14 edges 77 and 90, 4 edges 4 x 32 395 and 350 (one core, AVX-512).
    """
    if a_dst is None or not (torch.is_grad_enabled() and a_dst.requires_grad):
        return False
    if edge_score is not None and edge_score.requires_grad:  # then every edge's gradient is stored anyway
        return False
    return graph.device.type == "cuda" or graph.num_edges >= _POSITIVE_SUMS_DEGREE * graph.num_dst


def _scores(
    a_src: Tensor, a_dst: Tensor | None, edge_score: Tensor | None, graph: Graph, negative_slope: float
) -> Tensor:
    """``[num_edges, H]`` in the caller's edge order."""
    score = edge_gather(a_src, graph, "source")
    if a_dst is not None:
        score = score + edge_gather(a_dst, graph, "target")
    if edge_score is not None:
        score = score + edge_score
    return F.leaky_relu(score, negative_slope)


# --- schemas and fakes ---------------------------------------------------------------------------------------------


@declare(
    "gat_attention",
    "(Tensor z, Tensor a_src, Tensor? a_dst, Tensor? edge_score, Tensor rowptr, Tensor col, Tensor spans, "
    "Tensor splits, Tensor? perm, Tensor? seed, float negative_slope, float dropout, bool with_positive, "
    f"{TRANSPOSE}) -> (Tensor out, Tensor lse, Tensor positive_out, Tensor positive_alpha)",
)
def _gat_attention_fake(
    z: Tensor, a_src: Tensor, a_dst: Tensor | None, edge_score: Tensor | None, rowptr: Tensor, *rest: Any, **named: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    with_positive = rest[7] if len(rest) > 7 else named["with_positive"]
    num_dst = rowptr.size(0) - 1
    features, scores = (num_dst, z.size(1)), (num_dst, a_src.size(1))
    return (
        z.new_empty(features),
        a_src.new_empty(scores),
        z.new_empty(features if with_positive else (0,)),
        a_src.new_empty(scores if with_positive else (0,)),
    )


@declare(
    "gat_attention_backward",
    "(Tensor grad, Tensor z, Tensor a_src, Tensor? a_dst, Tensor? edge_score, Tensor out, Tensor lse, "
    "Tensor positive_out, Tensor positive_alpha, Tensor rowptr, Tensor col, Tensor spans, Tensor splits, Tensor? perm, "
    "Tensor t_rowptr, Tensor t_col, Tensor t_slot, Tensor t_spans, Tensor t_splits, Tensor? seed, "
    "float negative_slope, float dropout, bool need_dst, bool need_edge)"
    " -> (Tensor dz, Tensor da_src, Tensor da_dst, Tensor dedge_score)",
)
def _gat_attention_backward_fake(
    grad: Tensor,
    z: Tensor,
    a_src: Tensor,
    a_dst: Tensor | None,
    edge_score: Tensor | None,
    out: Tensor,
    lse: Tensor,
    positive_out: Tensor,
    positive_alpha: Tensor,
    rowptr: Tensor,
    col: Tensor,
    *rest: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    need_dst, need_edge = rest[-2:]
    return (
        z.new_empty(z.shape),
        a_src.new_empty(a_src.shape),
        a_src.new_empty(lse.shape if need_dst else (0,)),
        a_src.new_empty((col.size(0), a_src.size(1)) if need_edge else (0,)),
    )


# --- autograd ------------------------------------------------------------------------------------------------------

_NO_INPUT_GRADS = (None,) * 14  # of the op's arguments behind edge_score


def _graph_of(args: tuple[Any, ...]) -> Graph:
    z, (rowptr, col, spans, splits, perm) = args[0], args[4:9]
    return graph_from_operands(z, rowptr, col, spans, splits, perm, args[13:])


def _save(ctx: Any, args: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    # The inputs, and tensors of a row each: nothing per edge.
    ctx.save_for_backward(*args[:4], *output, args[9])
    ctx.negative_slope, ctx.dropout = args[10:12]
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: Tensor | None, *_: Tensor | None) -> tuple[Any, ...]:
    if grad is None:
        return (None,) * 4 + _NO_INPUT_GRADS
    z, a_src, a_dst, edge_score, out, lse, positive_out, positive_alpha, seed = ctx.saved_tensors
    graph: Graph = ctx.graph
    grads = _call_backward(
        graph,
        grad.contiguous(),
        z,
        a_src,
        a_dst,
        edge_score,
        out,
        lse,
        positive_out,
        positive_alpha,
        *attention_gradient_operands(graph, z, edge_score is not None or seed is not None),
        seed,
        ctx.negative_slope,
        ctx.dropout,
        ctx.needs[2],
        ctx.needs[3],
    )
    wanted = tuple(each if need else None for each, need in zip(grads, ctx.needs, strict=False))
    return wanted + _NO_INPUT_GRADS


def _graph_of_backward(args: tuple[Any, ...]) -> Graph:
    z, (rowptr, col, spans, splits, perm) = args[1], args[9:14]
    return graph_from_operands(z, rowptr, col, spans, splits, perm, args[14:19])


def _save_backward(ctx: Any, args: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*args[:5], args[19])
    ctx.negative_slope, ctx.dropout = args[20:22]
    ctx.set_materialize_grads(False)


def _backward_of_backward(ctx: Any, *seconds: Tensor | None) -> tuple[Any, ...]:
    """Differentiates the reference twice, E * F memory; the parts that out and lse play are in it."""
    from .reference import gat_attention as reference

    grad, z, a_src, a_dst, edge_score, seed = ctx.saved_tensors
    graph: Graph = ctx.graph
    heads, wide, negative_slope = a_src.size(1), a_src.dtype, ctx.negative_slope
    mask = dropped_edges(seed, graph, heads, ctx.dropout, wide)

    def function(z: Tensor, a_src: Tensor, a_dst: Tensor | None, edge_score: Tensor | None) -> list[Tensor]:
        out = reference(
            z.unflatten(1, (heads, -1)),
            a_src,
            a_dst,
            graph,
            edge_score=edge_score,
            negative_slope=negative_slope,
            mask=mask,
        )
        return [out.flatten(1)]

    results = second_derivatives(function, [grad], [z, a_src, a_dst, edge_score], seconds, wide)
    return (*results, *(None,) * 19)


_call = differentiable("gat_attention", graph_of=_graph_of, save=_save, backward=_backward)
_call_backward = differentiable(
    "gat_attention_backward", graph_of=_graph_of_backward, save=_save_backward, backward=_backward_of_backward
)
