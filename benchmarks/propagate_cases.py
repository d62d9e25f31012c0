"""K hops in one call, against one call per hop and against PyG's APPNP; weights of symmetric normalisation."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from benchmarks import checking
from benchmarks.aggregate_cases import Ours
from benchmarks.attention_cases import TrainedContender
from benchmarks.attention_opponents import edge_index_of
from benchmarks.graphs import GraphData
from benchmarks.harness import Case, Direction

__all__ = ["HopByHop", "OneCall", "PropagateCase", "PropagateProblem", "PygAppnp"]


@dataclass(eq=False)
class PropagateProblem:
    graph: GraphData
    features: int
    hops: int
    teleport: float
    seed: int = 1
    x: Tensor = field(init=False)
    grad: Tensor = field(init=False)
    weight: Tensor = field(init=False)  # [E] 1 / sqrt(in-degree of target x out-degree of source)

    def __post_init__(self) -> None:
        graph = self.graph
        generator = torch.Generator(device=graph.device).manual_seed(self.seed)
        shape = (graph.num_nodes, self.features)
        self.x, self.grad = (torch.randn(shape, generator=generator, device=graph.device) for _ in range(2))
        sources = torch.bincount(graph.col, minlength=graph.num_nodes)
        self.weight = (sources[graph.col] * graph.degree[graph.row]).double().rsqrt_().float()

    @cached_property
    def results(self) -> dict[Direction, Tensor]:
        """The last hop, and the gradient of x, in float64."""
        x = self.x.double().requires_grad_()
        hop, weight = x, self.weight.double().unsqueeze(1)
        for _ in range(self.hops):
            arrived = torch.zeros_like(x).index_add(0, self.graph.row, hop.index_select(0, self.graph.col) * weight)
            hop = (1 - self.teleport) * arrived + self.teleport * x
        (grad,) = torch.autograd.grad(hop, x, self.grad.double())
        return {"fwd": hop.detach(), "fwd+bwd": grad}

    def case(self, direction: Direction) -> PropagateCase:
        return PropagateCase("propagate", self.graph, self.x.dtype, direction, self.x, self)


@dataclass(frozen=True, eq=False)
class PropagateCase(Case):
    problem: PropagateProblem

    @property
    def gathered(self) -> int:
        return self.problem.hops * self.problem.features

    def with_reference(self) -> PropagateCase:
        assert self.problem.results
        return self

    def error(self, result: Any) -> checking.Error:
        return checking.compare(result[0], self.problem.results[self.direction])


class _Hops(TrainedContender):
    def __init__(self) -> None:
        self._problem: PropagateProblem | None = None

    @property
    def problem(self) -> PropagateProblem:
        assert self._problem is not None
        return self._problem

    def prepare(self, case: PropagateCase) -> None:
        self._problem = case.problem

    def others(self, case: PropagateCase) -> list[Tensor]:
        return []

    def release(self) -> None:
        self._problem = None


class OneCall(Ours, _Hops):
    """This project's propagate."""

    def forward(self, *inputs: Tensor) -> Tensor:
        weight, teleport = self.problem.weight, self.problem.teleport
        out: Tensor = self._package.propagate(*inputs, self._plan, self.problem.hops, weight=weight, teleport=teleport)
        return out


class HopByHop(OneCall):
    """This project's aggregate, once per hop."""

    name = "own aggregate per hop"

    def forward(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        hop = x
        for _ in range(self.problem.hops):
            hop = self._package.aggregate(hop, self._plan, weight=self.problem.weight)
            if self.problem.teleport:
                hop = torch.lerp(hop, x, self.problem.teleport)
        return hop


class PygAppnp(_Hops):
    name = "PyG APPNP"

    def __init__(self) -> None:
        super().__init__()
        self._layer: Any = None
        self._edge_index = torch.empty(0)

    def supports(self, case: PropagateCase) -> bool:
        return importlib.util.find_spec("torch_geometric") is not None

    def prepare(self, case: PropagateCase) -> None:
        super().prepare(case)
        appnp = importlib.import_module("torch_geometric.nn").APPNP
        self._layer = appnp(case.problem.hops, case.problem.teleport, normalize=False)
        self._edge_index = edge_index_of(case.graph)

    def forward(self, *inputs: Tensor) -> Tensor:
        out: Tensor = self._layer(*inputs, self._edge_index, self.problem.weight)
        return out

    def release(self) -> None:
        super().release()
        self._layer, self._edge_index = None, torch.empty(0)
