"""What the tests of the attention ops share: shapes, a row that is split, comparison within rounding, memory recorders.

GNNAGG_TEST_DEVICE=cuda runs the files that use DEVICE on a GPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from zoo import STORE_EPS, ZOO, Edges, accumulate, assert_same_bits, ids, make, seeded

from gnnagg import Graph, reference

DEVICE = os.environ.get("GNNAGG_TEST_DEVICE", "cpu")

# For gradgradcheck: the reference computes second derivatives, and torch adds by atomics on a GPU.
SECOND = {"fast_mode": True, "nondet_tol": 0.0 if DEVICE == "cpu" else 1e-9}

# Heads and channels: one wide head, vectors full of heads, odd sizes, one number per head, heads of several vectors,
# more heads than a kernel treats at once, and wide heads of which a group of lanes holds some.
SHAPES = [(1, 64), (8, 8), (3, 5), (1, 1), (5, 1), (2, 33), (70, 2), (4, 64)]

GRAPHS: dict[str, Edges] = {
    **ZOO,
    # One row cut into several spans on the CPU, each of many chunks.
    "long_row": make(ids(10_000, 500, 12), torch.zeros(10_000, dtype=torch.int64), 500, 1),
}

# Rounding of what is kept in the accumulate dtype, relative to the sum of the absolute values that it is made of: 256
# units cover a few roundings in every score and exponential, sums of thousands of edges whose errors are of random
# sign, and scores of up to ten or so, whose own rounding the exponential magnifies.
ACCUMULATE_EPS = {dtype: 256 * STORE_EPS[accumulate(dtype)] for dtype in STORE_EPS}


def exact_mask(seed: int | Tensor, num_edges: int, heads: int, dropout: float) -> Tensor | None:
    """The dropout mask in float64; None without dropout."""
    if dropout == 0.0:
        return None
    kept = reference.dropout_mask(torch.as_tensor(seed).cpu(), num_edges, heads, dropout) > 0
    return (kept.double() / (1.0 - dropout) if dropout < 1.0 else kept.double() * 0).to(DEVICE)


def assert_within(name: str, got: Tensor, want: Tensor, bound: Tensor) -> None:
    """``|got - want| <= bound`` everywhere, NaN where NaN is expected and nowhere else."""
    assert got.shape == want.shape, (name, got.shape, want.shape)
    error = (got.double() - want).abs()
    worst = error - bound
    assert not (worst > 0).any() and torch.equal(got.isnan(), want.isnan()), (
        f"{name}: off by {error.max():.3g}, {worst.max():.3g} more than rounding explains"
    )


@dataclass(frozen=True)
class Weighted:
    """Of an attention in float64: weights, and the sums of absolute values that its results and gradients are made of.

    Attributes:
        alpha: ``[E, H]`` before dropout, in edge order.
        out: ``[N_dst, H, C]``.
        ds: ``[E, H]``, of the gradient of the scores.
        row_dot: ``[E, H]`` alpha * <|grad|, out>, of the part that comes from the stored result.
        dvalue: ``[N_src, H, C]``.
    """

    alpha: Tensor
    out: Tensor
    ds: Tensor
    row_dot: Tensor
    dvalue: Tensor


def magnitudes(alpha: Tensor, mask: Tensor | None, value: Tensor, grad: Tensor, graph: Graph) -> Weighted:
    """For ``out[i] = sum alpha * mask * value[j]`` and its gradient ``grad``, all float64."""
    source, target, edge = reference.edges(graph)
    value, grad, live = value.abs(), grad.abs(), alpha[edge]
    weight = (live if mask is None else live * mask[edge]).unsqueeze(2)
    out = value.new_zeros(grad.shape).index_add(0, target, weight * value[source])
    row_dot = live * (grad * out).sum(2)[target]
    ds = row_dot + (weight * grad[target] * value[source]).sum(2)
    empty = alpha.new_zeros(alpha.shape)
    return Weighted(
        alpha,
        out,
        empty.index_copy(0, edge, ds),
        empty.index_copy(0, edge, row_dot),
        value.new_zeros(value.shape).index_add(0, source, weight * grad[target]),
    )


def sum_over(edge_values: Tensor, graph: Graph, end: str) -> Tensor:
    """``[N, H]``: sums of ``[E, H]`` over the edges of every source or target."""
    source, target, edge = reference.edges(graph)
    index, rows = (source, graph.num_src) if end == "source" else (target, graph.num_dst)
    return edge_values.new_zeros(rows, edge_values.size(1)).index_add(0, index, edge_values[edge])


class TensorRecorder(TorchDispatchMode):
    """Remembers the largest result of any operator that runs inside, in elements, and its name."""

    def __init__(self) -> None:
        super().__init__()
        self.largest, self.name = 0, ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        for each in results if isinstance(results, (tuple, list)) else (results,):
            if isinstance(each, Tensor) and each.numel() > self.largest:
                self.largest, self.name = each.numel(), str(func)
        return results


def largest_allocation(function: Callable[[], object]) -> int:
    """Bytes of the largest single allocation on the CPU while ``function`` runs, those inside of kernels included."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        function()
    assert profile.profiler is not None and profile.profiler.kineto_results is not None
    events = profile.profiler.kineto_results.events()
    return max((event.nbytes() for event in events if event.name() == "[memory]"), default=0)


def saved_bytes(function: Callable[[], object], inputs: Sequence[Tensor]) -> int:
    """Bytes that ``function`` saves for its backward, beside ``inputs``; every storage once."""
    known = {each.untyped_storage().data_ptr() for each in inputs}
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = function()
    del result
    return sum(saved.values())


def check_compiled_with_a_raw_edge_index(
    layer: Callable[..., tuple[Tensor, Tensor]], tensors: Sequence[Tensor], edge_index: Tensor
) -> None:
    """``layer(edge_index, *tensors)``, which plans inside, gives the same compiled: out, alpha and gradients.

    Of two edge counts; what removed loops weigh takes no part.
    """
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    for count in (1300, 700):
        part = edge_index[:, :count].contiguous().to(DEVICE)
        results = []
        for function in (layer, compiled):
            leaves = [t.clone().requires_grad_() for t in tensors]
            out, alpha = function(part, *leaves)
            loss = out.square().sum() + alpha.square().sum()
            results.append([out, alpha, *torch.autograd.grad(loss, leaves)])
        for got, want in zip(*results, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-4)  # float32; schedules may differ


def check_order_of_edges(
    edges: Edges, arguments: dict[str, Any], per_edge: str, gradients: Callable[[dict[str, Any]], dict[str, Tensor]]
) -> None:
    """Shuffled edges change nothing but rounding; a shuffle that leaves every row's order changes no bit.

    ``arguments[per_edge]`` and its gradient are in the order of the edges.
    """
    edge_index = edges.edge_index.to(DEVICE)
    plain = gradients(arguments)
    shuffle = torch.randperm(edge_index.size(1), generator=seeded(1)).to(DEVICE)
    by_target = edge_index[1].argsort(stable=True)
    for order, same_bits in ((shuffle, False), (by_target, True)):
        moved = {
            **arguments,
            "graph": Graph.from_edge_index(edge_index[:, order].contiguous(), edges.size),
            per_edge: arguments[per_edge][order],
        }
        for key, value in gradients(moved).items():
            want = plain[key][order] if key == per_edge else plain[key]
            if same_bits:
                assert_same_bits(value, want)
            else:
                torch.testing.assert_close(value, want, rtol=1e-4, atol=2e-4)  # float32 sums in another order
