# SPDX-License-Identifier: Apache-2.0
"""Timers of one call: device time, cold and warm, as FlashInfer-Bench takes it.

Per call: flush, synchronise, call, synchronise. Its time runs from the start of the first to the
end of the last kernel, copy or fill that it put on the device, so a second kernel and the gap
before it count and host overhead does not. Medians; random data; never zeros.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .devices import GpuDevice

WARM_UP = 10
GRAPH_CALLS = 100

Call = Callable[[], Any]


@dataclass(frozen=True)
class Sample:
    """Seconds of one call over `calls` of them; `spread`: from the 10th to the 90th percentile."""

    median: float
    minimum: float
    spread: float
    calls: int


@dataclass(frozen=True)
class Timing:
    """What a timer found; a form it cannot take is None."""

    cold: Sample | None  # L2 flushed before the call
    warm: Sample
    graph: float | None  # seconds of a call inside the replay of a graph of several


def summarize(seconds: Sequence[float]) -> Sample:
    """Return the Sample of at least two times."""
    deciles = statistics.quantiles(seconds, n=10, method="inclusive")
    return Sample(statistics.median(seconds), min(seconds), deciles[-1] - deciles[0], len(seconds))


class WallTimer:
    """The CPU path: time.perf_counter around each call, caches as they are."""

    name = "perf_counter"

    def __init__(self, budget_seconds: float = 2.0) -> None:
        self.budget_seconds = budget_seconds

    def measure(self, call: Call, calls: int) -> Timing:
        """Time at most `calls` calls: fewer, but at least 5, once the budget is spent."""
        call()
        seconds: list[float] = []
        while len(seconds) < calls and (len(seconds) < 5 or sum(seconds) < self.budget_seconds):
            begin = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - begin)
        return Timing(cold=None, warm=summarize(seconds), graph=None)


def graph_seconds(device: GpuDevice, call: Call, repeats: int = 10) -> float | None:
    """Return the seconds of one call inside a replayed CUDA graph; median of `repeats` replays.

    The graph holds 100 calls, or fewer where that would take more than about 10 ms. None if the
    call cannot be captured, as is true of some libraries.
    """
    call()
    calls = max(5, min(GRAPH_CALLS, int(0.01 / device.seconds(call))))

    def body() -> None:
        for _ in range(calls):
            call()

    device.synchronize()
    try:
        replay = device.capture(body)
    except RuntimeError:
        return None
    replay()
    return statistics.median(device.seconds(replay) for _ in range(repeats)) / calls


class EventTimer:
    """Any GPU framework: graphs of one call, between CUDA events.

    Cold is the replay of (flush, call) less the median replay of (flush) alone, so the flush's
    own jitter is in the spread.
    """

    name = "CUDA events around graph replays"

    def __init__(self, device: GpuDevice) -> None:
        self.device = device

    def measure(self, call: Call, calls: int) -> Timing:
        """Time `calls` calls, cold and then warm, and a graph of them."""
        device = self.device
        [cold] = self.cold([call], calls)
        warm_calls = 20

        def several() -> None:
            for _ in range(warm_calls):
                call()

        warm = [s / warm_calls for s in self._repeat(device.capture(several), calls)]
        return Timing(cold, summarize(warm), graph_seconds(device, call))

    def cold(self, problems: Sequence[Call], calls: int) -> list[Sample]:
        """Time `calls` calls of each problem, cold."""
        device = self.device
        device.scrub()  # allocates outside the capture
        device.synchronize()
        flush_seconds = statistics.median(self._repeat(device.capture(device.scrub), calls))
        samples = []
        for call in problems:

            def flush_and_call(call: Call = call) -> None:
                device.scrub()
                call()

            call()
            device.synchronize()
            both = self._repeat(device.capture(flush_and_call), calls)
            samples.append(summarize([seconds - flush_seconds for seconds in both]))
        return samples

    def _repeat(self, replay: Call, calls: int) -> list[float]:
        for _ in range(WARM_UP):
            replay()
        return [self.device.seconds(replay) for _ in range(calls)]
