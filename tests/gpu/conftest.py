"""Tests that need a CUDA device and gnnagg's CUDA library; skipped as a folder where one is missing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import gnnagg
import gnnagg._native

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = None
    if not torch.cuda.is_available():
        reason = "needs a CUDA device"
    elif not gnnagg._native.available("cuda"):
        reason = f"needs gnnagg's CUDA library: {gnnagg._native.reason('cuda')}"
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("gpu")
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def no_sync() -> Iterator[Callable[[], contextlib.AbstractContextManager[None]]]:
    """A function that makes a context, in which torch raises where it would make the host wait for the device."""

    @contextlib.contextmanager
    def forbid() -> Iterator[None]:
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")

    yield forbid
    torch.cuda.set_sync_debug_mode("default")


@pytest.fixture
def poison() -> Callable[[], None]:
    """Fills freed memory of the caching allocator with bytes 255: NaN in every float format, -1 in every integer."""

    def fill() -> None:
        held = [
            torch.full((size,), 255, dtype=torch.uint8, device="cuda")
            for size in (512, 2048, 8 << 10, 64 << 10, 512 << 10, 2 << 20, 16 << 20)
            for _ in range(12)
        ]
        torch.cuda.synchronize()
        del held

    return fill
