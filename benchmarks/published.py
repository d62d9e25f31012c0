"""Times of rivals that this benchmark does not build, measured on one H200 on the full-size graphs of graphs.py.

Milliseconds, kernels only, median of 7, the fastest rival with a right result per cell: cuSPARSE with cached
descriptors (the better of its algorithms ALG2 and ALG3, accurate modes only), RoDe (which merges with atomics),
turbo-gnn (at its tuned best), dgNN (its training forward).
"""

from __future__ import annotations

__all__ = ["GPU_FOLDER", "PYG_GAT", "published_times"]

GPU_FOLDER = "nvidia-h200"  # the times are comparable with this GPU only

# (op, direction, dtype, opponent) -> features or "heads x channels" -> graph -> ms
_Times = dict[tuple[str, str, str, str], dict[int | str, dict[str, float]]]

_TIMES: _Times = {
    ("sum", "fwd", "fp32", "cusparse (kernels table)"): {
        16: {"arxiv": 0.064, "reddit": 1.67, "products": 4.88, "uni4": 0.295, "hub": 1.64},
        64: {"arxiv": 0.160, "reddit": 3.90, "products": 10.6, "uni4": 0.526, "hub": 2.88},
        256: {"arxiv": 0.510, "reddit": 17.4, "products": 32.9, "uni4": 1.59, "hub": 7.54},
    },
    ("sum", "fwd", "fp32", "rode (kernels table)"): {
        32: {"arxiv": 0.069, "reddit": 1.53, "products": 3.66, "uni4": 0.232, "hub": 0.602},
        128: {"arxiv": 0.212, "reddit": 6.05, "products": 14.1, "uni4": 0.704, "hub": 2.32},
    },
    ("sum", "fwd", "bf16", "cusparse (kernels table)"): {
        16: {"reddit": 2.66, "products": 3.32, "uni4": 0.34},
        64: {"reddit": 2.87, "products": 4.01, "uni4": 0.369},
        128: {"arxiv": 0.212, "reddit": 3.42, "products": 7.93, "uni4": 0.571, "hub": 3.16},
        256: {"reddit": 7.12, "products": 16.1, "uni4": 1.12},
    },
    ("max", "fwd", "fp32", "turbo-gnn (kernels table)"): {
        64: {"arxiv": 0.245, "reddit": 4.35, "products": 8.37},
        128: {"arxiv": 0.423, "reddit": 8.72, "products": 16.6, "uni4": 1.28, "hub": 3.81},
        256: {"arxiv": 0.812, "reddit": 19.6, "products": 34.0},
    },
    ("max", "fwd+bwd", "fp32", "turbo-gnn (kernels table)"): {
        64: {"arxiv": 0.390, "reddit": 4.59, "products": 14.0},
        128: {"arxiv": 0.764, "reddit": 9.54, "products": 28.5, "uni4": 2.87, "hub": 10.5},
        256: {"arxiv": 1.61, "reddit": 21.8, "products": 58.6},
    },
    ("gat", "fwd", "fp32", "dgNN (kernels table)"): {
        "1x64": {"arxiv": 1.37, "reddit": 8.0, "products": 12.6, "uni4": 0.93},
        "8x8": {"arxiv": 2.69, "reddit": 43.0, "products": 88.0, "uni4": 6.9},
        "4x32": {"arxiv": 1.87, "reddit": 19.5, "products": 36.9, "uni4": 3.3},
        "4x64": {"arxiv": 2.12, "reddit": 25.8, "products": 48.4, "uni4": 3.8},
    },
    ("gat", "fwd+bwd", "fp32", "dgNN (kernels table)"): {
        "1x64": {"arxiv": 4.2, "reddit": 47.0, "products": 74.0, "uni4": 3.9, "hub": 883.0},
        "8x8": {"arxiv": 10.9, "reddit": 296.0, "products": 489.0, "uni4": 27.0},
        "4x32": {"arxiv": 6.9, "reddit": 146.0, "products": 245.0, "uni4": 13.5, "hub": 1005.0},
        "4x64": {"arxiv": 7.8, "reddit": 174.0, "products": 295.0, "uni4": 15.5},
    },
    ("gatv2", "fwd", "fp32", "turbo-gnn (kernels table)"): {
        "1x64": {"arxiv": 0.91, "reddit": 11.2, "products": 15.1, "uni4": 1.0, "hub": 88.0},
        "4x32": {"arxiv": 1.60, "reddit": 33.8, "products": 50.7, "uni4": 3.6, "hub": 79.0},
        "4x64": {"arxiv": 1.75, "reddit": 38.8, "products": 56.8, "uni4": 4.0},
    },
    ("gatv2", "fwd+bwd", "fp32", "turbo-gnn (kernels table)"): {
        "1x64": {"arxiv": 3.8, "reddit": 56.0, "products": 70.0, "uni4": 3.8, "hub": 279.0},
        "4x32": {"arxiv": 6.3, "reddit": 156.0, "products": 217.0, "uni4": 13.0, "hub": 262.0},
        "4x64": {"arxiv": 7.6, "reddit": 204.0, "products": 271.0, "uni4": 15.0},
    },
    ("dot", "fwd", "fp32", "turbo-gnn (kernels table)"): {
        "1x64": {"arxiv": 0.99, "reddit": 12.5, "products": 19.9, "uni4": 1.2, "hub": 94.0},
        "4x32": {"arxiv": 1.70, "reddit": 36.9, "products": 60.9, "uni4": 3.4, "hub": 68.0},
        "4x64": {"arxiv": 2.14, "reddit": 47.5, "products": 76.0, "uni4": 4.7},
    },
    ("dot", "fwd+bwd", "fp32", "turbo-gnn (kernels table)"): {
        "1x64": {"arxiv": 2.6, "reddit": 37.0, "products": 60.0, "uni4": 3.7, "hub": 118.0},
        "4x32": {"arxiv": 4.7, "reddit": 102.0, "products": 181.0, "uni4": 12.0, "hub": 127.0},
        "4x64": {"arxiv": 5.8, "reddit": 148.0, "products": 237.0, "uni4": 15.0},
    },
}

# PyG 2.8's eager GATConv 1x64, forward and backward: milliseconds and bytes beyond the inputs, where it fits at all.
PYG_GAT = {"reddit": (399.0, 111 << 30)}


def published_times(op: str, direction: str, dtype: str, graph: str, features: int | str) -> list[tuple[str, float]]:
    """Pairs (opponent, ms) for this cell; empty when none was measured."""
    found = []
    for (this_op, this_direction, this_dtype, opponent), by_features in _TIMES.items():
        if (this_op, this_direction, this_dtype) == (op, direction, dtype):
            time_ms = by_features.get(features, {}).get(graph)
            if time_ms is not None:
                found.append((opponent, time_ms))
    return found
