# SPDX-License-Identifier: Apache-2.0
"""`python -m nvfp4sparse bench --sweep`: the chosen kernel at every m or n, and where it steps.

One set of operands serves all: a smaller problem is the first rows of the largest one's A or B.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from operator import attrgetter
from pathlib import Path

import nvfp4sparse

from .bench import QUICK_CALLS, Timer
from .cupti import WallTimer, make_timer
from .devices import Device, NumpyDevice, find_gpu
from .kernels import Candidate, DeviceLostError, Missing, check_device, reason_of, run_ours
from .plots import save_if_possible
from .report import Row, environment, has_failed, new_row, source_commit, write_csv
from .table import progress, render
from .timing import Sample
from .workload import Problem, dense_values, judge, make_operands

POINTS = {"m": range(1, 513), "n": range(1, 257)}
CPU_POINTS = range(1, 9)
SIZE = 2048  # of what is not swept
CHECK_EVERY = 16  # points; and wherever another kernel is chosen
STEP = 1.2  # from a point to the next, up or down: beyond, it is listed


class Stretch(tuple[Problem, ...]):
    """Problems that are timed in one go."""

    LENGTH = 32

    def __str__(self) -> str:
        return f"{self[0]} to {self[-1]}"


def problems_of(options: Namespace, on_gpu: bool) -> list[Problem]:
    """Return the problems of a sweep, smallest first; C of tokens (n) is column-major."""
    swept = options.sweep
    sizes = {name: (getattr(options, name) or [SIZE])[0] for name in ("m", "n", "k")}
    points = getattr(options, swept) or (POINTS[swept] if on_gpu else CPU_POINTS)
    column_major = options.transposed or swept == "n"
    return [
        Problem(**sizes | {swept: point}, column_major=column_major)
        for point in sorted(set(points))
    ]


def sweep(device: Device, timer: Timer, problems: Sequence[Problem], seed: int) -> Iterator[Row]:
    """Yield a row for each problem, of one m or n more each, the largest last.

    Raises DeviceLostError once the device answers no more.
    """
    operands = make_operands(problems[-1], seed)
    _, views = device.upload(operands)
    exact, magnitude = device.product(*dense_values(operands))
    steps = range(0, len(problems), Stretch.LENGTH)
    last = ""
    for stretch in progress([Stretch(problems[i : i + Stretch.LENGTH]) for i in steps], "sweep"):
        rows: list[Row] = []
        timed: list[tuple[Row, Candidate]] = []
        for place, problem in enumerate(stretch):
            m, n, k = problem.m, problem.n, problem.k
            kernel = nvfp4sparse.plan(m, n, k, device.label)["kernel"]
            rows.append(new_row(kernel, "ours", problem))
            part = *(x[:m] for x in views[:3]), *(x[:n] for x in views[3:])
            found = run_ours(device, problem, part, kernel)
            if isinstance(found, Missing):
                rows[-1].status = f"not run: {found.reason}"
                continue
            if kernel != last or place % CHECK_EVERY == 0 or problem == problems[-1]:
                verdict = judge(found.result(), exact[:m, :n], magnitude[:m, :n], k)
                rows[-1].add_verdict(verdict)
                if not verdict.within_bound:
                    rows[-1].status = f"WRONG: {verdict.of_bound:.3g} times the bound"
                    last = ""  # the next is checked as well
                    continue
            last = kernel
            timed.append((rows[-1], found))
        try:
            form, samples = _measure(timer, [one for _, one in timed])
            for (row, _), sample in zip(timed, samples, strict=True):
                row.add_sample(form, sample)
        except RuntimeError as error:
            for row, _ in timed:
                row.status = f"FAILED: {reason_of(error)}"
        yield from rows  # also those that lost the device
        check_device(device, rows[-1].kernel, "ours")


def _measure(timer: Timer, timed: Sequence[Candidate]) -> tuple[str, list[Sample]]:
    if isinstance(timer, WallTimer):
        return "warm", [timer.measure(one.call, QUICK_CALLS).warm for one in timed]
    return "cold", timer.cold([one.call for one in timed], QUICK_CALLS)


def time_of(row: Row) -> float | None:
    """Return the microseconds that a sweep goes by: cold, on the CPU warm."""
    return row.warm_us if row.cold_us is None else row.cold_us


def steps_of(rows: Sequence[Row]) -> list[tuple[float, Row, Row]]:
    """Return (factor, point, next point) of all pairs that were timed; above 1 is a slower next."""
    pairs = [(a, b, time_of(a) or 0.0, time_of(b) or 0.0) for a, b in pairwise(rows)]
    return [(after / before, a, b) for a, b, before, after in pairs if min(before, after) > 0]


def summary(rows: Sequence[Row], swept: str) -> str:
    """Return a table of the kernels along the sweep, its steps beyond STEP and the largest."""
    stretches = []
    for kernel, group in groupby(rows, attrgetter("kernel")):
        found = list(group)
        times = [time for time in map(time_of, found) if time is not None]
        ends = getattr(found[0], swept), getattr(found[-1], swept)
        figures = [f"{bound(times):.2f}" if times else "-" for bound in (min, max)]
        stretches.append((*ends, kernel, *figures))
    lines = [render((f"{swept} from", "to", "kernel", "us, least", "most"), stretches), ""]
    steps = steps_of(rows)
    steep = [step for step in steps if not 1 / STEP <= step[0] <= STEP]
    lines += [f"- step of {_words(step, swept)}" for step in steep]
    if steps:
        largest = max(steps, key=lambda step: max(step[0], 1 / step[0]))
        lines.append(f"- the largest of {len(steps)} steps: {_words(largest, swept)}")
    lines += sorted({f"- {row.kernel}: {row.status}" for row in rows if row.status != "ok"})
    return "\n".join(lines)


def _words(step: tuple[float, Row, Row], swept: str) -> str:
    factor, *ends = step
    points = (f"{swept} = {getattr(r, swept)} ({r.kernel}, {time_of(r):.2f} us)" for r in ends)
    return f"{factor:.2f}x from {' to '.join(points)}"


def run(options: Namespace) -> int:
    """Run the sweep, print its steps, write CSV and plot; 1 if a result was wrong or failed."""
    swept = options.sweep
    fixed = [name for name in ("m", "n", "k") if name != swept]
    if options.kernels or any(len(getattr(options, name) or ()) > 1 for name in fixed):
        print(
            f"--sweep {swept} takes one --{fixed[0]}, one --{fixed[1]} and no --kernels: "
            "the kernel is the chosen one",
            file=sys.stderr,
        )
        return 2
    gpu, why = find_gpu()
    device: Device = gpu or NumpyDevice()
    timer = make_timer(device)
    if gpu is None:
        print(f"No GPU to time ({why}): timing the CPU path, few points.")
    print(f"{device.name}, tensors of {device.framework}, timer: {timer.name}")
    rows: list[Row] = []
    lost = ""
    try:
        for row in sweep(device, timer, problems_of(options, gpu is not None), options.seed):
            rows.append(row)
    except DeviceLostError as error:
        lost = f"the sweep ends after {len(rows)} points: {error}"
    place = environment(device, timer.name, options.commit or source_commit())
    for row in rows:
        vars(row).update(place)
    print(summary(rows, swept))
    table = Path(options.out) / f"sweep_{swept}.csv"
    table.parent.mkdir(parents=True, exist_ok=True)
    write_csv(table, rows)
    print(f"wrote {table}")
    save_if_possible(table)
    if lost:
        print(lost, file=sys.stderr)
    return int(bool(lost) or has_failed(rows))
