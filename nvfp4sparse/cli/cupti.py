# SPDX-License-Identifier: Apache-2.0
"""The device timer of choice: CUPTI's activity records, through torch.profiler."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from .devices import Device
from .timing import (
    WARM_UP,
    Call,
    EventTimer,
    Sample,
    Timing,
    WallTimer,
    graph_seconds,
    summarize,
)
from .torch_device import TorchDevice

Event = tuple[str, float, float]  # name, start and end in seconds


def split_calls(events: Sequence[Event], separators: set[str], calls: int) -> list[float]:
    """Return the times of the calls in a trace `separator, call, separator, call, ..., separator`.

    Raises RuntimeError if the trace does not hold `calls` calls of the same kernels each: a
    profiler that lost an event must not turn into a figure.
    """
    groups: list[list[Event]] = []
    for event in sorted(events, key=lambda event: event[1]):
        if event[0] in separators:
            groups.append([])
        elif groups:
            groups[-1].append(event)
    groups = groups[:-1]
    names = {tuple(sorted(name for name, _, _ in group)) for group in groups}
    if len(groups) != calls or len(names) != 1 or () in names:
        raise RuntimeError(
            f"the profiler's trace holds {len(groups)} calls of {sorted(names)}, not {calls} alike"
        )
    return [max(e for _, _, e in g) - min(s for _, s, _ in g) for g in groups]


def split_problems(
    events: Sequence[Event], separators: set[str], calls: int, problems: int
) -> list[list[float]]:
    """Do as `split_calls` for a trace of several problems, `calls` calls of each in turn."""
    ordered = sorted(events, key=lambda event: event[1])
    marks = [place for place, event in enumerate(ordered) if event[0] in separators]
    if len(marks) != calls * problems + 1:
        raise RuntimeError(
            f"the profiler's trace holds {len(marks) - 1} calls, not {calls} of {problems} problems"
        )
    bounds = pairwise(marks[::calls])
    return [split_calls(ordered[a : b + 1], separators, calls) for a, b in bounds]


class CuptiTimer:
    """PyTorch: the device activities that CUPTI records, through torch.profiler."""

    name = "CUPTI activities (torch.profiler)"

    def __init__(self, device: TorchDevice) -> None:
        self.device = device
        self._marker = device.scratch(4096)
        self._trace(self._mark)  # the first trace of a process may miss what it starts with
        self._separators = set()
        for fill in (self._mark, device.scrub):
            names = {name for name, _, _ in self._trace(fill)}
            if not names:
                raise RuntimeError("torch.profiler records no device activity here")
            self._separators |= names

    def measure(self, call: Call, calls: int) -> Timing:
        """Time `calls` calls, cold and then warm, and a graph of them."""
        [cold] = self.cold([call], calls)
        [warm] = self._measure([call], calls, self._mark)
        return Timing(cold, warm, graph_seconds(self.device, call))

    def cold(self, problems: Sequence[Call], calls: int) -> list[Sample]:
        """Time `calls` calls of each problem, cold; one trace for all, as traces take long."""
        return self._measure(problems, calls, self.device.scrub)

    def _mark(self) -> None:
        """Fill too little to disturb L2: where one warm call ends and the next begins."""
        self._marker.fill_(1)

    def _measure(self, problems: Sequence[Call], calls: int, separate: Call) -> list[Sample]:
        synchronize = self.device.synchronize

        def run() -> None:
            for call in problems:
                for _ in range(calls):
                    separate()
                    synchronize()
                    call()
                    synchronize()
            separate()

        for call in problems:
            for _ in range(WARM_UP):
                separate()
                call()
        expected = self._separators, calls, len(problems)
        try:
            seconds = split_problems(self._trace(run), *expected)
        except RuntimeError:  # once more: a profiler may lose records
            seconds = split_problems(self._trace(run), *expected)
        return [summarize(each) for each in seconds]

    def _trace(self, run: Call) -> list[Event]:
        from torch.autograd import DeviceType
        from torch.profiler import ProfilerActivity, profile

        self.device.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as trace:
            run()
            self.device.synchronize()
        return [
            (event.name, event.time_range.start * 1e-6, event.time_range.end * 1e-6)
            for event in trace.events()
            if event.device_type == DeviceType.CUDA
        ]


def make_timer(device: Device) -> CuptiTimer | EventTimer | WallTimer:
    """Return the best timer for `device`; print its `name` beside every figure."""
    if device.kind == "cpu":
        return WallTimer()
    if isinstance(device, TorchDevice):
        try:
            return CuptiTimer(device)
        except RuntimeError:
            pass  # a build of PyTorch without CUPTI
    return EventTimer(device)
