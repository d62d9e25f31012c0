"""Runs contenders on cases: checks each output against float64, then times it.

A *case* is an operation on one graph in one shape, dtype and direction. A *contender* computes a case; ours and the
opponents are contenders alike. `run_case` returns one row per opponent. A contender whose output is wrong keeps its
time but is marked wrong, with its error; one that raises is marked failed, with the reason; one that breaks the CUDA
context ends the process.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import os
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor

from benchmarks import checking, timing
from benchmarks.graphs import GraphData
from benchmarks.isolation import Watch, raise_if_device_lost, short_reason
from benchmarks.results import ROOT, Row, blank_row, finite

__all__ = [
    "DTYPES",
    "Call",
    "Case",
    "Contender",
    "Direction",
    "Measurement",
    "Mode",
    "Settings",
    "against",
    "case_rows",
    "gather_rate",
    "launch_scope",
    "load_gnnagg",
    "measure",
    "run_case",
]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}

Direction = Literal["fwd", "bwd", "fwd+bwd"]
Mode = Literal["cooperative", "staged", "auto", "cpu"]
Call = Callable[[Tensor], Any]  # of the case's x; gives a tensor or a tuple of tensors

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
    watch: Watch = field(default_factory=Watch)


# --- cases and contenders ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Case:
    """What is computed, on which graph and input; a subclass knows the right result."""

    op: str
    graph: GraphData
    dtype: torch.dtype
    direction: Direction
    x: Tensor  # [N, F], the input that a timed call is given

    @property
    def shape(self) -> list[int]:
        """As in a row: [N, F], or [N, H, C]."""
        return list(self.x.shape)

    @property
    def gathered(self) -> int:
        """Values gathered per edge."""
        return self.x.size(1)

    @property
    def dtype_name(self) -> str:
        return DTYPE_NAMES[self.dtype]

    @property
    def tolerance(self) -> float:
        return checking.TOLERANCE[self.dtype]

    def __str__(self) -> str:
        width = "x".join(map(str, self.shape[1:]))
        return f"{self.op} {self.graph.name} F={width} {self.dtype_name} {self.direction}"

    def with_reference(self) -> Case:
        """This case with its float64 reference."""
        raise NotImplementedError

    def error(self, result: Any) -> checking.Error:
        """Of what a call returned."""
        raise NotImplementedError


class Contender:
    """Computes a case. `prepare` builds whatever a careful user would keep between calls; `bind` gives the call."""

    name = ""
    rival = True
    mode: Mode = "auto"
    workspace_bytes = 0  # device memory that `prepare` keeps and a call needs, beyond the graph

    def supports(self, case: Any) -> bool:
        return True

    def prepare(self, case: Any) -> None:
        """Builds what may be kept; called once before the calls on a case."""

    def bind(self, case: Any) -> Call:
        """A function of x that does the case's direction once and returns what is to be checked."""
        raise NotImplementedError

    def scope(self) -> AbstractContextManager[Any]:
        """What must be active around every call, for instance a launch mode."""
        return contextlib.nullcontext()

    def release(self) -> None:
        """Drops what `prepare` built."""


def launch_scope(mode: Mode) -> AbstractContextManager[Any]:
    """Within it this project's kernels are launched in this mode."""
    if mode in ("auto", "cpu"):
        return contextlib.nullcontext()
    launch_mode = getattr(load_gnnagg(), "launch_mode", _launch_mode_by_environment)
    scope: AbstractContextManager[Any] = launch_mode(mode)
    return scope


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
    reasons = [settings.watch.reason_to_leave_out(contender.name) for contender in contenders]
    present = [contender for contender, reason in zip(contenders, reasons, strict=True) if reason is None]
    measured = iter(measure_all(present, case, settings))
    return [
        next(measured) if reason is None else Measurement(contender.name, verdict=reason)
        for contender, reason in zip(contenders, reasons, strict=True)
    ]


def _measure_on_cuda(contenders: Sequence[Contender], case: Case, settings: Settings) -> list[Measurement]:
    results = []
    for contender in contenders:
        settings.watch.starts(contender.name, rival=contender.rival)
        timing.release_memory()  # a contender that needs all of it may follow one that left it in pieces
        with contender.scope():
            result, call = _checked(contender, case)
            if call is not None:
                try:
                    result.time_ms = _cuda_time(call, case.x, settings)
                    result.peak_bytes = timing.cuda_peak(functools.partial(call, case.x)) + contender.workspace_bytes
                except Exception as error:
                    raise_if_device_lost()
                    result.verdict = _verdict(error)
        call = None
        contender.release()
        raise_if_device_lost()
        results.append(result)
    return results


def _cuda_time(call: Call, x: Tensor, settings: Settings) -> float:
    if settings.timer == "graph":
        return timing.replayed_time(functools.partial(call, x))
    if settings.timer in ("stream", "synchronised"):
        return timing.wall_time(functools.partial(call, x), synchronised=settings.timer == "synchronised")
    return statistics.median(timing.cuda_times(call, x, settings.cache, settings.repeat, settings.budget_ms))


def _measure_on_cpu(contenders: Sequence[Contender], case: Case, settings: Settings) -> list[Measurement]:
    results: list[Measurement] = []
    calls: dict[str, Call] = {}
    with contextlib.ExitStack() as scopes:
        for contender in contenders:
            settings.watch.starts(contender.name, rival=contender.rival)
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


def _checked(contender: Contender, case: Case) -> tuple[Measurement, Call | None]:
    """Prepares the contender and compares its output; the call is None when there is nothing to time."""
    result = Measurement(contender.name)
    try:
        contender.prepare(case)
        call = contender.bind(case)
        _poison_allocator(case.x)
        out = _copied(call(case.x))
        result.error = case.error(out)
        result.repeats_bitwise = _same_bits(out, call(case.x))
    except Exception as error:  # a contender may fail in any way; the table says how
        raise_if_device_lost()
        result.verdict = _verdict(error)
        return result, None
    if not result.error.within(case.tolerance):
        result.verdict = "wrong"
    return result, call


def _copied(out: Any) -> Any:
    return out.detach().clone() if isinstance(out, Tensor) else tuple(map(_copied, out))


def _same_bits(a: Any, b: Any) -> bool:
    return torch.equal(a, b.detach()) if isinstance(a, Tensor) else all(map(_same_bits, a, b))


def _poison_allocator(x: Tensor) -> None:
    """Leaves NaN in the blocks that the allocator hands out next for results as large as x, so that gaps show."""
    for dtype in (torch.float32, x.dtype):
        blocks = [torch.full(x.shape, math.nan, dtype=dtype, device=x.device) for _ in range(2)]
        del blocks


def _verdict(error: BaseException) -> str:
    return f"failed: {short_reason(error)}"[:LONGEST_REASON].strip()


# --- rows -------------------------------------------------------------------------------------------------------------


def gather_rate(case: Case, time_ms: float) -> float:
    """TB/s of gathered feature rows: edges x values x element size over the time."""
    return case.graph.num_edges * case.gathered * case.dtype.itemsize / time_ms / 1e9


def traffic_rate(case: Case, time_ms: float) -> float:
    """TB/s of what a gather without any reuse moves: rows, output, ids and row pointers."""
    graph, row_bytes = case.graph, case.gathered * case.dtype.itemsize
    gathered = graph.num_edges * max(SMALLEST_GATHER_BYTES, row_bytes)
    indices = graph.col.element_size() * (graph.num_edges + graph.num_nodes)
    return (gathered + graph.num_nodes * row_bytes + indices) / time_ms / 1e9


def case_rows(
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


def run_case(
    case: Case,
    ours: Contender,
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
    return case_rows(case, mine, others, mode=ours.mode, published=published, ceiling_tb_s=ceiling_tb_s)
