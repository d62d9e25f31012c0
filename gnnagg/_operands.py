"""The tensor arguments that every op takes from a Graph, and the shape and dtype rules of features and weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._csr import Csr
from .graph import Graph
from .schedule import ATTENTION_THREADS, Schedule

__all__ = [
    "TRANSPOSE",
    "accumulate_dtype",
    "as_features",
    "as_weight",
    "attention_gradient_operands",
    "graph_from_operands",
    "row_bytes",
    "transpose_operands",
]

FEATURE_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

# Trailing arguments of a differentiable op: the transpose that its gradient runs on, where it is known already. The
# forward kernels do not read them; compiled code passes them so that its backward need not sort again.
TRANSPOSE = (
    "Tensor? t_rowptr=None, Tensor? t_col=None, Tensor? t_slot=None, Tensor? t_spans=None, Tensor? t_splits=None"
)


def accumulate_dtype(dtype: torch.dtype) -> torch.dtype:
    """Dtype that sums are kept in: float64 for float64, float32 for everything else."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def row_bytes(x: Tensor) -> int:
    """Bytes of one feature row of ``x [..., F]``."""
    return int(x.size(-1)) * x.element_size()


def transpose_operands(graph: Graph, x: Tensor, traced: bool) -> tuple[Tensor | None, ...]:
    """The five trailing arguments: tensors for traced code that will need a gradient, else nothing."""
    if not traced or not torch.is_grad_enabled():
        return (None,) * 5
    transpose = graph.transpose
    schedule = transpose.schedule(row_bytes(x))
    return transpose.rowptr, transpose.col, graph.transpose_slot(), schedule.spans, schedule.splits


def attention_gradient_operands(graph: Graph, x: Tensor, with_edges: bool) -> tuple[Tensor | None, ...]:
    """rowptr, col, spans, splits, perm, and the transpose's five: what every attention gradient takes in a row.

    Args:
        graph: plan of the edges.
        x: features; their row bytes choose the schedules.
        with_edges: whether edge ids are read; without, perm is None.
    """
    csr, transpose, width = graph.csr, graph.transpose, row_bytes(x)
    schedule = csr.schedule(width, ATTENTION_THREADS)
    t_schedule = transpose.schedule(width, ATTENTION_THREADS)
    perm = graph.perm if with_edges else None
    forward = (csr.rowptr, csr.col, schedule.spans, schedule.splits, perm)
    return *forward, transpose.rowptr, transpose.col, graph.transpose_slot(), t_schedule.spans, t_schedule.splits


def graph_from_operands(
    x: Tensor, rowptr: Tensor, col: Tensor, spans: Tensor, splits: Tensor | None, perm: Tensor | None, transpose: Any
) -> Graph:
    """A Graph around the arguments of an op; the schedules that came with them are kept."""
    csr = Csr(rowptr, col, perm, x.size(-2))
    if splits is not None:
        csr.remember(Schedule(spans, splits))
    t_rowptr, t_col, t_slot, t_spans, t_splits = transpose
    if t_rowptr is None:
        return Graph(csr)
    reverse = Csr(t_rowptr, t_col, None, csr.num_rows, slot=t_slot, origin=csr)
    reverse.remember(Schedule(t_spans, t_splits))
    return Graph(csr, transpose=reverse)


def as_features(name: str, x: Any, graph: Graph) -> Tensor:
    """``x`` as contiguous ``[num_src, F]`` or ``[B, num_src, F]``; TypeError or ValueError where it does not fit."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: x must be a torch.Tensor, got {type(x).__name__}")
    if x.dtype not in FEATURE_DTYPES:
        expected = ", ".join(str(dtype).removeprefix("torch.") for dtype in FEATURE_DTYPES)
        raise TypeError(f"{name}: x must be one of {expected}, got {str(x.dtype).removeprefix('torch.')}")
    if x.device != graph.device:
        raise ValueError(f"{name}: x must be on the graph's device {graph.device}, got {x.device}")
    num_src = graph.num_src
    if x.dim() == 2 and x.size(0) == num_src:
        return x.contiguous()
    if x.dim() == 3 and x.size(0) == num_src:
        return x.flatten(1).contiguous()
    if x.dim() == 3 and x.size(1) == num_src:
        return x.contiguous()
    raise ValueError(
        f"{name}: x must be [num_src, F], [num_src, H, C] or [B, num_src, F] with num_src = {num_src}, "
        f"got {list(x.shape)}"
    )


def as_weight(name: str, weight: Any, x: Tensor, features: Tensor, graph: Graph) -> Tensor:
    """``weight`` as contiguous ``[E]`` or ``[E, H]`` in the accumulate dtype of ``features``."""
    if not isinstance(weight, Tensor):
        raise TypeError(f"{name}: weight must be a torch.Tensor, got {type(weight).__name__}")
    if not weight.dtype.is_floating_point:
        raise TypeError(f"{name}: weight must be floating point, got {weight.dtype}")
    if weight.device != graph.device:
        raise ValueError(f"{name}: weight must be on the graph's device {graph.device}, got {weight.device}")
    width = features.size(-1)
    heads = weight.size(1) if weight.dim() == 2 else 1
    if weight.dim() not in (1, 2) or weight.size(0) != graph.num_edges or heads < 1 or (width and width % heads):
        per_head = f" or [num_edges, H] with H dividing {width} features" if x.dim() != 3 else " or [num_edges, H]"
        raise ValueError(
            f"{name}: weight must be [num_edges] = [{graph.num_edges}]{per_head}, got {list(weight.shape)}"
        )
    if x.dim() == 3 and x.size(0) == graph.num_src and heads not in (1, x.size(1)):
        raise ValueError(f"{name}: weight must be [num_edges, H] with H = {x.size(1)} of x, got {list(weight.shape)}")
    return weight.to(accumulate_dtype(features.dtype)).contiguous()
