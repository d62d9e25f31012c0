"""What is particular to dot_attention, PyG's layer, and errors. See test_scored_attention.py for the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from attention_zoo import (
    DEVICE,
    GRAPHS,
    SECOND,
)
from score_zoo import Case, case, check, gradients, incoming
from torch import Tensor
from zoo import features

from gnnagg import Graph, dot_attention, reference

INF, NAN = float("inf"), float("nan")
NAMES = ["q", "k", "v", "edge_attr", "edge_weight_matrix"]


def dot(graph: Graph, *shape_and_dtype: Any, **options: Any) -> Case:
    return case(dot_attention, graph, *shape_and_dtype, **options)


# --- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.0, -0.5, 2])
def test_any_scale(scale: float) -> None:
    check(dot_attention, dot(GRAPHS["power_law"].graph(DEVICE), (5, 3), scale=scale, edge_dim=2))


# --- special scores --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(8, 8), (3, 5), (1, 1), (2, 33)], ids=str)
@pytest.mark.parametrize("name", ["power_law", "big_hub", "bipartite", "long_row"])
@pytest.mark.parametrize("special", [-INF, INF, NAN])
def test_scores_that_are_not_finite(special: float, name: str, shape: tuple[int, int]) -> None:
    """As PyG: -inf beside finite scores weighs 0; rows of nothing else, and rows with inf or NaN, are NaN."""
    softmax = pytest.importorskip("torch_geometric.utils").softmax
    edges = GRAPHS[name]
    arguments = dot(edges.graph(DEVICE), shape, torch.float64)
    arguments["q"] = arguments["q"].abs() + 0.1
    source, target = edges.edge_index.to(DEVICE)
    arguments["k"][:5] = special
    if edges.num_dst > 1:
        arguments["k"][source[target == target[0]]] = special  # a row of nothing else
    score = (arguments["q"][target] * arguments["k"][source]).sum(2) / shape[1] ** 0.5
    alpha = softmax(score, target, num_nodes=edges.num_dst)
    messages = alpha.unsqueeze(2) * arguments["v"][source]
    want = messages.new_zeros(edges.num_dst, *shape).index_add(0, target, messages)
    out, ours = dot_attention(**arguments, return_alpha=True)
    assert alpha.isnan().any() == (special != -INF or edges.num_dst > 1)
    torch.testing.assert_close(ours, alpha, rtol=1e-12, atol=1e-14, equal_nan=True)
    torch.testing.assert_close(out, want, rtol=1e-12, atol=1e-12, equal_nan=True)
    grad = incoming(arguments)
    theirs = gradients(reference.dot_attention, arguments, grad, NAMES[:3])
    for key, value in gradients(dot_attention, arguments, grad).items():
        torch.testing.assert_close(value, theirs[key], rtol=1e-9, atol=1e-9, equal_nan=True)


def test_nan_values_stay_in_their_channel() -> None:
    graph = GRAPHS["power_law"].graph(DEVICE)
    arguments = dot(graph, (2, 33))
    arguments["v"][3, 1, 7] = NAN
    out = dot_attention(**arguments)
    reached = reference.edges(graph)[1][reference.edges(graph)[0] == 3].unique()
    assert out[reached, 1, 7].isnan().all() and out.isnan().sum() == reached.numel()


# --- gradients -------------------------------------------------------------------------------------------------------


def test_one_tensor_given_three_times() -> None:
    """Its gradient is the sum of the three, the second derivative too."""
    graph = GRAPHS["loops"].graph(DEVICE)
    x = features(20, 2, 3, dtype=torch.float64, device=DEVICE).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: dot_attention(x, x, x, graph), x)
    assert torch.autograd.gradgradcheck(lambda x: dot_attention(x, x, x, graph), x, **SECOND)


def test_gradient_through_the_edge_term_alone() -> None:
    """The op's two results are differentiable each for itself."""
    graph = GRAPHS["bipartite"].graph(DEVICE)
    schedule = graph.csr.schedule(48)
    csr = (graph.rowptr, graph.col, schedule.spans, schedule.splits, graph.perm)
    tensors = [features(n, 6, dtype=torch.float64, seed=n, device=DEVICE).requires_grad_() for n in (30, 77, 77)]
    query, attr = (
        features(*size, dtype=torch.float64, device=DEVICE).requires_grad_() for size in ((30, 2, 4), (400, 4))
    )

    def op(*inputs: Tensor) -> list[Tensor]:
        results = torch.ops.gnnagg.dot_attention(*inputs, *csr, None, 2, 0.5, 0.0)
        return [results[0], results[2]]

    inputs = (*tensors, query, attr)
    for place in (0, 1):
        assert torch.autograd.gradcheck(lambda *inputs: op(*inputs)[place], inputs, fast_mode=True)
        assert torch.autograd.gradgradcheck(lambda *inputs: op(*inputs)[place], inputs, **SECOND)
    assert not torch.ops.gnnagg.dot_attention(*inputs, *csr, None, 2, 0.5, 0.0)[1].requires_grad


# --- PyG -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("edge_dim", [None, 3])
def test_as_pyg_transformer_conv(edge_dim: int | None) -> None:
    """PyG's own layer, its propagate and its attention weights, from the same projections."""
    nn = pytest.importorskip("torch_geometric.nn")
    edges = GRAPHS["bipartite"]
    torch.manual_seed(0)
    layer = nn.TransformerConv((7, 6), 5, heads=4, edge_dim=edge_dim, root_weight=False).double().to(DEVICE)
    x = [features(n, w, dtype=torch.float64, device=DEVICE).requires_grad_() for n, w in ((77, 7), (30, 6))]
    attr = features(400, 3, dtype=torch.float64, seed=1, device=DEVICE).requires_grad_() if edge_dim else None
    out, (_, alpha) = layer(tuple(x), edges.edge_index.to(DEVICE), attr, return_attention_weights=True)
    query = layer.lin_query(x[1]).view(-1, 4, 5)
    key, value = (linear(x[0]).view(-1, 4, 5) for linear in (layer.lin_key, layer.lin_value))
    options = {} if attr is None else {"edge_attr": attr, "edge_weight_matrix": layer.lin_edge.weight}
    ours, weights = dot_attention(query, key, value, edges.graph(DEVICE), **options, return_alpha=True)
    torch.testing.assert_close(ours.flatten(1), out, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(weights, alpha, rtol=1e-12, atol=1e-12)
    inputs = [*x, *([] if attr is None else [attr]), *layer.parameters()]
    theirs = torch.autograd.grad(out.square().sum(), inputs, allow_unused=True)
    mine = torch.autograd.grad(ours.square().sum(), inputs, allow_unused=True)
    for got, want in zip(mine, theirs, strict=True):
        assert (got is None) == (want is None)
        if want is not None:
            torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


# --- errors ----------------------------------------------------------------------------------------------------------

EDGES = torch.tensor([[0, 1, 2], [1, 1, 0]])


def bad(**changed: Any) -> Callable[[], object]:
    arguments = dot(Graph.from_edge_index(EDGES, (3, 2)), (2, 4), edge_dim=5)
    arguments = {name: t.cpu() if isinstance(t, Tensor) else t for name, t in arguments.items()}
    return lambda: dot_attention(**{**arguments, **changed})


META = torch.device("meta")
BAD = {
    "graph": (bad(graph=EDGES), TypeError, "graph", "gnnagg.Graph", "Tensor"),
    "q: list": (bad(q=[1.0]), TypeError, "q must", "torch.Tensor", "list"),
    "q: integer": (bad(q=torch.ones(2, 2, 4).long()), TypeError, "q must", "float32", "int64"),
    "q: rows": (bad(q=torch.ones(3, 2, 4)), ValueError, "q must", "num_dst = 2", "[3, 2, 4]"),
    "q: device": (bad(q=torch.ones(2, 2, 4, device=META)), ValueError, "q must", "device cpu", "meta"),
    "k: flat": (bad(k=torch.ones(3, 8)), ValueError, "k must", "[num_src, H, C]", "[3, 8]"),
    "k: heads": (bad(k=torch.ones(3, 4, 2)), ValueError, "k must", "[2, 4] of q", "[3, 4, 2]"),
    "v: rows": (bad(v=torch.ones(2, 2, 4)), ValueError, "v must", "num_src = 3", "[2, 2, 4]"),
    "v: channels": (bad(v=torch.ones(3, 2, 5)), ValueError, "v must", "[2, 4] of q", "[3, 2, 5]"),
    "edge_attr: alone": (bad(edge_weight_matrix=None), ValueError, "edge_weight_matrix", "edge_attr", "None"),
    "matrix: alone": (bad(edge_attr=None), ValueError, "edge_attr must", "edge_weight_matrix", "None"),
    "edge_attr: rows": (bad(edge_attr=torch.ones(4, 5)), ValueError, "edge_attr", "num_edges = 3", "[4, 5]"),
    "matrix: shape": (bad(edge_weight_matrix=torch.ones(5, 8)), ValueError, "matrix", "= [8, 5]", "got [5, 8]"),
    "scale": (bad(scale="1"), TypeError, "scale", "float", "str"),
    "dropout": (bad(dropout=1.5), ValueError, "dropout", "[0, 1]", "1.5"),
    "seed": (bad(dropout=0.5, seed=torch.ones(1)), TypeError, "seed", "int64", "float32"),
}


@pytest.mark.parametrize("name", BAD)
def test_message_names_argument_expected_and_got(name: str) -> None:
    do, error, *parts = BAD[name]
    with pytest.raises(error) as caught:
        do()
    for part in ("dot_attention", *parts):
        assert part in str(caught.value), str(caught.value)


def test_ops_survive_operands_that_do_not_fit() -> None:
    """Called below the friendly checks: an exception, not a crash."""
    graph = GRAPHS["power_law"].graph(DEVICE)
    schedule = graph.csr.schedule(32)
    csr = [graph.rowptr, graph.col, schedule.spans, schedule.splits]
    x, query = torch.randn(110, 8, device=DEVICE), torch.randn(110, 2, 3, device=DEVICE)
    attr = torch.randn(1300, 3, device=DEVICE)
    seed = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    cases: list[tuple[Any, ...]] = [
        (x.long(), x, x, None, None, *csr, None, seed, 2),
        (x.double(), x, x, None, None, *csr, None, seed, 2),
        (x, x[:5], x, None, None, *csr, None, seed, 2),
        (x, x, x[:5], None, None, *csr, None, seed, 2),
        (x[:5], x, x, None, None, *csr, None, seed, 2),
        (x, x[:, :4].contiguous(), x, None, None, *csr, None, seed, 2),
        (x, x, x, None, None, *csr, None, seed, 3),
        (x, x, x, None, None, *csr, None, seed, 0),
        (x, x, x, query, None, *csr, None, seed, 2),
        (x, x, x, None, attr, *csr, None, seed, 2),
        (x, x, x, query, attr[:5], *csr, None, seed, 2),
        (x, x, x, query.double(), attr, *csr, None, seed, 2),
        (x, x, x, query[..., :2].contiguous(), attr, *csr, None, seed, 2),
        (x, x, x, None, None, csr[0].long(), *csr[1:], None, seed, 2),
        (x, x, x, None, None, *csr, csr[0], seed, 2),
        (x, x, x, None, None, *csr, None, seed.float(), 2),
        (x, x, x, None, None, *csr, None, None, 2),  # dropout without a seed
    ]
    for place, arguments in enumerate(cases):
        with pytest.raises((RuntimeError, ValueError, TypeError, IndexError)):
            torch.ops.gnnagg.dot_attention(*arguments, 0.5, 0.5)
            pytest.fail(f"case {place} was accepted")
