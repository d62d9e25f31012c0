"""Arguments of every op, for torch.library.opcheck on the CPU and on CUDA."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from zoo import ZOO, accumulate, features

from gnnagg import Graph

OPS = [
    "csr_from_coo",
    "csr_transpose",
    "build_spans",
    "aggregate_sum",
    "aggregate_extremum",
    "extremum_backward",
    "aggregate_multi",
    "edge_dot",
]
NO_TRANSPOSE = (None,) * 5


def samples(op: str, device: str = "cpu") -> Iterator[tuple[Any, ...]]:
    yield from globals()[f"_{op}"](device)


def _graphs(device: str) -> Iterator[Graph]:
    for name in ("bipartite", "no_edges"):
        yield ZOO[name].graph(device)
    yield ZOO["loops"].graph(device, self_loops="remove_add")


def _csr(graph: Graph) -> tuple[Tensor, ...]:
    schedule = graph.csr.schedule(16)
    return graph.rowptr, graph.col, schedule.spans, schedule.splits


def _csr_from_coo(device: str) -> Iterator[tuple[Any, ...]]:
    for name, loops, wide in (("hub", 0, False), ("loops", 2, True), ("bipartite", 1, False), ("no_edges", 3, False)):
        edges = ZOO[name]
        source, target = edges.edge_index.to(device).unbind()
        yield target.contiguous(), source.contiguous(), edges.num_dst, edges.num_src, loops, wide


def _csr_transpose(device: str) -> Iterator[tuple[Any, ...]]:
    for graph in _graphs(device):
        yield graph.rowptr, graph.col, graph.num_src


def _build_spans(device: str) -> Iterator[tuple[Any, ...]]:
    for graph in _graphs(device):
        for spans in (1, 9):
            yield graph.rowptr, graph.num_edges, spans


def _aggregate_sum(device: str) -> Iterator[tuple[Any, ...]]:
    for graph in _graphs(device):
        for dtype, mean, acc_out in (
            (torch.float32, False, False),
            (torch.float64, True, False),
            (torch.bfloat16, False, True),
        ):
            x = features(graph.num_src, 4, dtype=dtype, device=device).requires_grad_()
            yield x, *_csr(graph), None, None, None, None, mean, acc_out, *NO_TRANSPOSE
            wide = accumulate(dtype)
            weight = features(graph.num_edges, 2, dtype=wide, seed=1, device=device).requires_grad_()
            scales = [torch.rand(n, dtype=wide, device=device) for n in (graph.num_src, graph.num_dst)]
            yield x, *_csr(graph), graph.perm, weight, *scales, mean, acc_out, *NO_TRANSPOSE
    graph = ZOO["bipartite"].graph(device)
    transpose, schedule = graph.transpose, graph.transpose.schedule(16)
    known = (transpose.rowptr, transpose.col, transpose.slot, schedule.spans, schedule.splits)
    x = features(2, 77, 4, device=device).requires_grad_()
    yield x, *_csr(graph), None, None, None, None, False, False, *known


def _aggregate_extremum(device: str) -> Iterator[tuple[Any, ...]]:
    for graph in _graphs(device):
        for dtype, minimum in ((torch.float32, False), (torch.float16, True)):
            x = features(graph.num_src, 4, dtype=dtype, device=device).relu().requires_grad_()
            yield x, *_csr(graph), minimum, True, *NO_TRANSPOSE
            yield x.detach(), *_csr(graph), minimum, False, *NO_TRANSPOSE


def _extremum_backward(device: str) -> Iterator[tuple[Any, ...]]:
    for graph in _graphs(device):
        x = features(graph.num_src, 4, device=device).relu()
        out, winner = torch.ops.gnnagg.aggregate_extremum(x, *_csr(graph), False, True)
        t, schedule = graph.transpose, graph.transpose.schedule(16)
        grad = features(graph.num_dst, 4, seed=1, device=device).requires_grad_()
        yield grad, winner, x, out, *_csr(graph), t.rowptr, t.col, t.slot, schedule.spans, schedule.splits


def _aggregate_multi(device: str) -> Iterator[tuple[Any, ...]]:
    for graph in _graphs(device):
        for dtype, which in ((torch.float32, 31), (torch.float64, 6), (torch.bfloat16, 8)):
            x = features(graph.num_src, 4, dtype=dtype, device=device).requires_grad_()
            yield x, *_csr(graph), which, True, *NO_TRANSPOSE


def _edge_dot(device: str) -> Iterator[tuple[Any, ...]]:
    for graph in _graphs(device):
        for dtype, heads in ((torch.float32, 1), (torch.float16, 2)):
            a = features(graph.num_dst, 4, dtype=dtype, device=device).requires_grad_()
            b = features(graph.num_src, 4, dtype=dtype, seed=1, device=device).requires_grad_()
            yield a, b, *_csr(graph)[:3], graph.perm, heads
