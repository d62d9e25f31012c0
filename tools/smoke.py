"""Smoke test of an installed gnnagg: a few aggregations and a gradient on every device, compared with plain torch.

It needs nothing but gnnagg and torch. On a CUDA build of torch without a GPU, the CUDA library must at least load.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import gnnagg
from gnnagg import _native


def check(device: str) -> None:
    """Compares one small graph's aggregations and gradients with index_add_."""
    generator = torch.Generator().manual_seed(0)
    num_src, num_dst, num_edges, width = 50, 40, 400, 24
    src = torch.randint(num_src, (num_edges,), generator=generator)
    dst = torch.randint(num_dst - 1, (num_edges,), generator=generator)  # the last row stays empty
    x = torch.randn(num_src, width, generator=generator)
    graph = gnnagg.Graph.from_edge_index(torch.stack([src, dst]).to(device), size=(num_src, num_dst))

    expected = torch.zeros(num_dst, width).index_add_(0, dst, x[src])
    degree = torch.bincount(dst, minlength=num_dst).clamp(min=1).unsqueeze(1)
    leaf = x.to(device).requires_grad_()
    total = gnnagg.aggregate(leaf, graph)
    torch.testing.assert_close(total.cpu(), expected)
    torch.testing.assert_close(gnnagg.aggregate(leaf, graph, reduce="mean").cpu(), expected / degree)
    slots = dst.unsqueeze(1).expand(-1, width)
    greatest = torch.zeros(num_dst, width).scatter_reduce(0, slots, x[src], "amax", include_self=False)
    torch.testing.assert_close(gnnagg.aggregate(leaf, graph, reduce="max").cpu(), greatest)

    (gradient,) = torch.autograd.grad(total.sum(), leaf)
    out_degree = torch.bincount(src, minlength=num_src).to(x.dtype)
    torch.testing.assert_close(gradient.cpu(), out_degree.unsqueeze(1).expand(-1, width))


def main() -> int:
    """Runs the checks on every device there is; returns the exit status."""
    info = _native.build_info()
    print(f"gnnagg {gnnagg.__version__} on Python {sys.version.split()[0]}, torch {torch.__version__}")
    print(f"built for {info}")
    if Path(gnnagg.__file__).is_relative_to(Path(__file__).resolve().parents[1] / "gnnagg"):
        print("note: this is the source tree, not an installed wheel")
    _native.require("cpu")
    check("cpu")
    print("cpu: ok")
    if torch.cuda.is_available():
        _native.require("cuda")
        check("cuda")
        print("cuda: ok")
        return 0
    print(f"cuda: {_native.reason('cuda') or 'library loaded, no device to run on'}")
    should_load = torch.version.cuda is not None and info is not None and info.cuda_version is not None
    return 1 if should_load and not _native.available("cuda") else 0


if __name__ == "__main__":
    sys.exit(main())
