"""Float64 references of the attention ops, block of rows by block of rows, with the scale that errors are judged by.

H heads, C channels. Every result is kept as [rows, H, C] or [rows, H] beside a *scale* [rows, H]: the root of the
summed squares of what was added up, where a product <dO_i, v_j> of C terms counts as |dO_i| |v_j| / sqrt(C), its usual
size. So a gradient that cancels exactly, as that of the score of a row's only edge does, is judged by what cancelled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.checking import BLOCK_VALUES, Error, compare, reduce_rows, row_blocks
from benchmarks.graphs import GraphData

__all__ = ["NEGATIVE_SLOPE", "Checked", "attention_reference", "softmax_reference"]

NEGATIVE_SLOPE = 0.2
TINY = 1e-16  # of PyG's softmax


@dataclass
class Checked:
    """A right result, [rows, H] or [rows, H, C], and the scale of its errors, [rows, H]."""

    value: Tensor
    scale: Tensor

    def error(self, got: Tensor) -> Error:
        """Of a result with these values in this order, whatever its shape."""
        columns = self.value.size(2) if self.value.dim() == 3 else 1
        if got.numel() != self.value.numel():
            return Error(math.inf, math.inf)
        return compare(got.reshape(-1, columns), self.value.view(-1, columns), scale=self.scale.reshape(-1, 1))


class _Sum:
    """A result that is added up edge by edge, with the squares of the sizes of what is added."""

    def __init__(self, like: Tensor) -> None:
        self.value = torch.zeros(like.shape, dtype=torch.float64, device=like.device)
        self._squares = torch.zeros(like.shape[:2], dtype=torch.float64, device=like.device)

    def scatter(self, index: Tensor, term: Tensor, size: Tensor) -> None:
        """Adds term [e, H] or [e, H, C], of size [e, H], at these rows."""
        self.value.index_add_(0, index, term)
        self._squares.index_add_(0, index, size.square())

    def put(self, block: _Block, term: Tensor, size: Tensor) -> None:
        """The terms of whole rows."""
        rows = self.value[block.rows]
        rows.copy_(reduce_rows(term.flatten(1), block.degree, "sum").view_as(rows))
        self._squares[block.rows] = reduce_rows(size.square(), block.degree, "sum")

    def add(self, term: Tensor, size: Tensor) -> None:
        """The terms of every edge to the one row that there is."""
        self.value += term.sum(0)
        self._squares += size.square().sum(0)

    def checked(self) -> Checked:
        return Checked(self.value, self._squares.sqrt())


@dataclass(frozen=True)
class _Block:
    """The e edges of r consecutive rows."""

    rows: slice
    degree: Tensor  # [r]
    source: Tensor  # [e]
    target: Tensor  # [e]
    local: Tensor  # [e], target within the block


class _Scores:
    """How the scores of an op come from its inputs, and where their gradients go."""

    def __init__(self, inputs: Mapping[str, Tensor], value: str) -> None:
        self.inputs, self.value = inputs, inputs[value]
        self.sums = {name: _Sum(tensor.unsqueeze(0) if name == "att" else tensor) for name, tensor in inputs.items()}
        self.value_sum = self.sums[value]

    def at(self, name: str, index: Tensor) -> Tensor:
        return self.inputs[name][index].double()

    def scores(self, block: _Block) -> Tensor:
        """[e, H]."""
        raise NotImplementedError

    def backward(self, block: _Block, grad: Tensor, size: Tensor) -> None:
        """Passes on the gradient of the scores of the same block, [e, H], of this size."""
        raise NotImplementedError


class _Gat(_Scores):
    def __init__(self, inputs: Mapping[str, Tensor]) -> None:
        super().__init__(inputs, "z")

    def scores(self, block: _Block) -> Tensor:
        self._before = self.at("a_src", block.source) + self.at("a_dst", block.target)
        return F.leaky_relu(self._before, NEGATIVE_SLOPE)

    def backward(self, block: _Block, grad: Tensor, size: Tensor) -> None:
        grad = grad * _slope(self._before)
        self.sums["a_src"].scatter(block.source, grad, size)
        self.sums["a_dst"].put(block, grad, size)


class _Gatv2(_Scores):
    def __init__(self, inputs: Mapping[str, Tensor]) -> None:
        super().__init__(inputs, "l")
        self._att = inputs["att"].double()

    def scores(self, block: _Block) -> Tensor:
        self._before = self.at("l", block.source) + self.at("r", block.target)
        return (F.leaky_relu(self._before, NEGATIVE_SLOPE) * self._att).sum(2)

    def backward(self, block: _Block, grad: Tensor, size: Tensor) -> None:
        activated = F.leaky_relu(self._before, NEGATIVE_SLOPE)
        self.sums["att"].add(grad.unsqueeze(2) * activated, size * _rms(activated))
        through = grad.unsqueeze(2) * self._att * _slope(self._before)
        size = size * _rms(self._att)
        self.sums["l"].scatter(block.source, through, size)
        self.sums["r"].put(block, through, size)


class _Dot(_Scores):
    def __init__(self, inputs: Mapping[str, Tensor]) -> None:
        super().__init__(inputs, "v")
        self._scale = 1 / math.sqrt(self.value.size(2))

    def scores(self, block: _Block) -> Tensor:
        return (self.at("q", block.target) * self.at("k", block.source)).sum(2) * self._scale

    def backward(self, block: _Block, grad: Tensor, size: Tensor) -> None:
        grad, size = grad * self._scale, size * self._scale
        key, query = self.at("k", block.source), self.at("q", block.target)
        self.sums["q"].put(block, grad.unsqueeze(2) * key, size * _rms(key))
        self.sums["k"].scatter(block.source, grad.unsqueeze(2) * query, size * _rms(query))


_OPS = {"gat": _Gat, "gatv2": _Gatv2, "dot": _Dot}


def attention_reference(
    op: str, graph: GraphData, inputs: Mapping[str, Tensor], grad: Tensor | None
) -> dict[str, Checked]:
    """`out` and, with grad [N, H, C], the gradient of every input by its name.

    gat: z, a_src, a_dst; gatv2: l, r, att; dot: q, k, v; all [N, H, C] but a_src, a_dst [N, H] and att [H, C].
    """
    _, heads, channels = next(iter(inputs.values())).shape
    widest = graph.max_degree * heads * channels
    if heads > 1 and widest > BLOCK_VALUES:  # a hub's edges fill a block by themselves: head by head
        parts = [
            attention_reference(op, graph, _head(inputs, head), None if grad is None else grad[:, head : head + 1])
            for head in range(heads)
        ]
        return {name: _joined([part[name] for part in parts]) for name in parts[0]}
    scores = _OPS[op](inputs)
    values = scores.value
    out = _Sum(values)
    for block in _blocks(graph, values[0].numel()):
        alpha = _softmax(scores.scores(block), block)
        value = values[block.source].double()
        out.put(block, alpha.unsqueeze(2) * value, alpha * _rms(value))
        if grad is None:
            continue
        grad_rows = grad[block.rows].double()
        grad_edges = grad_rows[block.local]
        scores.value_sum.scatter(block.source, alpha.unsqueeze(2) * grad_edges, alpha * _rms(grad_edges))
        mean = (grad_rows * out.value[block.rows]).sum(2)[block.local]
        grad_scores = alpha * ((grad_edges * value).sum(2) - mean)
        size = alpha * _rms(grad_edges) * _rms(value) * math.sqrt(values.size(2))
        scores.backward(block, grad_scores, size)
    found = {"out": out.checked()}
    if grad is not None:
        found |= {name: total.checked() for name, total in scores.sums.items()}
    return found


def _head(inputs: Mapping[str, Tensor], head: int) -> dict[str, Tensor]:
    one = slice(head, head + 1)
    return {name: tensor[one] if name == "att" else tensor[:, one] for name, tensor in inputs.items()}


def _joined(parts: list[Checked]) -> Checked:
    return Checked(torch.cat([part.value for part in parts], 1), torch.cat([part.scale for part in parts], 1))


def softmax_reference(graph: GraphData, score: Tensor, grad: Tensor | None) -> dict[str, Checked]:
    """`out` of edge_softmax for score [E, H] in row order and, with grad [E, H], the gradient `score`."""
    out = torch.empty_like(score, dtype=torch.float64)
    back, size = torch.empty_like(out), torch.empty_like(out)
    for block in _blocks(graph, score.size(1)):
        edges = slice(int(graph.rowptr[block.rows.start]), int(graph.rowptr[block.rows.stop]))
        alpha = out[edges] = _softmax(score[edges].double(), block)
        if grad is not None:
            incoming = grad[edges].double()
            mean = reduce_rows(alpha * incoming, block.degree, "sum")[block.local]
            spread = reduce_rows(alpha * incoming.square(), block.degree, "sum").sqrt_()[block.local]
            back[edges], size[edges] = alpha * (incoming - mean), alpha * (incoming.abs() + spread)
    found = {"out": Checked(out, out)}
    return found if grad is None else found | {"score": Checked(back, size)}


def _blocks(graph: GraphData, values_per_edge: int) -> Iterator[_Block]:
    for rows, edges in row_blocks(graph, values_per_edge):
        target = graph.row[edges].long()
        yield _Block(rows, graph.degree[rows], graph.col[edges].long(), target, target - rows.start)


def _softmax(score: Tensor, block: _Block) -> Tensor:
    highest = reduce_rows(score, block.degree, "max")
    weight = (score - highest[block.local]).exp_()
    return weight / (reduce_rows(weight, block.degree, "sum") + TINY)[block.local]


def _slope(before: Tensor) -> Tensor:
    return torch.ones_like(before).masked_fill_(before <= 0, NEGATIVE_SLOPE)  # float64, as where would not be


def _rms(x: Tensor) -> Tensor:
    """Root mean square over the channels: [.., H, C] -> [.., H]."""
    return x.square().mean(-1).sqrt()
