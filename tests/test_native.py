"""gnnagg._native: importing never fails for a missing library, and the first native call says what to do.

Damaged installs are made for real: the package is copied without its libraries, or with broken ones, and imported in a
process of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gnnagg
from gnnagg import _native

PACKAGE = Path(gnnagg.__file__).parent
CPU_CALL = "gnnagg.Graph.from_edge_index(torch.tensor([[0, 1], [1, 0]]), size=(2, 2))"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package without anything that the build makes."""
    target = tmp_path / "gnnagg"
    shutil.copytree(PACKAGE, target, ignore=shutil.ignore_patterns("*.so", "_build_info.json", "__pycache__"))
    return target


def run(copy: Path, code: str, **environment: str) -> str:
    """Runs `code` with the copied package in a process of its own and returns what it prints."""
    # The finder of an editable install would lead back to the source tree.
    undo_editable = "import sys; sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in type(f).__module__]"
    lines = [undo_editable, "import torch", "import gnnagg, gnnagg._native as native", code]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        cwd=copy.parent,
        env={**os.environ, "PYTHONPATH": str(copy.parent), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def failing_call(call: str) -> str:
    """Code that prints the type and the message of the error that `call` raises."""
    return f"try:\n    {call}\nexcept Exception as error:\n    print(type(error).__name__, error)"


def test_cpu_library_is_loaded_and_complete():
    assert _native.available("cpu")
    assert _native.reason("cpu") is None
    _native.require("cpu")
    _native.require(torch.device("cpu"))


def test_import_without_libraries_works_and_first_call_explains(copy):
    printed = run(copy, "print(native.available('cpu'), native.reason('cpu'))\n" + failing_call(CPU_CALL))
    assert printed.startswith("False _C_cpu.so is not in ")
    assert "RuntimeError gnnagg cannot run on cpu: _C_cpu.so is not in" in printed
    assert "built for: unknown (no _build_info.json)" in printed
    assert f"you have:  torch {torch.__version__}" in printed
    assert "fix:       in a source tree: make build" in printed


@pytest.mark.parametrize(
    "content", [b"", b"not a library", b"\x7fELF" + bytes(100)], ids=["empty", "text", "elf header"]
)
def test_corrupt_library_is_reported_with_the_loaders_words(copy, content):
    (copy / "_C_cpu.so").write_bytes(content)
    printed = run(copy, failing_call(CPU_CALL))
    assert "RuntimeError gnnagg cannot run on cpu: _C_cpu.so could not be loaded:" in printed
    assert str(copy / "_C_cpu.so") in printed
    assert "file too short" in printed or "ELF" in printed
    assert "pip install --force-reinstall" in printed


def test_truncated_library_is_reported(copy):
    whole = (PACKAGE / "_C_cpu.so").read_bytes()
    (copy / "_C_cpu.so").write_bytes(whole[: len(whole) // 2])
    assert "_C_cpu.so could not be loaded" in run(copy, failing_call(CPU_CALL))


def test_library_of_another_version_is_refused_as_a_whole(copy):
    shutil.copy(PACKAGE / "_C_cpu.so", copy)
    code = "torch.library.define('gnnagg::of_a_later_version', '(Tensor x) -> Tensor')\n" + failing_call(CPU_CALL)
    printed = run(copy, code)
    assert "_C_cpu.so is of another version, it lacks of_a_later_version" in printed


@pytest.mark.skipif(torch.version.cuda is not None, reason="needs a CPU build of torch")
def test_cuda_library_is_not_touched_on_a_cpu_torch(copy):
    (copy / "_C_cuda.so").write_bytes(b"not a library")
    printed = run(copy, failing_call("native.require('cuda')"))
    assert f"gnnagg cannot run on cuda: torch {torch.__version__} is built without CUDA" in printed
    assert "fix:       install a CUDA build of torch >= 2.10; gnnagg itself need not change" in printed


@pytest.mark.skipif(torch.version.cuda is not None, reason="needs a CPU build of torch")
def test_cuda_advice_names_both_steps_when_the_library_is_absent_too(copy):
    printed = run(copy, failing_call("native.require('cuda')"))
    assert "install a CUDA build of torch >= 2.10, then install the CUDA toolkit (nvcc)" in printed


def test_old_torch_is_named_as_the_reason(copy):
    code = (
        "torch.__version__ = '2.9.1+cu128'\n"
        "native._state.clear()\n"
        "native.load()\n"
        "print(native.reason('cpu'))\n"
        "print(native.reason('cuda'))"
    )
    assert run(copy, code).splitlines() == ["torch 2.9.1+cu128 is older than 2.10"] * 2


def test_other_devices_are_refused():
    with pytest.raises(RuntimeError, match="gnnagg cannot run on meta: there are no kernels for meta tensors"):
        _native.require("meta")


def test_build_info_says_what_the_libraries_were_built_with():
    info = _native.build_info()
    assert info is not None
    assert info.torch_headers.startswith("2.")
    assert "torch >= 2.10" in str(info)
    assert (info.cuda_version is None) == (not (PACKAGE / "_C_cuda.so").exists())
    assert bool(info.cuda_archs) == (info.cuda_version is not None)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"compiler": "GNU", "torch_headers": "2.13.0"}'])
def test_unreadable_build_info_is_none(tmp_path, monkeypatch, text):
    (tmp_path / "_build_info.json").write_text(text)
    monkeypatch.setattr(_native, "_FOLDER", tmp_path)
    assert _native.build_info() is None


def test_unsupported_gpu_is_named_with_the_fix(tmp_path, monkeypatch):
    note = {"compiler": "GNU", "torch_headers": "2.13.0", "cuda": {"version": "13.0", "archs": ["80-real", "90-real"]}}
    (tmp_path / "_build_info.json").write_text(json.dumps(note))
    monkeypatch.setattr(_native, "_FOLDER", tmp_path)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index=None: (7, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index=None: "Tesla V100")
    fault = _native._find_gpu_fault(0)
    assert fault is not None
    message = _native._explain("cuda", fault, 0)
    assert "the kernels were not built for Tesla V100 (sm_70)" in message
    assert "CUDA 13.0 for sm_80, sm_90" in message
    assert 'TORCH_CUDA_ARCH_LIST="7.0"' in message


@pytest.mark.parametrize(
    ("capability", "archs", "runs"),
    [
        ((8, 0), ("80-real",), True),
        ((8, 6), ("80-real",), True),
        ((8, 0), ("86-real",), False),
        ((9, 0), ("80-real",), False),
        ((9, 0), ("80-real", "80-virtual"), True),
        ((7, 5), ("80-real", "80-virtual"), False),
        ((12, 0), ("100-real",), False),
        ((12, 0), ("90-virtual",), True),
        ((9, 0), ("90a-real",), True),
        ((10, 0), ("90a-virtual",), False),
        ((10, 3), ("100f-real",), True),
        ((12, 0), ("100f-virtual",), False),
        ((9, 0), (), False),
    ],
)
def test_which_gpus_a_build_serves(capability, archs, runs):
    assert _native.runs_on(capability, archs) is runs
