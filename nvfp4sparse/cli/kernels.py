# SPDX-License-Identifier: Apache-2.0
"""Our own kernels as things to check and to time, and who is to blame for a dead device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import nvfp4sparse

from .devices import Device, GpuDevice
from .timing import Call
from .workload import Problem


@dataclass(frozen=True)
class Candidate:
    """Something to check and to time."""

    name: str
    role: str  # "ours" or "peer"
    call: Call
    result: Callable[[], np.ndarray]  # C of the last call, float32 [m, n]
    note: str = ""


@dataclass(frozen=True)
class Missing:
    """Something that cannot run here, and why."""

    name: str
    role: str
    reason: str


class DeviceLostError(Exception):
    """The device answers no more; `name` was the last to use it."""

    def __init__(self, name: str, role: str, reason: str) -> None:
        super().__init__(f"{name} left the GPU unusable: {reason}")
        self.name, self.role, self.reason = name, role, reason


def reason_of(error: Exception) -> str:
    """Return the first line of what an error says."""
    return (str(error) or type(error).__name__).splitlines()[0]


def check_device(device: Device, name: str, role: str) -> None:
    """Wait for what `name` has queued. Raises DeviceLostError if the device answers no more.

    A fault of a kernel shows up in a later call, whoever makes it, and in each one from then on.
    """
    if isinstance(device, GpuDevice):
        try:
            device.synchronize()
        except RuntimeError as error:
            raise DeviceLostError(name, role, reason_of(error)) from error


def names_of(kind: str) -> list[str]:
    """Return the names of all kernels for "cpu" or "cuda", in the table's order."""
    return [row["name"] for row in nvfp4sparse.kernels() if row["kind"] == kind]


def run_ours(
    device: Device, problem: Problem, views: tuple[Any, ...], name: str
) -> Candidate | Missing:
    """Pin the kernel `name` and run it once, which also says whether it fits the problem.

    Raises DeviceLostError if the device did not survive it.
    """
    out = device.empty(problem)
    call = partial(nvfp4sparse.sparse_gemm, *views, out, kernel=name)
    try:
        call()
    except ValueError as error:
        return Missing(name, "ours", str(error))
    check_device(device, name, "ours")
    return Candidate(name, "ours", call, lambda: device.to_host(out))
