"""aggregate: every target node's reduction over its neighbours' features, on a cached graph plan.

The work is cut into spans of equal cost (schedule.py), so that a node with millions of neighbours is shared by many
thread blocks and combined in a fixed order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args, overload

import torch
from torch import Tensor

from ._operands import (
    TRANSPOSE,
    accumulate_dtype,
    as_features,
    as_weight,
    graph_from_operands,
    row_bytes,
    transpose_operands,
)
from ._registration import being_traced, declare, differentiable
from .edge_dot import edge_dot
from .graph import Graph

__all__ = ["Reduce", "aggregate", "reduce_features", "sum_rows"]

Reduce = Literal["sum", "mean", "max", "min", "std", "var"]
_REDUCES = get_args(Reduce)


@overload
def aggregate(  # type: ignore[overload-overlap]
    x: Tensor, graph: Graph, weight: Tensor | None = None, reduce: Reduce = "sum"
) -> Tensor: ...
@overload
def aggregate(
    x: Tensor, graph: Graph, weight: Tensor | None = None, *, reduce: Sequence[Reduce]
) -> tuple[Tensor, ...]: ...
def aggregate(
    x: Tensor, graph: Graph, weight: Tensor | None = None, reduce: Reduce | Sequence[Reduce] = "sum"
) -> Tensor | tuple[Tensor, ...]:
    """Returns ``out[i] = reduce over edges e = (j -> i) of weight[e] * x[j]``.

    Args:
        x: ``[num_src, F]``, ``[num_src, H, C]`` or a static batch ``[B, num_src, F]``; float32, float64, float16 or
            bfloat16, on the graph's device. Any strides; not contiguous means one copy.
        graph: plan of the edges, see :class:`gnnagg.Graph`.
        weight: ``[num_edges]`` or ``[num_edges, H]`` floating point, in the caller's edge order; with ``[.., H]``, head
            h weighs the features ``[h * F / H, (h + 1) * F / H)``. None weighs every edge 1.
        reduce: ``"sum"``, ``"mean"``, ``"max"``, ``"min"``, ``"std"``, ``"var"``, or several of them: then all are
            computed in one pass over the edges and a tuple is returned. ``var`` is the population variance, ``std`` its
            root with PyG's floor (0 where the variance is below 1e-5).

    Returns:
        ``[num_dst, F]``, ``[num_dst, H, C]`` or ``[B, num_dst, F]``, one per reduction. An empty neighbourhood gives 0.
        Sums are kept in float32 (float64 for float64); the dtype is that of x, or ``torch.promote_types(x, weight)``.

    Raises:
        TypeError: x or weight is not a floating-point tensor.
        ValueError: shape, device or reduce does not fit.
        IndexError: the graph was planned on the GPU from ids out of range and the device has reported it by now.

    Gradients reach x and weight. max and min split the gradient equally among tied neighbours; NaN in a neighbourhood
    gives NaN. Forward and backward are deterministic: bit-equal from run to run. Runs in the dtype of x under autocast.

    Example:
        >>> edge_index = torch.tensor([[0, 1, 2], [1, 1, 0]])
        >>> graph = gnnagg.Graph.from_edge_index(edge_index, size=(3, 3))
        >>> gnnagg.aggregate(torch.ones(3, 2), graph)[:, 0].tolist()
        [1.0, 2.0, 0.0]
    """
    names = (reduce,) if isinstance(reduce, str) else tuple(reduce)
    unknown = [name for name in names if name not in _REDUCES]
    if unknown or not names:
        raise ValueError(f"aggregate: reduce must be one or several of {_REDUCES}, got {reduce!r}")
    features = as_features("aggregate", x, graph)
    if weight is not None:
        weight_given = weight
        weight = as_weight("aggregate", weight, x, features, graph)
        features, dtype = _promoted(features, weight_given.dtype)
        weight = weight.to(accumulate_dtype(features.dtype))
        if not set(names) <= {"sum", "mean"}:
            features, graph, weight = _weighted_messages(features, graph, weight), graph.edge_view(), None
    else:
        dtype = features.dtype
    results = [out.to(dtype) for out in reduce_features(features, graph, weight, names, dtype)]
    if x.dim() == 3 and features.dim() == 2:
        results = [out.unflatten(-1, x.shape[1:]) for out in results]
    return results[0] if isinstance(reduce, str) else tuple(results)


def reduce_features(
    features: Tensor, graph: Graph, weight: Tensor | None, names: Sequence[str], dtype: torch.dtype
) -> Sequence[Tensor]:
    """One result per name, on features ``[.., num_src, F]``."""
    if len(set(names)) == 1 and names[0] in ("sum", "mean"):
        out = sum_rows(features, graph, weight, mean=names[0] == "mean", acc_out=dtype != features.dtype)
        return [out] * len(names)
    if weight is not None:
        total = sum_rows(features, graph, weight, acc_out=True)
        mean = total * graph.csr.inverse_degree(total.dtype).unsqueeze(-1)
        return [total if name == "sum" else mean for name in names]
    if len(set(names)) == 1 and names[0] in ("max", "min"):
        from .extremum import extremum_rows

        return [extremum_rows(features, graph, minimum=names[0] == "min")[0]] * len(names)
    from .multi import reduce_rows

    return reduce_rows(features, graph, names)


def _promoted(features: Tensor, weight_dtype: torch.dtype) -> tuple[Tensor, torch.dtype]:
    """Features as the kernel reads them, and the dtype of the result, by torch's promotion of x and weight.

    A half-precision x stays as it is and only the result is float32; anything else wider is cast before.
    """
    dtype = torch.promote_types(features.dtype, weight_dtype)
    if dtype in (features.dtype, accumulate_dtype(features.dtype)):
        return features, dtype
    return features.to(dtype), dtype


def _weighted_messages(features: Tensor, graph: Graph, weight: Tensor) -> Tensor:
    """``weight[e] * x[source(e)]`` for every edge, ``[.., num_edges, F]``: for the reductions that are not linear."""
    messages = sum_rows(features, graph.source_view())
    heads = weight.size(1) if weight.dim() == 2 else 1
    scaled = messages.unflatten(-1, (heads, -1)) * weight.view(-1, heads, 1)
    result: Tensor = scaled.flatten(-2).to(features.dtype)
    return result


def sum_rows(
    x: Tensor,
    graph: Graph,
    weight: Tensor | None = None,
    src_scale: Tensor | None = None,
    dst_scale: Tensor | None = None,
    *,
    mean: bool = False,
    acc_out: bool = False,
) -> Tensor:
    """``out[i] = dst_scale[i] * (1 / degree if mean) * sum weight[e] * src_scale[j] * x[j]``; what layers call.

    Args:
        x: ``[num_src, F]`` or ``[B, num_src, F]``, contiguous.
        graph: plan of the edges.
        weight: ``[E]`` or ``[E, H]`` in the accumulate dtype of x, or None.
        src_scale: ``[num_src]``, accumulate dtype, or None. Receives no gradient.
        dst_scale: ``[num_dst]``, likewise.
        mean: divides by the number of edges.
        acc_out: result in the accumulate dtype rather than that of x.
    """
    traced = being_traced()
    schedule = graph.csr.schedule(row_bytes(x))
    result: Tensor = _call(
        graph,
        x,
        graph.rowptr,
        graph.col,
        schedule.spans,
        schedule.splits,
        None if weight is None else graph.perm,
        weight,
        src_scale,
        dst_scale,
        mean,
        acc_out,
        *transpose_operands(graph, x, traced),
    )
    return result


# --- schema and fake -----------------------------------------------------------------------------------------------


@declare(
    "aggregate_sum",
    "(Tensor x, Tensor rowptr, Tensor col, Tensor spans, Tensor splits, Tensor? perm, Tensor? weight, "
    f"Tensor? src_scale, Tensor? dst_scale, bool mean, bool acc_out, {TRANSPOSE}) -> Tensor",
)
def _aggregate_sum_fake(
    x: Tensor, rowptr: Tensor, col: Tensor, spans: Tensor, splits: Tensor, *rest: Any, **named: Any
) -> Tensor:
    acc_out = rest[5] if len(rest) > 5 else named["acc_out"]
    shape = (*x.shape[:-2], rowptr.size(0) - 1, x.size(-1))
    return x.new_empty(shape, dtype=accumulate_dtype(x.dtype) if acc_out else x.dtype)


# --- autograd ------------------------------------------------------------------------------------------------------


def _graph_of(args: tuple[Any, ...]) -> Graph:
    x, rowptr, col, spans, splits, perm = args[:6]
    return graph_from_operands(x, rowptr, col, spans, splits, perm, args[11:])


def _save(ctx: Any, args: tuple[Any, ...], output: Tensor) -> None:
    x, weight, src_scale, dst_scale = args[0], args[6], args[7], args[8]
    # x is needed for the gradient of the weights alone.
    ctx.save_for_backward(x if weight is not None and weight.requires_grad else None, weight, src_scale, dst_scale)
    ctx.dtype, ctx.mean = x.dtype, args[9]


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    x, weight, src_scale, dst_scale = ctx.saved_tensors
    graph: Graph = ctx.graph
    grad = grad.contiguous()
    row_scale = dst_scale
    if ctx.mean:
        inverse = graph.csr.inverse_degree(accumulate_dtype(ctx.dtype))
        row_scale = inverse if dst_scale is None else dst_scale * inverse
    grad_x = grad_weight = None
    if ctx.needs[0]:
        grad_x = sum_rows(grad.to(ctx.dtype), graph.flip(), weight, row_scale, src_scale)
    if ctx.needs[6]:
        a = grad if row_scale is None else grad * row_scale.unsqueeze(-1)
        b = x if src_scale is None else x * src_scale.unsqueeze(-1)
        wide = torch.promote_types(a.dtype, b.dtype)
        heads = weight.size(1) if weight.dim() == 2 else 1
        grad_weight = edge_dot(a.to(wide), b.to(wide), graph, heads).view_as(weight)
    return (grad_x, None, None, None, None, None, grad_weight, *(None,) * 9)


_call = differentiable("aggregate_sum", graph_of=_graph_of, save=_save, backward=_backward)
