"""aggregate against its opponents and its own ceilings; one suite per result file.

    sum     sum, fp32 and bf16, F 16..256 on five graphs: cached cuSPARSE, torch.sparse, RoDe, torch-scatter, PyG
    max     max forward and forward + backward: turbo-gnn's times, torch-scatter
    ratio   our own ratios: share of the gather ceiling, hub rows, backward, launch modes, planning
    real    sum and max on real graphs (needs --root)
    cpu     sum and max on the CPU, ego-Twitter (needs --root) or the arxiv-like graph

Every suite writes results/<gpu>/aggregate_<suite>.json, cell by cell, and prints its rows and a table of targets.
"""

from __future__ import annotations

import functools
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import aggregate_targets, graphs, harness, opponents, published, suites, timing
from benchmarks.aggregate_cases import AggregateCase, AggregateContender, Gnnagg, Op, make_case
from benchmarks.aggregate_targets import MESSAGE_CELL
from benchmarks.gather_ceiling import GatherCeiling
from benchmarks.graphs import GraphData
from benchmarks.harness import DTYPES, Direction, Measurement, Mode, Settings, against
from benchmarks.isolation import Cell
from benchmarks.results import Row, blank_row
from benchmarks.suites import Suite

FEATURES = (16, 32, 64, 128, 256)
SUM_OPPONENTS = ("torch.sparse", "cusparse-alg2", "cusparse-alg3")
MESSAGE_OPPONENTS = ("torch-scatter", "torch-scatter-csr", "pyg", "segment_reduce")
CPU_OPPONENTS = ("torch.sparse", "torch.sparse.mm", "pyg", "torch-scatter-csr")
CUDA_MODES: tuple[Mode, ...] = ("cooperative", "staged", "auto")


class Run(suites.Run):
    """Adds the cases and opponents of aggregate."""

    def ours(self) -> Gnnagg:
        return Gnnagg("auto" if self.cuda else "cpu")

    def ops(self) -> list[Op]:
        every: tuple[Op, ...] = ("sum", "max")
        return [op for op in every if self.has_op(op)]

    def opponents(self, default: Iterable[str]) -> list[AggregateContender]:
        return opponents.choose(default, self.options.opponents)

    def rows(self, case: AggregateCase, usual_opponents: Iterable[str] = ()) -> list[Row]:
        """Ours against these opponents and the published times."""
        prior: list[tuple[str, float]] = []
        if self.published and case.graph.standard:
            key = (case.op, case.direction, case.dtype_name, case.graph.name, case.features)
            prior = published.published_times(*key)
        return harness.run_case(case, self.ours(), self.opponents(usual_opponents), self.settings, published=prior)

    def own_row(self, case: AggregateCase, ceiling_tb_s: float | None = None) -> Row:
        return harness.run_case(case, self.ours(), [], self.settings, ceiling_tb_s=ceiling_tb_s)[0]

    def forward_case(self, op: Op, name: str, dtype_name: str, features: int, widths: Sequence[int]) -> AggregateCase:
        """The leading columns of one x, as wide as the widest, so that one reference serves all widths."""
        widest = self._widest(op, name, dtype_name, max(widths))
        assert widest.reference is not None
        x, reference = widest.x[:, :features].contiguous(), widest.reference[:, :features]
        return replace(widest, x=x, reference=reference)

    @functools.lru_cache(maxsize=1)  # noqa: B019 the run lives as long as its process
    def _widest(self, op: Op, name: str, dtype_name: str, features: int) -> AggregateCase:
        return make_case(op, self.graph(name), features, DTYPES[dtype_name]).with_reference()

    @functools.cached_property
    def ceiling(self) -> GatherCeiling:
        return GatherCeiling(self.settings.device)


# --- against opponents ------------------------------------------------------------------------------------------------


def cells_sum(run: Run) -> Iterator[Cell]:
    """Sum forward against everything that computes it."""
    for name in run.graph_names(graphs.FIVE if run.has_op("sum") else ()):
        for dtype_name in run.dtypes(("fp32", "bf16")):
            yield from _forward_cells(run, "sum", name, dtype_name, run.features(FEATURES), SUM_OPPONENTS)


def cells_max(run: Run) -> Iterator[Cell]:
    """Max forward and forward + backward."""
    for name in run.graph_names(graphs.FIVE if run.has_op("max") else ()):
        widths = run.features((64, 128, 256) if name in graphs.POWER_LAWS else (128,))
        yield from _forward_cells(run, "max", name, "fp32", widths, ())
        for features in widths:

            def measure(name: str = name, features: int = features) -> list[Row]:
                case = make_case("max", run.graph(name), features, torch.float32, "fwd+bwd")
                return run.rows(case, _message_opponents(name, features, "fp32"))

            yield Cell(f"max {name} F={features} fp32 fwd+bwd", f"{name} fp32", measure)


def _forward_cells(
    run: Run, op: Op, name: str, dtype_name: str, widths: Sequence[int], usual_opponents: tuple[str, ...]
) -> Iterator[Cell]:
    for features in widths:
        usual = (*usual_opponents, *_message_opponents(name, features, dtype_name))

        def measure(features: int = features, usual: tuple[str, ...] = usual) -> list[Row]:
            return run.rows(run.forward_case(op, name, dtype_name, features, widths), usual)

        yield Cell(f"{op} {name} F={features} {dtype_name} fwd", f"{name} {dtype_name}", measure)


def _message_opponents(name: str, features: int, dtype_name: str) -> tuple[str, ...]:
    return MESSAGE_OPPONENTS if (name, features, dtype_name) == MESSAGE_CELL else ()


def cells_real(run: Run) -> Iterator[Cell]:
    """Sum and max on real graphs."""
    if run.options.root is None:
        print("suite real: the graphs are read from --root, which was not given", file=sys.stderr)
        return
    everyone = (*SUM_OPPONENTS, *MESSAGE_OPPONENTS)
    for name in run.graph_names(graphs.REAL):
        for op in run.ops():
            for dtype_name in run.dtypes(("fp32", "bf16")):
                for cell in _forward_cells(run, op, name, dtype_name, run.features((64, 128)), everyone):
                    yield replace(cell, group=name)


def cells_cpu(run: Run) -> Iterator[Cell]:
    """Sum and max on the CPU; forward + backward without opponents unless they are named."""
    usual = "ego-twitter" if run.options.root is not None and not run.settings.quick else "arxiv"
    directions: tuple[tuple[Direction, tuple[str, ...]], ...] = (("fwd", CPU_OPPONENTS), ("fwd+bwd", ()))
    for name in run.options.graphs or [usual]:
        for op in run.ops():
            for dtype_name in run.dtypes(("fp32", "bf16")):
                for features in run.features((64,)):
                    for direction, default in directions:
                        measure = functools.partial(_cpu_rows, run, op, name, features, dtype_name, direction, default)
                        yield Cell(f"{op} {name} F={features} {dtype_name} {direction}", name, measure)


def _cpu_rows(
    run: Run, op: Op, name: str, features: int, dtype_name: str, direction: Direction, default: tuple[str, ...]
) -> list[Row]:
    return run.rows(make_case(op, run.graph(name), features, DTYPES[dtype_name], direction), default)


# --- against ourselves and the machine --------------------------------------------------------------------------------


def cells_ratio(run: Run) -> Iterator[Cell]:
    """What aggregate is compared with itself or with the machine."""
    sections: list[Callable[[Run], Iterator[Cell]]] = [_hub_against_none, _backward_against_forward]
    if run.cuda:
        sections = [_share_of_ceiling, *sections, _launch_modes, _launch_modes_small]
    for section in [*sections, _planning]:
        title = section.__name__.strip("_").replace("_", " ")
        for cell in section(run):
            yield replace(cell, name=f"{title}: {cell.name}")


def _share_of_ceiling(run: Run) -> Iterator[Cell]:
    """Sum on rows of equal degree against the gather ceiling on the same ids and table size."""
    for name in run.graph_names(["uniform50"]):
        for dtype_name in run.dtypes(("fp32", "bf16")):
            widths = run.features(FEATURES)
            for features in widths:
                row_bytes = features * DTYPES[dtype_name].itemsize
                if 64 <= row_bytes <= 1024:
                    measure = functools.partial(_ceiling_rows, run, name, dtype_name, features, widths)
                    yield Cell(f"{name} F={features} {dtype_name}", name, measure)


def _ceiling_rows(run: Run, name: str, dtype_name: str, features: int, widths: Sequence[int]) -> list[Row]:
    graph, row_bytes = run.graph(name), features * DTYPES[dtype_name].itemsize
    rate = run.ceiling.rate(graph.num_nodes, row_bytes, graph.col)
    row = run.own_row(run.forward_case("sum", name, dtype_name, features, widths), rate)
    return [row | {"note": row["note"] or f"ceiling {rate:.3g} TB/s"}]


def _hub_against_none(run: Run) -> Iterator[Cell]:
    """The gather rate on the hub graph over that on as many edges without a hub."""
    for features in run.features((64, 128)) if run.graph_names(["hub"]) else ():

        def measure(features: int = features) -> list[Row]:
            without, hub = (
                run.own_row(make_case("sum", run.graph(name), features, torch.float32)) for name in ("no-hub", "hub")
            )
            return [without, against(hub, "own time without hub", without["time_ms"])]

        yield Cell(f"F={features}", "hub", measure)


def _backward_against_forward(run: Run) -> Iterator[Cell]:
    """Sum backward alone over sum forward; hub-by-source puts the hubs where backward meets them."""
    for name in run.graph_names(["arxiv", "reddit", "products", "uni4", "hub-by-source"]):
        for features in run.features((64, 128)):

            def measure(name: str = name, features: int = features) -> list[Row]:
                cases = [
                    make_case("sum", run.graph(name), features, torch.float32, direction)
                    for direction in ("fwd", "bwd")
                ]
                forward, backward = map(run.own_row, cases)
                return [forward, against(backward, "own forward", forward["time_ms"])]

            yield Cell(f"{name} F={features}", name, measure)


def _launch_modes(run: Run) -> Iterator[Cell]:
    """Both launch modes and the automatic choice on the large graphs, eager calls without host time."""
    for name in run.graph_names(graphs.FIVE):
        yield from _mode_cells(run, name, name, run.settings)


def _launch_modes_small(run: Run) -> Iterator[Cell]:
    """The same on small graphs, per call of a replayed CUDA graph."""
    for name in run.graph_names([f"small-{label}" for label in graphs.SMALL_EDGES]):
        yield from _mode_cells(run, name, "small", replace(run.settings, timer="graph"), "replayed CUDA graph")


def _mode_cells(run: Run, name: str, group: str, settings: Settings, note: str | None = None) -> Iterator[Cell]:
    for dtype_name in run.dtypes(("fp32", "bf16")):
        for features in run.features((64, 128)):

            def measure(dtype_name: str = dtype_name, features: int = features) -> list[Row]:
                case = make_case("sum", run.graph(name), features, DTYPES[dtype_name])
                measured = harness.measure([Gnnagg(mode) for mode in CUDA_MODES], case, settings)
                return _mode_rows(case, dict(zip(CUDA_MODES, measured, strict=True)), note)

            yield Cell(f"{name} F={features} {dtype_name}", group, measure)


def _mode_rows(case: AggregateCase, measured: dict[Mode, Measurement], note: str | None = None) -> list[Row]:
    """Rows cooperative against staged, and auto against the better of the two."""
    staged_ms = measured["staged"].time_ms
    better_ms = min(filter(None, (staged_ms, measured["cooperative"].time_ms)), default=None)
    pairs: tuple[tuple[Mode, str, float | None], ...] = (
        ("cooperative", "own staged", staged_ms),
        ("auto", "own better mode", better_ms),
    )
    rows = []
    for mode, opponent, opponent_ms in pairs:
        row = harness.case_rows(case, measured[mode], [], mode=mode)[0]
        rows.append(against(row, opponent, opponent_ms) | {"note": row["note"] or note})
    return rows


def _planning(run: Run) -> Iterator[Cell]:
    """Building the graph, both directions, from an edge list in random order."""
    for name in run.graph_names(["small-200k", "products"]):
        group = "small" if name.startswith("small") else name
        yield Cell(name, group, functools.partial(_planning_rows, run, name))


def _planning_rows(run: Run, name: str) -> list[Row]:
    device = run.settings.device.type
    graph = run.graph(name)
    edge_index = _shuffled_edges(graph)
    plan = functools.partial(_plan, nodes=graph.num_nodes)
    calls = 5 if graph.num_edges > 10_000_000 else 20
    row = blank_row(
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
    return [row]


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


# --- main -------------------------------------------------------------------------------------------------------------

SUITES: dict[str, Suite] = {
    "sum": Suite(cells_sum, aggregate_targets.targets_sum, Run),
    "max": Suite(cells_max, aggregate_targets.targets_max, Run),
    "ratio": Suite(cells_ratio, aggregate_targets.targets_ratio, Run),
    "real": Suite(cells_real, aggregate_targets.targets_real, Run),
    "cpu": Suite(cells_cpu, aggregate_targets.targets_cpu, Run),
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = suites.argument_parser((__doc__ or "").split("\n")[0])
    parser.add_argument("--suite", choices=(*SUITES, "all"), default="all")
    options = parser.parse_args(arguments)
    suites.main("aggregate", SUITES, options)


if __name__ == "__main__":
    main()
