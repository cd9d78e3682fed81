# SPDX-License-Identifier: Apache-2.0
"""What every byte means, on every kernel: bytes by hand, and one-hot operands.

All results here are representable in bfloat16, or exact ties, and small enough for an fp32
accumulator to hold exactly: so every kernel has to return just these numbers.
"""

import numpy as np
import pytest

import reference
from cases import zero_operands
from kernels import check, each_kernel
from reference import E2M1, E4M3


def assert_everywhere(device, operands, expected, **options):
    """Every kernel that fits returns exactly this, apart from the sign of a zero."""
    for name, got in each_kernel(device, operands, **options):
        np.testing.assert_array_equal(got, expected, err_msg=name)


def test_golden_bytes(device):
    a_vals, a_meta, a_scale, b_fp4, b_scale = zero_operands(1, 1, 16)
    a_vals[0] = [0x72, 0x9A, 0x00, 0x00]  # 1 and 6; -1 and -0.5
    a_meta[0] = [0x0E, 0x09, 0x04, 0x04]  # at columns 2, 3; 5, 6
    a_scale[0] = [0x40]  # 2
    b_fp4[0] = [0x00, 0x53, 0x40, 0x0F, 0x77, 0x77, 0x77, 0x77]  # .. 1.5 3 0 2 -6 0 6 6 ..
    b_scale[0] = [0x34]  # 0.75
    # (1 * 1.5 + 6 * 3 + -1 * 2 + -0.5 * -6) * 2 * 0.75
    assert_everywhere(device, (a_vals, a_meta, a_scale, b_fp4, b_scale), [[30.75]])


def test_every_pair_of_codes(device):
    """Row i holds code i, column j code j; code 8 counts as zero."""
    a_vals, a_meta, a_scale, b_fp4, b_scale = zero_operands(16, 16, 16)
    a_vals[:, 0] = np.arange(16)
    b_fp4[:, 0] = np.arange(16)
    expected = np.outer(E2M1, E2M1)
    assert_everywhere(device, (a_vals, a_meta, a_scale, b_fp4, b_scale), expected)


@pytest.mark.parametrize("k", [16, 32, 48, 64, 128, 256, 528])
def test_every_column(device, k):
    """Row i holds one value at its column, so C is B as the oracle decodes it."""
    rng = np.random.default_rng(k)
    column = np.arange(k)
    for slot in (0, 1):
        a_vals, a_meta, a_scale, _, _ = zero_operands(k, 0, k)
        a_vals[column, column // 4] = 0x2 << (4 * slot)  # 1.0
        a_meta[column, column // 4] = (column % 4) << (2 * slot)
        b_fp4 = rng.integers(0, 256, (24, k // 2), dtype=np.uint8)
        b_scale = rng.integers(0, 0x7F, (24, k // 16), dtype=np.uint8)
        expected = reference.dense_b(b_fp4, b_scale).T
        assert_everywhere(device, (a_vals, a_meta, a_scale, b_fp4, b_scale), expected)


def test_every_pair_of_scales(device):
    """All 65536, NaN and the ignored bit 7 among them; a product has up to 8 bits."""
    a_vals, a_meta, a_scale, b_fp4, b_scale = zero_operands(256, 256, 16)
    a_vals[:, 3] = 0x20
    a_meta[:, 3] = 0x0C
    b_fp4[:, 7] = 0x20
    a_scale[:, 0] = b_scale[:, 0] = np.arange(256)
    values = E4M3[np.arange(256) & 0x7F]
    expected = np.outer(values, values)
    assert_everywhere(device, (a_vals, a_meta, a_scale, b_fp4, b_scale), expected)


def test_every_group(device):
    """All 65536 pairs of a value byte and a metadata byte, in each of the four groups."""
    pairs = np.arange(1 << 16)
    for group in range(4):
        a_vals, a_meta, a_scale, b_fp4, b_scale = zero_operands(len(pairs), 4, 16)
        a_vals[:, group] = pairs & 255
        a_meta[:, group] = pairs >> 8
        for column in range(4):
            b_fp4[column, 2 * group + column // 2] = 0x2 << (4 * (column % 2))
        expected = np.zeros((len(pairs), 4))
        rows = np.arange(len(pairs))
        np.add.at(expected, (rows, (pairs >> 8) & 3), E2M1[pairs & 15])
        np.add.at(expected, (rows, (pairs >> 10) & 3), E2M1[(pairs >> 4) & 15])
        assert_everywhere(device, (a_vals, a_meta, a_scale, b_fp4, b_scale), expected)


def test_every_block_has_its_own_scale(device):
    """One value in every block in turn; all other blocks have scales that would be seen."""
    k = 1040
    blocks = np.arange(k // 16)
    a_vals, a_meta, a_scale, b_fp4, b_scale = zero_operands(len(blocks), 3, k)
    a_vals[blocks, 4 * blocks + blocks % 4] = 0x2
    b_fp4[:] = 0x22
    a_scale[:] = 8 + blocks % 64
    b_scale[:] = 16 + (7 * blocks) % 64
    products = E4M3[a_scale[0]] * E4M3[b_scale[0]]
    expected = np.repeat(products[:, None], 3, axis=1)
    assert_everywhere(device, (a_vals, a_meta, a_scale, b_fp4, b_scale), expected)


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        ((256, 1), 256),  # ties go to even
        ((256, 3), 260),
        ((-256, -1), -256),
        ((256, 1, 2**-10), 258),  # just above the tie, also by way of float32
        ((256, 1, -(2**-10)), 256),
        ((256, 3, -(2**-10)), 258),
        ((2**-20,), 2**-20),  # the smallest product there is
        ((1, -1), 0),
    ],
)
def test_rounding_to_bfloat16(device, terms, expected):
    """Each term is a power of two or 3, and gets a block of its own."""
    a_vals, a_meta, a_scale, b_fp4, b_scale = zero_operands(2, 2, 16 * len(terms))
    scales = {256: (0x58, 0x58), 1: (0x38, 0x38), 3: (0x38, 0x38), 2**-10: (0x10, 0x10)}
    scales[2**-20] = (0x01, 0x01)  # times 0.5 twice
    for block, term in enumerate(terms):
        a_code, b_code = {3: (0x2, 0x5), 2**-20: (0x1, 0x1)}.get(abs(term), (0x2, 0x2))
        a_vals[:, 4 * block] = a_code | (0x8 if term < 0 else 0)
        b_fp4[:, 8 * block] = b_code
        a_scale[:, block], b_scale[:, block] = scales[abs(term)]
    operands = (a_vals, a_meta, a_scale, b_fp4, b_scale)
    assert reference.exact_gemm(*operands)[0, 0] == sum(terms)
    assert_everywhere(device, operands, np.full((2, 2), expected))


def test_float16_overflow(device):
    """65520 is the first number that rounds to infinity; 65519 gives the largest, 65504."""
    a_vals, a_meta, a_scale, b_fp4, b_scale = zero_operands(2, 3, 48)
    a_vals[:, [0, 4, 8]] = [[0x7, 0x7, 0x2], [0xF, 0xF, 0xA]]  # +-6, +-6, +-1
    b_fp4[:, [0, 8, 16]] = [[0x7, 0x7, 0x0], [0x7, 0x7, 0xA], [0x7, 0x7, 0x2]]  # 6, 6, 0 or +-1
    a_scale[0] = a_scale[1] = [0x7E, 0x5E, 0x38]  # 448, 28, 1
    b_scale[:] = [0x48, 0x38, 0x38]  # 4, 1, 1: 36 * 448 * 4 + 36 * 28 = 65520
    operands = (a_vals, a_meta, a_scale, b_fp4, b_scale)
    assert reference.exact_gemm(*operands)[0].tolist() == [65520, 65519, 65521]
    expected = [[np.inf, 65504, np.inf], [-np.inf, -65504, -np.inf]]
    assert_everywhere(device, operands, expected, out_dtype="float16")


@pytest.mark.parametrize("k", [16, 2048, 4096, 16384])
def test_largest_sums(device, k):
    """All values 6, all scales 448: 46 bits for each block, more than a float64 sum holds."""
    a_vals, a_meta, a_scale, b_fp4, b_scale = zero_operands(3, 5, k)
    a_vals[:], a_vals[1] = 0x77, 0xFF
    b_fp4[:] = 0x77
    a_scale[:], b_scale[:] = 0x7E, 0xFE
    b_scale[2, -1] = 0x01
    operands = (a_vals, a_meta, a_scale, b_fp4, b_scale)
    for dtype in ("bfloat16", "float32"):
        for name, got in each_kernel(device, operands, out_dtype=dtype):
            check(name, got, operands, dtype=dtype)
