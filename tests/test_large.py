"""Sizes at which narrow numbers end; as small as they can be and still get there."""

from __future__ import annotations

import pytest
import torch
from zoo import REDUCES, ZOO, assert_same_bits, features, run

import gnnagg._csr
from gnnagg import Graph, aggregate


@pytest.mark.parametrize("reduce", REDUCES)
def test_64_bit_indices_give_the_same_results(reduce: str, monkeypatch: pytest.MonkeyPatch) -> None:
    edges = ZOO["big_hub"]
    x, grad, weight = features(90, 9).relu(), features(90, 9, seed=1), features(9_090, seed=2)
    narrow = Graph.from_edge_index(edges.edge_index.clone(), edges.size)
    monkeypatch.setattr(gnnagg._csr, "_NARROW_LIMIT", 0)
    wide = Graph.from_edge_index(edges.edge_index.clone(), edges.size)
    assert wide.col.dtype == wide.rowptr.dtype == wide.perm.dtype == wide.transpose.slot.dtype == torch.int64
    for w in (None, weight):
        for actual, expected in zip(*(run(x, graph, w, reduce, grad) for graph in (wide, narrow)), strict=True):
            assert_same_bits(actual, expected)


def test_indices_are_wide_from_the_size_on_where_32_bits_end() -> None:
    assert not gnnagg._csr.needs_wide_index(2**31 - 2000, 5)
    assert gnnagg._csr.needs_wide_index(5, 2**31 - 1)


def test_one_node_receives_more_than_2_to_24_edges() -> None:
    """Where a float32 counter or accumulator that adds one by one stops counting."""
    count = (1 << 24) + 1000
    rowptr, col = torch.tensor([0, count], dtype=torch.int32), torch.zeros(count, dtype=torch.int32)
    graph = Graph.from_csr(rowptr, col, 1)
    ones = torch.ones(1, 1)
    assert aggregate(ones, graph).item() == count
    assert aggregate(ones.half(), graph, reduce="mean").item() == 1
    assert aggregate(ones, graph, reduce=("mean", "var"))[1].item() == 0


def test_features_of_more_than_2_to_31_bytes_apart() -> None:
    """Offsets into x are 64-bit whatever the index dtype: two nodes, 2^31 bytes of float16 features between them."""
    width = (1 << 16) + 1
    nodes = (1 << 31) // 2 // width + 2
    x = torch.empty(nodes, width, dtype=torch.float16)  # not touched but for two rows: no memory is used for the rest
    x[0], x[-1] = 1, 2
    graph = Graph.from_csr(torch.tensor([0, 2]), torch.tensor([0, nodes - 1]), nodes)
    assert (aggregate(x, graph) == 3).all() and (aggregate(x, graph, reduce="max") == 2).all()
