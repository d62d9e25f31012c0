"""Planning on CUDA: the same plan as on the CPU, no host synchronisation, ids out of range survive and are reported."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from zoo import ZOO, Edges, features, ids, make, skewed

import gnnagg
from gnnagg import Graph, aggregate

LOOP_MODES = [None, "add", "remove_add", "remove"]
ops = torch.ops.gnnagg


def assert_same_plan(on_cuda: Graph, on_cpu: Graph) -> None:
    for name in ("rowptr", "col", "perm"):
        actual, expected = getattr(on_cuda, name), getattr(on_cpu, name)
        assert actual.is_cuda and torch.equal(actual.cpu(), expected)
    live, transpose, expected_transpose = int(on_cpu.rowptr[-1]), on_cuda.transpose, on_cpu.transpose
    assert torch.equal(transpose.rowptr.cpu(), expected_transpose.rowptr)
    for name in ("col", "slot"):
        actual, expected = getattr(transpose, name).cpu(), getattr(expected_transpose, name)
        assert torch.equal(actual[:live], expected[:live]), name
    assert torch.equal(transpose.slot.sort().values.cpu().long(), torch.arange(on_cpu.num_edges))


@pytest.mark.parametrize("self_loops", LOOP_MODES)
@pytest.mark.parametrize("name", ZOO)
def test_same_plan_as_on_the_cpu(name: str, self_loops: Any, poison: Callable[[], None]) -> None:
    poison()
    assert_same_plan(ZOO[name].graph("cuda", self_loops=self_loops), ZOO[name].graph(self_loops=self_loops))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_every_integer_dtype(dtype: torch.dtype) -> None:
    edges = ZOO["bipartite"]
    assert_same_plan(Graph.from_edge_index(edges.edge_index.to("cuda", dtype), edges.size), edges.graph())


@pytest.mark.parametrize("num_nodes", [1, 255, 256, 257, 65_536, 65_537, 1_000_000])
def test_node_counts_around_whole_bytes_of_the_sort_key(num_nodes: int) -> None:
    edges = make(skewed(50_000, num_nodes, 0), ids(50_000, num_nodes, 1), num_nodes)
    assert_same_plan(edges.graph("cuda"), edges.graph())


def test_wide_indices_give_the_same_plan() -> None:
    edges = ZOO["power_law"]
    source, target = edges.edge_index.cuda().unbind()
    for loops in range(4):
        wide = ops.csr_from_coo(target, source, 110, 110, loops, True)
        narrow = ops.csr_from_coo(target, source, 110, 110, loops, False)
        for actual, expected in zip(wide[:3], narrow[:3], strict=True):
            assert actual.dtype == torch.int64 and torch.equal(actual, expected.long())
        transposes = (ops.csr_transpose(rowptr, col, 110) for rowptr, col, *_ in (wide, narrow))
        live = int(wide[0][-1])
        for actual, expected in zip(*transposes, strict=True):
            assert torch.equal(actual[:live], expected[:live].long())


def split_rows(spans: int, splits: Tensor) -> tuple[set[tuple[int, ...]], set[tuple[int, ...]]]:
    short, long = splits[0].tolist()
    lists = splits[1 : 1 + short], splits[spans + 1 - long :]
    return tuple({tuple(pair) for pair in each.tolist()} for each in lists)  # type: ignore[return-value]


@settings(max_examples=60, deadline=None)
@given(
    degrees=st.lists(st.one_of(st.just(0), st.integers(0, 9), st.integers(0, 4000)), max_size=40),
    spans=st.sampled_from([1, 2, 7, 64, 1000, 5000]),
    wide=st.booleans(),
)
def test_spans_are_those_of_the_cpu(degrees: list[int], spans: int, wide: bool) -> None:
    rowptr = torch.tensor([0, *degrees]).cumsum(0).to(torch.int64 if wide else torch.int32)
    (expected, expected_splits), (actual, actual_splits) = (
        ops.build_spans(rowptr.to(device), sum(degrees), spans) for device in ("cpu", "cuda")
    )
    assert actual.dtype == rowptr.dtype and torch.equal(actual.cpu(), expected)
    assert split_rows(spans, actual_splits.cpu()) == split_rows(spans, expected_splits)


# --- no host synchronisation -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("self_loops", LOOP_MODES)
def test_planning_with_known_sizes_does_not_wait(self_loops: Any, no_sync: Any) -> None:
    edge_index = ZOO["power_law"].edge_index.cuda()
    with no_sync():
        graph = Graph.from_edge_index(edge_index, (110, 110), self_loops=self_loops)
        views = graph.transpose, graph.flip(), graph.edge_view(), graph.source_view(), graph.target_view()
        assert all(views) and graph.in_degree().is_cuda and graph.csr.schedule(64).num_spans and graph.nbytes
        Graph.from_edge_index(edge_index, (110, 110), self_loops=self_loops)


def test_a_csr_of_known_size_does_not_wait(no_sync: Any) -> None:
    planned = ZOO["power_law"].graph("cuda")
    with no_sync():
        graph = Graph.from_csr(planned.rowptr, planned.col, 110, perm=planned.perm)
    assert torch.equal(
        aggregate(features(110, 4, device="cuda"), graph), aggregate(features(110, 4, device="cuda"), planned)
    )


# --- ids out of range ------------------------------------------------------------------------------------------------


def faulty(place: int, source: int, target: int, dtype: torch.dtype = torch.int64) -> Tensor:
    edge_index = ZOO["power_law"].edge_index.clone()
    edge_index[:, place] = torch.tensor([source, target])
    return edge_index.to("cuda", dtype)


BAD_IDS = [(110, 0), (-1, 3), (5, 110), (5, -7), (2**31 - 1, 2**31 - 1), (2**40, 0), (0, -(2**40))]


@pytest.mark.parametrize("source,target", BAD_IDS)
def test_ids_out_of_range_are_reported_and_never_read(source: int, target: int) -> None:
    graph = Graph.from_edge_index(faulty(700, source, target), 110)
    x = features(110, 4, device="cuda")
    message = f"target {target}, source {source} at edge 700"
    with pytest.raises(IndexError, match=message):
        graph.validate()
    with pytest.raises(IndexError, match=message):  # again, as long as it is used
        graph.validate()
    torch.cuda.synchronize()
    with pytest.raises(IndexError, match=message):
        aggregate(x, graph)
    assert torch.ones(3, device="cuda").sum() == 3  # the context is alive


def test_an_op_before_the_report_is_safe() -> None:
    """The faulty edge is left out; nothing foreign is read, forward or backward."""
    good = ZOO["power_law"]
    keep = torch.arange(1300) != 700
    expected = make(*good.edge_index[:, keep], 110).graph("cuda")
    x = features(110, 4, dtype=torch.float64, device="cuda").requires_grad_()

    def run(graph: Graph, reduce: str) -> list[Tensor]:
        out = aggregate(x, graph, reduce=reduce)
        return [out, *torch.autograd.grad(out.sum(), x)]

    for reduce in ("sum", "max", "var"):
        wanted, edge_index = run(expected, reduce), faulty(700, 2**30, 2**30)
        torch.cuda.synchronize()
        torch.cuda._sleep(200_000_000)  # a tenth of a second: keeps the device, and its report, behind the host
        found = run(Graph.from_edge_index(edge_index, 110), reduce)
        torch.testing.assert_close(found, wanted)
    assert torch.ones(3, device="cuda").sum() == 3


def test_many_faults_name_the_first_edge() -> None:
    edge_index = ZOO["power_law"].edge_index.clone()
    edge_index[0, 40::3] = 9999
    with pytest.raises(IndexError, match="at edge 40$"):
        Graph.from_edge_index(edge_index.cuda(), 110).validate()


def test_debug_raises_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNNAGG_DEBUG", "1")
    with pytest.raises(IndexError, match="target 3, source -1 at edge 7"):
        Graph.from_edge_index(faulty(7, -1, 3), 110)
    with pytest.raises(ValueError, match="rowptr must start at 0"):
        Graph.from_csr(torch.tensor([0, 3], device="cuda"), torch.zeros(2, dtype=torch.long, device="cuda"), 2)


@pytest.mark.parametrize(
    "rowptr,col", [([0, 5, 2], [0, 1]), ([0, 1, 2], [0, 2**30]), ([-4, 1, 2], [0, -1]), ([0, 0, 9], [1, 1])]
)
def test_a_broken_csr_is_reported_and_never_read(rowptr: list[int], col: list[int]) -> None:
    graph = Graph.from_csr(torch.tensor(rowptr, device="cuda"), torch.tensor(col, device="cuda"), 2)
    with contextlib.suppress(IndexError, ValueError):  # it may have been reported by now
        aggregate(torch.ones(2, 4, device="cuda"), graph, reduce="max")
    with pytest.raises((IndexError, ValueError), match="rowptr|col"):
        graph.validate()
    assert torch.ones(3, device="cuda").sum() == 3


def test_ids_out_of_range_with_inferred_sizes() -> None:
    with pytest.raises(IndexError, match="source -2"):
        Graph.from_edge_index(torch.tensor([[0, -2], [1, 1]], device="cuda")).validate()


# --- moving, cache ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("self_loops", [None, "remove_add"])
def test_to_and_back(self_loops: Any) -> None:
    graph = ZOO["power_law"].graph(self_loops=self_loops)
    assert graph.transpose is not None
    moved = graph.to("cuda")
    assert_same_plan(moved, graph)
    assert moved.to("cuda") is moved and moved.to(torch.device("cuda", 0)) is moved
    back = moved.to("cpu")
    weight = features(graph.num_edges, seed=1).requires_grad_()
    grads = []
    for each in (graph, moved, back):
        w = weight.detach().to(each.device).requires_grad_()
        out = aggregate(features(110, 4).to(each.device), each, w)
        grads.append(torch.autograd.grad(out.square().sum(), w)[0].cpu())
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-4)  # float32 dot products in another order
    assert torch.equal(grads[2], grads[0])


def test_memory_of_a_plan_is_freed_with_its_tensor(empty_cache: None) -> None:
    edges = Edges(torch.randint(1000, (2, 1_000_000)), 1000, 1000)
    torch.cuda.synchronize()
    gc.collect()
    before = torch.cuda.memory_allocated()
    edge_index = edges.edge_index.cuda()
    graph = Graph.from_edge_index(edge_index, 1000)
    assert graph.transpose is not None and torch.cuda.memory_allocated() > before + 28_000_000
    del edge_index, graph
    gc.collect()
    assert torch.cuda.memory_allocated() <= before + 1024 and gnnagg.graph_cache_info()["entries"] == 0


def test_devices_may_not_be_mixed() -> None:
    on_cuda, on_cpu = ZOO["chain"].graph("cuda"), ZOO["chain"].graph()
    with pytest.raises(ValueError, match="x must be on the graph's device cuda:0, got cpu"):
        aggregate(features(70, 2), on_cuda)
    with pytest.raises(ValueError, match="x must be on the graph's device cpu, got cuda:0"):
        aggregate(features(70, 2, device="cuda"), on_cpu)
    with pytest.raises(ValueError, match="weight must be on the graph's device cuda:0, got cpu"):
        aggregate(features(70, 2, device="cuda"), on_cuda, features(69))
    with pytest.raises(ValueError, match="col must be on cuda:0, got cpu"):
        Graph.from_csr(on_cuda.rowptr, on_cpu.col, 70)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_second_device_while_the_first_is_current() -> None:
    first = ZOO["big_hub"].graph("cuda:0", self_loops="remove_add")
    second = ZOO["big_hub"].graph("cuda:1", self_loops="remove_add")
    assert torch.cuda.current_device() == 0
    for reduce in ("sum", "mean", "max", "min", "var"):
        results = []
        for graph in (first, second):
            x = features(90, 33).to(graph.device).requires_grad_()
            weight = features(graph.num_edges, seed=1).to(graph.device).requires_grad_()
            out = aggregate(x, graph, weight, reduce)
            results.append([out, *torch.autograd.grad(out.square().sum(), [x, weight])])
        for here, there in zip(*results, strict=True):
            assert there.device.index == 1 and torch.equal(here.cpu(), there.cpu())
    with pytest.raises(ValueError, match="device cuda:1, got cuda:0"):
        aggregate(features(90, 33, device="cuda:0"), second)
