"""Cells run in child processes, so that a crash, a hang or a poisoned CUDA context costs one cell and not the run.

A *cell* is the smallest piece of a suite that is measured and reported on its own. The cells of one *group* share a
child, and with it their graphs. The child reports over a pipe which contender it is about to run, and each cell's rows
once they are complete. When it dies or falls silent, a new child takes the rest of the group: the cell that was running
is repeated without the rival that was running in it, and given up when no rival is to blame or too many are.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import torch

from benchmarks.results import Row

__all__ = [
    "Cell",
    "DeviceLostError",
    "Failed",
    "Finished",
    "Plan",
    "Watch",
    "in_process",
    "isolated",
    "raise_if_device_lost",
    "short_reason",
]

SECONDS_TO_START = 120.0  # a process, torch and the plan
SECONDS_TO_DIE = 20.0
MOST_RIVALS_LEFT_OUT = 2  # of one cell: each costs a child, and one that hangs costs the whole silence
LONGEST_REASON = 160  # characters


@dataclass(frozen=True)
class Cell:
    name: str  # one of its kind in the suite
    group: str
    measure: Callable[[], list[Row]]


@dataclass(frozen=True)
class Finished:
    cell: str
    rows: list[Row]


@dataclass(frozen=True)
class Failed:
    """What happened in a cell that has no rows, or has them without one rival."""

    cell: str
    reason: str


class DeviceLostError(RuntimeError):
    """The CUDA context of this process is unusable: nothing else can be measured in it."""


@dataclass
class Watch:
    """What measurements report to, and what they are told to leave out; this one reports to nobody."""

    left_out: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # cell -> contender -> why
    cell: str = ""

    def enters(self, cell: str) -> None:
        self.cell = cell

    def starts(self, contender: str, *, rival: bool) -> None:
        """The contender is prepared, checked or timed from now on."""

    def reason_to_leave_out(self, contender: str) -> str | None:
        return self.left_out.get(self.cell, {}).get(contender)


Plan = Callable[[Watch], Iterable[Cell]]  # makes the cells of a suite; costs nothing until one is measured


def in_process(plan: Plan, names: Iterable[str]) -> Iterator[Finished | Failed]:
    """The named cells in this process, without protection: for debuggers and profilers."""
    watch, wanted = Watch(), set(names)
    for cell in plan(watch):
        if cell.name in wanted:
            watch.enters(cell.name)
            yield Finished(cell.name, cell.measure())


def isolated(plan: Plan, cells: Iterable[Cell], silence_s: float) -> Iterator[Finished | Failed]:
    """The cells, group by group, in children that are killed after `silence_s` seconds without a report."""
    groups: dict[str, list[str]] = {}
    for cell in cells:
        groups.setdefault(cell.group, []).append(cell.name)
    for names in groups.values():
        yield from _group(plan, names, silence_s)


def _group(plan: Plan, names: list[str], silence_s: float) -> Iterator[Finished | Failed]:
    waiting = list(names)
    left_out: dict[str, dict[str, str]] = {}
    while waiting:
        state = _State()
        for outcome in _child_outcomes(_Job(plan, tuple(waiting), left_out), silence_s, state):
            waiting.remove(outcome.cell)
            yield outcome
        if state.death is None:
            for name in waiting:
                yield Failed(name, "the child knows no such cell")
            return
        if state.cell not in waiting:  # died between cells, before the first one for instance
            for name in waiting:
                yield Failed(name, f"before any cell: {state.death}")
            return
        reason = f"{state.contender}: {state.death}" if state.contender else state.death
        yield Failed(state.cell, reason)
        print(f"  {state.cell}: {reason}", file=sys.stderr, flush=True)
        rivals = left_out.setdefault(state.cell, {})
        if state.rival and state.contender and len(rivals) < MOST_RIVALS_LEFT_OUT:
            rivals[state.contender] = f"failed: {state.death}"
        else:
            waiting.remove(state.cell)


# --- parent -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Job:
    plan: Plan
    names: tuple[str, ...]
    left_out: Mapping[str, Mapping[str, str]]


@dataclass
class _State:
    """What the child was doing when it was last heard of, and how it died."""

    cell: str = ""
    contender: str | None = None
    rival: bool = False
    death: str | None = None


def _child_outcomes(job: _Job, silence_s: float, state: _State) -> Iterator[Finished | Failed]:
    """Runs one child; its outcomes as they come. Afterwards `state.death` says how it died, None if it did not."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(theirs, job))
    process.start()
    theirs.close()  # so that the child's death is the end of the pipe
    try:
        patience_s = max(SECONDS_TO_START, silence_s)
        while True:
            if not ours.poll(patience_s):
                state.death = f"no report for {patience_s:g} s"
                return
            patience_s = silence_s
            kind, *content = ours.recv()
            if kind == "starts":
                state.cell, state.contender, state.rival = content
            elif kind == "done":
                return
            elif kind == "lost":
                state.death = content[0]
                return
            else:
                state.cell, state.contender, state.rival = "", None, False
                yield content[0]
    except (EOFError, OSError):
        process.join(SECONDS_TO_DIE)
        state.death = _way_of_death(process.exitcode)
    finally:
        if state.death is None:
            process.join(SECONDS_TO_DIE)
        if process.is_alive():
            process.kill()
            process.join()
        ours.close()


def _way_of_death(exit_code: int | None) -> str:
    if exit_code is None:
        return "closed its pipe and lived on"
    if exit_code < 0:
        return f"killed by {signal.Signals(-exit_code).name}"
    return f"exit status {exit_code}"


# --- child ------------------------------------------------------------------------------------------------------------


@dataclass
class _PipeWatch(Watch):
    connection: Connection | None = None

    def enters(self, cell: str) -> None:
        super().enters(cell)
        self.send("starts", cell, None, False)

    def starts(self, contender: str, *, rival: bool) -> None:
        self.send("starts", self.cell, contender, rival)

    def send(self, *message: Any) -> None:
        assert self.connection is not None
        self.connection.send(message)


def _child(connection: Connection, job: _Job) -> None:
    watch = _PipeWatch(job.left_out, connection=connection)
    watch.send("starts", "", None, False)
    wanted = set(job.names)
    for cell in job.plan(watch):
        if cell.name not in wanted:
            continue
        watch.enters(cell.name)
        try:
            watch.send("outcome", _measured(cell))
        except DeviceLostError as error:
            watch.send("lost", str(error))
            os._exit(1)  # destructors would only wait for a device that no longer answers
    watch.send("done")
    connection.close()


def _measured(cell: Cell) -> Finished | Failed:
    try:
        return Finished(cell.name, cell.measure())
    except DeviceLostError:
        raise
    except Exception as error:
        raise_if_device_lost()
        return Failed(cell.name, short_reason(error))


def short_reason(error: BaseException) -> str:
    """Type and first line of the message, without the folders of this machine."""
    lines = str(error).strip().splitlines()
    line = re.sub(r"(/[\w.+-]+)+/", "", lines[0]) if lines else ""
    return f"{type(error).__name__} {line}"[:LONGEST_REASON].strip()


def raise_if_device_lost() -> None:
    """Raises DeviceLostError when the CUDA context has been broken, for instance by an illegal memory access."""
    if not torch.cuda.is_initialized():
        return
    try:
        torch.cuda.synchronize()
    except Exception as error:
        raise DeviceLostError(short_reason(error)) from error
