"""GCNConv: torch_geometric.nn.GCNConv with normalisation, gather and aggregate as one operator.

Kipf and Welling, "Semi-Supervised Classification with Graph Convolutional Networks", ICLR 2017.
"""

from __future__ import annotations

from typing import Any, ClassVar, cast

import torch
import torch_geometric.nn
import torch_geometric.typing
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.typing import OptTensor
from torch_geometric.utils import is_torch_sparse_tensor

from .._operands import FEATURE_DTYPES, accumulate_dtype
from ..graph import Graph
from ._gcn_norm import (
    Edges,
    NormalisedGraph,
    improved_counts_without_weights,
    loop_weights,
    normalise,
    remember,
    remembered,
    with_self_loops,
)
from ._inputs import Adjacency, as_edge_index, combine, reduce_along, reductions, unfused_features, wrap_edges
from .fallback import FusedLayer

__all__ = ["GCNConv"]


class GCNConv(FusedLayer, torch_geometric.nn.GCNConv):  # type: ignore[misc]
    """``out = D^-1/2 (A + I) D^-1/2 x W + b``, as PyG's class of this name and with its weights.

    Constructor, initial weights under a seed, state_dict, repr, hooks and explainers are PyG's. The coefficient of an
    edge is never stored: its two factors are kept per node, on the graph plan, and applied while gathering. Anything
    not covered runs PyG's path and is counted in :func:`gnnagg.stats`.
    """

    # Stated here because PyG's Inspector does not see the parent's comment in a class of the same name.
    propagate_type: ClassVar[dict[str, Any]] = {"x": Tensor, "edge_weight": OptTensor}
    _cached_edge_index: Any  # PyG's tuple, or a NormalisedGraph

    def forward(self, x: Any, edge_index: Any, edge_weight: Any = None) -> Tensor:
        """Returns ``[N, out_channels]``.

        Args:
            x: ``[N, in_channels]`` or a static batch ``[B, N, in_channels]``; float32, float64, float16 or bfloat16.
            edge_index: ``[2, E]`` integers, PyG EdgeIndex, torch sparse matrix (rows = targets) or
                :class:`gnnagg.Graph`.
            edge_weight: ``[E]`` or ``[E, 1]`` floating point, in the order of the edges; receives a gradient, through
                the normalisation too. Ignored, as in PyG, for a sparse matrix, which brings its own.

        Raises:
            ValueError: x is a tuple, or shapes, sizes or devices do not fit.
            IndexError: a node id is out of range; see :meth:`gnnagg.Graph.from_edge_index`.
        """
        if isinstance(x, (tuple, list)):
            return cast(Tensor, super().forward(x, edge_index, edge_weight))  # PyG's ValueError
        found = self._fused_inputs(x, edge_index, edge_weight)
        if isinstance(found, str):
            self._count_fallback(found)
            if isinstance(edge_index, Graph):
                edge_index, perm = as_edge_index(edge_index, self.flow)
                if edge_weight is not None:
                    edge_weight = edge_weight[: edge_index.size(1)] if perm is None else edge_weight[perm]
            return cast(Tensor, super().forward(x, edge_index, edge_weight))
        normalised, names = found
        x = self.lin(x)
        if normalised.dtype is None and names not in (("sum",), ("mean",)):
            out = combine(self.aggr_module, reduce_along(x, normalised.graph, names, self.node_dim, self))
        else:
            out = normalised.propagate(x, mean=names == ("mean",))
        self._count_fused()
        return out if self.bias is None else out + self.bias

    def _fused_inputs(self, x: Any, edges: Any, edge_weight: Any) -> tuple[NormalisedGraph, tuple[Any, ...]] | str:
        """Normalised plan and reductions of the fused path, or why PyG's is taken."""
        names = reductions(self.aggr_module)
        if isinstance(names, str):
            return names
        reason = self._unfused_mode() or unfused_features(x)
        if reason is not None:
            return reason
        if self.node_dim not in (-2, x.dim() - 2) or x.dim() > 3:
            return "node_dim"
        if not isinstance(edges, Graph):
            self._check_input(edges, None)
        linear = names in (("sum",), ("mean",))
        if self.normalize and not linear:
            return f"aggr {self.aggr} over weighted edges"
        normalised = self._normalised(x, edges, edge_weight)
        if isinstance(normalised, str):
            return normalised
        if normalised.graph.device != x.device:
            raise ValueError(f"GCNConv: x must be on the edges' device {normalised.graph.device}, got {x.device}")
        if normalised.dtype is not None and not linear:
            return f"aggr {self.aggr} over weighted edges"
        if normalised.loop is not None and names != ("sum",):
            return f"aggr {self.aggr} over a sparse matrix with self-loops"
        return normalised, names

    def _normalised(self, x: Tensor, edges: Any, edge_weight: Any) -> NormalisedGraph | str:
        if not self.normalize:
            return self._weighted(x, edges, edge_weight)
        cache: Any = self._cached_edge_index
        if cache is None:
            result = self._normalise(x, edges, edge_weight)
            if self.cached and isinstance(result, NormalisedGraph) and not torch.compiler.is_compiling():
                self._cached_edge_index = result
            return result
        if not isinstance(cache, NormalisedGraph):
            return self._weighted(x, *cache)
        if cache.graph.num_src != x.shape[self.node_dim]:
            return "features that do not fit the cached graph"
        return cache

    def _normalise(self, x: Tensor, edges: Any, edge_weight: Any) -> NormalisedGraph | str:
        """The layer's own normalisation of what it was called with."""
        if isinstance(edges, torch_geometric.typing.SparseTensor):
            return "normalisation of a torch_sparse.SparseTensor"
        is_sparse = is_torch_sparse_tensor(edges)
        if is_sparse and edges.layout == torch.sparse_csc:
            return "normalisation of a CSC matrix"
        fill = 2.0 if self.improved else 1.0
        if is_sparse:
            adjacency = self._plan(x, edges)
            if isinstance(adjacency, str):
                return adjacency
            graph, weight = adjacency
            assert weight is not None
            loop = fill if self.add_self_loops else None
            wide = accumulate_dtype(x.dtype)
            return normalise(graph, weight, weight.dtype, wide, flow=self.flow, loop=loop)
        weight, reason = self._flat_weight(edges, edge_weight, x)
        if reason is not None:
            return reason
        if weight is None and self.improved and improved_counts_without_weights():
            weight = x.new_ones(edges.num_edges if isinstance(edges, Graph) else edges.size(1))
        return self._normalise_edges(x, edges, weight, edge_weight, fill)

    def _normalise_edges(
        self, x: Tensor, edges: Any, weight: Tensor | None, owner: Any, fill: float
    ) -> NormalisedGraph | str:
        """Of an edge list or Graph with ``weight [E]``, which was given as the tensor ``owner``."""
        dtype = x.dtype if weight is None else weight.dtype
        wide = accumulate_dtype(torch.promote_types(dtype, x.dtype))
        if not self.add_self_loops:
            adjacency = self._plan(x, edges)
            if isinstance(adjacency, str):
                return adjacency
            looped, listed = adjacency.graph, None
        elif isinstance(edges, Graph):
            adjacency = self._plan(x, edges)
            if isinstance(adjacency, str):
                return adjacency
            looped, listed = with_self_loops(edges)
            if weight is not None and edges.perm is not None:
                weight = weight[edges.perm.long()]
        else:
            sizes = self._check_input(edges, None)
            self._set_size(sizes, 0, x)
            self._set_size(sizes, 1, x)
            plain = edges.as_tensor() if isinstance(edges, EdgeIndex) else edges
            num_nodes = x.shape[self.node_dim]
            looped = Graph.from_edge_index(plain, (num_nodes, num_nodes), flow=self.flow, self_loops="remove_add")
            listed = Edges(plain[0], plain[1], None)
        if weight is None:
            return normalise(looped, None, dtype, wide, flow=self.flow)
        key = (wide, fill, self.add_self_loops)
        known = remembered(looped, owner, key) if isinstance(owner, Tensor) else None
        if known is not None:
            return NormalisedGraph(looped, *known, None, dtype, self.flow)
        if listed is not None:
            weight = torch.cat([weight, loop_weights(looped, listed, weight, fill)])
        result = normalise(looped, weight, dtype, wide, flow=self.flow)
        if isinstance(owner, Tensor):
            remember(looped, owner, key, result)
        return result

    def _weighted(self, x: Tensor, edges: Any, edge_weight: Any) -> NormalisedGraph | str:
        """``edges`` as they are, without normalisation."""
        if isinstance(edges, torch_geometric.typing.SparseTensor) and edges.has_value():
            return "the values of a torch_sparse.SparseTensor"
        adjacency = self._plan(x, edges)
        if isinstance(adjacency, str):
            return adjacency
        graph, weight = adjacency
        if weight is None and not isinstance(edges, torch_geometric.typing.SparseTensor):
            weight, reason = self._flat_weight(edges, edge_weight, x)
            if reason is not None:
                return reason
        return NormalisedGraph(graph, weight, dtype=None if weight is None else weight.dtype, flow=self.flow)

    def _plan(self, x: Tensor, edges: Any) -> Adjacency | str:
        adjacency = wrap_edges(self, edges, None, x, x)
        if isinstance(adjacency, str) or adjacency.weight is None:
            return adjacency
        if torch.is_autocast_enabled(x.device.type):
            return "a sparse matrix under autocast"
        if adjacency.weight.dtype != x.dtype or x.dim() != 2:
            return "a sparse matrix whose values do not fit the features"
        return adjacency

    def _flat_weight(self, edges: Any, edge_weight: Any, x: Tensor) -> tuple[Tensor | None, str | None]:
        """``edge_weight`` as ``[E]``, or why it is not fused."""
        if edge_weight is None:
            return None, None
        num_edges = edges.num_edges if isinstance(edges, Graph) else edges.size(1)
        if not isinstance(edge_weight, Tensor) or edge_weight.dtype not in FEATURE_DTYPES:
            return None, f"edge_weight of dtype {getattr(edge_weight, 'dtype', type(edge_weight).__name__)}"
        fits = edge_weight.numel() == num_edges and edge_weight.dim() > 0 and edge_weight.size(0) == num_edges
        if not fits or edge_weight.device != x.device:
            return None, "edge_weight whose shape or device does not fit"
        return edge_weight.reshape(-1), None
