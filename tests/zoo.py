"""The graphs that tests run on, random inputs for them, and the comparison with gnnagg.reference in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gnnagg import Graph, aggregate, reference

REDUCES = ["sum", "mean", "max", "min", "var", "std"]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]

# Rounding of a stored result: half a unit in the last place. A gradient in a half format is rounded twice: where the
# incoming gradient is divided (mean, ties, std), and where the sum is stored.
STORE_EPS = {torch.float32: 2.0**-24, torch.float64: 2.0**-53, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
# Rounding of a sum, relative to the sum of the absolute values: that of float32 (float64) times the square root of the
# edges that one span adds up in order (4096 on the CPU), times 4 for errors that are not of random sign.
SUM_EPS = {dtype: 4 * 64 * STORE_EPS[torch.float64 if dtype == torch.float64 else torch.float32] for dtype in DTYPES}


@dataclass(frozen=True)
class Edges:
    """An edge list: ``edge_index [2, E]`` int64 of (source, target), with its node counts."""

    edge_index: Tensor
    num_src: int
    num_dst: int

    @property
    def size(self) -> tuple[int, int]:
        return self.num_src, self.num_dst

    def graph(self, device: str = "cpu", **options: object) -> Graph:
        return Graph.from_edge_index(self.edge_index.to(device), self.size, **options)  # type: ignore[arg-type]


def make(source: Tensor, target: Tensor, num_src: int, num_dst: int | None = None) -> Edges:
    """Edges in random order, so that every plan needs its permutation."""
    order = torch.randperm(source.numel(), generator=seeded(source.numel()))
    return Edges(torch.stack([source, target])[:, order], num_src, num_src if num_dst is None else num_dst)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def ids(count: int, below: int, seed: int) -> Tensor:
    return torch.randint(below, (count,), generator=seeded(seed))


def skewed(count: int, below: int, seed: int) -> Tensor:
    """Ids with a power-law frequency: the cube of a uniform number."""
    return (torch.rand(count, generator=seeded(seed)).double() ** 3 * below).long()


def _hub(edges: int) -> Edges:
    """Node 3 receives ``edges`` edges from 90 nodes (so most are duplicates), node 7 sends as many, others a few."""
    ring = torch.arange(90)
    source = torch.cat([ids(edges, 90, 1), torch.full((edges,), 7), ring])
    target = torch.cat([torch.full((edges,), 3), ids(edges, 90, 2), (ring + 1) % 90])
    return make(source, target, 90)


_NONE = torch.zeros(0, dtype=torch.int64)
_LOOPS = torch.arange(20).repeat_interleave(4)

ZOO: dict[str, Edges] = {
    "power_law": make(skewed(1300, 110, 3), skewed(1300, 110, 4), 110),
    "hub": _hub(700),
    "big_hub": _hub(4500),  # enough edges for several spans on the CPU: node 3's row is split
    "one_row": make(ids(800, 40, 5), torch.zeros(800, dtype=torch.int64), 40, 1),
    "dense": make(ids(3000, 12, 6), ids(3000, 12, 7), 12),  # 250 edges a row
    "chain": make(torch.arange(69), torch.arange(1, 70), 70),
    "gaps": make(ids(60, 100, 8), torch.tensor([5, 40, 41, 99])[ids(60, 4, 9)], 100),
    "bipartite": make(ids(400, 77, 10), ids(400, 30, 11), 77, 30),
    "duplicates": make(torch.arange(6).flip(0).repeat_interleave(50), torch.arange(6).repeat_interleave(50), 6),
    "loops": make(_LOOPS // 3 * 3, _LOOPS, 20),
    "single": make(_NONE.new_zeros(1), _NONE.new_zeros(1), 1),
    "no_edges": make(_NONE, _NONE, 12),
    "no_rows": make(_NONE, _NONE, 5, 0),
    "no_sources": make(_NONE, _NONE, 0, 5),
    "nothing": make(_NONE, _NONE, 0),
}


def features(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0, device: str = "cpu") -> Tensor:
    """N(0, 1), the same numbers for every device and (rounded) every dtype."""
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64).to(device, dtype)


def accumulate(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def bits(tensor: Tensor) -> Tensor:
    """The bit patterns, which compare NaN and signed zeros too."""
    return tensor.detach().contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])


def assert_same_bits(actual: Tensor, expected: Tensor) -> None:
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    assert torch.equal(bits(actual), bits(expected))


def run(
    x: Tensor, graph: Graph, weight: Tensor | None, reduce: str, grad: Tensor, *, op: Callable[..., Tensor] = aggregate
) -> list[Tensor]:
    """Result and gradients of x (and of weight, where there is one)."""
    inputs = [t.detach().clone().requires_grad_() for t in (x, weight) if t is not None]
    out = op(inputs[0], graph, inputs[1] if weight is not None else None, reduce)
    return [out.detach(), *torch.autograd.grad(out, inputs, grad.to(out.dtype))]


def assert_matches_reference(
    x: Tensor, graph: Graph, weight: Tensor | None, reduce: str, *, backward: bool = True
) -> None:
    """aggregate and its gradients against gnnagg.reference in float64, within the rounding of the dtype of x."""
    if reduce == "std":  # it jumps to 0 at a variance of 1e-5: on a grid, no variance but 0 comes near
        x = (x * 8).round() / 8
    result_dtype = x.dtype if weight is None else torch.promote_types(x.dtype, weight.dtype)
    shape = (graph.num_dst, *x.shape[1:]) if x.size(0) == graph.num_src else (x.size(0), graph.num_dst, x.size(2))
    grad = features(*shape, dtype=result_dtype, seed=99, device=x.device.type)
    actual = run(x, graph, weight, reduce, grad)
    x64, grad64 = x.double(), grad.double()
    weight64 = None if weight is None else weight.double()
    expected = run(x64, graph, weight64, reduce, grad64, op=reference.aggregate)
    bounds = _magnitudes(x64, graph, weight64, reduce, grad64)
    dtypes = [result_dtype, x.dtype] + ([] if weight is None else [weight.dtype])
    for place, (got, want, bound, dtype) in enumerate(zip(actual, expected, bounds, dtypes, strict=True)):
        if place and not backward:
            break
        assert got.dtype == dtype and got.shape == want.shape, (place, got.dtype, got.shape)
        # The incoming gradient of a half format takes part in two or three roundings, each to the format.
        store = max(STORE_EPS[dtype], STORE_EPS[result_dtype] if place else 0.0) * (4 if place else 1)
        error = (got.double() - want).abs()
        worst = error - (
            store * torch.maximum(want.abs(), bound * (place > 0)) + SUM_EPS[x.dtype] * bound + _tiny(dtype)
        )
        assert not (worst > 0).any() and torch.equal(got.isnan(), want.isnan()), (
            f"{('result', 'gradient of x', 'gradient of weight')[place]}: off by {error.max():.3g}, "
            f"{worst.max():.3g} more than rounding explains"
        )


def _tiny(dtype: torch.dtype) -> float:
    """Below the smallest normal number of a format the relative precision ends."""
    return torch.finfo(dtype).tiny


def _magnitudes(x: Tensor, graph: Graph, weight: Tensor | None, reduce: str, grad: Tensor) -> list[Tensor]:
    """Per element the sum of absolute values that went into it: what rounding errors are relative to."""
    size = None if weight is None else weight.abs()
    if reduce in ("sum", "mean"):
        return run(x.abs(), graph, size, reduce, grad.abs(), op=reference.aggregate)
    if reduce in ("max", "min"):
        return [each.abs() for each in run(x, graph, weight, reduce, grad.abs(), op=reference.aggregate)]
    # var: 2 (x - mean) / degree * grad, with |x - mean| bounded by 2 max|x|. std divides by it once more; the inputs of
    # these tests stay well above its floor, and 16 covers 1/std.
    largest = float(x.abs().max()) if x.numel() else 0.0
    reach = (
        4 * largest * (largest if weight is None else largest * float(weight.abs().max()) if weight.numel() else 0.0)
    )
    out, *grads = run(x.abs(), graph, size, "mean", grad.abs(), op=reference.aggregate)
    scale = 16.0 if reduce == "std" else 4.0
    return [out * 0 + (1 + reach) * scale, *(each * (1 + reach) * scale for each in grads)]
