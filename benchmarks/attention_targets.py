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


def _counts(row: Row) -> bool:
    """Whether the row has a ratio, of two right results."""
    rival = str(row["opponent_verdict"]).startswith(("wrong", "failed"))
    return bool(row["ratio"]) and not rival and not _is_wrong(row)


def _is_wrong(row: Row) -> bool:
    return str(row["note"] or "").startswith("ours ")


def _found(rows: Iterable[Row], **wanted: object) -> dict[str, float]:
    """The ratio of the rows with these fields, by "graph shape"; a callable stands for a condition on the field."""
    return {
        f"{row['graph']} {'x'.join(map(str, row['shape'][1:]))}": row["ratio"]
        for row in rows
        if _counts(row) and all(want(row[key]) if callable(want) else row[key] == want for key, want in wanted.items())
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
    wrong = any(_is_wrong(row) for row in rows)
    measured = ", ".join(f"{name} {error:.1e}" for name, error in worst.items())
    return Target(
        "largest scaled error of ours", "tolerance of the dtype", measured or "-", not wrong if rows else None
    )


def _time(text: str, goal: float, rows: Iterable[Row], **wanted: object) -> Target:
    """The time in ms of the one row with these fields."""
    found = [row for row in rows if not _is_wrong(row) and all(row[key] == value for key, value in wanted.items())]
    times = [row["time_ms"] for row in found]
    return Target.at_most(f"{text}, ms", goal, min(times, default=None))


def targets_published(rows: list[Row]) -> list[Target]:
    targets = []
    goals = {("gat", "fwd"): 2.5, ("gat", "fwd+bwd"): 4.0, ("gatv2", "fwd+bwd"): 2.0, ("dot", "fwd+bwd"): 1.5}
    half_goals = {("gatv2", "fwd+bwd"): 3.0, ("dot", "fwd+bwd"): 2.5}
    for op, rival in (("gat", "dgNN"), ("gatv2", "turbo-gnn"), ("dot", "turbo-gnn")):
        every = 1.3 if op == "gat" else 1.0
        for direction in ("fwd", "fwd+bwd"):
            opponent = f"{rival} (kernels table)"
            ratios = _found(rows, op=op, direction=direction, dtype="fp32", opponent=opponent)
            hubs = {key: ratio for key, ratio in ratios.items() if key.startswith("hub")}
            others = {key: ratio for key, ratio in ratios.items() if key not in hubs}
            text = f"{op} {direction} fp32 vs {opponent}"
            if (op, direction) in goals:
                targets.append(_mean(text, others, goals[op, direction]))
            targets.append(_lowest(text, ratios, every))
            if hubs:
                targets.append(_lowest(f"{text}, hub", hubs, 100.0 if op == "gat" else 5.0))
            if (op, direction) in half_goals:
                half = _found(rows, op=op, direction=direction, dtype="bf16", opponent=f"{rival} fp32 (kernels table)")
                half = {key: ratio for key, ratio in half.items() if not key.startswith("hub")}
                targets.append(_mean(f"{op} {direction} bf16 vs {rival} fp32", half, half_goals[op, direction]))
    for dtype, goals_ms in (("fp32", (33.0, 80.0)), ("bf16", (19.0, 45.0))):
        for direction, goal in zip(("fwd", "fwd+bwd"), goals_ms, strict=True):
            products = [row for row in rows if row["graph"] == "products" and row["shape"][1:] == [4, 64]]
            text = f"gat products 4x64 {direction} {dtype}"
            targets.append(_time(text, goal, products, op="gat", direction=direction, dtype=dtype))
    return [*targets, _right(rows)]


def targets_pyg(rows: list[Row]) -> list[Target]:
    arxiv = [row for row in rows if row["graph"] == "arxiv"]
    reddit = [row for row in rows if row["graph"] == "reddit" and row["direction"] == "fwd+bwd" and row["op"] == "gat"]
    targets = [_mean("gat arxiv fwd+bwd vs PyG eager", _eager(arxiv), 20.0)]
    peaks = [
        row["opponent_peak_bytes"] / row["peak_bytes"]
        for row in arxiv
        if row["op"] == "gat" and row["direction"] == "fwd+bwd" and row["opponent_peak_bytes"]
    ]
    targets.append(Target.at_least("gat arxiv fwd+bwd: PyG's memory / ours, lowest", 15.0, min(peaks, default=None)))
    targets.append(_lowest("gat reddit 1x64 fwd+bwd vs PyG eager", _eager(reddit), 35.0))
    memory = max((row["peak_bytes"] / 2**30 for row in reddit if row["peak_bytes"]), default=None)
    targets.append(Target.at_most("gat reddit 1x64 fwd+bwd, GiB", 1.3, memory))
    for direction in ("fwd", "fwd+bwd"):
        ratios = _found(rows, op="edge_softmax", direction=direction, opponent="PyG softmax")
        targets.append(_lowest(f"edge_softmax {direction} vs PyG", ratios, 1.0))
    return [*targets, _right(rows)]


def _eager(rows: Iterable[Row]) -> dict[str, float]:
    return _found(rows, op="gat", direction="fwd+bwd", opponent=("PyG eager", PYG_TABLE).__contains__)


def targets_layers(rows: list[Row]) -> list[Target]:
    targets = []
    goals = {"gat_layer": (12.0, 2.3), "gatv2_layer": (12.0, 6.0), "transformer_layer": (10.0, 2.3)}
    for op, of_opponents in goals.items():
        for opponent, goal in zip(("PyG eager", "PyG compiled"), of_opponents, strict=True):
            ratios = _found(rows, op=op, direction="fwd+bwd", opponent=opponent, opponent_verdict="ok")
            targets.append(_lowest(f"{op} fwd+bwd vs {opponent}", ratios, goal))
    for op in ("gatv2_layer", "transformer_layer"):
        peaks = [
            row["opponent_peak_bytes"] / row["peak_bytes"]
            for row in rows
            if row["op"] == op and row["direction"] == "fwd+bwd" and row["opponent"] == "PyG eager"
        ]
        targets.append(Target.at_least(f"{op} fwd+bwd: PyG's memory / ours", 20.0, min(peaks, default=None)))
    return [*targets, _right(rows)]


def targets_ratios(rows: list[Row]) -> list[Target]:
    targets = []
    for dtype in ("fp32", "bf16"):
        backward = _found(rows, dtype=dtype, opponent="own forward")
        narrow = {key: ratio for key, ratio in backward.items() if key.endswith(" 8x8")}
        wide = {key: ratio for key, ratio in backward.items() if key not in narrow}
        targets.append(_slowest(f"gat backward / forward {dtype}, C >= 32", wide, 1.3))
        targets.append(_slowest(f"gat backward / forward {dtype}, 8x8", narrow, 1.6))
        total = _found(rows, dtype=dtype, opponent="own sum", shape=lambda shape: shape[2] >= 32)
        targets.append(_slowest(f"gat forward / sum {dtype}, C >= 32", total, 1.2))
    for direction in ("fwd", "bwd"):
        hubs = _found(rows, direction=direction, opponent="own time without hub")
        targets.append(_slowest(f"gat {direction} with a hub / without", hubs, 1.15))
        half = _found(rows, direction=direction, opponent="own fp32", shape=lambda shape: shape[1] * shape[2] >= 128)
        targets.append(_slowest(f"gat {direction} bf16 / fp32, F >= 128", half, 0.65))
    goals = {"eager, wall clock": 0.85, "replayed CUDA graph": 1.0, "eager, each call waited for": 0.7}
    for note in dict.fromkeys(row["note"] for row in rows if row["opponent"] == "own staged"):
        for direction in ("fwd", "fwd+bwd"):
            for mode, goal in (("cooperative", goals.get(note, 1.0)), ("auto", 1.0)):
                modes = _found(rows, direction=direction, opponent="own staged", mode=mode, note=note)
                targets.append(_slowest(f"gat {direction} {mode} / staged: {note}", modes, goal + NOISE))
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
    return [*targets, _lowest("propagate vs PyG APPNP", appnp, 10.0), _right(rows)]


def targets_cpu(rows: list[Row]) -> list[Target]:
    targets = []
    for op in ("gat", "gat_layer"):
        ratios = _found(rows, op=op, direction="fwd+bwd", opponent="PyG eager")
        targets.append(_lowest(f"cpu {op} fwd+bwd vs PyG eager", ratios, 10.0))
    return [*targets, _right(rows)]
