"""Schedule: how the rows of one CSR are cut into spans of equal cost.

The rule itself is in csrc/common/schedule.h; this page decides how many spans there are. Merge-path partitioning of a
CSR is from Merrill and Garland, "Merge-Based Parallel Sparse Matrix-Vector Multiplication", SC 2016.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ._registration import declare

__all__ = ["ATTENTION_THREADS", "GAT_THREADS", "RESIDENT_THREADS", "Schedule", "num_spans"]

# A span is walked by one sub-warp group of lanes, each lane holding 16 bytes of a feature row; a row of more than 512
# bytes is walked in tiles of at most 32 lanes.
_LANE_BYTES = 16
_MAX_LANES = 32
# A row weighs as much as this many edges (kRowCost of the span rule).
_ROW_COST = 2
# Threads per SM that run at once (csrc/cuda/tuning.h): two blocks of 512 threads; of attention, which needs
# more registers, two of 256, or for the forward pass of GAT three.
RESIDENT_THREADS = 1024
ATTENTION_THREADS = 512
GAT_THREADS = 768
# Several spans per group even out the speed differences between SMs on large graphs; short spans cost more in partials
# and scheduling than they balance.
_SPANS_PER_GROUP = 8
_LONG_SPAN_COST = 512
_SHORT_SPAN_COST = 16
# CPU: spans long enough to hide a task switch, few enough that a partial row is rare. Fixed, so that results do not
# depend on the number of threads.
_CPU_SPAN_COST = 4096
_CPU_MAX_SPANS = 4096


@dataclass(frozen=True, eq=False)
class Schedule:
    """The spans of one CSR. Printable; immutable.

    Attributes:
        spans: ``[num_spans + 1, 2]``, index dtype of the CSR: (row, edge slot) where each span begins.
        splits: ``[num_spans + 1, 2]``: entry 0 counts (short, long) split rows, then (first, last) inside boundary of
            each: short ones from the front, long ones from the back.
    """

    spans: Tensor
    splits: Tensor

    @property
    def num_spans(self) -> int:
        return self.spans.size(0) - 1

    def __repr__(self) -> str:
        return f"Schedule(num_spans={self.num_spans}, index={self.spans.dtype}, device={self.spans.device})"

    @staticmethod
    def build(rowptr: Tensor, num_edges: int, spans: int) -> Schedule:
        """Cuts the rows of ``rowptr [num_rows + 1]`` into ``spans`` spans. Does not synchronise."""
        return Schedule(*torch.ops.gnnagg.build_spans(rowptr, num_edges, spans))


def num_spans(
    num_rows: int, num_edges: int, row_bytes: int, device: torch.device, threads: int = RESIDENT_THREADS
) -> int:
    """Number of spans for one CSR: depends on sizes and the device alone, so that it needs no host synchronisation.

    Args:
        num_rows: rows of the CSR.
        num_edges: length of its column array.
        row_bytes: bytes of one feature row, features times element size.
        device: where the op runs; on CUDA the number of SMs counts.
        threads: of the op that are resident on one SM.
    """
    cost = num_edges + _ROW_COST * num_rows
    if device.type != "cuda":
        return max(1, min(_CPU_MAX_SPANS, -(-cost // _CPU_SPAN_COST)))
    groups = _num_groups(row_bytes, device, threads)
    wide = groups * _SPANS_PER_GROUP
    if cost >= wide * _LONG_SPAN_COST:
        return wide
    if cost >= groups * _LONG_SPAN_COST:
        return groups * (cost // (groups * _LONG_SPAN_COST))
    return max(1, min(groups, cost // _SHORT_SPAN_COST))


def _num_groups(row_bytes: int, device: torch.device, threads: int) -> int:
    """Sub-warp groups that run at once on ``device``."""
    lanes = 1
    while lanes < _MAX_LANES and lanes * _LANE_BYTES < row_bytes:
        lanes *= 2
    return _num_sms(device.index or 0) * (threads // lanes)


_sms: dict[int, int] = {}


def _num_sms(index: int) -> int:
    if index not in _sms:
        _sms[index] = int(torch.cuda.get_device_properties(index).multi_processor_count)
    return _sms[index]


# --- schema and fake -----------------------------------------------------------------------------------------------


@declare("build_spans", "(Tensor rowptr, SymInt num_edges, SymInt num_spans) -> (Tensor, Tensor)")
def _build_spans_fake(rowptr: Tensor, num_edges: int, num_spans: int) -> tuple[Tensor, Tensor]:
    shape = (num_spans + 1, 2)
    return rowptr.new_empty(shape), rowptr.new_empty(shape)
