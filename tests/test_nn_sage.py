"""gnnagg.nn.SAGEConv against torch_geometric.nn.SAGEConv: results, gradients, and everything else of PyG's class."""

from __future__ import annotations

import copy
import io
import itertools
import os
import pickle
import warnings

import pytest
import torch

pyg = pytest.importorskip("torch_geometric")

import torch_geometric.nn as pyg_nn  # noqa: E402
import torch_geometric.typing  # noqa: E402
from torch_geometric import EdgeIndex  # noqa: E402
from torch_geometric.nn import aggr as pyg_aggr  # noqa: E402

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


def random_edges(num_src=NUM_NODES, num_dst=NUM_NODES, num_edges=NUM_EDGES):
    """Duplicates and self-loops included; the last two targets stay without edges."""
    edges = torch.stack([torch.randint(num_src, (num_edges,)), torch.randint(num_dst - 2, (num_edges,))])
    edges[:, 1] = edges[:, 0]
    edges[:, 2] = 1
    return edges


def features(*shape):
    """Odd multiples of 1/4, so that ties among maxima occur, but not at 0 (see test_ties_at_zero)."""
    return (torch.randint(-3, 3, shape) / 2 + 0.25).double().requires_grad_()


def both(*args, **options):
    layers = []
    for module in (our_nn, pyg_nn):
        torch.manual_seed(3)
        layers.append(module.SAGEConv(*args, **options).double())
    return layers


def assert_same(ours, theirs, inputs, call):
    """Output and the gradients of every input and weight."""
    got, want = call(ours), call(theirs)
    assert got.shape == want.shape and got.dtype == want.dtype
    torch.testing.assert_close(got, want, **CLOSE)
    weight = torch.randn_like(want)
    leaves = [t for t in inputs if t.requires_grad]
    grads = []
    for layer, out in ((ours, got), (theirs, want)):
        wanted = [*leaves, *layer.parameters()]
        grads.append(torch.autograd.grad((out * weight).sum(), wanted, allow_unused=True))
    for got_grad, want_grad in zip(*grads, strict=True):
        torch.testing.assert_close(got_grad, want_grad, **CLOSE)


def only_fused():
    return all(set(entries) == {"fused"} for entries in gnnagg.stats().values())


OPTIONS = {
    "sum": {"aggr": "sum"},
    "add": {"aggr": "add"},
    "mean": {},
    "max": {"aggr": "max"},
    "min": {"aggr": "min"},
    "std": {"aggr": "std"},
    "var": {"aggr": "var"},
    "several": {"aggr": ["mean", "max", "min", "sum", "std", "var"]},
    "one in a list": {"aggr": ["max"]},
    "module": {"aggr": pyg_aggr.MeanAggregation()},
    "modules": {"aggr": pyg_aggr.MultiAggregation(["min", pyg_aggr.VarAggregation()])},
    "modules summed": {"aggr": pyg_aggr.MultiAggregation(["sum", "max"], mode="sum")},
    "normalize": {"normalize": True},
    "no root": {"root_weight": False},
    "project": {"project": True},
    "no bias": {"bias": False},
    "reversed": {"flow": "target_to_source"},
    "node_dim": {"node_dim": 0},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_same_results_and_gradients(options):
    ours, theirs = both(WIDTH, OUT, **options)
    x, edges = features(NUM_NODES, WIDTH), random_edges()
    assert_same(ours, theirs, [x], lambda layer: layer(x, edges))
    assert only_fused()


@pytest.mark.parametrize("aggr", ["mean", "max", ["sum", "std"]], ids=str)
@pytest.mark.parametrize("kind", ["pair", "pair and size", "no target", "no target, size"])
def test_bipartite(aggr, kind):
    ours, theirs = both((WIDTH, 4), OUT, aggr=aggr)
    src = features(9, WIDTH)
    dst = features(7, 4)
    edges = random_edges(9, 7)
    size = (9, 7) if "size" in kind else None
    x = (src, None) if "no target" in kind else (src, dst)
    assert_same(ours, theirs, [src, dst], lambda layer: layer(x, edges, size))
    assert only_fused()


@pytest.mark.parametrize("node_dim", [-2, 0])
@pytest.mark.parametrize("aggr", ["mean", "max", ["sum", "max"]], ids=str)
@pytest.mark.parametrize("batch", [3, NUM_NODES])
def test_static_batch(node_dim, aggr, batch):
    ours, theirs = both(WIDTH, OUT, aggr=aggr, node_dim=node_dim)
    shape = (batch, NUM_NODES, WIDTH) if node_dim == -2 else (NUM_NODES, batch, WIDTH)
    x, edges = features(*shape), random_edges()
    assert_same(ours, theirs, [x], lambda layer: layer(x, edges))
    assert only_fused()


def test_four_dimensions():
    ours, theirs = both(WIDTH, OUT)
    x, edges = features(2, 3, NUM_NODES, WIDTH), random_edges()
    assert_same(ours, theirs, [x], lambda layer: layer(x, edges))
    assert only_fused()


@pytest.mark.parametrize("num_nodes, num_edges", [(0, 0), (1, 0), (NUM_NODES, 0), (1, 4)])
@pytest.mark.parametrize("aggr", ["mean", "max", ["sum", "std"]], ids=str)
def test_empty_graphs(num_nodes, num_edges, aggr):
    ours, theirs = both(WIDTH, OUT, aggr=aggr)
    x, edges = features(num_nodes, WIDTH), torch.zeros(2, num_edges, dtype=torch.long)
    assert_same(ours, theirs, [x], lambda layer: layer(x, edges))
    assert only_fused()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("aggr", ["mean", "max", ["sum", "var"]], ids=str)
def test_other_dtypes(dtype, aggr):
    ours, theirs = both(WIDTH, OUT, aggr=aggr)
    x, edges = features(NUM_NODES, WIDTH).detach(), random_edges()
    want = theirs(x, edges)
    got = ours.to(dtype)(x.to(dtype), edges)
    assert got.dtype == dtype
    # Weights and inputs are rounded to the dtype once; ten products add up.
    torch.testing.assert_close(got.double(), want, rtol=0, atol=20 * torch.finfo(dtype).eps)
    assert only_fused()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_index_dtypes(dtype):
    ours, theirs = both(WIDTH, OUT)
    x, edges = features(NUM_NODES, WIDTH), random_edges()
    torch.testing.assert_close(ours(x, edges.to(dtype)), theirs(x, edges), **CLOSE)
    assert only_fused()


def test_ties_at_zero_share_the_whole_gradient():
    """torch's scatter_reduce counts its initial zeros as one more winner there, and loses that share."""
    ours, theirs = both(1, 1, aggr="max", root_weight=False, bias=False)
    x, edges = torch.zeros(2, 1, dtype=torch.double, requires_grad=True), torch.tensor([[0, 1], [0, 0]])
    grads = [torch.autograd.grad(layer(x, edges)[0].sum(), x)[0] for layer in (ours, theirs)]
    weight = ours.lin_l.weight.item()
    assert grads[0].flatten().tolist() == [weight / 2, weight / 2]
    torch.testing.assert_close(grads[1], grads[0] * 2 / 3, **CLOSE)


def test_nan_reaches_the_target_alone():
    ours, theirs = both(WIDTH, OUT, aggr="max", root_weight=False)
    x, edges = features(NUM_NODES, WIDTH).detach(), random_edges()
    x[3, 2] = float("nan")
    torch.testing.assert_close(ours(x, edges), theirs(x, edges), equal_nan=True, **CLOSE)


# --- forms of the edges --------------------------------------------------------------------------------------------


def test_edge_index_class():
    ours, theirs = both(WIDTH, OUT)
    x, plain = features(NUM_NODES, WIDTH), random_edges()
    for edges in (
        EdgeIndex(plain, sparse_size=(NUM_NODES, NUM_NODES)),
        EdgeIndex(plain[:, plain[1].argsort(stable=True)], sparse_size=(NUM_NODES, NUM_NODES), sort_order="col"),
        EdgeIndex(plain),
    ):
        assert_same(ours, theirs, [x], lambda layer, edges=edges: layer(x, edges))
    assert only_fused()


def test_edge_index_class_of_another_size():
    ours, theirs = both(WIDTH, OUT)
    x, edges = features(NUM_NODES, WIDTH), EdgeIndex(random_edges(), sparse_size=(NUM_NODES + 1, NUM_NODES + 1))
    for layer in (ours, theirs):
        with pytest.raises(ValueError, match="expected size"):
            layer(x, edges)


@pytest.mark.parametrize("flow", ["source_to_target", "target_to_source"])
@pytest.mark.parametrize("self_loops", [None, "add", "remove_add", "remove"])
def test_graph_in_place_of_edge_index(flow, self_loops):
    ours, theirs = both(WIDTH, OUT, flow=flow)
    x, edges = features(NUM_NODES, WIDTH), random_edges()
    graph = gnnagg.Graph.from_edge_index(edges, NUM_NODES, flow=flow, self_loops=self_loops)
    wanted = edges if self_loops in (None, "add") else edges[:, edges[0] != edges[1]]
    if self_loops in ("add", "remove_add"):
        wanted = torch.cat([wanted, torch.arange(NUM_NODES).expand(2, -1)], dim=1)
    want = theirs(x, wanted)
    torch.testing.assert_close(ours(x, graph), want, **CLOSE)
    assert only_fused()
    ours.explain = False
    handle = ours.register_message_forward_hook(lambda *_: None)  # PyG's path takes a Graph too
    torch.testing.assert_close(ours(x, graph), want, **CLOSE)
    handle.remove()


def test_bipartite_graph_object():
    ours, theirs = both((WIDTH, 4), OUT)
    src, dst, edges = features(9, WIDTH), features(7, 4), random_edges(9, 7)
    graph = gnnagg.Graph.from_edge_index(edges, (9, 7))
    assert_same(ours, theirs, [src, dst], lambda layer: layer((src, dst), graph if layer is ours else edges))
    torch.testing.assert_close(ours((src, None), graph), theirs((src, None), edges, (9, 7)), **CLOSE)
    with pytest.raises(ValueError, match="expected size 9"):
        ours((dst, src), graph)
    with pytest.raises(ValueError, match="size must be"):
        ours((src, dst), graph, (9, 8))


def sparse_matrices(weighted):
    edges = random_edges().unique(dim=1)
    values = torch.rand(edges.size(1)).double() if weighted else torch.ones(edges.size(1)).double()
    adj_t = torch.sparse_coo_tensor(edges.flip(0), values, (NUM_NODES, NUM_NODES)).coalesce()
    return {"coo": adj_t, "csr": adj_t.to_sparse_csr(), "csc": adj_t.to_sparse_csc()}


@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
@pytest.mark.parametrize("aggr", ["sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
def test_torch_sparse(layout, aggr, weighted):
    ours, theirs = both(WIDTH, OUT, aggr=aggr)
    x, adj_t = features(NUM_NODES, WIDTH), sparse_matrices(weighted)[layout]
    assert_same(ours, theirs, [x], lambda layer: layer(x, adj_t))
    assert only_fused()


@pytest.mark.skipif(DEVICE != "cpu", reason="torch has no such product on CUDA")
def test_torch_sparse_falls_back():
    x = features(NUM_NODES, WIDTH).detach()
    for aggr, reason in (("max", "over the values"), (["sum", "mean"], "over the values")):
        ours, theirs = both(WIDTH, OUT, aggr=aggr)
        adj_t = sparse_matrices(True)["csr"]
        torch.testing.assert_close(ours(x, adj_t), theirs(x, adj_t), **CLOSE)
        assert any(reason in entry for entry in gnnagg.stats()["SAGEConv"])
    with pytest.raises(ValueError, match="target_to_source"):
        our_nn.SAGEConv(WIDTH, OUT, flow="target_to_source").double()(x, sparse_matrices(False)["csr"])


class SparseStandIn(torch_geometric.typing.SparseTensor):
    """What the layers ask of a torch_sparse.SparseTensor, which is not installed here; the values are to be ignored."""

    def __init__(self, rowptr, col, size):
        self.parts, self.shape = (rowptr, col, None), size

    def csr(self):
        return self.parts

    def size(self, dim):
        return self.shape[dim]


SparseStandIn.__module__ = "torch_sparse.tensor"


@pytest.mark.skipif(torch_geometric.typing.WITH_TORCH_SPARSE, reason="torch_sparse is installed: no stand-in is needed")
@pytest.mark.parametrize("aggr", ["mean", "max"])
def test_sparse_tensor(aggr):
    ours, theirs = both(WIDTH, OUT, aggr=aggr)
    x, edges = features(9, WIDTH), random_edges(9, 7)
    edges = edges[:, edges[1].argsort(stable=True)]
    rowptr = torch.cat([torch.zeros(1, dtype=torch.long), torch.bincount(edges[1], minlength=7).cumsum(0)])
    adj_t = SparseStandIn(rowptr, edges[0], (7, 9))
    first = ours((x, None), adj_t)
    torch.testing.assert_close(first, theirs((x, None), edges, (9, 7)), **CLOSE)
    assert torch.equal(first, ours((x, None), adj_t))
    assert only_fused()


def test_plan_is_shared_and_noticed_when_changed_in_place():
    gnnagg.clear_graph_cache()
    first, second = both(WIDTH, OUT)[0], both(WIDTH, OUT, aggr="max")[0]
    x, edges = features(NUM_NODES, WIDTH).detach(), random_edges()
    before = first(x, edges)
    second(x, edges)
    first(x, edges)
    assert gnnagg.graph_cache_info()["entries"] == 1
    edges[0, 0] = (edges[0, 0] + 1) % NUM_NODES
    assert not torch.equal(before, first(x, edges))


# --- PyG's class ---------------------------------------------------------------------------------------------------


def test_is_pygs_class_with_the_same_weights():
    for options in ({}, {"project": True}, {"aggr": ["mean", "max"]}, {"root_weight": False}):
        ours, theirs = both(WIDTH, OUT, **options)
        assert isinstance(ours, pyg_nn.SAGEConv) and isinstance(ours, pyg_nn.MessagePassing)
        assert repr(ours) == repr(theirs)
        assert list(ours.state_dict()) == list(theirs.state_dict())
        for key, value in theirs.state_dict().items():
            assert torch.equal(ours.state_dict()[key], value), "the constructor draws the same numbers"
        for layer in (ours, theirs):
            torch.manual_seed(8)
            layer.reset_parameters()
        assert all(map(torch.equal, ours.state_dict().values(), theirs.state_dict().values()))
        theirs.load_state_dict(our_nn.SAGEConv(WIDTH, OUT, **options).double().state_dict())
        ours.load_state_dict(theirs.state_dict())


@pytest.mark.parametrize("in_channels", [-1, (-1, -1)], ids=str)
@pytest.mark.parametrize("aggr", ["mean", ["mean", "max"]], ids=str)
def test_lazy_initialisation(in_channels, aggr):
    ours, theirs = both(in_channels, OUT, aggr=aggr)
    x, edges = features(NUM_NODES, WIDTH).detach(), random_edges()
    results = []
    for layer in (ours, theirs):
        torch.manual_seed(5)
        results.append(layer((x, x), edges))
    torch.testing.assert_close(*results, **CLOSE)
    assert only_fused()
    with pytest.raises(ValueError, match="lazy"):
        our_nn.SAGEConv(-1, OUT, project=True)


def test_pickle_and_deepcopy():
    ours, theirs = both(WIDTH, OUT)
    x, edges = features(NUM_NODES, WIDTH).detach(), random_edges()
    want = theirs(x, edges)
    file = io.BytesIO()
    torch.save(ours, file)
    file.seek(0)
    for twin in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), torch.load(file, weights_only=False)):
        torch.testing.assert_close(twin(x, edges), want, **CLOSE)
        handle = twin.register_propagate_forward_hook(lambda *_: None)
        torch.testing.assert_close(twin(x, edges), want, **CLOSE)
        handle.remove()


def test_torchscript_compiles_pygs_layer():
    ours, theirs = both(WIDTH, OUT)
    x, edges = features(NUM_NODES, WIDTH).detach(), random_edges()

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = ours

        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
            return self.conv(x, edge_index)

    torch.testing.assert_close(torch.jit.script(Net())(x, edges), theirs(x, edges), **CLOSE)
    torch.testing.assert_close(ours(x, edges), theirs(x, edges), **CLOSE)
    assert "fallback: torch.jit.script" in gnnagg.stats()["SAGEConv"]


def test_to_hetero():
    from torch_geometric.nn import to_hetero

    class Net(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self.conv = module.SAGEConv((-1, -1), OUT)

        def forward(self, x, edge_index):
            return self.conv(x, edge_index).relu()

    metadata = (["a", "b"], [("a", "to", "b"), ("b", "to", "a")])
    x = {"a": torch.randn(9, 4), "b": torch.randn(7, 3)}
    edges = {("a", "to", "b"): random_edges(9, 7), ("b", "to", "a"): random_edges(7, 9)}
    results = []
    for module in (our_nn, pyg_nn):
        torch.manual_seed(2)
        net = to_hetero(Net(module), metadata)
        torch.manual_seed(2)
        results.append(net(x, edges))
    for node_type in x:
        torch.testing.assert_close(results[0][node_type], results[1][node_type], rtol=1e-5, atol=1e-5)
    assert only_fused()


# --- falling back --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["propagate", "message", "aggregate"])
@pytest.mark.parametrize("when", ["", "pre_"])
def test_hooks_run_on_pygs_path(step, when):
    ours, theirs = both(WIDTH, OUT)
    x, edges = features(NUM_NODES, WIDTH).detach(), random_edges()
    calls = []
    handle = getattr(ours, f"register_{step}_forward_{when}hook")(lambda *args: calls.append(len(args)))
    torch.testing.assert_close(ours(x, edges), theirs(x, edges), **CLOSE)
    assert len(calls) == 1 and gnnagg.stats() == {"SAGEConv": {"fallback: message passing hooks": 1}}
    handle.remove()
    ours(x, edges)
    assert gnnagg.stats()["SAGEConv"]["fused"] == 1


def test_explain_mode():
    ours, theirs = both(WIDTH, OUT)
    x, edges = features(NUM_NODES, WIDTH).detach(), random_edges()
    mask = torch.rand(NUM_EDGES).double()
    for layer in (ours, theirs):
        layer.explain = True
        layer._edge_mask, layer._apply_sigmoid = mask, True
    torch.testing.assert_close(ours(x, edges), theirs(x, edges), **CLOSE)
    assert gnnagg.stats() == {"SAGEConv": {"fallback: explain mode": 1}}
    for layer in (ours, theirs):
        layer.explain = False
    torch.testing.assert_close(ours(x, edges), theirs(x, edges), **CLOSE)
    assert gnnagg.stats()["SAGEConv"]["fused"] == 1, "switching back is not taken for a propagate of the user's own"


def test_explainer_of_pyg():
    from torch_geometric.explain import Explainer, GNNExplainer

    class Net(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self.conv = module.SAGEConv(WIDTH, 3)

        def forward(self, x, edge_index):
            return self.conv(x, edge_index).log_softmax(-1)

    x, edges = torch.randn(NUM_NODES, WIDTH), random_edges()
    masks = []
    for module in (our_nn, pyg_nn):
        torch.manual_seed(4)
        explainer = Explainer(
            Net(module),
            GNNExplainer(epochs=3),
            explanation_type="model",
            edge_mask_type="object",
            model_config={"mode": "multiclass_classification", "task_level": "node", "return_type": "log_probs"},
        )
        masks.append(explainer(x, edges, index=3).edge_mask)
    torch.testing.assert_close(*masks, rtol=1e-4, atol=1e-6)
    assert gnnagg.stats()["SAGEConv"]["fallback: explain mode"] > 0


def test_decomposed_layers_do_what_pyg_does():
    ours, theirs = both(WIDTH, OUT, decomposed_layers=2)
    x, edges = features(NUM_NODES, WIDTH), random_edges()
    outcomes = []
    for layer in (ours, theirs):
        try:
            outcomes.append(layer(x, edges).detach())
        except AttributeError as error:
            outcomes.append(str(error))
    assert type(outcomes[0]) is type(outcomes[1])
    assert gnnagg.stats() == {"SAGEConv": {"fallback: decomposed_layers": 1}}


FALLBACKS = {
    "median": ({"aggr": "median"}, "aggr MedianAggregation"),
    "softmax in a list": ({"aggr": ["mean", "softmax"]}, "aggr SoftmaxAggregation"),
    "semi_grad": ({"aggr": pyg_aggr.VarAggregation(semi_grad=True)}, "aggr VarAggregation with semi_grad"),
    "twice": ({"aggr": ["mean", "mean"]}, "aggr MeanAggregation twice"),
    "mul": ({"aggr": "mul"}, "aggr MulAggregation"),
}


@pytest.mark.parametrize("options, reason", FALLBACKS.values(), ids=FALLBACKS.keys())
def test_other_aggregations_run_on_pygs_path(options, reason):
    ours, theirs = both(WIDTH, OUT, **options)
    x, edges = features(NUM_NODES, WIDTH), random_edges()
    assert_same(ours, theirs, [x], lambda layer: layer(x, edges))
    assert gnnagg.stats() == {"SAGEConv": {f"fallback: {reason}": 1}}


def test_subclass_with_its_own_message_is_not_fused():
    class Doubled(our_nn.SAGEConv):
        def message(self, x_j):
            return 2 * x_j

    class Renamed(our_nn.SAGEConv):
        pass

    x, edges = features(NUM_NODES, WIDTH).detach(), random_edges()
    torch.manual_seed(3)
    doubled = Doubled(WIDTH, OUT, root_weight=False, bias=False).double()
    plain, _ = both(WIDTH, OUT, root_weight=False, bias=False)
    torch.testing.assert_close(doubled(x, edges), 2 * plain(x, edges), **CLOSE)
    assert gnnagg.stats()["Doubled"] == {"fallback: a subclass with its own message": 1}
    Renamed(WIDTH, OUT).double()(x, edges)
    assert gnnagg.stats()["Renamed"] == {"fused": 1}
    plain.message = lambda x_j: 2 * x_j
    torch.testing.assert_close(plain(x, edges), doubled(x, edges), **CLOSE)
    assert gnnagg.stats()["SAGEConv"]["fallback: an object with its own message"] == 1


def test_torch_func_transforms():
    from torch.func import functional_call, grad, vmap

    ours, theirs = both(WIDTH, OUT)
    batch, edges = features(4, NUM_NODES, WIDTH).detach(), random_edges()
    torch.testing.assert_close(vmap(lambda x: ours(x, edges))(batch), vmap(lambda x: theirs(x, edges))(batch), **CLOSE)
    grads = []
    for layer in (ours, theirs):
        weights = dict(layer.named_parameters())
        grads.append(grad(lambda w, layer=layer: functional_call(layer, w, (batch[0], edges)).square().sum())(weights))
    torch.testing.assert_close(grads[0], grads[1], **CLOSE)
    assert set(gnnagg.stats()["SAGEConv"]) == {"fallback: a torch.func transform"}


def test_forward_mode_and_double_backward():
    ours, theirs = both(WIDTH, OUT, aggr="sum")
    x, edges = features(NUM_NODES, WIDTH), random_edges()
    tangent = torch.randn_like(x)
    results = [torch.func.jvp(lambda y, layer=layer: layer(y, edges), (x,), (tangent,))[1] for layer in (ours, theirs)]
    torch.testing.assert_close(*results, **CLOSE)
    second = []
    for layer in (ours, theirs):
        (first,) = torch.autograd.grad(layer(x, edges).pow(3).sum(), x, create_graph=True)
        second.append(torch.autograd.grad(first.sin().sum(), x)[0])
    torch.testing.assert_close(*second, **CLOSE)


def test_strict_names_the_reason(monkeypatch):
    ours, _ = both(WIDTH, OUT, aggr="median")
    monkeypatch.setenv("GNNAGG_STRICT", "1")
    with pytest.raises(RuntimeError, match=r"SAGEConv: .*aggr MedianAggregation.*GNNAGG_STRICT"):
        ours(features(NUM_NODES, WIDTH), random_edges())
    both(WIDTH, OUT)[0](features(NUM_NODES, WIDTH), random_edges())
    monkeypatch.setenv("GNNAGG_STRICT", "0")
    ours(features(NUM_NODES, WIDTH), random_edges())


def test_verbose_warns_once_per_reason(monkeypatch):
    ours, _ = both(WIDTH, OUT, aggr="median")
    monkeypatch.setenv("GNNAGG_VERBOSE", "1")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            ours(features(NUM_NODES, WIDTH), random_edges())
    ours_only = [w for w in caught if "gnnagg" in str(w.message)]
    assert len(ours_only) == 1 and "aggr MedianAggregation" in str(ours_only[0].message)


# --- wrong input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "edges, error, match",
    [
        (torch.zeros(2, 3), ValueError, "integer type"),
        (torch.zeros(4, dtype=torch.long), ValueError, "two-dimensional"),
        (torch.zeros(3, 4, dtype=torch.long), ValueError, "size '2'"),
        ([[0], [1]], ValueError, "edge_index"),
        (torch.tensor([[0, NUM_NODES], [1, 1]]), IndexError, f"got .*{NUM_NODES}.* at edge 1"),
        (torch.tensor([[0, 1], [1, -1]]), IndexError, "got target -1.* at edge 1"),
    ],
    ids=["float", "1-D", "three rows", "list", "too large", "negative"],
)
def test_wrong_edges(edges, error, match):
    with pytest.raises(error, match=match):
        both(WIDTH, OUT)[0](features(NUM_NODES, WIDTH), edges)


def test_wrong_sizes():
    ours, theirs = both(WIDTH, OUT)
    src, dst, edges = features(9, WIDTH), features(7, WIDTH), random_edges(7, 7)
    for layer, size in itertools.product((ours, theirs), [(8, 7), (9, 8)]):
        with pytest.raises(ValueError, match="but expected size 8"):
            layer((src, dst), edges, size)


# --- compiled, autocast, inference ---------------------------------------------------------------------------------


def test_autocast_result_has_pygs_dtype():
    ours, theirs = (layer.float() for layer in both(WIDTH, OUT))
    x, edges = torch.randn(NUM_NODES, WIDTH), random_edges()
    with torch.autocast(DEVICE, torch.bfloat16):
        got, want = ours(x, edges), theirs(x, edges)
    assert got.dtype == want.dtype == torch.bfloat16
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
    assert only_fused()


def test_plan_made_in_inference_mode_trains():
    ours, theirs = both(WIDTH, OUT)
    x, edges = features(NUM_NODES, WIDTH), random_edges()
    with torch.inference_mode():
        torch.testing.assert_close(ours(x, edges), theirs(x, edges), **CLOSE)
    assert_same(ours, theirs, [x], lambda layer: layer(x, edges))


@pytest.mark.parametrize("aggr", ["mean", ["max", "sum"]], ids=str)
def test_compiles_without_graph_breaks(aggr):
    torch._dynamo.reset()
    ours, theirs = both(WIDTH, OUT, aggr=aggr)
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    for num_edges in (NUM_EDGES, NUM_EDGES + 5):
        x, edges = features(NUM_NODES, WIDTH), random_edges(num_edges=num_edges)
        got, want = compiled(x, edges), theirs(x, edges)
        torch.testing.assert_close(got, want, **CLOSE)
        wanted = [torch.autograd.grad(out.sin().sum(), x)[0] for out in (got, want)]
        torch.testing.assert_close(*wanted, **CLOSE)
    assert gnnagg.stats() == {}, "compiled code is not counted"
