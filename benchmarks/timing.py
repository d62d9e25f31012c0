"""How long one call takes and how much memory it needs.

CUDA, by `timer`: `events` around each call, `graph` for the share of one call in a replayed CUDA graph of many. With
events, the stream is first kept busy for as long as the host needs to enqueue all timed calls (the *head start*), so
that a time is the device's work and not the host's. `stream` and `synchronised` are wall clock and include the host:
calls enqueued one after the other, or each waited for. CPU: wall clock, in rounds that alternate between the calls to
be compared, so that a busy neighbour disturbs all of them.

`cache` says what the L2 holds before a call: `warm` (whatever the last call left, as in a model whose previous layer
just wrote x), `flush` (a large buffer was written in between) or `rotate` (each call takes the next of several copies
of x).
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor

__all__ = [
    "Cache",
    "Timer",
    "cpu_times",
    "cuda_peak",
    "cuda_times",
    "keep_device_busy",
    "release_memory",
    "replayed_time",
    "wall_time",
]

Cache = Literal["warm", "flush", "rotate"]
Timer = Literal["events", "graph", "stream", "synchronised"]
Call = Callable[[Tensor], object]

FLUSH_BYTES = 256 << 20  # four times the L2 of an H200
ROTATED_COPIES = 4
TRIAL_CALLS = 2
FEWEST_CALLS, MOST_CALLS = 5, 50
CYCLES_PER_MS = 2_000_000  # of a clock near 2 GHz; only the length of the head start depends on it
LONGEST_HEAD_START_MS = 100.0
CPU_CALLS_PER_ROUND = 3
FEWEST_ROUNDS, MOST_ROUNDS = 3, 15  # slow calls get the fewest, of one call each
CPU_BUDGET_FACTOR = 10  # CPU times scatter more, so they get more of the budget


class _InputRotation:
    """Gives x, or x and copies of it in turn."""

    def __init__(self, x: Tensor, cache: Cache) -> None:
        self._copies = [x]
        if cache == "rotate":
            self._copies += [x.clone() for _ in range(ROTATED_COPIES - 1)]
        self._next = 0

    def __call__(self) -> Tensor:
        self._next = (self._next + 1) % len(self._copies)
        return self._copies[self._next]


def keep_device_busy(milliseconds: float) -> None:
    """Enqueues a kernel of about this length, while which the host can run ahead."""
    torch.cuda._sleep(int(milliseconds * CYCLES_PER_MS))


def cuda_times(call: Call, x: Tensor, cache: Cache, repeat: int | None, budget_ms: float) -> list[float]:
    """Milliseconds of each timed call; `repeat` of them, or as many as fit in the budget."""
    take = _InputRotation(x, cache)
    trash = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=x.device) if cache == "flush" else None
    call(take())
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(TRIAL_CALLS):
        call(take())
    host_ms = (time.perf_counter() - begin) * 1e3 / TRIAL_CALLS
    torch.cuda.synchronize()
    total_ms = (time.perf_counter() - begin) * 1e3 / TRIAL_CALLS

    count = repeat or min(MOST_CALLS, max(FEWEST_CALLS, int(budget_ms / max(total_ms, 1e-3))))
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(count)]
    keep_device_busy(min(LONGEST_HEAD_START_MS, 0.5 + 1.5 * count * host_ms))
    for start, end in marks:
        if trash is not None:
            trash.zero_()
        start.record()
        call(take())
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in marks]


def wall_time(call: Callable[[], object], *, synchronised: bool, calls: int = 50, rounds: int = 9) -> float:
    """Milliseconds per call by the wall clock, the median over rounds of `calls` calls.

    Waits after each call, or at the end.
    """

    def one_round() -> float:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
            if synchronised:
                torch.cuda.synchronize()
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) * 1e3 / calls

    one_round()
    return statistics.median(one_round() for _ in range(rounds))


def cpu_times(
    calls: Mapping[str, Call], x: Tensor, cache: Cache, repeat: int | None, budget_ms: float
) -> dict[str, list[float]]:
    """Milliseconds of each timed call, by name; `repeat` rounds, or as many as fit in the budget of each call."""
    take = _InputRotation(x, cache)

    def timed(call: Call) -> float:
        begin = time.perf_counter()
        call(take())
        return (time.perf_counter() - begin) * 1e3

    rounds: dict[str, int] = {}
    for name, call in calls.items():
        fitting = int(CPU_BUDGET_FACTOR * budget_ms / CPU_CALLS_PER_ROUND / max(timed(call), 1e-3))
        rounds[name] = repeat or min(MOST_ROUNDS, max(FEWEST_ROUNDS, fitting))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(max(rounds.values(), default=0)):
        for name, call in calls.items():
            if number < rounds[name]:
                several = CPU_CALLS_PER_ROUND if rounds[name] > FEWEST_ROUNDS else 1
                times[name] += [timed(call) for _ in range(several)]
    return times


def replayed_time(call: Callable[[], object], *, calls: int = 20, replays: int = 15) -> float:
    """Milliseconds per call in a replayed CUDA graph of `calls` calls, the median over the replays."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(TRIAL_CALLS + 1):
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        for _ in range(calls):
            call()
    captured.replay()
    torch.cuda.synchronize()
    times = []
    for _ in range(replays):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        captured.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(float(start.elapsed_time(end)) / calls)
    captured.reset()
    return statistics.median(times)


def cuda_peak(call: Callable[[], object]) -> int:
    """Bytes allocated at the highest point of one call, above those allocated before it; its result included."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def release_memory() -> None:
    """Gives cached device memory back between large graphs."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
