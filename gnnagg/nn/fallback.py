"""When a layer runs PyG's own path instead of the fused one, and the count of how often each was taken and why.

Whatever the fused path does not cover is never an error: PyG computes it, and :func:`stats` names the reason.
``GNNAGG_STRICT=1`` makes a fall-back an error, ``GNNAGG_VERBOSE=1`` warns once per layer class and reason.
"""

from __future__ import annotations

import copy
import os
import threading
import warnings
from typing import Any, ClassVar

import torch
import torch.autograd.forward_ad as forward_ad

__all__ = ["FusedLayer", "reset_stats", "stats"]

_counts: dict[str, dict[str, int]] = {}
_warned: set[tuple[str, str]] = set()
_lock = threading.Lock()

# The steps of MessagePassing that the fused path replaces: a subclass or an object that brings its own is not fused.
_STEPS = ("propagate", "message", "aggregate", "message_and_aggregate", "update")
# MessagePassing's ten hook registries. PyG skips them in compiled code, and so does the check.
_HOOKS = tuple(
    f"_{step}_forward_{when}hooks"
    for step in ("propagate", "message", "aggregate", "message_and_aggregate", "edge_update")
    for when in ("", "pre_")
)


def stats() -> dict[str, dict[str, int]]:
    """Forward passes of gnnagg's layers in this process, by layer class: fused ones, and PyG's by reason.

    Returns:
        For example ``{"SAGEConv": {"fused": 200, "fallback: explain mode": 3}}``. Compiled code is not counted.
    """
    with _lock:
        return {layer: dict(entries) for layer, entries in _counts.items()}


def reset_stats() -> None:
    """Sets every count of :func:`stats` to zero, and lets GNNAGG_VERBOSE=1 warn again."""
    with _lock:
        _counts.clear()
        _warned.clear()


class FusedLayer:
    """What gnnagg's layers share beside the PyG class that they extend: fall-back rules, counting, TorchScript."""

    _own_steps: ClassVar[str] = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if FusedLayer in cls.__bases__:
            return  # a layer of this package: its steps are PyG's
        own = [name for name in _STEPS if name in cls.__dict__]
        if own:
            cls._own_steps = ", ".join(own)

    def _count_fused(self) -> None:
        if not torch.compiler.is_compiling():
            self._count("fused")

    def _count_fallback(self, reason: str) -> None:
        """Counts a forward pass by PyG's path. RuntimeError under GNNAGG_STRICT=1."""
        if torch.compiler.is_compiling():
            return
        name = type(self).__name__
        if _is_set("GNNAGG_STRICT"):
            raise RuntimeError(f"{name}: the fused path does not cover {reason}, and GNNAGG_STRICT=1 forbids PyG's")
        self._count(f"fallback: {reason}")
        if _is_set("GNNAGG_VERBOSE"):
            with _lock:
                first = (name, reason) not in _warned
                _warned.add((name, reason))
            if first:
                warnings.warn(f"gnnagg: {name} runs PyG's own path because of {reason}", stacklevel=4)

    def _count(self, what: str) -> None:
        name = type(self).__name__
        with _lock:
            entries = _counts.setdefault(name, {})
            entries[what] = entries.get(what, 0) + 1

    def _unfused_mode(self) -> str | None:
        """Why this layer, as it is set up and called now, must run step by step; None when it need not."""
        layer: Any = self
        if layer._explain:
            return "explain mode"
        if layer.decomposed_layers > 1:
            return "decomposed_layers"
        if self._own_steps:
            return f"a subclass with its own {self._own_steps}"
        if torch.compiler.is_compiling():
            return None
        for registry in _HOOKS:
            if getattr(layer, registry):
                return "message passing hooks"
        if layer.aggr_module is not None and (layer.aggr_module._forward_hooks or layer.aggr_module._forward_pre_hooks):
            return "hooks on the aggregation module"
        replaced = _replaced_step(layer)
        if replaced is not None:
            return f"an object with its own {replaced}"
        if torch._C._get_tracing_state() is not None:
            return "torch.jit.trace"
        if torch.onnx.is_in_onnx_export():
            return "ONNX export"
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return "a torch.func transform"
        if forward_ad._current_level >= 0:
            return "forward-mode AD"
        return None

    def __prepare_scriptable__(self) -> Any:
        """The plain PyG layer with these very weights: what torch.jit.script compiles in place of this one."""
        parent = next(c for c in type(self).__mro__ if not issubclass(c, FusedLayer) and issubclass(c, torch.nn.Module))
        self._count_fallback("torch.jit.script")
        layer: Any = self
        plain: Any = parent.__new__(parent)
        plain.__dict__ = dict(self.__dict__)
        plain.inspector = copy.copy(layer.inspector)
        plain.inspector._cls = parent
        for step in ("propagate", "edge_updater"):
            plain.__dict__.pop(step, None)
        plain._set_jittable_templates()
        return plain


def _replaced_step(layer: Any) -> str | None:
    """Name of the first step that was assigned on the object itself, other than by PyG's own switching."""
    for name in _STEPS:
        step = layer.__dict__.get(name)
        if step is None:
            continue
        cls = type(layer)
        generated = (getattr(cls, "_jinja_propagate", None), getattr(cls, "_orig_propagate", None))
        if name != "propagate" or getattr(step, "__func__", step) not in generated:
            return name
    return None


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "0") not in ("", "0")
