"""gnnagg.nn.GCNConv against torch_geometric.nn.GCNConv: results, gradients, and everything else of PyG's class."""

from __future__ import annotations

import copy
import gc
import itertools
import os
import pickle
import weakref

import pytest
import torch

pyg = pytest.importorskip("torch_geometric")

import torch_geometric.nn as pyg_nn  # noqa: E402
from torch_geometric import EdgeIndex  # noqa: E402
from torch_geometric.nn.conv.gcn_conv import gcn_norm  # noqa: E402

import gnnagg  # noqa: E402
import gnnagg.nn as our_nn  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("fresh_layers"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*beta.*", "ignore:Sparse invariant", "ignore:Converting sparse tensor"),
]

# float64 on both sides: what differs is the order of summation.
CLOSE = {"rtol": 1e-9, "atol": 1e-10}
NUM_NODES, NUM_EDGES, WIDTH, OUT = 13, 60, 6, 5
# GNNAGG_TEST_DEVICE=cuda runs this file on a GPU.
DEVICE = os.environ.get("GNNAGG_TEST_DEVICE", "cpu")


def random_edges(num_nodes=NUM_NODES, num_edges=NUM_EDGES):
    """Duplicates, self-loops and a duplicated self-loop included; the last two targets stay without edges."""
    edges = torch.stack([torch.randint(num_nodes, (num_edges,)), torch.randint(num_nodes - 2, (num_edges,))])
    edges[:, 1] = edges[:, 0]
    edges[:, [2, 7]] = 1
    edges[:, 11] = 4
    return edges


def features(*shape):
    return torch.randn(*shape, dtype=torch.double, requires_grad=True)


def weights(num_edges=NUM_EDGES):
    return (torch.rand(num_edges, dtype=torch.double) + 0.1).requires_grad_()


def both(*args, **options):
    layers = []
    for module in (our_nn, pyg_nn):
        torch.manual_seed(3)
        layers.append(module.GCNConv(*args, **options).double())
        with torch.no_grad():
            for bias in layers[-1].parameters():
                if not isinstance(bias, torch.nn.UninitializedParameter) and bias.dim() == 1:
                    bias.copy_(torch.linspace(-1, 1, bias.numel()))
    return layers


def assert_same(ours, theirs, inputs, call):
    """Output and the gradients of every input and weight."""
    got, want = call(ours), call(theirs)
    assert got.shape == want.shape and got.dtype == want.dtype
    torch.testing.assert_close(got, want, equal_nan=True, **CLOSE)
    weight = torch.randn_like(want)
    leaves = [t for t in inputs if t is not None and t.requires_grad]
    grads = []
    for layer, out in ((ours, got), (theirs, want)):
        wanted = [*leaves, *layer.parameters()]
        grads.append(torch.autograd.grad((out * weight).sum(), wanted, allow_unused=True))
    for got_grad, want_grad in zip(*grads, strict=True):
        torch.testing.assert_close(got_grad, want_grad, equal_nan=True, **CLOSE)


def only_fused():
    return all(set(entries) == {"fused"} for entries in gnnagg.stats().values())


OPTIONS = {
    "default": {},
    "improved": {"improved": True},
    "no loops": {"add_self_loops": False},
    "no normalisation": {"normalize": False},
    "mean": {"aggr": "mean"},
    "mean, no normalisation": {"aggr": "mean", "normalize": False},
    "no bias": {"bias": False},
    "cached": {"cached": True},
    "cached, improved": {"cached": True, "improved": True},
}


@pytest.mark.parametrize("flow", ["source_to_target", "target_to_source"])
@pytest.mark.parametrize("weighted", ["no weight", "weight", "weight without grad", "column"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_same_results_and_gradients(options, weighted, flow):
    ours, theirs = both(WIDTH, OUT, flow=flow, **options)
    x, edges = features(NUM_NODES, WIDTH), random_edges()
    weight = None if weighted == "no weight" else weights()
    if weighted == "weight without grad":
        weight = weight.detach()
    given = weight.unsqueeze(1) if weighted == "column" else weight
    assert_same(ours, theirs, [x, weight], lambda layer: layer(x, edges, given))
    if not options.get("cached"):
        assert_same(ours, theirs, [x, weight], lambda layer: layer(x, edges, given))
    assert only_fused()


@pytest.mark.parametrize("aggr", ["max", "min", "std", "var"])
def test_other_aggregations(aggr):
    x, edges, weight = features(NUM_NODES, WIDTH), random_edges(), weights()
    ours, theirs = both(WIDTH, OUT, aggr=aggr, normalize=False)
    assert_same(ours, theirs, [x], lambda layer: layer(x, edges))
    assert only_fused()
    for options, given in (({"normalize": False}, weight), ({}, None)):
        ours, theirs = both(WIDTH, OUT, aggr=aggr, **options)
        assert_same(ours, theirs, [x], lambda layer, given=given: layer(x, edges, given))
    assert gnnagg.stats()["GCNConv"][f"fallback: aggr {aggr} over weighted edges"] == 2


@pytest.mark.parametrize("batch", [3, NUM_NODES])
@pytest.mark.parametrize("weighted", [False, True])
def test_static_batch(batch, weighted):
    ours, theirs = both(WIDTH, OUT)
    x, edges, weight = features(batch, NUM_NODES, WIDTH), random_edges(), weights() if weighted else None
    assert_same(ours, theirs, [x, weight], lambda layer: layer(x, edges, weight))
    assert only_fused()


@pytest.mark.parametrize("num_nodes, num_edges", [(0, 0), (1, 0), (NUM_NODES, 0), (1, 4)])
@pytest.mark.parametrize("options", [{}, {"add_self_loops": False}, {"normalize": False}], ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_empty_graphs(num_nodes, num_edges, options, weighted):
    ours, theirs = both(WIDTH, OUT, **options)
    x, edges = features(num_nodes, WIDTH), torch.zeros(2, num_edges, dtype=torch.long)
    weight = weights(num_edges) if weighted else None
    assert_same(ours, theirs, [x, weight], lambda layer: layer(x, edges, weight))
    assert only_fused()


@pytest.mark.parametrize("improved", [False, True])
def test_existing_loops_keep_their_weight_and_the_last_wins(improved):
    ours, theirs = both(1, 1, improved=improved)
    edges = torch.tensor([[0, 1, 1, 0, 2, 1], [0, 1, 2, 0, 0, 1]])
    weight = torch.tensor([5.0, 1.0, 2.0, 7.0, 3.0, 0.5], dtype=torch.double, requires_grad=True)
    x = features(4, 1)
    assert_same(ours, theirs, [x, weight], lambda layer: layer(x, edges, weight))
    assert only_fused()


def test_negative_degree_gives_nan_where_pyg_does():
    ours, theirs = both(WIDTH, OUT, add_self_loops=False)
    x, edges = features(NUM_NODES, WIDTH), random_edges()
    weight = weights().detach() - 0.9
    got, want = ours(x, edges, weight), theirs(x, edges, weight)
    assert want.isnan().any() and not want.isnan().all()
    torch.testing.assert_close(got, want, equal_nan=True, **CLOSE)


def test_zero_degree_gradient():
    ours, theirs = both(WIDTH, OUT, add_self_loops=False)
    x, edges = features(NUM_NODES, WIDTH), random_edges()
    weight = torch.zeros(NUM_EDGES, dtype=torch.double)
    torch.testing.assert_close(ours(x, edges, weight), theirs(x, edges, weight), **CLOSE)


DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("x_dtype, weight_dtype", list(itertools.product(DTYPES, DTYPES)))
@pytest.mark.parametrize("normalize", [False, True])
def test_dtype_of_the_result(x_dtype, weight_dtype, normalize):
    ours, theirs = both(WIDTH, OUT, normalize=normalize)
    x, edges, weight = features(NUM_NODES, WIDTH).detach(), random_edges(), weights().detach()
    want = theirs(x, edges, weight)
    dtype = theirs.to(x_dtype)(x.to(x_dtype), edges, weight.to(weight_dtype)).dtype
    got = ours.to(x_dtype)(x.to(x_dtype), edges, weight.to(weight_dtype))
    assert got.dtype == dtype
    # Inputs are rounded to their dtypes once; values reach about 8.
    tolerance = 20 * max(torch.finfo(x_dtype).eps, torch.finfo(weight_dtype).eps)
    torch.testing.assert_close(got.double(), want, rtol=0, atol=tolerance)
    assert only_fused()


def test_weight_gradient_in_half_precision():
    ours, _ = both(WIDTH, OUT)
    x, edges, weight = features(NUM_NODES, WIDTH).detach(), random_edges(), weights()
    (want,) = torch.autograd.grad(ours(x, edges, weight).square().sum(), weight)
    half = weight.detach().bfloat16().requires_grad_()
    (got,) = torch.autograd.grad(ours.bfloat16()(x.bfloat16(), edges, half).float().square().sum(), half)
    assert got.dtype == torch.bfloat16
    # bfloat16 keeps 8 bits; the gradient is a difference of larger numbers.
    torch.testing.assert_close(got.double(), want, rtol=0.1, atol=0.1 * want.abs().max().item())


# --- forms of the edges --------------------------------------------------------------------------------------------


def test_edge_index_class():
    ours, theirs = both(WIDTH, OUT)
    x, plain, weight = features(NUM_NODES, WIDTH), random_edges(), weights()
    edges = EdgeIndex(plain, sparse_size=(NUM_NODES, NUM_NODES))
    assert_same(ours, theirs, [x], lambda layer: layer(x, edges))
    assert_same(ours, theirs, [x, weight], lambda layer: layer(x, edges if layer is ours else plain, weight))
    assert only_fused()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("self_loops", [None, "add", "remove_add", "remove"])
@pytest.mark.parametrize("options", [{}, {"improved": True}, {"add_self_loops": False}, {"normalize": False}], ids=str)
def test_graph_in_place_of_edge_index(options, self_loops, weighted):
    ours, theirs = both(WIDTH, OUT, **options)
    x, edges = features(NUM_NODES, WIDTH), random_edges()
    graph = gnnagg.Graph.from_edge_index(edges, NUM_NODES, self_loops=self_loops)
    ids = torch.arange(NUM_EDGES)
    if self_loops not in (None, "add"):
        ids = ids[edges[0] != edges[1]]
    wanted = edges[:, ids]
    if self_loops in ("add", "remove_add"):
        wanted = torch.cat([wanted, torch.arange(NUM_NODES).expand(2, -1)], dim=1)
        ids = torch.cat([ids, NUM_EDGES + torch.arange(NUM_NODES)])
    weight = weights(graph.num_edges) if weighted else None
    listed = weight[ids] if weighted else None
    assert_same(
        ours, theirs, [x, weight], lambda layer: layer(x, graph, weight) if layer is ours else layer(x, wanted, listed)
    )
    assert only_fused()
    want = theirs(x, wanted, listed)
    handle = ours.register_message_forward_hook(lambda *_: None)  # PyG's path takes a Graph too
    torch.testing.assert_close(ours(x, graph, weight), want, **CLOSE)
    handle.remove()


def sparse_matrices(weighted):
    edges = random_edges().unique(dim=1)
    values = torch.rand(edges.size(1)).double() if weighted else torch.ones(edges.size(1)).double()
    adj_t = torch.sparse_coo_tensor(edges.flip(0), values, (NUM_NODES, NUM_NODES)).coalesce()
    return {"coo": adj_t, "csr": adj_t.to_sparse_csr(), "csc": adj_t.to_sparse_csc()}


@pytest.mark.parametrize("layout", ["coo", "csr"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "options",
    [{}, {"improved": True}, {"add_self_loops": False}, {"normalize": False}, {"normalize": False, "aggr": "mean"}],
    ids=str,
)
def test_torch_sparse(layout, weighted, options):
    ours, theirs = both(WIDTH, OUT, **options)
    x, adj_t = features(NUM_NODES, WIDTH), sparse_matrices(weighted)[layout]
    twin = adj_t.clone()  # PyG counts as having changed a COO matrix in place
    assert_same(ours, theirs, [x], lambda layer: layer(x, adj_t if layer is ours else twin))
    assert only_fused()


def test_torch_sparse_of_values_changed_in_place():
    ours, theirs = both(WIDTH, OUT)
    x, adj_t = features(NUM_NODES, WIDTH), sparse_matrices(True)["csr"]
    ours(x, adj_t)
    adj_t.values().mul_(3)
    torch.testing.assert_close(ours(x, adj_t), theirs(x, adj_t), **CLOSE)


def test_torch_sparse_falls_back():
    x = features(NUM_NODES, WIDTH).detach()
    ours, theirs = both(WIDTH, OUT, aggr="mean")
    adj_t = sparse_matrices(True)["csr"]
    torch.testing.assert_close(ours(x, adj_t), theirs(x, adj_t), **CLOSE)
    assert "fallback: aggr mean over a sparse matrix with self-loops" in gnnagg.stats()["GCNConv"]
    for layer in both(WIDTH, OUT):
        with pytest.raises(NotImplementedError, match="CSC"):
            layer(x, sparse_matrices(True)["csc"])
    ours, theirs = both(WIDTH, OUT, normalize=False)
    adj_t = sparse_matrices(True)["csc"]
    torch.testing.assert_close(ours(x, adj_t), theirs(x, adj_t), **CLOSE)


# --- what is kept --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
def test_nothing_is_rebuilt_in_the_next_forward(weighted, monkeypatch):
    gnnagg.clear_graph_cache()
    ours, theirs = both(WIDTH, OUT)
    x, edges, weight = features(NUM_NODES, WIDTH), random_edges(), weights().detach() if weighted else None
    first = ours(x, edges, weight)
    graph_count = gnnagg.graph_cache_info()["entries"]

    def refuse(*args, **kwargs):
        raise AssertionError("normalised again")

    from gnnagg.nn import _gcn_norm

    monkeypatch.setattr(_gcn_norm, "_inverse_root", refuse)
    assert torch.equal(first, ours(x, edges, weight))
    assert gnnagg.graph_cache_info()["entries"] == graph_count == 1
    monkeypatch.undo()
    if weighted:  # a weight changed in place is noticed
        weight.mul_(torch.rand_like(weight))
        torch.testing.assert_close(ours(x, edges, weight), theirs(x, edges, weight), **CLOSE)


def test_layers_do_not_keep_graphs_alive():
    ours, _ = both(WIDTH, OUT)
    x, edges, weight = features(NUM_NODES, WIDTH).detach(), random_edges(), weights().detach()
    gc.collect()
    gc.disable()
    try:
        ours(x, edges, weight)
        looped = gnnagg.Graph.from_edge_index(edges, NUM_NODES, self_loops="remove_add")
        alive = weakref.ref(looped)
        del looped, edges
        assert alive() is None, "freed without the cycle collector"
    finally:
        gc.enable()


@pytest.mark.parametrize("weighted", [False, True])
def test_cached_reuses_the_first_graph(weighted):
    ours, theirs = both(WIDTH, OUT, cached=True)
    x, edges, weight = features(NUM_NODES, WIDTH), random_edges(), weights().detach() if weighted else None
    other = random_edges()
    first = ours(x, edges, weight)
    theirs(x, edges, weight)
    assert torch.equal(ours(x, other), first)
    assert ours._cached_edge_index is not None
    with pytest.raises(IndexError):
        ours._cached_edge_index[2]
    for twin in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        torch.testing.assert_close(twin(x, other), first, **CLOSE)
    # PyG's path goes on with what the fused path cached, and the other way round.
    handle = ours.register_message_forward_hook(lambda *_: None)
    torch.testing.assert_close(ours(x, other), first, **CLOSE)
    handle.remove()
    ours._cached_edge_index = theirs._cached_edge_index
    torch.testing.assert_close(ours(x, other), first, **CLOSE)
    assert not torch.allclose(ours(x, other), both(WIDTH, OUT)[1](x, other, weight))
    for layer in (ours, theirs):
        torch.manual_seed(3)
        layer.reset_parameters()
    assert ours._cached_edge_index is None
    assert_same(ours, theirs, [x], lambda layer: layer(x, other, weight))


def test_cached_graph_and_features_of_another_size():
    ours, theirs = both(WIDTH, OUT, cached=True)
    edges, longer = random_edges(), features(NUM_NODES + 3, WIDTH).detach()
    for layer in (ours, theirs):
        layer(features(NUM_NODES, WIDTH), edges)
    torch.testing.assert_close(ours(longer, edges), theirs(longer, edges), **CLOSE)


# --- PyG's class ---------------------------------------------------------------------------------------------------


def test_is_pygs_class_with_the_same_weights():
    for options in ({}, {"bias": False}, {"aggr": "mean"}):
        torch.manual_seed(3)
        ours = our_nn.GCNConv(WIDTH, OUT, **options)
        torch.manual_seed(3)
        theirs = pyg_nn.GCNConv(WIDTH, OUT, **options)
        assert isinstance(ours, pyg_nn.GCNConv) and repr(ours) == repr(theirs) == "GCNConv(6, 5)"
        assert list(ours.state_dict()) == list(theirs.state_dict())
        assert all(map(torch.equal, ours.state_dict().values(), theirs.state_dict().values()))
        theirs.load_state_dict(our_nn.GCNConv(WIDTH, OUT, **options).state_dict())
        ours.load_state_dict(theirs.state_dict())
    with pytest.raises(ValueError, match="self-loops"):
        our_nn.GCNConv(WIDTH, OUT, normalize=False, add_self_loops=True)


def test_lazy_initialisation():
    ours, theirs = both(-1, OUT)
    x, edges = features(NUM_NODES, WIDTH).detach(), random_edges()
    results = []
    for layer in (ours, theirs):
        torch.manual_seed(5)
        results.append(layer(x, edges))
    torch.testing.assert_close(*results, **CLOSE)
    assert only_fused()


def test_pickle_and_deepcopy():
    ours, theirs = both(WIDTH, OUT)
    x, edges = features(NUM_NODES, WIDTH).detach(), random_edges()
    for twin in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        torch.testing.assert_close(twin(x, edges), theirs(x, edges), **CLOSE)


def test_torchscript_compiles_pygs_layer():
    ours, theirs = both(WIDTH, OUT)
    x, edges, weight = features(NUM_NODES, WIDTH).detach(), random_edges(), weights().detach()
    torch.testing.assert_close(torch.jit.script(ours)(x, edges, weight), theirs(x, edges, weight), **CLOSE)


# --- falling back and wrong input ----------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["propagate", "message", "aggregate"])
def test_hooks_run_on_pygs_path(step):
    ours, theirs = both(WIDTH, OUT)
    x, edges, weight = features(NUM_NODES, WIDTH), random_edges(), weights()
    calls = []
    getattr(ours, f"register_{step}_forward_hook")(lambda *args: calls.append(len(args)))
    assert_same(ours, theirs, [x, weight], lambda layer: layer(x, edges, weight))
    assert len(calls) == 1 and gnnagg.stats() == {"GCNConv": {"fallback: message passing hooks": 1}}


def test_explain_mode():
    ours, theirs = both(WIDTH, OUT)
    x, edges = features(NUM_NODES, WIDTH).detach(), random_edges()
    mask = torch.rand(NUM_EDGES).double()
    for layer in (ours, theirs):
        layer.explain = True
        layer._edge_mask, layer._loop_mask = mask, edges[0] != edges[1]
    torch.testing.assert_close(ours(x, edges), theirs(x, edges), **CLOSE)
    assert gnnagg.stats() == {"GCNConv": {"fallback: explain mode": 1}}


def test_strict_names_the_reason(monkeypatch):
    monkeypatch.setenv("GNNAGG_STRICT", "1")
    ours, _ = both(WIDTH, OUT, aggr="max")
    with pytest.raises(RuntimeError, match="GCNConv: .*aggr max over weighted edges.*GNNAGG_STRICT"):
        ours(features(NUM_NODES, WIDTH), random_edges())


def test_wrong_input_gives_pygs_error():
    x, edges = features(NUM_NODES, WIDTH), random_edges()
    integer = torch.ones(NUM_EDGES, dtype=torch.long)
    for layer in both(WIDTH, OUT):
        with pytest.raises(ValueError, match="tuple"):
            layer((x, x), edges)
        with pytest.raises(RuntimeError, match="Long"):
            layer(x, edges, integer)
        with pytest.raises((RuntimeError, IndexError, ValueError)):
            layer(x, edges, weights(NUM_EDGES - 1))
    ours, _ = both(WIDTH, OUT)
    for wrong, error, match in (
        (edges.double(), ValueError, "integer type"),
        (edges[0], ValueError, "two-dimensional"),
        (edges.repeat(2, 1), ValueError, "size '2'"),
        (edges + 5, IndexError, "Graph: edge_index"),
        (edges - 5, IndexError, "Graph: edge_index"),
    ):
        for weight in (None, weights()):
            with pytest.raises(error, match=match):
                ours(x, wrong, weight)
    with pytest.raises(ValueError, match="expected size"):
        ours(x, gnnagg.Graph.from_edge_index(edges, NUM_NODES + 1))


def test_pygs_normalisation_of_a_weightless_improved_graph():
    """Should PyG ever give the added loops the weight 2 there, the layer follows: it asks gcn_norm at run time."""
    from gnnagg.nn._gcn_norm import improved_counts_without_weights

    loops = gcn_norm(torch.tensor([[0], [1]]), None, 2, improved=True, dtype=torch.double)[1][-1].item()
    assert improved_counts_without_weights() == (abs(loops - 2 / 3) < 1e-6)


# --- compiled, autocast, inference ---------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
def test_autocast_result_has_pygs_dtype(weighted):
    ours, theirs = (layer.float() for layer in both(WIDTH, OUT))
    x, edges = torch.randn(NUM_NODES, WIDTH), random_edges()
    weight = weights().float().detach() if weighted else None
    with torch.autocast(DEVICE, torch.bfloat16):
        got, want = ours(x, edges, weight), theirs(x, edges, weight)
    assert got.dtype == want.dtype == torch.float32
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)  # both add bfloat16 messages in float32
    assert only_fused()


@pytest.mark.parametrize("weighted", [False, True])
def test_plan_made_in_inference_mode_trains(weighted):
    ours, theirs = both(WIDTH, OUT)
    x, edges, weight = features(NUM_NODES, WIDTH), random_edges(), weights().detach() if weighted else None
    with torch.inference_mode():
        torch.testing.assert_close(ours(x, edges, weight), theirs(x, edges, weight), **CLOSE)
    assert_same(ours, theirs, [x], lambda layer: layer(x, edges, weight))


@pytest.mark.parametrize("weighted", [False, True])
def test_compiles_without_graph_breaks(weighted):
    torch._dynamo.reset()
    ours, theirs = both(WIDTH, OUT)
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    for num_edges in (NUM_EDGES, NUM_EDGES + 5):
        x, edges = features(NUM_NODES, WIDTH), random_edges(num_edges=num_edges)
        weight = weights(num_edges) if weighted else None
        assert_same(compiled, theirs, [x, weight], lambda layer: layer(x, edges, weight))
    assert gnnagg.stats() == {}, "compiled code is not counted"


def test_compiles_with_a_cached_graph():
    torch._dynamo.reset()
    ours, theirs = both(WIDTH, OUT, cached=True)
    x, edges = features(NUM_NODES, WIDTH), random_edges()
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    assert_same(compiled, theirs, [x], lambda layer: layer(x, edges))
    ours(x, edges)
    assert_same(compiled, theirs, [x], lambda layer: layer(x, edges))
