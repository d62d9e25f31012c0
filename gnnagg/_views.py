"""Views of a graph in which every edge is a node: how messages ``[num_edges, F]`` are gathered and aggregated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ._csr import Csr, place_by

if TYPE_CHECKING:
    from .graph import Graph

__all__ = ["edge_view", "source_view"]


def edge_view(graph: Graph) -> tuple[Csr, Csr | None]:
    """Rows are those of ``graph``; the sources are its edges, by edge id."""
    edges = _edge_ids(graph, graph.perm)
    return Csr(graph.rowptr, edges, None, graph.num_edges), None


def source_view(graph: Graph) -> tuple[Csr, Csr | None]:
    """One row per edge id, with the edge's source in it."""
    col = graph.col.clamp(0, max(graph.num_src - 1, 0))  # a removed edge may hold any id; its message is not used
    if graph.perm is not None:
        col = place_by(graph.perm, col)
    rowptr = torch.arange(graph.num_edges + 1, device=graph.device).to(col.dtype)
    by_source = graph.transpose
    edges = _edge_ids(graph, by_source.perm)
    # Row e of the view is edge e, so an edge id is the slot of its edge too.
    transpose = Csr(by_source.rowptr, edges, edges, graph.num_edges, slot=edges)
    return Csr(rowptr, col, None, graph.num_src), transpose


def _edge_ids(graph: Graph, perm: Tensor | None) -> Tensor:
    """Edge id of each slot, written out where slots are in edge order."""
    return torch.arange(graph.num_edges, device=graph.device).to(graph.col.dtype) if perm is None else perm
