"""gatv2_attention against the reference in float64, PyG, and its own promises: memory, order, threads, compilation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from attention_zoo import (
    DEVICE,
    GRAPHS,
    SECOND,
    SHAPES,
    TensorRecorder,
    assert_within,
    check_compiled_with_a_raw_edge_index,
    largest_allocation,
    saved_bytes,
)
from score_zoo import EDGE_DIMS, Case, case, check, expect, gradients, incoming, set_level
from torch import Tensor
from zoo import DTYPES, STORE_EPS, assert_same_bits, features, ids, seeded

from gnnagg import Graph, gatv2_attention, reference

INF, NAN = float("inf"), float("nan")
NAMES = ["l", "r", "att", "edge_attr", "edge_weight_matrix"]
on_cpu = pytest.mark.skipif(DEVICE != "cpu", reason="about the CPU kernels")


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch._dynamo.reset()


@pytest.fixture
def any_level() -> Iterator[None]:
    yield
    set_level(-1)


def gatv2(graph: Graph, *shape_and_dtype: Any, **options: Any) -> Case:
    return case(gatv2_attention, graph, *shape_and_dtype, **options)


# --- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("edge_dim", [None, 5])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", GRAPHS)
def test_matches_reference(name: str, shape: tuple[int, int], edge_dim: int | None) -> None:
    check(gatv2_attention, gatv2(GRAPHS[name].graph(DEVICE), shape, edge_dim=edge_dim))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["power_law", "big_hub", "bipartite"])
def test_matches_reference_in_every_dtype(name: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    graph = GRAPHS[name].graph(DEVICE)
    check(gatv2_attention, gatv2(graph, shape, dtype))
    check(gatv2_attention, gatv2(graph, shape, dtype, edge_dim=3, dropout=0.4, seed=7))


@pytest.mark.parametrize("edge_dim", EDGE_DIMS)
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("name", ["power_law", "gaps", "duplicates", "big_hub", "bipartite", "no_edges", "no_rows"])
def test_every_combination_of_arguments(name: str, dropout: float, edge_dim: int | None) -> None:
    graph = GRAPHS[name].graph(DEVICE)
    arguments = gatv2(graph, (3, 5), torch.float64, edge_dim=edge_dim, dropout=dropout, seed=3, negative_slope=0.1)
    check(gatv2_attention, arguments)


@pytest.mark.parametrize("loops", ["add", "remove_add", "remove"])
def test_self_loops(loops: Any) -> None:
    """Removed edges are never read: their features may hold anything, and their gradient is 0."""
    graph = GRAPHS["loops"].graph(DEVICE, self_loops=loops)
    arguments = gatv2(graph, (3, 5), edge_dim=2, dropout=0.3, seed=1)
    live = torch.zeros(graph.num_edges, dtype=torch.bool, device=DEVICE).index_fill(0, reference.edges(graph)[2], True)
    assert live.all() == (loops == "add")
    clean = check(gatv2_attention, arguments)
    arguments["edge_attr"] = torch.where(live.unsqueeze(1), arguments["edge_attr"], NAN)
    again = gradients(gatv2_attention, arguments, incoming(arguments))
    for name in clean:
        assert_same_bits(again[name], clean[name])
    assert not again["edge_attr"][~live].any()


@pytest.mark.parametrize("slope", [0.0, 1.0, -0.5, 2.0])
def test_any_slope(slope: float) -> None:
    check(gatv2_attention, gatv2(GRAPHS["power_law"].graph(DEVICE), (5, 3), negative_slope=slope, edge_dim=2))


def test_large_scores_do_not_overflow() -> None:
    arguments = gatv2(GRAPHS["big_hub"].graph(DEVICE), (3, 5), torch.float64)
    arguments["r"] = arguments["r"] * 1e5
    check(gatv2_attention, arguments)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_strides_and_narrow_parameters(dtype: torch.dtype) -> None:
    """Any strides; parameters of any floating dtype, whose gradients come back in theirs; one feature without a row."""
    arguments = gatv2(GRAPHS["bipartite"].graph(DEVICE), (3, 5), dtype, edge_dim=1)
    grad = incoming(arguments)
    for name in ("att", "edge_weight_matrix"):
        arguments[name] = arguments[name].to(torch.bfloat16)
    want = expect(gatv2_attention, arguments, grad)
    for name in ("l", "r"):
        arguments[name] = arguments[name].transpose(1, 2).contiguous().transpose(1, 2)
    arguments["edge_attr"] = arguments["edge_attr"][:, 0]
    got = gradients(gatv2_attention, arguments, grad)
    assert got["edge_attr"].shape == (400,)
    got["edge_attr"] = got["edge_attr"].unsqueeze(1)
    for name, (value, bound) in want.items():
        assert got[name].dtype == (torch.bfloat16 if name in ("att", "edge_weight_matrix") else dtype)
        assert_within(name, got[name], value, bound + STORE_EPS[torch.bfloat16] * value.abs())


def test_dtypes_are_promoted() -> None:
    arguments = gatv2(GRAPHS["bipartite"].graph(DEVICE), (3, 5))
    half = {**arguments, "l": arguments["l"].half().requires_grad_(), "r": arguments["r"].requires_grad_()}
    out = gatv2_attention(**half)
    assert out.dtype == torch.float32
    assert_same_bits(out, gatv2_attention(**{**arguments, "l": half["l"].float()}))
    assert torch.autograd.grad(out.sum(), half["l"])[0].dtype == torch.float16


def test_no_edge_features_add_nothing() -> None:
    arguments = gatv2(GRAPHS["power_law"].graph(DEVICE), (3, 5))
    attr, matrix = torch.zeros(1300, 0, device=DEVICE), torch.zeros(15, 0, device=DEVICE)
    out = gatv2_attention(**arguments, edge_attr=attr, edge_weight_matrix=matrix)
    assert_same_bits(out, gatv2_attention(**arguments))


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


@pytest.mark.parametrize("edge_dim", [None, 2])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("name", ["gaps", "bipartite", "duplicates"])
def test_gradcheck_and_gradgradcheck(name: str, dropout: float, edge_dim: int | None) -> None:
    arguments = gatv2(GRAPHS[name].graph(DEVICE), (2, 3), torch.float64, edge_dim=edge_dim)
    names = [each for each in NAMES if each in arguments]
    leaves = [arguments.pop(each).requires_grad_() for each in names]

    def function(*tensors: Tensor) -> Tensor:
        return gatv2_attention(**dict(zip(names, tensors, strict=True)), **arguments, dropout=dropout, seed=11)

    assert torch.autograd.gradcheck(function, leaves, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, leaves, **SECOND)


def test_one_tensor_given_twice() -> None:
    """As a layer with shared weights gives it: its gradient is the sum of both, the second derivative too."""
    graph = GRAPHS["loops"].graph(DEVICE)
    x, att = (features(n, 2, 3, dtype=torch.float64, device=DEVICE).requires_grad_() for n in (20, 1))
    assert torch.autograd.gradcheck(lambda x, a: gatv2_attention(x, x, a[0], graph), (x, att))
    assert torch.autograd.gradgradcheck(lambda x, a: gatv2_attention(x, x, a[0], graph), (x, att), **SECOND)


@pytest.mark.parametrize("wanted", NAMES)
def test_each_gradient_alone_is_the_same(wanted: str) -> None:
    arguments = gatv2(GRAPHS["big_hub"].graph(DEVICE), (3, 5), edge_dim=2)
    grad = incoming(arguments)
    everything = gradients(gatv2_attention, arguments, grad)
    alone = gradients(gatv2_attention, arguments, grad, [wanted])
    assert_same_bits(alone[wanted], everything[wanted])


def test_dropout_of_everything() -> None:
    arguments = gatv2(GRAPHS["big_hub"].graph(DEVICE), (3, 5), edge_dim=2, dropout=1.0)
    results = gradients(gatv2_attention, arguments, incoming(arguments))
    assert all(not value.any() for value in results.values())


def test_seeds() -> None:
    graph = GRAPHS["power_law"].graph(DEVICE)
    arguments = gatv2(graph, (3, 5))

    def run(seed: Any) -> Tensor:
        return gatv2_attention(**arguments, dropout=0.5, seed=seed)

    assert_same_bits(run(7), run(torch.tensor([7], device=DEVICE)))
    assert not torch.equal(run(7), run(8))
    torch.manual_seed(1)
    first, second = run(None), run(None)
    assert not torch.equal(first, second)
    torch.manual_seed(1)
    assert_same_bits(run(None), first)


# --- attention weights -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(8, 8), (3, 5), (1, 40), (5, 1)], ids=str)
@pytest.mark.parametrize("edge_dim", [None, 3])
def test_alpha_is_that_of_the_reference_and_differentiable(edge_dim: int | None, shape: tuple[int, int]) -> None:
    graph = GRAPHS["loops"].graph(DEVICE, self_loops="remove_add")
    arguments = gatv2(graph, shape, torch.float64, edge_dim=edge_dim)
    weight = features(graph.num_edges, shape[0], dtype=torch.float64, seed=4, device=DEVICE)
    names = [each for each in NAMES if each in arguments]

    def both(op: Callable[..., Any]) -> dict[str, Tensor]:
        def scalar(**a: Any) -> Tensor:
            out, alpha = op(**a, return_alpha=True)
            return (alpha * weight).sum() + out.square().sum()

        return gradients(scalar, arguments, torch.ones((), dtype=torch.float64, device=DEVICE), names)

    ours, theirs = both(gatv2_attention), both(reference.gatv2_attention)
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-10, atol=1e-10)
    alpha = gatv2_attention(**arguments, return_alpha=True, dropout=0.5)[1]
    torch.testing.assert_close(alpha, reference.gatv2_attention(**arguments, return_alpha=True)[1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_alpha_in_every_dtype(dtype: torch.dtype) -> None:
    arguments = gatv2(GRAPHS["bipartite"].graph(DEVICE), (3, 5), dtype, edge_dim=2)
    alpha = gatv2_attention(**arguments, return_alpha=True)[1]
    assert alpha.dtype == arguments["att"].dtype
    wide = {name: t.double() if isinstance(t, Tensor) else t for name, t in arguments.items()}
    want = reference.gatv2_attention(**wide, return_alpha=True)[1]
    torch.testing.assert_close(alpha.double(), want, rtol=1e-5, atol=1e-6)  # float32 scores of about 1


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


# --- order, threads, levels ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["power_law", "big_hub", "bipartite"])
def test_order_of_the_edges(name: str) -> None:
    """Shuffled edges change nothing but rounding; a shuffle that leaves every row's order changes no bit."""
    edges = GRAPHS[name]
    edge_index = edges.edge_index.to(DEVICE)
    arguments = gatv2(edges.graph(DEVICE), (3, 5), edge_dim=2)
    grad = incoming(arguments)
    plain = gradients(gatv2_attention, arguments, grad)
    shuffle = torch.randperm(edge_index.size(1), generator=seeded(1)).to(DEVICE)
    by_target = edge_index[1].argsort(stable=True)
    for order, same_bits in ((shuffle, False), (by_target, True)):
        moved = {
            **arguments,
            "graph": Graph.from_edge_index(edge_index[:, order].contiguous(), edges.size),
            "edge_attr": arguments["edge_attr"][order],
        }
        for key, value in gradients(gatv2_attention, moved, grad).items():
            want = plain[key][order] if key == "edge_attr" else plain[key]
            if same_bits:
                assert_same_bits(value, want)
            else:
                torch.testing.assert_close(value, want, rtol=1e-4, atol=2e-4)


def _everything(name: str, shape: tuple[int, int], dtype: torch.dtype) -> list[Tensor]:
    edges = GRAPHS[name]
    graph = Graph.from_edge_index(edges.edge_index.clone().to(DEVICE), edges.size)
    results: list[Tensor] = []
    for edge_dim, dropout in ((None, 0.0), (3, 0.4)):
        arguments = gatv2(graph, shape, dtype, edge_dim=edge_dim, dropout=dropout, seed=2)
        results += gradients(gatv2_attention, arguments, incoming(arguments)).values()
    return results


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_repeats_bit_for_bit(dtype: torch.dtype) -> None:
    first, *others = (_everything("big_hub", (8, 8), dtype) for _ in range(3))
    for each in others:
        for got, want in zip(each, first, strict=True):
            assert_same_bits(got, want)


@on_cpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_threads_and_levels_change_no_bit(
    shape: tuple[int, int], dtype: torch.dtype, threads: None, any_level: None
) -> None:
    for name in ("long_row", "big_hub"):
        assert int(GRAPHS[name].graph().csr.schedule(64).splits[0].sum()) > 0  # a row is cut
        expected: list[Tensor] = []
        for level in range(set_level(-1) + 1):
            set_level(level)
            for count in (1, 2, 3):
                torch.set_num_threads(count)
                results = _everything(name, shape, dtype)
                expected = expected or results
                for got, want in zip(results, expected, strict=True):
                    assert_same_bits(got, want)


# --- memory ----------------------------------------------------------------------------------------------------------


def _memory_case() -> tuple[Graph, Case, int]:
    graph = GRAPHS["dense"].graph(DEVICE)  # 250 edges per node
    return graph, gatv2(graph, (4, 16), edge_dim=8), graph.num_edges * 4 * 16


def test_no_tensor_of_every_edge_and_feature() -> None:
    """In the attention weights' second way either, which holds a quarter of it at a time."""
    _, arguments, limit = _memory_case()
    grad = incoming(arguments)
    with TensorRecorder() as recorder:
        gradients(gatv2_attention, {**arguments, "dropout": 0.3}, grad)
    assert 0 < recorder.largest < limit, recorder.name
    with TensorRecorder() as recorder:
        gradients(lambda **a: gatv2_attention(**a, return_alpha=True)[0], arguments, grad, NAMES)
    assert 0 < recorder.largest < limit, recorder.name
    with TensorRecorder() as recorder:
        gradients(reference.gatv2_attention, arguments, grad, NAMES)
    assert recorder.largest >= limit  # it does notice


@on_cpu
def test_no_allocation_of_every_edge_and_feature() -> None:
    """Inside the kernels too: two numbers per edge and head in backward, and the gradient of the edge features."""
    graph, arguments, limit = _memory_case()
    grad = incoming(arguments)
    for each in ({**arguments, "dropout": 0.3}, gatv2(graph, (4, 16))):
        gradients(gatv2_attention, each, grad)  # plans and caches
        largest = largest_allocation(lambda: gradients(gatv2_attention, each, grad))
        assert 0 < largest <= graph.num_edges * 8 * 4
    assert largest_allocation(lambda: gradients(reference.gatv2_attention, arguments, grad, NAMES)) >= limit * 4


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_saves_nothing_per_edge(dropout: float) -> None:
    graph, arguments, _ = _memory_case()
    leaves = {name: t.requires_grad_() if isinstance(t, Tensor) else t for name, t in arguments.items()}
    inputs = [t for t in leaves.values() if isinstance(t, Tensor)]
    saved = saved_bytes(lambda: gatv2_attention(**leaves, dropout=dropout), inputs)
    assert 0 < saved <= 16 * graph.num_edges
    assert saved_bytes(lambda: reference.gatv2_attention(**leaves), inputs) > 16 * graph.num_edges


# --- compiled code ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("edge_dim", [None, 2])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_compiles_with_a_graph(dropout: float, edge_dim: int | None) -> None:
    """As a closure and as an argument, without a graph break, forward and backward."""
    graph = GRAPHS["power_law"].graph(DEVICE)
    arguments = gatv2(graph, (3, 5), edge_dim=edge_dim)
    names, grad = [each for each in NAMES if each in arguments], incoming(arguments)
    seed = torch.tensor([9], device=DEVICE)

    def layer(**a: Any) -> Tensor:
        return gatv2_attention(**a, dropout=dropout, seed=seed)

    def closure(**a: Any) -> Tensor:
        return layer(**{**a, "graph": graph})

    expected = gradients(layer, arguments, grad, names)
    for function in (layer, closure):
        got = gradients(torch.compile(function, fullgraph=True, backend="aot_eager"), arguments, grad, names)
        for name in expected:
            torch.testing.assert_close(got[name], expected[name], rtol=1e-5, atol=1e-5)


def test_compiles_with_a_raw_edge_index_and_attention_weights() -> None:
    edges = GRAPHS["power_law"]
    arguments = gatv2(edges.graph(DEVICE), (3, 5))
    del arguments["graph"]

    def layer(edge_index: Tensor, l: Tensor, r: Tensor, att: Tensor) -> tuple[Tensor, Tensor]:  # noqa: E741
        graph = Graph.from_edge_index(edge_index, (l.size(0), l.size(0)), self_loops="remove_add")
        return gatv2_attention(l, r, att, graph, return_alpha=True)

    check_compiled_with_a_raw_edge_index(layer, list(arguments.values()), edges.edge_index)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_autocast_runs_in_the_dtype_of_the_features(dtype: torch.dtype) -> None:
    arguments = gatv2(GRAPHS["power_law"].graph(DEVICE), (3, 5), dtype, edge_dim=2)
    grad = incoming(arguments)

    def inside(**a: Any) -> Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            out, alpha = gatv2_attention(**a, return_alpha=True)
            assert out.dtype == dtype and alpha.dtype == arguments["edge_weight_matrix"].dtype
        return out + alpha.sum().to(dtype)

    def outside(**a: Any) -> Tensor:
        out, alpha = gatv2_attention(**a, return_alpha=True)
        return out + alpha.sum().to(dtype)

    expected = gradients(outside, arguments, grad, NAMES)
    for name, got in gradients(inside, arguments, grad, NAMES).items():
        assert_same_bits(got, expected[name])


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
