# SPDX-License-Identifier: Apache-2.0
"""What the bench found: one flat row per kernel and problem, as a table and as CSV."""

from __future__ import annotations

import csv
import datetime
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import nvfp4sparse

from .devices import Device, GpuDevice
from .table import render
from .timing import Sample, Timing
from .workload import Problem, Verdict

SMI_FIELDS = {
    "driver": "driver_version",
    "sm_clock_mhz": "clocks.sm",
    "sm_clock_max_mhz": "clocks.max.sm",
    "memory_clock_mhz": "clocks.mem",
    "power_limit_w": "power.limit",
}


@dataclass
class Row:
    """One line of the CSV; times in microseconds, empty where there is none."""

    kernel: str
    role: str  # ours, floor or peer
    m: int
    n: int
    k: int
    layout: str  # of C: row or column (major)
    status: str = "ok"  # or why it did not run
    note: str = ""
    cold_us: float | None = None
    cold_min_us: float | None = None
    cold_spread_us: float | None = None
    warm_us: float | None = None
    warm_min_us: float | None = None
    warm_spread_us: float | None = None
    graph_us: float | None = None
    calls: int | None = None
    cold_to_floor: float | None = None  # time / floor's time: 1 is the floor's bandwidth
    warm_to_floor: float | None = None
    error_of_bound: float | None = None  # Verdict.of_bound
    relative_error: float | None = None
    operand_bytes: int | None = None
    out_bytes: int | None = None
    timer: str = ""
    framework: str = ""
    device: str = ""
    driver: str = ""
    sm_clock_mhz: str = ""  # read right after the problem's calls
    sm_clock_max_mhz: str = ""
    memory_clock_mhz: str = ""
    power_limit_w: str = ""
    version: str = nvfp4sparse.__version__
    commit: str = ""
    date: str = ""

    def add_timing(self, timing: Timing, floor: Timing | None) -> None:
        """Fill in the times, and their ratios to the floor's."""
        for form, sample in (("cold", timing.cold), ("warm", timing.warm)):
            if sample is None:
                continue
            self.add_sample(form, sample)
            if floor is not None:
                ratio = sample.median / getattr(floor, form).median
                setattr(self, f"{form}_to_floor", round(ratio, 3))
        self.graph_us = None if timing.graph is None else _us(timing.graph)

    def add_sample(self, form: str, sample: Sample) -> None:
        """Fill in the times of one form, "cold" or "warm"."""
        setattr(self, f"{form}_us", _us(sample.median))
        setattr(self, f"{form}_min_us", _us(sample.minimum))
        setattr(self, f"{form}_spread_us", _us(sample.spread))
        self.calls = sample.calls

    def add_verdict(self, verdict: Verdict) -> None:
        """Fill in the errors."""
        self.error_of_bound = float(f"{verdict.of_bound:.4g}")
        self.relative_error = float(f"{verdict.relative:.4g}")


def new_row(kernel: str, role: str, problem: Problem) -> Row:
    """Return a row without figures."""
    return Row(
        kernel,
        role,
        problem.m,
        problem.n,
        problem.k,
        "column" if problem.column_major else "row",
        operand_bytes=problem.operand_bytes,
        out_bytes=problem.out_bytes,
    )


def environment(device: Device, timer: str, commit: str) -> dict[str, str]:
    """Return the columns of a Row that say where and when: GPU, driver, clocks, commit, date."""
    found = {
        "timer": timer,
        "framework": device.framework,
        "device": device.name,
        "commit": commit,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    if isinstance(device, GpuDevice):
        query = f"--query-gpu={','.join(SMI_FIELDS.values())}"
        command = ["nvidia-smi", f"--id={device.smi_id}", query, "--format=csv,noheader,nounits"]
        answer = _output(command).split(", ")
        if len(answer) == len(SMI_FIELDS):
            found |= dict(zip(SMI_FIELDS, answer, strict=True))
    return found


def source_commit() -> str:
    """Return the commit of the source tree that the package runs from, or "unknown"."""
    tree = Path(nvfp4sparse.__file__).parents[1]
    if not (tree / "src" / "gemm.c").exists():
        return "unknown"
    commit = _output(["git", "-C", str(tree), "rev-parse", "--short=12", "HEAD"])
    changed = _output(["git", "-C", str(tree), "status", "--porcelain", "--untracked-files=no"])
    return (commit + ("-dirty" if changed else "")) or "unknown"


def has_failed(rows: Sequence[Row]) -> bool:
    """Whether a result was wrong, or one of our kernels failed."""
    return any(row.status.startswith(("WRONG", "FAILED")) for row in rows)


def write_csv(path: Path, rows: Sequence[Any], kind: type = Row) -> None:
    """Write all rows, dataclasses of that kind, with a header."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(kind)])
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def summary(rows: Sequence[Row]) -> str:
    """Return a table of the rows, one block per problem, and the notes under it."""
    header = ("m", "n", "k", "C", "kernel", "cold us", "min", "spread", "warm us", "min", "spread")
    header += ("graph us", "cold/floor", "warm/floor", "% of floor's GB/s", "error")
    body, notes = [], {}
    for row in rows:
        if row.status != "ok":
            notes[f"{row.kernel}: {row.status}"] = None
            continue
        if row.note:
            notes[f"{row.kernel}: {row.note}"] = None
        share = row.cold_to_floor and 100 / row.cold_to_floor
        figures = (row.cold_us, row.cold_min_us, row.cold_spread_us)
        figures += (row.warm_us, row.warm_min_us, row.warm_spread_us, row.graph_us)
        figures += (row.cold_to_floor, row.warm_to_floor, share)
        cells = ("-" if value is None else f"{value:.2f}" for value in figures)
        error = "-" if row.relative_error is None else f"{row.relative_error:.1e}"
        body.append((row.m, row.n, row.k, row.layout, row.kernel, *cells, error))
    used = [i for i in range(len(header)) if any(cells[i] != "-" for cells in body)]
    header, body = [header[i] for i in used], [[cells[i] for i in used] for cells in body]
    lines = [
        render(header, body),
        "",
        "error: ||C - exact|| / ||exact||; spread: 10th to 90th pct.",
    ]
    return "\n".join(lines + [f"- {note}" for note in notes])


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _output(command: list[str]) -> str:
    """Return what a command prints, or "" if it is not there or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
