# SPDX-License-Identifier: Apache-2.0
"""`python -m nvfp4sparse bench --host`: what a call costs the host, beside other libraries' calls.

Each call is timed alone, by time.perf_counter_ns around it, with the garbage collector off and a
wait for the device every WAIT_EVERY calls, so that a launch never waits for a full queue. Medians.
On a GPU a call returns when its kernel is queued; on the CPU it has computed, and says so.

The calls of a framework, and the parts of ours that C can time, take turns. A launch is timed
twice: alone, launch after launch, and in a call, where what comes before it has used the same
caches and the GPU has waited for as long. "empty call" calls a C function that does nothing.
"""

from __future__ import annotations

import gc
import operator
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

import nvfp4sparse
from nvfp4sparse import _C

from .devices import NumpyDevice, find_gpu
from .host_calls import Absent, HostCall, all_calls, no_wait
from .host_report import EACH_ITS_OWN, HostRow, summary, targets
from .report import environment, source_commit, write_csv
from .workload import Problem, make_operands

CALLS, QUICK_CALLS = 20_000, 2_000
WAIT_EVERY = 256
WARM_UP = 200
SHAPES = 500
TIMER = "time.perf_counter_ns around each call"
GPU_PROBLEM, CPU_PROBLEM = (64, 2048, 2048), (1, 16, 16)


@dataclass
class Series:
    """A row of the table and the nanoseconds of its calls so far; take(count) makes `count`."""

    row: HostRow
    take: Callable[[int], list[int]]
    found: list[int] = field(default_factory=list)


def in_python(call: HostCall) -> Callable[[int], list[int]]:
    """Return what makes calls from Python and times each."""
    clock, function, wait = time.perf_counter_ns, call.function, call.wait

    def take(count: int) -> list[int]:
        found, result = [], None
        for _ in range(count):
            begin = clock()
            result = function()
            found.append(clock() - begin)
        wait(result)
        return found

    return take


def in_c(call: HostCall, function: Callable[..., list[int]], *options: Any) -> Callable:
    """Return what lets a timer of the C module make the calls."""

    def take(count: int) -> list[int]:
        found = function(call.arguments, count, *options)
        call.wait(None)
        return found

    return take


def measure(series: Sequence[Series], calls: int) -> None:
    """Make `calls` calls of each, in turns of WAIT_EVERY, and fill in the rows.

    In turns, since rows are compared, and clocks of processors drift over seconds.
    """
    for one in series:
        one.take(WARM_UP)
    gc.collect()
    gc.disable()
    try:
        for turn in range(0, calls, WAIT_EVERY):
            for one in series:
                one.found += one.take(min(WAIT_EVERY, calls - turn))
    finally:
        gc.enable()
    for one in series:
        one.row.add(one.found)


def series_of(call: HostCall, on_gpu: bool) -> Iterator[Series]:
    """Yield the call and, if C may time it, its parts."""
    yield Series(HostRow(call.framework, call.name, call.role), in_python(call))
    if not call.arguments:
        return
    launch = "cuLaunchKernelEx" if on_gpu else "product"
    for name, *timer in (
        (f"{launch} alone", _C.time_launches),
        (f"{launch} in a call", _C.time_launches, True),
        ("preparation", _C.time_preparation),
    ):
        yield Series(HostRow(call.framework, name, "part"), in_c(call, *timer))


def many_shapes(call: HostCall, problem: Problem, label: str) -> list[int]:
    """Return the nanoseconds of calls with 1 to SHAPES rows in random order.

    The operands hold as many rows; each kernel has run once before, and is loaded.
    """
    *operands, out = call.arguments
    rows = range(1, SHAPES + 1)
    views = {m: (*(x[:m] for x in operands[:3]), *operands[3:], out[:m]) for m in rows}
    kernel_of = {m: nvfp4sparse.plan(m, problem.n, problem.k, label)["kernel"] for m in rows}
    for m in {kernel: m for m, kernel in kernel_of.items()}.values():
        nvfp4sparse.sparse_gemm(*views[m])
    call.wait(None)
    order = iter(np.random.default_rng(0).permutation(SHAPES) + 1)
    clock = time.perf_counter_ns
    found = []
    for turn, m in enumerate(order):
        arguments = views[int(m)]
        begin = clock()
        nvfp4sparse.sparse_gemm(*arguments)
        found.append(clock() - begin)
        if turn % WAIT_EVERY == 0:
            call.wait(None)
    call.wait(None)
    return found


def rows_of(problem: Problem, on_gpu: bool, label: str, calls: int, seed: int) -> Iterator[HostRow]:
    """Yield a row for every call, for its parts, and for many shapes."""
    nothing = HostCall("python", "empty call", "part", partial(operator.index, 1), no_wait)
    operands = make_operands(problem, seed)
    for framework, group in groupby(
        all_calls(operands, problem, on_gpu), operator.attrgetter("framework")
    ):
        found = list(group)
        if isinstance(found[0], Absent):
            yield HostRow(framework, "", "", status=f"not run: {found[0].reason}")
            continue
        timer = Series(HostRow(framework, nothing.name, nothing.role), in_python(nothing))
        series = [timer, *(one for call in found for one in series_of(call, on_gpu))]
        measure(series, calls)
        yield from (one.row for one in series)
    shapes = Problem(SHAPES, problem.n, problem.k)
    for call in all_calls(make_operands(shapes, seed), shapes, on_gpu):
        if isinstance(call, HostCall) and call.arguments:
            name = f"sparse_gemm(out), {SHAPES} different m"
            row = HostRow(call.framework, name, "ours", m=SHAPES, kernel=EACH_ITS_OWN)
            yield row.add(many_shapes(call, shapes, label))


def run(options: Namespace) -> int:
    """Time the calls, print a table and the targets, write host.csv; always 0."""
    gpu, why = find_gpu()
    device = gpu or NumpyDevice()
    m, n, k = GPU_PROBLEM if gpu else CPU_PROBLEM
    problem = Problem(
        *((given or [size])[0] for given, size in ((options.m, m), (options.n, n), (options.k, k)))
    )
    what = "until the kernel is queued" if gpu else f"computing included, no GPU ({why})"
    print(f"{device.name}: {problem}; host time of a call, {what}; {TIMER}")
    calls = QUICK_CALLS if options.quick else CALLS
    rows = list(rows_of(problem, gpu is not None, device.label, calls, options.seed))
    place = environment(device, TIMER, options.commit or source_commit())
    del place["framework"]  # each row has its own
    kernel = nvfp4sparse.plan(problem.m, problem.n, problem.k, device.label)["kernel"]
    for row in rows:
        row.m, row.n, row.k = row.m or problem.m, problem.n, problem.k
        row.kernel = row.kernel or kernel
        vars(row).update({name: value for name, value in place.items() if hasattr(row, name)})
    print(summary(rows))
    for name, value, bound in targets(rows) if gpu else ():
        verdict = "met" if value <= bound else "MISSED"
        print(f"- {name}: {value:.2f} us, at most {bound:.2f}: {verdict}")
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(folder / "host.csv", rows, HostRow)
    print(f"wrote {folder / 'host.csv'}")
    return 0
