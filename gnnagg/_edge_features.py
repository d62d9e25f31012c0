"""Edge features of gatv2_attention and dot_attention, with their projection."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ._attention import as_matrix
from ._operands import accumulate_dtype
from .graph import Graph

__all__ = ["as_edge_features"]


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
