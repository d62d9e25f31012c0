"""edge_dot: one dot product per edge and head between its target's and its source's features (an SDDMM).

The gradient of an aggregation's edge weights, and the score of dot-product attention.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ._operands import accumulate_dtype, graph_from_operands, row_bytes
from ._registration import declare, differentiable
from .graph import Graph

__all__ = ["edge_dot"]


def edge_dot(a: Tensor, b: Tensor, graph: Graph, heads: int = 1) -> Tensor:
    """``[num_edges, heads]``: ``out[e, h] = sum_c a[target(e), h, c] * b[source(e), h, c]``, in edge order.

    Args:
        a: ``[num_dst, F]`` or ``[B, num_dst, F]``, contiguous; features of the targets.
        b: ``[num_src, F]`` or ``[B, num_src, F]``, same dtype; features of the sources. A batch is summed over.
        graph: plan of the edges.
        heads: divides F.

    Returns:
        float32 (float64 for float64 inputs). Removed self-loops get 0.

    Gradients reach a and b. Deterministic.
    """
    schedule = graph.csr.schedule(row_bytes(b))
    result: Tensor = _call(graph, a, b, graph.rowptr, graph.col, schedule.spans, graph.perm, heads)
    return result


# --- schema and fake -----------------------------------------------------------------------------------------------


@declare(
    "edge_dot",
    "(Tensor a, Tensor b, Tensor rowptr, Tensor col, Tensor spans, Tensor? perm, SymInt heads) -> Tensor",
)
def _edge_dot_fake(
    a: Tensor, b: Tensor, rowptr: Tensor, col: Tensor, spans: Tensor, perm: Tensor | None, heads: int
) -> Tensor:
    return a.new_empty((col.size(0), heads), dtype=accumulate_dtype(a.dtype))


# --- autograd ------------------------------------------------------------------------------------------------------


def _graph_of(args: tuple[Any, ...]) -> Graph:
    _, b, rowptr, col, spans, perm, _ = args
    return graph_from_operands(b, rowptr, col, spans, None, perm, (None,) * 5)


def _save(ctx: Any, args: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(args[0], args[1])


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    from .aggregate import sum_rows

    a, b = ctx.saved_tensors
    grad = grad.contiguous()
    graph: Graph = ctx.graph
    grad_a = sum_rows(b, graph, grad).to(a.dtype) if ctx.needs[0] else None
    grad_b = sum_rows(a, graph.flip(), grad).to(b.dtype) if ctx.needs[1] else None
    return grad_a, grad_b, None, None, None, None, None


_call = differentiable("edge_dot", graph_of=_graph_of, save=_save, backward=_backward)
