"""The gather ceiling: how fast whole table rows can be read by random id, summed and thrown away.

`python3 benchmarks/gather_ceiling.py` prints TB/s of row bytes over table size and row bytes. Other benchmarks use
`GatherCeiling` to quote their rate as a share of it, on the same table size and the same ids. The kernel,
gather_ceiling.cu, is compiled by nvcc when it is first needed.
"""

from __future__ import annotations

import ctypes
import itertools
import shutil
import statistics
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import results, suites, timing
from benchmarks.harness import Settings
from benchmarks.results import Row

__all__ = ["GatherCeiling", "main"]

SOURCE = Path(__file__).with_suffix(".cu")
ROW_BYTES = (64, 128, 256, 512, 1024)
TABLE_MEGABYTES = (8, 32, 128, 1024, 4096)
UNROLLS = (1, 2, 4)
IDS_PER_LOAD = 32  # the kernel takes whole warps of ids
BYTES_PER_CALL = 4 << 30
CHECKED_IDS, CHECKED_AT_ONCE = 1 << 20, 1 << 18
REPEATS = 9


@cache
def _library(architecture: str) -> ctypes.CDLL:
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    folder = tempfile.mkdtemp(prefix="gather-ceiling-")
    library = Path(folder) / "libgather_ceiling.so"
    options = ["-O3", "-std=c++17", f"-arch={architecture}", "-shared", "-Xcompiler", "-fPIC"]
    subprocess.run([nvcc, *options, "-o", str(library), str(SOURCE)], check=True)
    loaded = ctypes.CDLL(str(library))
    pointer, number = ctypes.c_void_p, ctypes.c_int
    launch = loaded.gather_ceiling
    launch.restype = number
    launch.argtypes = [pointer, pointer, ctypes.c_longlong, number, number, number, pointer, pointer, pointer]
    loaded.gather_ceiling_error.restype = ctypes.c_char_p
    loaded.gather_ceiling_error.argtypes = [number]
    shutil.rmtree(folder)  # the library stays mapped
    return loaded


class GatherCeiling:
    """Measures the ceiling on one device; checks the kernel's sum against torch once per row size."""

    def __init__(self, device: torch.device) -> None:
        major, minor = torch.cuda.get_device_capability(device)
        self._device = device
        self._kernel = _library(f"sm_{major}{minor}")
        self._checked: set[tuple[int, int]] = set()
        self._rates: dict[tuple[int, int, int], float] = {}

    def rate(self, table_rows: int, row_bytes: int, ids: Tensor) -> float:
        """TB/s of row bytes for a table [table_rows, row_bytes] and these ids ([E] int32), the best unroll."""
        key = (table_rows, row_bytes, ids.data_ptr())
        if key not in self._rates:
            times = self.times(table_rows, row_bytes, ids)
            count = ids.numel() // IDS_PER_LOAD * IDS_PER_LOAD
            self._rates[key] = count * row_bytes / min(times.values()) / 1e9
        return self._rates[key]

    def times(self, table_rows: int, row_bytes: int, ids: Tensor) -> dict[int, float]:
        """Milliseconds by unroll."""
        ids = ids[: ids.numel() // IDS_PER_LOAD * IDS_PER_LOAD]
        generator = torch.Generator(device=self._device).manual_seed(3)
        words = row_bytes // 4
        table = torch.randint(
            -(1 << 31), (1 << 31) - 1, (table_rows, words), generator=generator, dtype=torch.int32, device=self._device
        )
        times = {}
        for unroll in UNROLLS:
            self._check(table, ids, unroll)
            partial = torch.empty(self._warps(row_bytes, unroll), words, dtype=torch.int32, device=self._device)
            for _ in range(2):
                self._launch(table, ids, unroll, partial)
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(REPEATS + 1)]
            marks[0].record()
            for mark in marks[1:]:
                self._launch(table, ids, unroll, partial)
                mark.record()
            torch.cuda.synchronize()
            pairs = itertools.pairwise(marks)
            times[unroll] = statistics.median(start.elapsed_time(end) for start, end in pairs)
        return times

    def _check(self, table: Tensor, ids: Tensor, unroll: int) -> None:
        row_bytes = 4 * table.size(1)
        if (row_bytes, unroll) in self._checked:
            return
        ids = ids[:CHECKED_IDS]
        poison = 0x7FC00000
        partial = torch.full(
            (self._warps(row_bytes, unroll), table.size(1)), poison, dtype=torch.int32, device=self._device
        )
        self._launch(table, ids, unroll, partial)
        expected = torch.zeros(table.size(1), dtype=torch.int64, device=self._device)
        for piece in ids.split(CHECKED_AT_ONCE):
            expected += table[piece.long()].long().sum(0)
        if not torch.equal(partial.long().sum(0) % (1 << 32), expected % (1 << 32)):
            raise RuntimeError(f"gather ceiling: the sum of {row_bytes}-byte rows is wrong (unroll {unroll})")
        self._checked.add((row_bytes, unroll))

    def _warps(self, row_bytes: int, unroll: int) -> int:
        warps = ctypes.c_longlong()
        status = self._kernel.gather_ceiling(None, None, 0, row_bytes, unroll, 0, None, None, ctypes.byref(warps))
        self._raise(status)
        return warps.value

    def _launch(self, table: Tensor, ids: Tensor, unroll: int, partial: Tensor) -> None:
        warps = ctypes.c_longlong()
        stream = torch.cuda.current_stream(self._device).cuda_stream
        arguments = (ids.numel(), 4 * table.size(1), unroll, 0, partial.data_ptr(), stream, ctypes.byref(warps))
        self._raise(self._kernel.gather_ceiling(table.data_ptr(), ids.data_ptr(), *arguments))

    def _raise(self, status: int) -> None:
        if status != 0:
            raise RuntimeError(f"gather ceiling: {self._kernel.gather_ceiling_error(status).decode()}")


def measure_table(settings: Settings, row_sizes: list[int], megabytes: list[int]) -> list[Row]:
    """Uniform random ids over each table size and row size."""
    ceiling = GatherCeiling(settings.device)
    generator = torch.Generator(device=settings.device).manual_seed(5)
    rows = []
    for size in megabytes:
        for row_bytes in row_sizes:
            table_rows = (size << 20) // row_bytes
            count = (BYTES_PER_CALL >> 4 if settings.quick else BYTES_PER_CALL) // row_bytes
            ids = torch.randint(0, table_rows, (count,), generator=generator, dtype=torch.int32, device=settings.device)
            times = ceiling.times(table_rows, row_bytes, ids)
            unroll = min(times, key=lambda key: times[key])
            rows.append(
                results.blank_row(
                    op="gather",
                    graph=f"table {size} MB",
                    shape=[table_rows, row_bytes],
                    dtype="bytes",
                    direction="fwd",
                    mode="staged",
                    time_ms=times[unroll],
                    max_rel_error=0.0,
                    gather_tb_s=count * row_bytes / times[unroll] / 1e9,
                    note=f"{unroll} rows in flight",
                )
            )
            timing.release_memory()
    return rows


def main() -> None:
    parser = suites.argument_parser(__doc__ or "")
    options = parser.parse_args()
    settings = suites.settings_from(options)
    if settings.device.type != "cuda":
        parser.error("the gather ceiling is measured on a CUDA device")
    row_sizes = options.features or list(ROW_BYTES)
    rows = measure_table(settings, row_sizes, [8, 128] if settings.quick else list(TABLE_MEGABYTES))
    path = results.write_results(
        "gather_ceiling", results.metadata(settings.device), rows, options.out, settings.device
    )
    header = ("table", *(f"{size} B" for size in row_sizes))
    rates = {(row["graph"], row["shape"][1]): f"{row['gather_tb_s']:.2f}" for row in rows}
    tables = dict.fromkeys(row["graph"] for row in rows)
    lines = [(table, *(rates[table, size] for size in row_sizes)) for table in tables]
    results.print_table("Gather ceiling, TB/s of row bytes", header, lines)
    print(f"\nwritten: {path.name}")


if __name__ == "__main__":
    main()
