"""What the suites of bench_aggregate.py are to reach, read off their rows."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.harness import DTYPES
from benchmarks.results import Row, Target, geometric_mean

__all__ = ["MESSAGE_CELL", "targets_cpu", "targets_max", "targets_ratio", "targets_real", "targets_sum"]

# Measured noise between two runs of one kernel: a ratio of 1 counts as met down to this.
NOISE = 0.02
MESSAGE_CELL = ("arxiv", 64, "fp32")  # the graph, width and dtype on which gather-scatter opponents are timed


def _ratios(rows: Iterable[Row], **wanted: object) -> dict[tuple[str, int], float]:
    """Ratio by (graph, F) of the rows with these fields, the smallest where several opponents are asked for."""
    found: dict[tuple[str, int], float] = {}
    for row in rows:
        if row["ratio"] is None or not all(_matches(row[key], value) for key, value in wanted.items()):
            continue
        cell = (row["graph"], row["shape"][-1])
        found[cell] = min(row["ratio"], found.get(cell, float("inf")))
    return found


def _matches(value: object, wanted: object) -> bool:
    return value in wanted if isinstance(wanted, tuple) else value == wanted


def _geomean_targets(text: str, ratios: dict[tuple[str, int], float], geomean: float, every: float) -> list[Target]:
    """Targets for the geometric mean and for the worst cell."""
    worst = min(ratios, key=lambda cell: ratios[cell], default=None)
    detail = f"{worst[0]} F={worst[1]}, {len(ratios)} cells" if worst else ""
    lowest = ratios[worst] if worst else None
    targets = [Target.at_least(f"{text}, every cell", every, lowest, detail)]
    if geomean:
        targets.insert(0, Target.at_least(f"{text}, geomean", geomean, geometric_mean(ratios.values())))
    return targets


def targets_sum(rows: list[Row]) -> list[Target]:
    cached = ("cusparse alg2", "cusparse alg3")
    targets: list[Target] = []
    for dtype_name, vs_cached, vs_torch in (("fp32", 1.35, 2.5), ("bf16", 1.6, 3.5)):
        chosen: dict[str, object] = {"op": "sum", "dtype": dtype_name, "direction": "fwd"}
        text = f"sum {dtype_name} vs cached cuSPARSE"
        ratios = _ratios(rows, opponent=cached, opponent_verdict="ok", **chosen)
        targets += _geomean_targets(text, ratios, vs_cached, 1.0)
        table = _ratios(rows, opponent="cusparse (kernels table)", **chosen)
        targets += _geomean_targets(f"{text} (kernels table)", table, vs_cached, 1.0)
        ratios = _ratios(rows, opponent="torch.sparse csr", **chosen)
        text = f"sum {dtype_name} vs torch.sparse, geomean"
        targets.append(Target.at_least(text, vs_torch, geometric_mean(ratios.values()), f"{len(ratios)} cells"))
    rode = _ratios(rows, op="sum", opponent="rode (kernels table)")
    targets += _geomean_targets("sum fp32 vs RoDe (kernels table)", rode, 0.0, 1.0)
    targets.append(_scatter_target(rows, "sum", 15))
    targets.append(_right(rows))
    return targets


def targets_max(rows: list[Row]) -> list[Target]:
    targets: list[Target] = []
    for direction, goal in (("fwd", 1.3), ("fwd+bwd", 1.5)):
        ratios = _ratios(rows, op="max", direction=direction, opponent="turbo-gnn (kernels table)")
        targets += _geomean_targets(f"max {direction} vs turbo-gnn (kernels table)", ratios, goal, 1.0)
    targets.append(_scatter_target(rows, "max", 50))
    targets.append(_right(rows))
    return targets


def _scatter_target(rows: list[Row], op: str, goal: float) -> Target:
    graph, features, dtype_name = MESSAGE_CELL
    wanted = {"op": op, "direction": "fwd", "dtype": dtype_name, "graph": graph}
    by_name = {name: _ratios(rows, opponent=f"torch-scatter {name}", **wanted) for name in ("scatter", "segment_csr")}
    found = {name: ratios[graph, features] for name, ratios in by_name.items() if (graph, features) in ratios}
    detail = ", ".join(f"{name} {ratio:.3g}" for name, ratio in found.items())
    text = f"{op} vs torch-scatter scatter, {graph} F={features} {dtype_name}"
    return Target.at_least(text, goal, found.get("scatter"), detail)


def _right(rows: list[Row]) -> Target:
    """Every one of our results within tolerance of float64."""
    worst: dict[str, float] = {}
    for row in rows:
        if row["max_rel_error"] is not None:
            worst[row["dtype"]] = max(worst.get(row["dtype"], 0.0), row["max_rel_error"])
    failed = any(str(row["note"] or "").startswith("ours ") for row in rows)
    measured = ", ".join(f"{name} {error:.1e}" for name, error in worst.items())
    return Target(
        "largest scaled error of ours", "tolerance of the dtype", measured or "-", not failed if rows else None
    )


def targets_ratio(rows: list[Row]) -> list[Target]:
    shares = {}
    for row in rows:
        if row["ceiling_fraction"] is not None and row["dtype"] in ("fp32", "bf16"):
            row_bytes = row["shape"][-1] * DTYPES[row["dtype"]].itemsize
            if row_bytes >= 256:
                shares[f"F={row['shape'][-1]} {row['dtype']}"] = row["ceiling_fraction"]
    lowest = min(shares, key=lambda cell: shares[cell], default=None)
    share = shares[lowest] if lowest else None
    hubs = _ratios(rows, opponent="own time without hub")
    backward = _ratios(rows, opponent="own forward")
    cooperative = [row for row in rows if row["opponent"] == "own staged" and row["ratio"]]
    chosen = [row["ratio"] for row in rows if row["opponent"] == "own better mode" and row["ratio"]]
    slow = max((1 / ratio for ratio in chosen), default=None)
    slowest_backward = max(backward, key=lambda cell: 1 / backward[cell], default=None)
    plans = {row["graph"]: row["time_ms"] for row in rows if row["op"] == "plan"}
    wins = sum(row["ratio"] >= 1 for row in cooperative)
    return [
        Target.at_least("share of gather ceiling, rows >= 256 B", 0.9, share, lowest or ""),
        Target.at_least("hub gather rate / without hub", 0.9, min(hubs.values(), default=None)),
        Target.at_most(
            "sum backward / forward",
            1.15,
            1 / backward[slowest_backward] if slowest_backward else None,
            f"{slowest_backward[0]} F={slowest_backward[1]}" if slowest_backward else "",
        ),
        Target.at_most(
            f"auto / better launch mode, within {NOISE:.0%} noise",
            1 + NOISE,
            slow,
            f"cooperative wins {wins} of {len(cooperative)} cells",
        ),
        Target.at_most("planning products-like, both directions, ms", 40, plans.get("products")),
        Target.at_most("planning 200k edges, both directions, ms", 0.08, plans.get("small-200k")),
        _right(rows),
    ]


def targets_cpu(rows: list[Row]) -> list[Target]:
    def ratio(op: str, opponent: str, dtype_name: str = "fp32") -> float | None:
        found = _ratios(rows, op=op, opponent=opponent, dtype=dtype_name, direction="fwd")
        return min(found.values(), default=None)

    def own(dtype_name: str, op: str) -> float | None:
        wanted = {"op": op, "dtype": dtype_name, "direction": "fwd"}
        times = [row["time_ms"] for row in rows if all(row[key] == value for key, value in wanted.items())]
        return times[0] if times else None

    csr = ratio("sum", "torch.sparse csr")
    targets = [
        Target.at_most("cpu sum / torch.sparse csr", 0.95, 1 / csr if csr else None),
        Target.at_least("cpu max vs torch.sparse.mm reduce", 1.8, ratio("max", "torch.sparse.mm reduce")),
    ]
    for op in ("sum", "max"):
        half, single = own("bf16", op), own("fp32", op)
        share = half / single if half and single else None
        targets.append(Target.at_most(f"cpu {op} bf16 / fp32", 1.0, share))
    targets.append(Target.at_least("cpu sum vs PyG scatter", 35, ratio("sum", "pyg scatter")))
    targets.append(_right(rows))
    return targets


def targets_real(rows: list[Row]) -> list[Target]:
    cached = ("cusparse alg2", "cusparse alg3", "torch.sparse csr")
    ratios = _ratios(rows, op="sum", opponent=cached, opponent_verdict="ok")
    return [*_geomean_targets("real graphs: sum vs the fastest right product", ratios, 0.0, 1.0), _right(rows)]
