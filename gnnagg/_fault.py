"""FaultWatch: the report of ids out of range that were met while a graph was planned."""

from __future__ import annotations

import os

import torch
from torch import Tensor

from ._registration import being_traced

__all__ = ["NO_FAULT", "FaultWatch"]

# Edge position in the report of a graph without faults.
NO_FAULT = 2**63 - 1


class FaultWatch:
    """The device's report of the first edge with an id out of range, read without making the host wait."""

    def __init__(self, fault: Tensor, what: str, num_rows: int | None, num_cols: int) -> None:
        self._what, self._num_rows, self._num_cols = what, num_rows, num_cols
        self._fault = fault
        self._copy: Tensor | None = None
        self._event: torch.cuda.Event | None = None
        if not torch.cuda.is_current_stream_capturing():
            self._copy = torch.empty(3, dtype=torch.int64, pin_memory=True)
            self._copy.copy_(fault, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(fault.device))

    @staticmethod
    def start(fault: Tensor, what: str, num_rows: int | None, num_cols: int) -> FaultWatch | None:
        """Reports at once where that costs nothing (CPU) or was asked for (GNNAGG_DEBUG=1), else watches."""
        if being_traced():
            return None
        if fault.device.type == "cuda" and os.environ.get("GNNAGG_DEBUG", "0") in ("", "0"):
            return FaultWatch(fault, what, num_rows, num_cols)
        _raise_fault(fault, what, num_rows, num_cols)
        return None

    def wait(self) -> None:
        """Synchronises and raises IndexError if there was a fault."""
        _raise_fault(self._fault, self._what, self._num_rows, self._num_cols)

    def known(self) -> bool:
        """True once the report is in and clean; raises if it is in and not; False while it is not in."""
        if self._event is None or torch.cuda.is_current_stream_capturing() or not self._event.query():
            return False
        assert self._copy is not None
        _raise_fault(self._copy, self._what, self._num_rows, self._num_cols)
        return True


def _raise_fault(fault: Tensor, what: str, num_rows: int | None, num_cols: int) -> None:
    position, row, col = fault.tolist()
    if position == NO_FAULT:
        return
    if num_rows is None and row == -1:
        raise ValueError("Graph.from_csr: rowptr must start at 0, not decrease, and end at len(col); it does not")
    limits = f"source ids in [0, {num_cols})"
    found = f"source {col}"
    if num_rows is not None:
        limits = f"target ids in [0, {num_rows}) and {limits}"
        found = f"target {row}, {found}"
    raise IndexError(f"Graph: {what} must hold {limits}, got {found} at edge {position}")
