"""aggregate against gnnagg.reference in float64: shapes, dtypes, gradients, ties, special values, accuracy."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from zoo import DTYPES, REDUCES, ZOO, assert_matches_reference, assert_same_bits, bits, features, ids, make, run

import gnnagg
from gnnagg import aggregate, edge_dot, reference

HALF = [torch.float16, torch.bfloat16]


@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("name", ZOO)
def test_every_graph(name: str, reduce: str) -> None:
    graph = ZOO[name].graph()
    for weight in (None, features(graph.num_edges, seed=1)):
        assert_matches_reference(features(graph.num_src, 5), graph, weight, reduce)


@pytest.mark.parametrize("self_loops", ["add", "remove_add", "remove"])
@pytest.mark.parametrize("reduce", REDUCES)
def test_self_loops(self_loops: str, reduce: str) -> None:
    graph = ZOO["loops"].graph(self_loops=self_loops)
    for weight in (None, features(graph.num_edges, seed=1)):
        assert_matches_reference(features(graph.num_src, 5), graph, weight, reduce)


@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["hub", "big_hub", "bipartite"])
def test_every_dtype(name: str, dtype: torch.dtype, reduce: str) -> None:
    graph = ZOO[name].graph()
    x = features(graph.num_src, 33, dtype=dtype)
    assert_matches_reference(x, graph, None, reduce)
    if reduce in ("sum", "mean"):
        assert_matches_reference(x, graph, features(graph.num_edges, dtype=dtype, seed=1), reduce)


@pytest.mark.parametrize("reduce", REDUCES)
def test_no_features(reduce: str) -> None:
    graph = ZOO["bipartite"].graph()
    x = torch.zeros(77, 0, requires_grad=True)
    out = aggregate(x, graph, reduce=reduce)
    assert out.shape == (30, 0) and torch.autograd.grad(out.sum(), x)[0].shape == (77, 0)


SHAPES = {
    "[N, F]": ((77, 12), [(), (3,), (12,), (1,)]),
    "[N, H, C]": ((77, 3, 4), [(), (3,), (1,)]),
    "[B, N, F]": ((2, 77, 12), [(), (4,)]),
    "[N]": ((77, 1), [()]),
}


@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(shape: str, reduce: str) -> None:
    graph = ZOO["bipartite"].graph()
    size, heads = SHAPES[shape]
    x = features(*size)
    assert_matches_reference(x, graph, None, reduce)
    for extra in heads:
        assert_matches_reference(x, graph, features(graph.num_edges, *extra, seed=1), reduce)


@pytest.mark.parametrize("reduce", REDUCES)
def test_any_strides(reduce: str) -> None:
    graph = ZOO["bipartite"].graph()
    plain, weight = features(77, 6), features(400, 2, seed=1)
    expected = run(plain, graph, weight, reduce, features(30, 6))
    columns, every_other = plain.t().contiguous().t(), torch.stack([plain, plain], 1).flatten(0, 1)[::2]
    for x in (columns, every_other, torch.cat([plain, plain], 1)[:, :6]):
        assert not x.is_contiguous()
        x = x.detach().requires_grad_()
        w = weight.t().contiguous().t().requires_grad_()
        out = aggregate(x, graph, w, reduce)
        grads = torch.autograd.grad(out, [x, w], features(6, 30).t() * 0 + features(30, 6))
        for actual, want in zip((out, *grads), expected, strict=True):
            assert_same_bits(actual, want)
    assert torch.equal(aggregate(plain[:1].expand(77, 6), graph, reduce="max")[0], plain[0])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "names", [("sum", "mean"), ("max",), ("mean", "max", "min", "std"), ("var", "sum", "var"), tuple(REDUCES)]
)
def test_several_reductions_at_once(names: tuple[str, ...], weighted: bool) -> None:
    graph = ZOO["power_law"].graph()
    x = features(110, 7, dtype=torch.float64).requires_grad_()
    weight = features(1300, dtype=torch.float64, seed=1).requires_grad_() if weighted else None
    inputs = [x] if weight is None else [x, weight]
    results = aggregate(x, graph, weight, reduce=names)
    expected = reference.aggregate(x, graph, weight, names)
    assert isinstance(results, tuple) and len(results) == len(names)
    grads = [features(*out.shape, dtype=torch.float64, seed=place) for place, out in enumerate(results)]
    for actual, want in zip(
        (*results, *torch.autograd.grad(results, inputs, grads)),
        (*expected, *torch.autograd.grad(expected, inputs, grads)),
        strict=True,
    ):
        torch.testing.assert_close(actual, want, rtol=1e-9, atol=1e-9)  # float64; var subtracts the mean


def test_gradient_of_one_of_several_results() -> None:
    graph = ZOO["power_law"].graph()
    x = features(110, 4, dtype=torch.float64).requires_grad_()
    for place, name in enumerate(REDUCES):
        some = aggregate(x, graph, reduce=tuple(REDUCES))[place]
        alone = reference.aggregate(x, graph, None, name)
        torch.testing.assert_close(*(torch.autograd.grad(out.square().sum(), x)[0] for out in (some, alone)))


@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("x_dtype", DTYPES)
@pytest.mark.parametrize("weight_dtype", DTYPES)
def test_mixed_dtypes_promote_like_torch(x_dtype: torch.dtype, weight_dtype: torch.dtype, reduce: str) -> None:
    graph = ZOO["power_law"].graph()
    x = features(110, 4, dtype=x_dtype).requires_grad_()
    weight = features(1300, dtype=weight_dtype, seed=1).requires_grad_()
    out = aggregate(x, graph, weight, reduce)
    assert out.dtype == (x * weight[:1]).dtype
    grads = torch.autograd.grad(out.float().sum(), [x, weight])
    assert [grad.dtype for grad in grads] == [x_dtype, weight_dtype]
    if x_dtype != weight_dtype and reduce in ("sum", "mean"):
        narrow = torch.float64 not in (x_dtype, weight_dtype)
        assert_matches_reference(x.detach(), graph, weight.detach(), reduce, backward=narrow)


def test_half_features_with_float_weights_are_not_rounded_on_the_way() -> None:
    """A mean of many half values with float32 weights comes out in float32, not in float32 of a half."""
    graph = make(torch.arange(999), torch.zeros(999, dtype=torch.long), 999, 1).graph()
    out = aggregate(torch.ones(999, 1, dtype=torch.float16), graph, torch.full((999,), 1 / 3), "sum")
    assert out.dtype == torch.float32 and abs(out.item() - 333) < 1e-3


def test_only_what_needs_a_gradient_gets_one() -> None:
    graph = ZOO["power_law"].graph()
    x, weight = features(110, 4), features(1300, seed=1)
    assert not aggregate(x, graph, weight).requires_grad
    x_only, weight_only = x.clone().requires_grad_(), weight.clone().requires_grad_()
    for reduce in REDUCES:
        both = run(x, graph, weight, reduce, features(110, 4, seed=2))[1:]
        one = torch.autograd.grad(aggregate(x_only, graph, weight, reduce), x_only, features(110, 4, seed=2))[0]
        other = torch.autograd.grad(aggregate(x, graph, weight_only, reduce), weight_only, features(110, 4, seed=2))[0]
        assert_same_bits(one, both[0])
        assert_same_bits(other, both[1])
    with torch.no_grad():
        assert not aggregate(x_only, graph, reduce=("max", "var"))[0].requires_grad


# --- ties, special values, empty rows --------------------------------------------------------------------------------


def extremum(values: list[float], edges: list[tuple[int, int]], reduce: str = "max", num_dst: int = 1) -> list[Tensor]:
    """Result and gradient (of ones) for one feature per node."""
    x = torch.tensor(values).unsqueeze(1).requires_grad_()
    source, target = torch.tensor(edges).reshape(-1, 2).t()
    out = aggregate(x, make(source, target, len(values), num_dst).graph(), reduce=reduce)
    return [out.detach()[:, 0], torch.autograd.grad(out.sum(), x)[0][:, 0]]


@pytest.mark.parametrize("reduce", ["max", "min"])
def test_tied_neighbours_share_the_gradient(reduce: str) -> None:
    out, grad = extremum([1.0, 1.0, 1.0], [(0, 0), (1, 0), (2, 0)], reduce)
    assert out.tolist() == [1] and torch.allclose(grad, torch.full((3,), 1 / 3))


def test_duplicate_edges_count_as_ties() -> None:
    out, grad = extremum([2.0, 2.0, 1.0], [(0, 0), (0, 0), (0, 0), (1, 0), (2, 0)])
    assert out.tolist() == [2] and grad.tolist() == [0.75, 0.25, 0]


def test_zero_maxima_after_relu_and_signed_zeros_tie() -> None:
    out, grad = extremum([0.0, -0.0, 0.0, -1.0], [(0, 0), (1, 0), (2, 0), (3, 0)])
    assert out.tolist() == [0] and torch.allclose(grad, torch.tensor([1 / 3, 1 / 3, 1 / 3, 0]))


@pytest.mark.parametrize("name", ["hub", "big_hub", "dense", "duplicates"])
@pytest.mark.parametrize("reduce", ["max", "min"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_ties_in_large_rows(name: str, reduce: str, dtype: torch.dtype) -> None:
    """Few distinct values, with half of them at zero: nearly every row has ties, over several spans."""
    graph = ZOO[name].graph()
    x = ids(graph.num_src * 9, 3, 0).view(-1, 9).to(dtype).relu()
    assert_matches_reference(x, graph, None, reduce)


def test_all_negative_and_lowest_values() -> None:
    lowest = torch.finfo(torch.float32).min
    assert extremum([-5.0, -7.0, lowest], [(0, 0), (1, 0), (2, 1)], num_dst=3)[0].tolist() == [-5, lowest, 0]
    out, grad = extremum([-torch.inf, -torch.inf, 3.0], [(0, 0), (1, 0), (2, 1)], num_dst=2)
    assert out.tolist() == [-torch.inf, 3] and grad.tolist() == [0.5, 0.5, 1]
    assert extremum([torch.inf, 3.0], [(0, 0), (1, 0)], "min")[0].tolist() == [3]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduce", REDUCES)
def test_nan_reaches_the_targets_of_its_node_alone(reduce: str, dtype: torch.dtype) -> None:
    edges = ZOO["big_hub"]
    graph = edges.graph()
    clean = features(90, 5, dtype=dtype)
    x = clean.clone()
    x[11, 2] = torch.nan
    out, expected = aggregate(x, graph, reduce=reduce), aggregate(clean, graph, reduce=reduce)
    reached = torch.zeros_like(out, dtype=torch.bool)
    reached[edges.edge_index[1][edges.edge_index[0] == 11], 2] = True
    assert reached.any() and not reached.all()
    assert torch.equal(out.isnan(), reached) and torch.equal(bits(out[~reached]), bits(expected[~reached]))


@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("weighted", [False, True])
def test_empty_rows_give_zero_and_no_gradient(reduce: str, weighted: bool) -> None:
    """Rows 5, 40, 41 and 99 have edges; the rest get 0 whatever the features and gradients are."""
    graph = ZOO["gaps"].graph()
    empty = graph.in_degree() == 0
    x = (features(100, 3) - 50).requires_grad_()
    weight = features(60, seed=1) if weighted else None
    out = aggregate(x, graph, weight, reduce)
    assert (out[empty] == 0).all() and out[~empty].isfinite().all()
    grad = torch.zeros(100, 3)
    grad[empty] = torch.inf
    assert torch.autograd.grad(out, x, grad)[0].isfinite().all()


@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_sources_without_edges_get_zero_gradient_whatever_they_hold(value: float, reduce: str) -> None:
    graph = make(torch.tensor([0, 1]), torch.tensor([0, 0]), 3, 1).graph()
    x = torch.tensor([[1.0], [2.0], [value]], requires_grad=True)
    grad = torch.autograd.grad(aggregate(x, graph, reduce=reduce).sum(), x)[0]
    assert grad[2].item() == 0


# --- accuracy --------------------------------------------------------------------------------------------------------


def into_one(count: int) -> gnnagg.Graph:
    """``count`` edges from node 0 into node 0: a hub whatever the machine."""
    return make(torch.zeros(count, dtype=torch.long), torch.zeros(count, dtype=torch.long), 1).graph()


@pytest.mark.parametrize("dtype", HALF)
def test_sums_of_half_values_are_kept_in_float32(dtype: torch.dtype) -> None:
    """A half accumulator sticks at 2048 (256 in bfloat16), and a half count overflows at 65504."""
    ones = torch.ones(1, 3, dtype=dtype)
    assert (aggregate(ones, into_one(70_000), reduce="mean") == 1).all()
    assert (aggregate(ones, into_one(1000), reduce="sum") == 1000).all()
    assert (aggregate(ones, into_one(70_000), torch.ones(70_000), "sum") == 70_000).all()
    assert (aggregate(ones, into_one(70_000), reduce=("sum", "mean", "var"))[1] == 1).all()
    x = ones.clone().requires_grad_()
    assert (torch.autograd.grad(aggregate(x, into_one(70_000), reduce="mean").sum(), x)[0] == 1).all()


def test_relative_error_of_a_hub_in_float16() -> None:
    """A node with 13,000 in-edges from U(0, 1)."""
    x = torch.rand(13_000, 2, generator=torch.Generator().manual_seed(0)).half()
    graph = make(torch.arange(13_000), torch.zeros(13_000, dtype=torch.long), 13_000, 1).graph()
    out, expected = aggregate(x, graph), x.double().sum(0, keepdim=True)
    assert ((out.double() - expected).abs() / expected).max() < 1e-3


def test_variance_far_from_zero() -> None:
    x = (features(110, 3, dtype=torch.float64) + 1000).float()
    actual, expected = (op(x.to(d), ZOO["power_law"].graph(), None, "var") for op, d in
                        ((aggregate, torch.float32), (reference.aggregate, torch.float64)))  # fmt: skip
    # x itself is rounded to 2**-14; what E[x^2] - E[x]^2 would lose is 1000^2 * 2**-24 = 0.06.
    torch.testing.assert_close(actual.double(), expected, rtol=1e-3, atol=1e-4)


# --- derivatives -----------------------------------------------------------------------------------------------------

SMALL = make(ids(40, 9, 0), ids(40, 7, 1), 9, 8)


@pytest.mark.parametrize("heads", [None, 0, 2])
@pytest.mark.parametrize("reduce", REDUCES)
def test_gradcheck(reduce: str, heads: int | None) -> None:
    """No weight, [E] and [E, 2]."""
    graph = SMALL.graph()
    x = features(9, 4, dtype=torch.float64).requires_grad_()
    if heads is None:
        assert gradcheck(lambda x: aggregate(x, graph, None, reduce), x)
        return
    weight = features(40, *((heads,) if heads else ()), dtype=torch.float64, seed=1).requires_grad_()
    assert gradcheck(lambda x, w: aggregate(x, graph, w, reduce), (x, weight))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduce", REDUCES)
def test_second_derivatives(reduce: str, weighted: bool) -> None:
    graph = SMALL.graph()
    x = features(9, 2, dtype=torch.float64).requires_grad_()
    weight = features(40, dtype=torch.float64, seed=1).requires_grad_()
    inputs = (x, weight) if weighted else (x,)
    assert gradgradcheck(lambda x, w=None: aggregate(x, graph, w, reduce), inputs)


def test_second_derivative_of_a_tied_maximum_and_of_a_batch() -> None:
    graph = SMALL.graph()
    x = ids(36, 2, 2).view(2, 9, 2).double().requires_grad_()
    grad = features(2, 8, 2, dtype=torch.float64).requires_grad_()
    # The second derivative for the incoming gradient alone: at a tie there is none for x.
    assert gradcheck(lambda g: torch.autograd.grad(aggregate(x, graph, reduce="max"), x, g, create_graph=True)[0], grad)


@pytest.mark.parametrize("self_loops", [None, "remove_add"])
def test_edge_dot(self_loops: str | None) -> None:
    graph = ZOO["bipartite"].graph(self_loops=self_loops)
    for dtype in DTYPES:
        a, b = features(30, 6, dtype=dtype), features(77, 6, dtype=dtype, seed=1)
        for heads in (1, 2, 6):
            expected = reference.edge_dot(a.double(), b.double(), graph, heads)
            actual = edge_dot(a, b, graph, heads)
            assert actual.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
            torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-5)  # six float32 products
    small = SMALL.graph(self_loops=self_loops)
    inputs = [features(n, 4, dtype=torch.float64, seed=n).requires_grad_() for n in (8, 9)]
    assert gradcheck(lambda a, b: edge_dot(a, b, small, 2), inputs)
    assert gradgradcheck(lambda a, b: edge_dot(a, b, small, 2), inputs)


def test_edge_dot_takes_an_expanded_gradient() -> None:
    """As of ``.sum()``, whose gradient has stride 0."""
    graph = SMALL.graph()
    a, b = features(8, 4).requires_grad_(), features(9, 4).requires_grad_()
    actual = torch.autograd.grad(edge_dot(a, b, graph).sum(), [a, b])
    expected = torch.autograd.grad(reference.edge_dot(a, b, graph).sum(), [a, b])
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("reduce", REDUCES)
def test_aggregate_takes_an_expanded_gradient(reduce: str) -> None:
    graph = SMALL.graph()
    x, weight = features(9, 4).requires_grad_(), features(40, seed=1).requires_grad_()
    actual = torch.autograd.grad(aggregate(x, graph, weight, reduce).sum(), [x, weight])
    expected = torch.autograd.grad(reference.aggregate(x, graph, weight, reduce).sum(), [x, weight])
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
