# SPDX-License-Identifier: Apache-2.0
"""quantize(), dequantize(), global_scale(): bytes by hand, and rounding against fractions."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from nvfp4sparse import NVFP4, dequantize, global_scale, quantize
from reference import E2M1, E4M3, dense_b

FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]


def nearest_code(value, table):
    """The code of the nearest table entry to a Fraction >= 0; ties to the even code; saturating."""
    entries = [Fraction(entry) for entry in table]
    return min(range(len(entries)), key=lambda code: (abs(entries[code] - value), code & 1))


def quantize_by_hand(block, factor=1.0):
    """(codes, scale byte) of one block in exact arithmetic."""
    block = [Fraction(float(x)) for x in block]
    factor = Fraction(factor)
    scale = nearest_code(max(map(abs, block)) / 6 / factor, E4M3[:0x7F])
    divisor = Fraction(E4M3[scale]) * factor
    codes = []
    for x in block:
        code = nearest_code(abs(x) / divisor, E2M1[:8]) if divisor else 0
        codes.append(code | 8 if x < 0 and code else code)
    return codes, scale


def unpack(fp4):
    return np.stack([fp4 & 15, fp4 >> 4], axis=-1).reshape(*fp4.shape[:-1], -1)


def test_golden_bytes():
    w = np.array([[0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]])
    packed = quantize(w)
    assert isinstance(packed, NVFP4)
    assert packed.fp4.tolist() == [[0x10, 0x32, 0x54, 0x76, 0x90, 0xBA, 0xDC, 0xFE]]
    assert packed.scale.tolist() == [[0x38]]  # 1.0
    assert packed.fp4.dtype == packed.scale.dtype == np.uint8


def test_golden_scales():
    """Each block holds its amax alone, which becomes 6 at a scale of amax / 6."""
    amax = [6.0, 12.0, 4.5, 6 * 448, 1e6, 6 * 2.0**-9, 6 * 2.0**-10, 6 * 1.5 * 2.0**-9, 0.0]
    w = np.zeros((len(amax), 16))
    w[:, 5] = amax
    packed = quantize(w)
    expected = [0x38, 0x40, 0x34, 0x7E, 0x7E, 0x01, 0x00, 0x02, 0x00]
    assert packed.scale[:, 0].tolist() == expected
    # Saturated above; where the scale rounds to zero, so does the value.
    assert packed.fp4[:, 2].tolist() == [0x70, 0x70, 0x70, 0x70, 0x70, 0x70, 0x00, 0x60, 0x00]
    assert not packed.fp4[:, [0, 1, 3, 4, 5, 6, 7]].any()


def test_zero_is_plus_zero():
    w = np.full(16, -0.01)
    w[0] = 6.0
    assert quantize(w).fp4.tolist() == [0x07, 0, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("factor", [1.0, 0.5, 0.0123, 1e-3])
def test_rounds_once(dtype, factor):
    """Random data and, on purpose, data next to and on every tie."""
    rng = np.random.default_rng(3)
    w = rng.standard_normal((8, 16)) * np.exp2(rng.integers(-6, 6, (8, 1)))
    ties = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 0.0])
    w = np.concatenate([w, np.tile(np.concatenate([ties, [6.0], -ties[:7]]), (8, 1))])
    w[8:] *= np.array([1, 0.5, 2, 1.125, 1.25, 1.375, 1.875, 8])[:, None] * factor
    w = w.astype(dtype)
    near = np.nextafter(w[8:], np.array(np.inf, dtype=dtype))
    w = np.concatenate([w, near, -near])
    packed = quantize(w, global_scale=float(np.float32(factor)))
    codes = unpack(packed.fp4)
    for row, block in enumerate(w):
        expected = quantize_by_hand(block, float(np.float32(factor)))
        assert (codes[row].tolist(), int(packed.scale[row, 0])) == expected


def test_scale_at_and_beside_every_tie():
    """amax / 6 half-way between two scales, and one float64 step to either side of it."""
    half_way = 6 * (E4M3[:0x7E] + E4M3[1:0x7F]) / 2
    amax = np.concatenate([np.nextafter(half_way, 0), half_way, np.nextafter(half_way, np.inf)])
    w = np.zeros((len(amax), 16))
    w[:, 3] = amax
    expected = [nearest_code(Fraction(a) / 6, E4M3[:0x7F]) for a in amax]
    assert quantize(w).scale[:, 0].tolist() == expected


def test_global_scale():
    x = np.array([1.0, -5376.0, 3.0])
    assert global_scale(x) == 2.0
    assert global_scale(np.zeros((2, 3))) == 1.0
    assert global_scale(np.zeros((0, 16))) == 1.0
    assert np.float32(global_scale(x / 3)) == global_scale(x / 3) > 0
    assert global_scale(np.full(4, 1e-300)) > 0


def test_global_scale_is_a_multiplier():
    w = np.random.default_rng(4).standard_normal((16, 64)).astype(np.float32) * 1e-4
    factor = global_scale(w)
    packed = quantize(w, global_scale=factor)
    assert packed.scale.max() == 0x7E
    error = np.abs(dequantize(*packed) * np.float64(factor) - w)
    amax = np.abs(w).reshape(16, 4, 16).max(axis=-1, keepdims=True)
    assert (error.reshape(16, 4, 16) <= amax * 0.2).all()  # half the gap from 4 to 6, and scale


def test_dequantize_is_exact():
    fp4 = np.arange(256, dtype=np.uint8).reshape(32, 8)
    scale = np.arange(32, dtype=np.uint8).reshape(32, 1) * 8 + 7  # 0x7F and 0xFF among them
    expected = dense_b(fp4, scale)
    got = dequantize(fp4, scale)
    assert got.dtype == np.float32
    assert np.array_equal(got, expected, equal_nan=True)
    assert np.isnan(got).sum() == 32


def test_round_trip_of_representable_values():
    rng = np.random.default_rng(5)
    fp4 = rng.integers(0, 256, (4, 3, 32), dtype=np.uint8)
    fp4[..., 0::8] = 0x07  # every block holds a 6, which pins its scale
    scale = rng.integers(1, 0x7F, (4, 3, 4), dtype=np.uint8)
    dense = dequantize(fp4, scale)
    again = quantize(dense)
    assert np.array_equal(again.scale, scale)
    assert np.array_equal(dequantize(*again), dense)


def test_byte_views():
    packed = quantize(np.random.default_rng(6).standard_normal((2, 32)))
    expected = dequantize(*packed)
    views = packed.fp4.view(np.int8), packed.scale.view(ml_dtypes.float8_e4m3fn)
    assert np.array_equal(dequantize(*views), expected)
    assert np.array_equal(dequantize(packed.fp4, packed.scale | 0x80), expected)


@pytest.mark.parametrize("shape", [(0,), (0, 16), (3, 0), (2, 0, 16)])
def test_empty(shape):
    packed = quantize(np.zeros(shape))
    assert packed.fp4.shape == (*shape[:-1], shape[-1] // 2)
    assert packed.scale.shape == (*shape[:-1], shape[-1] // 16)
    assert dequantize(*packed).shape == shape


def test_large_input_in_slabs():
    """More elements than are worked on at a time, as rows and as one long row."""
    w = np.random.default_rng(7).standard_normal((300, 1024)).astype(np.float32)
    whole = quantize(w)
    assert np.array_equal(whole.fp4[299], quantize(w[299]).fp4)
    flat = quantize(w.reshape(-1))
    assert np.array_equal(flat.fp4, whole.fp4.reshape(-1))
    assert np.array_equal(flat.scale, whole.scale.reshape(-1))


@pytest.mark.parametrize(
    ("w", "factor", "error", "text"),
    [
        (np.ones(24), 1.0, ValueError, r"multiple of 16, got shape \(24,\); pad"),
        (np.float64(1), 1.0, ValueError, "at least one axis"),
        (np.full((2, 16), np.inf), 1.0, ValueError, r"finite, got inf at \[0, 0\]"),
        (np.full((2, 16), np.nan), 1.0, ValueError, "finite, got nan"),
        (np.ones(16, dtype=np.int64), 1.0, TypeError, "int64"),
        (np.ones(16), 0.0, ValueError, "global_scale must be positive and finite, got 0.0"),
        (np.ones(16), np.nan, ValueError, "global_scale must be positive"),
    ],
)
def test_quantize_refuses(w, factor, error, text):
    with pytest.raises(error, match=r"^quantize: .*" + text):
        quantize(w, global_scale=factor)


@pytest.mark.parametrize(
    ("fp4", "scale", "error", "text"),
    [
        (np.zeros((2, 8), np.uint8), np.zeros((2, 2), np.uint8), ValueError, r"= \(2, 1\), got"),
        (np.zeros((2, 7), np.uint8), np.zeros((2, 1), np.uint8), ValueError, "multiple of 8"),
        (np.zeros((2, 8), np.float32), np.zeros((2, 1), np.uint8), TypeError, "packed bytes"),
        (
            np.zeros((2, 8), ml_dtypes.float4_e2m1fn),  # one value per byte: not packed
            np.zeros((2, 1), np.uint8),
            TypeError,
            "float4_e2m1fn",
        ),
    ],
)
def test_dequantize_refuses(fp4, scale, error, text):
    with pytest.raises(error, match=r"^dequantize: .*" + text):
        dequantize(fp4, scale)
