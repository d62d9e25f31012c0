"""Bad input: the type of the exception, and the parts of its message: the argument, what was expected, what came."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from zoo import ZOO, features

import gnnagg
import gnnagg.extremum
from gnnagg import Graph, aggregate

EDGES = torch.tensor([[0, 1, 2], [1, 1, 0]])
GRAPH = Graph.from_edge_index(EDGES, 3)
X = torch.ones(3, 4)


def plan(edge_index: object = EDGES, size: object = (3, 3), **options: object) -> Callable[[], object]:
    return lambda: Graph.from_edge_index(edge_index, size, **options)  # type: ignore[arg-type]


def call(x: object = X, weight: object = None, reduce: object = "sum", graph: object = GRAPH) -> Callable[[], object]:
    return lambda: aggregate(x, graph, weight, reduce)  # type: ignore[call-overload]


def csr(rowptr: object, col: object, num_src: object = 3, **options: object) -> Callable[[], object]:
    return lambda: Graph.from_csr(torch.as_tensor(rowptr), torch.as_tensor(col), num_src, **options)  # type: ignore[arg-type]


BAD = {
    # edge_index
    "list": (plan([[0], [1]]), TypeError, "edge_index", "torch.Tensor", "list"),
    "float ids": (plan(EDGES.float()), TypeError, "edge_index", "integer", "torch.float32"),
    "bool ids": (plan(EDGES.bool()), TypeError, "edge_index", "integer", "torch.bool"),
    "sparse": (plan(torch.eye(3).to_sparse()), TypeError, "edge_index", "from_sparse", "sparse_coo"),
    "1-D": (plan(EDGES[0]), ValueError, "edge_index", "[2, num_edges]", "[3]"),
    "three rows": (plan(EDGES.t()), ValueError, "edge_index", "[2, num_edges]", "[3, 2]"),
    "3-D": (plan(EDGES[None]), ValueError, "edge_index", "[2, num_edges]", "[1, 2, 3]"),
    "meta": (plan(EDGES.to("meta")), ValueError, "edge_index", "cpu or cuda", "meta"),
    "source too large": (plan(EDGES, (2, 3)), IndexError, "edge_index", "[0, 2)", "source 2 at edge 2"),
    "target too large": (plan(EDGES, (3, 1)), IndexError, "edge_index", "[0, 1)", "target 1, source 0 at edge 0"),
    "negative source": (plan(EDGES - 1, 3), IndexError, "edge_index", "[0, 3)", "source -1 at edge 0"),
    "negative, size inferred": (plan(-EDGES, None), IndexError, "edge_index", "[0, 1)", "-1"),
    "beyond 32 bits": (plan(EDGES + 2**32), IndexError, "edge_index", "[0, 3)", "4294967296"),
    "ids without nodes": (plan(EDGES, 0), IndexError, "edge_index", "[0, 0)", "edge 0"),
    # size, flow, self_loops
    "negative size": (plan(size=(3, -1)), ValueError, "size[1]", ">= 0", "-1"),
    "float size": (plan(size=(3.0, 3)), TypeError, "size[0]", "int", "3.0"),
    "bool size": (plan(size=True), TypeError, "size", "int", "True"),
    "a float for size": (plan(size=3.5), TypeError, "size", "int", "3.5"),
    "three sizes": (plan(size=(3, 3, 3)), ValueError, "size", "(num_src, num_dst)", "(3, 3, 3)"),
    "flow": (plan(flow="sideways"), ValueError, "flow", "source_to_target", "'sideways'"),
    "self_loops": (plan(self_loops="keep"), ValueError, "self_loops", "remove_add", "'keep'"),
    "self_loops=True": (plan(self_loops=True), ValueError, "self_loops", "remove_add", "True"),
    # CSR and sparse matrices
    "rowptr falls": (csr([0, 3, 1, 3], [0, 1, 2]), ValueError, "rowptr", "not decrease", "does not"),
    "rowptr starts late": (csr([1, 3], [0, 1, 2]), ValueError, "rowptr", "start at 0", "does not"),
    "rowptr ends early": (csr([0, 2], [0, 1, 2]), ValueError, "rowptr", "end at len(col)", "does not"),
    "rowptr without edges": (
        csr([0, 2], torch.zeros(0, dtype=torch.long)),
        ValueError,
        "rowptr",
        "end at len(col)",
        "",
    ),
    "no rowptr": (csr(torch.zeros(0, dtype=torch.long), [0]), ValueError, "rowptr", "[num_dst + 1]", "[0]"),
    "float rowptr": (csr([0.0, 1.0], [0]), (TypeError, ValueError), "rowptr", "int32 or int64", "float32"),
    "2-D col": (csr([0, 1], [[0]]), ValueError, "col", "1-D", "2-D"),
    "col too large": (csr([0, 1, 3], [0, 1, 3]), IndexError, "col", "[0, 3)", "source 3 at edge 2"),
    "col negative": (csr([0, 3], [0, -1, 2]), IndexError, "col", "[0, 3)", "source -1 at edge 1"),
    "short perm": (csr([0, 3], [0, 1, 2], perm=torch.tensor([0])), ValueError, "perm", "[3]", "[1]"),
    "not sparse": (lambda: Graph.from_sparse(torch.eye(3)), TypeError, "adj_t", "CSR, CSC or COO", "strided"),
    "no matrix": (lambda: Graph.from_sparse("A"), TypeError, "adj_t", "EdgeIndex", "str"),
    # x
    "x: list": (call([1.0]), TypeError, "x", "torch.Tensor", "list"),
    "x: integer": (call(X.long()), TypeError, "x", "float32", "int64"),
    "x: bool": (call(X.bool()), TypeError, "x", "float32", "bool"),
    "x: complex": (call(X.to(torch.complex64)), TypeError, "x", "float32", "complex64"),
    "x: too few rows": (call(X[:2]), ValueError, "x", "num_src = 3", "[2, 4]"),
    "x: 1-D": (call(X[:, 0]), ValueError, "x", "[num_src, F]", "[3]"),
    "x: 4-D": (call(X[None, None]), ValueError, "x", "[num_src, F]", "[1, 1, 3, 4]"),
    "x: batch of another size": (call(torch.ones(2, 4, 4)), ValueError, "x", "num_src = 3", "[2, 4, 4]"),
    "x: device": (call(X.to("meta")), ValueError, "x", "device cpu", "meta"),
    # weight
    "weight: number": (call(weight=2.0), TypeError, "weight", "torch.Tensor", "float"),
    "weight: integer": (call(weight=torch.ones(3).long()), TypeError, "weight", "floating", "int64"),
    "weight: too short": (call(weight=torch.ones(2)), ValueError, "weight", "[num_edges] = [3]", "[2]"),
    "weight: per node": (call(weight=torch.ones(3, 3)), ValueError, "weight", "dividing 4", "[3, 3]"),
    "weight: no heads": (call(weight=torch.ones(3, 0)), ValueError, "weight", "[num_edges]", "[3, 0]"),
    "weight: 3-D": (call(weight=torch.ones(3, 1, 1)), ValueError, "weight", "[num_edges]", "[3, 1, 1]"),
    "weight: heads of x": (call(X.view(3, 2, 2), torch.ones(3, 4)), ValueError, "weight", "H = 2", "[3, 4]"),
    "weight: device": (call(weight=torch.ones(3, device="meta")), ValueError, "weight", "device cpu", "meta"),
    # reduce
    "reduce": (call(reduce="median"), ValueError, "reduce", "mean", "'median'"),
    "reduce: one of several": (call(reduce=("sum", "mul")), ValueError, "reduce", "mean", "mul"),
    "reduce: none": (call(reduce=()), ValueError, "reduce", "mean", "()"),
    # the rest
    "launch_mode": (lambda: gnnagg.launch_mode("fast").__enter__(), ValueError, "mode", "staged", "'fast'"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", BAD)
def test_message_names_argument_expected_and_got(case: str) -> None:
    do, error, *parts = BAD[case]
    with pytest.raises(error) as caught:
        do()
    for part in parts:
        assert part in str(caught.value), str(caught.value)


def test_message_of_target_to_source_names_the_right_ends() -> None:
    edges = torch.tensor([[0, 1], [0, 5]])  # row 0: targets, row 1: sources
    with pytest.raises(IndexError, match="target 1, source 5 at edge 1"):
        Graph.from_edge_index(edges, (3, 5), flow="target_to_source")


def test_integers_cannot_require_a_gradient() -> None:
    """torch refuses to mark them, and aggregate refuses them whether or not they are marked."""
    with pytest.raises(RuntimeError, match="floating point"):
        X.long().requires_grad_()


def test_graph_of_the_wrong_type() -> None:
    with pytest.raises((TypeError, AttributeError)):
        aggregate(X, EDGES)  # type: ignore[call-overload]


def test_nothing_is_left_behind_by_a_refused_plan(empty_cache: None) -> None:
    with pytest.raises(IndexError):
        Graph.from_edge_index(EDGES, 2)
    assert gnnagg.graph_cache_info()["entries"] == 0
    with pytest.raises(IndexError):  # and asking again is refused again
        Graph.from_edge_index(EDGES, 2)


def test_ops_survive_operands_that_do_not_fit() -> None:
    """Called below the friendly checks: an exception, not a crash."""
    ops, graph = torch.ops.gnnagg, ZOO["power_law"].graph()
    schedule = graph.csr.schedule(16)
    csr = (graph.rowptr, graph.col, schedule.spans, schedule.splits)
    x, none = features(110, 4), (None,) * 4
    bad = [
        lambda: ops.aggregate_sum(x.long(), *csr, *none, False, False),
        lambda: ops.aggregate_sum(x, csr[0].long(), *csr[1:], *none, False, False),
        lambda: ops.aggregate_sum(x, *csr, graph.perm, torch.ones(7), None, None, False, False),
        lambda: ops.aggregate_sum(x, *csr, graph.perm, torch.ones(1300).half(), None, None, False, False),
        lambda: ops.aggregate_sum(x, *csr, None, None, torch.ones(3), None, False, False),
        lambda: ops.aggregate_extremum(x[:, 0], *csr, False, True),
        lambda: ops.edge_dot(x[:3], x, *csr[:3], None, 1),
        lambda: ops.edge_dot(x, x, *csr[:3], None, 3),
        lambda: ops.build_spans(graph.rowptr, 1300, 0),
        lambda: ops.csr_transpose(graph.rowptr, graph.col[:5].long(), 110),
        lambda: ops.csr_from_coo(graph.rowptr, graph.col, 110, 110, 0, False),
        lambda: ops.csr_from_coo(graph.col, graph.col, -1, 110, 0, False),
    ]
    for place, do in enumerate(bad):
        with pytest.raises((RuntimeError, ValueError, TypeError, IndexError)):
            do()
            pytest.fail(f"case {place} was accepted")


def test_launch_environment_is_checked_at_import() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import gnnagg"],
        env={**os.environ, "GNNAGG_LAUNCH": "fast"},
        capture_output=True,
        text=True,
    )
    assert done.returncode and "GNNAGG_LAUNCH must be one of" in done.stderr and "'fast'" in done.stderr
