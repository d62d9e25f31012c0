"""gat_attention against the reference in float64, PyG, and its own promises: memory, order, threads, compilation."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from attention_zoo import (
    ACCUMULATE_EPS,
    DEVICE,
    GRAPHS,
    SECOND,
    SHAPES,
    TensorRecorder,
    assert_within,
    check_compiled_with_a_raw_edge_index,
    check_order_of_edges,
    exact_mask,
    largest_allocation,
    magnitudes,
    saved_bytes,
    sum_over,
)
from torch import Tensor
from zoo import DTYPES, STORE_EPS, accumulate, assert_same_bits, features, seeded

import gnnagg
from gnnagg import Graph, edge_softmax, gat_attention, reference

INF, NAN = float("inf"), float("nan")
LIBRARY = Path(gnnagg.__file__).parent / "_C_cpu.so"
on_cpu = pytest.mark.skipif(DEVICE != "cpu", reason="about the CPU kernels")


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch._dynamo.reset()


def set_level(level: int) -> int:
    """Forces the instruction set of the kernels; returns the one in use. Negative: the machine's best."""
    return int(ctypes.CDLL(str(LIBRARY)).gnnagg_cpu_level(level))


@pytest.fixture
def any_level() -> Iterator[None]:
    yield
    set_level(-1)


Case = dict[str, Any]


def case(
    graph: Graph,
    shape: tuple[int, int] = (8, 8),
    dtype: torch.dtype = torch.float32,
    *,
    target: bool = True,
    edge: bool = False,
    **options: Any,
) -> Case:
    """Random arguments of gat_attention, scores in the accumulate dtype."""
    heads, wide = shape[0], accumulate(dtype)
    return {
        "z": features(graph.num_src, *shape, dtype=dtype, device=DEVICE),
        "a_src": features(graph.num_src, heads, dtype=wide, seed=1, device=DEVICE),
        "a_dst": features(graph.num_dst, heads, dtype=wide, seed=2, device=DEVICE) if target else None,
        "graph": graph,
        "edge_score": features(graph.num_edges, heads, dtype=wide, seed=3, device=DEVICE) if edge else None,
        **options,
    }


def gradients(op: Callable[..., Any], arguments: Case, grad: Tensor) -> dict[str, Tensor]:
    """The result, and the gradient of every tensor that is given."""
    names = [name for name in ("z", "a_src", "a_dst", "edge_score") if arguments[name] is not None]
    leaves = {name: arguments[name].detach().clone().requires_grad_() for name in names}
    out = op(**{**arguments, **leaves})
    found = torch.autograd.grad(out, list(leaves.values()), grad.to(out.dtype))
    return {"out": out.detach(), **dict(zip(names, found, strict=True))}


def expect(arguments: Case, grad: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Result and gradients by the reference in float64, each with the error that rounding explains."""
    graph: Graph = arguments["graph"]
    dtype = arguments["z"].dtype
    wide = {name: t.double() if isinstance(t, Tensor) else t for name, t in arguments.items()}
    dropout, seed = wide.pop("dropout", 0.0), wide.pop("seed", 0)
    mask = exact_mask(seed, graph.num_edges, arguments["z"].size(1), dropout)
    want = gradients(lambda **a: reference.gat_attention(**a, mask=mask), wide, grad.double())
    alpha = reference.gat_attention(**wide, return_alpha=True)[1]
    size = magnitudes(alpha, mask, wide["z"], grad.double(), graph)
    rounding, store = ACCUMULATE_EPS[dtype] * _reach(wide), STORE_EPS[dtype]
    ds = rounding * size.ds + 2 * store * size.row_dot  # out is stored in the dtype of z before backward reads it
    tiny = torch.finfo(dtype).tiny
    bounds = {
        "out": rounding * size.out + store * want["out"].abs(),
        "z": rounding * size.dvalue + store * want["z"].abs(),
        "a_src": sum_over(ds, graph, "source"),
        "a_dst": sum_over(ds, graph, "target") + _rounding_of_positive_sums(arguments, size.out, grad),
        "edge_score": ds,
    }
    return {name: (result, bounds[name] + tiny) for name, result in want.items()}


def wants_positive(arguments: Case) -> bool:
    """Whether gat_attention gets the gradient of a_dst from its sums over positive scores, of these arguments."""
    leaves = [t if t is None else t.detach().requires_grad_() for t in (arguments["a_dst"], arguments["edge_score"])]
    return bool(sys.modules["gnnagg.gat_attention"]._wants_positive(arguments["graph"], *leaves))


def _rounding_of_positive_sums(arguments: Case, size: Tensor, grad: Tensor) -> Tensor | float:
    """Then it is a difference of products of grad with out and with its positive part, both stored like z."""
    if not wants_positive(arguments):
        return 0.0
    dtype = arguments["z"].dtype
    return 4 * (STORE_EPS[dtype] + ACCUMULATE_EPS[dtype]) * (grad.double().abs() * size).sum(2)


def _reach(arguments: Case) -> float:
    """How far scores go beyond the ten that ACCUMULATE_EPS allows for: a weight is as exact as its logarithm is."""
    parts = [arguments[name] for name in ("a_src", "a_dst", "edge_score")]
    return max(1.0, sum(float(t.abs().max()) for t in parts if t is not None and t.numel() and t.isfinite().all()) / 10)


def check(arguments: Case, op: Callable[..., Any] = gat_attention) -> dict[str, Tensor]:
    graph, z = arguments["graph"], arguments["z"]
    grad = features(graph.num_dst, *z.shape[1:], dtype=z.dtype, seed=99, device=DEVICE)
    got = gradients(op, arguments, grad)
    want = expect(arguments, grad)
    assert got.keys() == want.keys()
    for name, value in got.items():
        assert value.dtype == (z.dtype if name == "out" else arguments[name].dtype)
        assert_within(name, value, *want[name])
    return got


# --- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", GRAPHS)
def test_matches_reference(name: str, shape: tuple[int, int]) -> None:
    check(case(GRAPHS[name].graph(DEVICE), shape))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["power_law", "big_hub", "bipartite", "long_row"])
def test_matches_reference_in_every_dtype(name: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    check(case(GRAPHS[name].graph(DEVICE), shape, dtype, edge=True, dropout=0.4, seed=7))


@pytest.mark.parametrize("target", [False, True])
@pytest.mark.parametrize("edge", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("name", ["power_law", "gaps", "duplicates", "big_hub", "bipartite", "no_edges", "no_rows"])
def test_every_combination_of_arguments(name: str, dropout: float, edge: bool, target: bool) -> None:
    graph = GRAPHS[name].graph(DEVICE)
    check(case(graph, (3, 5), torch.float64, target=target, edge=edge, dropout=dropout, seed=3, negative_slope=0.1))


@pytest.mark.parametrize("loops", ["add", "remove_add", "remove"])
def test_self_loops(loops: Any) -> None:
    """Removed edges are never read: their scores may hold anything, and their gradient is 0."""
    graph = GRAPHS["loops"].graph(DEVICE, self_loops=loops)
    arguments = case(graph, (3, 5), edge=True, dropout=0.3, seed=1)
    live = torch.zeros(graph.num_edges, dtype=torch.bool, device=DEVICE).index_fill(0, reference.edges(graph)[2], True)
    assert live.all() == (loops == "add")
    clean = check(arguments)
    arguments["edge_score"] = torch.where(live.unsqueeze(1), arguments["edge_score"], NAN)
    again = gradients(gat_attention, arguments, features(20, 3, 5, seed=99, device=DEVICE))
    for name in clean:
        assert_same_bits(again[name], clean[name])
    assert not again["edge_score"][~live].any()


@pytest.mark.parametrize("slope", [0.0, 1.0, -0.5, 2.0])
def test_any_slope(slope: float) -> None:
    check(case(GRAPHS["power_law"].graph(DEVICE), (5, 3), negative_slope=slope))


def test_large_scores_do_not_overflow() -> None:
    graph = GRAPHS["big_hub"].graph(DEVICE)
    arguments = case(graph, (3, 5), torch.float64)
    arguments["a_src"] = arguments["a_src"] * 1e3
    arguments["a_dst"] = arguments["a_dst"] * 1e5
    check(arguments)


@pytest.mark.parametrize("shape", [(2, 4), (3, 5), (1, 33)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_strides_and_narrow_scores(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """Any strides of z; scores of any floating dtype, whose gradients come back in theirs."""
    graph = GRAPHS["bipartite"].graph(DEVICE)
    arguments = case(graph, shape, dtype, edge=True)
    for name in ("a_src", "a_dst", "edge_score"):
        arguments[name] = arguments[name].to(torch.bfloat16)
    arguments["z"] = arguments["z"].transpose(1, 2).contiguous().transpose(1, 2)
    grad = features(30, *shape, dtype=dtype, seed=99, device=DEVICE)
    got = gradients(gat_attention, arguments, grad)
    for name, (want, bound) in expect(arguments, grad).items():
        assert got[name].dtype == (dtype if name in ("out", "z") else torch.bfloat16)
        assert_within(name, got[name], want, bound + STORE_EPS[torch.bfloat16] * want.abs())


@pytest.mark.parametrize("edge", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_positive_sums_give_the_gradient_of_the_targets(
    dtype: torch.dtype, edge: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The forward's sums over positive scores stand in for the gradient of every edge's score."""
    monkeypatch.setattr(sys.modules["gnnagg.gat_attention"], "_wants_positive", lambda *_: True)
    assert wants_positive(case(GRAPHS["single"].graph(DEVICE)))
    for name in ("power_law", "big_hub", "gaps", "bipartite", "long_row", "no_edges"):
        graph = GRAPHS[name].graph(DEVICE)
        for shape in [(8, 8), (3, 5), (1, 33)]:
            arguments = case(graph, shape, dtype, edge=edge, dropout=0.4, seed=5)
            grad = features(graph.num_dst, *shape, dtype=dtype, seed=99, device=DEVICE)
            got = gradients(gat_attention, arguments, grad)
            want = expect(arguments, grad)
            for key, value in got.items():
                assert_within(f"{name} {shape} {key}", value, *want[key])


# --- special scores --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(8, 8), (3, 5), (1, 1)], ids=str)
@pytest.mark.parametrize("name", ["power_law", "big_hub", "long_row"])
@pytest.mark.parametrize("special", [-INF, INF, NAN])
def test_scores_that_are_not_finite(special: float, name: str, shape: tuple[int, int]) -> None:
    """As PyG: -inf beside finite scores weighs 0; rows of nothing else, and rows with inf or NaN, are NaN."""
    softmax = pytest.importorskip("torch_geometric.utils").softmax
    edges = GRAPHS[name]
    arguments = case(edges.graph(DEVICE), shape, torch.float64, edge=True)
    pick = torch.rand(edges.edge_index.size(1), shape[0], generator=seeded(5)) < 0.02
    score = torch.where(pick.to(DEVICE), special, arguments["edge_score"])
    source, target = edges.edge_index.to(DEVICE)
    if edges.num_dst > 1:
        score[target == target[0]] = special  # a row of nothing else
    arguments["edge_score"] = score
    before = arguments["a_src"][source] + arguments["a_dst"][target] + score
    alpha = softmax(torch.nn.functional.leaky_relu(before, 0.2), target, num_nodes=edges.num_dst)
    messages = alpha.unsqueeze(2) * arguments["z"][source]
    want = messages.new_zeros(edges.num_dst, *shape).index_add(0, target, messages)
    out, ours = gat_attention(**arguments, return_alpha=True)
    assert alpha.isnan().any() == (special != -INF or edges.num_dst > 1)
    torch.testing.assert_close(ours, alpha, rtol=1e-12, atol=1e-14, equal_nan=True)
    torch.testing.assert_close(out, want, rtol=1e-12, atol=1e-12, equal_nan=True)
    grad = features(edges.num_dst, *shape, dtype=torch.float64, seed=99, device=DEVICE)
    for key, (expected, bound) in expect(arguments, grad).items():
        finite = torch.where(expected.isnan() | bound.isnan(), 1e-9, bound)
        assert_within(key, gradients(gat_attention, arguments, grad)[key], expected, finite)


def test_nan_features_stay_in_their_channel() -> None:
    graph = GRAPHS["power_law"].graph(DEVICE)
    arguments = case(graph, (2, 33))
    arguments["z"][3, 1, 7] = NAN
    out = gat_attention(**arguments)
    reached = reference.edges(graph)[1][reference.edges(graph)[0] == 3].unique()
    assert out[reached, 1, 7].isnan().all() and out.isnan().sum() == reached.numel()


# --- gradients -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("name", ["gaps", "bipartite", "duplicates"])
def test_gradcheck_and_gradgradcheck(name: str, dropout: float) -> None:
    graph = GRAPHS[name].graph(DEVICE)
    arguments = case(graph, (2, 3), torch.float64, edge=True)
    names = ["z", "a_src", "a_dst", "edge_score"]
    leaves = [arguments.pop(each).requires_grad_() for each in names]

    def function(*tensors: Tensor) -> Tensor:
        return gat_attention(**dict(zip(names, tensors, strict=True)), **arguments, dropout=dropout, seed=11)

    assert torch.autograd.gradcheck(function, leaves, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, leaves, **SECOND)


def test_second_derivatives_with_dropout_are_exact() -> None:
    """The mask of the second pass is that of the first, not its float32 rounding."""
    graph, dropout = GRAPHS["bipartite"].graph(DEVICE), 0.4
    arguments = case(graph, (2, 3), torch.float64)
    mask = exact_mask(11, graph.num_edges, 2, dropout)
    results = []
    for op, options in ((gat_attention, {"dropout": dropout, "seed": 11}), (reference.gat_attention, {"mask": mask})):
        z = arguments["z"].clone().requires_grad_()
        out = op(z, arguments["a_src"], arguments["a_dst"], graph, **options)
        (first,) = torch.autograd.grad(out.sin().sum(), z, create_graph=True)
        results.append(torch.autograd.grad(first.square().sum(), z)[0])
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)


def test_second_derivatives_without_optional_arguments() -> None:
    graph = GRAPHS["bipartite"].graph(DEVICE)
    arguments = case(graph, (2, 3), torch.float64, target=False)
    z, a_src = arguments["z"].requires_grad_(), arguments["a_src"].requires_grad_()
    assert torch.autograd.gradgradcheck(lambda z, a: gat_attention(z, a, None, graph), (z, a_src), **SECOND)


@pytest.mark.parametrize("wanted", ["z", "a_src", "a_dst", "edge_score"])
def test_each_gradient_alone_is_the_same(wanted: str) -> None:
    graph = GRAPHS["big_hub"].graph(DEVICE)
    arguments = case(graph, (3, 5), edge=True)
    grad = features(90, 3, 5, seed=99, device=DEVICE)
    everything = gradients(gat_attention, arguments, grad)
    leaf = arguments[wanted].clone().requires_grad_()
    (alone,) = torch.autograd.grad(gat_attention(**{**arguments, wanted: leaf}), leaf, grad)
    torch.testing.assert_close(alone, everything[wanted], rtol=1e-5, atol=1e-5)


def test_alpha_is_differentiable() -> None:
    graph = GRAPHS["bipartite"].graph(DEVICE)
    arguments = case(graph, (3, 5), torch.float64, edge=True)
    weight = features(graph.num_edges, 3, dtype=torch.float64, seed=4, device=DEVICE)

    def both(op: Callable[..., Any]) -> dict[str, Tensor]:
        def scalar(**a: Any) -> Tensor:
            out, alpha = op(**a, return_alpha=True)
            return (alpha * weight).sum() + out.square().sum()

        return gradients(scalar, arguments, torch.ones((), dtype=torch.float64, device=DEVICE))

    ours, theirs = both(gat_attention), both(reference.gat_attention)
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-10, atol=1e-10)


# --- PyG -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("edge_dim", [None, 3])
@pytest.mark.parametrize("loops", [False, True])
def test_as_pyg_gat_conv(loops: bool, edge_dim: int | None) -> None:
    """PyG's own layer, its propagate and its attention weights, from the same projections."""
    nn = pytest.importorskip("torch_geometric.nn")
    edges = GRAPHS["power_law"]
    torch.manual_seed(0)
    layer = nn.GATConv(7, 5, heads=4, add_self_loops=loops, edge_dim=edge_dim, fill_value=0.5).double().to(DEVICE)
    x = features(110, 7, dtype=torch.float64, device=DEVICE).requires_grad_()
    edge_index = edges.edge_index.to(DEVICE)
    attr = features(1300, 3, dtype=torch.float64, seed=1, device=DEVICE) if edge_dim else None
    out, (used, alpha) = layer(x, edge_index, attr, return_attention_weights=True)

    graph = Graph.from_edge_index(edge_index, 110, self_loops="remove_add" if loops else None)
    z = layer.lin(x).view(-1, 4, 5)
    a_src, a_dst = (z * layer.att_src).sum(-1), (z * layer.att_dst).sum(-1)
    score = None
    kept = edge_index[0] != edge_index[1] if loops else torch.ones(1300, dtype=torch.bool, device=DEVICE)
    places = torch.cat([kept.nonzero()[:, 0], torch.arange(1300, graph.num_edges, device=DEVICE)])
    if attr is not None:
        filled = torch.cat([attr, attr.new_full((graph.num_edges - 1300, 3), 0.5)])
        score = (layer.lin_edge(filled).view(-1, 4, 5) * layer.att_edge).sum(-1)
    ours, weights = gat_attention(z, a_src, a_dst, graph, edge_score=score, return_alpha=True)
    assert used.size(1) == places.numel()
    torch.testing.assert_close(ours.flatten(1) + layer.bias, out, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(weights[places], alpha, rtol=1e-12, atol=1e-12)
    parameters = [x, *layer.parameters()]
    theirs = torch.autograd.grad(out.square().sum(), parameters, allow_unused=True)
    mine = torch.autograd.grad((ours.flatten(1) + layer.bias).square().sum(), parameters, allow_unused=True)
    for got, want in zip(mine, theirs, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


# --- order, threads, levels ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["power_law", "big_hub", "bipartite"])
def test_order_of_the_edges(name: str) -> None:
    edges = GRAPHS[name]
    arguments = case(edges.graph(DEVICE), (3, 5), edge=True)
    grad = features(edges.num_dst, 3, 5, seed=99, device=DEVICE)
    check_order_of_edges(edges, arguments, "edge_score", lambda given: gradients(gat_attention, given, grad))


def _everything(name: str, shape: tuple[int, int], dtype: torch.dtype) -> list[Tensor]:
    edges = GRAPHS[name]
    graph = Graph.from_edge_index(edges.edge_index.clone().to(DEVICE), edges.size)
    grad = features(graph.num_dst, *shape, dtype=dtype, seed=99, device=DEVICE)
    results: list[Tensor] = []
    for edge, dropout in ((False, 0.0), (True, 0.4)):
        arguments = case(graph, shape, dtype, edge=edge, dropout=dropout, seed=2)
        results += gradients(gat_attention, arguments, grad).values()
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
        expected: list[Tensor] = []
        for level in range(set_level(-1) + 1):
            set_level(level)
            for count in (1, 2, 3):
                torch.set_num_threads(count)
                results = _everything(name, shape, dtype)
                expected = expected or results
                for got, want in zip(results, expected, strict=True):
                    assert_same_bits(got, want)


@on_cpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_exponential_is_within_two_units(dtype: torch.dtype, any_level: None) -> None:
    """Rows of two edges with the scores 0 and x: far below, the second weight is exp(x) itself, to its last bits."""
    lowest, least = (-104.5, 2.0**-149) if dtype == torch.float32 else (-746.0, 2.0**-1074)
    x = torch.linspace(lowest, -40.0, 200_001, dtype=torch.float64).to(dtype)
    rows = torch.arange(x.numel()).repeat_interleave(2)
    graph = Graph.from_edge_index(torch.stack([torch.zeros_like(rows), rows]), (1, x.numel()))
    score = torch.stack([torch.zeros_like(x), x], 1).flatten()
    want = x.double().exp()
    unit = torch.maximum(want * torch.finfo(dtype).eps, torch.tensor(least, dtype=torch.float64))
    for level in range(set_level(-1) + 1):
        set_level(level)
        got = edge_softmax(score, graph)[1::2].double()
        if dtype == torch.float32:
            assert ((got - want).abs() <= 2 * unit).all()
        else:  # torch's own exponential is the yardstick here
            assert ((got - want).abs() <= 3 * unit).all()
        assert (got > 0).any() and (got == 0).any()


# --- memory ----------------------------------------------------------------------------------------------------------


def _memory_case() -> tuple[Graph, Case, int]:
    graph = GRAPHS["dense"].graph(DEVICE)  # 250 edges per node
    heads, channels = 4, 16
    return graph, case(graph, (heads, channels), edge=True), graph.num_edges * heads * channels


def test_no_tensor_of_every_edge_and_feature() -> None:
    _, arguments, limit = _memory_case()
    grad = features(12, 4, 16, seed=99, device=DEVICE)
    with TensorRecorder() as recorder:
        gradients(gat_attention, {**arguments, "dropout": 0.3}, grad)
        gat_attention(**arguments, return_alpha=True)
    assert 0 < recorder.largest < limit, recorder.name
    with TensorRecorder() as recorder:
        gradients(reference.gat_attention, arguments, grad)
    assert recorder.largest >= limit  # it does notice


@on_cpu
def test_no_allocation_of_every_edge_and_feature() -> None:
    """Inside the kernels too, and whichever way the gradient of a_dst goes."""
    graph, arguments, limit = _memory_case()
    grad = features(12, 4, 16, seed=99)
    for each in ({**arguments, "dropout": 0.3}, {**arguments, "edge_score": None}):
        gradients(gat_attention, each, grad)  # plans and caches
        largest = largest_allocation(lambda: gradients(gat_attention, each, grad))
        assert 0 < largest <= graph.num_edges * 4 * 4  # [E, H] float32
    assert largest_allocation(lambda: gradients(reference.gat_attention, arguments, grad)) >= limit * 4


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_saves_nothing_per_edge(dropout: float) -> None:
    graph, arguments, _ = _memory_case()
    leaves = {name: t.requires_grad_() if isinstance(t, Tensor) else t for name, t in arguments.items()}
    inputs = [t for t in leaves.values() if isinstance(t, Tensor)]
    saved = saved_bytes(lambda: gat_attention(**leaves, dropout=dropout), inputs)
    assert 0 < saved <= 16 * graph.num_edges
    assert saved_bytes(lambda: reference.gat_attention(**leaves), inputs) > 16 * graph.num_edges


# --- compiled code ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("edge", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_compiles_with_a_graph(dropout: float, edge: bool) -> None:
    """As a closure and as an argument, without a graph break, forward and backward."""
    graph = GRAPHS["power_law"].graph(DEVICE)
    arguments = case(graph, (3, 5), edge=edge)
    grad = features(110, 3, 5, seed=99, device=DEVICE)
    seed = torch.tensor([9], device=DEVICE)

    def layer(**a: Any) -> Tensor:
        return gat_attention(**a, dropout=dropout, seed=seed)

    def closure(**a: Any) -> Tensor:
        return layer(**{**a, "graph": graph})

    expected = gradients(layer, arguments, grad)
    for function in (layer, closure):
        got = gradients(torch.compile(function, fullgraph=True, backend="aot_eager"), arguments, grad)
        for name in expected:
            torch.testing.assert_close(got[name], expected[name], rtol=1e-5, atol=1e-5)


def test_compiles_with_a_raw_edge_index_and_attention_weights() -> None:
    edges = GRAPHS["power_law"]
    arguments = case(edges.graph(DEVICE), (3, 5))
    del arguments["graph"], arguments["edge_score"]

    def layer(edge_index: Tensor, z: Tensor, a_src: Tensor, a_dst: Tensor) -> tuple[Tensor, Tensor]:
        graph = Graph.from_edge_index(edge_index, (z.size(0), z.size(0)), self_loops="remove_add")
        return gat_attention(z, a_src, a_dst, graph, return_alpha=True)

    check_compiled_with_a_raw_edge_index(layer, list(arguments.values()), edges.edge_index)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_autocast_runs_in_the_dtype_of_z(dtype: torch.dtype) -> None:
    arguments = case(GRAPHS["power_law"].graph(DEVICE), (3, 5), dtype)
    grad = features(110, 3, 5, dtype=dtype, seed=99, device=DEVICE)
    with torch.autocast(DEVICE, torch.bfloat16):
        inside = gradients(gat_attention, arguments, grad)
    for name, want in gradients(gat_attention, arguments, grad).items():
        assert_same_bits(inside[name], want)


def test_only_the_result_carries_a_gradient() -> None:
    graph = GRAPHS["power_law"].graph(DEVICE)
    z, score = torch.randn(110, 8, device=DEVICE, requires_grad=True), torch.randn(110, 2, device=DEVICE)
    schedule = graph.csr.schedule(32)
    csr = (graph.rowptr, graph.col, schedule.spans, schedule.splits, None, None)
    out, *others = torch.ops.gnnagg.gat_attention(z, score, score, None, *csr, 0.2, 0.0, True)
    assert out.requires_grad and not any(each.requires_grad for each in others)
    assert torch.ops.gnnagg.gat_attention(z, score, score, None, *csr, 0.2, 0.0, False)[2].shape == (0,)


# --- errors ----------------------------------------------------------------------------------------------------------

EDGES = torch.tensor([[0, 1, 2], [1, 1, 0]])


def bad(**changed: Any) -> Callable[[], object]:
    graph = Graph.from_edge_index(EDGES, (3, 2))
    arguments = case(graph, (2, 4), edge=True)
    arguments = {name: t.cpu() if isinstance(t, Tensor) else t for name, t in arguments.items()}
    return lambda: gat_attention(**{**arguments, **changed})


BAD = {
    "graph": (bad(graph=EDGES), TypeError, "graph", "gnnagg.Graph", "Tensor"),
    "z: list": (bad(z=[1.0]), TypeError, "z", "torch.Tensor", "list"),
    "z: integer": (bad(z=torch.ones(3, 2, 4).long()), TypeError, "z", "float32", "int64"),
    "z: complex": (bad(z=torch.ones(3, 2, 4, dtype=torch.complex64)), TypeError, "z", "float32", "complex64"),
    "z: flat": (bad(z=torch.ones(3, 8)), ValueError, "z", "[num_src, H, C]", "[3, 8]"),
    "z: rows": (bad(z=torch.ones(2, 2, 4)), ValueError, "z", "num_src = 3", "[2, 2, 4]"),
    "z: no heads": (bad(z=torch.ones(3, 0, 4)), ValueError, "z", "H, C >= 1", "[3, 0, 4]"),
    "z: no channels": (bad(z=torch.ones(3, 2, 0)), ValueError, "z", "H, C >= 1", "[3, 2, 0]"),
    "z: device": (bad(z=torch.ones(3, 2, 4, device="meta")), ValueError, "z", "device cpu", "meta"),
    "a_src: none": (bad(a_src=None), TypeError, "a_src", "torch.Tensor", "NoneType"),
    "a_src: integer": (bad(a_src=torch.ones(3, 2).long()), TypeError, "a_src", "floating point", "int64"),
    "a_src: heads": (bad(a_src=torch.ones(3, 3)), ValueError, "a_src", "[3, 2]", "[3, 3]"),
    "a_src: 1-D": (bad(a_src=torch.ones(3)), ValueError, "a_src", "[num_src, H]", "[3]"),
    "a_src: device": (bad(a_src=torch.ones(3, 2, device="meta")), ValueError, "a_src", "device cpu", "meta"),
    "a_dst: rows": (bad(a_dst=torch.ones(3, 2)), ValueError, "a_dst", "[num_dst, H] = [2, 2]", "[3, 2]"),
    "a_dst: number": (bad(a_dst=1.0), TypeError, "a_dst", "torch.Tensor", "float"),
    "a_dst: device": (bad(a_dst=torch.ones(2, 2, device="meta")), ValueError, "a_dst", "device cpu", "meta"),
    "edge_score: short": (bad(edge_score=torch.ones(2, 2)), ValueError, "edge_score", "[num_edges, H]", "[2, 2]"),
    "edge_score: 1-D": (bad(edge_score=torch.ones(3)), ValueError, "edge_score", "= [3, 2]", "[3]"),
    "edge_score: bool": (bad(edge_score=torch.ones(3, 2).bool()), TypeError, "edge_score", "floating", "bool"),
    "edge_score: device": (bad(edge_score=torch.ones(3, 2, device="meta")), ValueError, "edge_score", "cpu", "meta"),
    "dropout: negative": (bad(dropout=-0.1), ValueError, "dropout", "[0, 1]", "-0.1"),
    "dropout: above 1": (bad(dropout=1.5), ValueError, "dropout", "[0, 1]", "1.5"),
    "dropout: nan": (bad(dropout=NAN), ValueError, "dropout", "[0, 1]", "nan"),
    "dropout: text": (bad(dropout="0.5"), TypeError, "dropout", "float", "str"),
    "dropout: bool": (bad(dropout=True), TypeError, "dropout", "float", "bool"),
    "negative_slope: text": (bad(negative_slope="0.2"), TypeError, "negative_slope", "float", "str"),
    "seed: float tensor": (bad(dropout=0.5, seed=torch.ones(1)), TypeError, "seed", "int64", "float32"),
    "seed: two": (bad(dropout=0.5, seed=torch.ones(2).long()), ValueError, "seed", "[1]", "[2]"),
    "seed: device": (bad(seed=torch.ones(1, dtype=torch.long, device="meta")), ValueError, "seed", "cpu", "meta"),
    "seed: float": (bad(seed=1.5), TypeError, "seed", "int", "float"),
    "seed: too large": (bad(seed=2**63), ValueError, "seed", "2**63", "9223372036854775808"),
}


@pytest.mark.parametrize("name", BAD)
def test_message_names_argument_expected_and_got(name: str) -> None:
    do, error, *parts = BAD[name]
    with pytest.raises(error) as caught:
        do()
    for part in ("gat_attention", *parts):
        assert part in str(caught.value), str(caught.value)


def test_ops_survive_operands_that_do_not_fit() -> None:
    """Called below the friendly checks: an exception, not a crash."""
    graph = GRAPHS["power_law"].graph(DEVICE)
    schedule = graph.csr.schedule(32)
    csr = [graph.rowptr, graph.col, schedule.spans, schedule.splits]
    z, score = torch.randn(110, 8, device=DEVICE), torch.randn(110, 2, device=DEVICE)
    seed = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    cases: list[tuple[Any, ...]] = [
        (z.long(), score, score, None, *csr, None, None),
        (z, score[:5], score, None, *csr, None, None),
        (z, score, score[:5], None, *csr, None, None),
        (z, score.double(), score, None, *csr, None, None),
        (z, torch.randn(110, 3, device=DEVICE), None, None, *csr, None, None),
        (z, torch.randn(110, 0, device=DEVICE), None, None, *csr, None, None),
        (z, score, score, score, *csr, None, None),
        (z, score, score, None, csr[0].long(), *csr[1:], None, None),
        (z, score, score, None, *csr, csr[0], None),
        (z, score, score, None, *csr, None, seed.float()),
        (z, score, score, None, *csr, None, None),  # dropout without a seed
        (z[:, 0], score, score, None, *csr, None, None),
    ]
    for place, arguments in enumerate(cases):
        with pytest.raises((RuntimeError, ValueError, TypeError, IndexError)):
            torch.ops.gnnagg.gat_attention(*arguments, 0.2, 0.5, False)
            pytest.fail(f"case {place} was accepted")
