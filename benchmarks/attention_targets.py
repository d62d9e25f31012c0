"""What the suites of bench_attention.py are to reach, read off their rows."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.results import Row, Target, geometric_mean

__all__ = [
    "PYG_TABLE",
    "targets_cpu",
    "targets_layers",
    "targets_propagate",
    "targets_published",
    "targets_pyg",
    "targets_ratios",
]

PYG_TABLE = "PyG eager (kernels table)"
NOISE = 0.02  # measured, between two runs of one kernel


def _found(rows: Iterable[Row], **wanted: object) -> dict[str, float]:
    """The ratio of the rows with these fields, by "graph shape"; a callable stands for a condition on the field."""
    return {
        f"{row['graph']} {'x'.join(map(str, row['shape'][1:]))}": row["ratio"]
        for row in rows
        if row["ratio"] and all(want(row[key]) if callable(want) else row[key] == want for key, want in wanted.items())
    }


def _lowest(text: str, ratios: dict[str, float], goal: float) -> Target:
    cell = min(ratios, key=lambda key: ratios[key], default="")
    detail = f"{cell}, {len(ratios)} cells" if cell else ""
    return Target.at_least(f"{text}, every cell", goal, ratios.get(cell), detail)


def _mean(text: str, ratios: dict[str, float], goal: float) -> Target:
    return Target.at_least(f"{text}, geomean", goal, geometric_mean(ratios.values()))


def _slowest(text: str, ratios: dict[str, float], goal: float) -> Target:
    """Our time over the other one: the reverse of a ratio."""
    cell = min(ratios, key=lambda key: ratios[key], default="")
    return Target.at_most(text, goal, 1 / ratios[cell] if cell else None, cell)


def _right(rows: list[Row]) -> Target:
    worst: dict[str, float] = {}
    for row in rows:
        if row["max_rel_error"] is not None:
            worst[row["dtype"]] = max(worst.get(row["dtype"], 0.0), row["max_rel_error"])
    wrong = any(str(row["note"] or "").startswith("ours ") for row in rows)
    measured = ", ".join(f"{name} {error:.1e}" for name, error in worst.items())
    return Target(
        "largest scaled error of ours", "tolerance of the dtype", measured or "-", not wrong if rows else None
    )


def targets_published(rows: list[Row]) -> list[Target]:
    targets = []
    for op, rival in (("gat", "dgNN"), ("gatv2", "turbo-gnn"), ("dot", "turbo-gnn")):
        for direction in ("fwd", "fwd+bwd"):
            opponent = f"{rival} (kernels table)"
            ratios = _found(rows, op=op, direction=direction, dtype="fp32", opponent=opponent)
            text = f"{op} {direction} fp32 vs {opponent}"
            targets += [_mean(text, ratios, 1.0), _lowest(text, ratios, 1.0)]
    return [*targets, _right(rows)]


def targets_pyg(rows: list[Row]) -> list[Target]:
    targets = []
    for direction in ("fwd", "fwd+bwd"):
        opponents = ("PyG eager", PYG_TABLE)
        ratios = _found(rows, op="gat", direction=direction, opponent=opponents.__contains__)
        targets.append(_lowest(f"gat {direction} vs PyG eager", ratios, 1.0))
        ratios = _found(rows, op="edge_softmax", direction=direction, opponent="PyG softmax")
        targets.append(_lowest(f"edge_softmax {direction} vs PyG", ratios, 1.0))
    peaks = [row["opponent_peak_bytes"] / row["peak_bytes"] for row in rows if row["opponent_peak_bytes"]]
    targets.append(Target.at_least("PyG's memory / ours, lowest", 1.0, min(peaks, default=None)))
    return [*targets, _right(rows)]


def targets_layers(rows: list[Row]) -> list[Target]:
    targets = []
    for op in ("gat_layer", "gatv2_layer", "transformer_layer"):
        for direction in ("fwd", "fwd+bwd"):
            for opponent in ("PyG eager", "PyG compiled"):
                ratios = _found(rows, op=op, direction=direction, opponent=opponent, opponent_verdict="ok")
                targets.append(_lowest(f"{op} {direction} vs {opponent}", ratios, 1.0))
    return [*targets, _right(rows)]


def targets_ratios(rows: list[Row]) -> list[Target]:
    targets = []
    for dtype in ("fp32", "bf16"):
        backward = _found(rows, dtype=dtype, opponent="own forward")
        targets.append(_slowest(f"gat backward / forward {dtype}", backward, 1.5))
        total = _found(rows, dtype=dtype, opponent="own sum")
        targets.append(_slowest(f"gat forward / sum {dtype}", total, 1.5))
    for direction in ("fwd", "bwd"):
        hubs = _found(rows, direction=direction, opponent="own time without hub")
        targets.append(_slowest(f"gat {direction} with a hub / without", hubs, 1.1))
        half = _found(rows, direction=direction, opponent="own fp32")
        targets.append(_slowest(f"gat {direction} bf16 / fp32", half, 1.0))
    notes = dict.fromkeys(row["note"] for row in rows if row["opponent"] == "own staged")
    for note in notes:
        for direction in ("fwd", "fwd+bwd"):
            modes = _found(rows, direction=direction, opponent="own staged", mode="auto", note=note)
            targets.append(_slowest(f"gat {direction} auto / staged: {note}", modes, 1 + NOISE))
    return [*targets, _right(rows)]


def targets_propagate(rows: list[Row]) -> list[Target]:
    targets = []
    small = ("small-50k", "small-200k")
    for text, goal in (("eager, wall clock", 0.5), ("replayed CUDA graph", 0.9)):
        ratios = _found(
            rows,
            direction="fwd",
            opponent="own aggregate per hop",
            graph=small.__contains__,
            note=lambda note, text=text: f"teleport 0, {text}" in str(note),
        )
        targets.append(_slowest(f"ten hops in one call / ten calls, {text}", ratios, goal))
    appnp = _found(rows, opponent="PyG APPNP")
    return [*targets, _lowest("propagate vs PyG APPNP", appnp, 1.0), _right(rows)]


def targets_cpu(rows: list[Row]) -> list[Target]:
    targets = []
    for op in ("gat", "gat_layer"):
        ratios = _found(rows, op=op, direction="fwd+bwd", opponent="PyG eager")
        targets.append(_lowest(f"cpu {op} fwd+bwd vs PyG eager", ratios, 1.0))
    return [*targets, _right(rows)]
