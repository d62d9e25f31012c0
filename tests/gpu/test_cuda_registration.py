"""The ops on CUDA under opcheck, torch.compile with inductor, and autocast."""

from __future__ import annotations

import shutil

import pytest
import torch
from op_samples import OPS, samples
from zoo import REDUCES, ZOO, features, run

import gnnagg.extremum
import gnnagg.multi  # noqa: F401
from gnnagg import Graph, aggregate

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
SECOND_BY_REFERENCE = ("gat_attention_backward", "gatv2_attention_backward", "dot_attention_backward")


@pytest.mark.parametrize("op", OPS)
def test_opcheck(op: str) -> None:
    checks = ["test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]
    if op in SECOND_BY_REFERENCE and TORCH < (2, 12):
        checks.remove("test_aot_dispatch_dynamic")  # its tracer fails on a slice by a traced number of edges
    for arguments in samples(op, "cuda"):
        torch.library.opcheck(getattr(torch.ops.gnnagg, op).default, arguments, test_utils=checks)


@pytest.mark.skipif(not (shutil.which("cc") or shutil.which("gcc")), reason="inductor needs a C compiler")
def test_inductor() -> None:
    """A layer with other work around the aggregation, planned inside; forward and backward, two edge counts."""
    pytest.importorskip("triton")

    def layer(x: torch.Tensor, edge_index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        graph = Graph.from_edge_index(edge_index, (x.size(0), x.size(0)), self_loops="add")
        hidden = torch.relu(x @ weight)
        mean, most = aggregate(hidden, graph, reduce=("mean", "max"))
        return (mean * 2 + aggregate(most, graph)).square().mean()

    compiled = torch.compile(layer, fullgraph=True, dynamic=True)
    x, weight = features(110, 8, device="cuda"), features(8, 16, seed=1, device="cuda")
    for count in (1300, 700):
        edge_index = ZOO["power_law"].edge_index[:, :count].cuda()
        results = []
        for function in (compiled, layer):
            inputs = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
            out = function(inputs[0], edge_index, inputs[1])
            results.append([out, *torch.autograd.grad(out, inputs)])
        for actual, expected in zip(*results, strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3)  # fused matmul and relu round otherwise


@pytest.mark.parametrize("reduce", REDUCES)
def test_autocast_runs_in_the_dtype_of_x(reduce: str) -> None:
    graph = ZOO["power_law"].graph("cuda")
    for dtype in (torch.float32, torch.float16):
        x, grad = features(110, 4, dtype=dtype, device="cuda"), features(110, 4, dtype=dtype, seed=1, device="cuda")
        with torch.autocast("cuda", torch.float16):
            inside = run(x, graph, None, reduce, grad)
        assert inside[0].dtype == dtype
        for actual, expected in zip(inside, run(x, graph, None, reduce, grad), strict=True):
            assert torch.equal(actual, expected)
