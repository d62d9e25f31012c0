"""How CUDA kernels with several phases are launched: one cooperative launch, or one launch per phase.

Both give the same bits. ``auto``, the default, follows the measured rule in csrc/cuda/launch.cu. The environment
variable ``GNNAGG_LAUNCH`` sets the mode at start.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from . import _native

__all__ = ["LaunchMode", "LaunchPlan", "last_launch_plan", "launch_mode"]

LaunchMode = Literal["auto", "cooperative", "staged"]
_MODES = get_args(LaunchMode)

torch.library.define("gnnagg::set_launch_mode", "(int mode) -> int")
torch.library.define("gnnagg::last_launch_plan", "() -> (int, int, int, int, bool)")


@dataclass(frozen=True)
class LaunchPlan:
    """How a kernel was launched.

    Attributes:
        grid: thread blocks.
        block: threads of a block.
        blocks_per_sm: blocks of this kernel that can be resident on one SM, by the occupancy query in this context.
        sms: SMs of the device.
        cooperative: one launch with grid.sync() between phases, rather than one launch per phase.
    """

    grid: int
    block: int
    blocks_per_sm: int
    sms: int
    cooperative: bool


def last_launch_plan() -> LaunchPlan | None:
    """The plan of this thread's last launch of an op with phases; None before the first, or without CUDA."""
    if not _native.available("cuda"):
        return None
    plan = LaunchPlan(*torch.ops.gnnagg.last_launch_plan())
    return plan if plan.grid else None


@contextlib.contextmanager
def launch_mode(mode: LaunchMode) -> Iterator[None]:
    """Within the block, every launch of this process uses ``mode``.

    Args:
        mode: ``"cooperative"``: phases separated by grid.sync() in one launch, falling back to staged where the grid
            cannot be co-resident. ``"staged"``: one ordinary launch per phase. ``"auto"``: the measured rule.

    Raises:
        ValueError: unknown mode.
    """
    if mode not in _MODES:
        raise ValueError(f"launch_mode: mode must be one of {_MODES}, got {mode!r}")
    if not _native.available("cuda"):
        yield
        return
    previous = torch.ops.gnnagg.set_launch_mode(_MODES.index(mode))
    try:
        yield
    finally:
        torch.ops.gnnagg.set_launch_mode(previous)


def apply_environment() -> None:
    """Sets the mode that GNNAGG_LAUNCH names; ValueError when it names none."""
    mode = os.environ.get("GNNAGG_LAUNCH", "auto")
    if mode not in _MODES:
        raise ValueError(f"GNNAGG_LAUNCH must be one of {_MODES}, got {mode!r}")
    if mode != "auto" and _native.available("cuda"):
        torch.ops.gnnagg.set_launch_mode(_MODES.index(mode))
