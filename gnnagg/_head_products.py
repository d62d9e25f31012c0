"""Products of rows with one small matrix per head."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["project"]

# Rows that one partial sum of the matrices' gradient takes. A batched product of so few numbers per head, over all rows
# at once, runs in as many thread blocks as there are heads.
_ROWS_AT_ONCE = 1024


def project(rows: Tensor, matrices: Tensor) -> Tensor:
    """``rows [N, H, K]`` times ``matrices [H, K, M]`` head by head, in their dtype under autocast too."""
    if torch.is_autocast_enabled(rows.device.type):
        with torch.autocast(rows.device.type, enabled=False):
            return project(rows, matrices)
    result: Tensor = _Projection.apply(rows, matrices)  # type: ignore[no-untyped-call]
    return result


class _Projection(torch.autograd.Function):
    @staticmethod
    def forward(rows: Tensor, matrices: Tensor) -> Tensor:
        return _product(rows, matrices)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        rows, matrices = ctx.saved_tensors
        of_rows, of_matrices = ctx.needs_input_grad
        return (
            _product(grad, matrices.transpose(1, 2)) if of_rows else None,
            _sum_of_products(rows, grad) if of_matrices else None,
        )


def _product(rows: Tensor, matrices: Tensor) -> Tensor:
    return torch.bmm(rows.transpose(0, 1), matrices).transpose(0, 1)


def _sum_of_products(left: Tensor, right: Tensor) -> Tensor:
    """``[H, K, M]``: the sum over n of ``left[n, h, :, None] * right[n, h, None, :]``, of [N, H, K] and [N, H, M]."""
    count = left.size(0) // _ROWS_AT_ONCE
    rest = count * _ROWS_AT_ONCE
    total = torch.bmm(left[rest:].permute(1, 2, 0), right[rest:].transpose(0, 1))
    if count == 0:
        return total
    parts = [
        torch.bmm(
            left[:rest, head].unflatten(0, (count, _ROWS_AT_ONCE)).transpose(1, 2),
            right[:rest, head].unflatten(0, (count, _ROWS_AT_ONCE)),
        ).sum(0)
        for head in range(left.size(1))
    ]
    return total + torch.stack(parts)
