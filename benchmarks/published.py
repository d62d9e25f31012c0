"""Times of rivals that this benchmark does not build, measured on one H200 on the full-size graphs of graphs.py.

Milliseconds, kernels only, median of 7, the fastest rival with a right result per cell: cuSPARSE with cached
descriptors (the better of its algorithms ALG2 and ALG3, accurate modes only), RoDe (which merges with atomics),
turbo-gnn.
"""

from __future__ import annotations

__all__ = ["GPU_FOLDER", "published_times"]

GPU_FOLDER = "nvidia-h200"  # the times are comparable with this GPU only

# (op, direction, dtype, opponent) -> features -> graph -> ms
_Times = dict[tuple[str, str, str, str], dict[int, dict[str, float]]]

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
}


def published_times(op: str, direction: str, dtype: str, graph: str, features: int) -> list[tuple[str, float]]:
    """Pairs (opponent, ms) for this cell; empty when none was measured."""
    found = []
    for (this_op, this_direction, this_dtype, opponent), by_features in _TIMES.items():
        if (this_op, this_direction, this_dtype) == (op, direction, dtype):
            time_ms = by_features.get(features, {}).get(graph)
            if time_ms is not None:
                found.append((opponent, time_ms))
    return found
