# SPDX-License-Identifier: Apache-2.0
"""`python -m nvfp4sparse info`: what a report of a problem should hold."""

from __future__ import annotations

import platform
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

import nvfp4sparse

from .table import render

HEADER = ("name", "kind", "built", "cc", "m", "n", "k", "needs", "when")
UNBOUNDED = 10**8


def run(options: Namespace) -> int:
    """Print version, build, driver, GPUs and the kernel table; always 0."""
    print(f"nvfp4sparse {nvfp4sparse.__version__}")
    print(
        f"Python {platform.python_version()}, NumPy {np.__version__},"
        f" ml_dtypes {ml_dtypes.__version__}, {platform.platform()}"
    )
    _print_section("build", nvfp4sparse.build_info())
    _print_section("CUDA", nvfp4sparse.cuda_info())
    print("\nkernels; a call takes the first that fits")
    print(render(HEADER, [_cells(kernel) for kernel in nvfp4sparse.kernels()]))
    return 0


def _cells(kernel: dict[str, Any]) -> list[str]:
    """Return a row of the kernel table as shown."""
    on_gpu = kernel["kind"] == "cuda"
    cc = _range(kernel["cc_min"], kernel["cc_max"], lambda cc: f"{cc // 10}.{cc % 10}")
    return [
        kernel["name"],
        kernel["kind"],
        "yes" if kernel["built"] else "no",
        cc if on_gpu else "-",
        _range(kernel["m_min"], kernel["m_max"]),
        _range(kernel["n_min"], kernel["n_max"]),
        _k_range(kernel),
        _text(kernel["needs"]),
        kernel["when"],
    ]


def _range(low: int, high: int, text: Callable[[int], str] = str) -> str:
    """Return "low to high"; a bound beyond all problems and GPUs counts as none."""
    if high >= UNBOUNDED:
        return "any" if low <= 0 else f"{text(low)} up"
    return text(low) if low == high else f"{text(low)} to {text(high)}"


def _k_range(kernel: dict[str, Any]) -> str:
    """Return which k a row takes, as "multiples of 64 up to 2048"."""
    bound = "" if kernel["k_max"] >= UNBOUNDED else f" up to {kernel['k_max']}"
    return f"multiples of {kernel['k_multiple']}{bound}"


def _print_section(title: str, facts: dict[str, Any]) -> None:
    print(f"\n{title}")
    for name, value in facts.items():
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], dict):
            for number, item in enumerate(value):
                print(f"  {name}[{number}]: {_text(item)}")
        else:
            print(f"  {name}: {_text(value)}")


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_text(item)}" for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_text, value)) or "none"
    return "-" if value is None else str(value)
