"""The specification itself, against numbers worked out by hand and torch's own functions."""

from __future__ import annotations

import pytest
import torch
from zoo import REDUCES, ZOO, features, make

from gnnagg import reference

# Node 0 receives 1 (weight 2) and 3 (weight 1), node 1 receives 1 (weight 4), node 2 nothing.
GRAPH = make(torch.tensor([0, 1, 0]), torch.tensor([0, 0, 1]), 2, 3)
X = torch.tensor([[1.0], [3.0]])


@pytest.mark.parametrize(
    "reduce,plain,weighted",
    [
        ("sum", [4, 1, 0], [5, 4, 0]),
        ("mean", [2, 1, 0], [2.5, 4, 0]),
        ("max", [3, 1, 0], [3, 4, 0]),
        ("min", [1, 1, 0], [2, 4, 0]),
        ("var", [1, 0, 0], [0.25, 0, 0]),
        ("std", [1, 0, 0], [0.5, 0, 0]),
    ],
)
def test_by_hand(reduce: str, plain: list[float], weighted: list[float]) -> None:
    graph = GRAPH.graph()
    by_edge = {(0, 0): 2.0, (1, 0): 1.0, (0, 1): 4.0}
    weight = torch.tensor([by_edge[tuple(edge)] for edge in GRAPH.edge_index.t().tolist()])
    assert reference.aggregate(X, graph, None, reduce)[:, 0].tolist() == plain
    assert reference.aggregate(X, graph, weight, reduce)[:, 0].tolist() == weighted


@pytest.mark.parametrize("reduce", REDUCES)
def test_as_pyg(reduce: str) -> None:
    aggr = pytest.importorskip("torch_geometric.nn.aggr")
    modules = {"sum": aggr.SumAggregation(), "mean": aggr.MeanAggregation(), "max": aggr.MaxAggregation()}
    modules |= {"min": aggr.MinAggregation(), "var": aggr.VarAggregation(), "std": aggr.StdAggregation()}
    edges = ZOO["gaps"]
    # With ties, but none at 0: there PyG loses a share of the gradient to the zeros it starts from.
    x = features(100, 3, dtype=torch.float64).abs().ceil()
    results = []
    for op in (
        lambda x: reference.aggregate(x, edges.graph(), None, reduce),
        lambda x: modules[reduce](x[edges.edge_index[0]], edges.edge_index[1], dim_size=100),
    ):
        x = x.detach().requires_grad_()
        out = op(x)
        results.append((out, torch.autograd.grad(out, x, features(100, 3, dtype=torch.float64, seed=1))[0]))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)  # PyG's variance is E[x^2] - E[x]^2


def test_edge_dot_and_edges() -> None:
    graph = ZOO["bipartite"].graph()
    source, target, edge = reference.edges(graph)
    assert torch.equal(torch.stack([source, target])[:, edge.argsort()], ZOO["bipartite"].edge_index)
    a, b = features(30, 4), features(77, 4, seed=1)
    pairs = ZOO["bipartite"].edge_index.t().tolist()
    expected = torch.stack([(a[t] * b[s]).view(2, 2).sum(1) for s, t in pairs])
    torch.testing.assert_close(reference.edge_dot(a, b, graph, 2), expected)


def test_unknown_reduce() -> None:
    with pytest.raises(ValueError, match="unknown reduce 'median'"):
        reference.aggregate(X, GRAPH.graph(), None, "median")
