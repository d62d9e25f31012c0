"""Runs suites: their cells in child processes, their rows into a result file as they come, their targets at the end.

A result file lists in `meta.cells` the cells whose rows it holds and in `meta.failed` what went wrong. `--resume`
keeps the cells of a file that the same commit wrote and measures the others.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import graphs, published, results
from benchmarks.cusparse import cusparse_version
from benchmarks.graphs import GraphData
from benchmarks.harness import DTYPES, Settings
from benchmarks.isolation import Cell, Failed, Finished, Plan, Watch, in_process, isolated
from benchmarks.results import ROOT, Row, Target

__all__ = ["Run", "Suite", "argument_parser", "main", "run_suite", "settings_from"]

QUICK_SCALE = 0.01
SAME_IN_A_RESUMED_FILE = ("commit", "torch", "cache", "timer", "quick")
SILENCE_S = 180.0  # the slowest single step, a float64 reference of 120 M edges, takes a fraction of it


class Run:
    """Options of one run and the graphs that this process has built."""

    def __init__(self, options: argparse.Namespace, watch: Watch | None = None) -> None:
        self.options = options
        self.settings: Settings = replace(settings_from(options), watch=watch or Watch())
        self.cuda = self.settings.device.type == "cuda"
        self.published = self.cuda and results.device_folder(self.settings.device) == published.GPU_FOLDER
        self._graphs: dict[str, GraphData] = {}

    def graph(self, name: str) -> GraphData:
        """Built when a cell first asks for it, and kept: the cells of one child need few."""
        if name not in self._graphs:
            begin = time.perf_counter()
            scale = QUICK_SCALE if self.settings.quick and name not in graphs.REAL else 1.0
            self._graphs[name] = graphs.build(name, self.settings.device, scale=scale, root=self.options.root)
            print(f"{self._graphs[name]}  ({time.perf_counter() - begin:.1f} s to build)", flush=True)
        return self._graphs[name]

    def graph_names(self, default: Iterable[str]) -> list[str]:
        wanted = self.options.graphs
        return [name for name in default if wanted is None or name in wanted]

    def features(self, default: Iterable[int]) -> list[int]:
        wanted = self.options.features
        if wanted is None and self.settings.quick:
            return list(default)[:2]
        return [features for features in default if wanted is None or features in wanted]

    def dtypes(self, default: Iterable[str]) -> list[str]:
        wanted = self.options.dtypes
        return [name for name in default if wanted is None or name in wanted]

    def has_op(self, op: str) -> bool:
        return self.options.ops is None or op in self.options.ops


@dataclass(frozen=True)
class Suite:
    """Its cells are made anew in every child, so making them must cost nothing."""

    cells: Callable[[Any], Iterable[Cell]]
    targets: Callable[[list[Row]], list[Target]]
    run: type[Run] = Run

    def plan(self, options: argparse.Namespace) -> Plan:
        return partial(_cells, self.cells, self.run, options)


def _cells(
    cells: Callable[[Run], Iterable[Cell]], run: type[Run], options: argparse.Namespace, watch: Watch
) -> list[Cell]:
    return list(cells(run(options, watch)))


# --- one suite --------------------------------------------------------------------------------------------------------


@dataclass
class _Record:
    """What a result file holds so far."""

    path: Path
    meta: dict[str, Any]
    targets: Callable[[list[Row]], list[Target]]
    rows: list[Row] = field(default_factory=list)
    cells: list[str] = field(default_factory=list)
    failed: list[dict[str, str]] = field(default_factory=list)
    begin: float = field(default_factory=time.perf_counter)

    def resume(self) -> None:
        """Takes over the cells of the file that is already there, if it was written by the same commit and options."""
        if not self.path.is_file():
            return
        document = json.loads(self.path.read_text())
        meta = document["meta"]
        for key in SAME_IN_A_RESUMED_FILE:
            if meta.get(key) is None or meta[key] != self.meta[key]:
                print(f"{self.path.name}: its {key} is {meta.get(key)}, that of this run {self.meta[key]}: starts anew")
                return
        results.validate(document)
        self.rows, self.cells = document["rows"], meta.get("cells", [])
        self.failed = [entry for entry in meta.get("failed", []) if entry["cell"] in self.cells]
        print(f"{self.path.name}: {len(self.cells)} cells are there already")

    def add(self, outcome: Finished | Failed) -> None:
        if isinstance(outcome, Failed):
            self.failed.append({"cell": outcome.cell, "reason": outcome.reason})
        else:
            self.cells.append(outcome.cell)
            self.rows += outcome.rows

    def save(self, *, complete: bool) -> None:
        progress = {"seconds": time.perf_counter() - self.begin, "complete": complete}
        summary = [vars(target) for target in self.targets(self.rows)]
        lists = {"cells": self.cells, "failed": self.failed, "targets": summary}
        results.write_file(self.path, self.meta | progress | lists, self.rows)


def run_suite(file_name: str, suite: Suite, options: argparse.Namespace) -> Path | None:
    """Measures the cells that the options select, writing the result file after each; its path, None without cells."""
    settings = settings_from(options)
    cells = suite.plan(options)(Watch())
    if not cells:
        return None
    facts: dict[str, Any] = {"suite": file_name.partition("_")[2], "quick": settings.quick}
    facts |= {"cache": settings.cache, "timer": settings.timer, "cusparse": cusparse_version()}
    path = results.result_path(file_name, options.out, settings.device)
    record = _Record(path, results.metadata(settings.device, **facts), suite.targets)
    if options.resume:
        record.resume()
    done = set(record.cells)
    for outcome in _outcomes(suite.plan(options), [cell for cell in cells if cell.name not in done], options):
        record.add(outcome)
        record.save(complete=False)
    record.save(complete=all(cell.name in record.cells for cell in cells))
    results.print_rows(file_name, record.rows)
    results.print_failed(record.failed)
    results.print_targets(f"targets: {file_name}", suite.targets(record.rows))
    print(f"\nwritten: {path.parent.name}/{path.name} in {time.perf_counter() - record.begin:.0f} s", flush=True)
    return path


def _outcomes(plan: Plan, cells: Sequence[Cell], options: argparse.Namespace) -> Iterator[Finished | Failed]:
    if options.in_process:
        return in_process(plan, [cell.name for cell in cells])
    return isolated(plan, cells, options.silence)


def main(benchmark: str, every: Mapping[str, Suite], options: argparse.Namespace) -> None:
    """Runs the chosen suite, or all that this device has; `cpu` is the one for the CPU."""
    if options.suite == "cpu":
        options.device = "cpu"
    names = [options.suite]
    if options.suite == "all":
        names = ["cpu"] if options.device == "cpu" else [name for name in every if name != "cpu"]
    for name in names:
        run_suite(f"{benchmark}_{name}", every[name], options)


# --- command line -----------------------------------------------------------------------------------------------------


def argument_parser(description: str, *, width: Callable[[str], object] = int) -> argparse.ArgumentParser:
    """The options every benchmark has; lists are separated by commas."""
    parser = argparse.ArgumentParser(description=description)

    def words(text: str) -> list[str]:
        return [word for word in text.split(",") if word]

    def widths(text: str) -> list[object]:
        return [width(word) for word in words(text)]

    add = parser.add_argument
    add("--graphs", "--only", type=words, help="only these graphs")
    add("--features", "--widths", type=widths, help="only these feature counts or shapes")
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
    add("--resume", action="store_true", help="keep the cells of a result file that the same commit wrote")
    add("--silence", type=float, default=SILENCE_S, help="seconds without a report after which a child is killed")
    add("--in-process", action="store_true", help="no child processes: for debuggers and profilers")
    return parser


def settings_from(options: argparse.Namespace) -> Settings:
    """The settings of a run; `cuda` becomes the current device."""
    device = torch.device(options.device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    repeat = 2 if options.repeat is None and options.quick else options.repeat
    return Settings(device, repeat, cache=options.cache, timer=options.timer, quick=options.quick)
