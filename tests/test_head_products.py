"""Products of rows with one matrix per head, whose gradients are summed over blocks of rows."""

from __future__ import annotations

import pytest
import torch
from attention_zoo import DEVICE
from zoo import features

from gnnagg._head_products import _ROWS_AT_ONCE, project


@pytest.mark.parametrize("count", [0, 1, _ROWS_AT_ONCE - 1, _ROWS_AT_ONCE, 3 * _ROWS_AT_ONCE + 7])
def test_results_and_gradients(count: int) -> None:
    rows = features(count, 3, 4, dtype=torch.float64, device=DEVICE).requires_grad_()
    matrices = features(3, 4, 2, dtype=torch.float64, seed=1, device=DEVICE).requires_grad_()
    grad = features(count, 3, 2, dtype=torch.float64, seed=2, device=DEVICE)
    results = []
    for product in (project(rows, matrices), torch.einsum("nhk,hkm->nhm", rows, matrices)):
        results.append((product, *torch.autograd.grad(product, (rows, matrices), grad)))
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def test_second_derivatives() -> None:
    inputs = [features(*size, dtype=torch.float64, device=DEVICE).requires_grad_() for size in ((5, 2, 3), (2, 3, 2))]
    assert torch.autograd.gradcheck(project, inputs)
    assert torch.autograd.gradgradcheck(project, inputs)


def test_keeps_the_dtype_under_autocast() -> None:
    rows, matrices = features(5, 2, 3, device=DEVICE), features(2, 3, 2, device=DEVICE)
    with torch.autocast(DEVICE, torch.bfloat16):
        inside = project(rows, matrices)
    assert inside.dtype == torch.float32 and torch.equal(inside, project(rows, matrices))
