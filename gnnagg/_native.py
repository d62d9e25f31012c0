"""Loads the two native libraries and remembers why one is missing, so that importing gnnagg never fails for that.

``_C_cpu.so`` and ``_C_cuda.so`` lie beside this file and use only the LibTorch Stable ABI, so one build serves every
torch >= 2.10 and every Python. The first call that needs a missing one explains it through :func:`require`.
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

__all__ = ["Backend", "BuildInfo", "available", "build_info", "load", "reason", "require", "runs_on"]

Backend = Literal["cpu", "cuda"]

_FOLDER = Path(__file__).parent
_LIBRARIES: dict[str, str] = {"cpu": "_C_cpu.so", "cuda": "_C_cuda.so"}
_DISPATCH_KEYS: dict[str, str] = {"cpu": "CPU", "cuda": "CUDA"}
_OLDEST_TORCH = (2, 10)
# Of an ELF header: magic and class; then offset, entry size and length of the section table.
_ELF_HEADER = struct.Struct("<5s35xQ10xHH2x")

_REBUILD = "in a source tree: make build; otherwise: pip install --force-reinstall --no-deps gnnagg"
_BUILD_CUDA = (
    "install the CUDA toolkit (nvcc) and build again: make build in a source tree, or "
    "GNNAGG_CUDA=ON pip install --no-build-isolation --no-deps --force-reinstall ."
)


@dataclass(frozen=True)
class BuildInfo:
    """What the libraries were built with, from the _build_info.json that the build writes beside them."""

    compiler: str
    torch_headers: str
    cuda_version: str | None
    cuda_archs: tuple[str, ...]

    def __str__(self) -> str:
        cuda = "no CUDA"
        if self.cuda_version is not None:
            cuda = f"CUDA {self.cuda_version} for {_describe_archs(self.cuda_archs)}"
        return f"torch >= {_join(_OLDEST_TORCH)}, {cuda} (headers of torch {self.torch_headers}, {self.compiler})"


@dataclass(frozen=True)
class _Missing:
    """Why a backend cannot be used, and what to do about it."""

    reason: str
    fix: str


_state: dict[str, _Missing | None] = {}  # backend -> why its library is not loaded; None: it is
_complete: set[str] = set()  # backends whose library is loaded and has every operator
_fitting_gpus: set[int] = set()  # CUDA devices that the library has code for


def load() -> None:
    """Loads what can be loaded, once; never raises. Call it when every operator schema has been defined."""
    for backend in _LIBRARIES:
        if backend not in _state:
            _state[backend] = _load(backend)


def available(backend: str) -> bool:
    """Whether the library of ``backend`` is loaded. Says nothing about a device; see :func:`require`."""
    return backend in _state and _state[backend] is None


def reason(backend: Backend) -> str | None:
    """Returns in one line why the library of ``backend`` is not loaded, or None when it is."""
    missing = _state.get(backend, _Missing("gnnagg._native.load() has not run", "import gnnagg"))
    return None if missing is None else missing.reason


def build_info() -> BuildInfo | None:
    """Returns what the libraries were built with, or None when the build's note is absent or unreadable."""
    try:
        note = json.loads((_FOLDER / "_build_info.json").read_text())
        cuda = note["cuda"] or {"version": None, "archs": []}
        return BuildInfo(note["compiler"], note["torch_headers"], cuda["version"], tuple(cuda["archs"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def require(device: str | torch.device) -> None:
    """Returns when gnnagg's operators run on ``device``; explains what is wrong otherwise.

    Args:
        device: a device or its type; ``"cuda"`` without a number is the current one.

    Raises:
        RuntimeError: the library is missing, incomplete or not built for this GPU. The message says what it was built
            for, what is here, and how to mend it.
    """
    if torch.compiler.is_compiling():
        return
    backend, index = (device, None) if isinstance(device, str) else (device.type, device.index)
    if backend not in _complete:
        missing = _find_fault(backend)
        if missing is not None:
            raise RuntimeError(_explain(backend, missing))
        _complete.add(backend)
    if backend == "cuda":
        index = torch.cuda.current_device() if index is None else index
        if index not in _fitting_gpus:
            missing = _find_gpu_fault(index)
            if missing is not None:
                raise RuntimeError(_explain(backend, missing, index))
            _fitting_gpus.add(index)


def runs_on(capability: tuple[int, int], archs: tuple[str, ...]) -> bool:
    """Whether code built for ``archs`` runs on a GPU of this compute capability.

    Machine code ("90-real") runs on GPUs of the same major version and at least its minor version, PTX ("90-virtual")
    on every GPU from its version on. With the suffix a ("90a") either runs on exactly that version, with f on the
    same major version.
    """
    return any(_arch_runs_on(capability, arch) for arch in archs)


def _load(backend: str) -> _Missing | None:
    path = _FOLDER / _LIBRARIES[backend]
    if _version(torch.__version__) < _OLDEST_TORCH:
        oldest = _join(_OLDEST_TORCH)
        return _Missing(f"torch {torch.__version__} is older than {oldest}", f"pip install 'torch>={oldest}'")
    if backend == "cuda" and torch.version.cuda is None:
        return _Missing(
            f"torch {torch.__version__} is built without CUDA, so {path.name} was not loaded",
            "install a CUDA build of torch >= 2.10; gnnagg itself need not change"
            if path.exists()
            else f"install a CUDA build of torch >= 2.10, then {_BUILD_CUDA}",
        )
    if not path.exists():
        fix = _BUILD_CUDA if backend == "cuda" else _REBUILD
        return _Missing(f"{path.name} is not in {_FOLDER}", fix)
    try:
        if _is_cut_short(path):  # the loader would die of it with a bus error, and the process too
            raise OSError(f"file too short: {path}")
        torch.ops.load_library(path)
    except Exception as error:  # whatever the loader raises must not break the import
        return _Missing(f"{path.name} could not be loaded: {error.__cause__ or error}", _REBUILD)
    return None


def _is_cut_short(path: Path) -> bool:
    """Whether a 64-bit ELF file ends before its section table, which is the last thing in it."""
    with path.open("rb") as file:
        header = file.read(_ELF_HEADER.size)
    if len(header) < _ELF_HEADER.size or header[:5] != b"\x7fELF\x02":
        return False  # no such file at all: the loader says so
    table, entry_size, entries = _ELF_HEADER.unpack(header)[1:]
    return path.stat().st_size < int(table) + int(entry_size) * int(entries)


def _find_fault(backend: str) -> _Missing | None:
    if backend not in _LIBRARIES:
        return _Missing(f"there are no kernels for {backend} tensors", "move the tensors to the CPU or a CUDA device")
    load()
    missing = _state[backend]
    if missing is not None:
        return missing
    absent = _absent_operators(backend)
    if absent:
        return _Missing(f"{_LIBRARIES[backend]} is of another version, it lacks {', '.join(absent)}", _REBUILD)
    if backend == "cuda" and not torch.cuda.is_available():
        return _Missing("torch sees no CUDA device", "check the driver with nvidia-smi, and CUDA_VISIBLE_DEVICES")
    return None


def _find_gpu_fault(index: int) -> _Missing | None:
    info = build_info()
    if info is None or not info.cuda_archs:
        return None  # without the note of this library, the launch itself reports an unsupported GPU
    capability = torch.cuda.get_device_capability(index)
    if runs_on(capability, info.cuda_archs):
        return None
    return _Missing(
        f"the kernels were not built for {torch.cuda.get_device_name(index)} (sm_{_join(capability, '')})",
        f'build for it: TORCH_CUDA_ARCH_LIST="{_join(capability)}" make build in a source tree, or with the same '
        "variable pip install --no-build-isolation --no-deps --force-reinstall . ; meanwhile CPU tensors work",
    )


def _absent_operators(backend: str) -> list[str]:
    """Names gnnagg's operators on tensors that have no kernel for ``backend``: half a backend is none."""
    absent = []
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, operator = name.partition("::")
        if namespace != "gnnagg" or "." in operator:
            continue
        packet = getattr(torch.ops.gnnagg, operator, None)  # None: the library implements what no page defines
        if packet is None:
            continue
        takes_tensors = any("Tensor" in str(argument.type) for argument in packet.default._schema.arguments)
        key = _DISPATCH_KEYS[backend]
        if takes_tensors and not torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, key):
            absent.append(operator)
    return sorted(absent)


def _explain(backend: str, missing: _Missing, index: int | None = None) -> str:
    return (
        f"gnnagg cannot run on {backend}: {missing.reason}\n"
        f"  built for: {build_info() or 'unknown (no _build_info.json)'}\n"
        f"  you have:  {_describe_machine(index)}\n"
        f"  fix:       {missing.fix}"
    )


def _describe_machine(index: int | None) -> str:
    parts = [f"torch {torch.__version__}"]
    parts.append("a torch without CUDA" if torch.version.cuda is None else f"torch's CUDA {torch.version.cuda}")
    if torch.cuda.is_available():
        capability = _join(torch.cuda.get_device_capability(index), "")
        parts.append(f"{torch.cuda.get_device_name(index)} (sm_{capability})")
    else:
        parts.append("no CUDA device")
    return ", ".join(parts)


def _describe_archs(archs: tuple[str, ...]) -> str:
    names = [f"sm_{number}" if kind == "real" else f"PTX {number}" for number, _, kind in map(_partition, archs)]
    return ", ".join(names)


def _arch_runs_on(capability: tuple[int, int], arch: str) -> bool:
    number, _, kind = _partition(arch)
    digits = number.rstrip("af")
    built = (int(digits[:-1]), int(digits[-1]))
    if number.endswith("a"):
        return capability == built
    if kind == "real" or number.endswith("f"):
        return capability[0] == built[0] and capability[1] >= built[1]
    return capability >= built


def _partition(arch: str) -> tuple[str, str, str]:
    return arch.partition("-")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])


def _join(numbers: tuple[int, ...], separator: str = ".") -> str:
    return separator.join(map(str, numbers))
