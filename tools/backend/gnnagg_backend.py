"""The build backend: scikit-build-core, plus one step that makes torch's headers available.

Metadata, sdists and `pip download` never need torch. A build looks for a torch that is already
there (find_torch.py): in the environment the wheel is built for, even under build isolation, so
that no second torch is downloaded. Only when there is none does the build fetch one into a
temporary folder. It is not named by `get_requires_for_build_wheel`, because front ends install what
that hook returns before they ask for metadata.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import find_torch
from scikit_build_core import build as skbuild
from scikit_build_core.build import (
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

_NO_TORCH = """gnnagg: the build needs the headers of a torch >= {oldest}, and none was found:
{tried}
An attempt to fetch one failed. Install torch first (the build then finds it), or set TORCH_DIR to
the folder of a torch package."""


def build_wheel(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Builds the wheel; see PEP 517."""
    with _torch_headers():
        return skbuild.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Builds the editable wheel; see PEP 660."""
    if str((config_settings or {}).get("wheel.cmake")).lower() in ("false", "0", "off", "no"):
        return skbuild.build_editable(wheel_directory, config_settings, metadata_directory)
    with _torch_headers():
        return skbuild.build_editable(wheel_directory, config_settings, metadata_directory)


@contextlib.contextmanager
def _torch_headers() -> Iterator[None]:
    """Sets TORCH_DIR while CMake runs."""
    with contextlib.ExitStack() as cleanup:
        torch_dir = find_torch.find()
        if torch_dir is None:
            scratch = cleanup.enter_context(tempfile.TemporaryDirectory(prefix="gnnagg-torch-"))
            torch_dir = _fetch(Path(scratch))
        before = os.environ.get("TORCH_DIR")
        os.environ["TORCH_DIR"] = str(torch_dir)
        try:
            yield
        finally:
            if before is None:
                del os.environ["TORCH_DIR"]
            else:
                os.environ["TORCH_DIR"] = before


def _fetch(scratch: Path) -> Path:
    """Installs torch alone, without its dependencies, into `scratch` and returns its folder."""
    tried = find_torch.explain()
    oldest = ".".join(map(str, find_torch.OLDEST))
    # The front end hides the environment's packages through PYTHONPATH, pip itself among them.
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "TORCH_DIR")}
    for installer in _installers():
        command = [*installer, "install", "--no-deps", "--target", str(scratch), f"torch>={oldest}"]
        print("gnnagg: no torch found, fetching its headers:", *command, flush=True)
        if subprocess.run(command, env=environment, check=False).returncode == 0:
            return scratch / "torch"
    raise SystemExit(_NO_TORCH.format(oldest=oldest, tried=tried))


def _installers() -> Iterator[list[str]]:
    uv = os.environ.get("UV") or shutil.which("uv")
    if os.environ.get("UV") and uv:
        yield [uv, "pip"]
    yield [sys.executable, "-m", "pip"]
    if pip := shutil.which("pip"):
        yield [pip]
    if uv:
        yield [uv, "pip"]
