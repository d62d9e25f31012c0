"""Attention dropout: one rule for every op and device, its statistics, its seeds."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from attention_zoo import DEVICE, GRAPHS
from torch import Tensor
from zoo import assert_same_bits, features

from gnnagg import gat_attention, reference
from gnnagg.dropout_mask import dropout_mask


def seed_of(value: int) -> Tensor:
    return torch.tensor([value], dtype=torch.int64, device=DEVICE)


def inputs(name: str = "power_law", shape: tuple[int, int] = (3, 5)) -> dict[str, Any]:
    graph = GRAPHS[name].graph(DEVICE)
    return {
        "z": features(graph.num_src, *shape, device=DEVICE),
        "a_src": features(graph.num_src, shape[0], seed=1, device=DEVICE),
        "a_dst": features(graph.num_dst, shape[0], seed=2, device=DEVICE),
        "graph": graph,
    }


# --- the mask --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dropout", [0.0, 0.1, 0.5, 2.0**-24, 1 - 2.0**-24, 1.0])
@pytest.mark.parametrize("seed", [0, 1, -1, 2**40 + 3, -(2**63), 2**63 - 1])
def test_mask_as_the_reference(seed: int, dropout: float) -> None:
    for heads in (1, 2, 4, 7, 8, 70):
        got = dropout_mask(seed_of(seed), 300, heads, dropout)
        want = reference.dropout_mask(seed, 300, heads, dropout)
        assert got.shape == (300, heads) and got.dtype == torch.float32
        assert torch.equal(got.cpu() > 0, want > 0)
        torch.testing.assert_close(got.cpu(), want)


def test_generator_gives_the_published_numbers() -> None:
    """The known answer of Philox4x32-10 for key 0, counter 0, against thresholds on either side of each word."""
    for head, word in enumerate((0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)):
        drawn = word >> 8
        for threshold, kept in ((drawn, True), (drawn + 1, False)):
            for op in (
                dropout_mask(seed_of(0), 1, 4, threshold / 2**24),
                reference.dropout_mask(0, 1, 4, threshold / 2**24),
            ):
                assert bool(op[0, head] > 0) == kept


@pytest.mark.parametrize("dropout", [0.1, 0.5, 0.9])
def test_statistics(dropout: float) -> None:
    """Kept as often as asked, independently of the next head, the next edge and the next seed."""
    edges, heads = 100_000, 8
    keep = dropout_mask(seed_of(1), edges, heads, dropout).double() > 0
    sigma = math.sqrt(dropout * (1 - dropout))
    rate = keep.double().mean()
    assert abs(rate - (1 - dropout)) < 5 * sigma / math.sqrt(edges * heads)
    assert ((keep.double().mean(0) - (1 - dropout)).abs() < 5 * sigma / math.sqrt(edges)).all()
    centred = (keep.double() - (1 - dropout)) / sigma
    correlation = centred.t() @ centred / edges
    assert ((correlation - torch.diag(correlation.diag())).abs() < 5 / math.sqrt(edges)).all()
    assert ((centred[1:] * centred[:-1]).mean(0).abs() < 5 / math.sqrt(edges)).all()
    other = (dropout_mask(seed_of(2), edges, heads, dropout).double() > 0).double() - (1 - dropout)
    assert abs((centred * other / sigma).mean()) < 5 / math.sqrt(edges * heads)


def test_mask_of_an_edge_depends_on_nothing_else() -> None:
    small, large = dropout_mask(seed_of(5), 10, 3, 0.5), dropout_mask(seed_of(5), 1000, 12, 0.5)
    assert torch.equal(small, large[:10, :3])


# --- in the ops ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 5), (8, 8), (1, 64), (70, 2)], ids=str)
@pytest.mark.parametrize("name", ["power_law", "big_hub", "long_row"])
def test_forward_and_backward_use_the_mask_of_the_seed(name: str, shape: tuple[int, int]) -> None:
    """Where a mask is all that changes: with equal scores, out and dz count kept edges, exactly."""
    arguments = inputs(name, shape)
    graph = arguments["graph"]
    z = torch.ones_like(arguments["z"]).double().requires_grad_()
    scores = {key: torch.zeros_like(arguments[key]).double() for key in ("a_src", "a_dst")}
    out = gat_attention(z, scores["a_src"], scores["a_dst"], graph, dropout=0.5, seed=17)
    (dz,) = torch.autograd.grad(out.sum(), z)
    mask = dropout_mask(seed_of(17), graph.num_edges, shape[0], 0.5).double()
    source, target, edge = reference.edges(graph)
    share = graph.in_degree().double().clamp(min=1).reciprocal()[target].unsqueeze(1) * mask[edge]
    want_out = share.new_zeros(graph.num_dst, shape[0]).index_add(0, target, share)
    want_dz = share.new_zeros(graph.num_src, shape[0]).index_add(0, source, share)
    torch.testing.assert_close(out, want_out.unsqueeze(2).expand_as(out))
    torch.testing.assert_close(dz, want_dz.unsqueeze(2).expand_as(dz))


def test_seed_as_a_number_or_a_tensor() -> None:
    arguments = inputs()
    first = gat_attention(**arguments, dropout=0.5, seed=23)
    assert_same_bits(gat_attention(**arguments, dropout=0.5, seed=seed_of(23)), first)
    assert not torch.equal(gat_attention(**arguments, dropout=0.5, seed=24), first)
    assert not torch.equal(gat_attention(**arguments), first)


def test_seed_is_drawn_from_the_generator_of_torch() -> None:
    arguments = inputs()
    torch.manual_seed(3)
    first, second = (gat_attention(**arguments, dropout=0.5) for _ in range(2))
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert_same_bits(gat_attention(**arguments, dropout=0.5), first)


def test_without_dropout_the_generator_is_left_alone() -> None:
    arguments = inputs()
    torch.manual_seed(3)
    expected = torch.rand(4, device=DEVICE)
    torch.manual_seed(3)
    plain = gat_attention(**arguments)
    assert torch.equal(torch.rand(4, device=DEVICE), expected)
    assert_same_bits(gat_attention(**arguments, dropout=0.0, seed=5), plain)


def test_everything_dropped() -> None:
    arguments = inputs()
    leaves = [arguments[name].requires_grad_() for name in ("z", "a_src", "a_dst")]
    out, alpha = gat_attention(**arguments, dropout=1.0, return_alpha=True)
    assert out.shape == (110, 3, 5) and not out.any()
    assert not any(grad.any() for grad in torch.autograd.grad(out.square().sum() + out.sum(), leaves))
    assert_same_bits(alpha, gat_attention(**arguments, return_alpha=True)[1])  # alpha is that before dropout


def test_expectation_is_the_result_without_dropout() -> None:
    arguments = inputs("bipartite")
    plain = gat_attention(**arguments)
    samples = torch.stack([gat_attention(**arguments, dropout=0.5, seed=seed) for seed in range(400)])
    error = (samples.mean(0) - plain).abs() / (samples.std(0) / math.sqrt(400)).clamp(min=1e-6)
    assert (error < 6).all()


def test_compiled_code_draws_a_new_mask_every_time() -> None:
    torch._dynamo.reset()
    arguments = inputs()
    compiled = torch.compile(lambda **a: gat_attention(**a, dropout=0.5), fullgraph=True, backend="aot_eager")
    torch.manual_seed(0)
    first, second = compiled(**arguments), compiled(**arguments)
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    assert torch.equal(compiled(**arguments), first)


def test_mask_refuses_what_does_not_fit() -> None:
    for arguments in (
        (seed_of(0).float(), 3, 2, 0.5),
        (torch.zeros(2, dtype=torch.int64, device=DEVICE), 3, 2, 0.5),
        (seed_of(0), -1, 2, 0.5),
        (seed_of(0), 3, 2, 1.5),
    ):
        with pytest.raises(RuntimeError):
            dropout_mask(*arguments)
