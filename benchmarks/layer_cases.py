"""Whole attention layers: PyG's, eager and compiled, and what a layer of this project does with the same weights.

The right results are those of PyG's layer in float64: its output and the gradients of x and of every parameter.
"""

from __future__ import annotations

import copy
import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import checking
from benchmarks.aggregate_cases import Ours
from benchmarks.attention_cases import TOLERANCE, TrainedContender
from benchmarks.attention_checks import NEGATIVE_SLOPE
from benchmarks.attention_opponents import edge_index_of
from benchmarks.graphs import GraphData
from benchmarks.harness import Case, Direction

__all__ = ["LAYERS", "GnnaggLayer", "LayerCase", "LayerProblem", "PygLayer"]

LAYERS = {"gat_layer": "GATConv", "gatv2_layer": "GATv2Conv", "transformer_layer": "TransformerConv"}


@dataclass(eq=False)
class LayerProblem:
    """One layer of PyG with random weights, without self-loops, its input, and its right results."""

    op: str
    graph: GraphData
    in_channels: int
    heads: int
    channels: int
    seed: int = 1
    layer: Any = field(init=False)
    x: Tensor = field(init=False)
    grad: Tensor = field(init=False)
    edge_index: Tensor = field(init=False)

    def __post_init__(self) -> None:
        device = self.graph.device
        generator = torch.Generator(device=device).manual_seed(self.seed)
        kind = getattr(importlib.import_module("torch_geometric.nn"), LAYERS[self.op])
        options: dict[str, Any] = {} if self.op == "transformer_layer" else {"add_self_loops": False}
        torch.manual_seed(self.seed)
        self.layer = kind(self.in_channels, self.channels, heads=self.heads, **options).to(device)
        self.x = torch.randn(self.graph.num_nodes, self.in_channels, generator=generator, device=device)
        self.grad = torch.randn(self.graph.num_nodes, self.heads * self.channels, generator=generator, device=device)
        self.edge_index = edge_index_of(self.graph)

    @cached_property
    def results(self) -> dict[str, Tensor]:
        """`out` and the gradients of `x` and of the parameters by their names, in float64."""
        layer = copy.deepcopy(self.layer).double()
        x = self.x.double().requires_grad_()
        out = layer(x, self.edge_index)
        leaves = {"x": x, **dict(layer.named_parameters())}
        grads = torch.autograd.grad(out, list(leaves.values()), self.grad.double())
        return {"out": out.detach(), **dict(zip(leaves, grads, strict=True))}

    def error(self, name: str, got: Tensor) -> checking.Error:
        """The error's norm over the result's; for a bias over its weight's, where that is larger in the mean square.

        A norm, because a score within rounding of 0 may fall on either side of the leaky ReLU's kink, which changes the
        gradient of one edge. The weight, because the gradient of the bias of the keys is zero: a shift of every score
        changes no attention.
        """
        want = self.results[name]
        weight = self.results.get(name.replace("bias", "weight"), want)
        gap = (got.double() - want).square().mean().sqrt()
        scaled = float(gap / torch.maximum(want.square().mean(), weight.square().mean()).sqrt())
        return checking.Error(scaled if math.isfinite(scaled) else math.inf, scaled)

    def case(self, direction: Direction) -> LayerCase:
        return LayerCase(self.op, self.graph, self.x.dtype, direction, self.x, self)


@dataclass(frozen=True, eq=False)
class LayerCase(Case):
    problem: LayerProblem

    @property
    def shape(self) -> list[int]:
        return [self.graph.num_nodes, self.problem.heads, self.problem.channels]

    @property
    def gathered(self) -> int:
        return self.problem.heads * self.problem.channels

    @property
    def tolerance(self) -> float:
        return TOLERANCE[self.dtype]

    def with_reference(self) -> LayerCase:
        assert self.problem.results
        return self

    def error(self, result: Any) -> checking.Error:
        names = [name for name in self.problem.results if (name == "out") == (self.direction == "fwd")]
        return checking.worst(self.problem.error(name, got) for name, got in zip(names, result, strict=True))


class _Layer(TrainedContender):
    def __init__(self) -> None:
        self._problem: LayerProblem | None = None

    def prepare(self, case: LayerCase) -> None:
        self._problem = case.problem

    def others(self, case: LayerCase) -> list[Tensor]:
        return list(case.problem.layer.parameters())

    def leaf(self, tensor: Tensor) -> Tensor:
        return tensor if isinstance(tensor, nn.Parameter) else super().leaf(tensor)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.layer(inputs[0])  # the parameters are those of the layer

    def layer(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def release(self) -> None:
        self._problem = None


class PygLayer(_Layer):
    """PyG's layer, eager or through torch.compile."""

    def __init__(self, *, compiled: bool = False) -> None:
        super().__init__()
        self.name = "PyG compiled" if compiled else "PyG eager"
        self._compiled = compiled
        self._call: Callable[..., Tensor] | None = None

    def prepare(self, case: LayerCase) -> None:
        super().prepare(case)
        self._call = torch.compile(case.problem.layer) if self._compiled else case.problem.layer

    def layer(self, x: Tensor) -> Tensor:
        assert self._problem is not None and self._call is not None
        return self._call(x, self._problem.edge_index)

    def release(self) -> None:
        super().release()
        self._call = None


class GnnaggLayer(Ours, _Layer):
    """This project's ops between the same linear layers."""

    def layer(self, x: Tensor) -> Tensor:
        assert self._problem is not None
        compose = {"gat_layer": self._gat, "gatv2_layer": self._gatv2, "transformer_layer": self._transformer}
        return compose[self._problem.op](self._problem.layer, x)

    def _gat(self, layer: Any, x: Tensor) -> Tensor:
        """The scores <a, W x> are taken from x by the folded matrix W' a, H more columns of a product each."""
        weight = layer.lin.weight.unflatten(0, (layer.heads, -1))  # [H, C, in]
        attention = torch.cat([layer.att_src, layer.att_dst])  # [2, H, C]
        folded = torch.einsum("shc,hci->shi", attention, weight).flatten(0, 1)  # [2 H, in]
        a_src, a_dst = F.linear(x, folded).chunk(2, 1)
        z = layer.lin(x).unflatten(1, (layer.heads, -1))
        out: Tensor = self._package.gat_attention(z, a_src, a_dst, self._plan, negative_slope=NEGATIVE_SLOPE)
        out = out.flatten(1) + layer.bias
        return out

    def _gatv2(self, layer: Any, x: Tensor) -> Tensor:
        left, right = (lin(x).unflatten(1, (layer.heads, -1)) for lin in (layer.lin_l, layer.lin_r))
        attend = self._package.gatv2_attention
        out: Tensor = attend(left, right, layer.att.squeeze(0), self._plan, negative_slope=NEGATIVE_SLOPE)
        out = out.flatten(1) + layer.bias
        return out

    def _transformer(self, layer: Any, x: Tensor) -> Tensor:
        projections = (layer.lin_query, layer.lin_key, layer.lin_value)
        query, key, value = (lin(x).unflatten(1, (layer.heads, -1)) for lin in projections)
        out: Tensor = self._package.dot_attention(query, key, value, self._plan)
        out = out.flatten(1) + layer.lin_skip(x)
        return out
