"""Forward and backward give the same bits on every run and for every number of threads."""

from __future__ import annotations

import pytest
import torch
from zoo import DTYPES, REDUCES, ZOO, assert_same_bits, features, run, seeded

from gnnagg import Graph, aggregate, edge_dot

# 20,000 nodes and 120,000 edges, a sixth of them into node 5: several spans, and a row that is split among them.
LARGE = torch.randint(20_000, (2, 120_000), generator=seeded(0))
LARGE[1, ::6] = 5


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduce", REDUCES)
def test_any_number_of_threads_and_any_repeat(reduce: str, weighted: bool, threads: None) -> None:
    x, grad = features(20_000, 8).relu(), features(20_000, 8, seed=1)
    weight = features(120_000, seed=2) if weighted else None
    expected = None
    for count in (1, 2, 3, 2):
        torch.set_num_threads(count)
        graph = Graph.from_edge_index(LARGE.clone(), 20_000)
        assert int(graph.csr.schedule(32).splits[0].sum()) > 0  # the hub is cut
        results = run(x, graph, weight, reduce, grad)
        expected = expected or results
        for actual, want in zip(results, expected, strict=True):
            assert_same_bits(actual, want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_repeats_on_one_plan(dtype: torch.dtype) -> None:
    graph = ZOO["big_hub"].graph()
    x, grad = features(90, 17, dtype=dtype).relu(), features(90, 17, dtype=dtype, seed=1)
    for reduce in REDUCES:
        first, *others = (run(x, graph, None, reduce, grad) for _ in range(4))
        for each in others:
            for actual, want in zip(each, first, strict=True):
                assert_same_bits(actual, want)


def test_planning_and_edge_dot(threads: None) -> None:
    a, b = features(20_000, 6), features(20_000, 6, seed=1)
    results = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        graph = Graph.from_edge_index(LARGE.clone(), 20_000, self_loops="remove_add")
        results.append((graph.rowptr, graph.col, graph.perm, *graph.transpose.tensors(), edge_dot(a, b, graph, 2)))
    for each in results[1:]:
        assert all(torch.equal(actual, want) for actual, want in zip(each, results[0], strict=True) if want is not None)


def test_alone_or_together_max_and_min_are_the_same() -> None:
    """One pass for several reductions and a pass for one pick the same winners."""
    graph = ZOO["big_hub"].graph()
    x = features(90, 17)
    together = aggregate(x, graph, reduce=("max", "min", "sum"))
    for name, result in zip(("max", "min"), together, strict=False):
        assert_same_bits(result, aggregate(x, graph, reduce=name))
