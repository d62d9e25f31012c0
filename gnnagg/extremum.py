"""The max and min of every row, and their gradient, shared equally among tied neighbours.

With ReLU features many neighbours tie at 0; each of the k winners receives 1/k of the gradient. (PyG's native scatter
means the same, but counts its zero-initialised output as one more winner where the result is 0.)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._operands import TRANSPOSE, accumulate_dtype, graph_from_operands, row_bytes, transpose_operands
from ._registration import being_traced, declare, differentiable
from .graph import Graph

__all__ = ["extremum_gradient", "extremum_rows"]


def extremum_rows(x: Tensor, graph: Graph, *, minimum: bool) -> tuple[Tensor, Tensor]:
    """``out[i] = max (or min) of x[j]`` and who won.

    Args:
        x: ``[num_src, F]`` or ``[B, num_src, F]``, contiguous.
        graph: plan of the edges.
        minimum: min instead of max.

    Returns:
        out, like x with num_dst rows: 0 for an empty row, NaN where a neighbour is NaN. winner, same shape, index
        dtype: slot of the only winner, -1 for an empty row, minus the number of winners where several tie; empty
        ``[0]`` when no gradient is wanted.
    """
    traced = being_traced()
    schedule = graph.csr.schedule(row_bytes(x))
    with_arg = torch.is_grad_enabled() and x.requires_grad
    transpose = transpose_operands(graph, x, traced) if with_arg else (None,) * 5
    out, winner = _call(
        graph, x, graph.rowptr, graph.col, schedule.spans, schedule.splits, minimum, with_arg, *transpose
    )
    return out, winner


def extremum_gradient(grad: Tensor, winner: Tensor, x: Tensor, out: Tensor, graph: Graph) -> Tensor:
    """Gradient of :func:`extremum_rows` for x: ``dx[j] = sum over edges that won at i of grad[i] / winners(i)``."""
    transpose = graph.transpose
    schedule, t_schedule = graph.csr.schedule(row_bytes(x)), transpose.schedule(row_bytes(x))
    result: Tensor = _call_backward(
        graph,
        grad.contiguous(),
        winner,
        x,
        out,
        graph.rowptr,
        graph.col,
        schedule.spans,
        schedule.splits,
        transpose.rowptr,
        transpose.col,
        graph.transpose_slot(),
        t_schedule.spans,
        t_schedule.splits,
    )
    return result


# --- schemas and fakes ---------------------------------------------------------------------------------------------


@declare(
    "aggregate_extremum",
    "(Tensor x, Tensor rowptr, Tensor col, Tensor spans, Tensor splits, bool minimum, bool with_arg, "
    f"{TRANSPOSE}) -> (Tensor, Tensor)",
)
def _aggregate_extremum_fake(
    x: Tensor,
    rowptr: Tensor,
    col: Tensor,
    spans: Tensor,
    splits: Tensor,
    minimum: bool,
    with_arg: bool,
    *transpose: Tensor | None,
    **named: Tensor | None,
) -> tuple[Tensor, Tensor]:
    shape = (*x.shape[:-2], rowptr.size(0) - 1, x.size(-1))
    return x.new_empty(shape), rowptr.new_empty(shape if with_arg else (0,))


@declare(
    "extremum_backward",
    "(Tensor grad, Tensor winner, Tensor x, Tensor out, Tensor rowptr, Tensor col, Tensor spans, Tensor splits, "
    "Tensor t_rowptr, Tensor t_col, Tensor t_slot, Tensor t_spans, Tensor t_splits) -> Tensor",
)
def _extremum_backward_fake(grad: Tensor, winner: Tensor, x: Tensor, *rest: Any) -> Tensor:
    return torch.empty_like(x)


# --- autograd ------------------------------------------------------------------------------------------------------


def _graph_of(args: tuple[Any, ...]) -> Graph:
    x, rowptr, col, spans, splits = args[:5]
    return graph_from_operands(x, rowptr, col, spans, splits, None, args[7:])


def _save(ctx: Any, args: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(args[0], *output)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Any, ...]:
    x, out, winner = ctx.saved_tensors
    grad_x = None
    if grad is not None and ctx.needs[0]:
        grad_x = extremum_gradient(grad, winner, x, out, ctx.graph)
    return (grad_x, *(None,) * 11)


def _graph_of_backward(args: tuple[Any, ...]) -> Graph:
    _, _, x, _, rowptr, col, spans, splits, t_rowptr, t_col, t_slot, t_spans, t_splits = args
    return graph_from_operands(x, rowptr, col, spans, splits, None, (t_rowptr, t_col, t_slot, t_spans, t_splits))


def _save_backward(ctx: Any, args: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*args[2:4])


def _backward_of_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    """Linear in the incoming gradient: gathers the second gradient from the winners (reference path, E * F memory)."""
    from .aggregate import sum_rows

    x, out = ctx.saved_tensors
    graph: Graph = ctx.graph
    wide = accumulate_dtype(x.dtype)
    sources, targets = graph.source_view(), graph.target_view()
    gathered = sum_rows(grad.to(wide).contiguous(), sources)
    is_winner = (sum_rows(x, sources) == sum_rows(out, targets)).to(wide)
    total = sum_rows((gathered * is_winner).contiguous(), graph.edge_view())
    count = sum_rows(is_winner, graph.edge_view()).clamp(min=1)  # winner may hide duplicates of one edge
    return (total / count, *(None,) * 12)


_call = differentiable("aggregate_extremum", graph_of=_graph_of, save=_save, backward=_backward)
_call_backward = differentiable(
    "extremum_backward", graph_of=_graph_of_backward, save=_save_backward, backward=_backward_of_backward
)
