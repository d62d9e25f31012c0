"""Csr: one direction of a graph plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from . import _native
from ._fault import NO_FAULT, FaultWatch
from ._registration import caching_allowed, declare
from .schedule import RESIDENT_THREADS, Schedule, num_spans

__all__ = ["Csr", "inverse_permutation", "needs_wide_index", "place_by"]

# Kernels step a few slots past the last one in the index dtype before they compare.
_NARROW_LIMIT = 2**31 - 1024


def needs_wide_index(*sizes: int) -> bool:
    """Whether any of these sizes needs int64 indices."""
    return any(size >= _NARROW_LIMIT for size in sizes)


def inverse_permutation(places: Tensor) -> Tensor:
    """``inverse[places[i]] = i`` for a permutation ``places [n]`` of any integer dtype."""
    return place_by(places, torch.arange(places.size(0), dtype=places.dtype, device=places.device))


def place_by(places: Tensor, values: Tensor) -> Tensor:
    """``placed[places[i]] = values[i]`` for a permutation ``places [n]`` and ``values [n]``."""
    return torch.empty_like(values).scatter(0, places.long(), values)


class Csr:
    """Rows of one direction. Immutable; keeps the schedules that were asked for.

    Attributes:
        rowptr: ``[num_rows + 1]`` int32 or int64. ``rowptr[-1]`` may be below ``num_edges``: the slots from there on
            are removed self-loops and are never read.
        col: ``[num_edges]``, same dtype.
        num_cols: ids in ``col`` are below this.
        slot: for a transpose, ``[num_edges]`` slot of each edge in the CSR it was made from; else None.
    """

    def __init__(
        self,
        rowptr: Tensor,
        col: Tensor,
        perm: Tensor | None,
        num_cols: int,
        *,
        slot: Tensor | None = None,
        origin: Csr | None = None,
    ) -> None:
        self.rowptr = rowptr
        self.col = col
        self.num_cols = num_cols
        self.slot = slot
        self._perm = perm
        self._origin = origin
        self._position: Tensor | None = None
        self._schedules: dict[int, Schedule] = {}  # by number of spans
        self._asked: dict[tuple[int, int], Schedule] = {}  # the same, as calls ask for them
        self._inverse_degree: dict[torch.dtype, Tensor] = {}

    @property
    def num_rows(self) -> int:
        return self.rowptr.size(0) - 1

    @property
    def num_edges(self) -> int:
        return self.col.size(0)

    @property
    def perm(self) -> Tensor | None:
        """``[num_edges]`` edge id of each slot; None when the slots are in edge order."""
        if self._perm is None and self._origin is not None and self.slot is not None:
            origin = self._origin.perm
            perm = self.slot if origin is None else origin.index_select(0, self.slot)
            if not caching_allowed():
                return perm
            self._perm = perm
        return self._perm

    @property
    def position(self) -> Tensor:
        """For a transpose: ``[num_edges]`` place in this order of each slot of the CSR it was made from."""
        if self._position is not None:
            return self._position
        assert self.slot is not None
        position = inverse_permutation(self.slot)
        if caching_allowed():
            self._position = position
        return position

    @property
    def nbytes(self) -> int:
        held = [*self.tensors(), self._position]
        held += [t for s in self._schedules.values() for t in (s.spans, s.splits)]
        return sum(t.numel() * t.element_size() for t in held if t is not None)

    def tensors(self) -> Iterator[Tensor | None]:
        """rowptr, col, perm (None if not made yet), slot."""
        return iter((self.rowptr, self.col, self._perm, self.slot))

    def degree(self) -> Tensor:
        """``[num_rows]`` edges of each row, index dtype."""
        return self.rowptr.diff()

    def inverse_degree(self, dtype: torch.dtype) -> Tensor:
        """``[num_rows]`` 1 / edges of each row, 1 for an empty one."""
        known = self._inverse_degree.get(dtype)
        if known is None:
            known = self.degree().clamp(min=1).to(dtype).reciprocal()
            if caching_allowed():
                self._inverse_degree[dtype] = known
        return known

    def schedule(self, row_bytes: int, threads: int = RESIDENT_THREADS) -> Schedule:
        """Spans for feature rows of ``row_bytes`` bytes and an op with ``threads`` resident threads an SM.

        Built once per number of spans.
        """
        asked = (row_bytes, threads)
        if type(row_bytes) is int and asked in self._asked:
            return self._asked[asked]
        spans = num_spans(self.num_rows, self.num_edges, row_bytes, self.rowptr.device, threads)
        known = self._schedules.get(spans) if isinstance(spans, int) else None
        if known is None:
            known = Schedule.build(self.rowptr, self.num_edges, spans)
            if caching_allowed():
                self._schedules[spans] = known
        if caching_allowed():
            self._asked[asked] = known
        return known

    def remember(self, schedule: Schedule) -> None:
        """Keeps a schedule that was built elsewhere."""
        if isinstance(schedule.num_spans, int):  # a symbolic size of compiled code is no key
            self._schedules[schedule.num_spans] = schedule

    def transposed(self) -> Csr:
        """CSR over the columns; within a row, edges in ascending slot order."""
        t_rowptr, t_col, t_slot = torch.ops.gnnagg.csr_transpose(self.rowptr, self.col, self.num_cols)
        return Csr(t_rowptr, t_col, None, self.num_rows, slot=t_slot, origin=self)

    def to(self, device: torch.device) -> Csr:
        moved = [None if t is None else t.to(device) for t in (self.rowptr, self.col, self.perm, self.slot)]
        assert moved[0] is not None and moved[1] is not None
        return Csr(moved[0], moved[1], moved[2], self.num_cols, slot=moved[3])

    def __getstate__(self) -> dict[str, Any]:
        tensors = dict(
            zip(("rowptr", "col", "perm", "slot"), (self.rowptr, self.col, self.perm, self.slot), strict=True)
        )
        return {**tensors, "num_cols": self.num_cols}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(  # type: ignore[misc]
            state["rowptr"], state["col"], state["perm"], state["num_cols"], slot=state["slot"]
        )

    @staticmethod
    def checked(
        rowptr: Tensor, col: Tensor, num_cols: int | None, perm: Tensor | None
    ) -> tuple[Csr, FaultWatch | None]:
        """A Csr from the caller's arrays, made safe to read: see :meth:`Graph.from_csr`."""
        for name, tensor in (("rowptr", rowptr), ("col", col), ("perm", perm)):
            if tensor is None:
                continue
            if tensor.dtype not in (torch.int32, torch.int64) or tensor.dim() != 1:
                raise ValueError(
                    f"Graph.from_csr: {name} must be a 1-D int32 or int64 tensor, got {tensor.dim()}-D {tensor.dtype}"
                )
            if tensor.device != rowptr.device:
                raise ValueError(f"Graph.from_csr: {name} must be on {rowptr.device}, got {tensor.device}")
        if rowptr.numel() == 0:
            raise ValueError("Graph.from_csr: rowptr must be [num_dst + 1], got [0]")
        if perm is not None and perm.shape != col.shape:
            raise ValueError(f"Graph.from_csr: perm must be {list(col.shape)}, got {list(perm.shape)}")
        _native.require(rowptr.device)
        if num_cols is None:
            num_cols = int(col.max()) + 1 if col.numel() else 0
        num_edges = col.size(0)
        dtype = torch.int64 if needs_wide_index(rowptr.size(0), num_cols, num_edges) else torch.int32
        pointers_fit = (rowptr[0] == 0) & (rowptr[-1] == num_edges) & (rowptr.diff() >= 0).all()
        bad = (col < 0) | (col >= num_cols)
        if perm is not None:
            bad |= (perm < 0) | (perm >= num_edges)
        if num_edges:
            first = bad.to(torch.int8).argmax()
            position = torch.where(bad.any() | ~pointers_fit, first, NO_FAULT)
            fault = torch.stack(
                [position, torch.where(pointers_fit, 0, -1), col.index_select(0, first[None])[0].long()]
            )
        else:
            fault = torch.stack(
                [torch.where(pointers_fit, NO_FAULT, 0), torch.where(pointers_fit, 0, -1), rowptr[0] * 0]
            )
        watch = FaultWatch.start(fault.long(), "rowptr, col", None, num_cols)
        if watch is not None:  # not known yet to be sound: make every later read safe without asking the device
            healthy = pointers_fit & ~bad.any()
            rowptr = torch.where(healthy, rowptr, 0)
            col = torch.where(bad, 0, col)
            perm = None if perm is None else torch.where(bad, 0, perm)
        return Csr(rowptr.to(dtype), col.to(dtype), None if perm is None else perm.to(dtype), num_cols), watch


# --- schemas and fakes ---------------------------------------------------------------------------------------------


@declare(
    "csr_from_coo",
    "(Tensor row, Tensor col, SymInt num_rows, SymInt num_cols, int loops, bool wide)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
)
def _csr_from_coo_fake(
    row: Tensor, col: Tensor, num_rows: int, num_cols: int, loops: int, wide: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dtype = torch.int64 if wide else torch.int32
    num_edges = row.size(0) + (min(num_rows, num_cols) if loops in (1, 2) else 0)
    return (
        row.new_empty(num_rows + 1, dtype=dtype),
        row.new_empty(num_edges, dtype=dtype),
        row.new_empty(num_edges, dtype=dtype),
        row.new_empty(3, dtype=torch.int64),
    )


@declare("csr_transpose", "(Tensor rowptr, Tensor col, SymInt num_cols) -> (Tensor, Tensor, Tensor)")
def _csr_transpose_fake(rowptr: Tensor, col: Tensor, num_cols: int) -> tuple[Tensor, Tensor, Tensor]:
    return rowptr.new_empty(num_cols + 1), torch.empty_like(col), torch.empty_like(col)
