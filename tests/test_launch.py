"""gnnagg.launch where there is no GPU; tests/gpu covers the launches themselves."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gnnagg
from gnnagg import schedule


def test_unknown_mode() -> None:
    with pytest.raises(ValueError, match="mode must be one of .* got 'fast'"), gnnagg.launch_mode("fast"):  # type: ignore[arg-type]
        pass


def test_environment_is_checked_at_import() -> None:
    environment = {**os.environ, "GNNAGG_LAUNCH": "sometimes"}
    done = subprocess.run([sys.executable, "-c", "import gnnagg"], env=environment, capture_output=True, text=True)
    assert done.returncode != 0 and "GNNAGG_LAUNCH must be one of" in done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_plan_without_cuda() -> None:
    with gnnagg.launch_mode("cooperative"):
        assert gnnagg.last_launch_plan() is None


def test_schedules_count_the_threads_that_the_kernels_are_compiled_for() -> None:
    """schedule.py and csrc/cuda/tuning.h state them each: a span too many leaves SMs idle for a whole round."""
    source = (Path(__file__).parent.parent / "csrc" / "cuda" / "tuning.h").read_text()
    tuning = {name: int(value) for name, value in re.findall(r"constexpr int (\w+) = (\d+);", source)}
    assert tuning["kBlockThreads"] * tuning["kBlocksPerSm"] == schedule.RESIDENT_THREADS
    attention = tuning["kAttentionThreads"]
    assert attention * tuning["kAttentionBlocksPerSm"] == schedule.ATTENTION_THREADS
    assert attention * tuning["kGatBlocksPerSm"] == schedule.GAT_THREADS
