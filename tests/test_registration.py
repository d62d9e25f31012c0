"""Every op is registered in full: opcheck, torch.compile, autocast; nothing is declared late."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from op_samples import OPS, samples
from torch._dynamo.testing import CompileCounterWithBackend
from zoo import REDUCES, ZOO, features, run

import gnnagg.extremum
import gnnagg.multi
from gnnagg import Graph, aggregate

ALL = [*REDUCES, ("sum", "mean", "max", "std")]


@pytest.mark.parametrize("op", OPS)
def test_opcheck(op: str) -> None:
    for arguments in samples(op):
        torch.library.opcheck(getattr(torch.ops.gnnagg, op).default, arguments)


def test_every_op_is_checked_and_declared_on_import() -> None:
    """Code that was exported or compiled elsewhere finds the ops after ``import gnnagg`` alone."""
    show = f"import gnnagg, torch; print(*[name for name in {OPS} if hasattr(torch.ops.gnnagg, name)])"
    done = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True)
    assert done.stdout.split() == OPS
    defined = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("gnnagg::")}
    assert defined == {
        f"gnnagg::{name}" for name in [*OPS, "set_launch_mode", "last_launch_plan"]
    }  # none without samples here


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch._dynamo.reset()


def results(function: Any, x: torch.Tensor, weight: torch.Tensor | None, *others: Any) -> list[torch.Tensor]:
    """Results of ``function(x, weight, *others)`` and the gradients of their sum of squares."""
    inputs = [t.detach().clone().requires_grad_() for t in (x, weight) if t is not None]
    out = function(inputs[0], inputs[1] if weight is not None else None, *others)
    out = out if isinstance(out, tuple) else (out,)
    return [*out, *torch.autograd.grad(sum(each.square().sum() for each in out), inputs)]


def assert_equal(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for got, want in zip(actual, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)  # float32; schedules may differ


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduce", ALL, ids=str)
def test_compiles_with_a_graph(reduce: Any, weighted: bool) -> None:
    """As a closure and as an argument, without a graph break, forward and backward."""
    graph = ZOO["power_law"].graph()
    x, weight = features(110, 4), features(1300, seed=1) if weighted else None
    expected = results(lambda x, w: aggregate(x, graph, w, reduce), x, weight)
    closure = torch.compile(lambda x, w: aggregate(x, graph, w, reduce), fullgraph=True, backend="aot_eager")
    assert_equal(results(closure, x, weight), expected)
    argument = torch.compile(lambda x, w, g: aggregate(x, g, w, reduce), fullgraph=True, backend="aot_eager")
    assert_equal(results(argument, x, weight, graph), expected)


@pytest.mark.parametrize("self_loops", [None, "remove_add"])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max", ("mean", "std")], ids=str)
def test_compiles_with_a_raw_edge_index(reduce: Any, self_loops: Any) -> None:
    """Planned inside the compiled code; other edge counts do not compile again and again."""

    def layer(x: torch.Tensor, weight: torch.Tensor | None, edge_index: torch.Tensor) -> Any:
        graph = Graph.from_edge_index(edge_index, (x.size(0), x.size(0)), self_loops=self_loops)
        return aggregate(x, graph, weight, reduce)

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, fullgraph=True, backend=counter)
    edges, x = ZOO["power_law"].edge_index, features(110, 4)
    for count in (1300, 900, 700, 501, 13, 64):
        part = edges[:, :count].contiguous()
        extra = 110 if self_loops else 0
        for weight in [None, features(count + extra, seed=1)][: 2 if reduce == "sum" else 1]:
            assert_equal(results(compiled, x, weight, part), results(layer, x, weight, part))
    assert counter.frame_count <= (4 if reduce == "sum" else 2)


def test_compiled_plan_is_not_taken_from_the_cache(empty_cache: None) -> None:
    """An op under compile must not return a tensor that someone else holds."""
    edges = ZOO["power_law"].edge_index.clone()
    before = Graph.from_edge_index(edges, 110).col.clone()
    compiled = torch.compile(
        lambda x, e: aggregate(x, Graph.from_edge_index(e, 110)), fullgraph=True, backend="aot_eager"
    )
    compiled(features(110, 4), edges)
    assert torch.equal(Graph.from_edge_index(edges, 110).col, before)
    assert gnnagg.graph_cache_info()["entries"] == 1


@pytest.mark.parametrize("reduce", REDUCES)
def test_autocast_runs_in_the_dtype_of_x(reduce: str) -> None:
    graph = ZOO["power_law"].graph()
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        x, grad = features(110, 4, dtype=dtype), features(110, 4, dtype=dtype, seed=1)
        with torch.autocast("cpu", torch.bfloat16):
            inside = run(x, graph, None, reduce, grad)
        assert inside[0].dtype == dtype
        for actual, expected in zip(inside, run(x, graph, None, reduce, grad), strict=True):
            assert torch.equal(actual, expected)


def test_no_gradient_flows_into_winners() -> None:
    x = features(110, 4).requires_grad_()
    out, winner = gnnagg.extremum.extremum_rows(x, ZOO["power_law"].graph(), minimum=False)
    assert out.requires_grad and not winner.requires_grad
