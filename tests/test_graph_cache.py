"""One plan per edge_index: found again while the tensor is unchanged, gone with it, bounded, thread-safe."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch
from zoo import ZOO

import gnnagg
from gnnagg import Graph, graph_cache_info

pytestmark = pytest.mark.usefixtures("empty_cache")


def edge_index() -> torch.Tensor:
    return ZOO["power_law"].edge_index.clone()


def test_same_tensor_gives_the_same_plan() -> None:
    edges = edge_index()
    first = Graph.from_edge_index(edges, 110)
    hits = graph_cache_info()["hits"]
    assert Graph.from_edge_index(edges, 110) is first and Graph.from_edge_index(edges, (110, 110)) is first
    assert Graph.from_edge_index(edges) is first  # the inferred size is the same
    assert graph_cache_info()["hits"] == hits + 3 and graph_cache_info()["entries"] == 1
    assert Graph.from_edge_index(edges.clone(), 110) is not first


def test_another_size_flow_or_loop_mode_is_another_plan() -> None:
    edges = edge_index()
    plans = [
        Graph.from_edge_index(edges, 110),
        Graph.from_edge_index(edges, (110, 111)),
        Graph.from_edge_index(edges, 110, flow="target_to_source"),
        Graph.from_edge_index(edges, 110, self_loops="add"),
        Graph.from_edge_index(edges, 110, self_loops="remove"),
    ]
    assert len({id(plan) for plan in plans}) == len(plans) == graph_cache_info()["entries"]


def test_change_in_place_is_noticed() -> None:
    edges = edge_index()
    before = Graph.from_edge_index(edges, 110)
    edges[1, :50] = 0
    after = Graph.from_edge_index(edges, 110)
    assert after is not before and after.in_degree()[0] >= 50
    edges.numpy()[1, :] = 1  # unseen by torch: documented limit of a version counter
    assert Graph.from_edge_index(edges, 110) is after


def test_plan_dies_with_its_tensor() -> None:
    edges = edge_index()
    plan = weakref.ref(Graph.from_edge_index(edges, 110))
    gc.collect()
    assert plan() is not None
    del edges
    gc.collect()
    assert plan() is None and graph_cache_info()["entries"] == 0


def test_new_tensor_at_an_old_address_is_not_taken_for_the_old_one() -> None:
    for shift in range(20):
        edges = torch.tensor([[0, 1], [0, shift]])
        assert Graph.from_edge_index(edges, 30).in_degree()[shift] >= 1
        del edges


def test_plan_in_use_outlives_its_tensor() -> None:
    edges = edge_index()
    graph = Graph.from_edge_index(edges, 110)
    del edges
    gc.collect()
    assert gnnagg.aggregate(torch.ones(110, 1), graph).sum() == 1300


def test_cache_is_bounded_and_keeps_the_most_recent() -> None:
    tensors = [edge_index() for _ in range(5)]
    one = Graph.from_edge_index(tensors[0], 110).nbytes
    gnnagg.set_graph_cache_limit(3 * one + one // 2)
    plans = [Graph.from_edge_index(each, 110) for each in tensors]
    assert graph_cache_info()["entries"] == 3 and graph_cache_info()["nbytes"] <= graph_cache_info()["limit"]
    assert Graph.from_edge_index(tensors[2], 110) is plans[2]  # used again: now the last to go
    Graph.from_edge_index(tensors[0], 110)
    assert Graph.from_edge_index(tensors[2], 110) is plans[2]
    assert Graph.from_edge_index(tensors[1], 110) is not plans[1]
    gnnagg.set_graph_cache_limit(0)
    assert graph_cache_info()["entries"] == 1
    with pytest.raises(ValueError, match="nbytes must be >= 0, got -1"):
        gnnagg.set_graph_cache_limit(-1)


def test_growth_of_a_plan_counts() -> None:
    """The transpose is built later; the next plan that is stored makes room for it."""
    tensors = [edge_index() for _ in range(3)]
    first = Graph.from_edge_index(tensors[0], 110)
    gnnagg.set_graph_cache_limit(2 * first.nbytes)
    assert first.transpose is not None
    Graph.from_edge_index(tensors[1], 110)
    assert graph_cache_info()["entries"] == 1


def test_clear() -> None:
    edges = edge_index()
    first = Graph.from_edge_index(edges, 110)
    gnnagg.clear_graph_cache()
    assert graph_cache_info()["entries"] == 0 and Graph.from_edge_index(edges, 110) is not first


def test_inference_tensors_are_planned_but_not_kept() -> None:
    with torch.inference_mode():
        edges = edge_index()
        first = Graph.from_edge_index(edges, 110)
        assert Graph.from_edge_index(edges, 110) is not first and graph_cache_info()["entries"] == 0


def test_plan_made_in_inference_mode_trains() -> None:
    edges = edge_index()
    with torch.inference_mode():
        graph = Graph.from_edge_index(edges, 110)
        gnnagg.aggregate(torch.ones(110, 2), graph, reduce=("mean", "var"))
    x, weight = torch.ones(110, 2, requires_grad=True), torch.ones(1300, requires_grad=True)
    assert Graph.from_edge_index(edges, 110) is graph
    for reduce in ("mean", "max", "var"):
        gnnagg.aggregate(x, graph, weight, reduce).sum().backward()
    assert x.grad is not None and weight.grad is not None


def test_several_threads() -> None:
    shared = [edge_index() for _ in range(4)]
    expected = [Graph.from_edge_index(each, 110).rowptr for each in shared]
    gnnagg.set_graph_cache_limit(2 * Graph.from_edge_index(shared[0], 110).nbytes)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for turn in range(60):
                each = turn % len(shared)
                assert torch.equal(Graph.from_edge_index(shared[each], 110).rowptr, expected[each])
                own = shared[each].clone()
                assert Graph.from_edge_index(own, 110).out_degree().sum() == 1300
        except BaseException as failure:
            failures.append(failure)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert not failures and not any(worker.is_alive() for worker in workers)
