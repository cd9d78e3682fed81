# SPDX-License-Identifier: Apache-2.0
"""Our own kernels as things to check and to time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import nvfp4sparse

from .devices import Device
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


def names_of(kind: str) -> list[str]:
    """Return the names of all kernels for "cpu" or "cuda", in the table's order."""
    return [row["name"] for row in nvfp4sparse.kernels() if row["kind"] == kind]


def run_ours(
    device: Device, problem: Problem, views: tuple[Any, ...], name: str
) -> Candidate | Missing:
    """Pin the kernel `name` and run it once, which also says whether it fits the problem."""
    out = device.empty(problem)
    call = partial(nvfp4sparse.sparse_gemm, *views, out, kernel=name)
    try:
        call()
    except ValueError as error:
        return Missing(name, "ours", str(error))
    return Candidate(name, "ours", call, lambda: device.to_host(out))
