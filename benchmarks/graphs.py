"""The graphs that the benchmarks run on: five synthetic ones, their variations, and real ones read from npz files.

Every builder returns a `GraphData` in CSR order: rows are target nodes, the sources of a row are sorted, duplicate
edges are kept. The synthetic graphs depend on the seed and on the generator of the device only, so two CUDA devices
build the same graph. `scale` shrinks a graph (nodes and edges alike) for tests; 1 is the size the published times refer
to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

__all__ = [
    "FIVE",
    "REAL",
    "GraphData",
    "build",
    "from_coo",
    "from_npz",
    "hub",
    "hub_by_source",
    "hub_removed",
    "names",
    "power_law",
    "small_power_law",
    "uniform_degree_four",
    "uniform_random",
]

# How many random numbers are drawn at once: part of the definition, because the generator advances per call.
DRAWS_PER_CALL = 1 << 26


@dataclass(frozen=True, eq=False)
class GraphData:
    """A graph in CSR order; E edges, N nodes that are sources and targets alike."""

    name: str
    num_nodes: int
    rowptr: Tensor  # [N + 1] int64
    col: Tensor  # [E] int32, source of each edge
    row: Tensor  # [E] int32, target of each edge
    standard: bool = True  # full size, so that published times refer to it
    uniform: bool = False  # equal degrees and uniform sources, so that a share of the gather ceiling means something

    @property
    def num_edges(self) -> int:
        return self.col.numel()

    @property
    def device(self) -> torch.device:
        return self.col.device

    @cached_property
    def degree(self) -> Tensor:
        """Edges per row, [N] int64."""
        return self.rowptr[1:] - self.rowptr[:-1]

    @cached_property
    def max_degree(self) -> int:
        return int(self.degree.max()) if self.num_nodes else 0

    @cached_property
    def rowptr_int32(self) -> Tensor:
        return self.rowptr.int()

    def __str__(self) -> str:
        return f"{self.name}: {self.num_nodes:,} nodes, {self.num_edges:,} edges, largest row {self.max_degree:,}"


@dataclass(frozen=True)
class PowerLaw:
    nodes: int
    edges: int
    exponent: float  # of the degree distribution
    cap: int  # on the expected degree of one node


POWER_LAWS = {
    "arxiv": PowerLaw(169_343, 2_332_486, 2.6, 13_161),
    "reddit": PowerLaw(232_965, 114_615_892, 2.2, 21_657),
    "products": PowerLaw(2_449_029, 123_718_280, 2.6, 17_481),
    "computers": PowerLaw(13_752, 491_722, 2.6, 2_992),  # the size of Amazon Computers
}
SMALL_EDGES = {"50k": 50_000, "200k": 200_000, "1M": 1_000_000}
FIVE = ("arxiv", "reddit", "products", "uni4", "hub")


def from_coo(name: str, source: Tensor, target: Tensor, num_nodes: int, **flags: bool) -> GraphData:
    """The graph with these edges ([E] each, any order), sorted by (target, source)."""
    key = target.to(torch.int64, copy=True).mul_(num_nodes).add_(source).sort()[0]
    row = torch.div(key, num_nodes, rounding_mode="floor")
    col = key.sub_(row * num_nodes).int()
    rowptr = torch.zeros(num_nodes + 1, dtype=torch.int64, device=row.device)
    torch.cumsum(torch.bincount(row, minlength=num_nodes), 0, out=rowptr[1:])
    return GraphData(name, num_nodes, rowptr, col, row.int(), **flags)


def power_law(name: str, device: torch.device | str, *, seed: int = 0, scale: float = 1.0) -> GraphData:
    """A Chung-Lu graph: both ends of each edge are drawn independently.

    The node of rank r has a probability proportional to r^(-1/(exponent-1)), up to the cap.
    """
    law = POWER_LAWS[name]
    nodes, edges = round(law.nodes * scale), round(law.edges * scale)
    generator = torch.Generator(device=device).manual_seed(seed)
    rank = torch.arange(1, nodes + 1, dtype=torch.float64, device=device)
    expected = rank ** (-1.0 / (law.exponent - 1))
    probability = (expected / expected.sum()).clamp(max=law.cap / law.edges)
    cumulative = (probability / probability.sum()).cumsum(0)
    node_of_rank = torch.randperm(nodes, generator=generator, device=device)

    def draw_ends() -> Tensor:
        ends = torch.empty(edges, dtype=torch.int32, device=device)
        for piece in ends.split(DRAWS_PER_CALL):
            uniform = torch.rand(piece.numel(), generator=generator, dtype=torch.float64, device=device)
            ranks = torch.searchsorted(cumulative, uniform).clamp_(max=nodes - 1)
            piece.copy_(node_of_rank[ranks])
        return ends

    source = draw_ends()
    target = draw_ends()
    return from_coo(name, source, target, nodes, standard=scale == 1)


def uniform_degree_four(device: torch.device | str, *, seed: int = 7, scale: float = 1.0) -> GraphData:
    """A million rows of four edges each, sources uniform: the graph that punishes one warp per row."""
    nodes = round(1_000_000 * scale)
    generator = torch.Generator(device=device).manual_seed(seed)
    target = torch.arange(nodes, dtype=torch.int32, device=device).repeat_interleave(4)
    source = _uniform_ids(0, nodes, 4 * nodes, generator)
    return from_coo("uni4", source, target, nodes, standard=scale == 1)


def hub(device: torch.device | str, *, seed: int = 7, scale: float = 1.0) -> GraphData:
    """A million nodes and 20 M edges: one row of 4 M edges, fifty of 100 k, the rest spread over the other rows."""
    source, target, nodes = _hub_edges(device, seed, scale)
    return from_coo("hub", source, target, nodes, standard=scale == 1)


def hub_by_source(device: torch.device | str, *, seed: int = 7, scale: float = 1.0) -> GraphData:
    """`hub` with every edge turned round: the hubs are sources, so backward meets them."""
    source, target, nodes = _hub_edges(device, seed, scale)
    return from_coo("hub-by-source", target, source, nodes, standard=scale == 1)


def hub_removed(device: torch.device | str, *, seed: int = 7, scale: float = 1.0) -> GraphData:
    """As many nodes and edges as `hub`, both ends uniform: what the hubs are compared with."""
    nodes, edges = round(1_000_000 * scale), round(20_000_000 * scale)
    generator = torch.Generator(device=device).manual_seed(seed)
    target = _uniform_ids(0, nodes, edges, generator)
    source = _uniform_ids(0, nodes, edges, generator)
    return from_coo("no-hub", source, target, nodes, standard=scale == 1)


def uniform_random(
    device: torch.device | str, *, nodes: int = 1_000_000, degree: int = 50, seed: int = 7, scale: float = 1.0
) -> GraphData:
    """Rows of equal degree with uniform sources: the gather ceiling is measured on the same ids."""
    nodes = round(nodes * scale)
    generator = torch.Generator(device=device).manual_seed(seed)
    target = torch.arange(nodes, dtype=torch.int32, device=device).repeat_interleave(degree)
    source = _uniform_ids(0, nodes, degree * nodes, generator)
    return from_coo(f"uniform{degree}", source, target, nodes, standard=scale == 1, uniform=True)


def small_power_law(label: str, device: torch.device | str, *, seed: int = 0, scale: float = 1.0) -> GraphData:
    """The arxiv-like graph shrunk to the edge count of that label; launch costs show here."""
    share = SMALL_EDGES[label] / POWER_LAWS["arxiv"].edges
    graph = power_law("arxiv", device, seed=seed, scale=scale * share)
    return replace(graph, name=f"small-{label}", standard=scale == 1)


def _hub_edges(device: torch.device | str, seed: int, scale: float) -> tuple[Tensor, Tensor, int]:
    nodes, edges = round(1_000_000 * scale), round(20_000_000 * scale)
    largest, large, num_large = round(4_000_000 * scale), round(100_000 * scale), 50
    generator = torch.Generator(device=device).manual_seed(seed)
    rest = edges - largest - num_large * large
    degree_of_hub = torch.tensor([largest] + [large] * num_large, device=device)
    hubs = torch.arange(num_large + 1, dtype=torch.int32, device=device).repeat_interleave(degree_of_hub)
    others = _uniform_ids(num_large + 1, nodes, rest, generator)
    place = torch.randperm(nodes, generator=generator, device=device).int()
    target = place[torch.cat([hubs, others]).long()]
    source = _uniform_ids(0, nodes, edges, generator)
    return source, target, nodes


def _uniform_ids(low: int, high: int, count: int, generator: torch.Generator) -> Tensor:
    device = generator.device
    return torch.randint(low, high, (count,), generator=generator, dtype=torch.int32, device=device)


@dataclass(frozen=True)
class RealGraph:
    file: str
    edges: Literal["listed", "both"]  # as listed, or with every edge in both directions


REAL = {
    "musae-github": RealGraph("musae-github.npz", "both"),
    "ego-twitter": RealGraph("ego-Twitter.npz", "both"),
    "debian12-hetero": RealGraph("debian12-hetero.npz", "listed"),
    "soc-slashdot": RealGraph("soc-Slashdot0902.npz", "listed"),
}


def from_npz(name: str, root: Path, device: torch.device | str) -> GraphData:
    """The real graph of that name from `root` or `root`/powerlaw (keys edge_index [2, E], num_nodes, directed)."""
    real = REAL[name]
    candidates = [root / real.file, root / "powerlaw" / real.file]
    path = next((candidate for candidate in candidates if candidate.is_file()), None)
    if path is None:
        raise FileNotFoundError(f"graph {name}: expected {real.file} in --root or its folder powerlaw, found neither")
    with np.load(path) as archive:
        edge_index = torch.from_numpy(archive["edge_index"].astype(np.int32)).to(device)
        nodes = int(archive["num_nodes"])
        directed = bool(archive["directed"])
    source, target = edge_index
    if real.edges == "both":
        if directed:
            raise ValueError(f"graph {name}: both directions are only added to a file with directed = 0")
        apart = source != target  # a self-loop has no second direction
        source, target = torch.cat([source, target[apart]]), torch.cat([target, source[apart]])
    return from_coo(name, source, target, nodes)


def _builders() -> dict[str, Callable[[torch.device | str, float], GraphData]]:
    table: dict[str, Callable[[torch.device | str, float], GraphData]] = {
        name: lambda device, scale, name=name: power_law(name, device, scale=scale)  # type: ignore[misc]
        for name in POWER_LAWS
    }
    table["uni4"] = lambda device, scale: uniform_degree_four(device, scale=scale)
    table["hub"] = lambda device, scale: hub(device, scale=scale)
    table["hub-by-source"] = lambda device, scale: hub_by_source(device, scale=scale)
    table["no-hub"] = lambda device, scale: hub_removed(device, scale=scale)
    table["uniform50"] = lambda device, scale: uniform_random(device, scale=scale)
    for label in SMALL_EDGES:
        table[f"small-{label}"] = lambda device, scale, label=label: small_power_law(  # type: ignore[misc]
            label, device, scale=scale
        )
    return table


def names() -> list[str]:
    """Every name that `build` knows."""
    return [*_builders(), *REAL]


def build(name: str, device: torch.device | str, *, scale: float = 1.0, root: Path | None = None) -> GraphData:
    """The graph of that name; real ones are read from `root`."""
    builders = _builders()
    if name in builders:
        return builders[name](device, scale)
    if name not in REAL:
        raise ValueError(f"graph: expected one of {', '.join(names())}, got {name!r}")
    if root is None:
        raise ValueError(f"graph {name}: it is read from a file, so --root is needed")
    return from_npz(name, root, device)
