"""Runs the GPU's tests and records the outcome as benchmarks/results/<gpu>/tests.json.

They are tests/gpu, and with GNNAGG_TEST_DEVICE=cuda those files of tests/ that ask for it.

    python3 -m tools.record_gpu_tests [arguments of pytest]

The record names the csrc tree that was tested as git names it (`git rev-parse HEAD:csrc`). It is computed from the
files themselves, so it also holds for changes that are not committed yet and where there is no git.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from benchmarks.results import ROOT, device_folder, metadata


def git_tree_hash(folder: Path) -> str:
    """Returns the id that git would give the tree of `folder`, were all its files committed."""
    entries = []
    for path in folder.iterdir():
        if path.is_dir():
            if any(child.is_file() for child in path.rglob("*")):  # git knows no empty folders
                entries.append((path.name + "/", "40000", git_tree_hash(path)))
        else:
            mode = "100755" if path.stat().st_mode & 0o100 else "100644"
            entries.append((path.name, mode, _git_object_id("blob", path.read_bytes())))
    tree = b"".join(
        f"{mode} {name.rstrip('/')}".encode() + b"\0" + bytes.fromhex(identity)
        for name, mode, identity in sorted(entries, key=lambda entry: entry[0].encode())
    )
    return _git_object_id("tree", tree)


def _git_object_id(kind: str, content: bytes) -> str:
    return hashlib.sha1(f"{kind} {len(content)}".encode() + b"\0" + content).hexdigest()


def files_for_any_device() -> list[str]:
    """Test files that run on the device that GNNAGG_TEST_DEVICE names."""
    folder = ROOT / "tests"
    return [str(path.relative_to(ROOT)) for path in sorted(folder.glob("test_*.py")) if "DEVICE" in path.read_text()]


def jobs() -> list[tuple[str, dict[str, str]]]:
    """Every test file with the environment it runs in."""
    gpu = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests" / "gpu").glob("test_*.py"))]
    return [(path, {}) for path in gpu] + [(path, {"GNNAGG_TEST_DEVICE": "cuda"}) for path in files_for_any_device()]


def run_file(path: str, environment: dict[str, str], arguments: list[str]) -> tuple[int, dict[str, int]]:
    """Returns pytest's exit status and how many tests passed, failed and were skipped; prints its output at the end."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        command = [sys.executable, "-m", "pytest", path, f"--junitxml={report}", *arguments]
        ran = subprocess.run(
            command, cwd=ROOT, check=False, env={**os.environ, **environment}, capture_output=True, text=True
        )
        print(f"== {path}\n{ran.stdout}{ran.stderr}", flush=True)
        if not report.exists():
            return ran.returncode or 1, {"passed": 0, "failed": 0, "skipped": 0}
        suite = next(ElementTree.parse(report).iter("testsuite"))
    total, skipped = int(suite.get("tests", 0)), int(suite.get("skipped", 0))
    failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
    return ran.returncode, {"passed": total - failed - skipped, "failed": failed, "skipped": skipped}


def run_tests(arguments: list[str]) -> tuple[int, dict[str, int]]:
    """Runs the files side by side; returns pytest's worst exit status and the sums of the counts."""
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    worst = 0
    with ThreadPoolExecutor(max(1, min(8, (os.cpu_count() or 1) // 2))) as pool:
        for status, found in pool.map(lambda job: run_file(*job, arguments), jobs()):
            worst = max(worst, status)
            for name, count in found.items():
                counts[name] += count
    return worst, counts


def main() -> int:
    """Runs, records, prints where; returns the exit status."""
    if not torch.cuda.is_available():
        print("make gpu-test needs a CUDA device, and torch sees none", file=sys.stderr)
        return 1
    device = torch.device("cuda", torch.cuda.current_device())
    csrc = git_tree_hash(ROOT / "csrc")
    status, counts = run_tests(sys.argv[1:])
    if counts["passed"] == 0:
        print("no GPU test passed; nothing recorded", file=sys.stderr)
        return status or 1
    record = {"csrc": csrc, "counts": counts, **metadata(device), "command": "make gpu-test"}
    path = ROOT / "benchmarks" / "results" / device_folder(device) / "tests.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{counts} recorded in {path.relative_to(ROOT)}")
    return status


if __name__ == "__main__":
    sys.exit(main())
