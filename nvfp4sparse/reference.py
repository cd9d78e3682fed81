# SPDX-License-Identifier: Apache-2.0
"""The product in float64, for comparisons."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .arrays import check_shape
from .pack import decompress
from .quantize import dequantize

EXACT_COLUMNS = 2048  # so many products of up to 46 bits fit the 53 bits of a float64
CARRY = 2.0**12  # splits a sum of multiples of 2**-20 into two exact parts


def reference_gemm(
    a_vals: ArrayLike,
    a_meta: ArrayLike,
    a_scale: ArrayLike,
    b_fp4: ArrayLike,
    b_scale: ArrayLike,
    *,
    alpha: float = 1.0,
) -> NDArray[np.float64]:
    """Return alpha * A @ B^T of sparse_gemm's operands, exact before alpha for k <= 2048.

    Args:
        a_vals: A's values, [m, k/4], as decompress() takes them.
        a_meta: A's positions, [m, k/4].
        a_scale: A's block scales, [m, k/16].
        b_fp4: B's values, [n, k/2], as dequantize() takes them.
        b_scale: B's block scales, [n, k/16].
        alpha: rounded to float32, as sparse_gemm does.

    Returns:
        float64 [m, n]. Sums over more than 2048 columns are rounded once, to float64, and so is
        the product with alpha. A NaN scale makes its row (of A) or column (of B) NaN.

    Raises:
        TypeError, ValueError: dtypes or shapes that do not belong together.
    """
    a = decompress(a_vals, a_meta, a_scale).astype(np.float64)
    b = dequantize(b_fp4, b_scale).astype(np.float64)
    for name, matrix in (("a_vals", a), ("b_fp4", b)):
        if matrix.ndim != 2:
            raise ValueError(f"reference_gemm: {name} must have two axes, got {matrix.ndim}")
    check_shape("reference_gemm", "B", b, "(n, k)", (len(b), a.shape[1]))
    high = np.zeros((len(a), len(b)))
    low = np.zeros((len(a), len(b)))
    for start in range(0, a.shape[1], EXACT_COLUMNS):
        columns = slice(start, start + EXACT_COLUMNS)
        part = a[:, columns] @ b[:, columns].T
        carry = np.rint(part / CARRY)
        high += carry
        low += part - carry * CARRY
    total = high * CARRY + low
    return total * float(np.float32(alpha)) if a.shape[1] else total
