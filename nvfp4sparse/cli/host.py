# SPDX-License-Identifier: Apache-2.0
"""`python -m nvfp4sparse bench --host`: what a call costs the host, beside other libraries' calls.

Each call is timed alone, by time.perf_counter_ns around it, with the garbage collector off and a
wait for the device every WAIT_EVERY calls, so that a launch never waits for a full queue. Medians.
On a GPU a call returns when its kernel is queued; on the CPU it has computed, and says so.
"""

from __future__ import annotations

import gc
import operator
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import nvfp4sparse
from nvfp4sparse import _C

from .devices import NumpyDevice, find_gpu
from .host_calls import Absent, HostCall, all_calls, no_wait
from .host_report import HostRow, summary, targets, write_csv
from .report import environment, source_commit
from .workload import Problem, make_operands

CALLS, QUICK_CALLS = 20_000, 2_000
WAIT_EVERY = 256
WARM_UP = 200
SHAPES = 500
TIMER = "time.perf_counter_ns around each call"
GPU_PROBLEM, CPU_PROBLEM = (64, 2048, 2048), (1, 16, 16)


def measure(call: Callable[[], Any], wait: Callable[[Any], None], calls: int) -> list[int]:
    """Return the nanoseconds of each of `calls` calls."""
    clock = time.perf_counter_ns
    result = None
    for _ in range(WARM_UP):
        result = call()
    wait(result)
    found: list[int] = []
    gc.collect()
    gc.disable()
    try:
        while len(found) < calls:
            for _ in range(min(WAIT_EVERY, calls - len(found))):
                begin = clock()
                result = call()
                found.append(clock() - begin)
            wait(result)
    finally:
        gc.enable()
    return found


def in_c(function: Callable[..., list[int]], call: HostCall, calls: int) -> list[int]:
    """Return what a timer of the C module finds for the call, in portions as measure() has them."""
    found: list[int] = []
    function(call.arguments, WARM_UP)
    while len(found) < calls:
        call.wait(None)
        found += function(call.arguments, min(WAIT_EVERY, calls - len(found)))
    call.wait(None)
    return found


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
    timer = partial(operator.index, 1)
    yield HostRow("python", "timer alone", "part").add(measure(timer, no_wait, calls))
    operands = make_operands(problem, seed)
    launch = "cuLaunchKernelEx alone" if on_gpu else "product alone, in C"
    for call in all_calls(operands, problem, on_gpu):
        if isinstance(call, Absent):
            yield HostRow(call.framework, "", "", status=f"not run: {call.reason}")
            continue
        row = HostRow(call.framework, call.name, call.role)
        yield row.add(measure(call.function, call.wait, calls))
        if call.arguments:
            for name, function in (
                (launch, _C.time_launches),
                ("preparation", _C.time_preparation),
            ):
                row = HostRow(call.framework, name, "part")
                yield row.add(in_c(function, call, calls))
    shapes = Problem(SHAPES, problem.n, problem.k)
    for call in all_calls(make_operands(shapes, seed), shapes, on_gpu):
        if isinstance(call, HostCall) and call.arguments:
            row = HostRow(call.framework, f"sparse_gemm(out), {SHAPES} different m", "ours")
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
    place["kernel"] = nvfp4sparse.plan(problem.m, problem.n, problem.k, device.label)["kernel"]
    for row in rows:
        row.m, row.n, row.k = problem.m, problem.n, problem.k
        vars(row).update({name: value for name, value in place.items() if hasattr(row, name)})
    print(summary(rows))
    for name, value, bound in targets(rows) if gpu else ():
        verdict = "met" if value <= bound else "MISSED"
        print(f"- {name}: {value:.2f} us, at most {bound:.2f}: {verdict}")
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(folder / "host.csv", rows)
    print(f"wrote {folder / 'host.csv'}")
    return 0
