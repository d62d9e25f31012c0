"""Fixtures that every test shares. The folder is on sys.path, so tests import ``zoo`` from it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

import gnnagg


@pytest.fixture
def empty_cache() -> Iterator[None]:
    """Starts and ends with an empty graph cache of the default limit."""
    limit = gnnagg.graph_cache_info()["limit"]
    gnnagg.clear_graph_cache()
    yield
    gnnagg.clear_graph_cache()
    gnnagg.set_graph_cache_limit(limit)


@pytest.fixture
def threads() -> Iterator[None]:
    """Puts torch's thread count back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def fresh_layers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Layers with no fall-back counted, a fixed seed, and tensors made on the device of GNNAGG_TEST_DEVICE."""
    device = os.environ.get("GNNAGG_TEST_DEVICE", "cpu")
    monkeypatch.delenv("GNNAGG_STRICT", raising=False)
    monkeypatch.delenv("GNNAGG_VERBOSE", raising=False)
    gnnagg.reset_stats()
    torch.manual_seed(0)
    if device == "cpu":
        yield
        return
    monkeypatch.setenv("GNNAGG_DEBUG", "1")  # ids out of range are reported at once, as on the CPU
    # PyG as on the CPU: torch-scatter gives all of a tie's gradient to one edge, and without this it is chance which of
    # several self-loops of a node has the last word.
    monkeypatch.setattr("torch_geometric.typing.WITH_TORCH_SCATTER", False)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    with torch.device(device):
        yield
    torch.use_deterministic_algorithms(before)
