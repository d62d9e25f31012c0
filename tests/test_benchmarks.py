"""The benchmark harness on the CPU: references, verdicts, result files. Times are never asserted."""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import (  # noqa: E402
    aggregate_targets,
    attention_checks,
    attention_targets,
    bench_aggregate,
    bench_attention,
    checking,
    graphs,
    harness,
    isolation,
    opponents,
    published,
    results,
    suites,
)
from benchmarks.aggregate_cases import AggregateCase, AggregateContender, Op, make_case  # noqa: E402
from benchmarks.attention_cases import AttentionCase, GnnaggAttention, Problem, TrainedContender  # noqa: E402
from benchmarks.attention_opponents import PygConv, PygSoftmax  # noqa: E402
from benchmarks.harness import Contender, Direction, Settings  # noqa: E402
from benchmarks.isolation import Cell, Failed, Finished, Watch  # noqa: E402
from benchmarks.layer_cases import LAYERS, GnnaggLayer, LayerCase, LayerProblem, PygLayer  # noqa: E402
from benchmarks.propagate_cases import HopByHop, OneCall, PropagateProblem, PygAppnp  # noqa: E402

CPU = torch.device("cpu")
SETTINGS = Settings(device=CPU, repeat=1, quick=True)
NAMES = ("arxiv", "uni4", "hub", "hub-by-source", "no-hub", "uniform50", "small-200k")


class Reference(AggregateContender):
    """Plain torch, right; stands for ours, so that the harness is tested without the libraries."""

    name = "reference"
    mode = "cpu"

    def prepare(self, case: AggregateCase) -> None:
        self._case = case

    def forward(self, x: Tensor) -> Tensor:
        graph, op = self._case.graph, self._case.op
        index = graph.row.long().unsqueeze(1).expand(-1, x.size(1))
        reduce = {"sum": "sum", "max": "amax"}[op]
        messages = x.float().index_select(0, graph.col)
        out = torch.zeros(graph.num_nodes, x.size(1)).scatter_reduce(0, index, messages, reduce, include_self=False)
        return out.to(x.dtype)


class Scaled(Reference):
    """One part in a hundred too large."""

    name = "scaled"

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 1.01


class OneRowWrong(Reference):
    """A single element of a short row is wrong, beside rows a thousand times larger."""

    name = "one row wrong"

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x).clone()
        short = int((self._case.graph.degree == 1).nonzero()[0])
        out[short, 0] += 0.01
        return out


class Unwritten(Reference):
    """Leaves its result as the allocator gave it."""

    name = "unwritten"

    def forward(self, x: Tensor) -> Tensor:
        return torch.full_like(x, float("nan"))


class Raising(Reference):
    name = "raising"

    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("no kernel for this\nsecond line")


def small_case(op: Op = "sum", direction: Direction = "fwd", name: str = "arxiv", features: int = 20) -> AggregateCase:
    graph = graphs.build(name, CPU, scale=0.0005 if name == "hub" else 0.005)
    return make_case(op, graph, features, torch.float32, direction)


@pytest.mark.parametrize("name", NAMES)
def test_graph_is_a_sorted_csr(name: str) -> None:
    graph = graphs.build(name, CPU, scale=0.002)
    assert graph.rowptr.dtype == torch.int64 and graph.col.dtype == graph.row.dtype == torch.int32
    assert graph.rowptr.numel() == graph.num_nodes + 1
    assert int(graph.rowptr[0]) == 0 and int(graph.rowptr[-1]) == graph.num_edges
    rows = torch.arange(graph.num_nodes).repeat_interleave(graph.degree)
    assert torch.equal(rows, graph.row.long())
    key = graph.row.long() * graph.num_nodes + graph.col
    assert bool((key[1:] >= key[:-1]).all())
    assert int(graph.col.min()) >= 0 and int(graph.col.max()) < graph.num_nodes
    assert not graph.standard


def test_hub_by_source_is_the_hub_graph_turned_round() -> None:
    hub, turned = (graphs.build(name, CPU, scale=0.001) for name in ("hub", "hub-by-source"))
    out_degree = torch.bincount(turned.col, minlength=turned.num_nodes)
    assert torch.equal(out_degree, hub.degree)
    assert hub.max_degree >= 4000


def test_undirected_npz_gets_both_directions_and_keeps_loops_single(tmp_path: Path) -> None:
    import numpy as np

    edges = np.array([[0, 0, 2], [1, 2, 2]], dtype=np.int32)
    np.savez(tmp_path / "musae-github.npz", edge_index=edges, num_nodes=3, directed=0)
    graph = graphs.build("musae-github", CPU, root=tmp_path)
    assert graph.rowptr.tolist() == [0, 2, 3, 5]
    assert graph.col.tolist() == [1, 2, 0, 0, 2]


@pytest.mark.parametrize("name", ["arxiv", "hub"])
def test_reference_equals_a_dense_product(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "BLOCK_VALUES", 1000)
    monkeypatch.setattr(checking, "PIECE_EDGES", 7)
    case = small_case(name=name, features=3)
    graph, x = case.graph, case.x.double()
    dense = torch.zeros(graph.num_nodes, graph.num_nodes, dtype=torch.float64)
    dense.index_put_((graph.row.long(), graph.col.long()), torch.ones(()).double(), accumulate=True)
    torch.testing.assert_close(checking.reference_forward(case.x, graph, "sum"), dense @ x)
    torch.testing.assert_close(checking.reference_backward(case.x, case.x, graph, "sum"), dense.T @ x)


def test_reference_maximum_shares_the_gradient_among_ties() -> None:
    source, target = torch.tensor([0, 1, 2, 2]), torch.tensor([0, 0, 0, 1])
    graph = graphs.from_coo("ties", source, target, 3)
    x = torch.tensor([[1.0], [5.0], [5.0]])
    assert checking.reference_forward(x, graph, "max").flatten().tolist() == [5.0, 5.0, 0.0]
    grad = torch.tensor([[2.0], [3.0], [7.0]])
    assert checking.reference_backward(x, grad, graph, "max").flatten().tolist() == [0.0, 1.0, 4.0]


def test_reference_of_rows_without_edges_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "BLOCK_VALUES", 2)
    graph = graphs.from_coo("last rows empty", torch.tensor([0, 1, 1]), torch.tensor([1, 1, 1]), 4)
    x = torch.tensor([[2.0], [-3.0], [5.0], [7.0]])
    assert checking.reference_forward(x, graph, "sum").flatten().tolist() == [0, -4, 0, 0]
    assert checking.reference_forward(x, graph, "max").flatten().tolist() == [0, 2, 0, 0]


@pytest.mark.parametrize("op", ["sum", "max"])
@pytest.mark.parametrize("direction", ["fwd", "bwd", "fwd+bwd"])
def test_right_contender_is_ok(op: Op, direction: Direction) -> None:
    (result,) = harness.measure([Reference()], small_case(op, direction), SETTINGS)
    assert result.verdict == "ok"
    assert result.scaled_error is not None and result.scaled_error < 1e-5
    assert result.time_ms is not None and result.peak_bytes is None
    assert result.repeats_bitwise


@pytest.mark.parametrize("contender", [Scaled, OneRowWrong, Unwritten])
def test_wrong_contender_is_flagged_with_its_error(contender: type[Contender]) -> None:
    mine, theirs = harness.measure([Reference(), contender()], small_case(), SETTINGS)
    assert (mine.verdict, theirs.verdict) == ("ok", "wrong")
    assert theirs.scaled_error is not None and theirs.scaled_error > 1e-3
    row = harness.case_rows(small_case(), mine, [theirs], mode="cpu")[0]
    assert row["opponent_verdict"] == "wrong" and row["opponent_max_rel_error"] == theirs.scaled_error
    assert row["max_rel_error"] < 1e-5


def test_raising_contender_is_reported_with_its_reason() -> None:
    _, theirs = harness.measure([Reference(), Raising()], small_case(), SETTINGS)
    assert theirs.verdict == "failed: RuntimeError no kernel for this"
    assert theirs.time_ms is None


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_error_is_unbounded_for_what_is_not_finite(bad: float) -> None:
    reference = torch.zeros(4, 3, dtype=torch.float64)
    out = torch.zeros(4, 3)
    assert checking.compare(out, reference).scaled == 0
    out[2, 1] = bad
    assert not checking.compare(out, reference).within(1e30)
    assert not checking.compare(torch.zeros(4, 2), reference).within(1e30)


@pytest.mark.parametrize("key", ["torch.sparse", "torch.sparse.mm", "segment_reduce", "pyg"])
@pytest.mark.parametrize("op", ["sum", "max"])
def test_cpu_opponents_are_right(key: str, op: Op) -> None:
    if key == "pyg":
        pytest.importorskip("torch_geometric")
    case = small_case(op)
    (opponent,) = opponents.choose([key], None)
    if not opponent.supports(case):
        pytest.skip(f"{opponent.name} has no {op}")
    (result,) = harness.measure([opponent], case, SETTINGS)
    assert result.verdict == "ok", result


def test_published_times_are_found_by_cell() -> None:
    assert published.published_times("sum", "fwd", "fp32", "reddit", 128) == [("rode (kernels table)", 6.05)]
    assert published.published_times("max", "fwd+bwd", "fp32", "hub", 128) == [("turbo-gnn (kernels table)", 10.5)]
    assert published.published_times("sum", "fwd", "bf16", "hub", 16) == []


def test_result_file_round_trip(tmp_path: Path) -> None:
    case = small_case()
    mine, theirs = harness.measure([Reference(), Unwritten()], case, SETTINGS)
    rows = harness.case_rows(case, mine, [theirs], mode="cpu", published=[("elsewhere", 2.0)], ceiling_tb_s=9.0)
    path = results.write_results("trial", results.metadata(CPU), rows, tmp_path, CPU)
    assert path == tmp_path / "cpu" / "trial.json"
    document = json.loads(path.read_text())
    results.validate(document)
    first, second = document["rows"]
    assert first["max_rel_error"] < 1e-5
    assert first["opponent_max_rel_error"] == results.UNBOUNDED
    assert first["ceiling_fraction"] > 0
    assert second["ratio"] == pytest.approx(2.0 / second["time_ms"], rel=1e-3)
    results.print_rows("trial", rows)


def test_invalid_result_files_are_refused(tmp_path: Path) -> None:
    meta = results.metadata(CPU)
    row = results.blank_row(op="sum", direction="fwd", mode="cpu")
    results.validate({"meta": meta, "rows": [row]})
    for broken in ({"extra": 1}, {"time_ms": "fast"}, {"direction": "sideways"}, {"mode": "turbo"}):
        with pytest.raises(ValueError, match="row 0"):
            results.validate({"meta": meta, "rows": [row | broken]})
    with pytest.raises(ValueError, match="commit"):
        results.validate({"meta": {key: meta[key] for key in meta if key != "commit"}, "rows": []})


def test_command_line_is_recorded_without_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    script = str(ROOT / "benchmarks" / "bench_aggregate.py")
    monkeypatch.setattr(sys, "argv", [script, "--root", "/somewhere/graphs", "--out=/else/where", "--suite", "cpu"])
    command = results.metadata(CPU)["command"]
    assert command == "python3 benchmarks/bench_aggregate.py --root <graphs> --out=<where> --suite cpu"


def test_targets_take_the_fastest_right_opponent() -> None:
    def row(opponent: str, ratio: float, verdict: str = "ok", graph: str = "arxiv") -> results.Row:
        shape = [10, 64]
        fields = {"op": "sum", "graph": graph, "shape": shape, "dtype": "fp32", "direction": "fwd", "mode": "auto"}
        measured = {"time_ms": 1.0, "opponent": opponent, "ratio": ratio, "opponent_verdict": verdict}
        return results.blank_row(**fields, **measured)

    rows = [row("cusparse alg2", 3.0), row("cusparse alg3", 2.0), row("cusparse alg3", 0.5, "wrong", "hub")]
    rows.append(row("cusparse alg2", 8.0, graph="hub"))
    geomean, every, *_ = aggregate_targets.targets_sum(rows)
    assert geomean.met is True and geomean.measured == "4"
    assert every.measured.startswith("2 (arxiv F=64")


def test_cpu_suite_writes_a_valid_file(tmp_path: Path) -> None:
    gnnagg = pytest.importorskip("gnnagg")
    native = getattr(gnnagg, "_native", None)
    if native is not None and not native.available("cpu"):
        pytest.skip("the CPU library is not built")
    arguments = ["--suite", "cpu", "--quick", "--repeat", "1", "--dtypes", "fp32", "--opponents", "torch.sparse.mm"]
    bench_aggregate.main([*arguments, "--out", str(tmp_path)])
    document = json.loads((tmp_path / "cpu" / "aggregate_cpu.json").read_text())
    results.validate(document)
    assert {row["op"] for row in document["rows"]} == {"sum", "max"}
    assert all(row["max_rel_error"] is not None and row["max_rel_error"] < 1e-4 for row in document["rows"])


# --- attention --------------------------------------------------------------------------------------------------------

ATTENTION = ("gat", "gatv2", "dot")


def needs(function: str) -> None:
    """Skips without that function of the package, or without its CPU library."""
    gnnagg = pytest.importorskip("gnnagg")
    if not hasattr(gnnagg, function):
        pytest.skip(f"gnnagg has no {function}")
    if not gnnagg._native.available("cpu"):
        pytest.skip("the CPU library is not built")


def attention_row(op: str, graph: str, shape: tuple[int, ...], **more: Any) -> results.Row:
    fields = {"op": op, "graph": graph, "shape": [10, *shape], "dtype": "fp32", "direction": "fwd+bwd", "mode": "auto"}
    return results.blank_row(**{**fields, "time_ms": 1.0, "max_rel_error": 1e-6, "opponent_verdict": "ok", **more})


def target(targets: Sequence[results.Target], text: str) -> results.Target:
    return next(each for each in targets if each.text.startswith(text))


def test_attention_targets_take_right_results_only() -> None:
    rows = [
        attention_row("gat", "arxiv", (1, 64), opponent="PyG eager", ratio=30.0),
        attention_row("gat", "arxiv", (4, 32), opponent="PyG eager", ratio=90.0, note="ours wrong"),
        attention_row("gat", "arxiv", (8, 8), opponent="PyG eager", ratio=90.0, opponent_verdict="wrong"),
    ]
    targets = attention_targets.targets_pyg(rows)
    assert target(targets, "gat arxiv fwd+bwd vs PyG eager").measured == "30"
    assert target(targets, "largest scaled error").met is False


def test_hubs_have_goals_of_their_own() -> None:
    opponent = {"opponent": "turbo-gnn (kernels table)"}
    rows = [attention_row("gatv2", graph, (1, 64), ratio=3.0, **opponent) for graph in ("arxiv", "reddit", "hub")]
    targets = attention_targets.targets_published(rows)
    text = "gatv2 fwd+bwd fp32 vs turbo-gnn (kernels table)"
    assert target(targets, f"{text}, geomean").met is True
    assert target(targets, f"{text}, every cell").met is True
    assert target(targets, f"{text}, hub").met is False


def test_targets_of_times_and_memory() -> None:
    products = [attention_row("gat", "products", (4, 64), time_ms=79.0)]
    assert target(attention_targets.targets_published(products), "gat products 4x64 fwd+bwd fp32").met is True
    peaks = {"opponent": "PyG eager", "ratio": 40.0, "opponent_peak_bytes": 28 * 2**30}
    rows = [attention_row("gat", "arxiv", (1, 64), peak_bytes=2 * 2**30, **peaks)]
    rows.append(attention_row("gat", "reddit", (1, 64), peak_bytes=2 * 2**30, **peaks))
    targets = attention_targets.targets_pyg(rows)
    assert target(targets, "gat arxiv fwd+bwd: PyG's memory / ours").met is False  # 14 times, of 15
    assert target(targets, "gat reddit 1x64 fwd+bwd, GiB").met is False


def attention_problem(op: str, name: str = "arxiv", dtype: torch.dtype = torch.float64) -> Problem:
    graph = graphs.build(name, CPU, scale=0.0002 if name == "hub" else 0.003)
    return Problem(op, graph, 2, 5, dtype)


class DenseAttention(TrainedContender):
    """Attention on dense [N, N, H] scores, by autograd; parallel edges count as often as they are there."""

    name = "dense"

    def prepare(self, case: AttentionCase) -> None:
        self._op, graph = case.op, case.graph
        self._count = torch.zeros(graph.num_nodes, graph.num_nodes, dtype=case.dtype)
        index = (graph.row.long(), graph.col.long())
        self._count.index_put_(index, torch.ones((), dtype=case.dtype), accumulate=True)

    def forward(self, *inputs: Tensor) -> Tensor:
        if self._op == "gat":
            value, source, target = inputs
            score = torch.nn.functional.leaky_relu(target.unsqueeze(1) + source.unsqueeze(0), 0.2)
        elif self._op == "gatv2":
            value, target, att = inputs
            before = torch.nn.functional.leaky_relu(target.unsqueeze(1) + value.unsqueeze(0), 0.2)
            score = (before * att).sum(3)
        else:
            query, key, value = inputs
            score = torch.einsum("ihc,jhc->ijh", query, key) / value.size(2) ** 0.5
        weight = score.exp() * self._count.unsqueeze(2)
        alpha = weight / weight.sum(1, keepdim=True).clamp(min=1e-30)
        return torch.einsum("ijh,jhc->ihc", alpha, value)


@pytest.mark.parametrize("op", ATTENTION)
@pytest.mark.parametrize("name", ["arxiv", "hub"])
@pytest.mark.parametrize("block", ["one block", "blocks of rows", "head by head"])
def test_attention_reference_equals_dense_attention(
    op: str, name: str, block: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if block != "one block":
        monkeypatch.setattr(checking, "BLOCK_VALUES", 500)
    if block == "head by head":
        monkeypatch.setattr(attention_checks, "BLOCK_VALUES", 0)
    problem = attention_problem(op, name)
    for direction in ("fwd", "bwd", "fwd+bwd"):
        (result,) = harness.measure([DenseAttention()], problem.case(direction), SETTINGS)
        assert result.verdict == "ok" and result.scaled_error is not None and result.scaled_error < 1e-11, result


@pytest.mark.parametrize("op", ATTENTION)
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_wrong_gradient_of_any_input_is_flagged(op: str, which: int) -> None:
    class OneGradientOff(DenseAttention):
        name = "one gradient off"

        def bind(self, case: AttentionCase) -> harness.Call:
            call = super().bind(case)
            return lambda x: tuple(grad * (1.001 if i == which else 1) for i, grad in enumerate(call(x)))

    (result,) = harness.measure([OneGradientOff()], attention_problem(op).case("fwd+bwd"), SETTINGS)
    assert result.verdict == "wrong" and result.scaled_error is not None and result.scaled_error < 1e-2


@pytest.mark.parametrize("op", [*ATTENTION, "edge_softmax"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_attention_contenders_are_right(op: str, dtype: torch.dtype) -> None:
    needs(op if op == "edge_softmax" else f"{op}_attention")
    pytest.importorskip("torch_geometric")
    problem = attention_problem(op, dtype=dtype)
    rivals = [] if dtype == torch.bfloat16 else [PygConv(), PygSoftmax()]  # PyG rounds its scores to bf16
    for direction in ("fwd", "bwd", "fwd+bwd"):
        case = problem.case(direction)
        contenders = [GnnaggAttention("cpu"), *(rival for rival in rivals if rival.supports(case))]
        for result in harness.measure(contenders, case, SETTINGS):
            assert result.verdict == "ok", (direction, result)


@pytest.mark.parametrize("op", list(LAYERS))
def test_layers_have_the_output_and_gradients_of_pyg(op: str) -> None:
    needs("gat_attention")
    pytest.importorskip("torch_geometric")
    problem = LayerProblem(op, graphs.build("arxiv", CPU, scale=0.003), 6, 2, 4)
    for direction in ("fwd", "bwd", "fwd+bwd"):
        for result in harness.measure([GnnaggLayer("cpu"), PygLayer()], problem.case(direction), SETTINGS):
            assert result.verdict == "ok", (direction, result)


def test_a_layer_with_one_parameter_untrained_is_flagged() -> None:
    pytest.importorskip("torch_geometric")

    class Untrained(PygLayer):
        def bind(self, case: LayerCase) -> harness.Call:
            call = super().bind(case)
            return lambda x: (*call(x)[:-1], torch.zeros_like(call(x)[-1]))

    problem = LayerProblem("gat_layer", graphs.build("arxiv", CPU, scale=0.003), 6, 2, 4)
    (result,) = harness.measure([Untrained()], problem.case("fwd+bwd"), SETTINGS)
    assert result.verdict == "wrong"


@pytest.mark.parametrize("teleport", [0.0, 0.1])
def test_propagate_contenders_are_right(teleport: float) -> None:
    needs("propagate")
    pytest.importorskip("torch_geometric")
    problem = PropagateProblem(graphs.build("arxiv", CPU, scale=0.003), 4, 3, teleport)
    for direction in ("fwd", "fwd+bwd"):
        contenders = [OneCall("cpu"), HopByHop("cpu"), PygAppnp()]
        for result in harness.measure(contenders, problem.case(direction), SETTINGS):
            assert result.verdict == "ok", (direction, result)


@pytest.mark.parametrize(
    ("suite", "graph", "ops"),
    [
        ("published", "arxiv", {"gat", "gatv2", "dot"}),
        ("pyg", "arxiv", {"gat", "edge_softmax"}),
        ("ratios", "arxiv", {"gat"}),
        ("propagate", "small-1M", {"propagate"}),
        ("cpu", "computers", {"gat", "gat_layer"}),
    ],
)
def test_attention_suite_writes_a_valid_file(suite: str, graph: str, ops: set[str], tmp_path: Path) -> None:
    needs("gat_attention")
    pytest.importorskip("torch_geometric")
    arguments = ["--suite", suite, "--device", "cpu", "--quick", "--repeat", "1", "--only", graph, "--in-process"]
    threads = torch.get_num_threads()
    try:
        bench_attention.main([*arguments, "--out", str(tmp_path)])
    finally:
        torch.set_num_threads(threads)
    document = json.loads((tmp_path / "cpu" / f"attention_{suite}.json").read_text())
    results.validate(document)
    assert document["meta"]["complete"] and document["meta"]["failed"] == []
    assert {row["op"] for row in document["rows"]} == ops
    assert not [row for row in document["rows"] if str(row["note"]).startswith("ours ")]


def test_pyg_without_memory_is_replaced_by_its_published_time(monkeypatch: pytest.MonkeyPatch) -> None:
    needs("gat_attention")
    pytest.importorskip("torch_geometric")

    def out_of_memory(self: PygConv, *inputs: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(PygConv, "forward", out_of_memory)
    monkeypatch.setitem(published.PYG_GAT, "arxiv", (399.0, 111 << 30))
    parser = suites.argument_parser("", width=str)
    options = parser.parse_args(["--device", "cpu", "--quick", "--only", "arxiv", "--widths", "1x64", "--ops", "gat"])
    (cell,) = bench_attention.SUITES["pyg"].plan(options)(Watch())
    forward, backward, told = cell.measure()
    assert forward["opponent_verdict"] == backward["opponent_verdict"] == "failed: OutOfMemoryError CUDA out of memory"
    assert (told["opponent"], told["opponent_time_ms"]) == ("PyG eager (kernels table)", 399.0)
    assert (told["opponent_peak_bytes"], told["opponent_verdict"]) == (111 << 30, "published")
    assert told["ratio"] == pytest.approx(399.0 / told["time_ms"])


def test_published_attention_times_are_found_by_shape() -> None:
    find = published.published_times
    assert find("gat", "fwd+bwd", "fp32", "hub", "4x32") == [("dgNN (kernels table)", 1005.0)]
    assert find("dot", "fwd", "fp32", "products", "4x64") == [("turbo-gnn (kernels table)", 76.0)]
    assert find("gatv2", "fwd", "fp32", "hub", "4x64") == find("gat", "fwd", "bf16", "arxiv", "1x64") == []


# --- children that die ------------------------------------------------------------------------------------------------

SILENCE_S = 4.0


def row_of(cell: str, rivals: str = "") -> list[results.Row]:
    return [results.blank_row(op="sum", graph=cell, direction="fwd", mode="cpu", note=rivals or None)]


def fatal_cells(log: Path, death: str, watch: Watch) -> list[Cell]:
    """Three cells; in the second a rival dies, or ours does."""
    culprit, _, way = death.partition(" ")

    def measure(name: str) -> list[results.Row]:
        with log.open("a") as stream:
            stream.write(f"{name} {os.getpid()}\n")
        watch.starts("gnnagg", rival=False)
        if name == "b" and culprit == "ours":
            die(way)
        left_out = watch.reason_to_leave_out("opponent")
        if left_out is None:
            watch.starts("opponent", rival=True)
            if name == "b" and culprit == "rival":
                die(way)
        return row_of(name, left_out or "")

    return [Cell(name, "group", functools.partial(measure, name)) for name in "abc"]


def die(way: str) -> None:
    if way == "exits":
        os._exit(3)
    if way == "crashes":
        signal.raise_signal(signal.SIGKILL)
    if way == "hangs":
        time.sleep(600)
    if way == "device":
        raise isolation.DeviceLostError("illegal memory access")
    raise RuntimeError("out of luck")


def run_fatal(log: Path, death: str) -> list[Finished | Failed]:
    plan = functools.partial(fatal_cells, log, death)
    return list(isolation.isolated(plan, plan(Watch()), SILENCE_S))


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        ("exits", "exit status 3"),
        ("crashes", "killed by SIGKILL"),
        ("hangs", "no report for 4 s"),
        ("device", "illegal memory access"),
    ],
)
def test_a_rival_that_kills_its_child_costs_only_itself(way: str, reason: str, tmp_path: Path) -> None:
    outcomes = run_fatal(tmp_path / "log", f"rival {way}")
    assert [outcome for outcome in outcomes if isinstance(outcome, Failed)] == [Failed("b", f"opponent: {reason}")]
    finished = {outcome.cell: outcome.rows for outcome in outcomes if isinstance(outcome, Finished)}
    assert list(finished) == ["a", "b", "c"]
    assert [finished[name][0]["note"] for name in "abc"] == [None, f"failed: {reason}", None]
    runs = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    assert [name for name, _ in runs] == ["a", "b", "b", "c"]
    assert len({process for _, process in runs}) == 2


def test_a_cell_in_which_ours_dies_is_given_up(tmp_path: Path) -> None:
    outcomes = run_fatal(tmp_path / "log", "ours crashes")
    assert outcomes == [
        Finished("a", row_of("a")),
        Failed("b", "gnnagg: killed by SIGKILL"),
        Finished("c", row_of("c")),
    ]


def test_a_cell_that_raises_costs_no_child(tmp_path: Path) -> None:
    outcomes = run_fatal(tmp_path / "log", "ours raises")
    assert [type(outcome) for outcome in outcomes] == [Finished, Failed, Finished]
    assert outcomes[1] == Failed("b", "RuntimeError out of luck")
    assert len({line.split()[1] for line in (tmp_path / "log").read_text().splitlines()}) == 1


def plan_that_dies(parent: int, _watch: Watch) -> list[Cell]:
    if os.getpid() != parent:
        os._exit(7)
    return [Cell(name, "group", functools.partial(row_of, name)) for name in "ab"]


def test_a_child_that_dies_before_its_cells_fails_them_all() -> None:
    plan = functools.partial(plan_that_dies, os.getpid())
    outcomes = list(isolation.isolated(plan, plan(Watch()), SILENCE_S))
    assert outcomes == [Failed(name, "before any cell: exit status 7") for name in "ab"]


def logged_cells(run: suites.Run) -> list[Cell]:
    """Cells that note that they ran; the second one fails while the file `broken` is there."""
    folder = run.options.root

    def measure(name: str) -> list[results.Row]:
        with (folder / "log").open("a") as stream:
            stream.write(name)
        if name == "b" and (folder / "broken").exists():
            os._exit(1)
        return row_of(name)

    return [Cell(name, f"group {name}", functools.partial(measure, name)) for name in run.graph_names("abc")]


def no_targets(rows: list[results.Row]) -> list[results.Target]:
    return []


def test_resume_measures_what_the_same_commit_has_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = suites.Suite(logged_cells, no_targets)
    log, broken = tmp_path / "log", tmp_path / "broken"

    def run(*arguments: str) -> dict[str, Any]:
        log.write_text("")
        options = suites.argument_parser("").parse_args(
            ["--out", str(tmp_path), "--root", str(tmp_path), "--device", "cpu", *arguments]
        )
        path = suites.run_suite("trial_suite", suite, options)
        assert path is not None
        document: dict[str, Any] = json.loads(path.read_text())
        results.validate(document)
        return document

    monkeypatch.setenv("GNNAGG_COMMIT", "first")
    broken.touch()
    document = run("--only", "a,b")
    assert log.read_text() == "ab"
    assert document["meta"]["cells"] == ["a"] and not document["meta"]["complete"]
    assert document["meta"]["failed"] == [{"cell": "b", "reason": "exit status 1"}]
    assert document["meta"]["commit"] == "first"

    broken.unlink()
    document = run("--resume")
    assert log.read_text() == "bc"
    assert document["meta"]["cells"] == ["a", "b", "c"] and document["meta"]["complete"]
    assert document["meta"]["failed"] == []
    assert [row["graph"] for row in document["rows"]] == ["a", "b", "c"]

    assert run("--resume", "--in-process")["rows"] == document["rows"] and log.read_text() == ""
    monkeypatch.setenv("GNNAGG_COMMIT", "second")
    assert run("--resume", "--in-process")["meta"]["commit"] == "second"
    assert log.read_text() == "abc"


def test_rows_are_in_the_file_before_the_next_cell_begins(tmp_path: Path) -> None:
    seen = []

    def cells(run: suites.Run) -> list[Cell]:
        def measure(name: str) -> list[results.Row]:
            path = tmp_path / "cpu" / "trial_suite.json"
            seen.append(len(json.loads(path.read_text())["rows"]) if path.exists() else 0)
            return row_of(name)

        return [Cell(name, name, functools.partial(measure, name)) for name in "abc"]

    arguments = ["--out", str(tmp_path), "--device", "cpu", "--in-process"]
    suites.run_suite("trial_suite", suites.Suite(cells, no_targets), suites.argument_parser("").parse_args(arguments))
    assert seen == [0, 1, 2]


def test_a_left_out_rival_has_a_row_that_says_why() -> None:
    case = small_case()
    watch = Watch({"cell": {"scaled": "failed: killed by SIGSEGV"}}, "cell")
    settings = Settings(device=CPU, repeat=1, quick=True, watch=watch)
    rows = harness.run_case(case, Reference(), [Scaled(), OneRowWrong()], settings)
    assert [row["opponent_verdict"] for row in rows] == ["failed: killed by SIGSEGV", "wrong"]
    assert rows[0]["time_ms"] is not None and rows[0]["ratio"] is None


def test_cells_of_a_suite_have_names_of_their_own() -> None:
    options = suites.argument_parser("").parse_args(["--device", "cpu", "--root", "nowhere"])
    every = [*bench_aggregate.SUITES.items(), *bench_attention.SUITES.items()]
    for name, suite in every:
        cells = suite.plan(options)(Watch())
        assert cells, name
        assert len({cell.name for cell in cells}) == len(cells), name


def test_filters_choose_cells() -> None:
    options = suites.argument_parser("").parse_args(
        ["--device", "cpu", "--only", "reddit,hub", "--dtypes", "bf16", "--widths", "64,128"]
    )
    cells = bench_aggregate.SUITES["sum"].plan(options)(Watch())
    assert [cell.name for cell in cells] == [f"sum {g} F={f} bf16 fwd" for g in ("reddit", "hub") for f in (64, 128)]
    assert {cell.group for cell in cells} == {"reddit bf16", "hub bf16"}


# --- plots ------------------------------------------------------------------------------------------------------------


def test_plots_are_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks import plot

    case = small_case()
    measured = harness.measure([Reference(), Scaled()], case, SETTINGS)
    rows = harness.case_rows(case, measured[0], measured[1:], mode="cpu")
    path = results.write_results("trial", results.metadata(CPU), rows, tmp_path, CPU)
    assert [written.suffix for written in plot.plot_file(path)] == [".png", ".png"]
