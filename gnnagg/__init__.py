"""gnnagg: load-balanced graph neural network aggregation for PyTorch, on CUDA and CPU.

The layers, drop-in subclasses of PyG's, are in ``gnnagg.nn`` and are imported on first use, so that gnnagg itself needs
no torch_geometric.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import _native, dropout_mask, extremum, multi
from ._graph_cache import clear as clear_graph_cache
from ._graph_cache import info as graph_cache_info
from ._graph_cache import set_limit as set_graph_cache_limit
from .aggregate import aggregate
from .dot_attention import dot_attention
from .edge_dot import edge_dot
from .edge_softmax import edge_softmax
from .gat_attention import gat_attention
from .gatv2_attention import gatv2_attention
from .graph import Graph
from .launch import LaunchPlan, apply_environment, last_launch_plan, launch_mode
from .nn.fallback import reset_stats, stats
from .propagate import propagate
from .schedule import Schedule

if TYPE_CHECKING:
    from . import nn, reference

__version__ = "0.1.0"

__all__ = [
    "Graph",
    "LaunchPlan",
    "Schedule",
    "aggregate",
    "clear_graph_cache",
    "dot_attention",
    "edge_dot",
    "edge_softmax",
    "gat_attention",
    "gatv2_attention",
    "graph_cache_info",
    "last_launch_plan",
    "launch_mode",
    "nn",
    "propagate",
    "reference",
    "reset_stats",
    "set_graph_cache_limit",
    "stats",
]

# The pages whose ops have no public function of their own: importing them declares the ops.
_DECLARED = (dropout_mask, extremum, multi)
_LAZY = ("datasets", "nn", "reference")

_native.load()
apply_environment()


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module 'gnnagg' has no attribute {name!r}")
