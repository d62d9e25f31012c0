"""The normalised adjacency of a graph convolution, ``D^-1/2 (A + I) D^-1/2``, without a coefficient per edge.

The two factors of an edge's coefficient belong to its ends, so they are kept per node and applied by the operator while
it gathers. Kipf and Welling, "Semi-Supervised Classification with Graph Convolutional Networks", ICLR 2017.
"""

from __future__ import annotations

import functools
import weakref
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from .._operands import accumulate_dtype
from .._registration import being_traced
from ..aggregate import sum_rows
from ..graph import Flow, Graph
from ._inputs import as_edge_index

__all__ = [
    "Edges",
    "NormalisedGraph",
    "improved_counts_without_weights",
    "loop_weights",
    "normalise",
    "remember",
    "remembered",
    "with_self_loops",
]


@dataclass(eq=False)
class NormalisedGraph:
    """A graph and the factors of its edge coefficients. ``self[0], self[1]`` are PyG's edge_index and edge_weight.

    Attributes:
        graph: square; holds the self-loops, unless ``loop`` does.
        weight: ``[E]`` weight of each edge before normalisation, accumulate dtype; None: all 1.
        scale: ``[N]`` factor of each node, ``degree ** -0.5``; None: no normalisation.
        loop: weight of a self-loop at every node that the graph does not hold; None: none.
        dtype: the dtype PyG would hold the coefficients in; the result has it or a wider one. None: unweighted.
        flow: PyG's flow, for the conversion to its edge_index.
    """

    graph: Graph
    weight: Tensor | None = None
    scale: Tensor | None = None
    loop: float | None = None
    dtype: torch.dtype | None = None
    flow: Flow = "source_to_target"
    _as_pyg: tuple[Tensor, Tensor | None] | None = field(default=None, init=False, repr=False)

    def propagate(self, x: Tensor, *, mean: bool = False) -> Tensor:
        """``[.., N, F]``: the sum (or mean) over edges of coefficient times ``x [.., N, F]``."""
        dtype = x.dtype if self.dtype is None else torch.promote_types(self.dtype, x.dtype)
        if dtype not in (x.dtype, accumulate_dtype(x.dtype)):
            x = x.to(dtype)
        wide = accumulate_dtype(x.dtype)
        x = x.contiguous()
        weight = None if self.weight is None else self.weight.to(wide)
        scale = None if self.scale is None else self.scale.to(wide)
        acc_out = dtype != x.dtype
        if scale is None or not (torch.is_grad_enabled() and scale.requires_grad):
            out = sum_rows(x, self.graph, weight, scale, scale, mean=mean, acc_out=acc_out)
        else:
            # The operator gives its factors no gradient: apply them outside, node by node.
            factor = scale.unsqueeze(-1)
            out = sum_rows((x * factor).to(wide), self.graph, weight, mean=mean) * factor
        if self.loop is not None:
            assert scale is not None
            out = out + (self.loop * scale * scale).unsqueeze(-1) * x
        return out.to(dtype)

    def __getitem__(self, item: int) -> Tensor | None:
        """PyG's form: 0 is edge_index ``[2, E]``, 1 the coefficients ``[E]`` or None."""
        if self._as_pyg is None:
            self._as_pyg = self._to_pyg()
        return self._as_pyg[item]

    def _to_pyg(self) -> tuple[Tensor, Tensor | None]:
        edge_index, perm = as_edge_index(self.graph, self.flow)
        value: Tensor | None = None
        if self.dtype is not None:
            num_edges = edge_index.size(1)
            if self.weight is None:
                value = edge_index.new_ones(num_edges, dtype=accumulate_dtype(self.dtype))
            else:
                value = self.weight[:num_edges] if perm is None else self.weight[perm]
            if self.scale is not None:
                value = self.scale[edge_index[0]] * value * self.scale[edge_index[1]]
                if self.loop is not None:
                    loops = torch.arange(self.graph.num_dst, device=edge_index.device).expand(2, -1)
                    edge_index = torch.cat([edge_index, loops], dim=1)
                    value = torch.cat([value, self.loop * self.scale * self.scale])
            value = value.to(self.dtype)
        return edge_index, value


class Edges(NamedTuple):
    """Ends ``[E]`` of a list of edges; ``live [E]`` is False for those that do not count, None when all do."""

    src: Tensor
    dst: Tensor
    live: Tensor | None


def slots_of(graph: Graph) -> Edges:
    """The edges of ``graph`` in the order of its slots. A slot of a removed self-loop is a loop that is not live."""
    slot = torch.arange(graph.num_edges, device=graph.device)
    row = torch.searchsorted(graph.rowptr, slot.to(graph.rowptr.dtype), right=True) - 1
    live = slot < graph.rowptr[-1]
    src = graph.col.long()
    return Edges(src, torch.where(live, row, src), live)


def with_self_loops(graph: Graph) -> tuple[Graph, Edges]:
    """``graph`` with exactly one self-loop per node, whose edge ids are slots of ``graph``, then one loop per node."""
    known: tuple[Graph, Edges] | None = graph.attachments.get("with_self_loops")
    if known is None:
        edges = slots_of(graph)
        size = (graph.num_src, graph.num_dst)
        # Slots that are not live are loops, so removing the loops removes them.
        known = Graph.from_edge_index(torch.stack([edges.src, edges.dst]), size, self_loops="remove_add"), edges
        if not being_traced():
            graph.attachments["with_self_loops"] = known
    return known


def normalise(
    graph: Graph, weight: Tensor | None, dtype: torch.dtype, wide: torch.dtype, *, flow: Flow, loop: float | None = None
) -> NormalisedGraph:
    """Factors of ``graph``, whose edges weigh ``weight [E]`` (None: 1), plus a loop of weight ``loop`` on every node.

    Args:
        graph: square.
        weight: floating point, in edge order; gradients reach it. Given whenever ``loop`` is.
        dtype: PyG's dtype of the coefficients.
        wide: dtype to compute in, float32 or float64.
        flow: PyG's flow.
        loop: see :class:`NormalisedGraph`.

    A node of degree 0 gets the factor 0, one of negative degree NaN, as in PyG.
    """
    if weight is None:
        return NormalisedGraph(graph, None, _unweighted_scale(graph, wide), None, dtype, flow)
    weight = weight.to(wide)
    degree = sum_rows(weight.new_ones((graph.num_src, 1)), graph, weight).squeeze(-1)
    return NormalisedGraph(graph, weight, _inverse_root(degree if loop is None else degree + loop), loop, dtype, flow)


def _unweighted_scale(graph: Graph, wide: torch.dtype) -> Tensor:
    """``[num_dst]`` in-degree ** -0.5, kept on the graph."""
    if being_traced():
        return _inverse_root(graph.in_degree().to(wide))
    key = f"gcn_scale {wide}"
    known: Tensor | None = graph.attachments.get(key)
    if known is None:
        with torch.inference_mode(False):  # a tensor of inference mode could not be used in training later
            known = _inverse_root(graph.in_degree().to(wide))
        graph.attachments[key] = known
    return known


def _inverse_root(degree: Tensor) -> Tensor:
    root = degree.pow(-0.5)
    return root.masked_fill(root == float("inf"), 0.0)


@dataclass(eq=False)
class _Remembered:
    """The last normalisation of a graph by a given weight tensor; does not hold the graph that holds it."""

    owner: weakref.ref[Tensor]
    version: int
    weight: Tensor
    scale: Tensor


def remembered(graph: Graph, edge_weight: Tensor, key: Any) -> tuple[Tensor, Tensor] | None:
    """The weight and scale that :func:`remember` kept for this very tensor, if it has not changed since."""
    if being_traced() or edge_weight.requires_grad or edge_weight.is_inference():
        return None
    known: _Remembered | None = graph.attachments.get(f"gcn_weighted {key}")
    if known is None or known.owner() is not edge_weight or known.version != edge_weight._version:
        return None
    return known.weight, known.scale


def remember(graph: Graph, edge_weight: Tensor, key: Any, result: NormalisedGraph) -> None:
    """Keeps ``result`` on ``graph`` for the next forward pass with the same weight tensor."""
    if being_traced() or edge_weight.requires_grad or edge_weight.is_inference() or torch.is_inference_mode_enabled():
        return
    assert result.weight is not None and result.scale is not None
    kept = _Remembered(weakref.ref(edge_weight), edge_weight._version, result.weight, result.scale)
    graph.attachments[f"gcn_weighted {key}"] = kept


class _LoopWeight(torch.autograd.Function):
    """Picks the weight of the last loop of each node; every loop of the node receives the gradient.

    PyG's index assignment does the same: loops that lose against a later one get a gradient all the same.
    """

    @staticmethod
    def forward(edge_weight: Tensor, src: Tensor, is_loop: Tensor, last: Tensor, fill: float) -> Tensor:
        """edge_weight, src, is_loop ``[E]``; last ``[N]``, see :func:`last_loops`."""
        if edge_weight.numel() == 0:
            return edge_weight.new_full(last.shape, fill)
        return torch.where(last >= 0, edge_weight[last.clamp(min=0)], fill)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1], inputs[2])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        src, is_loop = ctx.saved_tensors
        return torch.where(is_loop, grad[torch.where(is_loop, src, 0)], 0), None, None, None, None


def loop_weights(looped: Graph, edges: Edges, edge_weight: Tensor, fill: float) -> Tensor:
    """``[N]`` weight of every node's self-loop: that of the last such edge, else ``fill``.

    Args:
        looped: ``edges`` with exactly one loop per node; keeps what does not depend on the weights.
        edges: the edges that ``edge_weight [E]`` belongs to.
        edge_weight: gradients reach it.
        fill: weight of a loop that is not among the edges.
    """
    num_nodes = looped.num_dst
    if num_nodes == 0:
        return edge_weight.new_empty(0)
    known: tuple[Tensor, Tensor] | None = looped.attachments.get("loops")
    if known is None:
        known = _find_loops(edges, num_nodes)
        if not being_traced():
            looped.attachments["loops"] = known
    is_loop, last = known
    result: Tensor = _LoopWeight.apply(edge_weight, edges.src, is_loop, last, fill)  # type: ignore[no-untyped-call]
    return result


def _find_loops(edges: Edges, num_nodes: int) -> tuple[Tensor, Tensor]:
    """``[E]`` whether an edge is a self-loop, and ``[num_nodes]`` the last loop of each node, -1 for none."""
    src, dst = edges.src.long(), edges.dst.long()
    is_loop = (src == dst) & (src >= 0) & (src < num_nodes)
    if edges.live is not None:
        is_loop &= edges.live
    edge = torch.where(is_loop, torch.arange(src.size(0), device=src.device), -1)
    last = edge.new_full((num_nodes,), -1).scatter_reduce(0, dst.clamp(0, num_nodes - 1), edge, "amax")
    return is_loop, last


@functools.cache
def improved_counts_without_weights() -> bool:
    """Whether this PyG gives the added loops the weight 2 of ``improved`` also where no edge_weight is given."""
    one_edge = torch.tensor([[0], [1]])
    with torch.no_grad():
        coefficients = gcn_norm(one_edge, None, 2, improved=True, dtype=torch.float64)[1]
    return bool(coefficients[-1] > 0.6)  # the loop of the target: 2/3, or 1/2 where the weight is 1
