# SPDX-License-Identifier: Apache-2.0
"""`python -m nvfp4sparse bench`: check every kernel, then time it, the floor and the peers."""

from __future__ import annotations

import itertools
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nvfp4sparse

from .cupti import CuptiTimer, EventTimer, WallTimer, make_timer
from .devices import Device, GpuDevice, NumpyDevice, find_gpu
from .floor import Floor, best, expected
from .kernels import (
    Candidate,
    DeviceLostError,
    Missing,
    check_device,
    names_of,
    reason_of,
    run_ours,
)
from .peers import peers_of
from .plots import CHOSEN, save_if_possible
from .report import Row, environment, has_failed, new_row, source_commit, summary, write_csv
from .table import progress
from .timing import Timing
from .workload import Problem, dense_values, judge, make_operands

SWEEP_M = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
LARGE = ((2048, 8192, 8192), (4096, 4096, 4096), (8192, 8192, 8192))
WEIGHTS_M, WEIGHTS_K, TOKENS = (2048, 4096, 8192, 28672), (2048, 4096, 8192), (1, 8, 16, 64)
CALLS, QUICK_CALLS = 100, 40
SLOW_SECONDS = 0.02  # of one call: beyond, a kernel is timed only if --kernels names it
PEER_ERROR = 0.1  # relative: beyond, a peer computed something else

Timer = CuptiTimer | EventTimer | WallTimer


def problems_of(options: Namespace, on_gpu: bool) -> list[Problem]:
    """Return the problems that the options ask for; those of a CPU are fewer by default."""
    chosen = any((options.m, options.n, options.k))
    if options.transposed:
        default = ((4096, 8192), (4096,), (1, 16)) if options.quick or not on_gpu else None
        ms, ks, ns = default or (WEIGHTS_M, WEIGHTS_K, TOKENS)
        sizes = itertools.product(options.m or ms, options.k or ks, options.n or ns)
        return [Problem(m, n, k, column_major=True) for m, k, n in sizes]
    ms = (1, 16, 64, 256) if options.quick or not on_gpu else SWEEP_M
    sizes = itertools.product(options.n or [2048], options.k or [2048], options.m or ms)
    found = [Problem(m, n, k) for n, k, m in sizes]
    if not chosen and on_gpu and not options.quick:
        found += [Problem(*size) for size in LARGE]
    return found


def bench_problem(
    device: Device, timer: Timer, problem: Problem, options: Namespace
) -> Iterator[Row]:
    """Yield a row for the floor, each of our kernels and each peer: checked first, then timed.

    Raises DeviceLostError once the device answers no more.
    """
    calls = QUICK_CALLS if options.quick else CALLS
    operands = make_operands(problem, options.seed)
    buffer, views = device.upload(operands)
    a, b = dense_values(operands)
    exact, magnitude = device.product(a, b)

    floor = None
    if isinstance(device, GpuDevice):
        floor, row = _bench_floor(device, timer, problem, buffer, calls)
        check_device(device, row.kernel, row.role)
        yield row
    chosen = nvfp4sparse.plan(problem.m, problem.n, problem.k, device.label)["kernel"]
    names = [chosen] if options.chosen else options.kernels or names_of(device.kind)
    candidates: list[Candidate | Missing] = [
        run_ours(device, problem, views, name) for name in names
    ]
    candidates += [] if options.no_peers else peers_of(device, problem, operands, a, b)
    for candidate in candidates:
        row = new_row(candidate.name, candidate.role, problem)
        if isinstance(candidate, Missing):
            row.status = f"not run: {candidate.reason}"
            yield row
            continue
        row.note = CHOSEN if candidate.name == chosen else candidate.note
        try:
            candidate.call()
            verdict = judge(candidate.result(), exact, magnitude, problem.k)
            row.add_verdict(verdict)
            ours = candidate.role == "ours"
            if ours and not verdict.within_bound:
                row.status = f"WRONG: {verdict.of_bound:.3g} times the bound"
            elif not ours and not verdict.relative < PEER_ERROR:
                row.status = f"WRONG: relative error {verdict.relative:.3g}"
            elif not options.kernels and _too_slow(device, candidate):
                row.status = f"not timed: over {SLOW_SECONDS * 1e3:.0f} ms a call"
            else:
                row.add_timing(timer.measure(candidate.call, calls), floor)
        except RuntimeError as error:
            verb = "FAILED" if candidate.role == "ours" else "not timed"
            row.status = f"{verb}: {reason_of(error)}"
        check_device(device, candidate.name, candidate.role)
        yield row


def _bench_floor(
    device: GpuDevice, timer: Timer, problem: Problem, buffer: Any, calls: int
) -> tuple[Timing | None, Row]:
    row = new_row(Floor.name, "floor", problem)
    floor = Floor(device, buffer, problem.out_bytes)
    host = device.to_host(buffer)
    timings = []
    for blocks in floor.grids:
        floor.call(blocks)()
        written = device.to_host(floor.out)
        if (written != expected(host, written.size, blocks)).any():
            row.status = f"WRONG: a grid of {blocks} blocks did not read every byte once"
            return None, row
        timings.append(timer.measure(floor.call(blocks), calls))
    timing = best(timings)
    row.add_timing(timing, timing)
    row.note = f"best of {', '.join(map(str, floor.grids))} blocks"
    return timing, row


def _too_slow(device: Device, candidate: Candidate) -> bool:
    return isinstance(device, GpuDevice) and device.seconds(candidate.call) > SLOW_SECONDS


def run(options: Namespace) -> int:
    """Run the bench; 0, 1 if a kernel failed or lost the GPU, or 2 if asked for an unknown one."""
    names = [kernel["name"] for kernel in nvfp4sparse.kernels()]
    unknown = [name for name in options.kernels or () if name not in names]
    if unknown:
        print(f"no kernel {', '.join(unknown)}; there are {', '.join(names)}", file=sys.stderr)
        return 2
    gpu, why = find_gpu()
    device: Device = gpu or NumpyDevice()
    timer = make_timer(device)
    if gpu is None:
        print(f"No GPU to time ({why}): timing the CPU path.")
    print(f"{device.name}, tensors of {device.framework}, timer: {timer.name}")

    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    table = out / "bench.csv"
    commit = options.commit or source_commit()
    rows: list[Row] = []
    lost = ""
    for problem in progress(problems_of(options, gpu is not None), "bench"):
        found = len(rows)
        try:
            for row in bench_problem(device, timer, problem, options):
                rows.append(row)
        except DeviceLostError as error:
            lost = f"the bench ends at {problem}: {error}"
            rows.append(new_row(error.name, error.role, problem))
            rows[-1].status = f"FAILED: {error.reason}"
        place = environment(device, timer.name, commit)
        for row in rows[found:]:
            vars(row).update(place)
        write_csv(table, rows)
        if lost:
            break
    print(summary(rows))
    print(f"wrote {table}")
    save_if_possible(table)
    if lost:
        print(lost, file=sys.stderr)
    return int(has_failed(rows))
