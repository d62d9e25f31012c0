"""What gatv2_attention and dot_attention promise alike. What is particular to one is in the file of its name."""

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
    check_order_of_edges,
    largest_allocation,
    saved_bytes,
)
from score_zoo import EDGE_DIMS, OPS, Case, case, check, expect, gradients, incoming, set_level
from torch import Tensor
from zoo import DTYPES, STORE_EPS, assert_same_bits, features

from gnnagg import Graph, dot_attention, gatv2_attention, reference

Op = Callable[..., Any]
NAN = float("nan")
FEATURES: dict[Op, list[str]] = {gatv2_attention: ["l", "r"], dot_attention: ["q", "k", "v"]}
on_cpu = pytest.mark.skipif(DEVICE != "cpu", reason="about the CPU kernels")


@pytest.fixture(params=OPS, ids=["gatv2", "dot"])
def op(request: pytest.FixtureRequest) -> Op:
    found: Op = request.param
    return found


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch._dynamo.reset()


@pytest.fixture
def any_level() -> Iterator[None]:
    yield
    set_level(-1)


# --- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("edge_dim", [None, 5])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", GRAPHS)
def test_matches_reference(op: Op, name: str, shape: tuple[int, int], edge_dim: int | None) -> None:
    check(op, case(op, GRAPHS[name].graph(DEVICE), shape, edge_dim=edge_dim))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["power_law", "big_hub", "bipartite"])
def test_matches_reference_in_every_dtype(op: Op, name: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    graph = GRAPHS[name].graph(DEVICE)
    check(op, case(op, graph, shape, dtype))
    check(op, case(op, graph, shape, dtype, edge_dim=3, dropout=0.4, seed=7))


@pytest.mark.parametrize("edge_dim", EDGE_DIMS)
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("name", ["power_law", "gaps", "duplicates", "big_hub", "bipartite", "no_edges", "no_rows"])
def test_every_combination_of_arguments(op: Op, name: str, dropout: float, edge_dim: int | None) -> None:
    options = {"negative_slope": 0.1} if op is gatv2_attention else {}
    graph = GRAPHS[name].graph(DEVICE)
    check(op, case(op, graph, (3, 5), torch.float64, edge_dim=edge_dim, dropout=dropout, seed=3, **options))


@pytest.mark.parametrize("loops", ["add", "remove_add", "remove"])
def test_self_loops(op: Op, loops: Any) -> None:
    """Removed edges are never read: their features may hold anything, and their gradient is 0."""
    graph = GRAPHS["loops"].graph(DEVICE, self_loops=loops)
    arguments = case(op, graph, (3, 5), edge_dim=2, dropout=0.3, seed=1)
    live = torch.zeros(graph.num_edges, dtype=torch.bool, device=DEVICE).index_fill(0, reference.edges(graph)[2], True)
    assert live.all() == (loops == "add")
    clean = check(op, arguments)
    arguments["edge_attr"] = torch.where(live.unsqueeze(1), arguments["edge_attr"], NAN)
    again = gradients(op, arguments, incoming(arguments))
    for name in clean:
        assert_same_bits(again[name], clean[name])
    assert not again["edge_attr"][~live].any()


@pytest.mark.parametrize("edge_dim", [None, 2])
def test_large_scores_do_not_overflow(op: Op, edge_dim: int | None) -> None:
    arguments = case(op, GRAPHS["big_hub"].graph(DEVICE), (3, 5), torch.float64, edge_dim=edge_dim)
    of_target = "r" if op is gatv2_attention else "q"
    arguments[of_target] = arguments[of_target] * 1e5
    check(op, arguments)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_strides_and_narrow_parameters(op: Op, dtype: torch.dtype) -> None:
    """Any strides; parameters of any floating dtype, whose gradients come back in theirs; one feature without a row."""
    arguments = case(op, GRAPHS["bipartite"].graph(DEVICE), (3, 5), dtype, edge_dim=1)
    grad = incoming(arguments)
    narrow = [name for name in ("att", "edge_weight_matrix") if name in arguments]
    for name in narrow:
        arguments[name] = arguments[name].to(torch.bfloat16)
    want = expect(op, arguments, grad)
    for name in FEATURES[op]:
        arguments[name] = arguments[name].transpose(1, 2).contiguous().transpose(1, 2)
    arguments["edge_attr"] = arguments["edge_attr"][:, 0]
    got = gradients(op, arguments, grad)
    assert got["edge_attr"].shape == (400,)
    got["edge_attr"] = got["edge_attr"].unsqueeze(1)
    for name, (value, bound) in want.items():
        assert got[name].dtype == (torch.bfloat16 if name in narrow else dtype)
        # The matrix of dot_attention has two gradients, of keys and of values, each rounded to its dtype.
        rounded = value.abs() if op is gatv2_attention else 4 * value.abs().max()
        assert_within(name, got[name], value, bound + STORE_EPS[torch.bfloat16] * rounded)


def test_dtypes_are_promoted(op: Op) -> None:
    arguments = case(op, GRAPHS["bipartite"].graph(DEVICE), (3, 5))
    for name in FEATURES[op]:
        half = {**arguments, **{each: arguments[each].requires_grad_() for each in FEATURES[op]}}
        half[name] = arguments[name].detach().half().requires_grad_()
        out = op(**half)
        assert out.dtype == torch.float32
        assert_same_bits(out, op(**{**arguments, name: half[name].float()}))
        assert torch.autograd.grad(out.sum(), half[name])[0].dtype == torch.float16


def test_no_edge_features_add_nothing(op: Op) -> None:
    arguments = case(op, GRAPHS["power_law"].graph(DEVICE), (3, 5))
    attr, matrix = torch.zeros(1300, 0, device=DEVICE), torch.zeros(15, 0, device=DEVICE)
    out = op(**arguments, edge_attr=attr, edge_weight_matrix=matrix)
    assert_same_bits(out, op(**arguments))


# --- gradients -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("edge_dim", [None, 2])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("name", ["gaps", "bipartite", "duplicates"])
def test_gradcheck_and_gradgradcheck(op: Op, name: str, dropout: float, edge_dim: int | None) -> None:
    arguments = case(op, GRAPHS[name].graph(DEVICE), (2, 3), torch.float64, edge_dim=edge_dim)
    names = [each for each in OPS[op][1] if each in arguments]
    leaves = [arguments.pop(each).requires_grad_() for each in names]

    def function(*tensors: Tensor) -> Tensor:
        return op(**dict(zip(names, tensors, strict=True)), **arguments, dropout=dropout, seed=11)

    assert torch.autograd.gradcheck(function, leaves, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, leaves, **SECOND)


@pytest.mark.parametrize("place", range(5))
def test_each_gradient_alone_is_the_same(op: Op, place: int) -> None:
    wanted = OPS[op][1][place]
    arguments = case(op, GRAPHS["big_hub"].graph(DEVICE), (3, 5), edge_dim=2)
    grad = incoming(arguments)
    everything = gradients(op, arguments, grad)
    alone = gradients(op, arguments, grad, [wanted])
    if op is gatv2_attention:
        assert_same_bits(alone[wanted], everything[wanted])
    else:  # torch's own products around the op
        torch.testing.assert_close(alone[wanted], everything[wanted], rtol=1e-5, atol=1e-6)


def test_dropout_of_everything(op: Op) -> None:
    arguments = case(op, GRAPHS["big_hub"].graph(DEVICE), (3, 5), edge_dim=2, dropout=1.0)
    results = gradients(op, arguments, incoming(arguments))
    assert all(not value.any() for value in results.values())


def test_seeds(op: Op) -> None:
    graph = GRAPHS["power_law"].graph(DEVICE)
    arguments = case(op, graph, (3, 5))

    def run(seed: Any) -> Tensor:
        return op(**arguments, dropout=0.5, seed=seed)

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
def test_alpha_is_that_of_the_reference_and_differentiable(
    op: Op, edge_dim: int | None, shape: tuple[int, int]
) -> None:
    graph = GRAPHS["loops"].graph(DEVICE, self_loops="remove_add")
    arguments = case(op, graph, shape, torch.float64, edge_dim=edge_dim)
    weight = features(graph.num_edges, shape[0], dtype=torch.float64, seed=4, device=DEVICE)
    names = [each for each in OPS[op][1] if each in arguments]

    def both(function: Op) -> dict[str, Tensor]:
        def scalar(**a: Any) -> Tensor:
            out, alpha = function(**a, return_alpha=True)
            return (alpha * weight).sum() + out.square().sum()

        return gradients(scalar, arguments, torch.ones((), dtype=torch.float64, device=DEVICE), names)

    ours, theirs = both(op), both(OPS[op][0])
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-10, atol=1e-10)
    alpha = op(**arguments, return_alpha=True, dropout=0.5)[1]
    torch.testing.assert_close(alpha, OPS[op][0](**arguments, return_alpha=True)[1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_alpha_in_every_dtype(op: Op, dtype: torch.dtype) -> None:
    arguments = case(op, GRAPHS["bipartite"].graph(DEVICE), (3, 5), dtype, edge_dim=2)
    alpha = op(**arguments, return_alpha=True)[1]
    assert alpha.dtype == arguments["edge_weight_matrix"].dtype
    wide = {name: t.double() if isinstance(t, Tensor) else t for name, t in arguments.items()}
    want = OPS[op][0](**wide, return_alpha=True)[1]
    torch.testing.assert_close(alpha.double(), want, rtol=1e-5, atol=1e-6)  # float32 scores of about 1


# --- order, threads, levels ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["power_law", "big_hub", "bipartite"])
def test_order_of_the_edges(op: Op, name: str) -> None:
    edges = GRAPHS[name]
    arguments = case(op, edges.graph(DEVICE), (3, 5), edge_dim=2)
    grad = incoming(arguments)
    check_order_of_edges(edges, arguments, "edge_attr", lambda given: gradients(op, given, grad))


def _gatv2_everything(name: str, shape: tuple[int, int], dtype: torch.dtype) -> list[Tensor]:
    edges = GRAPHS[name]
    graph = Graph.from_edge_index(edges.edge_index.clone().to(DEVICE), edges.size)
    results: list[Tensor] = []
    for edge_dim, dropout in ((None, 0.0), (3, 0.4)):
        arguments = case(gatv2_attention, graph, shape, dtype, edge_dim=edge_dim, dropout=dropout, seed=2)
        results += gradients(gatv2_attention, arguments, incoming(arguments)).values()
    return results


def _dot_everything(name: str, shape: tuple[int, int], dtype: torch.dtype) -> list[Tensor]:
    edges = GRAPHS[name]
    graph = Graph.from_edge_index(edges.edge_index.clone().to(DEVICE), edges.size)
    schedule, t_schedule = graph.csr.schedule(64), graph.transpose.schedule(64)
    csr = (graph.rowptr, graph.col, schedule.spans, schedule.splits, graph.perm)
    t = (graph.transpose.rowptr, graph.transpose.col, graph.transpose_slot(), t_schedule.spans, t_schedule.splits)
    results: list[Tensor] = []
    for edge_dim, dropout in ((None, 0.0), (3, 0.4)):
        # The op itself: around it are torch's own products, which depend on the number of threads.
        arguments = case(dot_attention, graph, shape, dtype, edge_dim=edge_dim)
        tensors = [arguments[name].flatten(1) for name in ("q", "k", "v")]
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        size = (graph.num_dst, shape[0], edge_dim or 0)
        query = features(*size, dtype=wide, seed=8, device=DEVICE) if edge_dim else None
        edge = (query, arguments.get("edge_attr"))
        seed = torch.tensor([2], device=DEVICE) if dropout else None
        options = (seed, shape[0], 0.3, dropout)
        found = torch.ops.gnnagg.dot_attention(*tensors, *edge, *csr, *options)
        grads = (incoming(arguments).flatten(1), features(*found[2].shape, dtype=wide, seed=9, device=DEVICE))
        results += found
        results += torch.ops.gnnagg.dot_attention_backward(*grads, *tensors, *edge, *found, *csr, *t, *options)
    return results


EVERYTHING = {gatv2_attention: _gatv2_everything, dot_attention: _dot_everything}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_repeats_bit_for_bit(op: Op, dtype: torch.dtype) -> None:
    first, *others = (EVERYTHING[op]("big_hub", (8, 8), dtype) for _ in range(3))
    for each in others:
        for got, want in zip(each, first, strict=True):
            assert_same_bits(got, want)


@on_cpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_threads_and_levels_change_no_bit(
    op: Op, shape: tuple[int, int], dtype: torch.dtype, threads: None, any_level: None
) -> None:
    for name in ("long_row", "big_hub"):
        assert int(GRAPHS[name].graph().csr.schedule(64).splits[0].sum()) > 0  # a row is cut
        expected: list[Tensor] = []
        for level in range(set_level(-1) + 1):
            set_level(level)
            for count in (1, 2, 3):
                torch.set_num_threads(count)
                results = EVERYTHING[op](name, shape, dtype)
                expected = expected or results
                for got, want in zip(results, expected, strict=True):
                    assert_same_bits(got, want)


# --- memory ----------------------------------------------------------------------------------------------------------


def _memory_case(op: Op) -> tuple[Graph, Case, int]:
    graph = GRAPHS["dense"].graph(DEVICE)  # 250 edges per node
    return graph, case(op, graph, (4, 16), edge_dim=8), graph.num_edges * 4 * 16


def test_no_tensor_of_every_edge_and_feature(op: Op) -> None:
    """In the attention weights' second way either, which holds a quarter of it at a time."""
    _, arguments, limit = _memory_case(op)
    grad = incoming(arguments)
    with TensorRecorder() as recorder:
        gradients(op, {**arguments, "dropout": 0.3}, grad)
    assert 0 < recorder.largest < limit, recorder.name
    with TensorRecorder() as recorder:
        gradients(lambda **a: op(**a, return_alpha=True)[0], arguments, grad, OPS[op][1])
    assert 0 < recorder.largest < limit, recorder.name
    with TensorRecorder() as recorder:
        gradients(OPS[op][0], arguments, grad, OPS[op][1])
    assert recorder.largest >= limit  # it does notice


@on_cpu
def test_no_allocation_of_every_edge_and_feature(op: Op) -> None:
    """Inside the kernels too: two numbers per edge and head in backward, and the gradient of the edge features."""
    graph, arguments, limit = _memory_case(op)
    grad = incoming(arguments)
    for each in ({**arguments, "dropout": 0.3}, case(op, graph, (4, 16))):
        gradients(op, each, grad)  # plans and caches
        largest = largest_allocation(lambda: gradients(op, each, grad))
        assert 0 < largest <= graph.num_edges * 8 * 4
    assert largest_allocation(lambda: gradients(OPS[op][0], arguments, grad, OPS[op][1])) >= limit * 4


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_saves_nothing_per_edge(op: Op, dropout: float) -> None:
    graph, arguments, _ = _memory_case(op)
    leaves = {name: t.requires_grad_() if isinstance(t, Tensor) else t for name, t in arguments.items()}
    inputs = [t for t in leaves.values() if isinstance(t, Tensor)]
    saved = saved_bytes(lambda: op(**leaves, dropout=dropout), inputs)
    assert 0 < saved <= 16 * graph.num_edges
    assert saved_bytes(lambda: OPS[op][0](**leaves), inputs) > 16 * graph.num_edges


# --- compiled code ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("edge_dim", [None, 2])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_compiles_with_a_graph(op: Op, dropout: float, edge_dim: int | None) -> None:
    """As a closure and as an argument, without a graph break, forward and backward."""
    graph = GRAPHS["power_law"].graph(DEVICE)
    arguments = case(op, graph, (3, 5), edge_dim=edge_dim)
    names, grad = [each for each in OPS[op][1] if each in arguments], incoming(arguments)
    seed = torch.tensor([9], device=DEVICE)

    def layer(**a: Any) -> Tensor:
        return op(**a, dropout=dropout, seed=seed)

    def closure(**a: Any) -> Tensor:
        return layer(**{**a, "graph": graph})

    expected = gradients(layer, arguments, grad, names)
    for function in (layer, closure):
        got = gradients(torch.compile(function, fullgraph=True, backend="aot_eager"), arguments, grad, names)
        for name in expected:
            torch.testing.assert_close(got[name], expected[name], rtol=1e-5, atol=1e-5)


def test_compiles_with_a_raw_edge_index_and_attention_weights(op: Op) -> None:
    edges = GRAPHS["power_law"]
    arguments = case(op, edges.graph(DEVICE), (3, 5))
    del arguments["graph"]

    def layer(edge_index: Tensor, first: Tensor, second: Tensor, third: Tensor) -> tuple[Tensor, Tensor]:
        graph = Graph.from_edge_index(edge_index, (second.size(0), first.size(0)), self_loops="remove_add")
        return op(first, second, third, graph, return_alpha=True)

    check_compiled_with_a_raw_edge_index(layer, list(arguments.values()), edges.edge_index)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_autocast_runs_in_the_dtype_of_the_features(op: Op, dtype: torch.dtype) -> None:
    arguments = case(op, GRAPHS["power_law"].graph(DEVICE), (3, 5), dtype, edge_dim=2)
    grad = incoming(arguments)

    def inside(**a: Any) -> Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            out, alpha = op(**a, return_alpha=True)
            assert out.dtype == dtype and alpha.dtype == arguments["edge_weight_matrix"].dtype
        return out + alpha.sum().to(dtype)

    def outside(**a: Any) -> Tensor:
        out, alpha = op(**a, return_alpha=True)
        return out + alpha.sum().to(dtype)

    expected = gradients(outside, arguments, grad, OPS[op][1])
    for name, got in gradients(inside, arguments, grad, OPS[op][1]).items():
        assert_same_bits(got, expected[name])
