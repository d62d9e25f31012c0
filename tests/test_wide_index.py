"""Graphs with int64 indices, as those of more than 2^31 edges or nodes have: on the CPU the bits of int32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from attention_zoo import GRAPHS
from score_zoo import case, gradients, incoming
from torch import Tensor
from zoo import assert_same_bits, features

import gnnagg
from gnnagg import Graph, dot_attention, gatv2_attention

Results = dict[str, Tensor]


def _scored(op: Callable[..., Any], graph: Graph, edge_dim: int | None, dropout: float) -> Results:
    arguments = case(op, graph, (3, 5), edge_dim=edge_dim, dropout=dropout, seed=7)
    return gradients(op, arguments, incoming(arguments))


def _gat(graph: Graph, edge_dim: int | None, dropout: float) -> Results:
    sizes = {"z": (graph.num_src, 3, 5), "a_src": (graph.num_src, 3), "a_dst": (graph.num_dst, 3)}
    if edge_dim:
        sizes["edge_score"] = (graph.num_edges, 3)
    leaves = {name: features(*size).requires_grad_() for name, size in sizes.items()}
    out = gnnagg.gat_attention(**leaves, graph=graph, dropout=dropout, seed=7)
    grads = torch.autograd.grad(out, list(leaves.values()), features(*out.shape, seed=9))
    return {"out": out.detach(), **dict(zip(leaves, grads, strict=True))}


def _edge_softmax(graph: Graph) -> Results:
    score = features(graph.num_edges, 3).requires_grad_()
    alpha = gnnagg.edge_softmax(score, graph)
    return {"alpha": alpha.detach(), "score": torch.autograd.grad(alpha, score, score.detach().square())[0]}


def _sums(graph: Graph) -> Results:
    """Sums with and without weights, of one head and of several, extremes, moments, and hops where there are any."""
    x = features(graph.num_src, 100).requires_grad_()
    results: Results = {}
    for heads in (0, 1, 4):
        weight = features(graph.num_edges, heads).squeeze(1) if heads else None
        results[f"sum, {heads} heads"] = gnnagg.aggregate(x, graph, weight)
    for reduce in ("max", "min", "mean"):
        results[reduce] = gnnagg.aggregate(x, graph, reduce=reduce)
    for place, each in enumerate(gnnagg.aggregate(x, graph, reduce=["sum", "std", "max", "min"])):
        results[f"several, {place}"] = each
    if graph.num_src == graph.num_dst:
        results["hops"] = gnnagg.propagate(x, graph, 2, weight=x.new_ones(graph.num_edges), teleport=0.1)
    for name, result in list(results.items()):
        results[f"d {name}"] = torch.autograd.grad(result, x, features(*result.shape, seed=9), retain_graph=True)[0]
    return results


RUNS: dict[str, Callable[[Graph], Results]] = {"edge_softmax": _edge_softmax, "aggregate": _sums}
for _edge_dim, _dropout in ((None, 0.0), (3, 0.4)):
    _with = "" if _edge_dim is None else ", edge features and dropout"
    RUNS |= {
        f"gat{_with}": lambda graph, e=_edge_dim, p=_dropout: _gat(graph, e, p),
        f"gatv2{_with}": lambda graph, e=_edge_dim, p=_dropout: _scored(gatv2_attention, graph, e, p),
        f"dot{_with}": lambda graph, e=_edge_dim, p=_dropout: _scored(dot_attention, graph, e, p),
    }


@pytest.mark.parametrize(
    "name", ["power_law", "big_hub", "bipartite", "gaps", "loops", "long_row", "no_edges", "no_rows"]
)
@pytest.mark.parametrize("run", RUNS)
def test_wide_indices_change_no_bit(run: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    edges = GRAPHS[name]
    loops: Any = "remove" if name == "loops" else None

    def graph() -> Graph:
        return Graph.from_edge_index(edges.edge_index.clone(), edges.size, self_loops=loops)

    narrow = graph()
    for module in ("gnnagg.graph", "gnnagg._csr"):
        monkeypatch.setattr(f"{module}.needs_wide_index", lambda *_: True)
    wide = graph()
    assert (narrow.col.dtype, wide.col.dtype) == (torch.int32, torch.int64)
    expected = RUNS[run](narrow)
    for key, value in RUNS[run](wide).items():
        assert_same_bits(value, expected[key])
