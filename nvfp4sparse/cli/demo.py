# SPDX-License-Identifier: Apache-2.0
"""`python -m nvfp4sparse`: one product on everything that can run it here, checked."""

from __future__ import annotations

from argparse import Namespace

from .devices import Device, GpuDevice, NumpyDevice, find_gpu
from .kernels import Missing, names_of, run_ours
from .table import render
from .timing import Call, WallTimer, graph_seconds
from .workload import Problem, dense_values, exact_product, judge, make_operands


def run(options: Namespace) -> int:
    """Print a table of devices and kernels; 0, or 1 if a result was wrong."""
    problem = Problem(options.m, options.n, options.k)
    operands = make_operands(problem, options.seed)
    exact, magnitude = exact_product(*dense_values(operands))
    print("C = A @ B^T, A 2:4 sparse NVFP4, B NVFP4, C bf16:", problem)
    print(
        f"operands {problem.operand_bytes:,} bytes;"
        f" the same in bf16 {2 * problem.k * (problem.m + problem.n):,}"
    )

    gpu, why = find_gpu()
    devices: list[Device] = [NumpyDevice()] + ([gpu] if gpu else [])
    rows, notes, unfit, failed = [], [], [], False
    for device in devices:
        _, views = device.upload(operands)
        for name in names_of(device.kind):
            ours = run_ours(device, problem, views, name)
            if isinstance(ours, Missing):
                unfit.append(name)
                continue
            verdict = judge(ours.result(), exact, magnitude, problem.k)
            failed = failed or not verdict.within_bound
            rows.append(
                (
                    device.name,
                    device.framework,
                    name,
                    _time_of(device, ours.call),
                    f"{verdict.ulps:.3g}",
                    f"{verdict.of_bound:.3f}",
                    "yes" if verdict.within_bound else "NO",
                )
            )
    header = ("device", "tensors", "kernel", "median time", "worst error, bf16 ulps")
    print(render((*header, "of the bound", "right"), rows))
    if unfit:
        notes.append(f"made for other problems: {', '.join(unfit)}")
    notes.append("time: of a call by perf_counter on the CPU, in a replayed CUDA graph on a GPU")
    if gpu is None:
        notes.append(f"no GPU was used: {why}")
    for note in notes:
        print("-", note)
    return int(failed or not rows)


def _time_of(device: Device, call: Call) -> str:
    seconds = (
        graph_seconds(device, call)
        if isinstance(device, GpuDevice)
        else WallTimer().measure(call, 20).warm.median
    )
    return "-" if seconds is None else f"{seconds * 1e6:,.1f} us"
