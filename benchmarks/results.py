"""Rows, targets, result files and tables: one format for every benchmark of the project.

A result file is {"meta": {...}, "rows": [...]}; the environment variable GNNAGG_COMMIT names the commit on a machine
without git. `ROW_KEYS` are the fields of a row; `EXTRA_ROW_KEYS` only explain it.
`ratio` is the opponent's time over ours, `max_rel_error` the scaled error of checking.py (1e30 stands for infinite,
which JSON lacks), and fields that do not apply are null.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

__all__ = [
    "EXTRA_ROW_KEYS",
    "META_KEYS",
    "ROOT",
    "ROW_KEYS",
    "Row",
    "Target",
    "blank_row",
    "device_folder",
    "finite",
    "geometric_mean",
    "metadata",
    "print_failed",
    "print_rows",
    "print_table",
    "print_targets",
    "result_path",
    "validate",
    "write_file",
    "write_results",
]

ROOT = Path(__file__).resolve().parents[1]
Row = dict[str, Any]

# Every row has these fields; the type of a value that is not null stands beside it.
ROW_TYPES: dict[str, tuple[type, ...]] = {
    "op": (str,),
    "graph": (str,),
    "shape": (list,),
    "dtype": (str,),
    "direction": (str,),  # fwd, bwd, fwd+bwd
    "mode": (str,),  # cooperative, staged, auto, cpu
    "time_ms": (float, int),
    "opponent": (str,),
    "opponent_time_ms": (float, int),
    "ratio": (float, int),
    "max_rel_error": (float, int),
    "peak_bytes": (int,),
    "opponent_peak_bytes": (int,),
    "ceiling_fraction": (float, int),
}
EXTRA_ROW_TYPES: dict[str, tuple[type, ...]] = {
    "gather_tb_s": (float, int),  # gathered feature rows only
    "traffic_tb_s": (float, int),  # with output, ids and row pointers, no reuse assumed
    "repeats_bitwise": (bool,),  # two calls gave the same bits
    "opponent_max_rel_error": (float, int),
    "opponent_repeats_bitwise": (bool,),
    "opponent_verdict": (str,),  # ok, wrong, published, or failed: why
    "note": (str,),
}
ROW_KEYS, EXTRA_ROW_KEYS = tuple(ROW_TYPES), tuple(EXTRA_ROW_TYPES)
META_KEYS = ("gpu", "driver", "torch", "commit", "date", "command")
DIRECTIONS = ("fwd", "bwd", "fwd+bwd")
MODES = ("cooperative", "staged", "auto", "cpu")
UNBOUNDED = 1e30
SIGNIFICANT = ".4g"  # digits of a number in a result file


def blank_row(**fields: Any) -> Row:
    """A row with every field, null where not given."""
    row: Row = dict.fromkeys((*ROW_KEYS, *EXTRA_ROW_KEYS))
    unknown = fields.keys() - row.keys()
    if unknown:
        raise KeyError(f"row fields: expected some of {', '.join(row)}, got {', '.join(sorted(unknown))}")
    return row | fields


def finite(value: float | None) -> float | None:
    """The value as JSON can hold it."""
    return value if value is None or math.isfinite(value) else UNBOUNDED


def geometric_mean(values: Iterable[float]) -> float | None:
    """None for no values."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else None


def validate(document: Any) -> None:
    """Raises ValueError, naming the row and field, unless `document` is a result file."""
    if set(document) != {"meta", "rows"}:
        raise ValueError(f"result file: expected the keys meta and rows, got {sorted(document)}")
    missing = [key for key in META_KEYS if key not in document["meta"]]
    if missing:
        raise ValueError(f"meta: expected {', '.join(META_KEYS)}, missing {', '.join(missing)}")
    types = ROW_TYPES | EXTRA_ROW_TYPES
    for number, row in enumerate(document["rows"]):
        if set(row) != set(types):
            raise ValueError(f"row {number}: expected the fields {sorted(types)}, got {sorted(row)}")
        for key, value in row.items():
            if value is not None and not isinstance(value, types[key]):
                raise ValueError(f"row {number}: {key}: expected {types[key]}, got {value!r}")
        if row["direction"] not in DIRECTIONS or row["mode"] not in MODES:
            raise ValueError(f"row {number}: direction {row['direction']!r} or mode {row['mode']!r} is unknown")


# --- targets ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """One line of the closing table: what was asked for, what was measured, whether that meets it."""

    text: str
    goal: str
    measured: str
    met: bool | None  # None: nothing was measured

    @classmethod
    def at_least(cls, text: str, goal: float, value: float | None, detail: str = "") -> Target:
        met = None if value is None else value >= goal
        return cls(text, f">= {goal:g}", _with_detail(value, detail), met)

    @classmethod
    def at_most(cls, text: str, goal: float, value: float | None, detail: str = "") -> Target:
        met = None if value is None else value <= goal
        return cls(text, f"<= {goal:g}", _with_detail(value, detail), met)


def _with_detail(value: float | None, detail: str) -> str:
    if value is None:
        return "-"
    return f"{value:.3g} ({detail})" if detail else f"{value:.3g}"


# --- files ------------------------------------------------------------------------------------------------------------


def device_folder(device: torch.device) -> str:
    """`cpu`, or the name of the GPU as a folder, for instance nvidia-h200."""
    if device.type == "cpu":
        return "cpu"
    return re.sub(r"[^a-z0-9]+", "-", torch.cuda.get_device_name(device).lower()).strip("-")


def metadata(device: torch.device, **more: Any) -> dict[str, Any]:
    """Where, when and with what these rows were measured."""
    cuda = device.type == "cuda"
    meta: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(device) if cuda else None,
        "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader") if cuda else None,
        "torch": torch.__version__,
        "commit": _commit(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": _command(),
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "cpu": _cpu_name(),
        "threads": torch.get_num_threads(),
    }
    return meta | more


def result_path(name: str, out: Path, device: torch.device) -> Path:
    """`out`/<gpu>/<name>.json."""
    return out / device_folder(device) / f"{name}.json"


def write_file(path: Path, meta: dict[str, Any], rows: Sequence[Row]) -> None:
    """Writes a result file, one row a line; whoever reads it meanwhile finds the old one or the new one, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(_rounded(row), allow_nan=False) for row in rows)
    head = json.dumps(_rounded(meta), indent=1, allow_nan=False)
    unfinished = path.with_suffix(".json.part")
    unfinished.write_text(f'{{"meta": {head},\n"rows": [\n{lines}\n]}}\n')
    unfinished.replace(path)


def write_results(name: str, meta: dict[str, Any], rows: Sequence[Row], out: Path, device: torch.device) -> Path:
    """Writes `out`/<gpu>/<name>.json and returns its path."""
    path = result_path(name, out, device)
    write_file(path, meta, rows)
    return path


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return float(format(value, SIGNIFICANT)) if isinstance(value, float) else value


def _commit() -> str | None:
    given = os.environ.get("GNNAGG_COMMIT")
    if given:
        return given
    commit = _output("git", "-C", str(ROOT), "rev-parse", "HEAD")
    if commit and _output("git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no"):
        return f"{commit}+changes"
    return commit


def _command() -> str:
    """The command line; of absolute paths, which belong to one machine, only the last name is kept."""
    words = ["python3"]
    for word in sys.argv:
        option, mark, value = word.rpartition("=")
        if os.path.isabs(value):
            inside = Path(value).is_relative_to(ROOT)
            value = str(Path(value).relative_to(ROOT)) if inside else f"<{Path(value).name}>"
        words.append(f"{option}{mark}{value}")
    return " ".join(words)


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
        if found:
            return found[1]
    return platform.processor() or platform.machine()


def _output(*command: str) -> str | None:
    """First line of what the command prints; None when it fails or prints nothing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.strip().splitlines()
    return lines[0] if lines else None


# --- tables -----------------------------------------------------------------------------------------------------------


def print_table(title: str, header: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """A table, by rich when it is there and the output is a terminal, in plain text otherwise."""
    if sys.stdout.isatty():
        try:
            from rich.console import Console
            from rich.table import Table
        except ImportError:
            pass
        else:
            table = Table(*header, title=title, title_justify="left")
            for line in lines:
                table.add_row(*line)
            Console().print(table)
            return
    widths = [max(len(line[i]) for line in [header, *lines]) for i in range(len(header))]
    print(f"\n{title}")
    for line in [header, *lines]:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
    sys.stdout.flush()


# Heading, field, how the field is written
_COLUMNS = (
    ("op", "op", "{}"),
    ("graph", "graph", "{}"),
    ("shape", "shape", "{}"),
    ("dtype", "dtype", "{}"),
    ("dir", "direction", "{}"),
    ("mode", "mode", "{}"),
    ("ms", "time_ms", "{:.4g}"),
    ("TB/s", "gather_tb_s", "{:.2f}"),
    ("of ceiling", "ceiling_fraction", "{:.0%}"),
    ("error", "max_rel_error", "{:.1e}"),
    ("opponent", "opponent", "{}"),
    ("its ms", "opponent_time_ms", "{:.4g}"),
    ("its error", "opponent_max_rel_error", "{:.1e}"),
    ("ratio", "ratio", "{:.2f}"),
    ("verdict", "opponent_verdict", "{}"),
    ("note", "note", "{}"),
)


def print_rows(title: str, rows: Sequence[Row]) -> None:
    """The rows as a table, without the columns that are empty throughout."""
    columns = [column for column in _COLUMNS if any(row[column[1]] is not None for row in rows)]
    lines = [[_text(row[field], pattern) for _, field, pattern in columns] for row in rows]
    print_table(title, [heading for heading, _, _ in columns], lines)


def _text(value: Any, pattern: str) -> str:
    if value is None:
        return "-"
    return "x".join(map(str, value)) if isinstance(value, list) else pattern.format(value)


def print_failed(failed: Sequence[dict[str, str]]) -> None:
    """Cell and reason; nothing when nothing failed."""
    if failed:
        print_table("failed", ("cell", "reason"), [(entry["cell"], entry["reason"]) for entry in failed])


def print_targets(title: str, targets: Sequence[Target]) -> None:
    """Target, goal, measured value and verdict."""
    words = {True: "yes", False: "NO", None: "not measured"}
    lines = [(target.text, target.goal, target.measured, words[target.met]) for target in targets]
    print_table(title, ("target", "goal", "measured", "met"), lines)
