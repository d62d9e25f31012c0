"""Finds the folder of an installed torch without importing it.

The build needs torch's stable headers and one library to link against, from any torch >= 2.10: the
LibTorch Stable ABI makes the result independent of which one. Importing torch would cost seconds,
and under build isolation torch is not on the import path although the environment has it.

Run as a script it prints the folder and the version, one a line (CMake does that).
"""

from __future__ import annotations

import importlib.util
import os
import re
import site
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

OLDEST = (2, 10)


def version(torch_dir: Path) -> str | None:
    """Returns the version written in `torch_dir`, or None when it is no torch."""
    try:
        text = (torch_dir / "version.py").read_text()
    except OSError:
        return None
    found = re.search(r"^__version__ = ['\"]([^'\"]+)", text, re.MULTILINE)
    return found.group(1) if found else None


def rejected(torch_dir: Path) -> str | None:
    """Returns why the build cannot use `torch_dir`, or None when it can."""
    found = version(torch_dir)
    if found is None:
        return "no torch package there"
    if tuple(int(n) for n in re.findall(r"\d+", found)[:2]) < OLDEST:
        return f"torch {found} is older than {OLDEST[0]}.{OLDEST[1]}"
    for part in ("include/torch/csrc/stable/library.h", "lib/libtorch_cpu.so"):
        if not (torch_dir / part).exists():
            return f"torch {found} comes without {part}"
    return None


def candidates() -> Iterator[Path]:
    """Yields the folders where a torch may lie, the most wanted first."""
    if os.environ.get("TORCH_DIR"):
        yield Path(os.environ["TORCH_DIR"])
        return
    # Not find_spec("torch") alone: a build front end hides the packages of the environment it builds
    # for, but starts that environment's own Python, so its prefix still leads to them.
    spec = importlib.util.find_spec("torch")
    if spec is not None and spec.origin is not None:
        yield Path(spec.origin).parent
    yield Path(sysconfig.get_path("platlib")) / "torch"
    prefixes = [sys.prefix, os.environ.get("VIRTUAL_ENV", ""), os.environ.get("CONDA_PREFIX", "")]
    for folder in site.getsitepackages([p for p in [*prefixes, sys.base_prefix] if p]):
        yield Path(folder) / "torch"
    yield Path(site.getusersitepackages()) / "torch"


def find() -> Path | None:
    """Returns the folder of the first usable torch, or None."""
    return next((folder for folder in candidates() if rejected(folder) is None), None)


def explain() -> str:
    """Returns one line for each folder that was tried, with the reason it was not taken."""
    tried = dict.fromkeys(candidates())
    return "\n".join(f"  {folder}: {rejected(folder) or 'usable'}" for folder in tried)


if __name__ == "__main__":
    torch_dir = find()
    if torch_dir is None:
        sys.exit(f"no torch >= {OLDEST[0]}.{OLDEST[1]} found; tried\n{explain()}")
    print(torch_dir.resolve().as_posix())
    print(version(torch_dir))
