"""SAGEConv: torch_geometric.nn.SAGEConv with gather and aggregate as one operator.

Hamilton, Ying and Leskovec, "Inductive Representation Learning on Large Graphs", NeurIPS 2017.
"""

from __future__ import annotations

from typing import Any, ClassVar, cast

import torch.nn.functional as F
import torch_geometric.nn
from torch import Tensor
from torch_geometric.nn.aggr import MultiAggregation
from torch_geometric.typing import OptPairTensor

from .._operands import accumulate_dtype
from ..aggregate import sum_rows
from ..graph import Graph
from ._inputs import Adjacency, as_edge_index, combine, reduce_along, reductions, unfused_features, wrap_edges
from .fallback import FusedLayer

__all__ = ["SAGEConv"]


class SAGEConv(FusedLayer, torch_geometric.nn.SAGEConv):  # type: ignore[misc]
    """``out_i = W_l * aggr(x_j for j -> i) + W_r * x_i``, as PyG's class of this name and with its weights.

    Constructor, initial weights under a seed, state_dict, repr, hooks and explainers are PyG's. One operator replaces
    the gather and the scatter for ``aggr`` sum, mean, max, min, std, var and lists of these (one pass over the edges);
    anything else runs PyG's path and is counted in :func:`gnnagg.stats`.
    """

    # Stated here because PyG's Inspector does not see the parent's comment in a class of the same name.
    propagate_type: ClassVar[dict[str, Any]] = {"x": OptPairTensor}

    def forward(self, x: Any, edge_index: Any, size: Any = None) -> Tensor:
        """Returns ``[num_dst, out_channels]``.

        Args:
            x: ``[N, in_channels]``, or ``(x_src, x_dst)``, or ``(x_src, None)``, which leaves the root term out;
                float32, float64, float16 or bfloat16. A static batch is ``[B, N, in_channels]``.
            edge_index: ``[2, E]`` integers, PyG EdgeIndex, torch sparse matrix or SparseTensor (rows = targets), or
                :class:`gnnagg.Graph`.
            size: ``(num_src, num_dst)``; None infers both from x.

        Raises:
            ValueError: shapes, sizes or devices do not fit.
            IndexError: a node id is out of range; see :meth:`gnnagg.Graph.from_edge_index`.
        """
        pair = (x, x) if isinstance(x, Tensor) else x
        found = self._fused_inputs(pair, edge_index, size)
        if isinstance(found, str):
            self._count_fallback(found)
            if isinstance(edge_index, Graph):
                if size is None and self.flow == "source_to_target":
                    size = (edge_index.num_src, edge_index.num_dst)
                edge_index, _ = as_edge_index(edge_index, self.flow)
            return cast(Tensor, super().forward(x, edge_index, size))
        adjacency, names = found
        source, target = pair
        if self.project and hasattr(self, "lin"):
            source = self.lin(source).relu()
        if adjacency.weight is None:
            outs = reduce_along(source, adjacency.graph, names, self.node_dim, self)
        else:
            outs = [sum_rows(source.contiguous(), adjacency.graph, adjacency.weight, mean=names == ("mean",))]
        out = combine(self.aggr_module, outs)
        self._count_fused()
        out = self.lin_l(out)
        if self.root_weight and target is not None:
            out = out + self.lin_r(target)
        if self.normalize:
            out = F.normalize(out, p=2.0, dim=-1)
        return out

    def _fused_inputs(self, pair: Any, edge_index: Any, size: Any) -> tuple[Adjacency, tuple[Any, ...]] | str:
        """Plan and reductions of the fused path, or why PyG's is taken."""
        names = reductions(self.aggr_module)
        if isinstance(names, str):
            return names
        mode = self._unfused_mode() or unfused_features(pair[0])
        if mode is not None:
            return mode
        adjacency = wrap_edges(self, edge_index, size, pair[0], pair[1])
        if isinstance(adjacency, str) or adjacency.weight is None:
            return adjacency if isinstance(adjacency, str) else (adjacency, names)
        if names not in (("sum",), ("mean",)) or isinstance(self.aggr_module, MultiAggregation):
            return f"aggr {self.aggr} over the values of a sparse matrix"
        if adjacency.weight.dtype != pair[0].dtype or pair[0].dim() != 2 or self.project:
            return "a sparse matrix whose values do not fit the features"
        return adjacency._replace(weight=adjacency.weight.to(accumulate_dtype(pair[0].dtype))), names
