# SPDX-License-Identifier: Apache-2.0
"""2:4 sparse NVFP4: compress, decompress, and keep positions in order."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .arrays import as_bytes, blocks_of, check_shape, first_true, slabs
from .groups import POSITIONS, VALUES, canonical_groups, group_columns, group_index
from .prune import GROUP, kept_of_four
from .quantize import BLOCK, E4M3_VALUES, pack_codes, round_blocks


class SparseNVFP4(NamedTuple):
    """A 2:4 sparse NVFP4 matrix, in the order in which sparse_gemm takes A.

    vals: uint8 [..., k/4], first kept value in the low nibble; meta: uint8 [..., k/4], position of
    the first in bits 0-1, of the second in bits 2-3; scale: uint8 [..., k/16].
    """

    vals: NDArray[np.uint8]
    meta: NDArray[np.uint8]
    scale: NDArray[np.uint8]


def _first(bad: NDArray[np.bool_]) -> tuple[str, tuple[int, ...]]:
    """Where the first true element of bad [..., k/4] stands, in words and as an index."""
    index = first_true(bad)
    row = index[0] if len(index) == 2 else list(index[:-1])
    return f"row {row}, group {index[-1]}", index


def _sparse_bytes(function: str, vals: ArrayLike, meta: ArrayLike, scale: ArrayLike) -> SparseNVFP4:
    """Check dtypes and shapes; return uint8 arrays."""
    packed = SparseNVFP4(
        as_bytes(function, "vals", vals),
        as_bytes(function, "meta", meta),
        as_bytes(function, "scale", scale),
    )
    *leading, groups = packed.vals.shape
    if groups % 4:
        raise ValueError(
            f"{function}: the last axis of vals (k/4) must be a multiple of 4, got "
            f"{packed.vals.shape}"
        )
    check_shape(function, "meta", packed.meta, "(..., k/4)", packed.vals.shape)
    check_shape(function, "scale", packed.scale, "(..., k/16)", (*leading, groups // 4))
    return packed


def compress(x: ArrayLike, *, global_scale: float = 1.0) -> SparseNVFP4:
    """Prune to 2:4, quantise and pack. A matrix that is 2:4 already keeps all its nonzeros.

    Args:
        x: finite float16, bfloat16, float32 or float64 [..., k], k a multiple of 16.
        global_scale: second-level scale, see global_scale(); the result holds x / global_scale.

    Returns:
        SparseNVFP4(vals, meta, scale), uint8 [..., k/4], [..., k/4] and [..., k/16]. Two of every
        four columns are kept as by prune(), also where they are zero, and positions ascend. The
        scale of 16 columns is that of quantize() over the kept values.

    Raises:
        TypeError: x is not one of those floats.
        ValueError: k is not a multiple of 16, x holds NaN or infinity, or global_scale is not
            positive and finite.
    """
    dense, factor, leading = blocks_of("compress", "x", x, global_scale, BLOCK)
    k = dense.shape[1]
    vals = np.empty((len(dense), k // GROUP), dtype=np.uint8)
    meta = np.empty((len(dense), k // GROUP), dtype=np.uint8)
    scale = np.empty((len(dense), k // BLOCK), dtype=np.uint8)
    for rows in slabs(len(dense), k):
        kept = kept_of_four(dense[rows])
        values = dense[rows][kept].reshape(len(kept), k // BLOCK, BLOCK // 2)
        codes, scale[rows] = round_blocks(values, factor)
        vals[rows] = pack_codes(codes.reshape(len(kept), k // 2))
        groups = kept.reshape(len(kept), k // GROUP, GROUP)
        first = groups.argmax(axis=-1)
        second = GROUP - 1 - groups[..., ::-1].argmax(axis=-1)
        meta[rows] = first | second << 2
    return SparseNVFP4(
        vals.reshape(*leading, k // GROUP),
        meta.reshape(*leading, k // GROUP),
        scale.reshape(*leading, k // BLOCK),
    )


def decompress(vals: ArrayLike, meta: ArrayLike, scale: ArrayLike) -> NDArray[np.float32]:
    """Return the dense matrix that the three stand for, exactly, without any global scale.

    Args:
        vals: uint8 or int8 [..., k/4], first kept value in the low nibble.
        meta: uint8 or int8 [..., k/4], any bytes: positions in any order, equal ones add up.
        scale: uint8, int8 or float8_e4m3fn [..., k/16]; bit 7 is ignored, 0x7F makes its block NaN.

    Returns:
        float32 [..., k].

    Raises:
        TypeError: another dtype.
        ValueError: the shapes do not belong together.
    """
    packed = _sparse_bytes("decompress", vals, meta, scale)
    *leading, blocks = packed.scale.shape
    dense = group_columns()[group_index(packed.vals, packed.meta)]
    dense = dense.reshape(*leading, blocks, BLOCK)
    dense *= E4M3_VALUES[packed.scale][..., None]
    return dense.reshape(*leading, blocks * BLOCK)


def validate(vals: ArrayLike, meta: ArrayLike, scale: ArrayLike) -> None:
    """Check that a sparse matrix is well-formed, as compress() makes it.

    sparse_gemm computes with any bytes; other kernels and formats may not. Arguments as for
    decompress(). Upper metadata bits are free, and so is the order of positions in a group of
    zeros.

    Raises:
        TypeError, ValueError: as decompress() does.
        ValueError: names the first row and group with nonzero values at descending or equal
            positions, with a NaN scale, or with a scale whose bit 7 is set.
    """
    packed = _sparse_bytes("validate", vals, meta, scale)
    index = group_index(packed.vals, packed.meta)
    disordered = (POSITIONS[0] >= POSITIONS[1]) & (VALUES != 0).any(axis=0)
    bad_order = disordered[index]
    bad_scale = np.repeat(packed.scale >= 0x7F, BLOCK // GROUP, axis=-1)
    bad = bad_order | bad_scale
    if not bad.any():
        return
    where, at = _first(bad)
    if bad_order[at]:
        first, second = POSITIONS[:, index[at]].tolist()
        relation = "equal" if first == second else "descending"
        raise ValueError(
            f"validate: {where}: {relation} positions {first}, {second} with nonzero values; "
            "canonicalize(vals, meta) puts them in order"
        )
    byte = int(packed.scale[*at[:-1], at[-1] * GROUP // BLOCK])
    what = "is NaN" if byte & 0x7F == 0x7F else "has its sign bit set"
    raise ValueError(f"validate: {where}: scale 0x{byte:02X} {what}")


def canonicalize(vals: ArrayLike, meta: ArrayLike) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Rewrite a sparse matrix with ascending, distinct positions.

    Args:
        vals: uint8 or int8 [..., k/4].
        meta: uint8 or int8 [..., k/4], any bytes.

    Returns:
        (vals, meta), uint8 of the same shape, that stand for the same matrix. Two values at one
        position become their sum, next to a zero; zeros are +0 and upper metadata bits 0.

    Raises:
        TypeError: another dtype.
        ValueError: different shapes; or the first row and group where two values at one position
            have a sum that is no E2M1 value.
    """
    values = as_bytes("canonicalize", "vals", vals)
    positions = as_bytes("canonicalize", "meta", meta)
    check_shape("canonicalize", "meta", positions, "(..., k/4)", values.shape)
    index = group_index(values, positions)
    new_vals, new_meta, possible = canonical_groups()
    bad = ~possible[index]
    if bad.any():
        where, at = _first(bad)
        first, second = VALUES[:, index[at]].tolist()
        raise ValueError(
            f"canonicalize: {where}: {first:g} and {second:g} stand at the same position, and "
            f"their sum {first + second:g} is no E2M1 value; decompress() and compress() again"
        )
    return new_vals[index], new_meta[index]
