"""Process-wide cache of graph plans, keyed by the identity and version counter of the index tensor.

Layers and epochs that receive the same tensor share one plan; a tensor changed in place is planned anew; a plan dies
with its tensor. Bounded in bytes, least recently used first out. Safe to use from several threads.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from .graph import Graph

__all__ = ["clear", "info", "lookup", "set_limit", "store"]

_DEFAULT_LIMIT = 16 << 30  # bytes; a plan of both directions is 16 bytes an edge: about a billion edges


@dataclass
class _Entry:
    owner: weakref.ref[Tensor]
    version: int
    graph: Graph


_entries: OrderedDict[tuple[int, Any], _Entry] = OrderedDict()
_lock = threading.RLock()  # re-entrant: a tensor may die, and call back, while this thread holds it
_limit = _DEFAULT_LIMIT
_hits = 0
_misses = 0


def _version(tensor: Tensor) -> int | None:
    """Version counter, or None for an inference tensor, which has none and is therefore not cached."""
    return None if tensor.is_inference() else tensor._version


def lookup(tensor: Tensor, key: Any) -> Graph | None:
    """The plan stored for this very tensor, unless the tensor has changed since."""
    global _hits, _misses
    version = _version(tensor)
    with _lock:
        entry = _entries.get((id(tensor), key))
        if entry is None or entry.owner() is not tensor or entry.version != version:
            _misses += 1
            return None
        _hits += 1
        _entries.move_to_end((id(tensor), key))
        return entry.graph


def store(tensor: Tensor, key: Any, graph: Graph) -> None:
    """Keeps ``graph`` while ``tensor`` lives, is unchanged, and the limit allows."""
    version = _version(tensor)
    if version is None:
        return
    full_key = (id(tensor), key)

    def forget(dead: weakref.ref[Tensor]) -> None:
        with _lock:
            entry = _entries.get(full_key)
            if entry is not None and entry.owner is dead:
                del _entries[full_key]

    with _lock:
        _entries[full_key] = _Entry(weakref.ref(tensor, forget), version, graph)
        _entries.move_to_end(full_key)
        _shrink()


def _shrink() -> None:
    held = sum(entry.graph.nbytes for entry in _entries.values())
    while held > _limit and len(_entries) > 1:
        _, entry = _entries.popitem(last=False)
        held -= entry.graph.nbytes


def set_limit(nbytes: int) -> None:
    """Bounds the cache to ``nbytes`` bytes of plans; the most recent plan is always kept."""
    global _limit
    if nbytes < 0:
        raise ValueError(f"set_limit: nbytes must be >= 0, got {nbytes}")
    with _lock:
        _limit = nbytes
        _shrink()


def clear() -> None:
    """Forgets every plan. Plans that are in use live on with their users."""
    with _lock:
        _entries.clear()


def info() -> dict[str, int]:
    """``{"entries", "nbytes", "limit", "hits", "misses"}``."""
    with _lock:
        held = sum(entry.graph.nbytes for entry in _entries.values())
        return {"entries": len(_entries), "nbytes": held, "limit": _limit, "hits": _hits, "misses": _misses}
