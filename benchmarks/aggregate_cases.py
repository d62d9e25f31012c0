"""Cases of aggregate: a reduction over the neighbours, forward or backward, and how a contender computes it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from benchmarks import checking
from benchmarks.graphs import GraphData
from benchmarks.harness import Call, Case, Contender, Direction, Mode, launch_scope, load_gnnagg

__all__ = ["AggregateCase", "AggregateContender", "Gnnagg", "Op", "make_case"]

Op = Literal["sum", "max"]


@dataclass(frozen=True, eq=False)
class AggregateCase(Case):
    op: Op
    grad: Tensor | None = None  # [N, F], gradient of the result; None for forward cases
    reference: Tensor | None = None  # float64 [N, F] or [N, len(columns)]; None: computed when needed
    columns: Tensor | None = None  # the columns that the reference covers; None: all
    scale: Tensor | None = None  # of the errors, shaped like the reference; None: by row

    @property
    def features(self) -> int:
        return self.x.size(1)

    def with_reference(self) -> AggregateCase:
        """This case with its float64 reference; gradients are checked on a sample of the columns."""
        if self.reference is not None:
            return self
        if self.grad is None:
            return replace(self, reference=checking.reference_forward(self.x, self.graph, self.op))
        columns = checking.sample_columns(self.features).to(self.x.device)
        x, grad = self.x[:, columns], self.grad[:, columns]
        reference = checking.reference_backward(x, grad, self.graph, self.op)
        squares = checking.reference_backward(x, grad.double().square(), self.graph, self.op)
        return replace(self, reference=reference, columns=columns, scale=squares.sqrt_())

    def error(self, result: Tensor) -> checking.Error:
        assert self.reference is not None
        return checking.compare(result, self.reference, self.columns, self.scale)


def make_case(
    op: Op, graph: GraphData, features: int, dtype: torch.dtype, direction: Direction = "fwd", *, seed: int = 1
) -> AggregateCase:
    """A case with normal random inputs."""
    generator = torch.Generator(device=graph.device).manual_seed(seed)

    def normal() -> Tensor:
        shape = (graph.num_nodes, features)
        return torch.randn(shape, generator=generator, device=graph.device).to(dtype)

    x = normal()
    return AggregateCase(op, graph, dtype, direction, x, None if direction == "fwd" else normal())


class AggregateContender(Contender):
    def forward(self, x: Tensor) -> Tensor:
        """The aggregate of x [N, F] over the neighbours, [N, F]."""
        raise NotImplementedError

    def bind(self, case: AggregateCase) -> Call:
        grad = case.grad
        if grad is None:
            return self.forward

        if case.direction == "bwd":
            leaf = case.x.detach().requires_grad_()
            out = self.forward(leaf)
            return lambda _x: torch.autograd.grad(out, leaf, grad, retain_graph=True)[0]

        def forward_and_backward(x: Tensor) -> Tensor:
            leaf = x.detach().requires_grad_()
            return torch.autograd.grad(self.forward(leaf), leaf, grad)[0]

        return forward_and_backward


class Ours(Contender):
    """This project's side of any contender: the launch mode, the package, and its plan of the case's graph."""

    name = "gnnagg"
    rival = False

    def __init__(self, mode: Mode = "auto") -> None:
        super().__init__()
        self.mode = mode
        self._package = load_gnnagg()
        self._plan: Any = None

    def prepare(self, case: Any) -> None:
        super().prepare(case)
        self._plan = plan_of(case.graph)

    def scope(self) -> AbstractContextManager[Any]:
        return launch_scope(self.mode)

    def release(self) -> None:
        super().release()
        self._plan = None


class Gnnagg(Ours, AggregateContender):
    """This project's aggregate."""

    _op: Op = "sum"

    def prepare(self, case: AggregateCase) -> None:
        super().prepare(case)
        self._op = case.op

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self._package.aggregate(x, self._plan, reduce=self._op)
        return out


def plan_of(graph: GraphData) -> Any:
    """This project's plan of the graph."""
    index = torch.int32 if graph.num_edges < 2**31 - 1 else torch.int64
    return load_gnnagg().Graph.from_csr(graph.rowptr.to(index), graph.col.to(index), graph.num_nodes)
