# SPDX-License-Identifier: Apache-2.0
"""What `bench --host` found: one flat row per call, as a table, as CSV, and held to its targets."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from .table import render

LAUNCHES = ("cuLaunchKernelEx alone", "cuLaunchKernelEx in a call")
EACH_ITS_OWN = "chosen for each m"  # the kernel of calls of many sizes
HEADER = ("framework", "call", "median us", "p10", "p90", "max", "calls")


@dataclass
class HostRow:
    """One line of host.csv; times in microseconds of one call, empty where there is none."""

    framework: str
    call: str
    role: str  # ours, peer, or part (of a call)
    status: str = "ok"
    median_us: float | None = None
    p10_us: float | None = None
    p90_us: float | None = None
    max_us: float | None = None
    calls: int | None = None
    m: int = 0
    n: int = 0
    k: int = 0
    kernel: str = ""
    timer: str = ""
    device: str = ""
    driver: str = ""
    commit: str = ""
    date: str = ""

    def add(self, nanoseconds: Sequence[int]) -> HostRow:
        """Fill in the figures; return self."""
        deciles = statistics.quantiles(nanoseconds, n=10, method="inclusive")
        self.median_us = round(statistics.median(nanoseconds) * 1e-3, 3)
        self.p10_us, self.p90_us = round(deciles[0] * 1e-3, 3), round(deciles[-1] * 1e-3, 3)
        self.max_us = round(max(nanoseconds) * 1e-3, 3)
        self.calls = len(nanoseconds)
        return self


def targets(rows: Sequence[HostRow]) -> Iterator[tuple[str, float, float]]:
    """Yield the bounds that calls on a GPU are held to: (what, microseconds found, at most)."""
    found = {(row.framework, row.call): row for row in rows if row.median_us is not None}

    def median(framework: str, call: str) -> float | None:
        row = found.get((framework, call))
        return row and row.median_us

    ours, timer = median("torch", "sparse_gemm(out)"), median("torch", "empty call")
    bare = [(call, median("torch", call)) for call in LAUNCHES]
    mm_out, mm = median("torch", "torch.mm(out=)"), median("torch", "torch.mm")
    fresh = median("torch", "sparse_gemm")
    if ours and timer and mm_out and mm and fresh:
        for call, launch in bare:
            if launch:
                yield f"torch, out given: less timer and {call}", ours - timer - launch, 1.2
        yield "torch, out given: half of torch.mm(out=)", ours, 0.5 * mm_out
        yield "torch, new result: torch.mm", fresh, mm
    for framework, call, bound in (("cupy", "sparse_gemm(out)", 9.0), ("jax", "sparse_gemm", 25.0)):
        value = median(framework, call)
        if value:
            yield f"{framework}, {call}", value, bound
    for row in rows:
        if row.kernel == EACH_ITS_OWN and row.max_us is not None:
            yield f"{row.framework}, {row.call}: the slowest", row.max_us, 1000.0


def read_csv(path: Path) -> list[HostRow]:
    """Read what report.write_csv() wrote; figures that are not there are None again."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    kinds = {field.name: field.type for field in fields(HostRow)}

    def value(name: str, text: str) -> str | float | int | None:
        if kinds[name] == "str":
            return text
        if text == "":
            return None
        return float(text) if kinds[name].startswith("float") else int(text)

    return [HostRow(**{name: value(name, text) for name, text in row.items()}) for row in rows]


def summary(rows: Sequence[HostRow]) -> str:
    """Return a table of the rows, and why the missing ones are missing."""
    lines = [render(HEADER, [_cells(row) for row in rows if row.status == "ok"])]
    return "\n".join(lines + [f"- {r.framework}: {r.status}" for r in rows if r.status != "ok"])


def _cells(row: HostRow) -> list[object]:
    figures = (row.median_us, row.p10_us, row.p90_us, row.max_us)
    return [row.framework, row.call, *(f"{value:.2f}" for value in figures), row.calls]
