"""Several reductions of every row in one pass over the edges: sum, mean, var, std, max and min.

What PNA-like layers call; one gather instead of one per reduction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ._operands import TRANSPOSE, accumulate_dtype, graph_from_operands, row_bytes, transpose_operands
from ._registration import being_traced, declare, differentiable
from .graph import Graph

__all__ = ["reduce_rows"]

# Bits of the op's `which`, in the order of its results.
_BITS = {"sum": 1, "mean": 2, "var": 4, "max": 8, "min": 16}
# PyG's StdAggregation clamps the variance here and reports 0 at or below.
_STD_FLOOR = 1e-5


def reduce_rows(x: Tensor, graph: Graph, names: Sequence[str]) -> list[Tensor]:
    """One tensor per name of ``sum, mean, var, std, max, min``, each like x with num_dst rows.

    Args:
        x: ``[num_src, F]`` or ``[B, num_src, F]``, contiguous.
        graph: plan of the edges.
        names: the reductions, in the order wanted.
    """
    which = 0
    for name in names:
        which |= _BITS["var" if name == "std" else name]
    traced = being_traced()
    with_grad = torch.is_grad_enabled() and x.requires_grad
    if with_grad and which & _BITS["var"]:
        which |= _BITS["mean"]  # the gradient of the variance needs it
    schedule = graph.csr.schedule(row_bytes(x))
    transpose = transpose_operands(graph, x, traced) if with_grad else (None,) * 5
    results = _call(graph, x, graph.rowptr, graph.col, schedule.spans, schedule.splits, which, with_grad, *transpose)
    by_name = dict(zip(_BITS, results[:5], strict=True))
    if "std" in names:
        var = by_name["var"]
        by_name["std"] = var.clamp(min=_STD_FLOOR).sqrt().masked_fill(var <= _STD_FLOOR, 0.0)
    return [by_name[name] for name in names]


# --- schema and fake -----------------------------------------------------------------------------------------------


@declare(
    "aggregate_multi",
    "(Tensor x, Tensor rowptr, Tensor col, Tensor spans, Tensor splits, int which, bool with_arg, "
    f"{TRANSPOSE}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _aggregate_multi_fake(
    x: Tensor,
    rowptr: Tensor,
    col: Tensor,
    spans: Tensor,
    splits: Tensor,
    which: int,
    with_arg: bool,
    *transpose: Tensor | None,
    **named: Tensor | None,
) -> tuple[Tensor, ...]:
    shape = (*x.shape[:-2], rowptr.size(0) - 1, x.size(-1))
    values = [x.new_empty(shape if which & bit else (0,)) for bit in _BITS.values()]
    winners = [rowptr.new_empty(shape if with_arg and which & _BITS[name] else (0,)) for name in ("max", "min")]
    return (*values, *winners)


# --- autograd ------------------------------------------------------------------------------------------------------


def _graph_of(args: tuple[Any, ...]) -> Graph:
    x, rowptr, col, spans, splits = args[:5]
    return graph_from_operands(x, rowptr, col, spans, splits, None, args[7:])


def _save(ctx: Any, args: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, mean, _, greatest, least, arg_max, arg_min = output
    ctx.save_for_backward(args[0], mean, greatest, least, arg_max, arg_min)
    ctx.mark_non_differentiable(arg_max, arg_min)
    ctx.which = args[5]
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
    from .aggregate import sum_rows
    from .extremum import extremum_gradient

    if not ctx.needs[0]:
        return (None,) * 12
    x, mean, greatest, least, arg_max, arg_min = ctx.saved_tensors
    graph: Graph = ctx.graph
    wide = accumulate_dtype(x.dtype)
    inverse = graph.csr.inverse_degree(wide).unsqueeze(-1)
    d_sum, d_mean, d_var, d_max, d_min = [
        grad.to(wide) if grad is not None and ctx.which & bit else None
        for grad, bit in zip(grads, _BITS.values(), strict=False)
    ]
    # dx[j] = sum_i (constant[i] + slope[i] * x[j]): one aggregation over the transpose for all that is smooth.
    constant: Tensor | None = d_sum
    if d_mean is not None:
        constant = d_mean * inverse if constant is None else constant + d_mean * inverse
    total: Tensor | None = None
    if d_var is not None:
        if mean.dtype != wide:  # the mean as a half has lost the digits that the distance from it needs
            mean = sum_rows(x, graph, mean=True, acc_out=True)
        slope = 2 * inverse * d_var
        shift = -slope * mean
        constant = shift if constant is None else constant + shift
        both = sum_rows(torch.cat([constant, slope], dim=-1), graph.flip())
        width = x.size(-1)
        constants, slopes = both.narrow(-1, 0, width), both.narrow(-1, width, width)
        # No slope, no term: x may be infinite at a source that no row reads.
        total = constants + torch.where(slopes == 0, 0.0, slopes * x.to(wide))
    elif constant is not None:
        total = sum_rows(constant.contiguous(), graph.flip())
    for grad, value, winner in ((d_max, greatest, arg_max), (d_min, least, arg_min)):
        if grad is not None:
            part = extremum_gradient(grad.to(x.dtype), winner, x, value, graph).to(wide)
            total = part if total is None else total + part
    return (None if total is None else total.to(x.dtype), *(None,) * 11)


_call = differentiable("aggregate_multi", graph_of=_graph_of, save=_save, backward=_backward)
