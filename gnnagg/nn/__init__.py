"""PyG layers whose gather and aggregate run as one operator; names, weights and results are PyG's.

``from gnnagg.nn import SAGEConv`` in place of ``from torch_geometric.nn import SAGEConv``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .gcn_conv import GCNConv
    from .sage_conv import SAGEConv

__all__ = ["GCNConv", "SAGEConv"]

_MODULES = {"GCNConv": "gcn_conv", "SAGEConv": "sage_conv"}


def __getattr__(name: str) -> Any:
    """Imports a layer, and torch_geometric with it, when it is asked for: gnnagg alone does not need PyG."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"{__name__}.{_MODULES[name]}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "torch_geometric":
            raise ImportError(
                f"gnnagg.nn.{name} is a torch_geometric layer, and torch_geometric is not installed. "
                "Fix: pip install torch-geometric"
            ) from error
        raise
    layer = getattr(module, name)
    globals()[name] = layer
    return layer


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
