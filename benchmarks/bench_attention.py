"""Attention and K-hop propagation against their opponents and themselves; one suite per result file.

    published  gat, gatv2, dot, forward and forward + backward, on five graphs: the times of dgNN and turbo-gnn
    pyg        gat against what PyG's GATConv does after its linear layer; edge_softmax against PyG's softmax
    layers     whole layers: GAT, GATv2, Transformer against PyG's, eager and compiled
    ratios     our own ratios: backward, the sum, bf16, hub rows, launch modes
    propagate  ten hops in one call, against ten calls of aggregate and PyG's APPNP
    cpu        gat and a whole GAT layer on the CPU, two threads

Every suite writes results/<gpu>/attention_<suite>.json, cell by cell, and prints its rows and a table of targets. A
time `fwd` is that of a training forward. --widths takes shapes, for instance 1x64,4x32.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import aggregate_cases, attention_targets, graphs, harness, published, suites
from benchmarks.attention_cases import GnnaggAttention, Problem, shape_of
from benchmarks.attention_opponents import PygConv, PygSoftmax
from benchmarks.attention_targets import PYG_TABLE
from benchmarks.harness import DTYPES, Case, Contender, Direction, Mode, against
from benchmarks.isolation import Cell
from benchmarks.layer_cases import LAYERS, GnnaggLayer, LayerProblem, PygLayer
from benchmarks.propagate_cases import HopByHop, OneCall, PropagateProblem, PygAppnp
from benchmarks.results import Row
from benchmarks.suites import Suite
from benchmarks.timing import Timer

SHAPES = {
    "gat": ("1x64", "8x8", "4x32", "4x64"),
    "gatv2": ("1x64", "4x32", "4x64"),
    "dot": ("1x64", "4x32", "4x64"),
}
DIRECTIONS: tuple[Direction, ...] = ("fwd", "fwd+bwd")
LAYER_SHAPE, LAYER_INPUT = "4x32", 128
PYG_CELLS = {"arxiv": SHAPES["gat"], "reddit": ("1x64",)}
HOPS, HOP_FEATURES = 10, 64
CPU_GRAPH, CPU_SHAPE, CPU_INPUT, CPU_THREADS = "computers", "8x8", 767, 2
TIMERS: dict[Timer, str] = {
    "events": "device time",
    "stream": "eager, wall clock",
    "graph": "replayed CUDA graph",
    "synchronised": "eager, each call waited for",
}


class Run(suites.Run):
    """Adds the cases of attention."""

    @property
    def mode(self) -> Mode:
        return "auto" if self.cuda else "cpu"

    def shapes(self, default: Iterable[str]) -> list[str]:
        wanted = self.options.features
        if wanted is None and self.settings.quick:
            return list(default)[:2]
        return [shape for shape in default if wanted is None or shape in wanted]

    def ops(self, default: Iterable[str]) -> list[str]:
        return [op for op in default if self.has_op(op)]

    @functools.lru_cache(maxsize=1)  # noqa: B019 the run lives as long as its process
    def problem(self, op: str, name: str, shape: str, dtype_name: str) -> Problem:
        """The last one is kept, with its reference."""
        return Problem(op, self.graph(name), *shape_of(shape), DTYPES[dtype_name])

    def rows(self, case: Case, ours: Contender, rivals: Sequence[Contender] = (), **more: object) -> list[Row]:
        """Ours against the rivals, unless the command line wants none or only some of them."""
        wanted = self.options.opponents
        chosen = [rival for rival in rivals if wanted is None or rival.name in wanted]
        return harness.run_case(case, ours, chosen, self.settings, **more)  # type: ignore[arg-type]

    def own_row(self, case: Case) -> Row:
        return self.rows(case, GnnaggAttention(self.mode))[0]

    def published_for(self, case: Case, shape: str) -> list[tuple[str, float]]:
        """Rivals were measured in fp32 only; a bf16 row is set beside the fp32 time, and says so."""
        if not (self.published and case.graph.standard):
            return []
        found = published.published_times(case.op, case.direction, "fp32", case.graph.name, shape)
        if case.dtype == torch.float32:
            return found
        return [(name.replace(" (", " fp32 ("), time_ms) for name, time_ms in found]


# --- against opponents ------------------------------------------------------------------------------------------------


def cells_published(run: Run) -> Iterator[Cell]:
    for name in run.graph_names(graphs.FIVE):
        for dtype_name in run.dtypes(("fp32", "bf16")):
            for op in run.ops(SHAPES):
                for shape in run.shapes(SHAPES[op]):
                    measure = functools.partial(_published_rows, run, op, name, shape, dtype_name)
                    yield Cell(f"{op} {name} {shape} {dtype_name}", f"{name} {dtype_name}", measure)


def _published_rows(run: Run, op: str, name: str, shape: str, dtype_name: str) -> list[Row]:
    problem, ours = run.problem(op, name, shape, dtype_name), GnnaggAttention(run.mode)
    cases = [problem.case(direction) for direction in DIRECTIONS]
    return [row for case in cases for row in run.rows(case, ours, published=run.published_for(case, shape))]


def cells_pyg(run: Run) -> Iterator[Cell]:
    for name in run.graph_names(PYG_CELLS):
        for op in run.ops(("gat", "edge_softmax")):
            for shape in run.shapes(PYG_CELLS[name] if op == "gat" else ("4x1",)):
                for dtype_name in run.dtypes(("fp32",)):
                    measure = functools.partial(_pyg_rows, run, op, name, shape, dtype_name)
                    yield Cell(f"{op} {name} {shape} {dtype_name}", f"{name} {op}", measure)


def _pyg_rows(run: Run, op: str, name: str, shape: str, dtype_name: str) -> list[Row]:
    problem, ours = run.problem(op, name, shape, dtype_name), GnnaggAttention(run.mode)
    rows = []
    for direction in DIRECTIONS:
        found = run.rows(problem.case(direction), ours, [PygConv(), PygSoftmax()])
        rows += found
        failed = any(str(row["opponent_verdict"]).startswith("failed") for row in found)
        if op == "gat" and direction == "fwd+bwd" and failed and shape == "1x64" and name in published.PYG_GAT:
            time_ms, peak_bytes = published.PYG_GAT[name]
            told = {"opponent_verdict": "published", "opponent_peak_bytes": peak_bytes}
            rows.append(against(_without_opponent(found[0]) | told, PYG_TABLE, time_ms))
    return rows


def _without_opponent(row: Row) -> Row:
    return row | {key: None for key in row if key.startswith("opponent")}


def cells_layers(run: Run) -> Iterator[Cell]:
    for name in run.graph_names(["arxiv"]):
        for op in run.ops(LAYERS):
            for shape in run.shapes((LAYER_SHAPE,)):
                yield Cell(f"{op} {name} {shape}", op, functools.partial(_layer_rows, run, op, name, shape))


def _layer_rows(run: Run, op: str, name: str, shape: str) -> list[Row]:
    problem = LayerProblem(op, run.graph(name), LAYER_INPUT, *shape_of(shape))
    rivals = [PygLayer(), PygLayer(compiled=True)]
    cases = [problem.case(direction) for direction in DIRECTIONS]
    return [row for case in cases for row in run.rows(case, GnnaggLayer(run.mode), rivals)]


def cells_propagate(run: Run) -> Iterator[Cell]:
    for label in graphs.SMALL_EDGES:
        for name in run.graph_names([f"small-{label}"]):
            for teleport in (0.0, 0.1):
                for direction in DIRECTIONS:
                    # Backward is the same op on the transpose, so a replayed graph of it would tell nothing new.
                    timers: tuple[Timer, ...] = ("stream", "graph") if direction == "fwd" else ("stream",)
                    for timer in timers if run.cuda else ("events",):
                        measure = functools.partial(_propagate_rows, run, name, teleport, direction, timer)
                        yield Cell(f"{name} teleport {teleport:g} {direction} {timer}", "small", measure)


def _propagate_rows(run: Run, name: str, teleport: float, direction: Direction, timer: Timer) -> list[Row]:
    run = _with_timer(run, timer)
    case = PropagateProblem(run.graph(name), HOP_FEATURES, HOPS, teleport).case(direction)
    rows = run.rows(case, OneCall(run.mode), [HopByHop(run.mode), PygAppnp()])
    return _noted(rows, f"{HOPS} hops, teleport {teleport:g}, {_described(run, timer)}")


# --- against ourselves ------------------------------------------------------------------------------------------------


def cells_ratios(run: Run) -> Iterator[Cell]:
    """Backward, sum and half precision on every graph; hubs; launch modes."""
    for name in run.graph_names([*graphs.FIVE, "hub-by-source"]):
        for shape in run.shapes(("1x64", "8x8", "4x32")):
            yield Cell(f"gat {name} {shape}", name, functools.partial(_self_rows, run, name, shape))
    for shape in run.shapes(("1x64", "4x32")) if run.graph_names(["hub"]) else ():
        yield Cell(f"hub against none {shape}", "hub", functools.partial(_hub_rows, run, shape))
    for label in ("50k", "200k") if run.cuda else ():
        for name in run.graph_names([f"small-{label}"]):
            for shape in run.shapes(("4x32",)):
                for direction in DIRECTIONS:
                    for timer in TIMERS:
                        measure = functools.partial(_mode_rows, run, name, shape, direction, timer)
                        yield Cell(f"launch modes {name} {shape} {direction} {timer}", "small", measure)


def _self_rows(run: Run, name: str, shape: str) -> list[Row]:
    """For each dtype: forward against the sum, backward against forward, and both against fp32."""
    rows: list[Row] = []
    single: dict[Direction, float | None] = {}
    heads, channels = shape_of(shape)
    for dtype_name in run.dtypes(("fp32", "bf16")):
        problem = run.problem("gat", name, shape, dtype_name)
        forward, backward = (run.own_row(problem.case(direction)) for direction in ("fwd", "bwd"))
        case = aggregate_cases.make_case("sum", run.graph(name), heads * channels, DTYPES[dtype_name])
        total = run.rows(case, aggregate_cases.Gnnagg(run.mode))[0]
        rows.append(against(forward, "own sum", total["time_ms"]))
        rows.append(against(backward, "own forward", forward["time_ms"]))
        if dtype_name == "fp32":
            single = {"fwd": forward["time_ms"], "bwd": backward["time_ms"]}
        elif single:
            rows += [against(row, "own fp32", single[row["direction"]]) for row in (forward, backward)]
    return rows


def _hub_rows(run: Run, shape: str) -> list[Row]:
    """One row with a fifth of the edges, against as many edges without a hub."""
    without: dict[Direction, Row] = {}
    rows: list[Row] = []
    for name in ("no-hub", "hub"):
        problem = run.problem("gat", name, shape, "fp32")
        for direction in ("fwd", "bwd"):
            row = run.own_row(problem.case(direction))
            if name == "no-hub":
                without[direction] = row
                rows.append(row)
            else:
                rows.append(against(row, "own time without hub", without[direction]["time_ms"]))
    return rows


def _mode_rows(run: Run, name: str, shape: str, direction: Direction, timer: Timer) -> list[Row]:
    run = _with_timer(run, timer)
    case = run.problem("gat", name, shape, "fp32").case(direction)
    modes: tuple[Mode, ...] = ("cooperative", "staged", "auto")
    measured = dict(zip(modes, harness.measure([GnnaggAttention(m) for m in modes], case, run.settings), strict=True))
    rows = []
    for mode in ("cooperative", "auto"):
        row = harness.case_rows(case, measured[mode], [], mode=mode)[0]
        rows.append(against(row, "own staged", measured["staged"].time_ms))
    return _noted(rows, TIMERS[timer])


def _with_timer(run: Run, timer: Timer) -> Run:
    """The same run, graphs included, timed this way."""
    timed = copy.copy(run)
    timed.settings = replace(run.settings, timer=timer)
    return timed


def _described(run: Run, timer: Timer) -> str:
    return TIMERS[timer] if run.cuda else "CPU"


def _noted(rows: Iterable[Row], note: str) -> list[Row]:
    return [row | {"note": row["note"] or note} for row in rows]


# --- CPU --------------------------------------------------------------------------------------------------------------


def cells_cpu(run: Run) -> Iterator[Cell]:
    torch.set_num_threads(CPU_THREADS)
    for name in run.options.graphs or [CPU_GRAPH]:
        for shape in run.shapes((CPU_SHAPE,)):
            for op in run.ops(("gat", "gat_layer")):
                yield Cell(f"{op} {name} {shape}", name, functools.partial(_cpu_rows, run, op, name, shape))


def _cpu_rows(run: Run, op: str, name: str, shape: str) -> list[Row]:
    rows = []
    for direction in DIRECTIONS:
        if op == "gat":
            rows += run.rows(run.problem(op, name, shape, "fp32").case(direction), GnnaggAttention("cpu"), [PygConv()])
        else:
            problem = LayerProblem(op, run.graph(name), CPU_INPUT, *shape_of(shape))
            rows += run.rows(problem.case(direction), GnnaggLayer("cpu"), [PygLayer()])
    return _noted(rows, f"{CPU_THREADS} threads")


# --- main -------------------------------------------------------------------------------------------------------------

SUITES: dict[str, Suite] = {
    "published": Suite(cells_published, attention_targets.targets_published, Run),
    "pyg": Suite(cells_pyg, attention_targets.targets_pyg, Run),
    "layers": Suite(cells_layers, attention_targets.targets_layers, Run),
    "ratios": Suite(cells_ratios, attention_targets.targets_ratios, Run),
    "propagate": Suite(cells_propagate, attention_targets.targets_propagate, Run),
    "cpu": Suite(cells_cpu, attention_targets.targets_cpu, Run),
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = suites.argument_parser((__doc__ or "").split("\n")[0], width=str)
    parser.add_argument("--suite", choices=(*SUITES, "all"), default="all")
    options = parser.parse_args(arguments)
    suites.main("attention", SUITES, options)


if __name__ == "__main__":
    main()
