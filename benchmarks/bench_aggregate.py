"""aggregate against its opponents and its own ceilings; one suite per result file.

    sum     sum, fp32 and bf16, F 16..256 on five graphs: cached cuSPARSE, torch.sparse, RoDe, torch-scatter, PyG
    max     max forward and forward + backward: turbo-gnn's times, torch-scatter
    ratio   our own ratios: share of the gather ceiling, hub rows, backward, launch modes, planning
    real    sum and max on real graphs (needs --root)
    cpu     sum and max on the CPU, ego-Twitter (needs --root) or the arxiv-like graph

Every suite prints its rows, then a table of targets, and writes results/<gpu>/aggregate_<suite>.json.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import graphs, harness, published, results, timing
from benchmarks.gather_ceiling import GatherCeiling
from benchmarks.graphs import GraphData
from benchmarks.harness import DTYPES, Case, Contender, Direction, Gnnagg, Measurement, Mode, Op, Settings, against
from benchmarks.opponents import choose
from benchmarks.results import Row, Target, blank_row, geometric_mean

QUICK_SCALE = 0.01
# Measured noise between two runs of one kernel: a ratio of 1 counts as met down to this.
NOISE = 0.02
SECONDS_BETWEEN_SAVES = 15.0
CUDA_MODES: tuple[Mode, ...] = ("cooperative", "staged", "auto")


# --- what a run selects -----------------------------------------------------------------------------------------------


class Run:
    """Options of one run and the graphs it has built; holds one graph at a time."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.settings: Settings = harness.settings_from(options)
        self.published = self.settings.device.type == "cuda" and (
            results.device_folder(self.settings.device) == published.GPU_FOLDER
        )

    def ours(self) -> Gnnagg:
        return Gnnagg("auto" if self.settings.device.type == "cuda" else "cpu")

    def graphs(self, default: Iterable[str]) -> Iterator[GraphData]:
        """The graphs of a suite, each released before the next is built."""
        for name in default:
            if self.options.graphs is not None and name not in self.options.graphs:
                continue
            begin = time.perf_counter()
            graph = self.build(name)
            print(f"{graph}  ({time.perf_counter() - begin:.1f} s to build)", flush=True)
            yield graph
            del graph
            timing.release_memory()

    def build(self, name: str) -> GraphData:
        scale = QUICK_SCALE if self.settings.quick and name not in graphs.REAL else 1.0
        return graphs.build(name, self.settings.device, scale=scale, root=self.options.root)

    def features(self, default: Iterable[int]) -> list[int]:
        wanted = self.options.features
        if wanted is None and self.settings.quick:
            return list(default)[:2]
        return [features for features in default if wanted is None or features in wanted]

    def dtypes(self, default: Iterable[str]) -> list[str]:
        wanted = self.options.dtypes
        return [name for name in default if wanted is None or name in wanted]

    def has_op(self, op: Op) -> bool:
        return self.options.ops is None or op in self.options.ops

    def opponents(self, default: Iterable[str]) -> list[Contender]:
        return choose(default, self.options.opponents)

    def published_for(self, case: Case) -> list[tuple[str, float]]:
        if not (self.published and case.graph.standard):
            return []
        key = (case.op, case.direction, case.dtype_name, case.graph.name, case.features)
        return published.published_times(*key)


def forward_cases(op: Op, graph: GraphData, dtype_name: str, widths: Sequence[int]) -> Iterator[Case]:
    """Forward cases of these widths on the leading columns of one x, so that one reference serves them all."""
    if not widths:
        return
    widest = harness.make_case(op, graph, max(widths), DTYPES[dtype_name]).with_reference()
    assert widest.reference is not None
    for width in widths:
        reference = widest.reference[:, :width]
        yield Case(op, graph, width, widest.dtype, "fwd", widest.x[:, :width].contiguous(), None, reference)


# --- suites -----------------------------------------------------------------------------------------------------------

FEATURES = (16, 32, 64, 128, 256)
SUM_OPPONENTS = ("torch.sparse", "cusparse-alg2", "cusparse-alg3")
MESSAGE_OPPONENTS = ("torch-scatter", "torch-scatter-csr", "pyg", "segment_reduce")
MESSAGE_CELL = ("arxiv", 64, "fp32")  # the graph, width and dtype on which gather-scatter opponents are timed


def suite_sum(run: Run) -> Iterator[Row]:
    """Sum forward against everything that computes it."""
    ours = run.ours()
    for graph in run.graphs(graphs.FIVE if run.has_op("sum") else ()):
        for dtype_name in run.dtypes(("fp32", "bf16")):
            for case in forward_cases("sum", graph, dtype_name, run.features(FEATURES)):
                default = list(SUM_OPPONENTS)
                if (graph.name, case.features, dtype_name) == MESSAGE_CELL:
                    default += MESSAGE_OPPONENTS
                opponents = run.opponents(default)
                prior = run.published_for(case)
                yield from harness.run_cell(case, ours, opponents, run.settings, published=prior)


def suite_max(run: Run) -> Iterator[Row]:
    """Max forward and forward + backward."""
    ours = run.ours()
    for graph in run.graphs(graphs.FIVE if run.has_op("max") else ()):
        widths = run.features((64, 128, 256) if graph.name in graphs.POWER_LAWS else (128,))
        for case in forward_cases("max", graph, "fp32", widths):
            yield from _max_cell(run, ours, case)
        for features in widths:
            case = harness.make_case("max", graph, features, torch.float32, "fwd+bwd")
            yield from _max_cell(run, ours, case)


def _max_cell(run: Run, ours: Gnnagg, case: Case) -> list[Row]:
    cell = (case.graph.name, case.features, case.dtype_name)
    opponents = run.opponents(MESSAGE_OPPONENTS) if cell == MESSAGE_CELL else []
    return harness.run_cell(case, ours, opponents, run.settings, published=run.published_for(case))


def suite_ratio(run: Run) -> Iterator[Row]:
    """What aggregate is compared with itself or with the machine."""
    cuda = run.settings.device.type == "cuda"
    sections: list[Callable[[Run], Iterator[Row]]] = [_hub_against_none, _backward_against_forward]
    if cuda:
        sections = [_share_of_ceiling, *sections, _launch_modes, _launch_modes_small]
    sections.append(_planning)
    for section in sections:
        begin = time.perf_counter()
        yield from section(run)
        print(f"  {section.__name__.strip('_')}: {time.perf_counter() - begin:.1f} s", flush=True)
        timing.release_memory()


def _share_of_ceiling(run: Run) -> Iterator[Row]:
    """Sum on rows of equal degree against the gather ceiling on the same ids and table size."""
    ours = run.ours()
    ceiling = GatherCeiling(run.settings.device)
    for graph in run.graphs(["uniform50"]):
        for dtype_name in run.dtypes(("fp32", "bf16")):
            for case in forward_cases("sum", graph, dtype_name, run.features(FEATURES)):
                row_bytes = case.features * case.x.element_size()
                if not 64 <= row_bytes <= 1024:
                    continue
                rate = ceiling.rate(graph.num_nodes, row_bytes, graph.col)
                row = harness.run_cell(case, ours, [], run.settings, ceiling_tb_s=rate)[0]
                yield row | {"note": row["note"] or f"ceiling {rate:.3g} TB/s"}


def _hub_against_none(run: Run) -> Iterator[Row]:
    """The gather rate on the hub graph over that on as many edges without a hub."""
    ours = run.ours()
    without_ms: dict[int, float | None] = {}
    for graph in run.graphs(["no-hub", "hub"]):
        for case in forward_cases("sum", graph, "fp32", run.features((64, 128))):
            row = harness.run_cell(case, ours, [], run.settings)[0]
            if graph.name == "no-hub":
                without_ms[case.features] = row["time_ms"]
                yield row
            else:
                yield against(row, "own time without hub", without_ms.get(case.features))


def _backward_against_forward(run: Run) -> Iterator[Row]:
    """Sum backward alone over sum forward; hub-by-source puts the hubs where backward meets them."""
    ours = run.ours()
    for graph in run.graphs(["arxiv", "reddit", "products", "uni4", "hub-by-source"]):
        for features in run.features((64, 128)):
            forward = harness.make_case("sum", graph, features, torch.float32, "fwd")
            backward = harness.make_case("sum", graph, features, torch.float32, "bwd")
            forward_row = harness.run_cell(forward, ours, [], run.settings)[0]
            backward_row = harness.run_cell(backward, ours, [], run.settings)[0]
            yield from [forward_row, against(backward_row, "own forward", forward_row["time_ms"])]


def _launch_modes(run: Run) -> Iterator[Row]:
    """Both launch modes and the automatic choice on the large graphs, eager calls without host time."""
    yield from _mode_section(run, graphs.FIVE, run.settings)


def _launch_modes_small(run: Run) -> Iterator[Row]:
    """The same on small graphs, per call of a replayed CUDA graph."""
    names = [f"small-{label}" for label in graphs.SMALL_EDGES]
    yield from _mode_section(run, names, replace(run.settings, timer="graph"), note="replayed CUDA graph")


def _mode_section(run: Run, names: Iterable[str], settings: Settings, note: str | None = None) -> Iterator[Row]:
    for graph in run.graphs(names):
        for dtype_name, features in _mode_cells(run):
            case = harness.make_case("sum", graph, features, DTYPES[dtype_name])
            measured = harness.measure([Gnnagg(mode) for mode in CUDA_MODES], case, settings)
            yield from _mode_rows(case, dict(zip(CUDA_MODES, measured, strict=True)), note)


def _mode_cells(run: Run) -> list[tuple[str, int]]:
    cells = (("fp32", 64), ("fp32", 128), ("bf16", 64), ("bf16", 128))
    dtypes, features = run.dtypes(("fp32", "bf16")), run.features((64, 128))
    return [cell for cell in cells if cell[0] in dtypes and cell[1] in features]


def _mode_rows(case: Case, measured: dict[Mode, Measurement], note: str | None = None) -> list[Row]:
    """Rows cooperative against staged, and auto against the better of the two."""
    staged_ms = measured["staged"].time_ms
    better_ms = min(filter(None, (staged_ms, measured["cooperative"].time_ms)), default=None)
    pairs: tuple[tuple[Mode, str, float | None], ...] = (
        ("cooperative", "own staged", staged_ms),
        ("auto", "own better mode", better_ms),
    )
    rows = []
    for mode, opponent, opponent_ms in pairs:
        row = harness.cell_rows(case, measured[mode], [], mode=mode)[0]
        rows.append(against(row, opponent, opponent_ms) | {"note": row["note"] or note})
    return rows


def _planning(run: Run) -> Iterator[Row]:
    """Building the graph, both directions, from an edge list in random order."""
    device = run.settings.device.type
    for graph in run.graphs(["small-200k", "products"]):
        edge_index = _shuffled_edges(graph)
        plan = functools.partial(_plan, nodes=graph.num_nodes)
        calls = 5 if graph.num_edges > 10_000_000 else 20
        yield blank_row(
            op="plan",
            graph=graph.name,
            shape=[graph.num_nodes, graph.num_edges],
            dtype=str(edge_index.dtype).removeprefix("torch."),
            direction="fwd+bwd",
            mode="auto" if device == "cuda" else "cpu",
            time_ms=_plan_time(plan, edge_index, calls, device),
            peak_bytes=timing.cuda_peak(functools.partial(plan, edge_index)) if device == "cuda" else None,
            note="both directions",
        )


def _shuffled_edges(graph: GraphData) -> torch.Tensor:
    generator = torch.Generator(device=graph.device).manual_seed(11)
    order = torch.randperm(graph.num_edges, generator=generator, device=graph.device)
    return torch.stack([graph.col[order].long(), graph.row[order].long()])


def _plan(edge_index: torch.Tensor, *, nodes: int) -> object:
    """Both directions of a graph that is in no cache."""
    package = harness.load_gnnagg()
    package.clear_graph_cache()
    graph = package.Graph.from_edge_index(edge_index, (nodes, nodes))
    return graph, graph.transpose


def _plan_time(plan: Callable[[torch.Tensor], object], edge_index: torch.Tensor, calls: int, device: str) -> float:
    """Median milliseconds."""
    for _ in range(2):
        plan(edge_index)
    if device == "cuda":
        return statistics.median(timing.cuda_times(plan, edge_index, "warm", calls, 0.0))
    times = []
    for _ in range(calls):
        begin = time.perf_counter()
        plan(edge_index)
        times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times)


def suite_real(run: Run) -> Iterator[Row]:
    """Sum and max on real graphs."""
    ours = run.ours()
    if run.options.root is None:
        print("suite real: the graphs are read from --root, which was not given", file=sys.stderr)
        return
    for graph in run.graphs(graphs.REAL):
        for op in _ops(run):
            for dtype_name in run.dtypes(("fp32", "bf16")):
                for case in forward_cases(op, graph, dtype_name, run.features((64, 128))):
                    opponents = run.opponents((*SUM_OPPONENTS, *MESSAGE_OPPONENTS))
                    yield from harness.run_cell(case, ours, opponents, run.settings)


CPU_OPPONENTS = ("torch.sparse", "torch.sparse.mm", "pyg", "torch-scatter-csr")


def suite_cpu(run: Run) -> Iterator[Row]:
    """Sum and max on the CPU; forward + backward without opponents unless they are named."""
    ours = run.ours()
    name = "ego-twitter" if run.options.root is not None and not run.settings.quick else "arxiv"
    cells: tuple[tuple[Direction, tuple[str, ...]], ...] = (("fwd", CPU_OPPONENTS), ("fwd+bwd", ()))
    for graph in run.graphs(run.options.graphs or [name]):
        for op in _ops(run):
            for dtype_name in run.dtypes(("fp32", "bf16")):
                for features in run.features((64,)):
                    for direction, usual in cells:
                        case = harness.make_case(op, graph, features, DTYPES[dtype_name], direction)
                        yield from harness.run_cell(case, ours, run.opponents(usual), run.settings)


def _ops(run: Run) -> list[Op]:
    every: tuple[Op, ...] = ("sum", "max")
    return [op for op in every if run.has_op(op)]


# --- targets ----------------------------------------------------------------------------------------------------------


def _ratios(rows: Iterable[Row], **wanted: object) -> dict[tuple[str, int], float]:
    """Ratio by (graph, F) of the rows with these fields, the smallest where several opponents are asked for."""
    found: dict[tuple[str, int], float] = {}
    for row in rows:
        if row["ratio"] is None or not all(_matches(row[key], value) for key, value in wanted.items()):
            continue
        cell = (row["graph"], row["shape"][-1])
        found[cell] = min(row["ratio"], found.get(cell, float("inf")))
    return found


def _matches(value: object, wanted: object) -> bool:
    return value in wanted if isinstance(wanted, tuple) else value == wanted


def _geomean_targets(text: str, ratios: dict[tuple[str, int], float], geomean: float, every: float) -> list[Target]:
    """Targets for the geometric mean and for the worst cell."""
    worst = min(ratios, key=lambda cell: ratios[cell], default=None)
    detail = f"{worst[0]} F={worst[1]}, {len(ratios)} cells" if worst else ""
    lowest = ratios[worst] if worst else None
    targets = [Target.at_least(f"{text}, every cell", every, lowest, detail)]
    if geomean:
        targets.insert(0, Target.at_least(f"{text}, geomean", geomean, geometric_mean(ratios.values())))
    return targets


def targets_sum(rows: list[Row]) -> list[Target]:
    cached = ("cusparse alg2", "cusparse alg3")
    targets: list[Target] = []
    for dtype_name, vs_cached, vs_torch in (("fp32", 1.35, 2.5), ("bf16", 1.6, 3.5)):
        chosen: dict[str, object] = {"op": "sum", "dtype": dtype_name, "direction": "fwd"}
        text = f"sum {dtype_name} vs cached cuSPARSE"
        ratios = _ratios(rows, opponent=cached, opponent_verdict="ok", **chosen)
        targets += _geomean_targets(text, ratios, vs_cached, 1.0)
        table = _ratios(rows, opponent="cusparse (kernels table)", **chosen)
        targets += _geomean_targets(f"{text} (kernels table)", table, vs_cached, 1.0)
        ratios = _ratios(rows, opponent="torch.sparse csr", **chosen)
        text = f"sum {dtype_name} vs torch.sparse, geomean"
        targets.append(Target.at_least(text, vs_torch, geometric_mean(ratios.values()), f"{len(ratios)} cells"))
    rode = _ratios(rows, op="sum", opponent="rode (kernels table)")
    targets += _geomean_targets("sum fp32 vs RoDe (kernels table)", rode, 0.0, 1.0)
    targets.append(_scatter_target(rows, "sum", 15))
    targets.append(_right(rows))
    return targets


def targets_max(rows: list[Row]) -> list[Target]:
    targets: list[Target] = []
    for direction, goal in (("fwd", 1.3), ("fwd+bwd", 1.5)):
        ratios = _ratios(rows, op="max", direction=direction, opponent="turbo-gnn (kernels table)")
        targets += _geomean_targets(f"max {direction} vs turbo-gnn (kernels table)", ratios, goal, 1.0)
    targets.append(_scatter_target(rows, "max", 50))
    targets.append(_right(rows))
    return targets


def _scatter_target(rows: list[Row], op: Op, goal: float) -> Target:
    graph, features, dtype_name = MESSAGE_CELL
    wanted = {"op": op, "direction": "fwd", "dtype": dtype_name, "graph": graph}
    by_name = {name: _ratios(rows, opponent=f"torch-scatter {name}", **wanted) for name in ("scatter", "segment_csr")}
    found = {name: ratios[graph, features] for name, ratios in by_name.items() if (graph, features) in ratios}
    detail = ", ".join(f"{name} {ratio:.3g}" for name, ratio in found.items())
    text = f"{op} vs torch-scatter scatter, {graph} F={features} {dtype_name}"
    return Target.at_least(text, goal, found.get("scatter"), detail)


def _right(rows: list[Row]) -> Target:
    """Every one of our results within tolerance of float64."""
    worst: dict[str, float] = {}
    for row in rows:
        if row["max_rel_error"] is not None:
            worst[row["dtype"]] = max(worst.get(row["dtype"], 0.0), row["max_rel_error"])
    failed = any(str(row["note"] or "").startswith("ours ") for row in rows)
    measured = ", ".join(f"{name} {error:.1e}" for name, error in worst.items())
    return Target(
        "largest scaled error of ours", "tolerance of the dtype", measured or "-", not failed if rows else None
    )


def targets_ratio(rows: list[Row]) -> list[Target]:
    shares = {}
    for row in rows:
        if row["ceiling_fraction"] is not None and row["dtype"] in ("fp32", "bf16"):
            row_bytes = row["shape"][-1] * DTYPES[row["dtype"]].itemsize
            if row_bytes >= 256:
                shares[f"F={row['shape'][-1]} {row['dtype']}"] = row["ceiling_fraction"]
    lowest = min(shares, key=lambda cell: shares[cell], default=None)
    share = shares[lowest] if lowest else None
    hubs = _ratios(rows, opponent="own time without hub")
    backward = _ratios(rows, opponent="own forward")
    cooperative = [row for row in rows if row["opponent"] == "own staged" and row["ratio"]]
    chosen = [row["ratio"] for row in rows if row["opponent"] == "own better mode" and row["ratio"]]
    slow = max((1 / ratio for ratio in chosen), default=None)
    slowest_backward = max(backward, key=lambda cell: 1 / backward[cell], default=None)
    plans = {row["graph"]: row["time_ms"] for row in rows if row["op"] == "plan"}
    wins = sum(row["ratio"] >= 1 for row in cooperative)
    return [
        Target.at_least("share of gather ceiling, rows >= 256 B", 0.9, share, lowest or ""),
        Target.at_least("hub gather rate / without hub", 0.9, min(hubs.values(), default=None)),
        Target.at_most(
            "sum backward / forward",
            1.15,
            1 / backward[slowest_backward] if slowest_backward else None,
            f"{slowest_backward[0]} F={slowest_backward[1]}" if slowest_backward else "",
        ),
        Target.at_most(
            f"auto / better launch mode, within {NOISE:.0%} noise",
            1 + NOISE,
            slow,
            f"cooperative wins {wins} of {len(cooperative)} cells",
        ),
        Target.at_most("planning products-like, both directions, ms", 40, plans.get("products")),
        Target.at_most("planning 200k edges, both directions, ms", 0.08, plans.get("small-200k")),
        _right(rows),
    ]


def targets_cpu(rows: list[Row]) -> list[Target]:
    def ratio(op: Op, opponent: str, dtype_name: str = "fp32") -> float | None:
        found = _ratios(rows, op=op, opponent=opponent, dtype=dtype_name, direction="fwd")
        return min(found.values(), default=None)

    def own(dtype_name: str, op: Op) -> float | None:
        wanted = {"op": op, "dtype": dtype_name, "direction": "fwd"}
        times = [row["time_ms"] for row in rows if all(row[key] == value for key, value in wanted.items())]
        return times[0] if times else None

    csr = ratio("sum", "torch.sparse csr")
    targets = [
        Target.at_most("cpu sum / torch.sparse csr", 0.95, 1 / csr if csr else None),
        Target.at_least("cpu max vs torch.sparse.mm reduce", 1.8, ratio("max", "torch.sparse.mm reduce")),
    ]
    for op in ("sum", "max"):
        half, single = own("bf16", op), own("fp32", op)
        share = half / single if half and single else None
        targets.append(Target.at_most(f"cpu {op} bf16 / fp32", 1.0, share))
    targets.append(Target.at_least("cpu sum vs PyG scatter", 35, ratio("sum", "pyg scatter")))
    targets.append(_right(rows))
    return targets


def targets_real(rows: list[Row]) -> list[Target]:
    cached = ("cusparse alg2", "cusparse alg3", "torch.sparse csr")
    ratios = _ratios(rows, op="sum", opponent=cached, opponent_verdict="ok")
    return [*_geomean_targets("real graphs: sum vs the fastest right product", ratios, 0.0, 1.0), _right(rows)]


SUITES: dict[str, tuple[Callable[[Run], Iterator[Row]], Callable[[list[Row]], list[Target]]]] = {
    "sum": (suite_sum, targets_sum),
    "max": (suite_max, targets_max),
    "ratio": (suite_ratio, targets_ratio),
    "real": (suite_real, targets_real),
    "cpu": (suite_cpu, targets_cpu),
}


# --- main -------------------------------------------------------------------------------------------------------------


def run_suite(name: str, run: Run) -> None:
    """Runs one suite; its file is written now and then, so that a run that is cut short leaves what it has."""
    suite, targets_of = SUITES[name]
    begin = saved = time.perf_counter()
    rows: list[Row] = []

    def save(complete: bool) -> Path:
        seconds = time.perf_counter() - begin
        summary = [vars(target) for target in targets_of(rows)]
        facts = {
            "suite": name,
            "cache": run.settings.cache,
            "timer": run.settings.timer,
            "seconds": seconds,
            "complete": complete,
        }
        meta = results.metadata(run.settings.device, **facts, targets=summary)
        return results.write_results(f"aggregate_{name}", meta, rows, run.options.out, run.settings.device)

    for row in suite(run):
        rows.append(row)
        if time.perf_counter() - saved > SECONDS_BETWEEN_SAVES:
            save(complete=False)
            saved = time.perf_counter()
    if not rows:
        return
    results.print_rows(f"aggregate: {name}", rows)
    results.print_targets(f"targets: {name}", targets_of(rows))
    path = save(complete=True)
    print(f"\nwritten: {path.parent.name}/{path.name} in {time.perf_counter() - begin:.0f} s", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = harness.argument_parser((__doc__ or "").split("\n")[0])
    parser.add_argument("--suite", choices=(*SUITES, "all"), default="all")
    options = parser.parse_args(arguments)
    if options.suite == "cpu":
        options.device = "cpu"
    names = [options.suite]
    if options.suite == "all":
        names = ["cpu"] if options.device == "cpu" else [name for name in SUITES if name != "cpu"]
    for name in names:
        run_suite(name, Run(options))


if __name__ == "__main__":
    main()
