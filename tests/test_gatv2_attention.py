"""What is particular to gatv2_attention, PyG's layer, and errors. See test_scored_attention.py for the rest."""

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
from zoo import features, ids, seeded

from gnnagg import Graph, gatv2_attention, reference

INF, NAN = float("inf"), float("nan")
NAMES = ["l", "r", "att", "edge_attr", "edge_weight_matrix"]


def gatv2(graph: Graph, *shape_and_dtype: Any, **options: Any) -> Case:
    return case(gatv2_attention, graph, *shape_and_dtype, **options)


# --- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slope", [0.0, 1.0, -0.5, 2.0])
def test_any_slope(slope: float) -> None:
    check(gatv2_attention, gatv2(GRAPHS["power_law"].graph(DEVICE), (5, 3), negative_slope=slope, edge_dim=2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_hub_row_in_half_precision(dtype: torch.dtype) -> None:
    """The rounding of the stored result enters every edge's gradient alike; it stays small beside their sum."""
    edges, nodes = 40_000, 3_000
    source = ids(edges, nodes, 1).to(DEVICE)
    graph = Graph.from_edge_index(torch.stack([source, torch.zeros_like(source)]), (nodes, 1))
    arguments = gatv2(graph, (4, 32), dtype)
    grad = incoming(arguments)
    exact = {name: t.double() if isinstance(t, Tensor) else t for name, t in arguments.items()}
    want = gradients(reference.gatv2_attention, exact, grad.double(), NAMES[:3])
    for name, got in gradients(gatv2_attention, arguments, grad).items():
        assert (got.double() - want[name]).abs().max() <= 1e-2 * want[name].abs().max(), name


# --- special scores --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(8, 8), (3, 5), (1, 1), (2, 33)], ids=str)
@pytest.mark.parametrize("name", ["power_law", "big_hub", "long_row"])
@pytest.mark.parametrize("special", [-INF, INF, NAN])
def test_scores_that_are_not_finite(special: float, name: str, shape: tuple[int, int]) -> None:
    """As PyG: -inf beside finite scores weighs 0; rows of nothing else, and rows with inf or NaN, are NaN."""
    softmax = pytest.importorskip("torch_geometric.utils").softmax
    edges = GRAPHS[name]
    arguments = gatv2(edges.graph(DEVICE), shape, torch.float64, edge_dim=1)
    arguments["att"], arguments["edge_weight_matrix"] = (
        arguments["att"].abs() + 0.1,
        torch.ones_like(arguments["edge_weight_matrix"]),
    )
    source, target = edges.edge_index.to(DEVICE)
    pick = (torch.rand(source.numel(), generator=seeded(5)) < 0.02).to(DEVICE)
    attr = torch.where(pick.unsqueeze(1), special, arguments["edge_attr"])
    if edges.num_dst > 1:
        attr[target == target[0]] = special  # a row of nothing else
    arguments["edge_attr"] = attr
    u = arguments["l"][source] + arguments["r"][target] + attr.unsqueeze(2)
    score = (torch.nn.functional.leaky_relu(u, 0.2) * arguments["att"]).sum(2)
    alpha = softmax(score, target, num_nodes=edges.num_dst)
    messages = alpha.unsqueeze(2) * arguments["l"][source]
    want = messages.new_zeros(edges.num_dst, *shape).index_add(0, target, messages)
    out, ours = gatv2_attention(**arguments, return_alpha=True)
    assert alpha.isnan().any() == (special != -INF or edges.num_dst > 1)
    torch.testing.assert_close(ours, alpha, rtol=1e-12, atol=1e-14, equal_nan=True)
    torch.testing.assert_close(out, want, rtol=1e-12, atol=1e-12, equal_nan=True)
    grad = incoming(arguments)
    theirs = gradients(reference.gatv2_attention, arguments, grad, NAMES)
    for key, value in gradients(gatv2_attention, arguments, grad).items():
        torch.testing.assert_close(value, theirs[key], rtol=1e-9, atol=1e-9, equal_nan=True)


# --- gradients -------------------------------------------------------------------------------------------------------


def test_one_tensor_given_twice() -> None:
    """As a layer with shared weights gives it: its gradient is the sum of both, the second derivative too."""
    graph = GRAPHS["loops"].graph(DEVICE)
    x, att = (features(n, 2, 3, dtype=torch.float64, device=DEVICE).requires_grad_() for n in (20, 1))
    assert torch.autograd.gradcheck(lambda x, a: gatv2_attention(x, x, a[0], graph), (x, att))
    assert torch.autograd.gradgradcheck(lambda x, a: gatv2_attention(x, x, a[0], graph), (x, att), **SECOND)


# --- PyG -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("edge_dim", [None, 3])
@pytest.mark.parametrize("loops", [False, True])
def test_as_pyg_gatv2_conv(loops: bool, edge_dim: int | None) -> None:
    """PyG's own layer, its propagate and its attention weights, from the same projections."""
    nn = pytest.importorskip("torch_geometric.nn")
    torch.manual_seed(0)
    layer = nn.GATv2Conv(7, 5, heads=4, add_self_loops=loops, edge_dim=edge_dim, fill_value=0.5).double().to(DEVICE)
    x = features(110, 7, dtype=torch.float64, device=DEVICE).requires_grad_()
    edge_index = GRAPHS["power_law"].edge_index.to(DEVICE)
    attr = features(1300, 3, dtype=torch.float64, seed=1, device=DEVICE) if edge_dim else None
    out, (used, alpha) = layer(x, edge_index, attr, return_attention_weights=True)

    graph = Graph.from_edge_index(edge_index, 110, self_loops="remove_add" if loops else None)
    left, right = layer.lin_l(x).view(-1, 4, 5), layer.lin_r(x).view(-1, 4, 5)
    kept = edge_index[0] != edge_index[1] if loops else torch.ones(1300, dtype=torch.bool, device=DEVICE)
    places = torch.cat([kept.nonzero()[:, 0], torch.arange(1300, graph.num_edges, device=DEVICE)])
    options = {}
    if attr is not None:
        filled = torch.cat([attr, attr.new_full((graph.num_edges - 1300, 3), 0.5)])
        options = {"edge_attr": filled, "edge_weight_matrix": layer.lin_edge.weight}
    ours, weights = gatv2_attention(left, right, layer.att[0], graph, **options, return_alpha=True)
    assert used.size(1) == places.numel()
    torch.testing.assert_close(ours.flatten(1) + layer.bias, out, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(weights[places], alpha, rtol=1e-12, atol=1e-12)
    parameters = [x, *layer.parameters()]
    theirs = torch.autograd.grad(out.square().sum(), parameters)
    mine = torch.autograd.grad((ours.flatten(1) + layer.bias).square().sum(), parameters)
    for got, want in zip(mine, theirs, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


# --- errors ----------------------------------------------------------------------------------------------------------

EDGES = torch.tensor([[0, 1, 2], [1, 1, 0]])


def bad(**changed: Any) -> Callable[[], object]:
    arguments = gatv2(Graph.from_edge_index(EDGES, (3, 2)), (2, 4), edge_dim=5)
    arguments = {name: t.cpu() if isinstance(t, Tensor) else t for name, t in arguments.items()}
    return lambda: gatv2_attention(**{**arguments, **changed})


META = torch.device("meta")
BAD = {
    "graph": (bad(graph=EDGES), TypeError, "graph", "gnnagg.Graph", "Tensor"),
    "l: list": (bad(l=[1.0]), TypeError, "l must", "torch.Tensor", "list"),
    "l: integer": (bad(l=torch.ones(3, 2, 4).long()), TypeError, "l must", "float32", "int64"),
    "l: rows": (bad(l=torch.ones(2, 2, 4)), ValueError, "l must", "num_src = 3", "[2, 2, 4]"),
    "l: device": (bad(l=torch.ones(3, 2, 4, device=META)), ValueError, "l must", "device cpu", "meta"),
    "r: flat": (bad(r=torch.ones(2, 8)), ValueError, "r must", "[num_dst, H, C]", "[2, 8]"),
    "r: rows": (bad(r=torch.ones(3, 2, 4)), ValueError, "r must", "num_dst = 2", "[3, 2, 4]"),
    "r: heads": (bad(r=torch.ones(2, 4, 2)), ValueError, "r must", "[2, 4] of l", "[2, 4, 2]"),
    "att: shape": (bad(att=torch.ones(1, 2, 4)), ValueError, "att must", "[H, C] = [2, 4]", "[1, 2, 4]"),
    "att: integer": (bad(att=torch.ones(2, 4).long()), TypeError, "att must", "floating point", "int64"),
    "att: none": (bad(att=None), TypeError, "att must", "torch.Tensor", "NoneType"),
    "att: device": (bad(att=torch.ones(2, 4, device=META)), ValueError, "att must", "device cpu", "meta"),
    "edge_attr: alone": (bad(edge_weight_matrix=None), ValueError, "edge_weight_matrix", "edge_attr", "None"),
    "matrix: alone": (bad(edge_attr=None), ValueError, "edge_attr must", "edge_weight_matrix", "None"),
    "edge_attr: list": (bad(edge_attr=[1.0]), TypeError, "edge_attr", "torch.Tensor", "list"),
    "edge_attr: integer": (bad(edge_attr=torch.ones(3, 5).long()), TypeError, "edge_attr", "floating", "int64"),
    "edge_attr: rows": (bad(edge_attr=torch.ones(4, 5)), ValueError, "edge_attr", "num_edges = 3", "[4, 5]"),
    "edge_attr: 3-D": (bad(edge_attr=torch.ones(3, 5, 1)), ValueError, "edge_attr", "[num_edges, D]", "[3, 5, 1]"),
    "edge_attr: device": (bad(edge_attr=torch.ones(3, 5, device=META)), ValueError, "edge_attr", "cpu", "meta"),
    "matrix: shape": (bad(edge_weight_matrix=torch.ones(5, 8)), ValueError, "matrix", "= [8, 5]", "got [5, 8]"),
    "matrix: list": (bad(edge_weight_matrix=[1.0]), TypeError, "edge_weight_matrix", "torch.Tensor", "list"),
    "matrix: device": (bad(edge_weight_matrix=torch.ones(8, 5, device=META)), ValueError, "matrix", "cpu", "meta"),
    "negative_slope": (bad(negative_slope="1"), TypeError, "negative_slope", "float", "str"),
    "dropout": (bad(dropout=1.5), ValueError, "dropout", "[0, 1]", "1.5"),
    "seed": (bad(dropout=0.5, seed=torch.ones(1)), TypeError, "seed", "int64", "float32"),
}


@pytest.mark.parametrize("name", BAD)
def test_message_names_argument_expected_and_got(name: str) -> None:
    do, error, *parts = BAD[name]
    with pytest.raises(error) as caught:
        do()
    for part in ("gatv2_attention", *parts):
        assert part in str(caught.value), str(caught.value)


def test_ops_survive_operands_that_do_not_fit() -> None:
    """Called below the friendly checks: an exception, not a crash."""
    graph = GRAPHS["power_law"].graph(DEVICE)
    schedule = graph.csr.schedule(32)
    csr = [graph.rowptr, graph.col, schedule.spans, schedule.splits]
    x, att = torch.randn(110, 8, device=DEVICE), torch.randn(2, 4, device=DEVICE)
    attr, matrix = torch.randn(1300, 3, device=DEVICE), torch.randn(8, 3, device=DEVICE)
    seed = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    cases: list[tuple[Any, ...]] = [
        (x.long(), x, att, None, None, *csr, None, seed),
        (x.double(), x, att, None, None, *csr, None, seed),
        (x, x[:5], att, None, None, *csr, None, seed),
        (x[:, :4].contiguous(), x, att, None, None, *csr, None, seed),
        (x, x, att.double(), None, None, *csr, None, seed),
        (x, x, att[:, :3].contiguous(), None, None, *csr, None, seed),
        (x, x, att[:0], None, None, *csr, None, seed),
        (x, x, att[0], None, None, *csr, None, seed),
        (x, x, att, attr, None, *csr, None, seed),
        (x, x, att, None, matrix, *csr, None, seed),
        (x, x, att, attr[:5], matrix, *csr, None, seed),
        (x, x, att, attr.double(), matrix, *csr, None, seed),
        (x, x, att, attr, matrix[:, :2].contiguous(), *csr, None, seed),
        (x, x, att, attr[:, :0].contiguous(), matrix[:, :0].contiguous(), *csr, None, seed),
        (x, x, att, None, None, csr[0].long(), *csr[1:], None, seed),
        (x, x, att, None, None, *csr, csr[0], seed),
        (x, x, att, None, None, *csr, None, seed.float()),
        (x, x, att, None, None, *csr, None, None),  # dropout without a seed
    ]
    for place, arguments in enumerate(cases):
        with pytest.raises((RuntimeError, ValueError, TypeError, IndexError)):
            torch.ops.gnnagg.gatv2_attention(*arguments, 0.2, 0.5)
            pytest.fail(f"case {place} was accepted")
