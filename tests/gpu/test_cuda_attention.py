"""The attention ops, edge_softmax and propagate on CUDA: launch modes, repeats, CUDA graphs, indices, hubs, memory.

That results are right is in tests/test_*_attention.py, which run on the GPU with GNNAGG_TEST_DEVICE=cuda.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import pytest
import torch
from test_cuda_aggregate import capture
from torch import Tensor
from zoo import ZOO, Edges, accumulate, assert_same_bits, features, make, skewed

import gnnagg
from gnnagg import Graph, reference
from gnnagg._csr import Csr
from gnnagg.dropout_mask import dropout_mask

LARGE = make(skewed(60_000, 9_000, 21), skewed(60_000, 9_000, 22), 9_000)
# 4, 2 and 1 owners of a batch's scores; heads of several chunks; a row of several tiles.
SHAPES = [(1, 64), (8, 8), (3, 5), (2, 260), (4, 64)]
SEED = 77


def inputs(op: str, graph: Graph, shape: tuple[int, int], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Random arguments of ``op`` that take a gradient."""
    heads, wide = shape[0], accumulate(dtype)

    def draw(*size: int, seed: int, kind: torch.dtype = dtype) -> Tensor:
        return features(*size, dtype=kind, seed=seed, device="cuda").requires_grad_()

    src, dst, edges = graph.num_src, graph.num_dst, graph.num_edges
    if op in ("gat", "gat_edge"):
        scores = [draw(src, heads, seed=1, kind=wide), draw(dst, heads, seed=2, kind=wide)]
        edge = [draw(edges, heads, seed=3, kind=wide)] if op == "gat_edge" else []
        return [draw(src, *shape, seed=0), *scores, *edge]
    # Edge features: two blocks of what the kernels take at once, the second not full.
    extra = [draw(edges, 6, seed=4), draw(shape[0] * shape[1], 6, seed=5, kind=wide)] if "edge" in op else []
    if op.startswith("gatv2"):
        return [draw(src, *shape, seed=0), draw(dst, *shape, seed=1), draw(*shape, seed=2, kind=wide), *extra]
    if op.startswith("dot"):
        return [draw(dst, *shape, seed=0), draw(src, *shape, seed=1), draw(src, *shape, seed=2), *extra]
    if op == "softmax":
        return [draw(edges, heads, seed=0)]
    width = shape[0] * shape[1]
    return [draw(src, width, seed=0), draw(src, width, seed=1), draw(edges, seed=2, kind=wide)]


def call(op: str, graph: Graph, tensors: Sequence[Tensor], **options: Any) -> Tensor:
    if op in ("gat", "gat_edge"):
        edge = tensors[3] if op == "gat_edge" else None
        return gnnagg.gat_attention(*tensors[:3], graph, edge_score=edge, **options)  # type: ignore[return-value]
    if op.endswith("_edge"):
        options |= {"edge_attr": tensors[3], "edge_weight_matrix": tensors[4] / 4}
    if op.startswith("gatv2"):
        return gnnagg.gatv2_attention(*tensors[:3], graph, **options)  # type: ignore[return-value]
    if op.startswith("dot"):
        return gnnagg.dot_attention(*tensors[:3], graph, **options)  # type: ignore[return-value]
    if op == "softmax":
        return gnnagg.edge_softmax(tensors[0], graph)
    return gnnagg.propagate(tensors[0] / 8, graph, 4, weight=tensors[2] / 8, teleport=0.1, x0=tensors[1])


@lru_cache
def incoming(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An incoming gradient; made once, so that a capture copies nothing from the host."""
    return features(*shape, dtype=dtype, seed=9, device="cuda")


def everything(op: str, graph: Graph, tensors: Sequence[Tensor], **options: Any) -> list[Tensor]:
    """The result and every gradient."""
    out = call(op, graph, tensors, **options)
    grad = incoming(tuple(out.shape), out.dtype)
    return [out.detach(), *torch.autograd.grad(out, list(tensors), grad)]


DROPS = ["gat", "gat_edge", "gatv2", "gatv2_edge", "dot", "dot_edge"]
OPS = [*DROPS, "softmax", "propagate"]
square = pytest.mark.parametrize("name", ["hub", "LARGE", "no_edges"])


def edges_of(name: str) -> Edges:
    return LARGE if name == "LARGE" else ZOO[name]


def assert_all_same(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    for got, want in zip(actual, expected, strict=True):
        assert_same_bits(got, want)


# --- same bits -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("op", OPS)
@square
def test_cooperative_staged_auto_and_repeats(
    name: str, op: str, shape: tuple[int, int], dtype: torch.dtype, poison: Callable[[], None]
) -> None:
    graph = edges_of(name).graph("cuda")
    tensors = inputs(op, graph, shape, dtype)
    options = {"dropout": 0.4, "seed": SEED} if op in DROPS else {}
    expected: list[Tensor] | None = None
    for mode in ("cooperative", "staged", "auto", "cooperative", "staged"):
        poison()
        with gnnagg.launch_mode(mode):  # type: ignore[arg-type]
            results = everything(op, graph, tensors, **options)
        expected = expected or results
        assert_all_same(results, expected)


@pytest.mark.parametrize("op", OPS)
def test_fifty_repeats(op: str) -> None:
    graph = LARGE.graph("cuda")
    tensors = inputs(op, graph, (4, 16))
    expected = everything(op, graph, tensors)
    for _ in range(50):
        assert_all_same(everything(op, graph, tensors), expected)


@pytest.mark.parametrize("op", ["gat", "gatv2", "dot", "propagate"])
def test_ten_thousand_launches(op: str) -> None:
    """Cooperative launches, one behind the other: none hangs, the last gives the bits of the first."""
    graph = ZOO["hub"].graph("cuda")
    tensors = [each.detach() for each in inputs(op, graph, (1, 64))]
    with gnnagg.launch_mode("cooperative"):
        expected = call(op, graph, tensors)
        for _ in range(10_000):
            result = call(op, graph, tensors)
    assert_same_bits(result, expected)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", ["power_law", "big_hub", "no_edges"])
def test_64_bit_indices(name: str, op: str) -> None:
    """Other kernels, with narrower loads: the same within rounding."""
    edges = ZOO[name]
    source, target = edges.edge_index.cuda().unbind()
    results = []
    for wide in (False, True):
        arrays = torch.ops.gnnagg.csr_from_coo(target, source, edges.num_dst, edges.num_src, 0, wide)
        graph = Graph(Csr(*arrays[:3], edges.num_src))
        options = {"dropout": 0.3, "seed": SEED} if op in DROPS else {}
        results.append(everything(op, graph, inputs(op, graph, (2, 8)), **options))
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)  # float32 sums in another order


@pytest.mark.parametrize("op", OPS)
def test_addresses_that_allow_no_wide_loads(op: str) -> None:
    graph = ZOO["power_law"].graph("cuda")
    tensors = inputs(op, graph, (2, 8))
    expected = everything(op, graph, tensors)
    for place, tensor in enumerate(tensors):
        room = tensor.new_empty(tensor.numel() + 1)
        moved = room.detach()[1:].view_as(tensor).copy_(tensor.detach()).requires_grad_()
        results = everything(op, graph, [*tensors[:place], moved, *tensors[place + 1 :]])
        for actual, want in zip(results, expected, strict=True):
            torch.testing.assert_close(actual, want, rtol=1e-4, atol=1e-4)  # float32 sums in another order


def test_two_streams_at_once() -> None:
    graph = LARGE.graph("cuda")
    with gnnagg.launch_mode("cooperative"):
        cases = {op: inputs(op, graph, (4, 16)) for op in OPS}
        expected = {op: everything(op, graph, tensors) for op, tensors in cases.items()}
        torch.cuda.synchronize()
        streams = [torch.cuda.Stream() for _ in range(2)]
        found = []
        for _ in range(5):
            for op, tensors in cases.items():
                for stream in streams:
                    with torch.cuda.stream(stream):
                        found.append((op, everything(op, graph, tensors)))
        torch.cuda.synchronize()
    for op, results in found:
        assert_all_same(results, expected[op])


# --- dropout ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("heads", [1, 4, 6, 33])
@pytest.mark.parametrize("dropout", [0.0, 0.25, 0.9, 1.0])
def test_mask_is_that_of_the_cpu(dropout: float, heads: int) -> None:
    seed = torch.tensor([2**62 + 12345])
    on_cpu = dropout_mask(seed, 5000, heads, dropout)
    assert_same_bits(dropout_mask(seed.cuda(), 5000, heads, dropout).cpu(), on_cpu)
    assert torch.equal(on_cpu > 0, reference.dropout_mask(seed, 5000, heads, dropout) > 0)


@pytest.mark.parametrize("op", DROPS)
def test_every_replay_draws_another_mask(op: str) -> None:
    """The seed is drawn on the device, from torch's generator, so that a CUDA graph does not repeat one mask."""
    graph = ZOO["power_law"].graph("cuda")
    tensors = inputs(op, graph, (2, 8))
    replay, results = capture(lambda: everything(op, graph, tensors, dropout=0.5))
    seen = []
    for _ in range(3):
        replay.replay()
        seen.append([each.clone() for each in results])
    assert not torch.equal(seen[0][0], seen[1][0]) and not torch.equal(seen[1][0], seen[2][0])


# --- CUDA graphs, host synchronisation -------------------------------------------------------------------------------


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", ["hub", "LARGE"])
def test_capture_and_replay(name: str, op: str) -> None:
    graph = edges_of(name).graph("cuda")
    tensors = inputs(op, graph, (4, 16))
    options = {"dropout": 0.4, "seed": torch.tensor([SEED], device="cuda")} if op in DROPS else {}
    replay, results = capture(lambda: everything(op, graph, tensors, **options))
    for seed in (5, 6):
        with torch.no_grad():
            for place, each in enumerate(tensors):
                each.copy_(features(*each.shape, seed=10 * seed + place, device="cuda"))
        for _ in range(10):
            replay.replay()
        assert_all_same(results, everything(op, graph, tensors, **options))


@pytest.mark.parametrize("op", OPS)
def test_no_host_synchronisation(op: str, no_sync: Any) -> None:
    graph = LARGE.graph("cuda")
    tensors = inputs(op, graph, (4, 16))
    options = {"dropout": 0.4} if op in DROPS else {}
    everything(op, graph, tensors, **options)
    with no_sync():
        everything(op, graph, tensors, **options)


# --- size ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["gat", "gatv2", "dot"])
def test_hub_of_four_million_edges(op: str) -> None:
    """All edges into one node, and its transpose: sums over the hub against float64."""
    count = 4_000_000
    source = torch.randint(1000, (count,), device="cuda")
    graph = Graph.from_edge_index(torch.stack([source, torch.zeros_like(source)]), (1000, 1))
    tensors = inputs(op, graph, (2, 4))
    out, *grads = everything(op, graph, tensors)
    # Duplicates weigh as one edge with its count: the same attention on 1000 edges, with log(count) on the score.
    times = torch.bincount(source, minlength=1000).double()
    wide = [each.detach().double().requires_grad_() for each in tensors]
    if op == "gat":
        score = torch.nn.functional.leaky_relu(wide[1] + wide[2], 0.2)
        value = wide[0]
    elif op == "gatv2":
        score = (wide[2] * torch.nn.functional.leaky_relu(wide[0] + wide[1], 0.2)).sum(-1)
        value = wide[0]
    else:
        score = (wide[0] * wide[1]).sum(-1) / 2.0
        value = wide[2]
    alpha = (score + times.log()[:, None]).softmax(0)
    want = (alpha[:, :, None] * value).sum(0, keepdim=True)
    grad = features(*out.shape, seed=9, device="cuda").double()
    torch.testing.assert_close(out.double(), want, rtol=1e-4, atol=1e-5)  # float32 sums of 4 M weights
    for got, expected in zip(grads, torch.autograd.grad(want, wide, grad), strict=True):
        scale = float(expected.abs().max())
        torch.testing.assert_close(got.double(), expected, rtol=1e-3, atol=1e-4 * scale + 1e-6)


@pytest.mark.parametrize("op", ["gat", "gatv2", "gatv2_edge", "dot", "dot_edge"])
def test_memory_is_that_of_nodes_and_edge_scores(op: str) -> None:
    """Forward and backward: less than one tensor of every edge and feature, most of it inputs' gradients and spans."""
    edges = 2_000_000
    index = torch.randint(20_000, (2, edges), device="cuda")
    graph = Graph.from_edge_index(index, 20_000)
    tensors = inputs(op, graph, (4, 32))
    everything(op, graph, tensors)  # plans
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    everything(op, graph, tensors)
    torch.cuda.synchronize()
    extra = torch.cuda.max_memory_allocated() - before
    assert extra < edges * 4 * 32 * 4 / 4, f"{extra / 2**20:.0f} MiB"


@pytest.mark.parametrize("op", DROPS)
def test_gradcheck(op: str) -> None:
    graph = ZOO["gaps"].graph("cuda")
    tensors = inputs(op, graph, (2, 3), torch.float64)
    assert torch.autograd.gradcheck(
        lambda *given: call(op, graph, given, dropout=0.3, seed=SEED), tensors, nondet_tol=0.0
    )
