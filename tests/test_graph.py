"""Graph plans against plain Python lists: every way to build one, its transpose and views, and moving it about."""

from __future__ import annotations

import copy
import itertools
import pickle

import pytest
import torch
import torch.utils._pytree as pytree
from torch import Tensor
from zoo import ZOO, Edges, features, ids, make

from gnnagg import Graph, aggregate, reference

LOOP_MODES = [None, "add", "remove_add", "remove"]


def rows_of(graph: Graph) -> list[list[tuple[int, int]]]:
    """(source, edge id) of every slot of every row."""
    perm = torch.arange(graph.num_edges) if graph.perm is None else graph.perm
    pairs = list(zip(graph.col.tolist(), perm.tolist(), strict=True))
    pointers = graph.rowptr.tolist()
    return [pairs[begin:end] for begin, end in itertools.pairwise(pointers)]


def expected_rows(edges: Edges, self_loops: str | None = None) -> list[list[tuple[int, int]]]:
    """The same from the edge list: edges of a row in the caller's order, appended loops last."""
    rows: list[list[tuple[int, int]]] = [[] for _ in range(edges.num_dst)]
    for edge, (source, target) in enumerate(edges.edge_index.t().tolist()):
        if self_loops in ("remove", "remove_add") and source == target:
            continue
        rows[target].append((source, edge))
    if self_loops in ("add", "remove_add"):
        for node in range(min(edges.size)):
            rows[node].append((node, edges.edge_index.size(1) + node))
    return rows


def assert_transposed(graph: Graph) -> None:
    """The transpose holds the same live edges, by ascending slot within a source."""
    transpose, live = graph.transpose, int(graph.rowptr[-1])
    target = torch.arange(graph.num_dst).repeat_interleave(graph.in_degree())
    order = graph.col[:live].long().argsort(stable=True)
    assert transpose.rowptr[-1] == live and transpose.num_cols == graph.num_dst
    assert torch.equal(graph.out_degree().long(), torch.bincount(graph.col[:live].long(), minlength=graph.num_src))
    assert torch.equal(transpose.slot[:live].long(), order)
    assert torch.equal(transpose.col[:live].long(), target[order])
    assert sorted(transpose.slot.tolist()) == list(range(graph.num_edges))
    assert torch.equal(transpose.position[transpose.slot.long()].long(), torch.arange(graph.num_edges))
    if graph.perm is not None:
        assert torch.equal(transpose.perm, graph.perm[transpose.slot.long()])


@pytest.mark.parametrize("self_loops", LOOP_MODES)
@pytest.mark.parametrize("name", ZOO)
def test_edge_index(name: str, self_loops: str | None) -> None:
    edges = ZOO[name]
    graph = edges.graph(self_loops=self_loops)
    assert (graph.num_src, graph.num_dst) == edges.size and graph.col.dtype == graph.rowptr.dtype == torch.int32
    assert rows_of(graph) == expected_rows(edges, self_loops)
    added = min(edges.size) if self_loops in ("add", "remove_add") else 0
    assert graph.num_edges == edges.edge_index.size(1) + added
    assert graph.in_degree().tolist() == [len(row) for row in rows_of(graph)]
    assert_transposed(graph)
    graph.validate()


@pytest.mark.parametrize("self_loops", ["remove", "remove_add"])
def test_removed_loops_lie_behind_the_last_row_and_are_not_read(self_loops: str) -> None:
    edges = ZOO["loops"]
    graph = edges.graph(self_loops=self_loops)
    live, removed = int(graph.rowptr[-1]), int((edges.edge_index[0] == edges.edge_index[1]).sum())
    assert removed > 0 and live == graph.num_edges - removed
    dead = graph.perm[live:].tolist()
    assert dead == sorted(dead) and all(edges.edge_index[0, edge] == edges.edge_index[1, edge] for edge in dead)
    weight = torch.ones(graph.num_edges, dtype=torch.float64)
    weight[graph.perm[live:].long()] = torch.nan
    weight.requires_grad_()
    x = features(20, 3, dtype=torch.float64)
    for reduce in ("sum", "mean", "max", "var"):
        out = aggregate(x, graph, weight, reduce)
        assert out.isfinite().all(), reduce
        assert (torch.autograd.grad(out.sum(), weight)[0][graph.perm[live:].long()] == 0).all(), reduce


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_every_integer_dtype_gives_the_same_plan(dtype: torch.dtype) -> None:
    edges = ZOO["bipartite"]
    assert rows_of(Graph.from_edge_index(edges.edge_index.to(dtype), edges.size)) == expected_rows(edges)


def test_target_to_source_is_the_flipped_edge_list() -> None:
    edges = ZOO["bipartite"]
    graph = Graph.from_edge_index(edges.edge_index, edges.size, flow="target_to_source")
    flipped = Edges(edges.edge_index.flip(0), edges.num_dst, edges.num_src)
    assert rows_of(graph) == expected_rows(flipped) and graph.num_dst == edges.num_src


def test_sizes_are_inferred() -> None:
    edge_index = torch.tensor([[0, 6], [2, 1]])
    sizes = {None: (7, 7), (None, None): (7, 3), (9, None): (9, 3), (None, 4): (7, 4), 8: (8, 8)}
    for size, expected in sizes.items():
        graph = Graph.from_edge_index(edge_index, size)
        assert (graph.num_src, graph.num_dst) == expected
    empty = Graph.from_edge_index(torch.zeros(2, 0, dtype=torch.long))
    assert (empty.num_src, empty.num_dst, empty.num_edges) == (0, 0, 0)


def test_edge_index_of_any_strides() -> None:
    edges = ZOO["power_law"]
    for view in (edges.edge_index.t().contiguous().t(), edges.edge_index.repeat_interleave(2, 1)[:, ::2]):
        assert not view.is_contiguous() and rows_of(Graph.from_edge_index(view, edges.size)) == expected_rows(edges)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("name", ["power_law", "bipartite", "no_edges", "no_rows", "nothing"])
def test_csr(name: str, dtype: torch.dtype) -> None:
    planned = ZOO[name].graph()
    rowptr, col, perm = (t.to(dtype) for t in (planned.rowptr, planned.col, planned.perm))
    with_perm = Graph.from_csr(rowptr, col, planned.num_src, perm=perm)
    assert rows_of(with_perm) == rows_of(planned)
    plain = Graph.from_csr(rowptr, col, planned.num_src)
    assert plain.perm is None and [[s for s, _ in row] for row in rows_of(plain)] == [
        [s for s, _ in row] for row in rows_of(planned)
    ]
    for graph in (with_perm, plain):
        assert_transposed(graph)


def test_csr_infers_the_number_of_sources() -> None:
    assert Graph.from_csr(torch.tensor([0, 2, 2]), torch.tensor([4, 0])).num_src == 5


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc, torch.sparse_coo])
@pytest.mark.parametrize("name", ["power_law", "bipartite", "no_edges"])
def test_torch_sparse(name: str, layout: torch.layout) -> None:
    """Values are given as weights in the matrix's own order."""
    edges = ZOO[name]
    indices, values = edges.edge_index.flip(0), features(edges.edge_index.size(1), dtype=torch.float64)
    adj_t = torch.sparse_coo_tensor(indices, values, (edges.num_dst, edges.num_src))
    stored = adj_t.coalesce() if layout == torch.sparse_coo else adj_t.to_sparse(layout=layout)
    graph = Graph.from_sparse(stored)
    x = features(edges.num_src, 4, dtype=torch.float64)
    torch.testing.assert_close(aggregate(x, graph, stored.values()), adj_t.to_dense() @ x)


def test_uncoalesced_coo_keeps_duplicates() -> None:
    adj_t = torch.sparse_coo_tensor(torch.tensor([[0, 0, 1], [1, 1, 0]]), torch.ones(3), (2, 2))
    assert Graph.from_sparse(adj_t).in_degree().tolist() == [2, 1]


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("order", [None, "row", "col"])
def test_edge_index_class_of_pyg(order: str | None, cached: bool) -> None:
    pyg = pytest.importorskip("torch_geometric")
    edges = ZOO["bipartite"]
    edge_index = edges.edge_index
    if order is not None:
        edge_index = edge_index[:, edge_index[0 if order == "row" else 1].argsort(stable=True)]
    held = pyg.EdgeIndex(edge_index, sparse_size=edges.size, sort_order=order)
    if cached and order is not None:
        held = held.fill_cache_()
    rows = rows_of(Graph.from_sparse(held))
    if order == "row":  # PyG's own sort, which is not stable
        rows = [sorted(row, key=lambda pair: pair[1]) for row in rows]
    assert rows == expected_rows(Edges(edge_index, *edges.size))


@pytest.mark.parametrize("name", ["power_law", "bipartite", "loops", "no_edges", "no_rows", "no_sources"])
@pytest.mark.parametrize("self_loops", [None, "remove_add"])
def test_flip_and_views(name: str, self_loops: str | None) -> None:
    edges = ZOO[name]
    graph = edges.graph(self_loops=self_loops)
    flipped = graph.flip()
    assert flipped.flip().rowptr is graph.rowptr and (flipped.num_src, flipped.num_dst) == (
        graph.num_dst,
        graph.num_src,
    )
    back = [[] for _ in range(graph.num_src)]
    for target, row in enumerate(rows_of(graph)):
        for source, edge in row:
            back[source].append((target, edge))
    assert rows_of(flipped) == back
    source, target, edge = reference.edges(graph)
    x = features(graph.num_src, 3, dtype=torch.float64).requires_grad_()
    y = features(graph.num_dst, 3, dtype=torch.float64).requires_grad_()
    for view, value, index in ((graph.source_view(), x, source), (graph.target_view(), y, target)):
        gathered = aggregate(value, view)[edge]
        assert torch.equal(gathered, value[index])
        grad = features(*gathered.shape, dtype=torch.float64, seed=1)
        gradients = [torch.autograd.grad(out, value, grad)[0] for out in (gathered, value[index])]
        torch.testing.assert_close(*gradients)
    messages = features(graph.num_edges, 3, dtype=torch.float64, seed=2)
    expected = torch.zeros(graph.num_dst, 3, dtype=torch.float64).index_add(0, target, messages[edge])
    torch.testing.assert_close(aggregate(messages, graph.edge_view()), expected)
    assert graph.edge_view() is graph.edge_view() and graph.source_view() is graph.source_view()


def assert_same_behaviour(graph: Graph, moved: Graph) -> None:
    """Same rows, and the same weighted gradients (which read every index array there is)."""
    assert rows_of(moved) == rows_of(graph) and (moved.num_src, moved.num_dst) == (graph.num_src, graph.num_dst)
    results = []
    for each in (graph, moved):
        x = features(each.num_src, 3, dtype=torch.float64).requires_grad_()
        weight = features(each.num_edges, dtype=torch.float64, seed=1).requires_grad_()
        gradients: list[Tensor] = []
        for reduce in ("sum", "max"):
            out = aggregate(x, each, weight, reduce)
            gradients += [
                out,
                *torch.autograd.grad(out, [x, weight], features(*out.shape, dtype=torch.float64, seed=2)),
            ]
        results.append(gradients)
    for expected, actual in zip(*results, strict=True):
        assert torch.equal(expected, actual)


def through_pytree(graph: Graph) -> Graph:
    leaves, spec = pytree.tree_flatten(graph)
    assert all(leaf is None or isinstance(leaf, Tensor) for leaf in leaves)
    return pytree.tree_unflatten(leaves, spec)


WAYS = {
    "pickle": lambda graph: pickle.loads(pickle.dumps(graph)),
    "deepcopy": copy.deepcopy,
    "pytree": through_pytree,
    "csr.to": lambda graph: Graph(graph.csr.to(torch.device("cpu"))),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("with_transpose", [False, True])
@pytest.mark.parametrize("self_loops", [None, "remove_add"])
def test_survives_moving(way: str, with_transpose: bool, self_loops: str | None) -> None:
    edges = ZOO["power_law"]
    graph = edges.graph(self_loops=self_loops)
    graph = Graph(graph.csr)  # as fresh as if it were not in the cache
    if with_transpose:
        assert graph.transpose.slot is not None
    moved = WAYS[way](graph)
    assert_same_behaviour(edges.graph(self_loops=self_loops), moved)


def test_to_the_device_it_is_on_is_itself() -> None:
    graph = ZOO["chain"].graph()
    assert graph.to("cpu") is graph


def test_is_printable_and_counts_its_bytes() -> None:
    graph = Graph(make(ids(10, 5, 0), ids(10, 5, 1), 5).graph().csr)
    assert repr(graph) == "Graph(num_src=5, num_dst=5, num_edges=10, index=int32, device=cpu)"
    before = graph.nbytes
    assert before >= 4 * (6 + 10 + 10)
    assert graph.transpose is not None and graph.nbytes >= before + 4 * (6 + 10 + 10)


def test_remaining_loops_are_the_edges_of_pyg() -> None:
    """add_remaining_self_loops keeps one loop per node, whether there were none, one or several before."""
    from torch_geometric.utils import add_remaining_self_loops

    edge_index = torch.tensor([[0, 1, 1, 2, 3, 1], [1, 1, 1, 0, 3, 2]])
    graph = Graph.from_edge_index(edge_index, 5, self_loops="add_remaining")
    x = torch.arange(5.0).unsqueeze(1).exp2()
    source, target = add_remaining_self_loops(edge_index, num_nodes=5)[0]
    assert torch.equal(aggregate(x, graph), torch.zeros(5, 1).index_add(0, target, x[source]))


def test_a_flipped_graph_survives_the_pytree() -> None:
    flipped = ZOO["power_law"].graph().flip()
    leaves, spec = pytree.tree_flatten(flipped)
    moved = pytree.tree_unflatten(leaves, spec)
    assert torch.equal(moved.transpose_slot(), flipped.transpose_slot())
