"""What a layer may be called with, as the operators want it: graph plan, edge weights, reductions, feature layout."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
import torch_geometric.typing
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.nn import aggr
from torch_geometric.utils import is_torch_sparse_tensor

from .. import _graph_cache
from .._operands import FEATURE_DTYPES
from ..aggregate import Reduce, reduce_features
from ..graph import Graph

__all__ = ["Adjacency", "as_edge_index", "combine", "reduce_along", "reductions", "unfused_features", "wrap_edges"]

_REDUCTIONS: dict[type, Reduce] = {
    aggr.SumAggregation: "sum",
    aggr.MeanAggregation: "mean",
    aggr.MaxAggregation: "max",
    aggr.MinAggregation: "min",
    aggr.StdAggregation: "std",
    aggr.VarAggregation: "var",
}


class Adjacency(NamedTuple):
    """Edges as the operators take them.

    Attributes:
        graph: rows are the nodes that messages are aggregated at.
        weight: ``[E]`` values of a sparse matrix in its own order, or None.
    """

    graph: Graph
    weight: Tensor | None


def reductions(module: Any) -> tuple[Reduce, ...] | str:
    """The reductions that an aggregation module computes, in order, or why it is not fused."""
    parts = list(module.aggrs) if type(module) is aggr.MultiAggregation else [module]
    names: list[Reduce] = []
    for part in parts:
        name = _REDUCTIONS.get(type(part))
        if name is None:
            return f"aggr {type(part).__name__}"
        if getattr(part, "semi_grad", False) or getattr(getattr(part, "var_aggr", None), "semi_grad", False):
            return f"aggr {type(part).__name__} with semi_grad"
        if name in names:  # PyG's own fusion gives the first of two means undivided
            return f"aggr {type(part).__name__} twice"
        names.append(name)
    return tuple(names)


def unfused_features(x: Any) -> str | None:
    """Why features ``x`` are not fused; None when they are."""
    if not isinstance(x, Tensor):
        return f"features of type {type(x).__name__}"
    if x.layout != torch.strided:
        return f"features of layout {x.layout}"
    if x.dtype not in FEATURE_DTYPES:
        return f"features of dtype {x.dtype}"
    if x.dim() < 2:
        return "features of one dimension"
    if x.device.type not in ("cpu", "cuda"):
        return f"device {x.device.type}"
    return None


def wrap_edges(layer: Any, edges: Any, size: Any, src: Tensor, dst: Tensor | None) -> Adjacency | str:
    """The plan of ``edges`` for messages from ``src`` to ``dst``, or why it is not fused.

    Args:
        layer: the PyG layer; its ``flow``, ``node_dim`` and input checks apply.
        edges: edge_index, PyG EdgeIndex, torch sparse matrix, torch_sparse.SparseTensor or gnnagg.Graph.
        size: PyG's size argument.
        src: features with one row per source along ``layer.node_dim``.
        dst: likewise for the targets, or None.

    Raises:
        ValueError: as PyG does, for a wrong type, shape, size or flow.
        IndexError: a node id is out of range.
    """
    if isinstance(edges, Graph):
        sizes = [edges.num_src, edges.num_dst]
        if size is not None and any(given not in (None, known) for given, known in zip(size, sizes, strict=True)):
            raise ValueError(f"{type(layer).__name__}: size must be {tuple(sizes)} as in the graph, got {tuple(size)}")
    else:
        sizes = layer._check_input(edges, size)
    layer._set_size(sizes, 0, src)
    if isinstance(dst, Tensor):
        layer._set_size(sizes, 1, dst)
    if isinstance(edges, Graph):
        return Adjacency(edges, None)
    if isinstance(edges, torch_geometric.typing.SparseTensor):
        _, col, _ = edges.csr()
        return Adjacency(_sparse_plan(edges, col), None)
    if is_torch_sparse_tensor(edges):
        return _wrap_torch_sparse(edges)
    if isinstance(edges, EdgeIndex):
        edges = edges.as_tensor()
    to_target = layer.flow == "source_to_target"
    i, j = (1, 0) if to_target else (0, 1)
    num_dst = sizes[i] if sizes[i] is not None else sizes[j]
    num_src = src.size(layer.node_dim)
    counts = (num_src, num_dst) if to_target else (num_dst, num_src)
    return Adjacency(Graph.from_edge_index(edges, counts, flow=layer.flow), None)


def _wrap_torch_sparse(adj_t: Tensor) -> Adjacency | str:
    if adj_t.layout == torch.sparse_coo and not adj_t.is_coalesced():
        return "an uncoalesced sparse matrix"
    if adj_t.requires_grad:
        return "a sparse matrix that requires grad"
    values = adj_t.values()
    if values.dim() != 1 or values.dtype not in FEATURE_DTYPES:
        return f"a sparse matrix with values {list(values.shape)} of {values.dtype}"
    return Adjacency(_sparse_plan(adj_t, adj_t), values)


def _sparse_plan(adj_t: Any, key: Tensor) -> Graph:
    """Graph.from_sparse, kept as long as ``key`` lives."""
    name = ("from_sparse", adj_t.size(0), adj_t.size(1))
    graph = _graph_cache.lookup(key, name)
    if graph is None:
        graph = Graph.from_sparse(adj_t)
        _graph_cache.store(key, name, graph)
    return graph


def as_edge_index(graph: Graph, flow: str) -> tuple[Tensor, Tensor | None]:
    """``edge_index [2, E]`` of ``graph`` and the id ``[E]`` of each of its edges (None: 0, 1, ...), for PyG's path."""
    live = int(graph.rowptr[-1])
    dst = torch.arange(graph.num_dst, device=graph.device).repeat_interleave(graph.in_degree().long())
    src = graph.col[:live].long()
    perm = None if graph.perm is None else graph.perm[:live].long()
    return torch.stack((src, dst) if flow == "source_to_target" else (dst, src)), perm


def reduce_along(x: Tensor, graph: Graph, names: tuple[Reduce, ...], node_dim: int, layer: Any) -> list[Tensor]:
    """One tensor per reduction: ``x`` with its sources along ``node_dim`` replaced by the aggregated targets."""
    if x.device != graph.device:
        raise ValueError(f"{type(layer).__name__}: x must be on the edges' device {graph.device}, got {x.device}")
    axis = node_dim if node_dim >= 0 else node_dim + x.dim()
    if axis == x.dim() - 2 and x.dim() <= 3:
        return list(reduce_features(x.contiguous(), graph, None, names, x.dtype))
    rows = x.movedim(axis, 0)
    outs = reduce_features(rows.flatten(1).contiguous(), graph, None, names, x.dtype)
    return [out.reshape(-1, *rows.shape[1:]).movedim(0, axis) for out in outs]


def combine(module: Any, outs: list[Tensor]) -> Tensor:
    """The result of an aggregation module from those of its parts: several are joined as its ``mode`` says."""
    if isinstance(module, aggr.MultiAggregation):
        return cast(Tensor, module.combine(outs))
    return outs[0]
