"""What aggregate is compared with: each opponent is one small class, prepared as its careful user would prepare it.

Index structures, descriptors and work space are built in `prepare` and not timed. Whether an opponent's numbers are
right is decided by the harness, which compares its output before timing it.
"""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor

from benchmarks.aggregate_cases import AggregateCase, AggregateContender
from benchmarks.cusparse import Algorithm, CsrProduct, cusparse_found
from benchmarks.graphs import GraphData

__all__ = [
    "OPPONENTS",
    "CusparseCached",
    "PygScatter",
    "SegmentReduce",
    "TorchScatter",
    "TorchScatterCsr",
    "TorchSparse",
    "TorchSparseReduce",
    "choose",
]

# A row of this many edges is reduced by one thread per feature in torch.segment_reduce: seconds per call.
LONGEST_SERIAL_ROW = 1_000_000
# cuSPARSE's ALG3 makes illegal accesses on rows of a million edges (seen on the hub graph, every width and dtype): they
# end the process, so the contender is refused before it starts.
LONGEST_ALG3_ROW = 1_000_000
# Opponents that gather x[col] hold [E, F]; beyond this many bytes they are left out.
LARGEST_MESSAGES = 20 << 30


def _ones_matrix(graph: GraphData, dtype: torch.dtype) -> Tensor:
    """The adjacency matrix, rows = targets, as a torch CSR tensor with int32 indices (the faster choice)."""
    ones = torch.ones(graph.num_edges, dtype=dtype, device=graph.device)
    size = (graph.num_nodes, graph.num_nodes)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(graph.rowptr_int32, graph.col, ones, size, check_invariants=False)


class TorchSparse(AggregateContender):
    """`adj @ x` with a torch.sparse CSR matrix: what users call."""

    name = "torch.sparse csr"

    def __init__(self) -> None:
        self._matrix: Tensor | None = None

    def supports(self, case: AggregateCase) -> bool:
        return case.op == "sum" and case.direction == "fwd"

    def prepare(self, case: AggregateCase) -> None:
        self._matrix = _ones_matrix(case.graph, case.dtype)

    def forward(self, x: Tensor) -> Tensor:
        assert self._matrix is not None
        return self._matrix @ x

    def release(self) -> None:
        self._matrix = None


class TorchSparseReduce(AggregateContender):
    """`torch.sparse.mm(adj, x, reduce=...)`, which exists on CPU only."""

    name = "torch.sparse.mm reduce"

    def __init__(self) -> None:
        self._matrix: Tensor | None = None
        self._reduce = "sum"

    def supports(self, case: AggregateCase) -> bool:
        return case.graph.device.type == "cpu" and case.direction == "fwd"

    def prepare(self, case: AggregateCase) -> None:
        self._matrix = _ones_matrix(case.graph, case.dtype)
        self._reduce = {"sum": "sum", "max": "amax"}[case.op]

    def forward(self, x: Tensor) -> Tensor:
        assert self._matrix is not None
        out: Tensor = torch.sparse.mm(self._matrix, x, self._reduce)
        return out

    def release(self) -> None:
        self._matrix = None


class CusparseCached(AggregateContender):
    """cuSPARSE's SpMM with descriptors, work space and preprocessing kept between calls.

    `result="accurate"`: a float32 result for half inputs (no rounding between partial sums); `"same"`: the inputs'
    dtype, which is faster and, on rows of many edges, wrong.
    """

    def __init__(self, algorithm: Algorithm, result: Literal["accurate", "same"] = "accurate") -> None:
        self.name = f"cusparse {algorithm.lower()}" + ("" if result == "accurate" else " half result")
        self._algorithm = algorithm
        self._result = result
        self._product: CsrProduct | None = None

    def supports(self, case: AggregateCase) -> bool:
        if case.graph.device.type != "cuda" or case.op != "sum" or case.direction != "fwd" or not cusparse_found():
            return False
        return self._result == "accurate" or case.dtype in (torch.float16, torch.bfloat16)

    def prepare(self, case: AggregateCase) -> None:
        if self._algorithm == "ALG3" and case.graph.max_degree >= LONGEST_ALG3_ROW:
            raise RuntimeError(f"ALG3 makes illegal accesses on rows of {LONGEST_ALG3_ROW:,} edges and more")
        half = case.dtype in (torch.float16, torch.bfloat16)
        result_dtype = torch.float32 if half and self._result == "accurate" else case.dtype
        graph = case.graph
        self._product = CsrProduct(graph.rowptr_int32, graph.col, case.x, result_dtype, self._algorithm)
        self.workspace_bytes = self._product.workspace_bytes

    def forward(self, x: Tensor) -> Tensor:
        assert self._product is not None
        return self._product(x)

    def release(self) -> None:
        if self._product is not None:
            self._product.close()
        self._product = None


class _FromMessages(AggregateContender):
    """Gathers the messages x[col] into [E, F], then reduces them."""

    module = ""  # what must be importable; empty: nothing beyond torch

    def __init__(self) -> None:
        self._graph: GraphData | None = None
        self._col = self._row = torch.empty(0)
        self._op = "sum"

    def supports(self, case: AggregateCase) -> bool:
        if self.module and importlib.util.find_spec(self.module) is None:
            return False
        return case.graph.num_edges * case.features * case.x.element_size() <= LARGEST_MESSAGES

    def prepare(self, case: AggregateCase) -> None:
        self._graph = case.graph
        self._col, self._row = case.graph.col.long(), case.graph.row.long()
        self._op = case.op
        if self.module:
            importlib.import_module(self.module)

    def forward(self, x: Tensor) -> Tensor:
        assert self._graph is not None
        return self.reduce(x.index_select(0, self._col), self._graph)

    def reduce(self, messages: Tensor, graph: GraphData) -> Tensor:
        """Messages [E, F] -> [N, F]."""
        raise NotImplementedError

    def release(self) -> None:
        self._graph = None
        self._col = self._row = torch.empty(0)


class TorchScatter(_FromMessages):
    """torch-scatter's `scatter`."""

    name = "torch-scatter scatter"
    module = "torch_scatter"

    def reduce(self, messages: Tensor, graph: GraphData) -> Tensor:
        scatter: Callable[..., Tensor] = importlib.import_module("torch_scatter").scatter
        return scatter(messages, self._row, dim=0, dim_size=graph.num_nodes, reduce=self._op)


class TorchScatterCsr(_FromMessages):
    """torch-scatter's `segment_csr` (rows already sorted)."""

    name = "torch-scatter segment_csr"
    module = "torch_scatter"

    def reduce(self, messages: Tensor, graph: GraphData) -> Tensor:
        segment_csr: Callable[..., Tensor] = importlib.import_module("torch_scatter").segment_csr
        return segment_csr(messages, graph.rowptr, reduce=self._op)


class PygScatter(_FromMessages):
    """PyG's message passing without fusion: gather, then `torch_geometric.utils.scatter`."""

    name = "pyg scatter"
    module = "torch_geometric"

    def reduce(self, messages: Tensor, graph: GraphData) -> Tensor:
        scatter: Callable[..., Tensor] = importlib.import_module("torch_geometric.utils").scatter
        return scatter(messages, self._row, dim=0, dim_size=graph.num_nodes, reduce=self._op)


class SegmentReduce(_FromMessages):
    """Gather, then `torch.segment_reduce`."""

    name = "torch.segment_reduce"

    def supports(self, case: AggregateCase) -> bool:
        return super().supports(case) and case.graph.max_degree < LONGEST_SERIAL_ROW

    def reduce(self, messages: Tensor, graph: GraphData) -> Tensor:
        initial: Any = None if self._op == "sum" else float("-inf")
        out = torch.segment_reduce(messages, self._op, lengths=graph.degree, initial=initial, unsafe=True)
        return out if self._op == "sum" else out.masked_fill((graph.degree == 0).unsqueeze(1), 0)


OPPONENTS: dict[str, Callable[[], AggregateContender]] = {
    "torch.sparse": TorchSparse,
    "torch.sparse.mm": TorchSparseReduce,
    "cusparse-alg2": lambda: CusparseCached("ALG2"),
    "cusparse-alg3": lambda: CusparseCached("ALG3"),
    "cusparse-alg2-half": lambda: CusparseCached("ALG2", "same"),
    "cusparse-alg3-half": lambda: CusparseCached("ALG3", "same"),
    "torch-scatter": TorchScatter,
    "torch-scatter-csr": TorchScatterCsr,
    "pyg": PygScatter,
    "segment_reduce": SegmentReduce,
}


def choose(default: Iterable[str], wanted: Iterable[str] | None) -> list[AggregateContender]:
    """The opponents of a cell: the default ones, or those of them (or others) that the command line names."""
    keys = list(default if wanted is None else wanted)
    if keys == ["none"]:
        return []
    unknown = [key for key in keys if key not in OPPONENTS]
    if unknown:
        raise ValueError(f"opponents: expected any of {', '.join(OPPONENTS)}, got {', '.join(unknown)}")
    return [OPPONENTS[key]() for key in keys]
