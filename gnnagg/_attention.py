"""What the attention ops share: checks on their arguments, the dropout seed, gathers to edges."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from ._operands import FEATURE_DTYPES
from .aggregate import sum_rows
from .dropout_mask import dropout_mask
from .graph import Graph

__all__ = [
    "as_heads",
    "as_matrix",
    "as_number",
    "as_scores",
    "as_seed",
    "check_dropout",
    "check_graph",
    "dropped_edges",
    "edge_gather",
]

Rows = Literal["num_src", "num_dst", "num_edges"]
_SEED_LOW, _SEED_HIGH = -(2**63), 2**63 - 1


def check_graph(name: str, graph: Any) -> None:
    """TypeError unless ``graph`` is a Graph."""
    if not isinstance(graph, Graph):
        raise TypeError(f"{name}: graph must be a gnnagg.Graph, got {type(graph).__name__}")


def as_heads(name: str, arg: str, value: Any, rows: Rows, graph: Graph) -> Tensor:
    """``value [rows, H, C]`` as contiguous ``[rows, H * C]``; TypeError or ValueError where it does not fit.

    Args:
        name: the function that was called, for messages.
        arg: the argument, for messages.
        value: what the caller gave.
        rows: which count of ``graph`` dimension 0 must be.
        graph: plan of the edges.
    """
    tensor = _as_tensor(name, arg, value, graph)
    if tensor.dtype not in FEATURE_DTYPES:
        expected = ", ".join(_name_of(dtype) for dtype in FEATURE_DTYPES)
        raise TypeError(f"{name}: {arg} must be one of {expected}, got {_name_of(tensor.dtype)}")
    count, shape = getattr(graph, rows), tensor.shape
    if len(shape) != 3 or shape[0] != count or shape[1] < 1 or shape[2] < 1:
        raise ValueError(
            f"{name}: {arg} must be [{rows}, H, C] with {rows} = {count} and H, C >= 1, got {list(tensor.shape)}"
        )
    return tensor.flatten(1).contiguous()


def as_scores(name: str, arg: str, value: Any, rows: Rows, heads: int, dtype: torch.dtype, graph: Graph) -> Tensor:
    """``value [rows, H]`` of any floating dtype, contiguous and in ``dtype``; a cast that gradients pass through."""
    tensor = _as_tensor(name, arg, value, graph)
    given = tensor.dtype
    if given != dtype and not given.is_floating_point:
        raise TypeError(f"{name}: {arg} must be floating point, got {_name_of(given)}")
    count = getattr(graph, rows)
    if tensor.shape != (count, heads):
        raise ValueError(f"{name}: {arg} must be [{rows}, H] = [{count}, {heads}], got {list(tensor.shape)}")
    return (tensor if given == dtype else tensor.to(dtype)).contiguous()


def as_number(name: str, arg: str, value: Any) -> float:
    """``value`` as a float; TypeError where it is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float | torch.SymFloat | torch.SymInt):
        raise TypeError(f"{name}: {arg} must be a float, got {type(value).__name__}")
    return float(value)


def as_matrix(name: str, arg: str, value: Any, rows: int, cols: int, what: str, dtype: torch.dtype) -> Tensor:
    """``value [rows, cols]`` of any floating dtype, contiguous and in ``dtype``; a cast that gradients pass through.

    Args:
        name: the function that was called, for messages.
        arg: the argument, for messages.
        value: what the caller gave.
        rows: size of dimension 0.
        cols: size of dimension 1.
        what: the shape in letters, for messages.
        dtype: accumulate dtype of the features.
    """
    if not isinstance(value, Tensor):
        raise TypeError(f"{name}: {arg} must be a torch.Tensor, got {type(value).__name__}")
    if not value.dtype.is_floating_point:
        raise TypeError(f"{name}: {arg} must be floating point, got {value.dtype}")
    if value.dim() != 2 or value.size(0) != rows or value.size(1) != cols:
        raise ValueError(f"{name}: {arg} must be {what} = [{rows}, {cols}], got {list(value.shape)}")
    return value.to(dtype).contiguous()


def check_dropout(name: str, dropout: Any) -> float:
    """``dropout`` as a float in [0, 1]."""
    if isinstance(dropout, bool) or not isinstance(dropout, int | float | torch.SymFloat):
        raise TypeError(f"{name}: dropout must be a float, got {type(dropout).__name__}")
    if not 0.0 <= dropout <= 1.0:
        raise ValueError(f"{name}: dropout must be in [0, 1], got {dropout}")
    return float(dropout)


def as_seed(name: str, seed: Any, dropout: float, device: torch.device) -> Tensor | None:
    """The dropout seed as int64 ``[1]`` on ``device``; None where nothing is dropped. Never synchronises.

    Args:
        name: the function that was called, for messages.
        seed: int64 tensor ``[1]`` on ``device``, a Python int, or None: drawn from torch's generator of the device.
        dropout: probability; 0 needs no seed, but the one given is checked all the same.
        device: where the op runs.
    """
    if isinstance(seed, Tensor):
        if seed.dtype != torch.int64:
            raise TypeError(f"{name}: seed must be an int64 tensor, an int or None, got {_name_of(seed.dtype)}")
        if seed.dim() != 1 or seed.size(0) != 1:
            raise ValueError(f"{name}: seed must be [1], got {list(seed.shape)}")
        if seed.device != device:
            raise ValueError(f"{name}: seed must be on the graph's device {device}, got {seed.device}")
        return seed.contiguous() if dropout > 0.0 else None
    if seed is None:
        if dropout == 0.0:
            return None
        return torch.randint(_SEED_HIGH, (1,), dtype=torch.int64, device=device)
    if isinstance(seed, bool) or not isinstance(seed, int | torch.SymInt):
        raise TypeError(f"{name}: seed must be an int64 tensor, an int or None, got {type(seed).__name__}")
    if not _SEED_LOW <= seed <= _SEED_HIGH:
        raise ValueError(f"{name}: seed must be in [-2**63, 2**63), got {seed}")
    return torch.full((1,), int(seed), dtype=torch.int64, device=device) if dropout > 0.0 else None


def dropped_edges(seed: Tensor | None, graph: Graph, heads: int, dropout: float, dtype: torch.dtype) -> Tensor | None:
    """Multiplier ``[num_edges, heads]`` of the attention weights in ``dtype``; None where nothing is dropped."""
    if seed is None:
        return None
    kept = dropout_mask(seed, graph.num_edges, heads, dropout) > 0
    return kept.to(dtype) * (1.0 / (1.0 - dropout) if dropout < 1.0 else 0.0)


def edge_gather(x: Tensor, graph: Graph, end: Literal["source", "target"]) -> Tensor:
    """``[num_edges, F]``: the row of ``x [N, F]`` at the source or the target of every edge, in edge order.

    A removed self-loop gets some row of x; nothing flows back from it. Differentiable, and deterministic in both
    directions.
    """
    view = graph.source_view() if end == "source" else graph.target_view()
    return sum_rows(x.contiguous(), view)


def _as_tensor(name: str, arg: str, value: Any, graph: Graph) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name}: {arg} must be a torch.Tensor, got {type(value).__name__}")
    if value.device != graph.device:
        raise ValueError(f"{name}: {arg} must be on the graph's device {graph.device}, got {value.device}")
    return value


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
