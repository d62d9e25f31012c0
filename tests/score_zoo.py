"""What the tests of gatv2_attention and dot_attention share: arguments, gradients, and how exact they must be."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from attention_zoo import ACCUMULATE_EPS, DEVICE, assert_within, exact_mask, magnitudes
from torch import Tensor
from zoo import STORE_EPS, accumulate, features

import gnnagg
from gnnagg import Graph, dot_attention, gatv2_attention, reference

Case = dict[str, Any]
EDGE_DIMS = [None, 1, 5, 17]

# By op: its reference, and the arguments that get gradients.
OPS: dict[Callable[..., Any], tuple[Callable[..., Any], list[str]]] = {
    gatv2_attention: (reference.gatv2_attention, ["l", "r", "att", "edge_attr", "edge_weight_matrix"]),
    dot_attention: (reference.dot_attention, ["q", "k", "v", "edge_attr", "edge_weight_matrix"]),
}


def set_level(level: int) -> int:
    """Forces the instruction set of the CPU kernels; returns the one in use. Negative: the machine's best."""
    return int(ctypes.CDLL(str(Path(gnnagg.__file__).parent / "_C_cpu.so")).gnnagg_cpu_level(level))


def case(
    op: Callable[..., Any],
    graph: Graph,
    shape: tuple[int, int] = (8, 8),
    dtype: torch.dtype = torch.float32,
    *,
    edge_dim: int | None = None,
    **options: Any,
) -> Case:
    """Random arguments, parameters in the accumulate dtype and of a size that keeps scores about 1."""
    heads, channels = shape
    wide = accumulate(dtype)

    def rows(count: int, seed: int) -> Tensor:
        return features(count, heads, channels, dtype=dtype, seed=seed, device=DEVICE)

    if op is gatv2_attention:
        att = features(heads, channels, dtype=wide, seed=3, device=DEVICE) / channels**0.5
        arguments = {"l": rows(graph.num_src, 0), "r": rows(graph.num_dst, 1), "att": att}
    else:
        arguments = {"q": rows(graph.num_dst, 0), "k": rows(graph.num_src, 1), "v": rows(graph.num_src, 2)}
    if edge_dim is not None:
        matrix = features(heads * channels, edge_dim, dtype=wide, seed=5, device=DEVICE) / edge_dim**0.5
        attr = features(graph.num_edges, edge_dim, dtype=dtype, seed=4, device=DEVICE)
        arguments |= {"edge_attr": attr, "edge_weight_matrix": matrix}
    return {**arguments, "graph": graph, **options}


def gradients(
    op: Callable[..., Any], arguments: Case, grad: Tensor, names: list[str] | None = None
) -> dict[str, Tensor]:
    """The result, and the gradient of every tensor that is given."""
    names = names or [name for name in OPS[op][1] if arguments.get(name) is not None]
    leaves = {name: arguments[name].detach().clone().requires_grad_() for name in names}
    out = op(**{**arguments, **leaves})
    found = torch.autograd.grad(out, list(leaves.values()), grad.to(out.dtype), materialize_grads=True)
    return {"out": out.detach(), **dict(zip(names, found, strict=True))}


def incoming(arguments: Case) -> Tensor:
    """An incoming gradient in the dtype of the features."""
    rows = arguments["l" if "l" in arguments else "q"]
    return features(arguments["graph"].num_dst, *rows.shape[1:], dtype=rows.dtype, seed=99, device=DEVICE)


def expect(op: Callable[..., Any], arguments: Case, grad: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Result and gradients by the reference in float64, each with the error that rounding explains."""
    wide = {name: t.double() if isinstance(t, Tensor) else t for name, t in arguments.items()}
    dropout, seed = wide.pop("dropout", 0.0), wide.pop("seed", 0)
    heads = grad.size(1)
    mask = exact_mask(seed, arguments["graph"].num_edges, heads, dropout)
    names = [name for name in OPS[op][1] if arguments.get(name) is not None]
    want = gradients(lambda **a: OPS[op][0](**a, mask=mask), wide, grad.double(), names)
    alpha = OPS[op][0](**wide, return_alpha=True)[1]
    bound = (_gatv2_bounds if op is gatv2_attention else _dot_bounds)(wide, grad, alpha, mask, want)
    tiny = torch.finfo(grad.dtype).tiny
    return {name: (result, bound[name] + tiny) for name, result in want.items()}


def check(op: Callable[..., Any], arguments: Case) -> dict[str, Tensor]:
    grad = incoming(arguments)
    got, want = gradients(op, arguments, grad), expect(op, arguments, grad)
    assert got.keys() == want.keys()
    for name, value in got.items():
        assert value.dtype == (grad.dtype if name == "out" else arguments[name].dtype)
        assert_within(name, value, *want[name])
    return got


def _per_edge(wide: Case, shape: tuple[int, int], absolute: bool) -> Tensor | float:
    """``W e``, or the sum of the absolute values in it, ``[E, H, C]``."""
    if "edge_attr" not in wide:
        return 0.0
    attr, matrix = wide["edge_attr"], wide["edge_weight_matrix"]
    return ((attr.abs() @ matrix.abs().t()) if absolute else (attr @ matrix.t())).unflatten(1, shape)


def _rounding(terms: Tensor, dtype: torch.dtype) -> float:
    """Of weights whose scores are sums of ``terms [E, H, C]``: a weight is as exact as its score, to 10 beforehand."""
    return ACCUMULATE_EPS[dtype] * max(1.0, float(terms.abs().sum(2).max()) / 10 if terms.numel() else 0.0)


def _over(edge_values: Tensor, index: Tensor, rows: int) -> Tensor:
    return edge_values.new_zeros(rows, *edge_values.shape[1:]).index_add(0, index, edge_values)


def _edge_bounds(
    per_edge: Tensor, wide: Case, want: dict[str, Tensor], edge: Tensor, store: float
) -> dict[str, Tensor]:
    """Of the edge features and their matrix, where ``per_edge [live, H, C]`` is that of the gradient of ``W e``."""
    if "edge_attr" not in wide:
        return {}
    flat, attr = per_edge.flatten(1), wide["edge_attr"].abs()
    rows = torch.zeros_like(attr).index_copy(0, edge, flat @ wide["edge_weight_matrix"].abs())
    return {
        "edge_attr": rows + store * want["edge_attr"].abs(),
        "edge_weight_matrix": flat.t() @ attr[edge],
    }


def _gatv2_bounds(
    wide: Case, grad: Tensor, alpha: Tensor, mask: Tensor | None, want: dict[str, Tensor]
) -> dict[str, Tensor]:
    graph, dtype, shape = wide["graph"], grad.dtype, grad.shape[1:]
    source, target, edge = reference.edges(graph)
    left, right, att, slope = wide["l"], wide["r"], wide["att"], wide.get("negative_slope", 0.2)
    term, size_of_term = (_per_edge(wide, shape, absolute) for absolute in (False, True))
    if isinstance(term, Tensor):
        term, size_of_term = term[edge], size_of_term[edge]
    u = left[source] + right[target] + term
    active = torch.nn.functional.leaky_relu(u, slope)
    rounding, store = _rounding(active * att, dtype), STORE_EPS[dtype]
    size = magnitudes(alpha, mask, left, grad.double(), graph)
    ds = (rounding * size.ds + 2 * store * size.row_dot)[edge].unsqueeze(2)
    # At u = 0 the derivative jumps: where rounding may decide its side, all of the term may be off.
    near = u.abs() <= ACCUMULATE_EPS[dtype] * (left[source].abs() + right[target].abs() + size_of_term)
    per_edge = (ds + near * size.ds[edge].unsqueeze(2)) * att.abs() * max(1.0, abs(slope))
    return {
        "out": rounding * size.out + store * want["out"].abs(),
        "l": rounding * size.dvalue + _over(per_edge, source, graph.num_src) + store * want["l"].abs(),
        "r": _over(per_edge, target, graph.num_dst) + store * want["r"].abs(),
        "att": (ds * active.abs()).sum(0),
        **_edge_bounds(per_edge, wide, want, edge, store),
    }


def _dot_bounds(
    wide: Case, grad: Tensor, alpha: Tensor, mask: Tensor | None, want: dict[str, Tensor]
) -> dict[str, Tensor]:
    graph, dtype, shape = wide["graph"], grad.dtype, grad.shape[1:]
    source, target, edge = reference.edges(graph)
    query, key, value = wide["q"].abs(), wide["k"].abs()[source], wide["v"].abs()
    scale = abs(wide["scale"]) if wide.get("scale") is not None else shape[1] ** -0.5
    term = _per_edge(wide, shape, True)
    twice = 1 if isinstance(term, float) else 2  # kernels and projections round to the dtype of the features each
    if isinstance(term, Tensor):
        key = key + term[edge]
        # Every value together with the largest projected features.
        value = value + (term.amax(0) if term.numel() else 0.0)
    rounding, store = _rounding(query[target] * key * scale, dtype), STORE_EPS[dtype]
    size = magnitudes(alpha, mask, value, grad.double(), graph)
    ds = scale * (rounding * size.ds + 2 * twice * store * size.row_dot)[edge].unsqueeze(2)
    weight = (alpha if mask is None else alpha * mask)[edge].unsqueeze(2)
    per_edge = ds * query[target] + rounding * weight * grad.double().abs()[target]
    parts = _over(scale * size.ds[edge].unsqueeze(2) * key, target, graph.num_dst)  # of which dq is the sum
    return {
        "out": rounding * size.out + twice * store * (want["out"].abs() + (twice - 1) * size.out),
        "q": _over(ds * key, target, graph.num_dst) + store * (want["q"].abs() + (twice - 1) * 2 * parts),
        "k": _over(ds * query[target], source, graph.num_src) + store * want["k"].abs(),
        "v": rounding * size.dvalue + store * want["v"].abs(),
        **_edge_bounds(per_edge, wide, want, edge, store),
    }
