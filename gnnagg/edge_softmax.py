"""edge_softmax: the softmax of edge scores over the edges that end in each target node.

The attention ops compute it inside and store none of it; this page is for the attention weights themselves.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ._attention import check_graph, edge_gather
from ._csr import Csr
from ._operands import row_bytes
from ._registration import declare, differentiable
from .aggregate import sum_rows
from .graph import Graph
from .schedule import Schedule

__all__ = ["edge_softmax"]


def edge_softmax(score: Tensor, graph: Graph) -> Tensor:
    """Returns ``alpha[e] = exp(score[e] - max) / (sum of exp(score - max) + 1e-16)`` over the edges of e's target.

    Args:
        score: ``[num_edges, H]`` or ``[num_edges]`` floating point, in the caller's edge order, on the graph's device.
        graph: plan of the edges, see :class:`gnnagg.Graph`.

    Returns:
        Like score, in the caller's edge order. A score of -inf beside finite ones gives 0; a row whose scores are all
        -inf, or hold +inf or NaN, gives NaN, as in PyG. Removed self-loops get 0.

    Raises:
        TypeError: score is not a floating-point tensor.
        ValueError: its shape or device does not fit.

    Gradients reach score. Deterministic; exponentials and sums are kept in float32 (float64 for float64).

    Example:
        >>> edge_index = torch.tensor([[0, 1, 2], [1, 1, 0]])
        >>> graph = gnnagg.Graph.from_edge_index(edge_index, size=(3, 3))
        >>> gnnagg.edge_softmax(torch.zeros(3), graph).tolist()
        [0.5, 0.5, 1.0]
    """
    check_graph("edge_softmax", graph)
    if not isinstance(score, Tensor):
        raise TypeError(f"edge_softmax: score must be a torch.Tensor, got {type(score).__name__}")
    if not score.dtype.is_floating_point:
        raise TypeError(f"edge_softmax: score must be floating point, got {score.dtype}")
    if score.device != graph.device:
        raise ValueError(f"edge_softmax: score must be on the graph's device {graph.device}, got {score.device}")
    if score.dim() not in (1, 2) or score.size(0) != graph.num_edges:
        raise ValueError(
            f"edge_softmax: score must be [num_edges] or [num_edges, H] with num_edges = {graph.num_edges}, "
            f"got {list(score.shape)}"
        )
    rows = score.unsqueeze(1) if score.dim() == 1 else score
    schedule = graph.csr.schedule(row_bytes(rows))
    alpha: Tensor = _call(graph, rows.contiguous(), graph.rowptr, schedule.spans, schedule.splits, graph.perm)
    return alpha.squeeze(1) if score.dim() == 1 else alpha


# --- schemas and fakes ---------------------------------------------------------------------------------------------


@declare("edge_softmax", "(Tensor score, Tensor rowptr, Tensor spans, Tensor splits, Tensor? perm) -> Tensor")
def _edge_softmax_fake(score: Tensor, rowptr: Tensor, spans: Tensor, splits: Tensor, perm: Tensor | None) -> Tensor:
    return score.new_empty(score.shape)


@declare(
    "edge_softmax_backward",
    "(Tensor grad, Tensor alpha, Tensor rowptr, Tensor spans, Tensor splits, Tensor? perm) -> Tensor",
)
def _edge_softmax_backward_fake(
    grad: Tensor, alpha: Tensor, rowptr: Tensor, spans: Tensor, splits: Tensor, perm: Tensor | None
) -> Tensor:
    return alpha.new_empty(alpha.shape)


# --- autograd ------------------------------------------------------------------------------------------------------


def _rows_of(score: Tensor, rowptr: Tensor, spans: Tensor, splits: Tensor, perm: Tensor | None) -> Graph:
    """The rows of the op's arguments, which name no sources: the edges themselves stand in for them."""
    num_edges = score.size(0)
    edges = score.new_ones(num_edges).cumsum(0).to(rowptr.dtype) - 1 if perm is None else perm
    csr = Csr(rowptr, edges, perm, num_edges)
    csr.remember(Schedule(spans, splits))
    return Graph(csr)


def _save(ctx: Any, args: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(output)


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    (alpha,) = ctx.saved_tensors
    return _gradient(grad, alpha, ctx.graph), None, None, None, None


def _gradient(grad: Tensor, alpha: Tensor, graph: Graph) -> Tensor:
    schedule = graph.csr.schedule(row_bytes(alpha))
    operands = (graph.rowptr, schedule.spans, schedule.splits, graph.perm)
    result: Tensor = _call_backward(graph, grad.contiguous(), alpha, *operands)
    return result


def _save_backward(ctx: Any, args: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*args[:2])


def _backward_of_backward(ctx: Any, second: Tensor) -> tuple[Any, ...]:
    """Of ``alpha * (grad - total)`` with ``total`` = the row's sum of ``alpha * grad``; made of differentiable sums."""
    grad, alpha = ctx.saved_tensors
    graph: Graph = ctx.graph
    d_grad = d_alpha = None
    if ctx.needs[0]:
        d_grad = _gradient(second, alpha, graph)
    if ctx.needs[1]:
        d_alpha = second * (grad - _row_totals(alpha * grad, graph)) - grad * _row_totals(alpha * second, graph)
    return d_grad, d_alpha, None, None, None, None


def _row_totals(values: Tensor, graph: Graph) -> Tensor:
    """``[num_edges, H]``: for every edge the sum of ``values`` over the edges of its target."""
    return edge_gather(sum_rows(values.contiguous(), graph.edge_view()), graph, "target")


_call = differentiable("edge_softmax", graph_of=lambda args: _rows_of(*args), save=_save, backward=_backward)
_call_backward = differentiable(
    "edge_softmax_backward",
    graph_of=lambda args: _rows_of(*args[1:]),
    save=_save_backward,
    backward=_backward_of_backward,
)
