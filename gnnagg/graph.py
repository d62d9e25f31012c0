"""Graph: the cached plan of one edge list (CSR over target rows, edge permutation, transpose, spans).

Built once per ``edge_index`` and shared by every layer that receives the same tensor; see ``_graph_cache.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from . import _graph_cache, _native
from ._csr import Csr, needs_wide_index
from ._edge_input import check_edge_index, check_size, edge_index_of
from ._fault import FaultWatch
from ._registration import being_traced, caching_allowed
from ._views import edge_view, source_view

__all__ = ["Graph"]

SelfLoops = Literal["add", "remove_add", "add_remaining", "remove"]
Flow = Literal["source_to_target", "target_to_source"]
# As the op csr_from_coo takes them. PyG's add_remaining_self_loops leaves the same edges as remove_add: it differs in
# the weights alone, which are the caller's.
_LOOP_MODES = {None: 0, "add": 1, "remove_add": 2, "add_remaining": 2, "remove": 3}
_FLOWS = ("source_to_target", "target_to_source")


class Graph:
    """Plan of a graph: rows are target nodes, columns their source nodes. Immutable.

    Build one with :meth:`from_edge_index`, :meth:`from_csr` or :meth:`from_sparse`. Every edge has an id, its position
    in the caller's edge list; with ``self_loops`` the appended loops have the ids ``E, E+1, ...``. Duplicate edges
    count. Index tensors are int32 unless a size reaches 2**31 - 1.

    Attributes:
        csr: rows = targets.
        num_src: number of source nodes.
        num_dst: number of target nodes.
        num_edges: number of edge ids, loops that were removed included.
    """

    def __init__(self, csr: Csr, *, transpose: Csr | None = None, fault: FaultWatch | None = None) -> None:
        self.csr = csr
        self._transpose = transpose
        self._fault = fault
        self._flipped: Graph | None = None
        self.attachments: dict[str, Any] = {}

    # --- construction ----------------------------------------------------------------------------------------------

    @staticmethod
    def from_edge_index(
        edge_index: Tensor,
        size: tuple[int | None, int | None] | int | None = None,
        *,
        flow: Flow = "source_to_target",
        self_loops: SelfLoops | None = None,
    ) -> Graph:
        """Plan of ``edge_index``, from the cache when this very tensor was planned before and is unchanged.

        Args:
            edge_index: ``[2, E]``, any integer dtype, CPU or CUDA; any order, duplicates allowed. Row 0 holds sources
                and row 1 targets, or the reverse with ``flow="target_to_source"``.
            size: ``(num_src, num_dst)`` as in PyG's ``size`` argument (in the order of ``edge_index`` rows), or one
                int for a square graph. Where None, the largest id + 1 is taken, which synchronises with the device.
            flow: direction of the messages.
            self_loops: ``"add"`` appends one loop per node, ``"remove_add"`` first drops the loops that are there,
                ``"remove"`` only drops them. ``"add_remaining"`` plans the same edges as ``"remove_add"``; that a node
                keeps the weight of the loop it had, as PyG's function of that name does, is up to the weights given.

        Raises:
            TypeError: edge_index is not an integer tensor.
            ValueError: wrong shape, size, flow or self_loops.
            IndexError: an id is out of range; names the edge. Raised here on the CPU and under ``GNNAGG_DEBUG=1``, and
                otherwise on CUDA by :meth:`validate` or by a later op once the device has reported it. The faulty edge
                is never read.

        Deterministic: edges of a row keep the caller's order.
        """
        given, edge_index = edge_index, edge_index_of(edge_index)
        check_edge_index(edge_index)
        if flow not in _FLOWS:
            raise ValueError(f"Graph: flow must be one of {_FLOWS}, got {flow!r}")
        if self_loops not in _LOOP_MODES:
            raise ValueError(f"Graph: self_loops must be one of {tuple(_LOOP_MODES)}, got {self_loops!r}")
        rows = check_size(edge_index, size)
        num_src, num_dst = rows if flow == "source_to_target" else rows[::-1]
        if being_traced():
            return _plan(edge_index, num_src, num_dst, flow, self_loops)
        key = (num_src, num_dst, flow, self_loops)
        graph = _graph_cache.lookup(given, key)
        if graph is None:
            graph = _plan(edge_index, num_src, num_dst, flow, self_loops)
            if caching_allowed():
                _graph_cache.store(given, key, graph)
        return graph

    @staticmethod
    def from_csr(rowptr: Tensor, col: Tensor, num_src: int | None = None, *, perm: Tensor | None = None) -> Graph:
        """Plan of a CSR whose rows are targets.

        Args:
            rowptr: ``[num_dst + 1]`` integer, starts at 0, does not decrease, ends at E.
            col: ``[E]`` integer, source ids.
            num_src: number of source nodes; None takes the largest id + 1 (synchronises).
            perm: ``[E]`` integer, edge id of each slot; None when the slots are in edge order.

        Raises:
            ValueError: shapes do not fit, or rowptr is not a row pointer (CPU, or GNNAGG_DEBUG=1).
            IndexError: a column id is out of range (as in :meth:`from_edge_index`).
        """
        csr, fault = Csr.checked(rowptr, col, num_src, perm)
        return Graph(csr, fault=fault)

    @staticmethod
    def from_sparse(adj_t: Any) -> Graph:
        """Plan of a sparse matrix whose rows are targets.

        Takes torch.sparse CSR/CSC/COO, torch_sparse.SparseTensor, or a PyG EdgeIndex (sources in row 0), and reuses
        what they have cached. Values are not read: pass them as ``weight`` in the matrix's own order.

        Raises:
            TypeError: adj_t is none of these.
        """
        from ._edge_input import graph_of_sparse

        return graph_of_sparse(adj_t)

    # --- reading ---------------------------------------------------------------------------------------------------

    @property
    def rowptr(self) -> Tensor:
        return self.csr.rowptr

    @property
    def col(self) -> Tensor:
        return self.csr.col

    @property
    def perm(self) -> Tensor | None:
        """``[E]`` edge id of each slot, or None when slots are in edge order."""
        return self.csr.perm

    @property
    def num_src(self) -> int:
        return self.csr.num_cols

    @property
    def num_dst(self) -> int:
        return self.csr.num_rows

    @property
    def num_edges(self) -> int:
        return self.csr.num_edges

    @property
    def device(self) -> torch.device:
        return self.csr.rowptr.device

    @property
    def transpose(self) -> Csr:
        """CSR over the sources, with ``slot`` = the slot of each of its edges in ``csr``. Built on first need."""
        if self._transpose is not None:
            return self._transpose
        transpose = self.csr.transposed()
        if caching_allowed():
            self._transpose = transpose
        return transpose

    def flip(self) -> Graph:
        """The same edges with sources and targets exchanged; edge ids stay."""
        if self._flipped is not None:
            return self._flipped
        flipped = Graph(self.transpose, transpose=self.csr)
        if caching_allowed():
            self._flipped = flipped
        return flipped

    def edge_view(self) -> Graph:
        """Same rows, but every edge is its own source: aggregates ``[num_edges, F]`` messages in edge order."""
        return self._view(edge_view)

    def source_view(self) -> Graph:
        """One row per edge id with the edge's source in it: gathers ``x[source(e)]`` as ``[num_edges, F]``."""
        return self._view(source_view)

    def target_view(self) -> Graph:
        """One row per edge id with the edge's target in it: gathers ``x[target(e)]`` as ``[num_edges, F]``."""
        return self.flip().source_view()

    def _view(self, build: Callable[[Graph], tuple[Csr, Csr | None]]) -> Graph:
        view: Graph | None = self.attachments.get(build.__name__)
        if view is None:
            csr, transpose = build(self)
            view = Graph(csr, transpose=transpose)
            if caching_allowed():
                self.attachments[build.__name__] = view
        return view

    def transpose_slot(self) -> Tensor:
        """``[num_edges]`` slot in ``csr`` of each edge of the transpose."""
        slot = self.transpose.slot
        return self.csr.position if slot is None else slot

    def in_degree(self) -> Tensor:
        """``[num_dst]`` edges that end in each node, index dtype."""
        return self.csr.degree()

    def out_degree(self) -> Tensor:
        """``[num_src]`` edges that begin in each node, index dtype."""
        return self.transpose.degree()

    @property
    def nbytes(self) -> int:
        """Bytes of the plan's tensors so far."""
        return self.csr.nbytes + (self._transpose.nbytes if self._transpose is not None else 0)

    def validate(self) -> None:
        """Raises IndexError if an id was out of range when the graph was planned. Synchronises with the device."""
        if self._fault is not None:
            self._fault.wait()
            self._fault = None

    def raise_known_fault(self) -> None:
        """Raises IndexError if the device has already reported an id out of range. Does not synchronise."""
        if self._fault is not None and self._fault.known():
            self._fault = None

    # --- moving ----------------------------------------------------------------------------------------------------

    def to(self, device: torch.device | str) -> Graph:
        """This graph on ``device``; itself when it is there already."""
        device = torch.device(device)
        if device.type == self.device.type and device.index in (None, self.device.index):
            return self
        self.validate()
        return Graph(self.csr.to(device), transpose=None if self._transpose is None else self._transpose.to(device))

    def __getstate__(self) -> dict[str, Any]:
        self.validate()
        return {"csr": self.csr, "transpose": self._transpose}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["csr"], transpose=state["transpose"])  # type: ignore[misc]

    def __repr__(self) -> str:
        return (
            f"Graph(num_src={self.num_src}, num_dst={self.num_dst}, num_edges={self.num_edges}, "
            f"index={str(self.col.dtype).removeprefix('torch.')}, device={self.device})"
        )


def _plan(edge_index: Tensor, num_src: int, num_dst: int, flow: Flow, self_loops: SelfLoops | None) -> Graph:
    _native.require(edge_index.device)
    src, dst = (0, 1) if flow == "source_to_target" else (1, 0)
    loops = min(num_src, num_dst) if _LOOP_MODES[self_loops] in (1, 2) else 0
    wide = needs_wide_index(num_src, num_dst, edge_index.size(1) + loops)
    rowptr, col, perm, fault = torch.ops.gnnagg.csr_from_coo(
        edge_index[dst].contiguous(), edge_index[src].contiguous(), num_dst, num_src, _LOOP_MODES[self_loops], wide
    )
    ends = ("target", "source") if flow == "source_to_target" else ("source", "target")
    watch = FaultWatch.start(fault, f"edge_index ({ends[1]}, {ends[0]})", num_dst, num_src)
    return Graph(Csr(rowptr, col, perm, num_src), fault=watch)


def _flatten(graph: Graph) -> tuple[list[Tensor | None], tuple[int, int]]:
    transpose = graph._transpose
    spread = [graph.rowptr, graph.col, graph.perm, graph.csr.slot]
    if transpose is None:
        spread += [None, None, None, None]
    else:  # perm, not the tensors so far: it is made from an origin that does not travel
        spread += [transpose.rowptr, transpose.col, transpose.perm, transpose.slot]
    return spread, (graph.num_src, graph.num_dst)


def _unflatten(tensors: Any, sizes: tuple[int, int]) -> Graph:
    rowptr, col, perm, slot, t_rowptr, t_col, t_perm, t_slot = tensors
    transpose = None if t_rowptr is None else Csr(t_rowptr, t_col, t_perm, sizes[1], slot=t_slot)
    return Graph(Csr(rowptr, col, perm, sizes[0], slot=slot), transpose=transpose)


torch.utils._pytree.register_pytree_node(Graph, _flatten, _unflatten, serialized_type_name="gnnagg.Graph")
