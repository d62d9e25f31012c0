"""aggregate on CUDA against gnnagg.reference in float64, and what only a GPU can get wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from zoo import (
    DTYPES,
    REDUCES,
    ZOO,
    assert_matches_reference,
    assert_same_bits,
    features,
    ids,
    make,
    run,
    seeded,
    skewed,
)

import gnnagg
from gnnagg import Graph, aggregate, edge_dot, reference
from gnnagg._csr import Csr

WIDTHS = [1, 3, 16, 32, 33, 47, 64, 100, 128, 257, 512]
# Mean degree below and above 128, where the gradient of max and min takes its other way.
BY_DEGREE = ["hub", "dense"]

# Many spans, hubs among targets and among sources, duplicates.
LARGE = make(skewed(400_000, 9_000, 0), skewed(400_000, 9_000, 1), 9_000)


@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", BY_DEGREE)
def test_widths_and_dtypes(name: str, width: int, dtype: torch.dtype, reduce: str) -> None:
    graph = ZOO[name].graph("cuda")
    x = features(graph.num_src, width, dtype=dtype, device="cuda")
    assert_matches_reference(x, graph, None, reduce)
    if reduce in ("sum", "mean"):
        weight = features(graph.num_edges, dtype=dtype, seed=1, device="cuda")
        assert_matches_reference(x, graph, weight, reduce)


@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("name", ZOO)
def test_every_graph(name: str, reduce: str, poison: Callable[[], None]) -> None:
    for self_loops in (None, "remove_add", "remove"):
        graph = ZOO[name].graph("cuda", self_loops=self_loops)
        for weight in (None, features(graph.num_edges, seed=1, device="cuda")):
            poison()
            assert_matches_reference(features(graph.num_src, 20, device="cuda"), graph, weight, reduce)


@pytest.mark.parametrize("width", [1, 33, 64])
@pytest.mark.parametrize("reduce", REDUCES)
def test_large_graph(reduce: str, width: int) -> None:
    graph = LARGE.graph("cuda")
    for dtype in (torch.float32, torch.bfloat16):
        assert_matches_reference(features(9_000, width, dtype=dtype, device="cuda"), graph, None, reduce)


@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize(
    "shape,heads",
    [((77, 12), 4), ((77, 3, 4), 3), ((2, 77, 12), 2), ((3, 77, 1), None), ((77, 5, 3), None), ((77, 257), 257)],
)
def test_shapes_and_heads(shape: tuple[int, ...], heads: int | None, reduce: str) -> None:
    graph = ZOO["bipartite"].graph("cuda")
    x = features(*shape, device="cuda")
    assert_matches_reference(x, graph, None, reduce)
    weight = features(400, *(() if heads is None else (heads,)), seed=1, device="cuda")
    assert_matches_reference(x, graph, weight, reduce)


def test_features_that_are_not_aligned() -> None:
    """A contiguous view that begins in the middle of a 16-byte load."""
    graph = ZOO["power_law"].graph("cuda")
    for dtype in DTYPES:
        x = features(110 * 64 + 1, dtype=dtype, device="cuda")[1:].view(110, 64)
        assert x.is_contiguous() and x.data_ptr() % 16
        for reduce in REDUCES:
            grad = features(110 * 64 + 1, dtype=dtype, seed=1, device="cuda")[1:].view(110, 64)
            for actual, expected in zip(
                run(x, graph, None, reduce, grad), run(x.clone(), graph, None, reduce, grad.clone()), strict=True
            ):
                torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("x_dtype", DTYPES)
@pytest.mark.parametrize("weight_dtype", DTYPES)
def test_mixed_dtypes(x_dtype: torch.dtype, weight_dtype: torch.dtype) -> None:
    graph = ZOO["power_law"].graph("cuda")
    x, weight = (
        features(110, 8, dtype=x_dtype, device="cuda"),
        features(1300, dtype=weight_dtype, seed=1, device="cuda"),
    )
    for reduce in REDUCES:
        out, *grads = run(x, graph, weight, reduce, features(110, 8, device="cuda"))
        assert out.dtype == torch.promote_types(x_dtype, weight_dtype)
        assert [grad.dtype for grad in grads] == [x_dtype, weight_dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduce", ["max", "min"])
@pytest.mark.parametrize("name", ["power_law", "hub", "big_hub", "dense", "duplicates"])
def test_ties(name: str, reduce: str, dtype: torch.dtype) -> None:
    graph = ZOO[name].graph("cuda")
    x = ids(graph.num_src * 33, 3, 0).view(-1, 33).to("cuda", dtype).relu()
    assert_matches_reference(x, graph, None, reduce)


def gradient_by_edges(x: Tensor, out: Tensor, grad: Tensor, graph: Graph) -> Tensor:
    """The tie rule edge by edge: losers get nothing, whatever the gradient is."""
    source, target, _ = reference.edges(graph)
    wins = x[source] == out[target]
    count = torch.zeros_like(out).index_add(0, target, wins.to(out.dtype))
    share = torch.where(wins, (grad / count)[target], 0.0)
    return torch.zeros_like(x).index_add(0, source, share)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*BY_DEGREE, "big_hub"])
def test_gradients_that_are_not_finite_reach_the_winners_alone(name: str, dtype: torch.dtype, tied: bool) -> None:
    graph = ZOO[name].graph("cuda")
    rows = graph.num_dst
    x = features(graph.num_src, 33, dtype=dtype, device="cuda")
    x = (x * 2).round() if tied else x
    grad = features(rows, 33, dtype=dtype, seed=1, device="cuda")
    grad[0, ::3], grad[3, 1::3], grad[rows - 1, ::5], grad[2, 7] = torch.inf, -torch.inf, torch.nan, torch.nan
    out, actual = run(x, graph, None, "max", grad)
    expected = gradient_by_edges(x.double(), out.double(), grad.double(), graph)
    assert not expected.isfinite().all()
    assert torch.equal(actual.isnan(), expected.isnan())
    assert torch.equal(actual.isposinf(), expected.isposinf()) and torch.equal(actual.isneginf(), expected.isneginf())
    finite = expected.isfinite()
    rtol = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2**-8, torch.bfloat16: 2**-5}[dtype]
    torch.testing.assert_close(actual[finite].double(), expected[finite], rtol=rtol, atol=rtol)


def test_gradients_of_very_different_size() -> None:
    for name in BY_DEGREE:
        graph = ZOO[name].graph("cuda")
        x = features(graph.num_src, 16, device="cuda")
        grad = (
            features(graph.num_dst, 16, seed=1, device="cuda")
            * torch.logspace(0, -6, graph.num_dst, device="cuda")[:, None]
        )
        out, actual = run(x, graph, None, "max", grad)
        expected, size = (
            gradient_by_edges(x.double(), out.double(), g, graph) for g in (grad.double(), grad.double().abs())
        )
        assert ((actual.double() - expected).abs() <= 2**-18 * size).all()  # relative to what went into each sum


@pytest.mark.parametrize("scale", [0.0, 1e-38, 1e-44, 1e35])
def test_gradients_at_the_ends_of_float32(scale: float) -> None:
    for name in BY_DEGREE:
        graph = ZOO[name].graph("cuda")
        x = features(graph.num_src, 16, device="cuda")
        grad = (features(graph.num_dst, 16, seed=1, device="cuda").double() * scale).float()
        out, actual = run(x, graph, None, "max", grad)
        expected, size = (
            gradient_by_edges(x.double(), out.double(), g, graph) for g in (grad.double(), grad.double().abs())
        )
        # 1e-42: each share of a tie is rounded to the spacing of the smallest float32 numbers.
        assert ((actual.double() - expected).abs() <= 2**-18 * size + 1e-42).all()


def test_nan_and_infinite_features() -> None:
    edges = ZOO["big_hub"]
    graph = edges.graph("cuda")
    for reduce in REDUCES:
        x = features(90, 33, device="cuda")
        x[11, 2], x[5, 3] = torch.nan, -torch.inf if reduce == "max" else torch.inf
        out = aggregate(x, graph, reduce=reduce)
        expected = reference.aggregate(x.double(), graph, None, reduce)
        finite = expected.isfinite()
        if reduce not in ("var", "std"):
            assert torch.equal(out.isnan(), expected.isnan()) and torch.equal(out.isinf(), expected.isinf())
        torch.testing.assert_close(out[finite].double(), expected[finite], rtol=1e-3, atol=1e-3)


# --- same bits -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", ["hub", "dense", "LARGE", "no_edges"])
def test_cooperative_staged_auto_and_repeats(
    name: str, dtype: torch.dtype, reduce: str, weighted: bool, poison: Callable[[], None]
) -> None:
    edges = LARGE if name == "LARGE" else ZOO[name]
    graph = edges.graph("cuda")
    for width in (7, 64):
        x = (features(edges.num_src, width, dtype=dtype, device="cuda") * 2).round().relu()
        grad = features(edges.num_dst, width, dtype=dtype, seed=1, device="cuda")
        weight = features(graph.num_edges, seed=2, device="cuda") if weighted else None
        expected: list[Tensor] | None = None
        for mode in ("cooperative", "staged", "auto", "cooperative", "staged"):
            poison()
            with gnnagg.launch_mode(mode):  # type: ignore[arg-type]
                results = run(x, graph, weight, reduce, grad)
            expected = expected or results
            for actual, want in zip(results, expected, strict=True):
                assert_same_bits(actual, want)


def test_a_hundred_repeats() -> None:
    graph = LARGE.graph("cuda")
    x, grad = features(9_000, 32, device="cuda"), features(9_000, 32, seed=1, device="cuda")
    for reduce in REDUCES:
        expected = run(x, graph, None, reduce, grad)
        for _ in range(100):
            for actual, want in zip(run(x, graph, None, reduce, grad), expected, strict=True):
                assert torch.equal(actual, want)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("name", [*BY_DEGREE, "big_hub"])
def test_64_bit_indices(name: str, reduce: str, weighted: bool) -> None:
    edges = ZOO[name]
    source, target = edges.edge_index.cuda().unbind()
    plans = []
    for wide in (False, True):
        arrays = torch.ops.gnnagg.csr_from_coo(target, source, edges.num_dst, edges.num_src, 0, wide)
        plans.append(Graph(Csr(*arrays[:3], edges.num_src)))
        assert plans[-1].transpose.slot.dtype == (torch.int64 if wide else torch.int32)
    for dtype in DTYPES if not weighted else [torch.float32]:
        x = (features(edges.num_src, 33, dtype=dtype, device="cuda") * 2).round()
        weight = features(plans[0].num_edges, seed=2, device="cuda") if weighted else None
        grad = features(edges.num_dst, 33, dtype=dtype, seed=1, device="cuda")
        for actual, want in zip(*(run(x, plan, weight, reduce, grad) for plan in plans), strict=True):
            assert_same_bits(actual, want)


def test_two_streams_at_once() -> None:
    """Cooperative launches of two streams: neither waits for blocks of the other, and nothing is shared."""
    graph = LARGE.graph("cuda")
    inputs = [features(9_000, 64, seed=seed, device="cuda") for seed in range(2)]
    grad = features(9_000, 64, seed=9, device="cuda")
    for mode in ("cooperative", "auto"):
        with gnnagg.launch_mode(mode):  # type: ignore[arg-type]
            expected = [{reduce: run(x, graph, None, reduce, grad) for reduce in REDUCES} for x in inputs]
            torch.cuda.synchronize()
            streams = [torch.cuda.Stream() for _ in inputs]
            results: list[list[tuple[str, list[Tensor]]]] = [[] for _ in inputs]
            for _ in range(5):
                for reduce in REDUCES:
                    for place, stream in enumerate(streams):
                        with torch.cuda.stream(stream):
                            results[place].append((reduce, run(inputs[place], graph, None, reduce, grad)))
            torch.cuda.synchronize()
            for place, found in enumerate(results):
                for reduce, each in found:
                    for actual, want in zip(each, expected[place][reduce], strict=True):
                        assert_same_bits(actual, want)


# --- CUDA graphs, host synchronisation -------------------------------------------------------------------------------


def capture(step: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """Warms up on a side stream, then captures ``step``; plans made by the warm-up are not found by the capture."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    gnnagg.clear_graph_cache()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    return graph, captured


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("name", BY_DEGREE)
def test_capture_and_replay(name: str, reduce: str, weighted: bool) -> None:
    """Forward alone, and with backward; features changed in place between replays."""
    graph = ZOO[name].graph("cuda")
    x = features(graph.num_src, 33, device="cuda").requires_grad_()
    weight = features(graph.num_edges, seed=2, device="cuda").requires_grad_() if weighted else None
    grad = features(graph.num_dst, 33, seed=1, device="cuda")

    def forward() -> Tensor:
        with torch.no_grad():
            return aggregate(x, graph, weight, reduce)

    def both() -> list[Tensor]:
        out = aggregate(x, graph, weight, reduce)
        return [out, *torch.autograd.grad(out, [x] if weight is None else [x, weight], grad)]

    replay_forward, out = capture(forward)
    replay_both, results = capture(both)
    for seed in (5, 6, 7):
        with torch.no_grad():
            x.copy_((features(graph.num_src, 33, seed=seed, device="cuda") * 2).round())
        replay_forward.replay()
        replay_both.replay()
        torch.cuda.synchronize()
        expected = run(x, graph, weight, reduce, grad)
        assert_same_bits(out, expected[0])
        for actual, want in zip(results, expected, strict=True):
            assert_same_bits(actual, want)


def test_capture_of_planning_too(empty_cache: None) -> None:
    """With known sizes the plan is made inside the graph; edges may change between replays."""
    edge_index, x = ZOO["power_law"].edge_index.cuda(), features(110, 8, device="cuda").requires_grad_()

    def step() -> list[Tensor]:
        graph = Graph.from_edge_index(edge_index, 110)
        out = aggregate(x, graph, reduce="max") + aggregate(x, graph, reduce="mean")
        return [out, *torch.autograd.grad(out.sum(), x)]

    replay, results = capture(step)
    for seed in (0, 1):
        edge_index.copy_(ids(2600, 110, seed).view(2, 1300))
        replay.replay()
        torch.cuda.synchronize()
        captured = [each.clone() for each in results]
        for actual, want in zip(captured, step(), strict=True):
            torch.testing.assert_close(actual, want)


def test_plan_made_during_capture_is_not_found_by_eager_code(empty_cache: None) -> None:
    """Its memory belongs to the CUDA graph and holds nothing before the first replay."""
    edge_index, x = ZOO["power_law"].edge_index.cuda(), features(110, 8, device="cuda")
    held = capture(lambda: aggregate(x, Graph.from_edge_index(edge_index, 110)))
    expected = aggregate(features(110, 8), ZOO["power_law"].graph())
    torch.testing.assert_close(aggregate(x, Graph.from_edge_index(edge_index, 110)).cpu(), expected)
    del held


@pytest.mark.parametrize("reduce", [*REDUCES, tuple(REDUCES)], ids=str)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", BY_DEGREE)
def test_no_host_synchronisation(name: str, reduce: Any, weighted: bool, no_sync: Any) -> None:
    edge_index = ZOO[name].edge_index.cuda()
    size = ZOO[name].size
    x = features(size[0], 16, device="cuda").requires_grad_()
    weight = features(edge_index.size(1), seed=1, device="cuda").requires_grad_() if weighted else None
    with no_sync():
        for _ in range(2):
            out = aggregate(x, Graph.from_edge_index(edge_index, size), weight, reduce)
            total = sum(each.sum() for each in out) if isinstance(out, tuple) else out.sum()
            total.backward()


# --- accuracy at size ------------------------------------------------------------------------------------------------


def into_one(count: int, sources: int = 1000) -> Graph:
    """``count`` edges from random nodes into node 0."""
    source = torch.randint(sources, (count,), generator=seeded(0))
    return Graph.from_edge_index(torch.stack([source, torch.zeros_like(source)]).cuda(), (sources, 1))


@pytest.mark.parametrize("width", [1, 3, 64])
def test_hub_of_four_million_edges(width: int) -> None:
    graph = into_one(4_000_000)
    ones = torch.ones(1000, width, device="cuda").requires_grad_()
    out = aggregate(ones, graph)
    assert (out == 4_000_000).all()
    assert torch.equal(torch.autograd.grad(out.sum(), ones)[0], graph.out_degree().float()[:, None].expand(-1, width))
    half = ones.detach().half()
    assert (aggregate(half, graph, reduce="mean") == 1).all()
    results = aggregate(ones, graph, reduce=("sum", "mean", "var", "max", "min"))
    assert [result.unique().tolist() for result in results] == [[4_000_000], [1], [0], [1], [1]]
    total = torch.autograd.grad(results[3].sum(), ones)[0].double().sum()
    assert abs(total.item() - width) < 1e-4 * width  # four million tied winners share one gradient a feature


def test_transposed_hub() -> None:
    """One source feeds four million targets: the gradient meets the hub."""
    target = torch.arange(4_000_000, device="cuda")
    graph = Graph.from_edge_index(torch.stack([torch.zeros_like(target), target]), (1, 4_000_000))
    for reduce in ("sum", "mean", "max"):
        x = torch.ones(1, 4, device="cuda", requires_grad=True)
        assert (torch.autograd.grad(aggregate(x, graph, reduce=reduce).sum(), x)[0] == 4_000_000).all()


def test_mean_and_sum_of_half_ones() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        ones = torch.ones(1000, 33, dtype=dtype, device="cuda")
        assert (aggregate(ones, into_one(70_000), reduce="mean") == 1).all()
        assert (aggregate(ones, into_one(1000)) == 1000).all()


def test_sum_just_below_2_to_24_is_exact() -> None:
    """14,453,120 ones into one node; a float32 that is added to one by one would be too, and stops at 2**24."""
    graph = into_one(14_453_120)
    weight = torch.ones(14_453_120, device="cuda")
    for _ in range(3):
        assert (aggregate(torch.ones(1000, 2, device="cuda"), graph) == 14_453_120).all()
        assert (aggregate(torch.ones(1000, 2, dtype=torch.float16, device="cuda"), graph, weight) == 14_453_120).all()


def test_relative_error_of_a_hub() -> None:
    graph = into_one(1_000_000, sources=100_000)
    x = torch.rand(100_000, 16, generator=seeded(1)).cuda()
    exact = reference.aggregate(x.double(), graph)
    assert ((aggregate(x, graph).double() - exact) / exact).abs().max() < 2e-6
    assert ((aggregate(x.bfloat16(), graph, reduce="mean").double() * 1e6 - exact) / exact).abs().max() < 2**-7


@pytest.mark.parametrize("copies", [1, 100])
def test_offsets_beyond_32_bits(copies: int) -> None:
    """Rows of x with more than 2^31 elements between them; the rest of its 4.6 GB is never read. Both ways of max."""
    nodes, width = 9_000_000, 256
    x = torch.empty(nodes, width, dtype=torch.float16, device="cuda")
    x[0], x[nodes // 2], x[-1] = 1, 2, 4
    source = torch.tensor([0, nodes // 2, nodes - 1]).repeat(copies)
    graph = Graph.from_edge_index(torch.stack([source, source * 0]).cuda(), (nodes, 1))
    x.requires_grad_()
    for reduce, result, last, winners in (("sum", 7 * copies, copies, 3), ("max", 4, 1, 1)):
        out = aggregate(x, graph, reduce=reduce)
        assert (out == result).all()
        grad = torch.autograd.grad(out.sum(), x)[0]
        assert ((grad[-1] - last).abs() < 0.01).all() and int(grad.count_nonzero()) == width * winners
        del grad


def test_maximum_of_more_than_2_to_31_elements() -> None:
    """12,143,200 nodes of 192 features into 73,728 targets: 2.3e9 elements."""
    nodes, rows, width = 12_143_200, 73_728, 192
    x = torch.randn(nodes, width, device="cuda").requires_grad_()
    target = torch.randint(rows, (nodes,), device="cuda")
    graph = Graph.from_edge_index(torch.stack([torch.arange(nodes, device="cuda"), target]), (nodes, rows))
    out = aggregate(x, graph, reduce="max")
    grad = torch.autograd.grad(out.sum(), x)[0]
    assert abs(grad.sum(dtype=torch.float64).item() - rows * width) < 1
    with torch.no_grad():
        for columns in torch.arange(width).split(32):
            some = slice(int(columns[0]), int(columns[-1]) + 1)
            part = x[:, some]
            expected = out.new_zeros(rows, len(columns)).index_reduce_(0, target, part, "amax", include_self=False)
            assert torch.equal(out[:, some], expected)
            assert torch.equal(grad[:, some] > 0, part == expected[target])


# --- derivatives, edge_dot -------------------------------------------------------------------------------------------

SMALL = make(ids(40, 9, 0), ids(40, 7, 1), 9, 8)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduce", REDUCES)
def test_gradcheck(reduce: str, weighted: bool) -> None:
    graph = SMALL.graph("cuda")
    x = features(9, 2, dtype=torch.float64, device="cuda").requires_grad_()
    weight = features(40, dtype=torch.float64, seed=1, device="cuda").requires_grad_()
    inputs = (x, weight) if weighted else (x,)
    assert gradcheck(lambda x, w=None: aggregate(x, graph, w, reduce), inputs)
    assert gradgradcheck(lambda x, w=None: aggregate(x, graph, w, reduce), inputs, fast_mode=True)


@pytest.mark.parametrize("name", ["bipartite", "hub", "big_hub", "no_edges", "loops"])
def test_edge_dot(name: str, poison: Callable[[], None]) -> None:
    graph = ZOO[name].graph("cuda", self_loops="remove_add")
    for dtype in DTYPES:
        for width, heads in ((1, 1), (6, 2), (33, 1), (64, 8), (257, 1)):
            a = features(graph.num_dst, width, dtype=dtype, device="cuda")
            b = features(graph.num_src, width, dtype=dtype, seed=1, device="cuda")
            poison()
            actual = edge_dot(a, b, graph, heads)
            expected = reference.edge_dot(a.double(), b.double(), graph, heads)
            torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-4)  # up to 257 float32 products
            with gnnagg.launch_mode("staged"):
                assert_same_bits(edge_dot(a, b, graph, heads), actual)


def test_launch_plan_is_co_resident_and_names_its_mode() -> None:
    graph = ZOO["big_hub"].graph("cuda")
    x = features(graph.num_src, 64, device="cuda")
    for mode in ("cooperative", "staged"):
        with gnnagg.launch_mode(mode):
            aggregate(x, graph)
        plan = gnnagg.last_launch_plan()
        assert plan is not None and plan.cooperative == (mode == "cooperative")
        assert 1 <= plan.grid <= plan.blocks_per_sm * plan.sms and "grid=" in repr(plan)
