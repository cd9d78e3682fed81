# SPDX-License-Identifier: Apache-2.0
"""The tests' oracle: the operation typed out from its specification, with NumPy alone.

It imports nothing from the package, so that a mistake there cannot be made twice. Products are
integer multiples of 2**-20; float64 sums of up to 2048 columns are exact, and longer ones are
summed in two parts, so every result here is exact or rounded once, to float64.
"""

import functools
from fractions import Fraction

import numpy as np

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=np.float64)

# One row per exponent field. 0x7F, the last entry, is NaN; bit 7 of a byte is ignored.
E4M3 = np.array(
    [
        [i / 512 for i in range(8)],
        *[[2.0**exponent * (1 + i / 8) for i in range(8)] for exponent in range(-6, 9)],
    ],
    dtype=np.float64,
).reshape(128)
E4M3[0x7F] = np.nan

# Bits of significand (the hidden one included), exponent of the smallest normal, largest number.
FORMATS = {
    "bfloat16": (8, -126, 2.0**127 * (2 - 2.0**-7)),
    "float16": (11, -14, 65504.0),
    "float32": (24, -126, 2.0**127 * (2 - 2.0**-23)),
}

EXACT_COLUMNS = 2048
CARRY = 2.0**12  # in values: 2**32 units of 2**-20


def remembered(function):
    """Keep the last result, by the bytes of the operands: many kernels are judged by the same."""
    last = {}

    @functools.wraps(function)
    def call(*operands):
        key = tuple((operand.shape, hash(operand.tobytes())) for operand in operands)
        if key not in last:
            result = function(*operands)
            last.clear()
            last[key] = result
        return last[key]

    return call


def scale_values(scale):
    """The values of UE4M3 bytes, one for each of the 16 columns they serve."""
    return np.repeat(E4M3[np.asarray(scale) & 0x7F], 16, axis=-1)


def dense_b(b_fp4, b_scale):
    """B as float64 [n, k]."""
    codes = np.stack([b_fp4 & 15, b_fp4 >> 4], axis=-1).reshape(len(b_fp4), -1)
    return E2M1[codes] * scale_values(b_scale)


def dense_a(a_vals, a_meta, a_scale, *, magnitudes=False):
    """A as float64 [m, k]; with magnitudes=True the sum of |kept values| at each column."""
    m, groups = a_vals.shape
    table = np.abs(E2M1) if magnitudes else E2M1
    dense = np.zeros((m, groups, 4))
    row, group = np.indices((m, groups))
    np.add.at(dense, (row, group, a_meta & 3), table[a_vals & 15])
    np.add.at(dense, (row, group, (a_meta >> 2) & 3), table[a_vals >> 4])
    return dense.reshape(m, groups * 4) * scale_values(a_scale)


@remembered
def exact_parts(a_vals, a_meta, a_scale, b_fp4, b_scale):
    """A @ B^T as two float64 [m, n], (high, low): the exact result is high * CARRY + low."""
    a = dense_a(a_vals, a_meta, a_scale)
    b = dense_b(b_fp4, b_scale)
    high = np.zeros((len(a), len(b)))
    low = np.zeros((len(a), len(b)))
    for start in range(0, a.shape[1], EXACT_COLUMNS):
        columns = slice(start, start + EXACT_COLUMNS)
        part = a[:, columns] @ b[:, columns].T
        carry = np.rint(part / CARRY)
        high += carry
        low += part - carry * CARRY
    return high, low


def exact_gemm(a_vals, a_meta, a_scale, b_fp4, b_scale, alpha=1.0):
    """C as float64 [m, n]: exact for alpha = 1 and k <= 2048, else rounded to float64."""
    high, low = exact_parts(a_vals, a_meta, a_scale, b_fp4, b_scale)
    if a_vals.shape[1] == 0:
        return np.zeros_like(low)
    return (high * CARRY + low) * float(np.float32(alpha))


def round_to(dtype, x):
    """float64 to the nearest number of an output type, ties to even, as float64; or infinity."""
    precision, min_exponent, largest = FORMATS[dtype]
    x = np.asarray(x, dtype=np.float64)
    exponent = np.maximum(np.frexp(x)[1] - 1, min_exponent) - (precision - 1)
    rounded = np.ldexp(np.rint(np.ldexp(x, -exponent)), exponent)
    return np.where(np.abs(rounded) > largest, np.copysign(np.inf, x), rounded)


def bfloat16_bits(x):
    """float64 to the bits of the nearest bfloat16, as uint16; NaN as 0x7FC0."""
    bits = (round_to("bfloat16", x).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), bits)


def round_fraction(dtype, value):
    """An exact Fraction to the nearest number of an output type, ties to even, as a float."""
    precision, min_exponent, largest = FORMATS[dtype]
    if value == 0:
        return 0.0
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    unit = Fraction(2) ** (max(exponent, min_exponent) - (precision - 1))
    rounded = round(value / unit) * unit  # round() of a Fraction goes to even
    if abs(rounded) > largest:
        return float("inf") if value > 0 else -float("inf")
    return float(rounded)


def correctly_rounded(operands, alpha=1.0, dtype="bfloat16"):
    """alpha * exact, rounded once, as float64 [m, n]. Goes through fractions: small shapes."""
    high, low = exact_parts(*operands)
    factor = Fraction(float(np.float32(alpha)))
    result = np.full(low.shape, np.nan)
    for index in zip(*np.nonzero(~np.isnan(low)), strict=True):
        total = Fraction(high[index]) * int(CARRY) + Fraction(low[index])
        result[index] = round_fraction(dtype, factor * total)
    return result


@remembered
def sum_of_magnitudes(a_vals, a_meta, a_scale, b_fp4, b_scale):
    """The sum of |a * b| along k, as float64 [m, n]."""
    return dense_a(a_vals, a_meta, a_scale, magnitudes=True) @ np.abs(dense_b(b_fp4, b_scale)).T


def error_bound(operands, alpha=1.0, dtype="bfloat16"):
    """The largest |C - exact| the specification allows, as float64 [m, n].

    Half an ulp of the output type at the exact value, and what float32 accumulation may lose:
    2**-23 * (k / 32 + 8) * sum |a * b|.
    """
    precision, min_exponent, _ = FORMATS[dtype]
    exact = exact_gemm(*operands, alpha=alpha)
    exponent = np.maximum(np.frexp(exact)[1] - 1, min_exponent)
    half_ulp = np.ldexp(0.5, exponent - (precision - 1))
    accumulated = abs(float(np.float32(alpha))) * sum_of_magnitudes(*operands)
    return half_ulp + 2.0**-23 * (4 * operands[0].shape[1] / 32 + 8) * accumulated


def assert_within_bound(got, operands, alpha=1.0, *, dtype="bfloat16"):
    """Checks every entry of got, [m, n] of any float type that holds the values of `dtype`."""
    got = np.asarray(got).astype(np.float64)
    exact = exact_gemm(*operands, alpha=alpha)
    assert got.shape == exact.shape, f"shape {got.shape}, expected {exact.shape}"
    bound = error_bound(operands, alpha, dtype)
    precision, min_exponent, largest = FORMATS[dtype]
    # Infinity stands for the first number beyond the largest: what rounds to it may be infinite.
    beyond = largest + 2.0 ** (np.frexp(largest)[1] - precision)
    with np.errstate(invalid="ignore"):
        error = np.abs(np.clip(got, -beyond, beyond) - np.clip(exact, -beyond, beyond))
    bad = np.where(np.isnan(exact) | np.isnan(got), np.isnan(exact) != np.isnan(got), error > bound)
    if bad.any():
        ulp = np.ldexp(1.0, np.maximum(np.frexp(exact)[1] - 1, min_exponent) - (precision - 1))
        excess = np.where(bad, np.nan_to_num(error / bound, nan=np.inf), -1.0)
        i, j = np.unravel_index(np.argmax(excess), bad.shape)
        raise AssertionError(
            f"{bad.sum()} of {bad.size} entries beyond the bound; worst C[{i}, {j}]: "
            f"got {got[i, j]!r}, exact {exact[i, j]!r}, {error[i, j] / ulp[i, j]:.3g} {dtype} "
            f"ulps off, bound {bound[i, j] / ulp[i, j]:.3g}; rows with errors: "
            f"{np.flatnonzero(bad.any(axis=1))[:8]}, columns: {np.flatnonzero(bad.any(axis=0))[:8]}"
        )
