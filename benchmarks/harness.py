"""Runs contenders on cases: checks each output against float64, then times it.

A *case* is one cell: operation, graph, feature count, dtype, direction. A *contender* computes a case; ours and the
opponents are contenders alike. `run_cell` returns one row per opponent. A contender whose output is wrong keeps its
time but is marked wrong, with its error; one that raises is marked failed, with the reason.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import math
import os
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor

from benchmarks import checking, timing
from benchmarks.graphs import GraphData
from benchmarks.results import ROOT, Row, blank_row, finite

__all__ = [
    "DTYPES",
    "Case",
    "Contender",
    "Direction",
    "Gnnagg",
    "Measurement",
    "Mode",
    "Op",
    "Settings",
    "argument_parser",
    "cell_rows",
    "gather_rate",
    "load_gnnagg",
    "make_case",
    "measure",
    "run_cell",
    "settings_from",
]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}

Op = Literal["sum", "max"]
Direction = Literal["fwd", "bwd", "fwd+bwd"]
Mode = Literal["cooperative", "staged", "auto", "cpu"]

SMALLEST_GATHER_BYTES = 64  # of memory traffic per gathered row, however short the row
LONGEST_REASON = 100  # characters


@dataclass(frozen=True)
class Settings:
    device: torch.device
    repeat: int | None = None  # timed calls (CPU: rounds); None: as many as fit in budget_ms, within limits
    budget_ms: float = 120.0
    cache: timing.Cache = "warm"
    timer: timing.Timer = "events"
    quick: bool = False


# --- cases ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Case:
    op: Op
    graph: GraphData
    features: int
    dtype: torch.dtype
    direction: Direction
    x: Tensor  # [N, F]
    grad: Tensor | None = None  # [N, F], gradient of the result; None for forward cases
    reference: Tensor | None = None  # float64 [N, F] or [N, len(columns)]; None: computed when needed
    columns: Tensor | None = None  # the columns that the reference covers; None: all
    scale: Tensor | None = None  # of the errors, shaped like the reference; None: by row

    @property
    def shape(self) -> list[int]:
        return [self.graph.num_nodes, self.features]

    @property
    def dtype_name(self) -> str:
        return DTYPE_NAMES[self.dtype]

    def __str__(self) -> str:
        return f"{self.op} {self.graph.name} F={self.features} {self.dtype_name} {self.direction}"

    def with_reference(self) -> Case:
        """This case with its float64 reference; gradients are checked on a sample of the columns."""
        if self.reference is not None:
            return self
        if self.grad is None:
            return replace(self, reference=checking.reference_forward(self.x, self.graph, self.op))
        columns = checking.sample_columns(self.features).to(self.x.device)
        x, grad = self.x[:, columns], self.grad[:, columns]
        reference = checking.reference_backward(x, grad, self.graph, self.op)
        squares = checking.reference_backward(x, grad.double().square(), self.graph, self.op)
        return replace(self, reference=reference, columns=columns, scale=squares.sqrt_())


def make_case(
    op: Op, graph: GraphData, features: int, dtype: torch.dtype, direction: Direction = "fwd", *, seed: int = 1
) -> Case:
    """A case with normal random inputs."""
    generator = torch.Generator(device=graph.device).manual_seed(seed)

    def normal() -> Tensor:
        shape = (graph.num_nodes, features)
        return torch.randn(shape, generator=generator, device=graph.device).to(dtype)

    x = normal()
    return Case(op, graph, features, dtype, direction, x, None if direction == "fwd" else normal())


# --- contenders -------------------------------------------------------------------------------------------------------


class Contender:
    """Computes a case. `prepare` builds whatever a careful user would keep between calls; `forward` is one call."""

    name = ""
    workspace_bytes = 0  # device memory that `prepare` keeps and a call needs, beyond the graph

    def supports(self, case: Case) -> bool:
        return True

    def prepare(self, case: Case) -> None:
        """Builds what may be kept; called once before the calls on a case."""

    def forward(self, x: Tensor) -> Tensor:
        """The aggregate of x [N, F] over the neighbours, [N, F]."""
        raise NotImplementedError

    def scope(self) -> AbstractContextManager[Any]:
        """What must be active around every call, for instance a launch mode."""
        return contextlib.nullcontext()

    def release(self) -> None:
        """Drops what `prepare` built."""

    def bind(self, case: Case) -> Callable[[Tensor], Tensor]:
        """A function of x that does the case's direction once and returns what is to be checked."""
        grad = case.grad
        if grad is None:
            return self.forward

        if case.direction == "bwd":
            leaf = case.x.detach().requires_grad_()
            out = self.forward(leaf)
            return lambda _x: torch.autograd.grad(out, leaf, grad, retain_graph=True)[0]

        def forward_and_backward(x: Tensor) -> Tensor:
            leaf = x.detach().requires_grad_()
            return torch.autograd.grad(self.forward(leaf), leaf, grad)[0]

        return forward_and_backward


class Gnnagg(Contender):
    """This project's aggregate, in one launch mode."""

    name = "gnnagg"

    def __init__(self, mode: Mode = "auto") -> None:
        self.mode = mode
        self._package = load_gnnagg()
        self._plan: Any = None
        self._op: Op = "sum"

    def prepare(self, case: Case) -> None:
        graph = case.graph
        index = torch.int32 if graph.num_edges < 2**31 - 1 else torch.int64
        self._op = case.op
        self._plan = self._package.Graph.from_csr(graph.rowptr.to(index), graph.col.to(index), graph.num_nodes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self._package.aggregate(x, self._plan, reduce=self._op)
        return out

    def scope(self) -> AbstractContextManager[Any]:
        if self.mode in ("auto", "cpu"):
            return contextlib.nullcontext()
        launch_mode = getattr(self._package, "launch_mode", _launch_mode_by_environment)
        scope: AbstractContextManager[Any] = launch_mode(self.mode)
        return scope

    def release(self) -> None:
        self._plan = None


def load_gnnagg() -> ModuleType:
    """The package: this checkout's when its libraries are built in place, the installed one otherwise."""
    if "gnnagg" not in sys.modules and not list((ROOT / "gnnagg").glob("_C_*.so")):
        kept = sys.path[:]
        sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]
        try:
            return importlib.import_module("gnnagg")
        except ModuleNotFoundError as error:
            if error.name != "gnnagg":
                raise
        finally:
            sys.path[:] = kept
    return importlib.import_module("gnnagg")


@contextlib.contextmanager
def _launch_mode_by_environment(mode: str) -> Iterator[None]:
    before = os.environ.get("GNNAGG_LAUNCH")
    os.environ["GNNAGG_LAUNCH"] = mode
    try:
        yield
    finally:
        if before is None:
            del os.environ["GNNAGG_LAUNCH"]
        else:
            os.environ["GNNAGG_LAUNCH"] = before


# --- measuring --------------------------------------------------------------------------------------------------------


@dataclass
class Measurement:
    name: str
    time_ms: float | None = None
    error: checking.Error | None = None
    verdict: str = "ok"  # "ok", "wrong" or "failed: reason"
    peak_bytes: int | None = None  # the contender's work space included
    repeats_bitwise: bool | None = None

    @property
    def scaled_error(self) -> float | None:
        return None if self.error is None else finite(self.error.scaled)


def measure(contenders: Sequence[Contender], case: Case, settings: Settings) -> list[Measurement]:
    """Checks, times and weighs each contender on the case, in this order."""
    case = case.with_reference()
    measure_all = _measure_on_cpu if settings.device.type == "cpu" else _measure_on_cuda
    return measure_all(contenders, case, settings)


def _measure_on_cuda(contenders: Sequence[Contender], case: Case, settings: Settings) -> list[Measurement]:
    results = []
    for contender in contenders:
        with contender.scope():
            result, call = _checked(contender, case)
            if call is not None:
                try:
                    result.time_ms = _cuda_time(call, case.x, settings)
                    result.peak_bytes = timing.cuda_peak(functools.partial(call, case.x)) + contender.workspace_bytes
                except Exception as error:
                    result.verdict = _reason(error)
        del call
        contender.release()
        results.append(result)
    return results


def _cuda_time(call: Callable[[Tensor], Tensor], x: Tensor, settings: Settings) -> float:
    if settings.timer == "graph":
        return timing.replayed_time(functools.partial(call, x))
    return statistics.median(timing.cuda_times(call, x, settings.cache, settings.repeat, settings.budget_ms))


def _measure_on_cpu(contenders: Sequence[Contender], case: Case, settings: Settings) -> list[Measurement]:
    results: list[Measurement] = []
    calls: dict[str, Callable[[Tensor], Tensor]] = {}
    with contextlib.ExitStack() as scopes:
        for contender in contenders:
            scopes.enter_context(contender.scope())
            result, call = _checked(contender, case)
            results.append(result)
            if call is not None:
                calls[contender.name] = call
        times = timing.cpu_times(calls, case.x, settings.cache, settings.repeat, settings.budget_ms)
    for result in results:
        if result.name in times:
            result.time_ms = statistics.median(times[result.name])
    for contender in contenders:
        contender.release()
    return results


def _checked(contender: Contender, case: Case) -> tuple[Measurement, Callable[[Tensor], Tensor] | None]:
    """Prepares the contender and compares its output; the call is None when there is nothing to time."""
    result = Measurement(contender.name)
    assert case.reference is not None
    try:
        contender.prepare(case)
        call = contender.bind(case)
        _poison_allocator(case.x)
        out = call(case.x).detach().clone()
        result.error = checking.compare(out, case.reference, case.columns, case.scale)
        result.repeats_bitwise = torch.equal(out, call(case.x).detach())
    except Exception as error:  # a contender may fail in any way; the table says how
        result.verdict = _reason(error)
        return result, None
    if not result.error.within(checking.TOLERANCE[case.dtype]):
        result.verdict = "wrong"
    return result, call


def _poison_allocator(x: Tensor) -> None:
    """Leaves NaN in the blocks that the allocator hands out next for results as large as x, so that gaps show."""
    for dtype in (torch.float32, x.dtype):
        blocks = [torch.full(x.shape, math.nan, dtype=dtype, device=x.device) for _ in range(2)]
        del blocks


def _reason(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    line = re.sub(r"(/[\w.+-]+)+/", "", lines[0]) if lines else ""  # without the folders of this machine
    return f"failed: {type(error).__name__} {line}"[:LONGEST_REASON].strip()


# --- rows -------------------------------------------------------------------------------------------------------------


def gather_rate(case: Case, time_ms: float) -> float:
    """TB/s of gathered feature rows: edges x features x element size over the time."""
    return case.graph.num_edges * case.features * case.dtype.itemsize / time_ms / 1e9


def traffic_rate(case: Case, time_ms: float) -> float:
    """TB/s of what a gather without any reuse moves: rows, output, ids and row pointers."""
    graph, row_bytes = case.graph, case.features * case.dtype.itemsize
    gathered = graph.num_edges * max(SMALLEST_GATHER_BYTES, row_bytes)
    indices = graph.col.element_size() * (graph.num_edges + graph.num_nodes)
    return (gathered + graph.num_nodes * row_bytes + indices) / time_ms / 1e9


def cell_rows(
    case: Case,
    ours: Measurement,
    opponents: Iterable[Measurement],
    *,
    mode: Mode,
    published: Iterable[tuple[str, float]] = (),
    ceiling_tb_s: float | None = None,
) -> list[Row]:
    """One row per opponent, measured or published; one row without an opponent when there is none."""
    time_ms = ours.time_ms
    base = blank_row(
        op=case.op,
        graph=case.graph.name,
        shape=case.shape,
        dtype=case.dtype_name,
        direction=case.direction,
        mode=mode,
        time_ms=time_ms,
        max_rel_error=ours.scaled_error,
        peak_bytes=ours.peak_bytes,
        repeats_bitwise=ours.repeats_bitwise,
        note=None if ours.verdict == "ok" else f"ours {ours.verdict}",
    )
    if time_ms and case.direction == "fwd":
        base["gather_tb_s"] = gather_rate(case, time_ms)
        base["traffic_tb_s"] = traffic_rate(case, time_ms)
        base["ceiling_fraction"] = base["gather_tb_s"] / ceiling_tb_s if ceiling_tb_s else None
    rows = []
    for theirs in opponents:
        opponent = {
            "opponent": theirs.name,
            "opponent_time_ms": theirs.time_ms,
            "opponent_peak_bytes": theirs.peak_bytes,
            "opponent_max_rel_error": theirs.scaled_error,
            "opponent_repeats_bitwise": theirs.repeats_bitwise,
            "opponent_verdict": theirs.verdict,
        }
        rows.append(against(base | opponent, theirs.name, theirs.time_ms))
    for name, published_ms in published:
        rows.append(against(base | {"opponent_verdict": "published"}, name, published_ms))
    return rows or [base]


def against(row: Row, opponent: str, opponent_ms: float | None) -> Row:
    """The row with this opponent's time and the ratio."""
    ratio = opponent_ms / row["time_ms"] if opponent_ms and row["time_ms"] else None
    return row | {"opponent": opponent, "opponent_time_ms": opponent_ms, "ratio": ratio}


def run_cell(
    case: Case,
    ours: Gnnagg,
    opponents: Sequence[Contender],
    settings: Settings,
    *,
    published: Iterable[tuple[str, float]] = (),
    ceiling_tb_s: float | None = None,
) -> list[Row]:
    """Measures ours and every opponent that supports the case. A failure of ours is said at once."""
    able = [opponent for opponent in opponents if opponent.supports(case)]
    mine, *others = measure([ours, *able], case, settings)
    if mine.verdict != "ok":
        print(f"  {case}: OURS {mine.verdict} (error {mine.scaled_error})", file=sys.stderr)
    return cell_rows(case, mine, others, mode=ours.mode, published=published, ceiling_tb_s=ceiling_tb_s)


# --- command line -----------------------------------------------------------------------------------------------------


def argument_parser(description: str) -> argparse.ArgumentParser:
    """The options every benchmark has; lists are separated by commas."""
    parser = argparse.ArgumentParser(description=description)

    def words(text: str) -> list[str]:
        return [word for word in text.split(",") if word]

    def numbers(text: str) -> list[int]:
        return [int(word) for word in words(text)]

    add = parser.add_argument
    add("--graphs", type=words, help="only these graphs")
    add("--features", type=numbers, help="only these feature counts")
    add("--dtypes", type=words, help=f"only these dtypes, of {','.join(DTYPES)}")
    add("--ops", type=words, help="only these operations")
    add("--opponents", type=words, help="these opponents instead of the usual ones; 'none' for none")
    add("--out", type=Path, default=ROOT / "benchmarks" / "results", help="folder of the result files")
    add("--root", type=Path, help="folder of the real graphs (npz)")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--repeat", type=int, help="timed calls per contender (default: by time)")
    add("--cache", choices=("warm", "flush", "rotate"), default="warm", help="state of the L2 before each call")
    add("--timer", choices=("events", "graph"), default="events", help="CUDA: eager calls, or a replayed CUDA graph")
    add("--quick", action="store_true", help="small graphs and few calls: a check that everything runs")
    return parser


def settings_from(options: argparse.Namespace) -> Settings:
    """The settings of a run; `cuda` becomes the current device."""
    device = torch.device(options.device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    repeat = 2 if options.repeat is None and options.quick else options.repeat
    return Settings(device, repeat, cache=options.cache, timer=options.timer, quick=options.quick)
