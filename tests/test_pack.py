# SPDX-License-Identifier: Apache-2.0
"""compress(), decompress(), validate(), canonicalize(): golden bytes, and every group there is."""

import ml_dtypes
import numpy as np
import pytest

from cases import random_operands
from nvfp4sparse import (
    SparseNVFP4,
    canonicalize,
    compress,
    decompress,
    prune,
    quantize,
    validate,
)
from reference import E2M1, dense_a

FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
ONE = np.uint8(0x38)


def every_group():
    """All 65536 pairs of bytes, four groups to a row: vals, meta [16384, 4], scale 1."""
    pairs = np.arange(1 << 16)
    vals = (pairs & 255).astype(np.uint8).reshape(-1, 4)
    meta = (pairs >> 8).astype(np.uint8).reshape(-1, 4)
    return vals, meta, np.full((len(vals), 1), ONE)


def test_golden_bytes():
    x = np.array([[0, 6, 0, -3, 1, 2, 0, 0, 0, 0, -0.5, 0, 0, 0, 0, 0]])
    packed = compress(x)
    assert isinstance(packed, SparseNVFP4)
    # Groups: 6 at 1 and -3 at 3; 1 at 0 and 2 at 1; 0 at 0 and -0.5 at 2; zeros at 0 and 1.
    assert packed.vals.tolist() == [[0xD7, 0x42, 0x90, 0x00]]
    assert packed.meta.tolist() == [[0x0D, 0x04, 0x08, 0x04]]
    assert packed.scale.tolist() == [[0x38]]
    assert {array.dtype for array in packed} == {np.dtype(np.uint8)}


def test_scale_comes_from_the_kept_values():
    """The same as quantising the pruned matrix; and what is not kept has no part in it."""
    x = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
    packed = compress(x)
    dense = quantize(prune(x))
    assert np.array_equal(packed.scale, dense.scale)
    assert np.array_equal(decompress(*packed), decompress(*compress(prune(x))))


def test_one_hot():
    """A single nonzero at every column: it comes back there and nowhere else."""
    x = np.diag(np.where(np.arange(48) % 2, -6.0, 6.0))
    assert np.array_equal(decompress(*compress(x)), x)


def test_negative_zero_is_never_kept_in_front_of_a_nonzero():
    x = np.full((1, 16), -0.0)
    x[0, 3], x[0, 6], x[0, 7] = 6.0, -6.0, 1.0
    packed = compress(x)
    assert packed.meta[0, :2].tolist() == [0x0C, 0x0E]
    assert packed.vals.tolist() == [[0x70, 0x2F, 0x00, 0x00]]  # zeros are +0


@pytest.mark.parametrize("dtype", FLOATS)
def test_well_formed_and_idempotent(dtype):
    x = np.random.default_rng(1).standard_normal((3, 5, 64)).astype(dtype)
    packed = compress(x)
    assert [array.shape for array in packed] == [(3, 5, 16), (3, 5, 16), (3, 5, 4)]
    validate(*packed)
    vals, meta = canonicalize(packed.vals, packed.meta)
    assert np.array_equal(vals, packed.vals)
    assert np.array_equal(meta, packed.meta)
    dense = decompress(*packed)
    assert np.array_equal(decompress(*compress(dense)), dense)


def test_global_scale():
    x = np.random.default_rng(2).standard_normal((4, 32))
    halved = compress(x, global_scale=0.5)
    assert all(np.array_equal(a, b) for a, b in zip(halved, compress(2 * x), strict=True))


@pytest.mark.parametrize("nan", [False, True])
def test_decompress_takes_any_bytes(nan):
    a_vals, a_meta, a_scale, *_ = random_operands(np.random.default_rng(3), 24, 0, 160, nan=nan)
    got = decompress(a_vals, a_meta, a_scale)
    assert got.dtype == np.float32
    assert np.array_equal(got, dense_a(a_vals, a_meta, a_scale), equal_nan=True)
    assert np.isnan(got).any() == nan


def test_decompress_every_group():
    operands = every_group()
    assert np.array_equal(decompress(*operands), dense_a(*operands))


def test_canonicalize_every_group():
    vals, meta, _ = every_group()
    first, second = E2M1[vals & 15], E2M1[vals >> 4]
    possible = ((meta & 3) != (meta >> 2 & 3)) | np.isin(first + second, E2M1)
    assert 0 < (~possible).sum() < possible.size
    padded = np.zeros((possible.sum() + 3) // 4 * 4, dtype=np.uint8)
    old = padded.copy(), padded.copy()
    old[0][: possible.sum()], old[1][: possible.sum()] = vals[possible], meta[possible]
    new = canonicalize(*old)
    scale = np.full(len(padded) // 4, ONE)
    assert np.array_equal(decompress(*new, scale), decompress(*old, scale))
    validate(*new, scale)
    assert ((new[1] & 3) < (new[1] >> 2)).all()
    assert new[1].max() < 16
    assert not np.isin(8, [new[0] & 15, new[0] >> 4])
    again = canonicalize(*new)
    assert np.array_equal(again[0], new[0])
    assert np.array_equal(again[1], new[1])
    for value, position in zip(vals[~possible], meta[~possible], strict=True):
        with pytest.raises(ValueError, match=r"row \[\], group 0: .* no E2M1 value"):
            canonicalize(np.array([value]), np.array([position]))


def test_canonicalize_by_hand():
    # 1 at 3 and 2 at 0; 1 and 2 both at 2; 3 and -3 both at 0; 4 at 1 and -0 at 2.
    vals = np.array([[0x42, 0x42, 0xD5, 0x86]], dtype=np.uint8)
    meta = np.array([[0xF3, 0x0A, 0x50, 0x09]], dtype=np.uint8)
    new_vals, new_meta = canonicalize(vals, meta)
    assert new_vals.tolist() == [[0x24, 0x50, 0x00, 0x06]]
    assert new_meta.tolist() == [[0x0C, 0x08, 0x04, 0x09]]


def test_canonicalize_names_the_group():
    vals = np.full((3, 8), 0x22, dtype=np.uint8)
    meta = np.full((3, 8), 0x04, dtype=np.uint8)
    vals[2, 5], meta[2, 5] = 0x77, 0x0F
    text = r"^canonicalize: row 2, group 5: 6 and 6 stand at the same position, and their sum 12 is"
    with pytest.raises(ValueError, match=text):
        canonicalize(vals, meta)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"meta": 0x01}, "row 1, group 6: descending positions 1, 0 with nonzero values"),
        ({"meta": 0xF5}, "row 1, group 6: equal positions 1, 1 with nonzero values"),
        ({"scale": 0x7F}, "row 1, group 4: scale 0x7F is NaN"),
        ({"scale": 0xFF}, "row 1, group 4: scale 0xFF is NaN"),
        ({"scale": 0xB8}, "row 1, group 4: scale 0xB8 has its sign bit set"),
    ],
)
def test_validate_names_the_first_fault(change, text):
    vals = np.full((3, 8), 0x22, dtype=np.uint8)
    meta = np.full((3, 8), 0xF4, dtype=np.uint8)  # upper bits are free
    scale = np.full((3, 2), 0x7E, dtype=np.uint8)
    validate(vals, meta, scale)
    meta[1, 6] = change.get("meta", 0x04)
    scale[1, 1] = change.get("scale", 0x38)
    meta[2, 0] = 0  # a later fault is not the one named
    with pytest.raises(ValueError, match="^validate: " + text):
        validate(vals, meta, scale)


def test_validate_lets_zeros_stand_anywhere():
    vals = np.array([[0x00, 0x88, 0x80, 0x08]], dtype=np.uint8)
    validate(vals, np.array([[0x00, 0x0F, 0x03, 0x01]], dtype=np.uint8), np.array([[0x38]], "u1"))


def test_byte_views():
    packed = compress(np.random.default_rng(4).standard_normal((2, 32)))
    views = (
        packed.vals.view(np.int8),
        packed.meta.view(np.int8),
        packed.scale.view(ml_dtypes.float8_e4m3fn),
    )
    validate(*views)
    assert np.array_equal(decompress(*views), decompress(*packed))
    assert np.array_equal(canonicalize(*views[:2])[0], packed.vals)


@pytest.mark.parametrize("shape", [(0,), (0, 16), (3, 0), (2, 0, 16)])
def test_empty(shape):
    packed = compress(np.zeros(shape))
    validate(*packed)
    assert decompress(*packed).shape == shape
    assert canonicalize(packed.vals, packed.meta)[0].shape == packed.vals.shape


@pytest.mark.parametrize(
    ("x", "error", "text"),
    [
        (np.ones((2, 12)), ValueError, r"multiple of 16, got shape \(2, 12\)"),
        (np.full(16, np.nan), ValueError, "finite"),
        (np.full(16, -np.inf), ValueError, "finite"),
        (np.ones(16, dtype=np.uint8), TypeError, "uint8"),
    ],
)
def test_compress_refuses(x, error, text):
    with pytest.raises(error, match=r"^compress: .*" + text):
        compress(x)


@pytest.mark.parametrize(
    ("shapes", "text"),
    [
        (((2, 8), (2, 4), (2, 2)), r"meta must have shape \(..., k/4\) = \(2, 8\), got \(2, 4\)"),
        (((2, 8), (2, 8), (2, 1)), r"scale must have shape \(..., k/16\) = \(2, 2\), got \(2, 1\)"),
        (((2, 6), (2, 6), (2, 1)), r"multiple of 4, got \(2, 6\)"),
    ],
)
def test_decompress_refuses(shapes, text):
    with pytest.raises(ValueError, match="^decompress: .*" + text):
        decompress(*(np.zeros(shape, dtype=np.uint8) for shape in shapes))
