"""Arguments of gatv2_attention and dot_attention: numbers, parameters, and edge features with their projection."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._operands import accumulate_dtype
from .dropout_mask import dropout_mask
from .graph import Graph

__all__ = ["as_edge_features", "as_matrix", "as_number", "composed", "dropped_edges"]


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


def as_edge_features(
    name: str, edge_attr: Any, edge_weight_matrix: Any, features: Tensor, graph: Graph
) -> tuple[Tensor | None, Tensor | None]:
    """``edge_attr [num_edges, D]`` in the dtype of ``features [.., F]`` and ``edge_weight_matrix [F, D]`` wider.

    Both are None where there are none, or no columns, which add nothing.
    """
    if edge_attr is None and edge_weight_matrix is None:
        return None, None
    if edge_attr is None or edge_weight_matrix is None:
        missing, given = "edge_weight_matrix", "edge_attr"
        if edge_attr is None:
            missing, given = given, missing
        raise ValueError(f"{name}: {missing} must be given together with {given}, got None")
    if not isinstance(edge_attr, Tensor):
        raise TypeError(f"{name}: edge_attr must be a torch.Tensor, got {type(edge_attr).__name__}")
    if not edge_attr.dtype.is_floating_point:
        raise TypeError(f"{name}: edge_attr must be floating point, got {edge_attr.dtype}")
    for arg, tensor in (("edge_attr", edge_attr), ("edge_weight_matrix", edge_weight_matrix)):
        if isinstance(tensor, Tensor) and tensor.device != graph.device:
            raise ValueError(f"{name}: {arg} must be on the graph's device {graph.device}, got {tensor.device}")
    if edge_attr.dim() not in (1, 2) or edge_attr.size(0) != graph.num_edges:
        raise ValueError(
            f"{name}: edge_attr must be [num_edges, D] or [num_edges] with num_edges = {graph.num_edges}, "
            f"got {list(edge_attr.shape)}"
        )
    rows = edge_attr.unsqueeze(1) if edge_attr.dim() == 1 else edge_attr
    matrix = as_matrix(
        name,
        "edge_weight_matrix",
        edge_weight_matrix,
        features.size(-1),
        rows.size(1),
        "[H * C, D]",
        accumulate_dtype(features.dtype),
    )
    if rows.size(1) == 0:
        return None, None
    return rows.to(features.dtype).contiguous(), matrix


def dropped_edges(seed: Tensor | None, graph: Graph, heads: int, dropout: float, dtype: torch.dtype) -> Tensor | None:
    """Multiplier ``[num_edges, heads]`` of the attention weights in ``dtype``; None where nothing is dropped."""
    if seed is None:
        return None
    kept = dropout_mask(seed, graph.num_edges, heads, dropout) > 0
    return kept.to(dtype) * (1.0 / (1.0 - dropout) if dropout < 1.0 else 0.0)


def composed(attr: Tensor | None, graph: Graph) -> bool:
    """Whether an op is put together from scores, edge_softmax and sums: its CUDA kernels take no edge features.

    That keeps ``[num_edges, H]`` for the backward, and nothing of ``[num_edges, H, C]``.
    """
    return attr is not None and graph.device.type == "cuda"
