"""Fixtures that every test shares. The folder is on sys.path, so tests import ``zoo`` from it."""

from __future__ import annotations

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
