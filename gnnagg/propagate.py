"""propagate: K hops over a graph in one call, the core of APPNP, SGC, TAG, label propagation and PageRank.

On CUDA one cooperative launch does all hops, with a grid barrier between them (Gasteiger et al., "Predict then
Propagate", ICLR 2019, for the recurrence).
"""

from __future__ import annotations

from typing import Any

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
from .aggregate import sum_rows
from .edge_dot import edge_dot
from .graph import Graph

__all__ = ["propagate"]


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
    """Returns ``h[hops]`` of ``h[0] = x, h[k + 1] = (1 - teleport) * A h[k] + teleport * x0``.

    ``A h`` is the weighted sum over in-edges: ``(A h)[i] = sum over edges e = (j -> i) of weight[e] * h[j]``.

    Args:
        x: ``[N, F]``, float32, float64, float16 or bfloat16, on the graph's device. Any strides.
        graph: plan of the edges, with as many sources as targets.
        hops: how often to propagate, at least 0.
        weight: ``[num_edges]`` floating point, in the caller's edge order. None weighs every edge 1.
        teleport: in [0, 1]; the share of x0 in every hop.
        x0: ``[N, F]``, taken in the dtype of x; None is x.
        return_all: returns every hop instead of the last.

    Returns:
        ``[N, F]`` = h[hops], or with return_all ``[hops + 1, N, F]`` = h[0], ..., h[hops], in the dtype of x, which the
        hops in between are kept in too. Sums are kept in float32 (float64 for float64). ``A h`` is 0 at a node without
        in-edges.

    Raises:
        TypeError: x, x0 or weight is not a floating-point tensor, or hops is not an integer.
        ValueError: shape, device, hops or teleport does not fit, or the graph is not square.

    Gradients reach x, x0 and weight. For that of weight, backward computes the hops again and holds two times
    ``[hops, N, F]``. Deterministic: bit-equal from run to run. Runs in the dtype of x under autocast.

    Example:
        >>> edge_index = torch.tensor([[0, 1, 2], [1, 2, 0]])
        >>> graph = gnnagg.Graph.from_edge_index(edge_index, size=3)
        >>> gnnagg.propagate(torch.tensor([[1.0], [0.0], [0.0]]), graph, hops=2)[:, 0].tolist()
        [0.0, 0.0, 1.0]
    """
    if isinstance(x, Tensor) and x.dim() != 2:
        raise ValueError(f"propagate: x must be [N, F], got {list(x.shape)}")
    features = as_features("propagate", x, graph)
    if graph.num_src != graph.num_dst:
        raise ValueError(
            f"propagate: graph must have as many sources as targets, got {graph.num_src} and {graph.num_dst}"
        )
    if not isinstance(hops, (int, torch.SymInt)) or isinstance(hops, bool):
        raise TypeError(f"propagate: hops must be an int, got {type(hops).__name__}")
    if hops < 0:
        raise ValueError(f"propagate: hops must be at least 0, got {hops}")
    if not 0.0 <= teleport <= 1.0:
        raise ValueError(f"propagate: teleport must be in [0, 1], got {teleport}")
    if x0 is not None:
        x0 = _as_x0(x0, features)
    if weight is not None:
        if isinstance(weight, Tensor) and weight.dim() != 1:
            raise ValueError(f"propagate: weight must be [num_edges] = [{graph.num_edges}], got {list(weight.shape)}")
        weight = as_weight("propagate", weight, features, features, graph)
    return _hops(features, graph, hops, weight, teleport, x0, return_all)


def _as_x0(x0: Any, features: Tensor) -> Tensor:
    if not isinstance(x0, Tensor):
        raise TypeError(f"propagate: x0 must be a torch.Tensor, got {type(x0).__name__}")
    if not x0.dtype.is_floating_point:
        raise TypeError(f"propagate: x0 must be floating point, got {x0.dtype}")
    if x0.device != features.device:
        raise ValueError(f"propagate: x0 must be on the graph's device {features.device}, got {x0.device}")
    if x0.shape != features.shape:
        raise ValueError(f"propagate: x0 must be {list(features.shape)} as x, got {list(x0.shape)}")
    return x0.to(features.dtype).contiguous()


def _hops(
    x: Tensor, graph: Graph, hops: int, weight: Tensor | None, teleport: float, x0: Tensor | None, return_all: bool
) -> Tensor:
    traced = being_traced()
    schedule = graph.csr.schedule(row_bytes(x))
    result: Tensor = _call(
        graph,
        x,
        x0,
        graph.rowptr,
        graph.col,
        schedule.spans,
        schedule.splits,
        None if weight is None else graph.perm,
        weight,
        hops,
        teleport,
        return_all,
        *transpose_operands(graph, x, traced),
    )
    return result


# --- schema and fake -----------------------------------------------------------------------------------------------


@declare(
    "propagate",
    "(Tensor x, Tensor? x0, Tensor rowptr, Tensor col, Tensor spans, Tensor splits, Tensor? perm, Tensor? weight, "
    f"SymInt hops, float teleport, bool return_all, {TRANSPOSE}) -> Tensor",
)
def _propagate_fake(
    x: Tensor,
    x0: Tensor | None,
    rowptr: Tensor,
    col: Tensor,
    spans: Tensor,
    splits: Tensor,
    perm: Tensor | None,
    weight: Tensor | None,
    hops: int,
    teleport: float,
    return_all: bool,
    *transpose: Tensor | None,
    **named: Tensor | None,
) -> Tensor:
    return x.new_empty((hops + 1, *x.shape) if return_all else x.shape)


# --- autograd ------------------------------------------------------------------------------------------------------
#
# With K hops, keep = 1 - teleport, and g[k] the incoming gradient of h[k] alone (zero but for k = K unless all hops are
# returned), the gradient that reaches h[k] through everything after it is
#     p[0] = g[K],  p[m + 1] = g[K - 1 - m] + keep * A' p[m]      where p[m] belongs to h[K - m] and A' is A transposed.
# So dx = p[K], dx0 = teleport * (p[0] + ... + p[K - 1]), dx being the sum of the two where x0 is x, and
# dweight[e = (j -> i)] = keep * sum over k < K of <p[K - 1 - k][i], h[k][j]>.


def _graph_of(args: tuple[Any, ...]) -> Graph:
    x, _, rowptr, col, spans, splits, perm = args[:7]
    return graph_from_operands(x, rowptr, col, spans, splits, perm, args[11:])


def _save(ctx: Any, args: tuple[Any, ...], output: Tensor) -> None:
    x, x0, weight = args[0], args[1], args[7]
    ctx.hops, ctx.teleport, ctx.return_all = args[8:11]
    ctx.x0_is_x = x0 is None
    # The features are needed for the gradient of the weights alone.
    trained = weight is not None and weight.requires_grad
    hops = output if trained and ctx.return_all else None
    computed_again = trained and not ctx.return_all
    ctx.save_for_backward(weight, hops, x if computed_again else None, x0 if computed_again else None)


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    weight, saved_hops, x, x0 = ctx.saved_tensors
    graph: Graph = ctx.graph
    hops, teleport = ctx.hops, ctx.teleport
    grad = grad.contiguous()
    grad_x = grad_x0 = grad_weight = None
    if ctx.return_all or ctx.needs[7]:
        reached = _reached(ctx, grad, weight)
        if ctx.needs[0] or ctx.needs[1]:
            through_x0 = teleport * reached[:-1].sum(0, dtype=accumulate_dtype(grad.dtype))
            grad_x = (reached[-1] + through_x0 if ctx.x0_is_x else reached[-1]).to(grad.dtype)
            grad_x0 = None if ctx.x0_is_x else through_x0.to(grad.dtype)
        if ctx.needs[7]:
            if hops == 0:
                grad_weight = torch.zeros_like(weight)
            else:
                if saved_hops is None:
                    saved_hops = _hops(x, graph, hops - 1, weight, teleport, x0, True)
                grad_weight = (1 - teleport) * edge_dot(
                    reached[:-1].contiguous(), saved_hops[:hops].flip(0).contiguous(), graph
                ).view_as(weight)
    else:  # the recurrence summed up is the same op on the transpose
        zero = None if ctx.x0_is_x else torch.zeros_like(grad)
        if ctx.needs[0]:
            grad_x = _hops(grad, graph.flip(), hops, weight, teleport, zero, False)
        if ctx.needs[1] and zero is not None:
            grad_x0 = _hops(zero, graph.flip(), hops, weight, teleport, grad, False)
    return (grad_x, grad_x0, *(None,) * 5, grad_weight, *(None,) * 8)


def _reached(ctx: Any, grad: Tensor, weight: Tensor | None) -> Tensor:
    """``p[0], ..., p[hops]`` as ``[hops + 1, N, F]``."""
    flipped = ctx.graph.flip()
    if not ctx.return_all:
        return _hops(grad, flipped, ctx.hops, weight, ctx.teleport, torch.zeros_like(grad), True)
    wide = accumulate_dtype(grad.dtype)
    reached = [grad[ctx.hops]]
    for place in range(ctx.hops - 1, -1, -1):
        arrived = sum_rows(reached[-1], flipped, weight, acc_out=True)
        reached.append((grad[place].to(wide) + (1 - ctx.teleport) * arrived).to(grad.dtype))
    return torch.stack(reached)


_call = differentiable("propagate", graph_of=_graph_of, save=_save, backward=_backward)
