# SPDX-License-Identifier: Apache-2.0
"""Figures of a bench CSV. Needs matplotlib (the `bench` extra)."""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LINE = {"ours": "-", "peer": "--", "floor": ":"}
CHOSEN = "chosen without kernel="  # the note of the row that a call would run
WORDS = ("kernel", "role", "layout", "status", "note", "timer", "framework", "device")
WORDS += ("driver", "version", "commit", "date")


def read_csv(path: str | Path) -> list[dict[str, Any]]:
    """Return the rows that ran, figures as numbers."""
    with Path(path).open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["status"] == "ok"]
    return [
        {name: text if name in WORDS else _number(text) for name, text in row.items()}
        for row in rows
    ]


def slices(rows: Sequence[dict[str, Any]]) -> list[tuple[str, str, list[dict[str, Any]]]]:
    """Split rows into what one figure shows: (title, name of the free size, rows).

    Row-major problems of one n and k run against m; column-major ones, whose sparse operand
    holds weights, of one m and k against n. A slice with fewer than two sizes is left out.
    """
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        if row["layout"] == "column":
            key = (f"sparse weights, m = {row['m']}, k = {row['k']}", "n")
        else:
            key = (f"n = {row['n']}, k = {row['k']}", "m")
        groups.setdefault(key, []).append(row)
    return [
        (title, free, group)
        for (title, free), group in groups.items()
        if len({row[free] for row in group}) > 1
    ]


def plot(rows: Sequence[dict[str, Any]], free: str, column: str, axis: Any, label: str) -> None:
    """Draw `column` against the size named `free`, one line per kernel, on a matplotlib axis.

    A broad one below them follows the kernels that calls choose.
    """
    from matplotlib import colormaps

    chosen = [row for row in rows if row["note"] == CHOSEN and row[column] != ""]
    if len({row["kernel"] for row in chosen}) > 1:
        axis.plot(*_points(chosen, free, column), color="0.8", linewidth=6, label="ours, as chosen")
    kernels = dict.fromkeys((row["kernel"], row["role"]) for row in rows)
    axis.set_prop_cycle(color=colormaps["tab20"].colors)  # there are more kernels than ten
    for kernel, role in kernels:
        mine = [row for row in rows if row["kernel"] == kernel and row[column] != ""]
        if mine:
            axis.plot(*_points(mine, free, column), LINE[role], marker=".", label=kernel)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.xaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_major_formatter("{x:g}")
    axis.set(xlabel=free, ylabel=label)
    axis.grid(True, alpha=0.3)


def figure_of(title: str, free: str, rows: Sequence[dict[str, Any]]) -> Any:
    """Return the figure of one slice: time, and ratio to the floor, against the free size."""
    from matplotlib.figure import Figure

    form = "cold" if any(row["cold_us"] != "" for row in rows) else "warm"
    ratio = any(row[f"{form}_to_floor"] != "" for row in rows)
    figure = Figure(figsize=(13 if ratio else 8, 4.5), layout="constrained")
    axes = figure.subplots(1, 2 if ratio else 1, squeeze=False)[0]
    plot(rows, free, f"{form}_us", axes[0], f"time of a call, {form}, us")
    if ratio:
        plot(rows, free, f"{form}_to_floor", axes[1], f"time / read-once floor, {form}")
    lines, names = axes[0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside right upper", fontsize="small")
    figure.suptitle(f"{title}: {rows[0]['device']}")
    return figure


def save_figures(path: Path) -> list[Path]:
    """Write an SVG and a PNG beside a bench CSV for each of its slices; return their paths."""
    written = []
    for number, (title, free, rows) in enumerate(slices(read_csv(path)), start=1):
        figure = figure_of(title, free, rows)
        for suffix in (".svg", ".png"):
            written.append(path.with_name(f"{path.stem}_{number}{suffix}"))
            figure.savefig(written[-1], dpi=150)
    return written


def save_if_possible(path: Path) -> None:
    """Do as `save_figures` and print what was written, or that matplotlib is missing."""
    if not importlib.util.find_spec("matplotlib"):
        print("matplotlib is not installed: no plots (pip install 'nvfp4sparse[bench]')")
        return
    for figure in save_figures(path):
        print(f"wrote {figure}")


def _points(rows: Sequence[dict[str, Any]], free: str, column: str) -> tuple[list[Any], list[Any]]:
    rows = sorted(rows, key=lambda row: row[free])
    return [row[free] for row in rows], [row[column] for row in rows]


def _number(text: str) -> Any:
    return text and (int(text) if text.isdigit() else float(text))
