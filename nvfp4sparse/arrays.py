# SPDX-License-Identifier: Apache-2.0
"""The NumPy helpers' arguments: what they take, and the errors for what they do not."""

from __future__ import annotations

import math
from collections.abc import Iterator

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike, NDArray

FLOATS = ("float16", "bfloat16", "float32", "float64")
SLAB = 1 << 18  # elements worked on at a time, so that float64 intermediates stay in the cache


def as_floats(function: str, name: str, x: ArrayLike, multiple: int) -> NDArray:
    """Return x as an array whose last axis is a multiple of `multiple`.

    Raises TypeError for a dtype that is not one of FLOATS, ValueError for the shape.
    """
    array = np.asarray(x)
    if array.dtype.name not in FLOATS:
        raise TypeError(
            f"{function}: {name} must be a NumPy array of {', '.join(FLOATS)}, got dtype "
            f"{array.dtype}; convert it first, e.g. {name}.astype(numpy.float32)"
        )
    if array.ndim == 0:
        raise ValueError(f"{function}: {name} must have at least one axis, got a single number")
    if array.shape[-1] % multiple:
        raise ValueError(
            f"{function}: the last axis of {name} (k) must be a multiple of {multiple}, got shape "
            f"{array.shape}; pad it with zeros"
        )
    return array


def as_bytes(function: str, name: str, x: ArrayLike) -> NDArray[np.uint8]:
    """Return x as uint8: the same bytes for uint8, int8 and float8_e4m3fn, else TypeError."""
    array = np.asarray(x)
    if array.dtype not in (np.uint8, np.int8, ml_dtypes.float8_e4m3fn):
        raise TypeError(
            f"{function}: {name} must be packed bytes, a NumPy array of uint8 or int8 (scales also "
            f"float8_e4m3fn), got dtype {array.dtype}"
        )
    if array.ndim == 0:
        raise ValueError(f"{function}: {name} must have at least one axis, got a single number")
    return array.view(np.uint8)


def check_shape(
    function: str, name: str, x: NDArray, meaning: str, expected: tuple[int, ...]
) -> None:
    """Raise ValueError unless x has the expected shape, spelt in words by `meaning`."""
    if x.shape != expected:
        raise ValueError(
            f"{function}: {name} must have shape {meaning} = {expected}, got {x.shape}"
        )


def first_true(bad: NDArray[np.bool_]) -> tuple[int, ...]:
    """Return the index of the first true element; there must be one."""
    return tuple(int(i) for i in np.unravel_index(np.argmax(bad), bad.shape))


def check_finite(function: str, name: str, x: NDArray) -> None:
    """Raise ValueError, with the first place, if x holds NaN or infinity."""
    bad = ~np.isfinite(x)
    if bad.any():
        index = first_true(bad)
        raise ValueError(
            f"{function}: {name} must be finite, got {x[index]} at {list(index)}; NVFP4 values "
            "hold neither NaN nor infinity"
        )


def blocks_of(
    function: str, name: str, x: ArrayLike, global_scale: float, multiple: int
) -> tuple[NDArray, float, list[int]]:
    """Check what is to be quantised; return it as [rows, k], the multiplier and the leading axes.

    Raises as as_floats(), check_finite() and check_multiplier() do.
    """
    array = as_floats(function, name, x, multiple)
    check_finite(function, name, array)
    factor = check_multiplier(function, global_scale)
    *leading, k = array.shape
    return array.reshape(math.prod(leading), k), factor, leading


def check_multiplier(function: str, value: float) -> float:
    """Return a global scale as a float, or raise ValueError unless positive and finite."""
    number = float(value)
    if not (np.isfinite(number) and number > 0):
        raise ValueError(
            f"{function}: global_scale must be positive and finite, got {value}; "
            "global_scale(x) gives one that fits x"
        )
    return number


def slabs(rows: int, columns: int) -> Iterator[slice]:
    """Yield slices over the rows of a matrix, of some SLAB elements each."""
    step = max(1, SLAB // max(columns, 1))
    for start in range(0, rows, step):
        yield slice(start, start + step)
