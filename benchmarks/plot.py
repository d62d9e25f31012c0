"""Plots of result files: ratio to each opponent, and rate, per graph and feature count.

    python3 benchmarks/plot.py benchmarks/results/nvidia-h200/aggregate_sum.json

writes aggregate_sum-<op>-<dtype>-<direction>-ratio.png and -rate.png beside the file. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.results import Row, validate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["main", "plot_file"]

Panel = tuple[str, str, str]  # op, dtype, direction
BAR_SPACE = 0.8  # of the distance between two groups of bars


def plot_file(path: Path) -> list[Path]:
    """Writes the plots of one result file beside it and returns their paths."""
    document = json.loads(path.read_text())
    validate(document)
    panels: dict[Panel, list[Row]] = {}
    for row in document["rows"]:
        panels.setdefault((row["op"], row["dtype"], row["direction"]), []).append(row)
    device = document["meta"]["gpu"] or document["meta"].get("cpu") or ""
    written = []
    for panel, rows in panels.items():
        op, dtype, direction = panel
        stem = f"{path.stem}-{op}-{dtype}-{direction.replace('+', '-')}"
        title = f"{op} {dtype} {direction}, {device}"
        ratios = {(_cell(row), row["opponent"]): row["ratio"] for row in rows if row["ratio"] is not None}
        if ratios:
            written.append(_bars(path.with_name(f"{stem}-ratio.png"), title, "opponent's time / ours", ratios, 1.0))
        rates = {(_cell(row), row["mode"]): row["gather_tb_s"] for row in rows if row["gather_tb_s"] is not None}
        if rates:
            written.append(_bars(path.with_name(f"{stem}-rate.png"), title, "gathered rows, TB/s", rates, None))
    return written


def _cell(row: Row) -> str:
    return f"{row['graph']}\nF={'x'.join(map(str, row['shape'][1:]))}"


def _bars(path: Path, title: str, label: str, values: dict[tuple[str, str], float], level: float | None) -> Path:
    """Grouped bars: one group per cell, one colour per series; a line at `level`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    cells = list(dict.fromkeys(cell for cell, _ in values))
    series = list(dict.fromkeys(name for _, name in values))
    figure, axes = pyplot.subplots(figsize=(max(6.0, 0.7 * len(cells) + 2), 4.2))
    width = BAR_SPACE / len(series)
    for place, name in enumerate(series):
        places = [cells.index(cell) + (place + 0.5) * width - BAR_SPACE / 2 for cell, key in values if key == name]
        axes.bar(places, [value for (_, key), value in values.items() if key == name], width, label=name)
    if level is not None:
        axes.axhline(level, color="black", linewidth=0.8)
        _ratio_scale(axes, list(values.values()))
    axes.set_xticks(range(len(cells)), cells, fontsize=7)
    axes.set_ylabel(label)
    axes.set_title(title, fontsize=9)
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return path


def _ratio_scale(axes: Axes, ratios: list[float]) -> None:
    """Ratios that span more than a decade are drawn on a logarithmic scale."""
    if max(ratios) / min(ratios) > 10:
        axes.set_yscale("log")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, help="result files")
    options: Any = parser.parse_args(arguments)
    for path in options.files:
        for written in plot_file(path):
            print(written.name)


if __name__ == "__main__":
    main()
