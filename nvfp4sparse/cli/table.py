# SPDX-License-Identifier: Apache-2.0
"""Plain-text tables and a progress display; neither needs anything to be installed."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def render(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return an aligned table; columns whose every cell starts like a number stand right."""
    cells = [[str(cell) for cell in row] for row in rows]
    columns = list(zip(header, *cells, strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [all(cell[:1] in "0123456789-." for cell in column[1:]) for column in columns]

    def line(row: Sequence[str]) -> str:
        parts = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        )
        return "  ".join(parts).rstrip()

    return "\n".join([line(header), "  ".join("-" * width for width in widths), *map(line, cells)])


def progress(items: Sequence[Item], what: str) -> Iterator[Item]:
    """Yield the items behind a bar of rich or tqdm; as plain lines off a terminal."""
    if sys.stderr.isatty():
        if importlib.util.find_spec("rich"):
            from rich.console import Console
            from rich.progress import track

            yield from track(items, description=what, console=Console(stderr=True))
            return
        if importlib.util.find_spec("tqdm"):
            from tqdm import tqdm

            yield from tqdm(items, desc=what)
            return
    for done, item in enumerate(items, start=1):
        print(f"{what} {done}/{len(items)}: {item}", file=sys.stderr, flush=True)
        yield item
