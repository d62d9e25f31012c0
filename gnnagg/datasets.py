"""Node classification data sets by one name: made on the fly, built into PyG, or read by PyG from raw files.

``synthetic`` and ``karate`` need no file and no network.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

__all__ = ["NAMES", "DatasetError", "NodeDataset", "load", "power_law_communities"]


class DatasetError(RuntimeError):
    """A data set that cannot be had; the message says what was looked for and what to do."""


@dataclasses.dataclass(frozen=True)
class NodeDataset:
    """A graph whose nodes are to be classified.

    Attributes:
        name: as given to :func:`load`.
        source: where it came from, for people.
        x: ``[N, F]`` float32 features.
        edge_index: ``[2, E]`` int64, both directions of every edge.
        y: ``[N]`` int64 classes.
        train_mask: ``[N]`` bool; likewise ``val_mask`` and ``test_mask``, which do not overlap.
        val_mask: nodes that choose the best epoch.
        test_mask: nodes that are reported on.
        num_classes: classes are below this.
    """

    name: str
    source: str
    x: Tensor
    edge_index: Tensor
    y: Tensor
    train_mask: Tensor
    val_mask: Tensor
    test_mask: Tensor
    num_classes: int

    @property
    def num_nodes(self) -> int:
        return self.x.size(0)

    @property
    def num_edges(self) -> int:
        return self.edge_index.size(1)

    def to(self, device: torch.device | str) -> NodeDataset:
        """The same data set with every tensor on ``device``."""
        moved: dict[str, Any] = {
            field.name: value.to(device)
            for field in dataclasses.fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return dataclasses.replace(self, **moved)


def load(name: str, root: str | os.PathLike[str] | None = None, *, seed: int = 0) -> NodeDataset:
    """Returns a data set with its split.

    Args:
        name: one of :data:`NAMES`.
        root: folder of raw files, either as PyG lays them (``Cora/raw``, ``Computers/raw``, ``CS/raw``) or grouped
            (``planetoid/cora/raw``, ``amazon/computers/raw``, ``coauthor/cs/raw``). Nothing is written there, unless
            files have to be downloaded into it. None: ``~/.cache/gnnagg`` (or under ``XDG_CACHE_HOME``).
        seed: of the split, where the set has no public one (20 training and 30 validation nodes per class), and of
            the synthetic graph.

    Raises:
        ValueError: unknown name.
        DatasetError: the raw files are not under root and cannot be downloaded, or root is not a folder.
    """
    if name not in _LOADERS:
        raise ValueError(f"load: name must be one of {', '.join(NAMES)}, got {name!r}")
    return _LOADERS[name](name, None if root is None else Path(root), seed)


def power_law_communities(
    num_nodes: int = 10_000,
    *,
    num_edges: int = 200_000,
    num_classes: int = 8,
    num_features: int = 64,
    seed: int = 0,
) -> NodeDataset:
    """A degree-corrected stochastic block model with a power-law degree distribution and noisy class features.

    The end points of every edge are drawn in proportion to a node weight with the tail exponent 2.3, so that there are
    hubs; three edges in five stay inside a community, and features alone tell little about the class. Karrer and
    Newman, "Stochastic blockmodels and community structure in networks", Physical Review E 83, 2011.

    Args:
        num_nodes: N, at least 50 per class for the split.
        num_edges: directed edges that are drawn; about one in seven falls away as a duplicate or a loop.
        num_classes: communities; their sizes differ up to two-fold.
        num_features: F.
        seed: the same seed gives the same data on every machine with the same torch.

    Raises:
        ValueError: a count is not positive or too small for the split.
    """
    if min(num_nodes, num_edges, num_classes, num_features) < 1:
        raise ValueError("power_law_communities: num_nodes, num_edges, num_classes and num_features must be >= 1")
    if num_nodes < num_classes * 2 * (_TRAIN_PER_CLASS + _VAL_PER_CLASS):
        raise ValueError(
            f"power_law_communities: num_nodes must be at least {num_classes * 2 * (_TRAIN_PER_CLASS + _VAL_PER_CLASS)}"
            f" for {num_classes} classes, got {num_nodes}"
        )
    generator = torch.Generator().manual_seed(seed)
    share = torch.linspace(1.0, 2.0, num_classes, dtype=torch.float64)
    bounds = (share.cumsum(0) / share.sum() * num_nodes).round().long()
    y = torch.bucketize(torch.arange(num_nodes), bounds, right=True)

    rank = 1 + torch.randperm(num_nodes, generator=generator).double()
    weight = rank.pow(-1 / (_TAIL_EXPONENT - 1)).clamp(max=_HUB_SHARE * rank.pow(-1 / (_TAIL_EXPONENT - 1)).sum())
    cumulative = weight.cumsum(0)
    starts = torch.cat([bounds.new_zeros(1), bounds[:-1]])
    before = torch.cat([cumulative.new_zeros(1), cumulative])

    half = num_edges // 2
    first = torch.searchsorted(cumulative, torch.rand(half, generator=generator).double() * cumulative[-1])
    first = first.clamp(max=num_nodes - 1)
    inside = torch.rand(half, generator=generator) < _INSIDE_SHARE
    low = torch.where(inside, before[starts[y[first]]], 0.0)
    high = torch.where(inside, before[bounds[y[first]]], cumulative[-1])
    second = torch.searchsorted(cumulative, low + torch.rand(half, generator=generator).double() * (high - low))
    second = second.clamp(max=num_nodes - 1)
    keep = first != second
    pair = torch.stack([torch.cat([first, second])[keep.repeat(2)], torch.cat([second, first])[keep.repeat(2)]])
    key = (pair[0] * num_nodes + pair[1]).unique()
    edge_index = torch.stack([key // num_nodes, key % num_nodes])

    centres = torch.randn(num_classes, num_features, generator=generator)
    x = _SIGNAL * centres[y] + torch.randn(num_nodes, num_features, generator=generator)

    shuffle = torch.randperm(num_nodes, generator=generator)
    position = torch.empty_like(shuffle).scatter_(0, shuffle, torch.arange(num_nodes))
    return NodeDataset(
        "synthetic",
        f"degree-corrected block model, seed {seed}",
        x[shuffle],
        position[edge_index],
        y[shuffle],
        *_split_per_class(y[shuffle], num_classes, seed),
        num_classes,
    )


# --- constants -----------------------------------------------------------------------------------------------------

# Shchur et al., "Pitfalls of Graph Neural Network Evaluation", 2018: nodes per class in a random split.
_TRAIN_PER_CLASS = 20
_VAL_PER_CLASS = 30
# Tail of social and citation networks; the largest hub ends about 5 % of all edges.
_TAIL_EXPONENT = 2.3
_HUB_SHARE = 0.05
# A linear model on the features alone gets about one node in four right, two convolutions over 80 %: room to be wrong.
_INSIDE_SHARE = 0.6
_SIGNAL = 0.16
# Seconds to wait for a server before giving up.
_CONNECT_TIMEOUT = 15.0


# --- loaders -------------------------------------------------------------------------------------------------------


def _load_synthetic(name: str, root: Path | None, seed: int) -> NodeDataset:
    return power_law_communities(seed=seed)


def _load_karate(name: str, root: Path | None, seed: int) -> NodeDataset:
    from torch_geometric.datasets import KarateClub

    data = KarateClub()[0]
    rest = (~data.train_mask).nonzero().squeeze(1)
    rest = rest[torch.randperm(rest.numel(), generator=torch.Generator().manual_seed(seed))]
    val, test = (_mask(part, data.num_nodes) for part in rest.tensor_split([rest.numel() // 3]))
    return NodeDataset(
        name, "built into PyG", data.x, data.edge_index, data.y, data.train_mask, val, test, int(data.y.max()) + 1
    )


def _load_planetoid(name: str, root: Path | None, seed: int) -> NodeDataset:
    from torch_geometric.datasets import Planetoid
    from torch_geometric.transforms import NormalizeFeatures

    proper = {"cora": "Cora", "citeseer": "CiteSeer", "pubmed": "PubMed"}[name]
    files = [f"ind.{name}.{part}" for part in ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")]
    with _raw_folder(name, root, (f"{proper}/raw", f"planetoid/{name}/raw"), files, Planetoid.url) as (raw, source):
        data = _read(raw, proper, lambda where: Planetoid(where, proper, transform=NormalizeFeatures()))
    masks = (data.train_mask, data.val_mask, data.test_mask)
    return NodeDataset(name, source, data.x, data.edge_index, data.y, *masks, int(data.y.max()) + 1)


def _load_amazon(name: str, root: Path | None, seed: int) -> NodeDataset:
    from torch_geometric.datasets import Amazon

    proper = name.capitalize()
    files = [f"amazon_electronics_{name}.npz"]
    with _raw_folder(name, root, (f"{proper}/raw", f"amazon/{name}/raw"), files, Amazon.url) as (raw, source):
        data = _read(raw, proper, lambda where: Amazon(where, proper))
    return _with_random_split(name, source, data, seed)


def _load_coauthor(name: str, root: Path | None, seed: int) -> NodeDataset:
    from torch_geometric.datasets import Coauthor

    proper = {"cs": "CS", "physics": "Physics"}[name]
    files = [f"ms_academic_{name[:3]}.npz"]
    with _raw_folder(name, root, (f"{proper}/raw", f"coauthor/{name}/raw"), files, Coauthor.url) as (raw, source):
        data = _read(raw, proper, lambda where: Coauthor(where, proper))
    return _with_random_split(name, source, data, seed)


_LOADERS: dict[str, Callable[[str, Path | None, int], NodeDataset]] = {
    "synthetic": _load_synthetic,
    "karate": _load_karate,
    "cora": _load_planetoid,
    "citeseer": _load_planetoid,
    "pubmed": _load_planetoid,
    "computers": _load_amazon,
    "photo": _load_amazon,
    "cs": _load_coauthor,
    "physics": _load_coauthor,
}
NAMES = tuple(_LOADERS)


# --- splits --------------------------------------------------------------------------------------------------------


def _with_random_split(name: str, source: str, data: Any, seed: int) -> NodeDataset:
    num_classes = int(data.y.max()) + 1
    masks = _split_per_class(data.y, num_classes, seed)
    return NodeDataset(name, source, data.x, data.edge_index, data.y, *masks, num_classes)


def _split_per_class(y: Tensor, num_classes: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Masks of 20 training nodes per class, 30 validation nodes per class, and the rest."""
    generator = torch.Generator().manual_seed(seed)
    chosen: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])
    for label in range(num_classes):
        members = (y == label).nonzero().squeeze(1)
        members = members[torch.randperm(members.numel(), generator=generator)]
        parts = members.tensor_split([_TRAIN_PER_CLASS, _TRAIN_PER_CLASS + _VAL_PER_CLASS])
        for nodes, part in zip(chosen, parts, strict=True):
            nodes.append(part)
    train, val, test = (_mask(torch.cat(nodes), y.numel()) for nodes in chosen)
    return train, val, test


def _mask(nodes: Tensor, num_nodes: int) -> Tensor:
    return torch.zeros(num_nodes, dtype=torch.bool).index_fill_(0, nodes, True)


# --- raw files -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _raw_folder(
    name: str, root: Path | None, layouts: tuple[str, ...], files: list[str], url: str
) -> Iterator[tuple[Path, str]]:
    """The folder that holds ``files``: the first of ``layouts`` under ``root`` that is whole, else downloaded."""
    if root is not None and not root.is_dir():
        raise DatasetError(f"{name}: --root must be a folder, got {str(root)!r}")
    base = root or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gnnagg"
    for layout in layouts:
        raw = base / layout
        if all((raw / file).is_file() for file in files):
            yield raw, f"raw files in {raw}"
            return
    partial = [layout for layout in layouts if any((base / layout / file).is_file() for file in files)]
    target = base / layouts[0]
    where = " or ".join(layouts)
    advice = f"Put {', '.join(files)} into {where} under the folder given by --root, or use --dataset synthetic"
    if partial:
        missing = [file for file in files if not (base / partial[0] / file).is_file()]
        raise DatasetError(f"{name}: {partial[0]} under {base} lacks {', '.join(missing)}. {advice}")
    try:
        _download(url, files, target)
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise DatasetError(
            f"{name}: no raw files in {where} under {base}, and the download failed ({reason}). {advice}"
        ) from error
    yield target, f"downloaded to {target}"


def _read(raw: Path, proper: str, dataset: Callable[[str], Any]) -> Any:
    """The one graph of a PyG data set, read from ``raw`` through links in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="gnnagg-") as scratch:
        linked = Path(scratch) / proper / "raw"
        linked.mkdir(parents=True)
        for file in raw.iterdir():
            try:
                (linked / file.name).symlink_to(file.resolve())
            except OSError:  # a file system without links
                shutil.copyfile(file, linked / file.name)
        with open(os.devnull, "w") as quiet, contextlib.redirect_stderr(quiet):
            return dataset(scratch)[0]


def _download(url: str, files: list[str], target: Path) -> None:
    """Fetches ``files`` into ``target``, all or none. OSError when the server cannot be reached."""
    base = url.rstrip("/")
    _check_reachable(f"{base}/{files[0]}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="download-", dir=target.parent) as scratch:
        for file in files:
            with urllib.request.urlopen(f"{base}/{file}", timeout=_CONNECT_TIMEOUT) as reply:
                (Path(scratch) / file).write_bytes(reply.read())
        target.mkdir(parents=True, exist_ok=True)
        for file in files:
            os.replace(Path(scratch) / file, target / file)


def _check_reachable(url: str) -> None:
    """OSError unless the server answers in time; a name lookup that hangs is left behind in its thread."""
    failure: list[OSError] = [TimeoutError(f"no answer within {_CONNECT_TIMEOUT:.0f} s")]

    def ask() -> None:
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=_CONNECT_TIMEOUT).close()
            failure.clear()
        except OSError as error:
            failure[0] = error

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_CONNECT_TIMEOUT)
    if failure:
        raise failure[0]
