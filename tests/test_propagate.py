"""propagate against gnnagg.reference in float64: hops, teleport, weights, gradients, parity with PyG, threads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from zoo import DTYPES, STORE_EPS, SUM_EPS, ZOO, accumulate, assert_same_bits, features, ids, make, seeded

from gnnagg import Graph, aggregate, propagate, reference

SQUARE = [name for name, edges in ZOO.items() if edges.num_src == edges.num_dst]
HALF = [torch.float16, torch.bfloat16]


def weights(graph: Graph, dtype: torch.dtype = torch.float64) -> Tensor:
    """Of absolute row sums about 1, so that the hops neither grow nor vanish."""
    degree = graph.in_degree().clamp(min=1).double()
    rows = aggregate(degree.unsqueeze(1), graph.target_view())[:, 0] if graph.num_edges else degree[:0]
    return (features(graph.num_edges, dtype=torch.float64, seed=7) / rows).to(dtype)


def both(x: Tensor, graph: Graph, hops: int, **options: Any) -> tuple[list[Tensor], list[Tensor]]:
    """(result, gradients of x, x0 and weight where given) of gnnagg, and of the reference in float64."""
    results = []
    for op, wide in ((propagate, False), (reference.propagate, True)):
        given = {"x": x} | {name: value for name, value in options.items() if isinstance(value, Tensor)}
        inputs = {name: (t.double() if wide else t).detach().clone().requires_grad_() for name, t in given.items()}
        rest = {name: value for name, value in options.items() if name not in inputs}
        out = op(inputs["x"], graph, hops, **{k: v for k, v in inputs.items() if k != "x"}, **rest)
        grad = features(*out.shape, dtype=out.dtype if wide else x.dtype, seed=5).to(x.dtype).to(out.dtype)
        # Without hops the reference does not touch x0 and weight: their gradient is 0.
        results.append([out.detach(), *torch.autograd.grad(out, list(inputs.values()), grad, materialize_grads=True)])
    return results[0], results[1]


def assert_close(x: Tensor, graph: Graph, hops: int, **options: Any) -> None:
    """Within the rounding of every hop to the dtype of x, relative to the same sums over absolute values."""
    actual, expected = both(x, graph, hops, **options)
    _, bounds = both(x.abs(), graph, hops, **{k: v.abs() if isinstance(v, Tensor) else v for k, v in options.items()})
    dtypes = [x.dtype, x.dtype, *(value.dtype for value in options.values() if isinstance(value, Tensor))]
    # `both` draws signed gradients: 8 times the largest bounds the sums of absolute values.
    for place, (got, want, bound, dtype) in enumerate(zip(actual, expected, bounds, dtypes, strict=True)):
        assert got.dtype == dtype and got.shape == want.shape
        if got.numel() == 0:
            continue
        size = 8 * bound.abs().max() if place else torch.maximum(bound.abs(), want.abs())
        allowed = (2 * hops + 2) * (STORE_EPS[x.dtype] + SUM_EPS[x.dtype]) * size + torch.finfo(x.dtype).tiny
        assert ((got.double() - want).abs() <= allowed).all(), place


@pytest.mark.parametrize("name", SQUARE)
@pytest.mark.parametrize("weighted", [False, True])
def test_every_graph(name: str, weighted: bool) -> None:
    graph = ZOO[name].graph()
    x = features(graph.num_src, 5)
    weight = {"weight": weights(graph, torch.float32)} if weighted else {}
    assert_close(x, graph, 3, **weight)
    assert_close(x, graph, 3, **weight, teleport=0.3, x0=features(graph.num_src, 5, seed=1))


@pytest.mark.parametrize("return_all", [False, True])
@pytest.mark.parametrize("given", ["", "weight", "x0", "weight x0"])
@pytest.mark.parametrize("teleport", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("hops", [0, 1, 2, 5])
def test_hops_and_teleport(hops: int, teleport: float, given: str, return_all: bool) -> None:
    graph = ZOO["power_law"].graph()
    x = features(110, 3, dtype=torch.float64)
    options = {"weight": weights(graph), "x0": features(110, 3, dtype=torch.float64, seed=1)}
    actual, expected = both(
        x, graph, hops, teleport=teleport, return_all=return_all, **{name: options[name] for name in given.split()}
    )
    for got, want in zip(actual, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)  # float64; unweighted hops grow to 1e4


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 16, 33, 150])
@pytest.mark.parametrize("name", ["power_law", "big_hub"])
def test_every_dtype_and_width(name: str, width: int, dtype: torch.dtype) -> None:
    graph = ZOO[name].graph()
    x, x0 = (features(graph.num_src, width, dtype=dtype, seed=seed) for seed in (0, 1))
    weight = weights(graph, accumulate(dtype))
    assert_close(x, graph, 2, weight=weight, teleport=0.2)
    assert_close(x, graph, 2, weight=weight, teleport=0.2, x0=x0, return_all=True)


@pytest.mark.parametrize("self_loops", ["add", "remove_add", "remove"])
def test_self_loops(self_loops: str) -> None:
    graph = ZOO["loops"].graph(self_loops=self_loops)
    weight = features(graph.num_edges, seed=1) / 4
    for given in ({}, {"weight": weight}):
        assert_close(features(20, 5), graph, 3, teleport=0.1, **given)


def test_shapes_strides_and_no_features() -> None:
    graph = ZOO["power_law"].graph()
    x = features(110, 4)
    expected = propagate(x, graph, 2, x0=x, teleport=0.5)
    columns = x.t().contiguous().t()
    assert not columns.is_contiguous()
    assert_same_bits(propagate(columns, graph, 2, x0=columns, teleport=0.5), expected)
    assert propagate(x[:, :0], graph, 2, return_all=True).shape == (3, 110, 0)
    out = propagate(x, graph, 0)
    assert_same_bits(out, x)
    assert out.data_ptr() != x.data_ptr()


def test_hops_are_those_of_aggregate() -> None:
    """One hop is one weighted sum, and all hops end in the last."""
    graph = ZOO["big_hub"].graph()
    x, weight = features(90, 17), weights(graph, torch.float32)
    one = propagate(x, graph, 1, weight=weight)
    assert_same_bits(one, aggregate(x, graph, weight))
    every = propagate(x, graph, 4, weight=weight, teleport=0.25, return_all=True)
    assert_same_bits(every[0], x)
    for hops in (1, 2, 3, 4):
        assert_same_bits(every[hops], propagate(x, graph, hops, weight=weight, teleport=0.25))


def test_infinities_and_nan_travel_along_edges_alone() -> None:
    chain = ZOO["chain"].graph()
    x = torch.zeros(70, 2)
    x[3, 0], x[5, 1] = torch.inf, torch.nan
    out = propagate(x, chain, 2)
    assert out[5, 0] == torch.inf and out[7, 1].isnan() and out.isfinite().sum() == 138
    teleported = propagate(x, chain, 2, teleport=0.5)  # and stay where they began
    assert teleported[3, 0] == torch.inf and teleported[5, 1].isnan()


# --- parity with PyG -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.0, 0.1, 1.0])
def test_same_as_appnp(alpha: float) -> None:
    """With gcn_norm's loops and weights, in float64; the gradient too."""
    edges = ZOO["power_law"].edge_index
    results = []
    for fused in (True, False):
        x = features(110, 6, dtype=torch.float64).requires_grad_()
        if fused:
            looped, weight = gcn_norm(edges, None, 110, dtype=torch.float64)
            out = propagate(x, Graph.from_edge_index(looped, 110), 10, weight=weight, teleport=alpha)
        else:
            out = pyg.APPNP(10, alpha)(x, edges)
        results.append((out, torch.autograd.grad(out.square().sum(), x)[0]))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_same_as_sgconv_and_tagconv() -> None:
    edges, x = ZOO["power_law"].edge_index, features(110, 6, dtype=torch.float64)
    looped, weight = gcn_norm(edges, None, 110, dtype=torch.float64)
    simple = pyg.SGConv(6, 3, K=4).double()
    expected = simple.lin(propagate(x, Graph.from_edge_index(looped, 110), 4, weight=weight))
    torch.testing.assert_close(simple(x, edges), expected, rtol=1e-12, atol=1e-12)
    plain, weight = gcn_norm(edges, None, 110, add_self_loops=False, dtype=torch.float64)
    adaptive = pyg.TAGConv(6, 3, K=3).double()
    hops = propagate(x, Graph.from_edge_index(plain, 110), 3, weight=weight, return_all=True)
    total = sum(linear(hop) for linear, hop in zip(adaptive.lins, hops, strict=True)) + adaptive.bias
    torch.testing.assert_close(adaptive(x, edges), total, rtol=1e-12, atol=1e-12)


def test_same_as_label_propagation() -> None:
    edges, labels = ZOO["power_law"].edge_index, ids(110, 4, 0)
    mask = ids(110, 2, 1).bool()
    model = pyg.LabelPropagation(5, 0.9)
    expected = model(labels, edges, mask, post_step=lambda out: out)
    seen = torch.zeros(110, 4)
    seen[mask] = torch.nn.functional.one_hot(labels[mask], 4).float()
    normal, weight = gcn_norm(edges, None, 110, add_self_loops=False)
    out = propagate(seen, Graph.from_edge_index(normal, 110), 5, weight=weight, teleport=1 - 0.9)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)  # float32, five hops


# --- derivatives -----------------------------------------------------------------------------------------------------

SMALL = make(ids(40, 9, 0), ids(40, 8, 1), 9)
CASES = [(given, return_all) for given in ("", "weight", "x0", "weight x0") for return_all in (False, True)]


@pytest.mark.parametrize(("given", "return_all"), CASES)
@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
def test_derivatives(check: Any, given: str, return_all: bool) -> None:
    graph, names = SMALL.graph(), given.split()
    tensors = {
        "weight": features(40, dtype=torch.float64, seed=1) / 3,
        "x0": features(9, 2, dtype=torch.float64, seed=2),
    }
    inputs = [features(9, 2, dtype=torch.float64), *(tensors[name] for name in names)]

    def function(x: Tensor, *others: Tensor) -> Tensor:
        return propagate(x, graph, 3, teleport=0.3, return_all=return_all, **dict(zip(names, others, strict=True)))

    assert check(function, [t.requires_grad_() for t in inputs])


def test_only_what_needs_a_gradient_gets_one() -> None:
    graph = ZOO["power_law"].graph()
    x, weight, x0 = features(110, 4), weights(graph, torch.float32), features(110, 4, seed=1)
    options = {"weight": weight, "teleport": 0.5, "x0": x0}
    assert not propagate(x, graph, 2, **options).requires_grad
    expected, _ = both(x, graph, 2, **options)
    for place, wanted in enumerate((x, weight, x0)):
        alone = wanted.clone().requires_grad_()
        given = {name: alone if value is wanted else value for name, value in options.items()}
        out = propagate(alone if wanted is x else x, graph, 2, **given)
        grad = torch.autograd.grad(out, alone, features(*out.shape, seed=5))[0]
        torch.testing.assert_close(grad, expected[place + 1], rtol=1e-5, atol=1e-6)  # float32, two ways to sum


def test_takes_an_expanded_gradient() -> None:
    graph = SMALL.graph()
    inputs = [features(9, 4).requires_grad_(), features(40, seed=1).requires_grad_()]
    actual, expected = (
        torch.autograd.grad(op(inputs[0], graph, 2, weight=inputs[1], teleport=0.5).sum(), inputs)
        for op in (propagate, reference.propagate)
    )
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_weights_of_another_dtype_and_x0_of_another_dtype() -> None:
    graph = ZOO["power_law"].graph()
    x = features(110, 4, dtype=torch.bfloat16)
    weight = weights(graph, torch.float32).requires_grad_()
    x0 = features(110, 4, seed=1).requires_grad_()
    out = propagate(x, graph, 2, weight=weight, teleport=0.5, x0=x0)
    assert out.dtype == torch.bfloat16
    assert [g.dtype for g in torch.autograd.grad(out.sum(), [weight, x0])] == [torch.float32] * 2


# --- threads, compiled code, errors ----------------------------------------------------------------------------------


def test_any_number_of_threads(threads: None) -> None:
    edges = torch.randint(20_000, (2, 120_000), generator=seeded(0))
    edges[1, ::6] = 5
    x, grad = features(20_000, 8), features(20_000, 8, seed=1)
    expected: list[Tensor] = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        graph = Graph.from_edge_index(edges.clone(), 20_000)
        assert int(graph.csr.schedule(32).splits[0].sum()) > 0  # the hub is cut
        inputs = [x.clone().requires_grad_(), (weights(graph, torch.float32)).requires_grad_()]
        out = propagate(inputs[0], graph, 3, weight=inputs[1], teleport=0.1)
        results = [out, *torch.autograd.grad(out, inputs, grad)]
        expected = expected or results
        for actual, want in zip(results, expected, strict=True):
            assert_same_bits(actual, want)


@pytest.mark.parametrize("return_all", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_compiles(weighted: bool, return_all: bool) -> None:
    torch._dynamo.reset()
    graph = ZOO["power_law"].graph()
    weight = weights(graph, torch.float32) if weighted else None

    def function(x: Tensor, weight: Tensor | None, x0: Tensor, graph: Graph) -> list[Tensor]:
        return propagate(x, graph, 3, weight=weight, teleport=0.1, x0=x0, return_all=return_all)

    results = []
    for call in (function, torch.compile(function, fullgraph=True, backend="aot_eager")):
        inputs = [features(110, 4), weight, features(110, 4, seed=1)]
        inputs = [None if t is None else t.detach().clone().requires_grad_() for t in inputs]
        out = call(*inputs, graph)
        grads = torch.autograd.grad(out.square().sum(), [t for t in inputs if t is not None])
        results.append([out, *grads])
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-5)  # float32; schedules may differ


def test_autocast_runs_in_the_dtype_of_x() -> None:
    graph = ZOO["power_law"].graph()
    for dtype in (torch.float32, torch.bfloat16):
        x = features(110, 4, dtype=dtype)
        with torch.autocast("cpu", torch.bfloat16):
            inside = propagate(x, graph, 2, teleport=0.5)
        assert_same_bits(inside, propagate(x, graph, 2, teleport=0.5))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"x": "no"}, TypeError, "x must be a torch.Tensor, got str"),
        ({"x": torch.zeros(110, 2, dtype=torch.int64)}, TypeError, "x must be one of float32"),
        ({"x": torch.zeros(109, 2)}, ValueError, "num_src = 110, got [109, 2]"),
        ({"x": torch.zeros(110, 2, 1)}, ValueError, "x must be [N, F], got [110, 2, 1]"),
        ({"graph": ZOO["bipartite"].graph(), "x": torch.zeros(77, 2)}, ValueError, "got 77 and 30"),
        ({"hops": -1}, ValueError, "hops must be at least 0, got -1"),
        ({"hops": 1.0}, TypeError, "hops must be an int, got float"),
        ({"hops": True}, TypeError, "hops must be an int, got bool"),
        ({"teleport": 1.5}, ValueError, "teleport must be in [0, 1], got 1.5"),
        ({"teleport": float("nan")}, ValueError, "teleport must be in [0, 1], got nan"),
        ({"x0": 0.5}, TypeError, "x0 must be a torch.Tensor, got float"),
        ({"x0": torch.zeros(110, 2, dtype=torch.int32)}, TypeError, "x0 must be floating point, got torch.int32"),
        ({"x0": torch.zeros(110, 3)}, ValueError, "x0 must be [110, 2] as x, got [110, 3]"),
        ({"weight": torch.zeros(1299)}, ValueError, "weight must be [num_edges] = [1300]"),
        ({"weight": torch.zeros(1300, 2)}, ValueError, "weight must be [num_edges] = [1300], got [1300, 2]"),
        ({"weight": torch.zeros(1300, dtype=torch.int64)}, TypeError, "weight must be floating point"),
    ],
)
def test_errors(change: dict[str, Any], error: type[Exception], message: str) -> None:
    arguments: dict[str, Any] = {"x": torch.zeros(110, 2), "graph": ZOO["power_law"].graph(), "hops": 2} | change
    with pytest.raises(error) as raised:
        propagate(**arguments)
    assert str(raised.value).startswith("propagate: ") and message in str(raised.value)
