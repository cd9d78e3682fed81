# SPDX-License-Identifier: Apache-2.0
"""The product on every device and kernel, against the oracle and against itself."""

import numpy as np
import pytest

import reference
from cases import SHAPES, random_operands
from kernels import assert_same_bits, check, each_kernel
from nvfp4sparse import cuda_info, kernels, reference_gemm, sparse_gemm

DTYPES = ("bfloat16", "float16", "float32")

every_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def rng_for(*seed):
    return np.random.default_rng([abs(int(word)) for word in seed])


@every_shape
@pytest.mark.parametrize("scales", ["any", "ordinary"])
def test_random_bytes(device, shape, scales):
    """Every metadata byte. Ordinary scales too: among wild ones a lost block may not show."""
    operands = random_operands(rng_for(1, *shape), *shape, scales=scales)
    for name, got in each_kernel(device, operands):
        check(name, got, operands)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(33, 37, 80), (64, 128, 512), (9, 24, 4096)], ids=str)
def test_out_dtypes(device, shape, dtype):
    operands = random_operands(rng_for(2, *shape), *shape, meta="valid")
    for name, got in each_kernel(device, operands, out_dtype=dtype):
        check(name, got, operands, dtype=dtype)


@pytest.mark.parametrize(
    "shape", [(33, 37, 80), (64, 128, 512), (1, 200, 2048), (40, 8, 768)], ids=str
)
def test_nan_scales(device, shape):
    """NaN in just the entries that use a NaN block; the others keep their bits."""
    operands = random_operands(rng_for(3, *shape), *shape)
    poisoned = [operand.copy() for operand in operands]
    rng = rng_for(4, *shape)
    rows = rng.permutation(shape[0])[: shape[0] // 4]
    columns = rng.permutation(shape[1])[: shape[1] // 4]
    poisoned[2][rows, rng.integers(0, shape[2] // 16, len(rows))] = 0x7F
    poisoned[4][columns, rng.integers(0, shape[2] // 16, len(columns))] = 0xFF
    poisoned[0][rows] = 0  # 0 * NaN is NaN
    expected = np.zeros(shape[:2], dtype=bool)
    expected[rows], expected[:, columns] = True, True
    clean = dict(each_kernel(device, operands))
    for name, got in each_kernel(device, poisoned):
        np.testing.assert_array_equal(np.isnan(got), expected, err_msg=name)
        assert_same_bits(got[~expected], clean[name][~expected], name)


@pytest.mark.parametrize("shape", [(0, 5, 32), (5, 0, 32), (0, 0, 16), (0, 3, 0), (3, 0, 0)])
def test_empty_result(device, shape):
    for _, got in each_kernel(device, random_operands(rng_for(5), *shape)):
        assert got.shape == shape[:2]


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_columns_gives_zeros(device, dtype):
    operands = random_operands(rng_for(6), 5, 7, 0)
    for alpha in (1.0, -2.0):
        for _, got in each_kernel(device, operands, alpha=alpha, out_dtype=dtype):
            assert got.shape == (5, 7)
            assert not got.any()


def strided(device, operand, left, right, rng):
    """A view on the device of the same bytes, in the middle of a wider buffer of others."""
    rows, columns = operand.shape
    wide = rng.integers(0, 256, (rows + 2, left + columns + right), dtype=np.uint8)
    wide[1:-1, left : left + columns] = operand
    return device.to(wide)[1:-1, left : left + columns]


@pytest.mark.parametrize("shape", [(1, 1, 16), (17, 19, 80), (64, 128, 512)], ids=str)
@pytest.mark.parametrize("padding", [(0, 16), (16, 16), (1, 0), (3, 10), (7, 9), (4, 4)], ids=str)
def test_views(device, shape, padding):
    """Any row stride, any address, aligned or not; nothing around a view has a part in C."""
    rng = rng_for(7, *shape, *padding)
    operands = random_operands(rng, *shape)
    views = [strided(device, operand, *padding, rng) for operand in operands]
    got = device.numpy(sparse_gemm(*views))
    reference.assert_within_bound(got, operands)
    again = [strided(device, operand, *padding, rng) for operand in operands]
    assert_same_bits(device.numpy(sparse_gemm(*again)), got)


@pytest.mark.parametrize("column_major", [False, True], ids=["row-major", "column-major"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5, 3, 48), (64, 128, 256), (130, 66, 32)], ids=str)
def test_out(device, shape, dtype, column_major):
    """Written in place and returned, inside a wider buffer whose other elements stay."""
    m, n, _ = shape
    operands = random_operands(rng_for(8, *shape), *shape)
    expected = device.gemm(*operands, out_dtype=dtype)
    wide = (m + 3, n) if column_major else (m, n + 5)
    buffer = device.empty(wide, dtype, column_major=column_major)
    buffer[...] = 7
    out = buffer[:m, :n]
    result = sparse_gemm(*map(device.to, operands), out)
    assert result is out
    after = device.numpy(buffer)
    assert_same_bits(np.ascontiguousarray(after[:m, :n]), np.ascontiguousarray(expected))
    assert (after[m:] == 7).all()
    assert (after[:, n:] == 7).all()


@pytest.mark.parametrize("column_major", [False, True], ids=["row-major", "column-major"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [64, 60, 62, 61])
@pytest.mark.parametrize("lines", [40, 13])
def test_alignments_of_out(device, size, lines, dtype, column_major):
    """However much of a line of C a kernel can store at a time: the same bits."""
    m, n = (size, lines) if column_major else (lines, size)
    for k in (512, 4096):
        operands = random_operands(rng_for(31, size, lines, k), m, n, k)
        on_device = [device.to(operand) for operand in operands]
        for name, expected in each_kernel(device, operands, out_dtype=dtype):
            check(name, expected, operands, dtype=dtype)
            for start, pitch in ((0, 72), (4, 72), (0, 68), (2, 66), (1, 65)):
                rows, columns = (start, 0) if column_major else (0, start)
                wide = (start + pitch, n + 1) if column_major else (m + 1, start + pitch)
                buffer = device.empty(wide, dtype, column_major=column_major)
                buffer[...] = 7
                out = buffer[rows : rows + m, columns : columns + n]
                sparse_gemm(*on_device, out, kernel=name)
                after = device.numpy(buffer)
                inside = after[rows : rows + m, columns : columns + n]
                assert_same_bits(np.ascontiguousarray(inside), expected, name)
                inside[...] = 7
                assert (after == 7).all(), name


@pytest.mark.parametrize("k", [256, 2048, 4096, 8192])
@pytest.mark.parametrize("n", [1, 8, 9, 16])
def test_sparse_weights(device, n, k):
    """Many rows and few columns, written to out.T as y.T: the same bits in either layout."""
    operands = random_operands(rng_for(17, n, k), 515, n, k)
    for name, got in each_kernel(device, operands):
        check(name, got, operands)
        out = device.empty((515, n), "bfloat16", column_major=True)
        sparse_gemm(*map(device.to, operands), out, kernel=name)
        assert_same_bits(np.ascontiguousarray(device.numpy(out)), got, name)


@pytest.mark.parametrize("n", [2, 11])
def test_more_rows_than_a_walk_adds_up_at_a_time(device, n):
    """Sums of several groups of tiles, each over several slabs; some of the rows are judged."""
    m, k = 8461, 4352
    rng = rng_for(14, n)
    operands = random_operands(rng, m, n, k, scales="ordinary")
    rows = np.unique([0, 2111, 2112, 8447, 8448, m - 1, *rng.integers(0, m, 90)])
    judged = (*(operand[rows] for operand in operands[:3]), *operands[3:])
    for name, got in each_kernel(device, operands):
        check(name, got[rows], judged)


@pytest.mark.parametrize("k", [768, 2304, 4352])  # an odd number of slabs
@pytest.mark.parametrize("m", [5, 11])
def test_more_columns_than_warps_take_turns_for(device, m, k):
    """Tiles enough that all warps of a block have added some, of slabs dealt unevenly; some of the
    columns are judged."""
    n = 19021
    rng = rng_for(18, m, k)
    operands = random_operands(rng, m, n, k, scales="ordinary")
    columns = np.unique([0, 2111, 2112, 19007, 19008, n - 1, *rng.integers(0, n, 90)])
    judged = (*operands[:3], *(operand[columns] for operand in operands[3:]))
    for name, got in each_kernel(device, operands):
        check(name, got[:, columns], judged)


@pytest.mark.parametrize("alpha", [1.0, 0.5, -3.0, 0.0, 0.3, 1e-3, 12345.678, 1e-30])
def test_alpha(device, alpha):
    operands = random_operands(rng_for(9), 19, 21, 96)
    single = float(np.float32(alpha))
    for name, got in each_kernel(device, operands, alpha=alpha):
        reference.assert_within_bound(got, operands, alpha)
        if name == "cpu":
            expected = reference.correctly_rounded(operands, single)
            np.testing.assert_array_equal(got, expected)
        tensor = device.to(np.array([alpha], dtype=np.float32))
        from_tensor = device.gemm(*operands, alpha=tensor, kernel=name)
        assert_same_bits(from_tensor, got, name)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("alpha", [1e-8, 1e-38, -1e-42, 1e30, 3e38, np.inf, -np.inf, np.nan])
def test_extreme_alpha(device, alpha, dtype):
    """Subnormal results, overflow and infinities: rounded once, as IEEE 754 has it."""
    operands = random_operands(rng_for(10), 6, 7, 64)
    expected = reference.exact_gemm(*operands)
    if np.isfinite(alpha):
        expected = reference.correctly_rounded(operands, float(np.float32(alpha)), dtype)
    else:
        with np.errstate(invalid="ignore"):
            expected = expected * alpha
    for name, got in each_kernel(device, operands, alpha=alpha, out_dtype=dtype):
        if name == "cpu" or not np.isfinite(alpha):
            np.testing.assert_array_equal(got, expected, err_msg=name)
        else:
            reference.assert_within_bound(got, operands, alpha, dtype=dtype)


def test_every_kernel_of_the_device_runs(device):
    """Elsewhere a kernel that does not fit is passed over; here each has a problem it must take."""
    cc = cuda_info()["devices"][0]["cc"] if device.kind == "cuda" else 0
    rows = [row for row in kernels() if row["kind"] == device.kind]
    rows = [row for row in rows if device.kind == "cpu" or row["cc_min"] <= cc <= row["cc_max"]]
    assert rows
    for row in rows:
        n = min(max(row["n_min"], 24), row["n_max"])
        shape = max(row["m_min"], 5), n, max(row["k_multiple"], 256)
        operands = random_operands(rng_for(16, *shape), *shape)
        check(row["name"], device.gemm(*operands, kernel=row["name"]), operands)


@pytest.mark.cuda
@pytest.mark.parametrize("m", [64, 200])
def test_a_thousand_repeats_give_the_same_bits(torch_cuda, m):
    torch = torch_cuda
    host = random_operands(rng_for(17, m, 2048, 2048), m, 2048, 2048)
    operands = [torch.from_numpy(operand).cuda() for operand in host]
    first = sparse_gemm(*operands, out_dtype="float32").view(torch.int32)
    for _ in range(1000):
        again = sparse_gemm(*operands, out_dtype="float32").view(torch.int32)
        assert torch.equal(again, first)


@pytest.mark.parametrize("shape", [(64, 96, 256), (130, 40, 2048), (130, 16, 4096)], ids=str)
def test_rows_do_not_depend_on_the_batch(device, shape):
    """The bits of C[i] stay, however many other rows there are and whatever they hold."""
    m, _, k = shape
    a_vals, a_meta, a_scale, b_fp4, b_scale = random_operands(rng_for(11, *shape), *shape)
    whole = {}
    for count in (m, 32, 16, 8):  # the most that each kernel takes
        operands = a_vals[:count], a_meta[:count], a_scale[:count], b_fp4, b_scale
        whole = dict(each_kernel(device, operands)) | whole
    others = random_operands(rng_for(12, *shape), 2 * m, 0, k)[:3]
    compared = set()
    for count, first in ((1, 0), (1, 7), (3, 4), (9, 6), (1, m - 1), (7, 3), (33, m - 33)):
        chosen = slice(first, first + count)
        rows = a_vals[chosen], a_meta[chosen], a_scale[chosen]
        for name, got in each_kernel(device, (*rows, b_fp4, b_scale)):
            if first + count <= len(whole.get(name, ())):
                assert_same_bits(got, whole[name][chosen], name)
                compared.add(name)
        mixed = [np.concatenate([o[:9], r, o[9:]]) for o, r in zip(others, rows, strict=True)]
        for name, got in each_kernel(device, (*mixed, b_fp4, b_scale)):
            if first + count <= len(whole.get(name, ())):
                assert_same_bits(got[9 : 9 + count], whole[name][chosen], name)
    assert compared == set(whole)


@pytest.mark.parametrize("shape", [(64, 256, 2048), (33, 37, 80), (515, 8, 2048)], ids=str)
def test_runs_are_equal(device, shape):
    operands = random_operands(rng_for(13, *shape), *shape)
    runs = [dict(each_kernel(device, operands)) for _ in range(3)]
    for name in runs[0]:
        assert_same_bits(runs[1][name], runs[0][name], name)
        assert_same_bits(runs[2][name], runs[0][name], name)


@every_shape
@pytest.mark.parametrize("nan", [False, True], ids=["finite", "nan"])
def test_reference_gemm_agrees_with_the_oracle(shape, nan):
    operands = random_operands(rng_for(14, *shape), *shape, nan=nan)
    np.testing.assert_array_equal(
        reference_gemm(*operands, alpha=0.3), reference.exact_gemm(*operands, alpha=0.3)
    )


def test_reference_gemm_refuses():
    a_vals, a_meta, a_scale, b_fp4, b_scale = random_operands(rng_for(15), 2, 3, 32)
    with pytest.raises(ValueError, match=r"B must have shape \(n, k\) = \(3, 32\), got \(3, 16\)"):
        reference_gemm(a_vals, a_meta, a_scale, b_fp4[:, :8], b_scale[:, :1])
    with pytest.raises(ValueError, match="b_fp4 must have two axes, got 1"):
        reference_gemm(a_vals, a_meta, a_scale, b_fp4[0], b_scale[0])
