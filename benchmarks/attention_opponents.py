"""PyG's attention as opponents of the ops: what its layers do after their linear layers, on the same tensors."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import torch
from torch import Tensor

from benchmarks.attention_cases import AttentionCase, TrainedContender
from benchmarks.attention_checks import NEGATIVE_SLOPE
from benchmarks.graphs import GraphData

__all__ = ["PygConv", "PygSoftmax", "edge_index_of"]


def edge_index_of(graph: GraphData) -> Tensor:
    """[2, E] int64, sorted by target."""
    return torch.stack([graph.col.long(), graph.row.long()])


class _Pyg(TrainedContender):
    def __init__(self) -> None:
        self._edge_index = torch.empty(0)

    def supports(self, case: AttentionCase) -> bool:
        return importlib.util.find_spec("torch_geometric") is not None

    def release(self) -> None:
        self._edge_index = torch.empty(0)


class PygConv(_Pyg):
    """`edge_updater` and `propagate` of GATConv, GATv2Conv or TransformerConv."""

    name = "PyG eager"

    def __init__(self) -> None:
        super().__init__()
        self._layer: Any = None
        self._op = ""

    def supports(self, case: AttentionCase) -> bool:
        return super().supports(case) and case.op in ("gat", "gatv2", "dot")

    def prepare(self, case: AttentionCase) -> None:
        nn = importlib.import_module("torch_geometric.nn")
        heads, channels = case.problem.heads, case.problem.channels
        self._op, self._edge_index = case.op, edge_index_of(case.graph)
        options: dict[str, Any] = {"heads": heads, "bias": False}
        if case.op == "dot":
            layer = nn.TransformerConv(1, channels, root_weight=False, **options)
        else:
            kind = nn.GATConv if case.op == "gat" else nn.GATv2Conv
            layer = kind(1, channels, negative_slope=NEGATIVE_SLOPE, add_self_loops=False, **options)
        self._layer = layer.to(case.x.device)

    def forward(self, *inputs: Tensor) -> Tensor:
        layer, edge_index = self._layer, self._edge_index
        out: Tensor
        if self._op == "dot":
            query, key, value = inputs
            out = layer.propagate(edge_index, query=query, key=key, value=value, edge_attr=None)
            layer._alpha = None
            return out
        if self._op == "gat":
            z, *scores = inputs
            alpha = layer.edge_updater(edge_index, alpha=tuple(scores), edge_attr=None, size=None)
            out = layer.propagate(edge_index, x=(z, z), alpha=alpha, size=None)
            return out
        left, right, att = inputs
        layer._parameters.pop("att", None)  # what gradients are asked for takes its place
        layer.att = att.unsqueeze(0)
        alpha = layer.edge_updater(edge_index, x=(left, right), edge_attr=None)
        out = layer.propagate(edge_index, x=(left, right), alpha=alpha)
        return out

    def release(self) -> None:
        super().release()
        self._layer = None


class PygSoftmax(_Pyg):
    """`torch_geometric.utils.softmax` on the target of every edge."""

    name = "PyG softmax"

    def __init__(self) -> None:
        super().__init__()
        self._nodes = 0

    def supports(self, case: AttentionCase) -> bool:
        return super().supports(case) and case.op == "edge_softmax"

    def prepare(self, case: AttentionCase) -> None:
        self._edge_index, self._nodes = case.graph.row.long(), case.graph.num_nodes

    def forward(self, *inputs: Tensor) -> Tensor:
        softmax = importlib.import_module("torch_geometric.utils").softmax
        out: Tensor = softmax(*inputs, self._edge_index, num_nodes=self._nodes)
        return out
