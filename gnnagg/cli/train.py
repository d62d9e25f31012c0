"""``gnnagg train``: node classification with gnnagg's layers, and with PyG's beside them for comparison."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer
from tqdm import tqdm

from .. import datasets

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._fit import Fit, Hyper

__all__ = ["train"]

DatasetName = enum.Enum("DatasetName", {name: name for name in datasets.NAMES}, type=str)  # type: ignore[misc]
_EMBEDDED = DatasetName("synthetic")


class LayerName(str, enum.Enum):
    """Layers that can be trained."""

    sage = "sage"
    gcn = "gcn"


class DeviceName(str, enum.Enum):
    """Where to train; auto takes the GPU where there is one."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


_CLASSES = {LayerName.sage: "SAGEConv", LayerName.gcn: "GCNConv"}


def train(
    dataset: Annotated[DatasetName, typer.Option(help="synthetic and karate need no files.")] = _EMBEDDED,
    root: Annotated[
        Path | None, typer.Option(help="Folder of raw files: Cora/raw as PyG has it, or planetoid/cora/raw.")
    ] = None,
    layer: Annotated[LayerName, typer.Option(help="Convolution of every layer.")] = LayerName.sage,
    device: Annotated[DeviceName, typer.Option(help="Where to train.")] = DeviceName.auto,
    hidden: Annotated[int, typer.Option(min=1, help="Hidden channels.")] = 64,
    layers: Annotated[int, typer.Option(min=1, help="Number of convolutions.")] = 2,
    dropout: Annotated[float, typer.Option(min=0, max=1, help="Dropout before every convolution.")] = 0.5,
    lr: Annotated[float, typer.Option(min=0, help="Learning rate of Adam.")] = 0.01,
    weight_decay: Annotated[float, typer.Option(min=0, help="Weight decay of Adam.")] = 5e-4,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of every run.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Of the first run; also of a random split.")] = 0,
    runs: Annotated[int, typer.Option(min=1, help="Runs with the seeds SEED, SEED+1, ...")] = 1,
    compare_pyg: Annotated[
        bool, typer.Option("--compare-pyg", help="Train with PyG's own layers too, from the same weights.")
    ] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all results to this file.")] = None,
    amp: Annotated[bool, typer.Option("--amp", help="bfloat16 autocast.")] = False,
) -> None:
    """Train a node classifier and report accuracy, seconds per epoch and peak memory."""
    if json_file is not None and not json_file.resolve().parent.is_dir():
        raise typer.BadParameter(f"the folder of {json_file} does not exist", param_hint="'--json'")
    where = _device(device)
    classes = _layer_classes(_CLASSES[layer], compare_pyg)
    try:
        data = datasets.load(dataset.value, root, seed=seed).to(where)
    except datasets.DatasetError as error:
        _fail(str(error))

    from ._fit import Hyper

    hyper = Hyper(hidden, layers, dropout, lr, weight_decay, epochs, amp)
    results = _run_all(classes, data, hyper, range(seed, seed + runs))
    _print_report(data, layer, where, hyper, results)
    if json_file is not None:
        options = {"dataset": data.name, "source": data.source, "layer": layer.value, **dataclasses.asdict(hyper)}
        _write_json(json_file, where, options, results)


def _device(choice: DeviceName) -> torch.device:
    """The device to train on; ends the program when it was asked for and is not there."""
    if choice is DeviceName.cuda and not torch.cuda.is_available():
        build = "was built without CUDA" if torch.version.cuda is None else "finds no usable GPU"
        raise typer.BadParameter(f"torch {torch.__version__} {build}", param_hint="'--device'")
    return torch.device("cuda" if choice is not DeviceName.cpu and torch.cuda.is_available() else "cpu")


def _layer_classes(name: str, compare_pyg: bool) -> dict[str, Any]:
    """Layer class by the name that it has in the report."""
    try:
        from .. import nn

        classes = {"gnnagg": getattr(nn, name)}
        if compare_pyg:
            import torch_geometric.nn

            classes["PyG"] = getattr(torch_geometric.nn, name)
    except ImportError as error:
        _fail(str(error))
    return classes


def _run_all(classes: dict[str, Any], data: datasets.NodeDataset, hyper: Hyper, seeds: range) -> dict[str, list[Fit]]:
    """Every seed with every class. The classes take turns, so that a busy machine slows all of them."""
    from ._fit import fit, warm_up

    results: dict[str, list[Fit]] = {name: [] for name in classes}
    total = hyper.epochs * len(seeds) * len(classes)
    with tqdm(total=total, unit="epoch", disable=None, leave=False, dynamic_ncols=True) as bar:
        for conv in classes.values():
            warm_up(conv, data.x.device, hyper)
        for seed in seeds:
            for name, conv in classes.items():
                bar.set_description(f"{name} seed {seed}")
                results[name].append(fit(conv, data, hyper, seed, _progress(bar)))
    return results


def _progress(bar: Any) -> Callable[[int, float, float], None]:
    def show(epoch: int, loss: float, accuracy: float) -> None:
        bar.set_postfix(loss=f"{loss:.3f}", val=f"{accuracy:.3f}", refresh=False)
        bar.update()

    return show


# --- report --------------------------------------------------------------------------------------------------------


def _summary(fits: list[Fit]) -> dict[str, float | None]:
    accuracies = [fit.test_accuracy for fit in fits]
    peaks = [fit.peak_bytes for fit in fits if fit.peak_bytes is not None]
    return {
        "test_accuracy": statistics.mean(accuracies),
        "test_accuracy_std": statistics.stdev(accuracies) if len(fits) > 1 else None,
        "seconds_per_epoch": statistics.median(fit.seconds_per_epoch for fit in fits),
        "peak_bytes": statistics.median(peaks) if peaks else None,
    }


def _ratios(results: dict[str, list[Fit]]) -> dict[str, float | None] | None:
    """PyG divided by gnnagg, and the difference in accuracy."""
    if "PyG" not in results:
        return None
    ours, theirs = _summary(results["gnnagg"]), _summary(results["PyG"])
    times, peaks = (ours["seconds_per_epoch"], theirs["seconds_per_epoch"]), (ours["peak_bytes"], theirs["peak_bytes"])
    assert ours["test_accuracy"] is not None and theirs["test_accuracy"] is not None
    return {
        "accuracy_difference": ours["test_accuracy"] - theirs["test_accuracy"],
        "seconds_per_epoch": times[1] / times[0] if times[0] and times[1] else None,
        "peak_bytes": peaks[1] / peaks[0] if peaks[0] and peaks[1] else None,
    }


def _print_report(
    data: datasets.NodeDataset, layer: LayerName, where: torch.device, hyper: Hyper, results: dict[str, list[Fit]]
) -> None:
    from rich.console import Console
    from rich.table import Table

    threads = torch.get_num_threads()
    cpu = f"cpu, {threads} thread{'' if threads == 1 else 's'}"
    device = torch.cuda.get_device_name(where) if where.type == "cuda" else cpu
    precision = "bfloat16 autocast" if hyper.amp else "float32"
    table = Table(title=f"{data.name}, {hyper.layers} x {_CLASSES[layer]}, {device}, {precision}", title_justify="left")
    for heading in ("layers of", "test accuracy", "seconds per epoch", "peak memory"):
        table.add_column(heading, justify="left" if heading == "layers of" else "right")
    for name, fits in results.items():
        entry = _summary(fits)
        spread = entry["test_accuracy_std"]
        accuracy = f"{entry['test_accuracy']:.4f}" + ("" if spread is None else f" ± {spread:.4f}")
        table.add_row(name, accuracy, f"{entry['seconds_per_epoch']:.5f}", _bytes(entry["peak_bytes"]))
    ratios = _ratios(results)
    if ratios is not None:
        table.add_section()
        table.add_row(
            "PyG ÷ gnnagg",
            f"{ratios['accuracy_difference']:+.4f} *",
            _ratio(ratios["seconds_per_epoch"]),
            _ratio(ratios["peak_bytes"]),
        )
    # Where the output is not a terminal, a fixed width keeps the table whole.
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=110)
    console.print(
        f"{data.name}: {data.num_nodes:,} nodes, {data.num_edges:,} edges, {data.x.size(1):,} features, "
        f"{data.num_classes} classes ({data.source})",
        soft_wrap=True,
    )
    console.print(table)
    notes = ["accuracy at the best validation epoch", "seconds: median epoch, forward + backward + step"]
    if where.type == "cuda":
        notes.append("memory: most bytes allocated by torch, data and graph plan included")
    else:
        notes.append("memory: growth of the process's resident set during training")
    if ratios is not None:
        notes.append("* gnnagg minus PyG")
    console.print("; ".join(notes), style="dim", soft_wrap=True)


def _bytes(count: float | None) -> str:
    return "not known" if count is None else f"{count / 2**20:,.1f} MiB"


def _ratio(value: float | None) -> str:
    return "not known" if value is None else f"{value:.2f} x"


def _write_json(path: Path, where: torch.device, options: dict[str, Any], results: dict[str, list[Fit]]) -> None:
    from .. import __version__
    from ..nn.fallback import stats

    report = {
        "meta": {
            "gnnagg": __version__,
            "torch": str(torch.__version__),
            "device": torch.cuda.get_device_name(where) if where.type == "cuda" else "cpu",
            "threads": torch.get_num_threads(),
            "memory": "max_memory_allocated" if where.type == "cuda" else "resident set growth",
        },
        "options": options,
        "runs": {name: [dataclasses.asdict(fit) for fit in fits] for name, fits in results.items()},
        "summary": {name: _summary(fits) for name, fits in results.items()},
        "ratios": _ratios(results),
        "stats": stats(),
    }
    try:
        path.write_text(json.dumps(_finite(report), indent=2) + "\n")
    except OSError as error:
        _fail(f"cannot write {path}: {error.strerror}")


def _finite(value: Any) -> Any:
    """``value`` with NaN and infinity as None: JSON has no word for them."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _fail(message: str) -> Any:
    """Ends the program with one line on stderr."""
    typer.echo(f"gnnagg train: {message}", err=True)
    raise typer.Exit(1)
