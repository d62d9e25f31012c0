"""dot_attention against the reference in float64, PyG, and its own promises: memory, order, threads, compilation."""

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
from zoo import DTYPES, STORE_EPS, assert_same_bits, features, seeded

from gnnagg import Graph, dot_attention, reference

INF, NAN = float("inf"), float("nan")
NAMES = ["q", "k", "v", "edge_attr", "edge_weight_matrix"]
on_cpu = pytest.mark.skipif(DEVICE != "cpu", reason="about the CPU kernels")


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch._dynamo.reset()


@pytest.fixture
def any_level() -> Iterator[None]:
    yield
    set_level(-1)


def dot(graph: Graph, *shape_and_dtype: Any, **options: Any) -> Case:
    return case(dot_attention, graph, *shape_and_dtype, **options)


# --- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("edge_dim", [None, 5])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", GRAPHS)
def test_matches_reference(name: str, shape: tuple[int, int], edge_dim: int | None) -> None:
    check(dot_attention, dot(GRAPHS[name].graph(DEVICE), shape, edge_dim=edge_dim))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["power_law", "big_hub", "bipartite"])
def test_matches_reference_in_every_dtype(name: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    graph = GRAPHS[name].graph(DEVICE)
    check(dot_attention, dot(graph, shape, dtype))
    check(dot_attention, dot(graph, shape, dtype, edge_dim=3, dropout=0.4, seed=7))


@pytest.mark.parametrize("edge_dim", EDGE_DIMS)
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("name", ["power_law", "gaps", "duplicates", "big_hub", "bipartite", "no_edges", "no_rows"])
def test_every_combination_of_arguments(name: str, dropout: float, edge_dim: int | None) -> None:
    graph = GRAPHS[name].graph(DEVICE)
    check(dot_attention, dot(graph, (3, 5), torch.float64, edge_dim=edge_dim, dropout=dropout, seed=3))


@pytest.mark.parametrize("loops", ["add", "remove_add", "remove"])
def test_self_loops(loops: Any) -> None:
    """Removed edges are never read: their features may hold anything, and their gradient is 0."""
    graph = GRAPHS["loops"].graph(DEVICE, self_loops=loops)
    arguments = dot(graph, (3, 5), edge_dim=2, dropout=0.3, seed=1)
    live = torch.zeros(graph.num_edges, dtype=torch.bool, device=DEVICE).index_fill(0, reference.edges(graph)[2], True)
    assert live.all() == (loops == "add")
    clean = check(dot_attention, arguments)
    arguments["edge_attr"] = torch.where(live.unsqueeze(1), arguments["edge_attr"], NAN)
    again = gradients(dot_attention, arguments, incoming(arguments))
    for name in clean:
        assert_same_bits(again[name], clean[name])
    assert not again["edge_attr"][~live].any()


@pytest.mark.parametrize("scale", [0.0, -0.5, 2])
def test_any_scale(scale: float) -> None:
    check(dot_attention, dot(GRAPHS["power_law"].graph(DEVICE), (5, 3), scale=scale, edge_dim=2))


def test_large_scores_do_not_overflow() -> None:
    arguments = dot(GRAPHS["big_hub"].graph(DEVICE), (3, 5), torch.float64, edge_dim=2)
    arguments["q"] = arguments["q"] * 1e5
    check(dot_attention, arguments)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_strides_and_narrow_parameters(dtype: torch.dtype) -> None:
    """Any strides; a matrix of any floating dtype, whose gradient comes back in its; one feature without a row."""
    arguments = dot(GRAPHS["bipartite"].graph(DEVICE), (3, 5), dtype, edge_dim=1)
    grad = incoming(arguments)
    arguments["edge_weight_matrix"] = arguments["edge_weight_matrix"].to(torch.bfloat16)
    want = expect(dot_attention, arguments, grad)
    for name in ("q", "k", "v"):
        arguments[name] = arguments[name].transpose(1, 2).contiguous().transpose(1, 2)
    arguments["edge_attr"] = arguments["edge_attr"][:, 0]
    got = gradients(dot_attention, arguments, grad)
    assert got["edge_attr"].shape == (400,)
    got["edge_attr"] = got["edge_attr"].unsqueeze(1)
    for name, (value, bound) in want.items():
        assert got[name].dtype == (torch.bfloat16 if name == "edge_weight_matrix" else dtype)
        # The matrix has two gradients, of keys and of values, each rounded to its dtype.
        assert_within(name, got[name], value, bound + 4 * STORE_EPS[torch.bfloat16] * value.abs().max())


def test_dtypes_are_promoted() -> None:
    arguments = dot(GRAPHS["bipartite"].graph(DEVICE), (3, 5))
    half = {**arguments, "v": arguments["v"].half().requires_grad_()}
    out = dot_attention(**half)
    assert out.dtype == torch.float32
    assert_same_bits(out, dot_attention(**{**arguments, "v": half["v"].float()}))
    assert torch.autograd.grad(out.sum(), half["v"])[0].dtype == torch.float16


def test_no_edge_features_add_nothing() -> None:
    arguments = dot(GRAPHS["power_law"].graph(DEVICE), (3, 5))
    attr, matrix = torch.zeros(1300, 0, device=DEVICE), torch.zeros(15, 0, device=DEVICE)
    out = dot_attention(**arguments, edge_attr=attr, edge_weight_matrix=matrix)
    assert_same_bits(out, dot_attention(**arguments))


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


@pytest.mark.parametrize("edge_dim", [None, 2])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("name", ["gaps", "bipartite", "duplicates"])
def test_gradcheck_and_gradgradcheck(name: str, dropout: float, edge_dim: int | None) -> None:
    arguments = dot(GRAPHS[name].graph(DEVICE), (2, 3), torch.float64, edge_dim=edge_dim)
    names = [each for each in NAMES if each in arguments]
    leaves = [arguments.pop(each).requires_grad_() for each in names]

    def function(*tensors: Tensor) -> Tensor:
        return dot_attention(**dict(zip(names, tensors, strict=True)), **arguments, dropout=dropout, seed=11)

    assert torch.autograd.gradcheck(function, leaves, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, leaves, **SECOND)


def test_one_tensor_given_three_times() -> None:
    """Its gradient is the sum of the three, the second derivative too."""
    graph = GRAPHS["loops"].graph(DEVICE)
    x = features(20, 2, 3, dtype=torch.float64, device=DEVICE).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: dot_attention(x, x, x, graph), x)
    assert torch.autograd.gradgradcheck(lambda x: dot_attention(x, x, x, graph), x, **SECOND)


@pytest.mark.parametrize("wanted", NAMES)
def test_each_gradient_alone_is_the_same(wanted: str) -> None:
    arguments = dot(GRAPHS["big_hub"].graph(DEVICE), (3, 5), edge_dim=2)
    grad = incoming(arguments)
    everything = gradients(dot_attention, arguments, grad)
    alone = gradients(dot_attention, arguments, grad, [wanted])
    torch.testing.assert_close(alone[wanted], everything[wanted], rtol=1e-5, atol=1e-6)


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


def test_dropout_of_everything() -> None:
    arguments = dot(GRAPHS["big_hub"].graph(DEVICE), (3, 5), edge_dim=2, dropout=1.0)
    results = gradients(dot_attention, arguments, incoming(arguments))
    assert all(not value.any() for value in results.values())


def test_seeds() -> None:
    arguments = dot(GRAPHS["power_law"].graph(DEVICE), (3, 5))

    def run(seed: Any) -> Tensor:
        return dot_attention(**arguments, dropout=0.5, seed=seed)

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
    arguments = dot(graph, shape, torch.float64, edge_dim=edge_dim)
    weight = features(graph.num_edges, shape[0], dtype=torch.float64, seed=4, device=DEVICE)
    names = [each for each in NAMES if each in arguments]

    def both(op: Callable[..., Any]) -> dict[str, Tensor]:
        def scalar(**a: Any) -> Tensor:
            out, alpha = op(**a, return_alpha=True)
            return (alpha * weight).sum() + out.square().sum()

        return gradients(scalar, arguments, torch.ones((), dtype=torch.float64, device=DEVICE), names)

    ours, theirs = both(dot_attention), both(reference.dot_attention)
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-10, atol=1e-10)
    alpha = dot_attention(**arguments, return_alpha=True, dropout=0.5)[1]
    torch.testing.assert_close(alpha, reference.dot_attention(**arguments, return_alpha=True)[1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_alpha_in_every_dtype(dtype: torch.dtype) -> None:
    arguments = dot(GRAPHS["bipartite"].graph(DEVICE), (3, 5), dtype, edge_dim=2)
    alpha = dot_attention(**arguments, return_alpha=True)[1]
    assert alpha.dtype == arguments["edge_weight_matrix"].dtype
    wide = {name: t.double() if isinstance(t, Tensor) else t for name, t in arguments.items()}
    want = reference.dot_attention(**wide, return_alpha=True)[1]
    torch.testing.assert_close(alpha.double(), want, rtol=1e-5, atol=1e-6)  # float32 scores of about 1


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


# --- order, threads, levels ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["power_law", "big_hub", "bipartite"])
def test_order_of_the_edges(name: str) -> None:
    """Shuffled edges change nothing but rounding; a shuffle that leaves every row's order changes no bit."""
    edges = GRAPHS[name]
    edge_index = edges.edge_index.to(DEVICE)
    arguments = dot(edges.graph(DEVICE), (3, 5), edge_dim=2)
    grad = incoming(arguments)
    plain = gradients(dot_attention, arguments, grad)
    shuffle = torch.randperm(edge_index.size(1), generator=seeded(1)).to(DEVICE)
    by_target = edge_index[1].argsort(stable=True)
    for order, same_bits in ((shuffle, False), (by_target, True)):
        moved = {
            **arguments,
            "graph": Graph.from_edge_index(edge_index[:, order].contiguous(), edges.size),
            "edge_attr": arguments["edge_attr"][order],
        }
        for key, value in gradients(dot_attention, moved, grad).items():
            want = plain[key][order] if key == "edge_attr" else plain[key]
            if same_bits:
                assert_same_bits(value, want)
            else:
                torch.testing.assert_close(value, want, rtol=1e-4, atol=2e-4)


def _everything(name: str, shape: tuple[int, int], dtype: torch.dtype) -> list[Tensor]:
    edges = GRAPHS[name]
    graph = Graph.from_edge_index(edges.edge_index.clone().to(DEVICE), edges.size)
    schedule, t_schedule = graph.csr.schedule(64), graph.transpose.schedule(64)
    csr = (graph.rowptr, graph.col, schedule.spans, schedule.splits, graph.perm)
    t = (graph.transpose.rowptr, graph.transpose.col, graph.transpose_slot(), t_schedule.spans, t_schedule.splits)
    results: list[Tensor] = []
    for edge_dim, dropout in ((None, 0.0), (3, 0.4)):
        # The op itself: around it are torch's own products, which depend on the number of threads.
        arguments = dot(graph, shape, dtype, edge_dim=edge_dim)
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
    return graph, dot(graph, (4, 16), edge_dim=8), graph.num_edges * 4 * 16


def test_no_tensor_of_every_edge_and_feature() -> None:
    _, arguments, limit = _memory_case()
    grad = incoming(arguments)
    with TensorRecorder() as recorder:
        gradients(dot_attention, {**arguments, "dropout": 0.3}, grad)
        gradients(lambda **a: dot_attention(**a, return_alpha=True)[0], arguments, grad, NAMES)
    assert 0 < recorder.largest < limit, recorder.name
    with TensorRecorder() as recorder:
        gradients(reference.dot_attention, arguments, grad, NAMES)
    assert recorder.largest >= limit  # it does notice


@on_cpu
def test_no_allocation_of_every_edge_and_feature() -> None:
    """Inside the kernels too: two numbers per edge and head in backward, and the gradient of the edge features."""
    graph, arguments, limit = _memory_case()
    grad = incoming(arguments)
    for each in ({**arguments, "dropout": 0.3}, dot(graph, (4, 16))):
        gradients(dot_attention, each, grad)  # plans and caches
        largest = largest_allocation(lambda: gradients(dot_attention, each, grad))
        assert 0 < largest <= graph.num_edges * 8 * 4
    assert largest_allocation(lambda: gradients(reference.dot_attention, arguments, grad, NAMES)) >= limit * 4


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_saves_nothing_per_edge(dropout: float) -> None:
    graph, arguments, _ = _memory_case()
    leaves = {name: t.requires_grad_() if isinstance(t, Tensor) else t for name, t in arguments.items()}
    inputs = [t for t in leaves.values() if isinstance(t, Tensor)]
    saved = saved_bytes(lambda: dot_attention(**leaves, dropout=dropout), inputs)
    assert 0 < saved <= 16 * graph.num_edges
    assert saved_bytes(lambda: reference.dot_attention(**leaves), inputs) > 16 * graph.num_edges


# --- compiled code ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("edge_dim", [None, 2])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_compiles_with_a_graph(dropout: float, edge_dim: int | None) -> None:
    """As a closure and as an argument, without a graph break, forward and backward."""
    graph = GRAPHS["power_law"].graph(DEVICE)
    arguments = dot(graph, (3, 5), edge_dim=edge_dim)
    names, grad = [each for each in NAMES if each in arguments], incoming(arguments)
    seed = torch.tensor([9], device=DEVICE)

    def layer(**a: Any) -> Tensor:
        return dot_attention(**a, dropout=dropout, seed=seed)

    def closure(**a: Any) -> Tensor:
        return layer(**{**a, "graph": graph})

    expected = gradients(layer, arguments, grad, names)
    for function in (layer, closure):
        got = gradients(torch.compile(function, fullgraph=True, backend="aot_eager"), arguments, grad, names)
        for name in expected:
            torch.testing.assert_close(got[name], expected[name], rtol=1e-5, atol=1e-5)


def test_compiles_with_a_raw_edge_index_and_attention_weights() -> None:
    edges = GRAPHS["power_law"]
    arguments = dot(edges.graph(DEVICE), (3, 5))
    del arguments["graph"]

    def layer(edge_index: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        graph = Graph.from_edge_index(edge_index, (k.size(0), q.size(0)), self_loops="remove_add")
        return dot_attention(q, k, v, graph, return_alpha=True)

    check_compiled_with_a_raw_edge_index(layer, list(arguments.values()), edges.edge_index)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_autocast_runs_in_the_dtype_of_the_features(dtype: torch.dtype) -> None:
    arguments = dot(GRAPHS["power_law"].graph(DEVICE), (3, 5), dtype, edge_dim=2)
    grad = incoming(arguments)

    def inside(**a: Any) -> Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            out, alpha = dot_attention(**a, return_alpha=True)
            assert out.dtype == dtype and alpha.dtype == arguments["edge_weight_matrix"].dtype
        return out + alpha.sum().to(dtype)

    def outside(**a: Any) -> Tensor:
        out, alpha = dot_attention(**a, return_alpha=True)
        return out + alpha.sum().to(dtype)

    expected = gradients(outside, arguments, grad, NAMES)
    for name, got in gradients(inside, arguments, grad, NAMES).items():
        assert_same_bits(got, expected[name])


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
