"""What may stand in for an edge list, and the checks on it: index tensors, PyG EdgeIndex, sparse matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .graph import Graph

__all__ = ["check_edge_index", "check_size", "edge_index_of", "graph_of_sparse"]

_INDEX_DTYPES = (torch.int32, torch.int64)
_SMALL_DTYPES = (torch.uint8, torch.int8, torch.int16)


def edge_index_of(edge_index: Any) -> Tensor:
    """``edge_index`` with a dtype that the planner reads; narrower integers are widened to int64."""
    if isinstance(edge_index, Tensor) and edge_index.dtype in _SMALL_DTYPES:
        return edge_index.long()
    return edge_index  # type: ignore[no-any-return]


def check_edge_index(edge_index: Any) -> None:
    """Raises TypeError or ValueError unless ``edge_index`` is an integer ``[2, E]`` tensor on the CPU or a GPU."""
    if not isinstance(edge_index, Tensor):
        raise TypeError(f"Graph: edge_index must be a torch.Tensor, got {type(edge_index).__name__}")
    if edge_index.layout != torch.strided:
        raise TypeError(f"Graph: edge_index must be a strided tensor, got {edge_index.layout}; use Graph.from_sparse")
    if edge_index.dtype not in _INDEX_DTYPES:
        raise TypeError(f"Graph: edge_index must be of integer type, got {edge_index.dtype}")
    if edge_index.dim() != 2 or edge_index.size(0) != 2:
        raise ValueError(f"Graph: edge_index must be [2, num_edges], got {list(edge_index.shape)}")
    if edge_index.device.type not in ("cpu", "cuda"):
        raise ValueError(f"Graph: edge_index must be on cpu or cuda, got {edge_index.device}")


def check_size(edge_index: Tensor, size: Any) -> tuple[int, int]:
    """Node counts of the two rows of ``edge_index``; counts not given are inferred, which synchronises."""
    if isinstance(size, int):
        size = (size, size)
    elif size is None:
        inferred = int(edge_index.max()) + 1 if edge_index.numel() else 0
        size = (max(inferred, 0),) * 2
    if not isinstance(size, (tuple, list)) and not hasattr(size, "__len__"):
        raise TypeError(f"Graph: size must be (num_src, num_dst), one int or None, got {size!r}")
    if len(size) != 2:
        raise ValueError(f"Graph: size must be (num_src, num_dst), got {size!r}")
    counts: list[int] = []
    for end, count in enumerate(size):
        if count is None:
            count = max(int(edge_index[end].max()) + 1, 0) if edge_index.numel() else 0
        if not torch.compiler.is_compiling():
            if isinstance(count, bool) or not isinstance(count, (int, torch.SymInt)):
                raise TypeError(f"Graph: size[{end}] must be an int or None, got {count!r}")
            if count < 0:
                raise ValueError(f"Graph: size[{end}] must be >= 0, got {count}")
        counts.append(count)
    return counts[0], counts[1]


def graph_of_sparse(adj_t: Any) -> Graph:
    """The plan of a sparse matrix with rows = targets; see :meth:`gnnagg.Graph.from_sparse`."""
    from .graph import Graph

    kind = f"{type(adj_t).__module__}.{type(adj_t).__qualname__}"
    if kind == "torch_geometric.edge_index.EdgeIndex":
        return _graph_of_edge_index(adj_t)
    if kind.startswith("torch_sparse.") and hasattr(adj_t, "csr"):
        rowptr, col, _ = adj_t.csr()
        return Graph.from_csr(rowptr, col, adj_t.size(1))
    if isinstance(adj_t, Tensor) and adj_t.dim() == 2:
        if adj_t.layout == torch.sparse_csr:
            return Graph.from_csr(adj_t.crow_indices(), adj_t.col_indices(), adj_t.size(1))
        if adj_t.layout == torch.sparse_csc:
            edge_index = torch.stack([_rows_of(adj_t.ccol_indices()), adj_t.row_indices()])
            return Graph.from_edge_index(edge_index, (adj_t.size(1), adj_t.size(0)))
        if adj_t.layout == torch.sparse_coo:
            indices = adj_t._indices()
            return Graph.from_edge_index(indices.flip(0), (adj_t.size(1), adj_t.size(0)))
    raise TypeError(
        "Graph.from_sparse: adj_t must be a 2-D torch sparse CSR, CSC or COO tensor, a torch_sparse.SparseTensor or a "
        f"PyG EdgeIndex, got {getattr(adj_t, 'layout', kind)}"
    )


def _graph_of_edge_index(edge_index: Any) -> Graph:
    """PyG's EdgeIndex (sources in row 0): its CSC is our CSR, and its CSR our transpose's."""
    from .graph import Graph

    if not edge_index.is_sorted:
        num_src, num_dst = edge_index.get_sparse_size()
        return Graph.from_edge_index(edge_index.as_subclass(Tensor), (int(num_src), int(num_dst)))
    (colptr, row), perm = edge_index.get_csc()
    num_src, num_dst = edge_index.get_sparse_size()
    del num_dst
    as_plain = [None if t is None else t.as_subclass(Tensor) for t in (colptr, row, perm)]
    assert as_plain[0] is not None and as_plain[1] is not None
    return Graph.from_csr(as_plain[0], as_plain[1], int(num_src), perm=as_plain[2])


def _rows_of(rowptr: Tensor) -> Tensor:
    """Row id of each slot."""
    rows = torch.arange(rowptr.size(0) - 1, dtype=rowptr.dtype, device=rowptr.device)
    return rows.repeat_interleave(rowptr.diff())
