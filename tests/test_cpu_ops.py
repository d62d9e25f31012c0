"""The C++ CPU ops, called directly, against numpy in float64: dtypes, widths, index types, levels and thread counts."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import gnnagg
import gnnagg.extremum
import gnnagg.multi

LIBRARY = Path(gnnagg.__file__).parent / "_C_cpu.so"
pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="_C_cpu is not built")

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
WIDTHS = [1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 65, 100, 128, 257]
SPANS = [1, 2, 3, 17, 64, 1000]
# Rounding of the result; sums are bounded on top by float32 (float64) rounding of each addition.
STORE_EPS = {torch.float32: 2.0**-24, torch.float64: 2.0**-53, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
NO_FAULT = 2**63 - 1
NO_TRANSPOSE = (None,) * 5
ops = torch.ops.gnnagg


def set_level(level: int) -> int:
    """Forces the instruction set of the kernels; returns the one in use. Negative: the machine's best."""
    return int(ctypes.CDLL(str(LIBRARY)).gnnagg_cpu_level(level))


LEVELS = list(range(set_level(-1) + 1)) if LIBRARY.exists() else []


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[int]:
    yield set_level(request.param)
    set_level(-1)


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


# --- graphs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Edges:
    """Targets (rows) and sources (columns) of an edge list, ids below num_rows and num_cols."""

    row: np.ndarray
    col: np.ndarray
    num_rows: int
    num_cols: int


def make_zoo() -> dict[str, Edges]:
    rng = np.random.default_rng(0)

    def edges(row: np.ndarray, col: np.ndarray, num_rows: int, num_cols: int | None = None) -> Edges:
        order = rng.permutation(len(row))
        return Edges(row[order], col[order], num_rows, num_rows if num_cols is None else num_cols)

    def power_law(n: int, e: int) -> Edges:
        p = (np.arange(n) + 1.0) ** -1.2
        return edges(*(rng.choice(n, e, p=p / p.sum()) for _ in "ij"), n)

    hub = np.concatenate([np.full(700, 3), np.arange(90)])
    return {
        "power_law": power_law(110, 1300),
        "hub": edges(hub, rng.integers(0, 90, hub.size), 90),
        "one_row": edges(np.zeros(800, int), rng.integers(0, 40, 800), 1, 40),
        "chain": edges(np.arange(1, 70), np.arange(69), 70),
        "gaps": edges(rng.choice([5, 40, 41, 99], 60), rng.integers(0, 100, 60), 100),
        "bipartite": edges(rng.integers(0, 30, 400), rng.integers(0, 77, 400), 30, 77),
        "duplicates": edges(np.repeat(np.arange(6), 50), np.repeat(np.arange(6)[::-1], 50), 6),
        "loops": edges(np.repeat(np.arange(20), 4), np.repeat(np.arange(20), 4) // 3 * 3, 20),
        "single": edges(np.array([0]), np.array([0]), 1),
        "no_edges": edges(np.zeros(0, int), np.zeros(0, int), 12),
        "no_rows": edges(np.zeros(0, int), np.zeros(0, int), 0, 5),
        "nothing": edges(np.zeros(0, int), np.zeros(0, int), 0),
    }


ZOO = make_zoo()


@dataclass(frozen=True)
class Plan:
    """One CSR with its schedule, and the same as numpy int64 for the reference."""

    rowptr: Tensor
    col: Tensor
    perm: Tensor
    spans: Tensor
    splits: Tensor
    num_cols: int

    @staticmethod
    def of(edges: Edges, spans: int = 3, *, wide: bool = False, loops: int = 0) -> Plan:
        row, col = torch.from_numpy(edges.row.astype(np.int64)), torch.from_numpy(edges.col.astype(np.int64))
        rowptr, col, perm, fault = ops.csr_from_coo(row, col, edges.num_rows, edges.num_cols, loops, wide)
        assert fault[0] == NO_FAULT
        return Plan(rowptr, col, perm, *ops.build_spans(rowptr, col.numel(), spans), edges.num_cols)

    @property
    def num_rows(self) -> int:
        return self.rowptr.numel() - 1

    @property
    def csr(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.rowptr, self.col, self.spans, self.splits

    def rows(self) -> Iterator[tuple[int, np.ndarray]]:
        """(row, its slots) for every row."""
        pointers = self.rowptr.long().tolist()
        for row in range(self.num_rows):
            yield row, np.arange(pointers[row], pointers[row + 1])


def features(rows: int, width: int, dtype: torch.dtype, seed: int = 0, batch: int | None = None) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (rows, width) if batch is None else (batch, rows, width)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def numpy64(tensor: Tensor) -> np.ndarray:
    return tensor.double().numpy()


def bits(tensor: Tensor) -> Tensor:
    size = tensor.element_size()
    return tensor.contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[size])


def assert_same_bits(left: Tensor, right: Tensor, what: object = "") -> None:
    assert left.dtype == right.dtype and left.shape == right.shape
    assert torch.equal(bits(left), bits(right)), what


def assert_rounded(
    got: Tensor, expected: np.ndarray, magnitude: np.ndarray, terms: np.ndarray | int, what: object
) -> None:
    """|got - expected| is within the rounding of a sum of `terms` terms of total size `magnitude`, and of the store."""
    acc = 2.0**-53 if got.dtype == torch.float64 else 2.0**-24
    bound = (
        acc * (terms + 4) * magnitude + STORE_EPS[got.dtype] * np.abs(expected) + 1e-7 * (got.dtype == torch.float16)
    )
    error = np.abs(numpy64(got) - expected)
    assert (error <= bound).all(), (what, float((error - bound).max()))


# --- planning --------------------------------------------------------------------------------------------------------


def reference_csr(edges: Edges, loops: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """rowptr, and (col, perm) of the live slots."""
    row, col = edges.row, edges.col
    ids = np.arange(len(row))
    alive = (row != col) if loops >= 2 else np.ones(len(row), bool)
    row, col, ids = row[alive], col[alive], ids[alive]
    if loops in (1, 2):
        own = np.arange(min(edges.num_rows, edges.num_cols))
        row, col = np.concatenate([row, own]), np.concatenate([col, own])
        ids = np.concatenate([ids, len(edges.row) + own])
    order = np.argsort(row, kind="stable")
    rowptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=edges.num_rows))])
    return rowptr, col[order], ids[order]


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("loops", range(4))
def test_csr_from_coo(name: str, loops: int) -> None:
    edges = ZOO[name]
    rowptr, col, perm = reference_csr(edges, loops)
    for dtype, as_wide in itertools.product((torch.int32, torch.int64), (False, True)):
        row = torch.from_numpy(edges.row.astype(np.int64)).to(dtype)
        out = ops.csr_from_coo(
            row, torch.from_numpy(edges.col.astype(np.int64)).to(dtype), edges.num_rows, edges.num_cols, loops, as_wide
        )
        assert [t.dtype for t in out[:3]] == [torch.int64 if as_wide else torch.int32] * 3
        live = int(rowptr[-1])
        assert out[0].tolist() == rowptr.tolist()
        assert out[1][:live].tolist() == col.tolist()
        assert out[2][:live].tolist() == perm.tolist()
        assert sorted(out[2].tolist()) == list(range(out[2].numel())), "perm must name every edge once"
        assert out[2][live:].tolist() == sorted(out[2][live:].tolist()), "dead slots keep edge order"
        assert out[3].tolist() == [NO_FAULT, 0, 0]


def test_csr_from_coo_large_is_stable_for_any_thread_count() -> None:
    rng = np.random.default_rng(1)
    n, e = 50_000, 400_000  # several buckets and parts
    edges = Edges(np.minimum(rng.zipf(1.3, e) - 1, n - 1), rng.integers(0, n, e), n, n)
    rowptr, col, perm = reference_csr(edges, 2)
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        plan = Plan.of(edges, loops=2)
        live = int(rowptr[-1])
        assert np.array_equal(plan.rowptr.numpy(), rowptr)
        assert np.array_equal(plan.col[:live].numpy(), col)
        assert np.array_equal(plan.perm[:live].numpy(), perm)


def test_csr_from_coo_with_many_more_rows_than_edges() -> None:
    n = 300_000
    edges = Edges(np.array([n - 1, 5, 150_000, 5]), np.array([2, 1, 0, 3]), n, 4)
    plan = Plan.of(edges)
    assert plan.rowptr[[5, 6, 150_000, 150_001, n - 1, n]].tolist() == [0, 2, 2, 3, 3, 4]
    assert plan.col.tolist() == [1, 3, 0, 2] and plan.perm.tolist() == [1, 3, 2, 0]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("bad_row,bad_col", [(7, 0), (-1, 0), (0, 5), (0, -3), (2**31 - 1, 2**31 - 1), (-(2**31), 1)])
def test_ids_out_of_range_are_reported_and_never_used(dtype: torch.dtype, bad_row: int, bad_col: int) -> None:
    row, col = (
        torch.tensor([0, 6, bad_row, 3, bad_row], dtype=dtype),
        torch.tensor([1, 4, bad_col, 2, bad_col], dtype=dtype),
    )
    rowptr, out_col, perm, fault = ops.csr_from_coo(row, col, 7, 5, 0, False)
    assert fault.tolist() == [2, bad_row, bad_col]
    assert rowptr.tolist() == [0, 1, 1, 1, 2, 2, 2, 3]
    assert out_col[:3].tolist() == [1, 2, 4]
    assert perm.tolist() == [0, 3, 1, 2, 4]


def test_wide_id_beyond_32_bits_is_reported() -> None:
    row = torch.tensor([0, 2**32 + 1], dtype=torch.int64)
    rowptr, _, _, fault = ops.csr_from_coo(row, torch.zeros(2, dtype=torch.int64), 3, 3, 0, False)
    assert fault.tolist() == [1, 2**32 + 1, 0] and rowptr.tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize("name", ZOO)
def test_csr_transpose(name: str) -> None:
    edges = ZOO[name]
    for loops, as_wide in ((0, False), (2, True), (3, False)):
        plan = Plan.of(edges, wide=as_wide, loops=loops)
        t_rowptr, t_col, t_slot = ops.csr_transpose(plan.rowptr, plan.col, edges.num_cols)
        live = int(plan.rowptr[-1])
        target = np.repeat(np.arange(edges.num_rows), np.diff(plan.rowptr.numpy()))
        source = plan.col[:live].numpy()
        order = np.argsort(source, kind="stable")
        counts = np.bincount(source, minlength=edges.num_cols)
        assert t_rowptr.tolist() == [0, *np.cumsum(counts).tolist()]
        assert t_slot[:live].tolist() == order.tolist()
        assert t_col[:live].tolist() == target[order].tolist()
        assert sorted(t_slot.tolist()) == list(range(plan.col.numel()))


# --- spans -----------------------------------------------------------------------------------------------------------

ROW_COST, MAX_FRAGMENT, FRAGMENT_SHARE, SHORT_ROW_PARTIALS = 2, 64, 8, 32  # csrc/common/schedule.h


@st.composite
def degree_sequences(draw: st.DrawFn) -> list[int]:
    kind = draw(st.sampled_from(["small", "gaps", "hub", "one_row", "uniform", "empty"]))
    if kind == "empty":
        return [0] * draw(st.integers(0, 5))
    if kind == "one_row":
        return [0] * draw(st.integers(0, 3)) + [draw(st.integers(0, 5000))] + [0] * draw(st.integers(0, 3))
    if kind == "uniform":
        return [draw(st.integers(1, 300))] * draw(st.integers(1, 40))
    degrees = draw(st.lists(st.integers(0, 3 if kind == "gaps" else 60), max_size=60))
    if kind == "hub":
        degrees.insert(draw(st.integers(0, len(degrees))), draw(st.integers(500, 9000)))
    return degrees


@settings(max_examples=250, deadline=None)
@given(degree_sequences(), st.integers(1, 90) | st.sampled_from([128, 1000]), st.booleans())
def test_build_spans(degrees: list[int], num_spans: int, as_wide: bool) -> None:
    rowptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64 if as_wide else np.int32)
    spans, splits = (t.tolist() for t in ops.build_spans(torch.from_numpy(rowptr), int(rowptr[-1]), num_spans))
    num_rows, num_edges = len(degrees), int(rowptr[-1])
    assert spans[0] == [0, 0] and spans[-1] == [num_rows, num_edges]

    # Every edge in one span, every row finished once: boundaries ascend and lie in the row that they name.
    inside = [False] * (num_spans + 1)
    for k, (row, edge) in enumerate(spans):
        if row < num_rows:
            assert rowptr[row] <= edge < max(rowptr[row + 1], rowptr[row] + 1)
            inside[k] = edge > rowptr[row]
        else:
            assert edge == num_edges
        assert k == 0 or spans[k - 1] <= spans[k]

    # Balance: a span costs its share plus one row's cost and what two folded fragments can add.
    total = num_edges + ROW_COST * num_rows
    share = -(-total // num_spans)
    fragment = min(max(total // num_spans // FRAGMENT_SHARE, 1), MAX_FRAGMENT)
    for (row, edge), (next_row, next_edge) in itertools.pairwise(spans):
        cost = next_edge - edge + ROW_COST * (next_row - row)
        assert cost <= share + 2 * fragment + 2 * ROW_COST

    # Splits: exactly the rows with a boundary strictly inside, in order, short ones in front and long ones at the back.
    boundaries: dict[int, list[int]] = {}
    for k in range(1, num_spans):
        if inside[k]:
            boundaries.setdefault(spans[k][0], []).append(k)
    found = [[b[0], b[-1]] for b in boundaries.values()]
    assert all(b == list(range(b[0], b[-1] + 1)) for b in boundaries.values())
    short = [s for s in found if s[1] - s[0] + 2 <= SHORT_ROW_PARTIALS]
    long = [s for s in found if s[1] - s[0] + 2 > SHORT_ROW_PARTIALS]
    assert splits[0] == [len(short), len(long)]
    assert splits[1 : 1 + len(short)] == short
    assert splits[num_spans : num_spans - len(long) : -1] == long if long else True
    assert all(s == [0, 0] for s in splits[1 + len(short) : num_spans + 1 - len(long)])


# --- sum and mean ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SumCase:
    x: Tensor
    plan: Plan
    weight: Tensor | None
    src_scale: Tensor | None
    dst_scale: Tensor | None
    mean: bool
    acc_out: bool

    def run(self) -> Tensor:
        perm = None if self.weight is None else self.plan.perm
        return ops.aggregate_sum(
            self.x, *self.plan.csr, perm, self.weight, self.src_scale, self.dst_scale, self.mean, self.acc_out,
            *NO_TRANSPOSE,
        )  # fmt: skip

    def check(self, out: Tensor, what: object) -> None:
        x, plan = numpy64(self.x), self.plan
        col, perm = plan.col.long().numpy(), plan.perm.long().numpy()
        width = x.shape[-1]
        for row, slots in plan.rows():
            terms = x[..., col[slots], :]
            if self.src_scale is not None:
                terms = terms * numpy64(self.src_scale)[col[slots], None]
            if self.weight is not None:
                weight = numpy64(self.weight if self.weight.dim() == 2 else self.weight[:, None])
                terms = terms * np.repeat(weight[perm[slots]], width // weight.shape[1], axis=1)
            factor = (1.0 / max(len(slots), 1) if self.mean else 1.0) * (
                float(self.dst_scale[row]) if self.dst_scale is not None else 1.0
            )
            assert_rounded(
                out[..., row, :], terms.sum(-2) * factor, np.abs(terms).sum(-2) * abs(factor), len(slots), (what, row)
            )


def sum_cases(dtype: torch.dtype, widths: list[int]) -> Iterator[tuple[object, SumCase]]:
    """Every graph with every width; spans, index type, weights, scales, mean, batch and result type vary on the way."""
    choice = itertools.cycle(
        itertools.product(
            (None, "edge", "heads"), (False, True), (False, True), (False, True), (None, 3), (False, True)
        )
    )
    spans = itertools.cycle(SPANS)
    acc = wide(dtype)
    for (name, edges), width in itertools.product(ZOO.items(), widths):
        for _ in range(7):  # coprime with the number of combinations
            weighted, scaled, mean, acc_out, batch, as_wide = next(choice)
        loops = 2 if name == "loops" else 0
        plan = Plan.of(edges, next(spans), wide=as_wide, loops=loops)
        num_edges = plan.col.numel()
        heads = next(h for h in (8, 4, 5, 3, 2, 1) if width % h == 0) if weighted == "heads" else 1
        shape = (num_edges, heads) if weighted == "heads" else (num_edges,)
        generator = torch.Generator().manual_seed(width)
        yield (
            (name, width, weighted, scaled, mean, acc_out, batch, as_wide, plan.spans.size(0) - 1),
            SumCase(
                features(edges.num_cols, width, dtype, width, batch),
                plan,
                torch.randn(shape, generator=generator, dtype=acc) if weighted else None,
                torch.rand(edges.num_cols, generator=generator, dtype=acc) if scaled else None,
                torch.rand(edges.num_rows, generator=generator, dtype=acc) if scaled else None,
                mean,
                acc_out,
            ),
        )


@pytest.mark.parametrize("dtype", DTYPES)
def test_sum_and_mean(dtype: torch.dtype) -> None:
    for what, case in sum_cases(dtype, WIDTHS):
        out = case.run()
        assert out.dtype == (wide(dtype) if case.acc_out else dtype)
        assert out.shape == (*case.x.shape[:-2], case.plan.num_rows, case.x.size(-1))
        case.check(out, what)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sum_has_the_same_bits_at_every_level_and_thread_count(dtype: torch.dtype) -> None:
    for what, case in sum_cases(dtype, [1, 3, 8, 17, 31, 64, 100, 257]):
        expected = case.run()
        for each, count in [(each, 2) for each in LEVELS] + [(LEVELS[-1], 1), (LEVELS[-1], 3)]:
            set_level(each)
            torch.set_num_threads(count)
            assert_same_bits(case.run(), expected, (what, each, count))
    set_level(-1)


def test_threads_give_the_same_bits_on_a_graph_large_enough_to_use_them() -> None:
    rng = np.random.default_rng(3)
    n, e = 2000, 60_000
    edges = Edges(np.minimum(rng.zipf(1.4, e) - 1, n - 1), rng.integers(0, n, e), n, n)
    plan = Plan.of(edges, 40)
    t = (*ops.csr_transpose(plan.rowptr, plan.col, n),)
    t_spans = ops.build_spans(t[0], e, 40)
    x = features(n, 40, torch.float32).round(decimals=1)  # ties
    grad = features(n, 40, torch.float32, 9)

    def everything() -> list[Tensor]:
        out, arg = ops.aggregate_extremum(x, *plan.csr, False, True, *NO_TRANSPOSE)
        return [
            ops.aggregate_sum(x, *plan.csr, None, None, None, None, True, False, *NO_TRANSPOSE),
            out,
            arg,
            ops.extremum_backward(grad, arg, x, out, *plan.csr, *t, *t_spans),
            *ops.aggregate_multi(x, *plan.csr, 31, True, *NO_TRANSPOSE),
            ops.edge_dot(grad, x, plan.rowptr, plan.col, plan.spans, plan.perm, 4),
        ]

    torch.set_num_threads(1)
    expected = everything()
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        for got, want in zip(everything(), expected, strict=True):
            assert_same_bits(got, want, count)


def test_empty_rows_give_zero_whatever_the_scale(level: int) -> None:
    plan = Plan.of(ZOO["gaps"], 3)
    scale = torch.full((plan.num_rows,), float("inf"))
    out = ops.aggregate_sum(
        features(100, 9, torch.float32), *plan.csr, None, None, None, scale, True, False, *NO_TRANSPOSE
    )
    empty = plan.rowptr.diff() == 0
    assert empty.any() and (out[empty] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_formats_widen_and_round_as_torch_does(dtype: torch.dtype, level: int) -> None:
    every = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype)
    widths = (32, 17)  # whole vectors, and tails
    for width in widths:
        x = every[: 2**16 // width * width].view(-1, width)
        n = x.size(0)
        one = Plan.of(Edges(np.arange(n), np.arange(n), n, n), 5)
        out = ops.aggregate_sum(x, *one.csr, None, None, None, None, False, True, *NO_TRANSPOSE)
        assert torch.equal(out.isnan(), x.isnan())
        assert_same_bits(out.nan_to_num(7.0), (x.float() + 0.0).nan_to_num(7.0))
        back = ops.aggregate_sum(x, *one.csr, None, None, None, None, False, False, *NO_TRANSPOSE)
        assert torch.equal(back.isnan(), x.isnan())
        assert_same_bits(back.nan_to_num(7.0), (x + 0.0).nan_to_num(7.0))
        # Scaled sums fall between representable values, subnormals and overflow included.
        order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
        two = Plan.of(
            Edges(np.repeat(np.arange(n), 2), torch.stack([torch.arange(n), order], 1).flatten().numpy(), n, n), 5
        )
        for factor in (0.37, 2.0**-9):
            scale = torch.full((n,), factor)
            got = ops.aggregate_sum(x, *two.csr, None, None, None, scale, False, False, *NO_TRANSPOSE)
            want = ((x.float() + x[order].float()) * factor).to(dtype)
            assert torch.equal(got.isnan(), want.isnan())
            assert_same_bits(got.nan_to_num(7.0), want.nan_to_num(7.0))


def test_a_thousand_ones_in_bfloat16_sum_to_a_thousand() -> None:
    plan = Plan.of(Edges(np.zeros(1000, int), np.zeros(1000, int), 1, 1), 7)
    x = torch.ones(1, 5, dtype=torch.bfloat16)
    out = ops.aggregate_sum(x, *plan.csr, None, None, None, None, False, False, *NO_TRANSPOSE)
    assert out.tolist() == [[1000.0] * 5]


# --- max and min -----------------------------------------------------------------------------------------------------


def extremum_reference(x: np.ndarray, plan: Plan, minimum: bool) -> tuple[np.ndarray, np.ndarray]:
    """(values, winners) of [N, F] features, by the rules of csrc/common/reduce.h."""
    col = plan.col.long().numpy()
    out = np.zeros((plan.num_rows, x.shape[1]))
    arg = np.full((plan.num_rows, x.shape[1]), -1, np.int64)
    for row, slots in plan.rows():
        if len(slots) == 0:
            continue
        values = x[col[slots]]
        out[row] = (np.minimum if minimum else np.maximum).reduce(values, axis=0)
        wins = (values == out[row]) | (np.isnan(values) & np.isnan(out[row]))
        count = wins.sum(0)
        arg[row] = np.where(count == 1, slots[wins.argmax(0)], -count)
    return out, arg


def awkward_features(rows: int, width: int, dtype: torch.dtype, kind: str, batch: int | None = None) -> Tensor:
    x = features(rows, width, dtype, width, batch)
    if kind == "relu":
        return x.relu()
    if kind == "coarse":
        return (x * 2).round() * 0.5 * torch.where(x == x.abs(), 1.0, -1.0).to(dtype)
    if kind == "special":
        generator = torch.Generator().manual_seed(width)
        pick = torch.randint(0, 12, x.shape, generator=generator)
        for value, each in zip((float("nan"), float("inf"), -float("inf"), -0.0, 0.0), range(5), strict=True):
            x = torch.where(pick == each, torch.tensor(value, dtype=dtype), x)
    return x


def extremum_cases(dtype: torch.dtype, widths: list[int]) -> Iterator[tuple[object, Tensor, Plan, bool]]:
    kinds, spans = itertools.cycle(("plain", "relu", "coarse", "special")), itertools.cycle(SPANS)
    choice = itertools.cycle(itertools.product((False, True), (False, True), (None, 2)))
    for (name, edges), width in itertools.product(ZOO.items(), widths):
        for _ in range(3):
            minimum, as_wide, batch = next(choice)
            kind, num_spans = next(kinds), next(spans)
        plan = Plan.of(edges, num_spans, wide=as_wide, loops=3 if name == "loops" else 0)
        x = awkward_features(edges.num_cols, width, dtype, kind, batch)
        yield (name, width, minimum, as_wide, batch, kind, num_spans), x, plan, minimum


@pytest.mark.parametrize("dtype", DTYPES)
def test_max_and_min(dtype: torch.dtype) -> None:
    for what, x, plan, minimum in extremum_cases(dtype, WIDTHS):
        out, arg = ops.aggregate_extremum(x, *plan.csr, minimum, True, *NO_TRANSPOSE)
        assert out.dtype == dtype and arg.dtype == plan.rowptr.dtype and arg.shape == out.shape
        each = x if x.dim() == 3 else x[None]
        expected = [extremum_reference(numpy64(one), plan, minimum) for one in each]
        values, winners = np.stack([e[0] for e in expected]), np.stack([e[1] for e in expected])
        assert np.array_equal(numpy64(out).reshape(values.shape), values, equal_nan=True), what
        assert np.array_equal(arg.numpy().reshape(winners.shape), winners), what
        without, none = ops.aggregate_extremum(x, *plan.csr, minimum, False, *NO_TRANSPOSE)
        assert none.shape == (0,) and torch.equal(without.isnan(), out.isnan())
        assert torch.equal(without.nan_to_num(7.0), out.nan_to_num(7.0)), what


@pytest.mark.parametrize("dtype", DTYPES)
def test_max_and_min_agree_at_every_level(dtype: torch.dtype) -> None:
    for what, x, plan, minimum in extremum_cases(dtype, [1, 3, 16, 31, 64, 100, 257]):
        for with_arg in (False, True):
            out, arg = ops.aggregate_extremum(x, *plan.csr, minimum, with_arg, *NO_TRANSPOSE)
            for each in LEVELS[:-1]:
                set_level(each)
                other, other_arg = ops.aggregate_extremum(x, *plan.csr, minimum, with_arg, *NO_TRANSPOSE)
                assert torch.equal(other.isnan(), out.isnan()) and torch.equal(other_arg, arg), (what, each)
                assert_same_bits(other.nan_to_num(7.0), out.nan_to_num(7.0), (what, each))
            set_level(-1)


def test_only_infinite_values_are_no_empty_row(level: int) -> None:
    plan = Plan.of(Edges(np.array([0, 0, 1]), np.array([0, 1, 0]), 3, 2), 2)
    for minimum, value in ((False, -float("inf")), (True, float("inf"))):
        out, arg = ops.aggregate_extremum(torch.full((2, 3), value), *plan.csr, minimum, True, *NO_TRANSPOSE)
        assert out.tolist() == [[value] * 3] * 2 + [[0.0] * 3]
        assert arg.tolist() == [[-2] * 3, [2] * 3, [-1] * 3]


@pytest.mark.parametrize("dtype", DTYPES)
def test_extremum_backward(dtype: torch.dtype, level: int) -> None:
    for what, x, plan, minimum in extremum_cases(dtype, [1, 3, 16, 17, 64, 100]):
        out, arg = ops.aggregate_extremum(x, *plan.csr, minimum, True, *NO_TRANSPOSE)
        grad = features(plan.num_rows, x.size(-1), dtype, 5, x.size(0) if x.dim() == 3 else None)
        t = ops.csr_transpose(plan.rowptr, plan.col, plan.num_cols)
        t_schedule = ops.build_spans(t[0], plan.col.numel(), 3)
        dx = ops.extremum_backward(grad, arg, x, out, *plan.csr, *t, *t_schedule)
        assert dx.dtype == dtype and dx.shape == x.shape
        col = plan.col.long().numpy()
        batched = [tensor if x.dim() == 3 else tensor[None] for tensor in (x, grad, dx)]
        for one_x, one_grad, one_dx in zip(*batched, strict=True):
            values, upstream = numpy64(one_x), numpy64(one_grad)
            expected, magnitude = np.zeros_like(values), np.zeros_like(values)
            best, _ = extremum_reference(values, plan, minimum)
            for row, slots in plan.rows():
                rows = values[col[slots]]
                wins = (rows == best[row]) | (np.isnan(rows) & np.isnan(best[row]))
                share = wins * upstream[row] / np.maximum(wins.sum(0), 1)
                np.add.at(expected, col[slots], share)
                np.add.at(magnitude, col[slots], np.abs(share))
            assert_rounded(one_dx, expected, magnitude, plan.col.numel(), what)


# --- several at once -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_multi(dtype: torch.dtype, level: int) -> None:
    which_of = itertools.cycle([31, 4, 24, 3, 12, 8, 16, 7, 29, 1, 2, 20])
    for what, x, plan, _ in extremum_cases(dtype, [1, 7, 16, 31, 33, 64, 100]):
        which, with_arg = next(which_of), bool(plan.num_rows % 4)
        results = ops.aggregate_multi(x, *plan.csr, which, with_arg, *NO_TRANSPOSE)
        wanted = [bool(which & bit) for bit in (1, 2, 4, 8, 16)] + [bool(which & bit and with_arg) for bit in (8, 16)]
        assert [r.shape != (0,) for r in results] == wanted or plan.num_rows == 0, (what, which)
        total, mean, var, greatest, least, arg_max, arg_min = results
        for got, use_mean in ((total, False), (mean, True)):
            if got.shape != (0,):
                alone = ops.aggregate_sum(x, *plan.csr, None, None, None, None, use_mean, False, *NO_TRANSPOSE)
                assert_same_bits(got.nan_to_num(7.0), alone.nan_to_num(7.0), what)
        for got, arg, minimum in ((greatest, arg_max, False), (least, arg_min, True)):
            if got.shape != (0,):
                alone, alone_arg = ops.aggregate_extremum(x, *plan.csr, minimum, with_arg, *NO_TRANSPOSE)
                assert torch.equal(got.nan_to_num(7.0), alone.nan_to_num(7.0)), what
                assert torch.equal(arg, alone_arg), what
        if which & 4:
            each = zip(x if x.dim() == 3 else x[None], var if x.dim() == 3 else var[None], strict=True)
            for one_x, one_var in each:
                check_variance(numpy64(one_x), plan, one_var, what)


def check_variance(x: np.ndarray, plan: Plan, var: Tensor, what: object) -> None:
    col = plan.col.long().numpy()
    for row, slots in plan.rows():
        values = x[col[slots]]
        if len(slots) == 0:
            assert (var[row] == 0).all(), what
            continue
        finite = np.isfinite(values).all(0)
        assert not torch.isfinite(var[row][torch.from_numpy(~finite)]).any(), what
        expected = values[:, finite].var(0)
        spread = (values[:, finite] - values[0, finite]) ** 2
        got = var[row][torch.from_numpy(finite)]
        assert (got >= 0).all(), what
        inexact = 1e-14 * (values[:, finite] ** 2).mean(0)  # of the reference itself
        assert_rounded(got, expected, spread.mean(0) * 3 + expected + inexact, 2 * len(slots) + 8, (what, row))


def test_variance_far_from_zero_is_stable(level: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x = (1e4 + torch.rand(500, 20, generator=generator, dtype=torch.float64)).float()
    plan = Plan.of(Edges(np.zeros(500, int), np.arange(500), 1, 500), 6)
    var = ops.aggregate_multi(x, *plan.csr, 4, False, *NO_TRANSPOSE)[2]
    assert np.allclose(var.double(), x.double().var(0, correction=0), rtol=1e-3)


def test_multi_has_the_same_bits_at_every_level() -> None:
    for what, x, plan, _ in extremum_cases(torch.float32, [1, 17, 64, 100]):
        expected = ops.aggregate_multi(x, *plan.csr, 31, True, *NO_TRANSPOSE)
        for each in LEVELS[:-1]:
            set_level(each)
            for got, want in zip(ops.aggregate_multi(x, *plan.csr, 31, True, *NO_TRANSPOSE), expected, strict=True):
                if got.is_floating_point():
                    got, want = got.nan_to_num(7.0), want.nan_to_num(7.0)
                assert_same_bits(got, want, (what, each))
        set_level(-1)


# --- edge_dot --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_edge_dot(dtype: torch.dtype) -> None:
    choice = itertools.cycle(itertools.product((False, True), (None, 2), (True, False)))
    spans = itertools.cycle(SPANS)
    for (name, edges), width in itertools.product(ZOO.items(), WIDTHS):
        for _ in range(3):
            as_wide, batch, with_perm = next(choice)
        plan = Plan.of(edges, next(spans), wide=as_wide, loops=3 if name == "loops" else 0)
        heads = next(h for h in (8, 5, 4, 3, 2, 1) if width % h == 0) if batch else 1
        a = features(edges.num_rows, width, dtype, 1, batch)
        b = features(edges.num_cols, width, dtype, 2, batch)
        what = (name, width, heads, as_wide, batch, with_perm)
        perm = plan.perm if with_perm else None
        out = ops.edge_dot(a, b, plan.rowptr, plan.col, plan.spans, perm, heads)
        assert out.dtype == wide(dtype) and out.shape == (plan.col.numel(), heads)
        ids = plan.perm.long() if with_perm else torch.arange(plan.col.numel())
        live = int(plan.rowptr[-1])
        assert (out[ids[live:]] == 0).all(), what
        target = np.repeat(np.arange(edges.num_rows), np.diff(plan.rowptr.numpy()))
        terms = numpy64(a)[..., target, :] * numpy64(b)[..., plan.col[:live].long().numpy(), :]
        terms = terms.reshape(batch or 1, live, heads, width // heads)
        count = terms.shape[0] * terms.shape[3]
        assert_rounded(out[ids[:live]], terms.sum((0, 3)), np.abs(terms).sum((0, 3)), count, what)
        for each in LEVELS[:-1]:
            set_level(each)
            assert_same_bits(ops.edge_dot(a, b, plan.rowptr, plan.col, plan.spans, perm, heads), out, (what, each))
        set_level(-1)


# --- faults ----------------------------------------------------------------------------------------------------------


def test_operands_that_do_not_fit_are_refused() -> None:
    plan = Plan.of(ZOO["bipartite"], 3)
    x = features(77, 8, torch.float32)
    rowptr, col, spans, splits = plan.csr
    edges, rows = col.numel(), plan.num_rows

    def sums(**changed: object) -> None:
        arguments = {
            "x": x, "rowptr": rowptr, "col": col, "spans": spans, "splits": splits, "perm": plan.perm,
            "weight": torch.ones(edges), "src_scale": torch.ones(77), "dst_scale": torch.ones(rows), "mean": False,
            "acc_out": False,
        }  # fmt: skip
        ops.aggregate_sum(**{**arguments, **changed})

    sums()
    refused: list[dict[str, object]] = [
        {"x": x.long()},
        {"x": x[0]},
        {"x": x.t()},
        {"rowptr": rowptr.long()},
        {"rowptr": rowptr[:0]},
        {"rowptr": rowptr.float()},
        {"col": col.long()},
        {"col": col[None]},
        {"spans": spans.flatten()},
        {"spans": spans[:1]},
        {"splits": splits[:-1]},
        {"perm": plan.perm[:-1]},
        {"weight": torch.ones(edges - 1)},
        {"weight": torch.ones(edges, dtype=torch.float64)},
        {"weight": torch.ones(edges, 3)},
        {"weight": torch.ones(edges, 0)},
        {"weight": torch.ones(edges, 2)[:, :1]},
        {"src_scale": torch.ones(76)},
        {"dst_scale": torch.ones(rows + 1)},
    ]
    for changed in refused:
        with pytest.raises(RuntimeError, match="aggregate_sum"):
            sums(**changed)
    with pytest.raises(RuntimeError, match="heads"):
        ops.edge_dot(features(rows, 8, torch.float32), x, rowptr, col, spans, None, 3)
    with pytest.raises(RuntimeError, match="rows"):
        ops.edge_dot(features(rows - 1, 8, torch.float32), x, rowptr, col, spans, None, 1)
    with pytest.raises(RuntimeError, match="num_spans"):
        ops.build_spans(rowptr, edges, 0)
    with pytest.raises(RuntimeError, match="csr_from_coo"):
        ops.csr_from_coo(col, col[:-1], rows, 77, 0, False)
    with pytest.raises(RuntimeError, match="wide"):
        ops.csr_from_coo(col, col, 2**31, 77, 0, False)
