# SPDX-License-Identifier: Apache-2.0
"""Problems that the demo and the bench run, and the judgement of a result.

Operands come from Gaussian data through the package's own helpers, never from zeros: a GPU
draws less power on zeros and runs faster than it will for anyone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

import nvfp4sparse

MAX_ROWS = 4096  # of distinct random rows: packing more in NumPy takes minutes
UNIT_ROUNDOFF_STEP = 2.0**-23  # fp32 accumulator, truncated once per 32 columns


@dataclass(frozen=True)
class Problem:
    """C[m, n] = A[m, k] @ B[n, k]^T; `column_major`: C's stride along m is 1."""

    m: int
    n: int
    k: int
    column_major: bool = False

    @property
    def operand_bytes(self) -> int:
        """Bytes of the five operands, what any kernel must read at least once."""
        a = 2 * (self.m * self.k // 4) + self.m * self.k // 16
        return a + self.n * self.k // 2 + self.n * self.k // 16

    @property
    def out_bytes(self) -> int:
        """Bytes of C in bf16."""
        return 2 * self.m * self.n

    def __str__(self) -> str:
        layout = ", C column-major" if self.column_major else ""
        return f"m={self.m} n={self.n} k={self.k}{layout}"


@dataclass(frozen=True)
class Verdict:
    """How far a result is from the exact one."""

    ulps: float  # worst |C - exact| in bf16 ulps of the exact value
    of_bound: float  # worst |C - exact| as a part of the bound below; <= 1 passes
    relative: float  # ||C - exact|| / ||exact||, Frobenius

    @property
    def within_bound(self) -> bool:
        """Whether the result is as right as the format allows."""
        return self.of_bound <= 1.0


def gaussian(rows: int, k: int, seed: int) -> np.ndarray:
    """Return float32 [rows, k], standard normal."""
    return np.random.default_rng(seed).standard_normal((rows, k), dtype=np.float32)


@lru_cache(maxsize=2)
def sparse_operand(m: int, k: int, seed: int) -> tuple[np.ndarray, ...]:
    """Return (a_vals, a_meta, a_scale), uint8, of a pruned, quantised Gaussian [m, k]."""
    return _repeat(nvfp4sparse.compress(gaussian(min(m, MAX_ROWS), k, seed)), m)


@lru_cache(maxsize=2)
def dense_operand(n: int, k: int, seed: int) -> tuple[np.ndarray, ...]:
    """Return (b_fp4, b_scale), uint8, of a quantised Gaussian [n, k]."""
    return _repeat(nvfp4sparse.quantize(gaussian(min(n, MAX_ROWS), k, seed)), n)


def make_operands(problem: Problem, seed: int) -> tuple[np.ndarray, ...]:
    """Return the five operands of `sparse_gemm`, uint8; A and B from different seeds."""
    a = sparse_operand(problem.m, problem.k, 2 * seed)
    return a + dense_operand(problem.n, problem.k, 2 * seed + 1)


def dense_values(operands: tuple[np.ndarray, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return A [m, k] and B [n, k] that the operands stand for; float32, exact."""
    return nvfp4sparse.decompress(*operands[:3]), nvfp4sparse.dequantize(*operands[3:])


def exact_product(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return A @ B^T, exact up to k = 2048, and |A| @ |B|^T, its scale; both float64."""
    a64, b64 = a.astype(np.float64), b.astype(np.float64)
    return a64 @ b64.T, np.abs(a64) @ np.abs(b64).T


def bf16_ulp(x: np.ndarray) -> np.ndarray:
    """Return the spacing of bfloat16 (8 significant bits, exponents from -126) at |x|; float64."""
    _, exponent = np.frexp(np.maximum(np.abs(x), 2.0**-126))
    return np.ldexp(1.0, exponent - 8)


def judge(c: np.ndarray, exact: np.ndarray, magnitude: np.ndarray, k: int) -> Verdict:
    """Compare a bf16 result (as float32 [m, n]) with `exact_product`.

    The bound per element is half an ulp of the output, for its rounding, plus
    2^-23 * (k/32 + 8) * sum |a b| for an fp32 accumulator that is truncated once per 32 columns.
    """
    error = np.abs(c - exact)
    error[np.isnan(error)] = np.inf
    ulp = bf16_ulp(exact)
    bound = 0.5 * ulp + UNIT_ROUNDOFF_STEP * (k / 32 + 8) * magnitude
    norm = float(np.linalg.norm(exact))
    return Verdict(
        ulps=float(np.max(error / ulp, initial=0.0)),
        of_bound=float(np.max(error / bound, initial=0.0)),
        relative=float(np.linalg.norm(error)) / norm if norm else float(np.any(error)),
    )


def _repeat(arrays: Sequence[np.ndarray], rows: int) -> tuple[np.ndarray, ...]:
    """Return the arrays as uint8 with `rows` rows, the given ones over and over."""
    order = np.arange(rows) % max(1, arrays[0].shape[0])
    return tuple(np.ascontiguousarray(array).view(np.uint8)[order] for array in arrays)
