"""Cases of the attention ops and how this project computes them.

A forward case is a training forward: its inputs require gradients, so that what backward needs is computed and kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from benchmarks import checking
from benchmarks.aggregate_cases import Ours
from benchmarks.attention_checks import NEGATIVE_SLOPE, Checked, attention_reference, softmax_reference
from benchmarks.graphs import GraphData
from benchmarks.harness import Call, Case, Contender, Direction

__all__ = ["TOLERANCE", "AttentionCase", "GnnaggAttention", "Problem", "TrainedContender", "shape_of"]

# Largest scaled error that counts as right. Backward reads what forward rounded: out, and so <dO_i, out_i>, which is
# taken from the product of every edge of the row. In the half types that adds up over the row, several roundoffs wide.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-4, torch.float16: 5e-3, torch.bfloat16: 4e-2}


def shape_of(text: str) -> tuple[int, int]:
    """Heads and channels of "4x32"."""
    heads, channels = text.split("x")
    return int(heads), int(channels)


@dataclass(eq=False)
class Problem:
    """Random inputs of one op in one shape, the same for every direction and contender, and their right results."""

    op: str
    graph: GraphData
    heads: int
    channels: int
    dtype: torch.dtype
    backward: bool = True  # whether gradients will be asked for
    seed: int = 1
    inputs: dict[str, Tensor] = field(init=False)
    grad: Tensor = field(init=False)

    def __post_init__(self) -> None:
        generator = torch.Generator(device=self.graph.device).manual_seed(self.seed)
        nodes, heads, channels = self.graph.num_nodes, self.heads, self.channels

        def normal(*shape: int, dtype: torch.dtype = self.dtype) -> Tensor:
            return torch.randn(shape, generator=generator, device=self.graph.device).to(dtype)

        wide = torch.float64 if self.dtype == torch.float64 else torch.float32  # of scores and of att
        rows = (nodes, heads, channels)
        make: dict[str, Callable[[], dict[str, Tensor]]] = {
            "gat": lambda: {
                "z": normal(*rows),
                "a_src": normal(nodes, heads, dtype=wide),
                "a_dst": normal(nodes, heads, dtype=wide),
            },
            "gatv2": lambda: {
                "l": normal(*rows),
                "r": normal(*rows),
                "att": normal(heads, channels, dtype=wide) / channels**0.5,
            },
            "dot": lambda: {"q": normal(*rows), "k": normal(*rows), "v": normal(*rows)},
            "edge_softmax": lambda: {"score": normal(self.graph.num_edges, heads)},
        }
        self.inputs = make[self.op]()
        self.grad = normal(self.graph.num_edges, heads) if self.op == "edge_softmax" else normal(*rows)

    @cached_property
    def results(self) -> Mapping[str, Checked]:
        """By name: out, and the inputs for their gradients."""
        grad = self.grad if self.backward else None
        if self.op == "edge_softmax":
            return softmax_reference(self.graph, self.inputs["score"], grad)
        return attention_reference(self.op, self.graph, self.inputs, grad)

    def case(self, direction: Direction) -> AttentionCase:
        first = next(iter(self.inputs.values()))
        return AttentionCase(self.op, self.graph, self.dtype, direction, first, self)


@dataclass(frozen=True, eq=False)
class AttentionCase(Case):
    problem: Problem

    @property
    def gathered(self) -> int:
        rows = {"dot": 2, "edge_softmax": 0}.get(self.op, 1)  # keys and values; the scores are read in order
        return rows * self.problem.heads * self.problem.channels

    @property
    def tolerance(self) -> float:
        return TOLERANCE[self.dtype]

    def with_reference(self) -> AttentionCase:
        assert self.problem.results
        return self

    def error(self, result: Any) -> checking.Error:
        """Of out (forward) or of the gradients in the order of the inputs."""
        names = ["out"] if self.direction == "fwd" else list(self.problem.inputs)
        return checking.worst(self.problem.results[name].error(got) for name, got in zip(names, result, strict=True))


class TrainedContender(Contender):
    """Computes a function of several tensors and, by autograd, its gradients with respect to all of them."""

    def forward(self, *inputs: Tensor) -> Tensor:
        raise NotImplementedError

    def others(self, case: Any) -> list[Tensor]:
        """The inputs beside x that gradients are asked for."""
        return list(case.problem.inputs.values())[1:]

    def leaf(self, tensor: Tensor) -> Tensor:
        """The tensor as one that gradients are asked for."""
        return tensor.detach().requires_grad_()

    def bind(self, case: Any) -> Call:
        grad: Tensor = case.problem.grad
        others = [self.leaf(tensor) for tensor in self.others(case)]
        if case.direction == "fwd":
            return lambda x: (self.forward(self.leaf(x), *others),)

        if case.direction == "bwd":
            leaves = [self.leaf(case.x), *others]
            out = self.forward(*leaves)
            return lambda _x: torch.autograd.grad(out, leaves, grad.view_as(out), retain_graph=True)

        def forward_and_backward(x: Tensor) -> tuple[Tensor, ...]:
            leaves = [self.leaf(x), *others]
            out = self.forward(*leaves)
            return torch.autograd.grad(out, leaves, grad.view_as(out))

        return forward_and_backward


class GnnaggAttention(Ours, TrainedContender):
    """This project's op."""

    _op = ""

    def prepare(self, case: AttentionCase) -> None:
        super().prepare(case)
        self._op = case.op

    def forward(self, *inputs: Tensor) -> Tensor:
        out: Tensor
        if self._op == "gat":
            out = self._package.gat_attention(*inputs, self._plan, negative_slope=NEGATIVE_SLOPE)
        elif self._op == "gatv2":
            out = self._package.gatv2_attention(*inputs, self._plan, negative_slope=NEGATIVE_SLOPE)
        elif self._op == "dot":
            out = self._package.dot_attention(*inputs, self._plan)
        else:
            out = self._package.edge_softmax(*inputs, self._plan)
        return out
