# SPDX-License-Identifier: Apache-2.0
"""NVFP4: E2M1 values with one UE4M3 scale per 16 columns, and the way back.

value = e2m1 * scale * global_scale. The global scale is a multiplier and stays outside the
arrays: pass the product of A's and B's as sparse_gemm's alpha.
"""

from __future__ import annotations

from typing import NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike, NDArray

from .arrays import as_bytes, as_floats, blocks_of, check_finite, check_shape, slabs

BLOCK = 16  # columns that share one scale
E2M1_MAX = 6.0
E4M3_MAX = 448.0

_CODES = np.arange(16, dtype=np.uint8)
_BYTES = np.arange(256, dtype=np.uint8)

# The value of every E2M1 code; -0 counts as zero. [16]
E2M1_VALUES = _CODES.view(ml_dtypes.float4_e2m1fn).astype(np.float32) + np.float32(0)

# The two values of every packed byte, the low nibble first. [256, 2]
E2M1_PAIRS = np.stack([E2M1_VALUES[_BYTES & 15], E2M1_VALUES[_BYTES >> 4]], axis=-1)

# The value of every UE4M3 byte; bit 7 counts for nothing, and 0x7F and 0xFF are NaN. [256]
E4M3_VALUES = (_BYTES & 0x7F).view(ml_dtypes.float8_e4m3fn).astype(np.float32)


class NVFP4(NamedTuple):
    """A dense NVFP4 matrix, in the order in which sparse_gemm takes B.

    fp4: uint8 [..., k/2], even column in the low nibble; scale: uint8 [..., k/16].
    """

    fp4: NDArray[np.uint8]
    scale: NDArray[np.uint8]


def round_to(dtype: type, x: NDArray[np.float64], limit: float) -> NDArray[np.uint8]:
    """Round to the nearest number of a small float type, ties to even, as its bytes.

    x: float64 >= -limit, saturated at limit. ml_dtypes converts float64 by way of float32, which
    would round twice: so what float32 cannot hold goes to its neighbour with an odd last bit,
    which is no tie and on the right side of every tie.
    """
    x = np.clip(x, -limit, limit)
    single = x.astype(np.float32)
    even = (single.view(np.uint32) & 1) == 0
    outward = np.nextafter(single, np.where(x > single, np.float32(np.inf), np.float32(-np.inf)))
    single = np.where((single != x) & even, outward, single)
    return single.astype(dtype).view(np.uint8)


@np.errstate(over="ignore")  # what overflows saturates
def round_blocks(x: NDArray, global_scale: float) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Quantise blocks that share a scale.

    x: finite float [rows, blocks, values]. Returns (codes, scale): E2M1 codes, one per byte, of
    x's shape, and UE4M3 bytes [rows, blocks]. scale = RNE(amax / 6 / global_scale) up to 448,
    code = RNE(x / scale / global_scale) up to 6. Zero is always code 0; where a scale rounds to
    zero, so do all values.
    """
    wide = x.astype(np.float64)
    amax = np.abs(wide).max(axis=-1)
    scale = round_to(ml_dtypes.float8_e4m3fn, amax / E2M1_MAX / global_scale, E4M3_MAX)
    # A product of two short significands: exact for a float32 global scale.
    divisor = E4M3_VALUES[scale].astype(np.float64) * global_scale
    divisor[divisor == 0] = np.inf
    codes = round_to(ml_dtypes.float4_e2m1fn, wide / divisor[..., None], E2M1_MAX)
    codes[codes == 8] = 0
    return codes, scale


def pack_codes(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Pack E2M1 codes [..., c] two to a byte, the first in the low nibble: [..., c/2]."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def global_scale(x: ArrayLike) -> float:
    """Return amax(|x|) / (6 * 448): the multiplier that lets the largest value use all of NVFP4.

    Rounded to float32, the type of alpha, and 1.0 for an array of zeros or without elements.
    x: as for quantize(), but k is free. Raises TypeError and ValueError as quantize() does.
    """
    array = as_floats("global_scale", "x", x, 1)
    check_finite("global_scale", "x", array)
    amax = float(np.abs(array).max(initial=0))
    if amax == 0:
        return 1.0
    limits = np.finfo(np.float32)
    return float(np.float32(np.clip(amax / (E2M1_MAX * E4M3_MAX), limits.tiny, limits.max)))


def quantize(w: ArrayLike, *, global_scale: float = 1.0) -> NVFP4:
    """Quantise a dense matrix to NVFP4.

    Args:
        w: finite float16, bfloat16, float32 or float64 [..., k], k a multiple of 16.
        global_scale: second-level scale, see global_scale(); the result holds w / global_scale.

    Returns:
        NVFP4(fp4, scale), uint8 [..., k/2] and [..., k/16]. Per block of 16 columns
        scale = RNE_e4m3(amax / 6 / global_scale), at most 448, and
        value = RNE_e2m1(w / scale / global_scale), at most 6 in magnitude; zeros are +0.

    Raises:
        TypeError: w is not one of those floats.
        ValueError: k is not a multiple of 16, w holds NaN or infinity, or global_scale is not
            positive and finite.
    """
    dense, factor, leading = blocks_of("quantize", "w", w, global_scale, BLOCK)
    k = dense.shape[1]
    blocks = dense.reshape(len(dense), k // BLOCK, BLOCK)
    fp4 = np.empty((len(blocks), k // 2), dtype=np.uint8)
    scale = np.empty((len(blocks), k // BLOCK), dtype=np.uint8)
    for rows in slabs(len(blocks), k):
        codes, scale[rows] = round_blocks(blocks[rows], factor)
        fp4[rows] = pack_codes(codes.reshape(len(codes), k))
    return NVFP4(fp4.reshape(*leading, k // 2), scale.reshape(*leading, k // BLOCK))


def dequantize(fp4: ArrayLike, scale: ArrayLike) -> NDArray[np.float32]:
    """Return the dense matrix that (fp4, scale) stand for, exactly, without any global scale.

    Args:
        fp4: uint8 or int8 [..., k/2], even column in the low nibble.
        scale: uint8, int8 or float8_e4m3fn [..., k/16]; bit 7 is ignored, 0x7F makes its block NaN.

    Returns:
        float32 [..., k].

    Raises:
        TypeError: another dtype.
        ValueError: the shapes do not belong together.
    """
    packed = as_bytes("dequantize", "fp4", fp4)
    scales = as_bytes("dequantize", "scale", scale)
    expected = (*packed.shape[:-1], packed.shape[-1] // 8)
    if packed.shape[-1] % 8:
        raise ValueError(
            f"dequantize: the last axis of fp4 (k/2) must be a multiple of 8, got {packed.shape}"
        )
    check_shape("dequantize", "scale", scales, "(..., k/16)", expected)
    dense = E2M1_PAIRS[packed].reshape(*expected, BLOCK)
    dense *= E4M3_VALUES[scales][..., None]
    return dense.reshape(*expected[:-1], expected[-1] * BLOCK)
