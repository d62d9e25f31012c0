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
    "dropout_mask",
    "edge_softmax",
    "edge_softmax_backward",
    "gat_attention",
    "gat_attention_backward",
    "gatv2_attention",
    "gatv2_attention_backward",
    "dot_attention",
    "dot_attention_backward",
    "propagate",
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


def _dropout_mask(device: str) -> Iterator[tuple[Any, ...]]:
    for heads, dropout in ((1, 0.0), (6, 0.5)):
        yield torch.tensor([7], device=device), 20, heads, dropout


def _edge_softmax(device: str) -> Iterator[tuple[Any, ...]]:
    for graph in _graphs(device):
        rowptr, _, spans, splits = _csr(graph)
        for dtype, heads in ((torch.float32, 1), (torch.float16, 3), (torch.float64, 8)):
            yield (
                features(graph.num_edges, heads, dtype=dtype, device=device).requires_grad_(),
                rowptr,
                spans,
                splits,
                graph.perm,
            )


def _edge_softmax_backward(device: str) -> Iterator[tuple[Any, ...]]:
    for graph in _graphs(device):
        rowptr, _, spans, splits = _csr(graph)
        score, grad = (features(graph.num_edges, 3, seed=seed, device=device) for seed in (0, 1))
        alpha = torch.ops.gnnagg.edge_softmax(score, rowptr, spans, splits, graph.perm)
        yield grad.requires_grad_(), alpha.requires_grad_(), rowptr, spans, splits, graph.perm


def _gat_operands(graph: Graph, dtype: torch.dtype, optional: bool, device: str) -> list[Tensor | None]:
    """z, a_src, a_dst, edge_score with 2 heads of 3 channels; the last two None unless ``optional``."""
    wide = accumulate(dtype)
    rows = (graph.num_src, graph.num_dst, graph.num_edges)
    scores = [features(n, 2, dtype=wide, seed=i, device=device).requires_grad_() for i, n in enumerate(rows)]
    z = features(graph.num_src, 6, dtype=dtype, seed=5, device=device).requires_grad_()
    return [z, scores[0], *(scores[1:] if optional else (None, None))]


def _transpose(graph: Graph) -> tuple[Tensor, ...]:
    transpose, schedule = graph.transpose, graph.transpose.schedule(16)
    return transpose.rowptr, transpose.col, graph.transpose_slot(), schedule.spans, schedule.splits


def _gat_attention(device: str) -> Iterator[tuple[Any, ...]]:
    seed = torch.tensor([7], device=device)
    for graph in _graphs(device):
        for dtype, optional in ((torch.float32, True), (torch.float64, False), (torch.bfloat16, True)):
            operands = _gat_operands(graph, dtype, optional, device)
            yield *operands, *_csr(graph), graph.perm, None, 0.2, 0.0, False, *NO_TRANSPOSE
            yield *operands, *_csr(graph), graph.perm, seed, 0.2, 0.5, True, *_transpose(graph)


def _gat_attention_backward(device: str) -> Iterator[tuple[Any, ...]]:
    seed = torch.tensor([7], device=device)
    for graph in _graphs(device):
        for dtype, optional, positive in (
            (torch.float32, True, False),
            (torch.float64, False, False),
            (torch.float32, True, True),
        ):
            operands = _gat_operands(graph, dtype, optional, device)
            results = torch.ops.gnnagg.gat_attention(*operands, *_csr(graph), graph.perm, seed, 0.2, 0.5, positive)
            grad = features(graph.num_dst, 6, dtype=dtype, seed=9, device=device).requires_grad_()
            known = [each.detach() for each in results]
            plan = (*_csr(graph), graph.perm, *_transpose(graph))
            yield grad, *operands, *known, *plan, seed, 0.2, 0.5, optional, optional and not positive


def _optional_edges(graph: Graph, width: int, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """edge_attr and edge_weight with 3 columns."""
    attr = features(graph.num_edges, 3, dtype=dtype, seed=3, device=device)
    return attr.requires_grad_(), features(width, 3, dtype=accumulate(dtype), seed=4, device=device).requires_grad_()


def _rows(count: int, dtype: torch.dtype, seed: int, device: str) -> Tensor:
    return features(count, 6, dtype=dtype, seed=seed, device=device).requires_grad_()


def _gatv2_operands(graph: Graph, dtype: torch.dtype, edges: bool, device: str) -> tuple[Tensor | None, ...]:
    """l, r, att with 2 heads of 3 channels, edge_attr, edge_weight."""
    att = features(2, 3, dtype=accumulate(dtype), seed=2, device=device).requires_grad_()
    extra = _optional_edges(graph, 6, dtype, device) if edges else (None, None)
    return _rows(graph.num_src, dtype, 0, device), _rows(graph.num_dst, dtype, 1, device), att, *extra


def _gatv2_attention(device: str) -> Iterator[tuple[Any, ...]]:
    seed = torch.tensor([7], device=device)
    for graph in _graphs(device):
        for dtype, edges in ((torch.float32, True), (torch.float64, False), (torch.bfloat16, True)):
            operands = _gatv2_operands(graph, dtype, edges, device)
            yield *operands, *_csr(graph), graph.perm, None, 0.2, 0.0, *NO_TRANSPOSE
            yield *operands, *_csr(graph), graph.perm, seed, 0.2, 0.5, *_transpose(graph)


def _gatv2_attention_backward(device: str) -> Iterator[tuple[Any, ...]]:
    seed = torch.tensor([7], device=device)
    for graph in _graphs(device):
        for dtype, edges, need_edge in (
            (torch.float32, True, True),
            (torch.float64, False, False),
            (torch.float16, True, False),
        ):
            operands = _gatv2_operands(graph, dtype, edges, device)
            plan = (*_csr(graph), graph.perm)
            known = [t.detach() for t in torch.ops.gnnagg.gatv2_attention(*operands, *plan, seed, 0.2, 0.5)]
            grad = _rows(graph.num_dst, dtype, 9, device)
            yield grad, *operands, *known, *plan, *_transpose(graph), seed, 0.2, 0.5, need_edge


def _dot_operands(graph: Graph, dtype: torch.dtype, edges: bool, device: str) -> tuple[Tensor | None, ...]:
    """q, k, v with 2 heads of 3 channels, edge_query, edge_attr."""
    rows = (graph.num_dst, graph.num_src, graph.num_src)
    features_of = [_rows(count, dtype, seed, device) for seed, count in enumerate(rows)]
    if not edges:
        return *features_of, None, None
    query = features(graph.num_dst, 2, 3, dtype=accumulate(dtype), seed=5, device=device).requires_grad_()
    return *features_of, query, _optional_edges(graph, 6, dtype, device)[0]


def _dot_attention(device: str) -> Iterator[tuple[Any, ...]]:
    seed = torch.tensor([7], device=device)
    for graph in _graphs(device):
        for dtype, edges in ((torch.float32, True), (torch.float64, False), (torch.bfloat16, True)):
            operands = _dot_operands(graph, dtype, edges, device)
            yield *operands, *_csr(graph), graph.perm, None, 2, 0.5, 0.0, *NO_TRANSPOSE
            yield *operands, *_csr(graph), graph.perm, seed, 2, 0.5, 0.5, *_transpose(graph)


def _dot_attention_backward(device: str) -> Iterator[tuple[Any, ...]]:
    seed = torch.tensor([7], device=device)
    for graph in _graphs(device):
        for dtype, edges in ((torch.float32, True), (torch.float64, False), (torch.float16, True)):
            operands = _dot_operands(graph, dtype, edges, device)
            plan = (*_csr(graph), graph.perm)
            known = [t.detach() for t in torch.ops.gnnagg.dot_attention(*operands, *plan, seed, 2, 0.5, 0.5)]
            grads = (_rows(graph.num_dst, dtype, 9, device), torch.ones_like(known[2]))
            yield *grads, *operands, *known, *plan, *_transpose(graph), seed, 2, 0.5, 0.5


def _propagate(device: str) -> Iterator[tuple[Any, ...]]:
    for graph in (ZOO["power_law"].graph(device), ZOO["loops"].graph(device, self_loops="remove_add")):
        count = graph.num_src
        for dtype, hops, return_all in ((torch.float32, 2, False), (torch.float64, 2, True), (torch.bfloat16, 0, True)):
            x, x0 = (features(count, 4, dtype=dtype, seed=seed, device=device).requires_grad_() for seed in (0, 1))
            weight = features(graph.num_edges, dtype=accumulate(dtype), device=device).requires_grad_()
            yield x, None, *_csr(graph), None, None, hops, 0.0, return_all, *NO_TRANSPOSE
            yield x, x0, *_csr(graph), graph.perm, weight, hops, 0.1, return_all, *_transpose(graph)
