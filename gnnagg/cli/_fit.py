"""Training a node classifier and measuring it: accuracy, seconds per epoch, peak memory."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import gc
import itertools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..datasets import NodeDataset

__all__ = ["Classifier", "Fit", "Hyper", "fit", "warm_up"]

# Epochs that are not timed: the plan is built, kernels are loaded, the allocator finds its size.
_UNTIMED_EPOCHS = 3


@dataclasses.dataclass(frozen=True)
class Hyper:
    """What is chosen on the command line for every run."""

    hidden: int
    layers: int
    dropout: float
    lr: float
    weight_decay: float
    epochs: int
    amp: bool


@dataclasses.dataclass(frozen=True)
class Fit:
    """One training run.

    Attributes:
        seed: of weights and dropout.
        test_accuracy: at the epoch of the best validation accuracy, the first of several.
        val_accuracy: the best.
        best_epoch: counted from 1.
        final_loss: training loss of the last epoch.
        seconds_per_epoch: median over the timed epochs of forward, backward and optimizer step.
        peak_bytes: CUDA: most bytes of tensors allocated, data and plan included. CPU: growth of the resident set of
            the process over the run. None where the system does not tell.
    """

    seed: int
    test_accuracy: float
    val_accuracy: float
    best_epoch: int
    final_loss: float
    seconds_per_epoch: float
    peak_bytes: int | None


class Classifier(torch.nn.Module):
    """``layers`` convolutions with ReLU and dropout between them.

    Args:
        conv: layer class, called as ``conv(in_channels, out_channels)``.
        num_features: columns of x.
        num_classes: columns of the result.
        hyper: width, depth and dropout.
    """

    def __init__(self, conv: Callable[[int, int], torch.nn.Module], num_features: int, num_classes: int, hyper: Hyper):
        super().__init__()
        widths = [num_features, *[hyper.hidden] * (hyper.layers - 1), num_classes]
        self.convs = torch.nn.ModuleList(conv(*pair) for pair in itertools.pairwise(widths))
        self.dropout = hyper.dropout

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """``[N, num_classes]`` scores."""
        for index, conv in enumerate(self.convs):
            if index:
                x = x.relu()
            x = conv(F.dropout(x, self.dropout, self.training), edge_index)
        return x


def fit(
    conv: Callable[[int, int], torch.nn.Module],
    data: NodeDataset,
    hyper: Hyper,
    seed: int,
    on_epoch: Callable[[int, float, float], None] = lambda epoch, loss, accuracy: None,
) -> Fit:
    """Trains a :class:`Classifier` with Adam on the training nodes.

    Args:
        conv: layer class.
        data: on the device to train on.
        hyper: settings.
        seed: two layer classes that draw their weights alike start from the same weights.
        on_epoch: called after each epoch with its number from 1, the loss and the validation accuracy.
    """
    device = data.x.device
    memory = _PeakMemory(device)
    torch.manual_seed(seed)
    model = Classifier(conv, data.x.size(1), data.num_classes, hyper).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=hyper.lr, weight_decay=hyper.weight_decay)
    y_train = data.y[data.train_mask]
    seconds: list[float] = []
    best = (-1.0, 0.0, 0)
    loss = torch.zeros(())
    for epoch in range(1, hyper.epochs + 1):
        model.train()
        _finish(device)
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with _autocast(device, hyper.amp):
            scores = model(data.x, data.edge_index)
        loss = F.cross_entropy(scores[data.train_mask].float(), y_train)
        loss.backward()
        optimizer.step()
        _finish(device)
        seconds.append(time.perf_counter() - start)
        val, test = _accuracies(model, data, hyper)
        if val > best[0]:
            best = (val, test, epoch)
        on_epoch(epoch, loss.item(), val)
    timed = seconds[_UNTIMED_EPOCHS:] or seconds
    return Fit(seed, best[1], best[0], best[2], loss.item(), statistics.median(timed), memory.peak())


def warm_up(conv: Callable[[int, int], torch.nn.Module], device: torch.device, hyper: Hyper) -> None:
    """Two epochs on a ring of a few nodes, so that loading libraries counts in no run's time or memory."""
    num_nodes = 32
    node = torch.arange(num_nodes)
    mask = torch.ones(num_nodes, dtype=torch.bool)
    ring = torch.stack([node, node.roll(1)])
    tiny = NodeDataset("ring", "", torch.ones(num_nodes, 8), ring, node % 2, mask, mask, mask, 2)
    state = torch.random.get_rng_state()
    fit(conv, tiny.to(device), dataclasses.replace(hyper, epochs=2, hidden=8), seed=0)
    torch.random.set_rng_state(state)


@torch.no_grad()
def _accuracies(model: Classifier, data: NodeDataset, hyper: Hyper) -> tuple[float, float]:
    """Share of validation and of test nodes that are classified correctly."""
    model.eval()
    with _autocast(data.x.device, hyper.amp):
        right = model(data.x, data.edge_index).argmax(-1) == data.y
    val, test = (right[mask].float().mean().item() for mask in (data.val_mask, data.test_mask))
    return val, test


def _autocast(device: torch.device, amp: bool) -> Any:
    return torch.autocast(device.type, torch.bfloat16) if amp else contextlib.nullcontext()


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class _PeakMemory:
    """Peak memory from construction to :meth:`peak`; see :class:`Fit` for what it counts."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._start: int | None = None
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
            return
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)  # memory that an earlier run freed would hide this run's growth
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again from here
            self._start = _proc_status("VmRSS")

    def peak(self) -> int | None:
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        if self._start is None:
            return None
        highest = _proc_status("VmHWM")
        return None if highest is None else max(0, highest - self._start)


def _proc_status(field: str) -> int | None:
    """Bytes of one entry of /proc/self/status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return None
