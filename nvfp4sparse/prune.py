# SPDX-License-Identifier: Apache-2.0
"""2:4 pruning by magnitude."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .arrays import as_floats

GROUP = 4  # columns of which two are kept


def kept_of_four(x: NDArray) -> NDArray[np.bool_]:
    """Say which two of every four consecutive values are largest in magnitude.

    x: float [..., k], k a multiple of 4, without NaN. Returns bool of the same shape, true twice
    in every group; of equal magnitudes the lower indices win. Zeros of either sign are equal.
    """
    magnitude = np.abs(x).reshape(*x.shape[:-1], x.shape[-1] // GROUP, GROUP)
    rank = np.zeros(magnitude.shape, dtype=np.int8)  # how many of the group precede this one
    for low in range(GROUP):
        for high in range(low + 1, GROUP):
            low_wins = magnitude[..., low] >= magnitude[..., high]
            rank[..., high] += low_wins
            rank[..., low] += ~low_wins
    return (rank < 2).reshape(x.shape)


def prune(x: ArrayLike) -> NDArray:
    """Keep the two largest of every four consecutive values, and set the others to zero.

    Args:
        x: float16, bfloat16, float32 or float64 [..., k], k a multiple of 4. Infinities count as
            the largest values.

    Returns:
        A new array of x's dtype and shape. Of equal magnitudes the lower indices are kept.

    Raises:
        TypeError: x is not one of those floats.
        ValueError: k is not a multiple of 4, or x holds NaN.
    """
    array = as_floats("prune", "x", x, GROUP)
    if np.isnan(array).any():
        raise ValueError("prune: x must not hold NaN, as it has no magnitude to compare")
    return np.where(kept_of_four(array), array, array.dtype.type(0))
