"""edge_softmax against PyG's softmax and the reference: every dtype, split rows, special scores, both derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from attention_zoo import ACCUMULATE_EPS, DEVICE, GRAPHS, TensorRecorder, assert_within
from torch import Tensor
from zoo import DTYPES, STORE_EPS, Edges, assert_same_bits, features, seeded

from gnnagg import Graph, edge_softmax, reference

INF, NAN = float("inf"), float("nan")
HEADS = [1, 2, 3, 4, 8, 13, 16, 33, 70]


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch._dynamo.reset()


def pyg_softmax(score: Tensor, edges: Edges) -> Tensor:
    softmax = pytest.importorskip("torch_geometric.utils").softmax
    result: Tensor = softmax(score, edges.edge_index[1].to(DEVICE), num_nodes=edges.num_dst)
    return result


def run(op: Callable[..., Tensor], score: Tensor, graph: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    leaf = score.detach().clone().requires_grad_()
    alpha = op(leaf, graph)
    return alpha.detach(), torch.autograd.grad(alpha, leaf, grad)[0]


def check(edges: Edges, heads: int, dtype: torch.dtype) -> None:
    graph = edges.graph(DEVICE)
    score = features(graph.num_edges, heads, dtype=dtype, device=DEVICE)
    grad = features(graph.num_edges, heads, dtype=dtype, seed=1, device=DEVICE)
    alpha, d_score = run(edge_softmax, score, graph, grad)
    assert alpha.dtype == d_score.dtype == dtype
    want, d_want = run(pyg_softmax, score.double(), edges, grad.double())
    rounding, store = ACCUMULATE_EPS[dtype], STORE_EPS[dtype]
    assert_within("alpha", alpha, want, (rounding + store) * want + torch.finfo(dtype).tiny)
    # alpha is stored before backward reads it: once beside the gradient, and once in the row's sum.
    target = edges.edge_index[1].to(DEVICE)
    size = want * grad.double().abs()
    total = size.new_zeros(edges.num_dst, heads).index_add(0, target, size)[target]
    bound = (rounding + 3 * store) * (size + want * total) + torch.finfo(dtype).tiny
    assert_within("gradient", d_score, d_want, bound)


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("name", GRAPHS)
def test_as_pyg(name: str, heads: int) -> None:
    check(GRAPHS[name], heads, torch.float64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("name", ["power_law", "big_hub", "long_row", "bipartite"])
def test_every_dtype(name: str, heads: int, dtype: torch.dtype) -> None:
    check(GRAPHS[name], heads, dtype)


@pytest.mark.parametrize("heads", [1, 3, 8])
@pytest.mark.parametrize("name", ["power_law", "big_hub", "long_row"])
@pytest.mark.parametrize("special", [-INF, INF, NAN, 1e300, -1e300])
def test_scores_that_are_not_finite(special: float, name: str, heads: int) -> None:
    edges = GRAPHS[name]
    score = features(edges.edge_index.size(1), heads, dtype=torch.float64, device=DEVICE)
    pick = torch.rand(score.shape, generator=seeded(5)) < 0.02
    score = torch.where(pick.to(DEVICE), special, score)
    if edges.num_dst > 1:
        score[edges.edge_index[1].to(DEVICE) == int(edges.edge_index[1, 0])] = special  # a row of nothing else
    want = pyg_softmax(score, edges)
    torch.testing.assert_close(edge_softmax(score, edges.graph(DEVICE)), want, rtol=1e-12, atol=0, equal_nan=True)


def test_rows_add_up_to_one_and_shifts_change_nothing() -> None:
    edges = GRAPHS["big_hub"]
    graph = edges.graph(DEVICE)
    score = features(graph.num_edges, 3, dtype=torch.float64, device=DEVICE)
    alpha = edge_softmax(score, graph)
    total = alpha.new_zeros(90, 3).index_add(0, edges.edge_index[1].to(DEVICE), alpha)
    torch.testing.assert_close(total, torch.ones_like(total))
    torch.testing.assert_close(edge_softmax(score + 1000.0, graph), alpha, rtol=1e-9, atol=0)


def test_one_score_per_edge() -> None:
    graph = GRAPHS["power_law"].graph(DEVICE)
    score = features(1300, device=DEVICE).requires_grad_()
    alpha = edge_softmax(score, graph)
    assert alpha.shape == (1300,)
    assert_same_bits(alpha, edge_softmax(score.unsqueeze(1), graph).squeeze(1))
    alpha.square().sum().backward()
    assert score.grad is not None and score.grad.shape == (1300,)


@pytest.mark.parametrize("loops", ["add", "remove_add", "remove"])
def test_removed_self_loops_weigh_nothing(loops: Any) -> None:
    graph = GRAPHS["loops"].graph(DEVICE, self_loops=loops)
    live = torch.zeros(graph.num_edges, dtype=torch.bool, device=DEVICE).index_fill(0, reference.edges(graph)[2], True)
    score = features(graph.num_edges, 3, dtype=torch.float64, device=DEVICE)
    grad = features(graph.num_edges, 3, dtype=torch.float64, seed=1, device=DEVICE)
    dirty = torch.where(live.unsqueeze(1), score, NAN)
    expected = run(reference.edge_softmax, score, graph, grad)
    for got, want in zip(run(edge_softmax, dirty, graph, grad), expected, strict=True):
        torch.testing.assert_close(got, want)
        assert not got[~live].any()


def test_strides() -> None:
    graph = GRAPHS["power_law"].graph(DEVICE)
    score = features(4, 1300, device=DEVICE)
    assert_same_bits(edge_softmax(score.t(), graph), edge_softmax(score.t().contiguous(), graph))


@pytest.mark.parametrize("name", ["gaps", "bipartite", "duplicates"])
def test_gradcheck_and_gradgradcheck(name: str) -> None:
    graph = GRAPHS[name].graph(DEVICE)
    score = features(graph.num_edges, 2, dtype=torch.float64, device=DEVICE).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: edge_softmax(s, graph), score, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda s: edge_softmax(s, graph), score, fast_mode=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_threads_change_no_bit(dtype: torch.dtype, threads: None) -> None:
    for name in ("long_row", "big_hub"):
        edges = GRAPHS[name]
        score = features(edges.edge_index.size(1), 3, dtype=dtype, device=DEVICE)
        grad = features(edges.edge_index.size(1), 3, dtype=dtype, seed=1, device=DEVICE)
        results = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            graph = Graph.from_edge_index(edges.edge_index.clone().to(DEVICE), edges.size)
            results.append(run(edge_softmax, score, graph, grad))
        for each in results[1:]:
            for got, want in zip(each, results[0], strict=True):
                assert_same_bits(got, want)


def test_compiles_with_a_graph() -> None:
    """As a closure and as an argument, without a graph break, forward and backward."""
    graph = GRAPHS["power_law"].graph(DEVICE)
    score, grad = features(1300, 3, device=DEVICE), features(1300, 3, seed=1, device=DEVICE)
    expected = run(edge_softmax, score, graph, grad)
    for function in (lambda s, g: edge_softmax(s, g), lambda s, g: edge_softmax(s, graph)):
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        for got, want in zip(run(compiled, score, graph, grad), expected, strict=True):
            torch.testing.assert_close(got, want)


def test_makes_nothing_larger_than_the_scores() -> None:
    graph = GRAPHS["dense"].graph(DEVICE)
    score, grad = features(3000, 3, device=DEVICE), features(3000, 3, seed=1, device=DEVICE)
    run(edge_softmax, score, graph, grad)
    with TensorRecorder() as recorder:
        run(edge_softmax, score, graph, grad)
    assert recorder.largest == score.numel()


GRAPH = Graph.from_edge_index(torch.tensor([[0, 1, 2], [1, 1, 0]]), 3)
BAD = {
    "graph": (lambda: edge_softmax(torch.ones(3), None), TypeError, "graph", "gnnagg.Graph", "NoneType"),  # type: ignore[arg-type]
    "list": (lambda: edge_softmax([1.0], GRAPH), TypeError, "score", "torch.Tensor", "list"),  # type: ignore[arg-type]
    "integer": (lambda: edge_softmax(torch.ones(3).long(), GRAPH), TypeError, "score", "floating point", "int64"),
    "short": (lambda: edge_softmax(torch.ones(2, 2), GRAPH), ValueError, "score", "num_edges = 3", "[2, 2]"),
    "3-D": (lambda: edge_softmax(torch.ones(3, 2, 2), GRAPH), ValueError, "score", "[num_edges, H]", "[3, 2, 2]"),
    "device": (lambda: edge_softmax(torch.ones(3, device="meta"), GRAPH), ValueError, "score", "cpu", "meta"),
}


@pytest.mark.parametrize("name", BAD)
def test_message_names_argument_expected_and_got(name: str) -> None:
    do, error, *parts = BAD[name]
    with pytest.raises(error) as caught:
        do()
    for part in ("edge_softmax", *parts):
        assert part in str(caught.value), str(caught.value)
