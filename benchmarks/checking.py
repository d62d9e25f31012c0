"""Is a result right? Float64 references in plain torch, and the errors that stand beside every time.

Terms. *Row block*: consecutive rows that hold about BLOCK_VALUES values, so that a reference never gathers the whole
graph at once. *Piece*: at most PIECE_EDGES edges of one row; a row is reduced piece by piece, then over its pieces, so
that a hub of millions of edges costs no more than its share.

Errors are taken per element and scaled by the larger of the reference element and a *scale*: the root mean square of
its row, or, for gradients, the root of the summed squares of what was added up. So an element that cancelled does not
blow up, and a wrong short row is not hidden by a hub's large numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from benchmarks.graphs import GraphData

__all__ = [
    "TOLERANCE",
    "Error",
    "compare",
    "reduce_rows",
    "reference_backward",
    "reference_forward",
    "row_blocks",
    "sample_columns",
    "worst",
]

Op = Literal["sum", "max"]

BLOCK_VALUES = 1 << 28
PIECE_EDGES = 1024
SAMPLED_COLUMNS = 16

# Largest scaled error that counts as right. Float32 sums of normal numbers land near 1e-6, a hub's four million added
# one after the other near 1e-4; tf32 would be 3e-4. The half types may round the result once (unit roundoff 2^-11 and
# 2^-8), and nothing before that.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-4, torch.float16: 7e-4, torch.bfloat16: 4.5e-3}


@dataclass(frozen=True)
class Error:
    scaled: float  # largest |out - ref| / max(|ref|, scale); infinite when anything is NaN or missing
    overall: float  # largest |out - ref| / largest |ref|

    def within(self, tolerance: float) -> bool:
        return self.scaled <= tolerance


def worst(errors: Iterable[Error]) -> Error:
    """The larger of each kind of error."""
    pairs = [(error.scaled, error.overall) for error in errors]
    return Error(max(scaled for scaled, _ in pairs), max(overall for _, overall in pairs))


def sample_columns(features: int, limit: int = SAMPLED_COLUMNS) -> Tensor:
    """At most `limit` column numbers from first to last, which fall on every position of a vector load."""
    if features <= limit:
        return torch.arange(features)
    return torch.linspace(0, features - 1, limit, dtype=torch.float64).round().long()


def reference_forward(x: Tensor, graph: GraphData, op: Op) -> Tensor:
    """Sum or maximum over the neighbours in float64; x [N, F] -> [N, F], empty rows 0."""
    wide = x.double()
    out = torch.empty(graph.num_nodes, x.size(1), dtype=torch.float64, device=x.device)
    for rows, edges in row_blocks(graph, x.size(1)):
        out[rows] = reduce_rows(wide[graph.col[edges]], graph.degree[rows], op)
    return out


def reference_backward(x: Tensor, grad: Tensor, graph: GraphData, op: Op) -> Tensor:
    """Gradient of `reference_forward` for grad [N, F] in float64; equal winners of a maximum share it equally."""
    wide, grad = x.double(), grad.double()
    out = torch.zeros_like(wide)
    for rows, edges in row_blocks(graph, x.size(1)):
        col, row = graph.col[edges], graph.row[edges].long() - rows.start
        share = grad[rows]
        if op == "sum":
            out.index_add_(0, col, share[row])
            continue
        neighbours = wide[col]
        best = reduce_rows(neighbours, graph.degree[rows], "max")
        wins = (neighbours == best[row]).double()
        share = share / reduce_rows(wins, graph.degree[rows], "sum").clamp(min=1)
        out.index_add_(0, col, wins.mul_(share[row]))
    return out


def compare(out: Tensor, reference: Tensor, columns: Tensor | None = None, scale: Tensor | None = None) -> Error:
    """The error of `out` [N, F] against `reference` [N, F], or [N, len(columns)] when only those columns have one.

    `scale` has the shape of the reference; without it each row's root mean square is taken.
    """
    features = reference.size(1) if columns is None else out.size(1)
    if out.shape != (reference.size(0), features):
        return Error(math.inf, math.inf)
    if out.numel() == 0:
        return Error(0.0, 0.0)
    scaled, largest_gap, largest = 0.0, 0.0, 0.0
    rows_at_once = max(1, BLOCK_VALUES // max(1, features) // 4)
    for begin in range(0, out.size(0), rows_at_once):
        rows = slice(begin, begin + rows_at_once)
        got, want = out[rows], reference[rows]
        if not bool(torch.isfinite(got).all()):
            return Error(math.inf, math.inf)
        got = (got if columns is None else got[:, columns.to(got.device)]).double()
        gap = (got - want).abs_()
        floor = want.square().mean(1, keepdim=True).sqrt_() if scale is None else scale[rows]
        relative = gap / torch.maximum(want.abs(), floor)
        relative[gap == 0] = 0  # 0 / 0: an empty row that came out empty
        scaled = max(scaled, float(relative.max()))
        largest_gap = max(largest_gap, float(gap.max()))
        largest = max(largest, float(want.abs().max()))
    return Error(scaled, largest_gap / largest if largest else (0.0 if largest_gap == 0 else math.inf))


def row_blocks(graph: GraphData, features: int) -> Iterator[tuple[slice, slice]]:
    """Pairs (rows, their edges); a block has one row at least, however long that row is."""
    edges_per_block = max(1, BLOCK_VALUES // max(1, features))
    rowptr = graph.rowptr.cpu()
    begin = 0
    while begin < graph.num_nodes:
        limit = rowptr[begin] + edges_per_block
        end = int(torch.searchsorted(rowptr, limit, right=True)) - 1
        end = min(max(end, begin + 1), graph.num_nodes)
        yield slice(begin, end), slice(int(rowptr[begin]), int(rowptr[end]))
        begin = end


def reduce_rows(values: Tensor, degree: Tensor, op: Op) -> Tensor:
    """Values [e, F] of consecutive rows with these degrees [r] -> [r, F]; empty rows 0."""
    if values.size(0) == 0:
        return values.new_zeros(degree.numel(), values.size(1))
    pieces = torch.div(degree + (PIECE_EDGES - 1), PIECE_EDGES, rounding_mode="floor")
    first_piece = pieces.cumsum(0) - pieces
    rank = torch.arange(int(pieces.sum()), device=values.device) - first_piece.repeat_interleave(pieces)
    length = (degree.repeat_interleave(pieces) - rank * PIECE_EDGES).clamp_(max=PIECE_EDGES)
    partial = torch.segment_reduce(values, op, lengths=length, unsafe=True)
    out = torch.segment_reduce(partial, op, lengths=pieces, unsafe=True)
    return out.masked_fill_((degree == 0).unsqueeze(1), 0)
