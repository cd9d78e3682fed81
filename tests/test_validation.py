# SPDX-License-Identifier: Apache-2.0
"""Every rule of the call, in the words of its refusal; after each a good call is right."""

import ml_dtypes
import numpy as np
import pytest

from cases import random_operands
from conftest import numpy_dtype
from kernels import assert_same_bits
from nvfp4sparse import sparse_gemm

M, N, K = 64, 32, 2048
NAMES = ("a_vals", "a_meta", "a_scale", "b_fp4", "b_scale")


@pytest.fixture(scope="module")
def operands():
    return random_operands(np.random.default_rng(0), M, N, K)


@pytest.fixture(scope="module")
def expected(device, operands):
    return device.gemm(*operands)


@pytest.fixture
def tensors(device, operands, expected):
    """Operands on the device. When the test is over they still give the right result."""
    tensors = [device.to(operand) for operand in operands]
    yield tensors
    assert_same_bits(device.numpy(sparse_gemm(*tensors)), expected)


def refused(error, text, *arguments, **options):
    with pytest.raises(error) as caught:
        sparse_gemm(*arguments, **options)
    assert str(caught.value).startswith("sparse_gemm: ")
    assert text in str(caught.value)


def with_one(tensors, index, replacement):
    return [*tensors[:index], replacement, *tensors[index + 1 :]]


# --- arguments ---


def test_arguments(tensors):
    refused(TypeError, "a_vals is missing")
    refused(TypeError, "b_scale is missing", *tensors[:4])
    refused(TypeError, "b_fp4 is missing", *tensors[:3], b_scale=tensors[4])
    refused(TypeError, "at most 6 positional arguments", *tensors, None, 1.0)
    refused(TypeError, "there is no argument 'beta'", *tensors, beta=1.0)
    refused(TypeError, "a_meta was given twice", *tensors, a_meta=tensors[1])
    refused(TypeError, "out was given twice", *tensors, None, out=None)


def test_every_argument_has_a_name(device, tensors, expected):
    named = dict(zip(reversed(NAMES), reversed(tensors), strict=True))
    options = dict.fromkeys(("out", "out_dtype", "stream", "kernel"))
    assert_same_bits(device.numpy(sparse_gemm(**named, alpha=1, **options)), expected)


def test_keywords_need_not_be_interned(device, tensors, expected):
    options = {"".join(["al", "pha"]): 1.0, "".join(["out_", "dtype"]): "bfloat16"}
    assert_same_bits(device.numpy(sparse_gemm(*tensors, **options)), expected)


@pytest.mark.parametrize(
    "wrong",
    [None, 5, "a_vals", [[1, 2]], object()],
    ids=["none", "int", "str", "list", "object"],
)
@pytest.mark.parametrize("index", range(5), ids=NAMES)
def test_not_a_tensor(tensors, index, wrong):
    kind = type(wrong).__name__
    text = f"{NAMES[index]} must be a tensor that exports DLPack"
    refused(TypeError, text, *with_one(tensors, index, wrong))
    refused(TypeError, f"got {kind}", *with_one(tensors, index, wrong))


# --- shapes ---

SHAPES = [
    (1, (M, K // 8), "a_meta must have shape (m, k/4) = (64, 512), got (64, 256)"),
    (1, (M + 1, K // 4), "a_meta must have shape (m, k/4) = (64, 512), got (65, 512)"),
    (2, (M, K // 4), "a_scale must have shape (m, k/16) = (64, 128), got (64, 512)"),
    (2, (M,), "a_scale must have shape (m, k/16) = (64, 128), got (64,)"),
    (2, (1, M, K // 16), "a_scale must have shape (m, k/16) = (64, 128), got (1, 64, 128)"),
    (3, (N, K // 4), "b_fp4 must have shape (n, k/2) = (32, 1024), got (32, 512)"),
    (3, (K // 2,), "b_fp4 must have shape (n, k/2) = (n, 1024), got (1024,)"),
    (4, (N - 1, K // 16), "b_scale must have shape (n, k/16) = (32, 128), got (31, 128)"),
    (4, (N, 0), "b_scale must have shape (n, k/16) = (32, 128), got (32, 0)"),
    (0, (M, 3), "a_vals must have shape (m, k/4) with k a multiple of 16, got (64, 3)"),
    (0, (M,), "a_vals must have shape (m, k/4) with k a multiple of 16, got (64,)"),
    (0, (), "a_vals must have shape (m, k/4) with k a multiple of 16, got ()"),
    (0, (2, M, K // 4), "with k a multiple of 16, got (2, 64, 512)"),
    (0, (M - 1, K // 4), "a_meta must have shape (m, k/4) = (63, 512), got (64, 512)"),
]


@pytest.mark.parametrize(("index", "shape", "text"), SHAPES, ids=[text for *_, text in SHAPES])
def test_shapes(device, tensors, index, shape, text):
    wrong = device.to(np.zeros(shape, np.uint8))
    refused(ValueError, text, *with_one(tensors, index, wrong))


def test_out_shape(device, tensors):
    for shape in ((M, N + 1), (N, M), (M * N,), (1, M, N), ()):
        text = f"out must have shape (m, n) = (64, 32), got {shape}"
        refused(ValueError, text, *tensors, device.empty(shape))


# --- dtypes ---


@pytest.mark.parametrize("dtype", ["int32", "float32", "float64", "bool", "int64", "float16"])
@pytest.mark.parametrize("index", range(5), ids=NAMES)
def test_dtypes(device, operands, tensors, index, dtype):
    wrong = device.to(np.zeros(operands[index].shape, dtype))
    text = f"{NAMES[index]} must be int8"
    refused(TypeError, text, *with_one(tensors, index, wrong))
    refused(TypeError, f"got {dtype}", *with_one(tensors, index, wrong))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "float64", "int16"])
def test_out_of_a_wrong_dtype(device, tensors, dtype):
    out = device.to(np.zeros((M, N), dtype))
    text = f"out must be bfloat16, float16 or float32, got {dtype}"
    refused(TypeError, text, *tensors, out)


def test_int8(device, operands, expected):
    signed = [device.to(operand.view(np.int8)) for operand in operands]
    assert_same_bits(device.numpy(sparse_gemm(*signed)), expected)


# --- strides ---


@pytest.mark.parametrize("index", range(5), ids=NAMES)
def test_strides(device, operands, tensors, index):
    """A transposed operand, and one of every second byte."""
    operand = operands[index]
    transposed = device.to(operand.T.copy()).T
    text = f"{NAMES[index]} must have stride 1 in its last dimension, got strides (1, "
    refused(ValueError, text, *with_one(tensors, index, transposed))
    refused(ValueError, ".contiguous()", *with_one(tensors, index, transposed))
    spread = device.to(np.repeat(operand, 2, axis=1))[:, ::2]
    refused(ValueError, NAMES[index], *with_one(tensors, index, spread))


def test_overlapping_rows():
    """A zero, a negative and a short row stride, which only NumPy makes easily."""
    operands = random_operands(np.random.default_rng(1), 4, 4, 64)
    text = "a_vals must have a row stride that is not shorter than the row"
    for stride in (0, 15, -16, -64):
        memory = np.zeros(256, np.uint8)
        rows = np.lib.stride_tricks.as_strided(memory[192:], (4, 16), (stride, 1))
        refused(
            ValueError,
            f"{text}, got strides ({stride}, 1): call .contiguous()",
            rows,
            *operands[1:],
        )


def test_out_strides(device, tensors):
    wide = device.empty((2 * M, 2 * N))
    refused(ValueError, "out must be row-major or column-major", *tensors, wide[::2, ::2])
    refused(ValueError, "got strides", *tensors, wide[:M, ::2])


def test_out_with_overlapping_rows(operands):
    memory = np.zeros(4096, np.float32)
    for strides in (
        (0, 4),
        (4, 4),
        (4 * N - 4, 4),
        (4, 0),
        (4, 4 * M - 4),
        (-4 * N, 4),
        (4 * N, -4),
    ):
        out = np.lib.stride_tricks.as_strided(memory[2048:], (M, N), strides)
        refused(ValueError, "out must be row-major or column-major", *operands, out)
    assert not memory.any()


@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 5), (5, 1)])
@pytest.mark.parametrize("step", [1, 3])
def test_out_of_one_row_or_column(m, n, step):
    """The stride of the one row or column counts for nothing, so any spacing will do."""
    operands = random_operands(np.random.default_rng(2), m, n, 32)
    expected = sparse_gemm(*operands, out_dtype="float32")
    memory = np.full(step * m * n + 1, 7, np.float32)
    strides = (4 * step, 40) if n == 1 else (40, 4 * step)
    out = np.lib.stride_tricks.as_strided(memory, (m, n), strides)
    sparse_gemm(*operands, out)
    np.testing.assert_array_equal(out, expected)
    assert np.count_nonzero(memory == 7) == memory.size - m * n


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("offset", [1, 2, 3])
def test_misaligned_out(dtype, offset):
    """Out may start at any byte."""
    operands = random_operands(np.random.default_rng(3), 5, 7, 48)
    expected = sparse_gemm(*operands, out_dtype=dtype)
    size = numpy_dtype(dtype).itemsize
    memory = np.full(5 * 7 * size + 4, 0xAA, np.uint8)
    out = memory[offset : offset + 35 * size].view(numpy_dtype(dtype)).reshape(5, 7)
    sparse_gemm(*operands, out)
    np.testing.assert_array_equal(out, expected)
    assert (memory[:offset] == 0xAA).all()
    assert (memory[offset + 35 * size :] == 0xAA).all()


# --- devices ---


def test_mixed_devices(device, operands, tensors):
    if device.kind == "cpu":
        pytest.skip("one device alone")
    text = "all tensors must be on one device, got a_vals on cuda:0 and {} on cpu"
    for index in range(1, 5):
        refused(ValueError, text.format(NAMES[index]), *with_one(tensors, index, operands[index]))
    refused(ValueError, "got a_vals on cpu and a_meta on cuda:0", operands[0], *tensors[1:])
    refused(ValueError, text.format("out"), *tensors, np.zeros((M, N), np.float32))
    refused(ValueError, text.format("alpha"), *tensors, alpha=np.ones(1, np.float32))


# --- out ---


def test_out_overlaps_an_input(device, operands):
    """Sharing memory is refused by the byte: views that interleave without a common byte work."""
    vals = operands[0]
    row = vals.shape[1]
    wide = device.to(np.zeros((M, row + 2 * N + 64), np.uint8))
    view = wide[:, 64 : 64 + row]
    view[...] = device.to(vals)
    tensors = [view, *map(device.to, operands[1:])]

    def out_at(byte):
        part = wide[:, byte : byte + 2 * N]
        return part.view(device.empty((1,)).dtype)

    for touching in (64 - 2 * N + 2, 64, 64 + row - 2):
        refused(ValueError, "but overlaps a_vals", *tensors, out_at(touching))
    for beside in (0, 64 + row):
        view[...] = device.to(vals)
        out = out_at(beside)
        assert_same_bits(device.numpy(sparse_gemm(*tensors, out)), device.gemm(*operands))
        np.testing.assert_array_equal(device.numpy(view), vals)


@pytest.mark.parametrize("name", [*NAMES, "alpha"])
def test_out_is_an_input(name):
    """The same bytes as each input, whichever side of it they begin on."""
    m, n, k = 16, 8, 64
    operands = dict(zip(NAMES, random_operands(np.random.default_rng(4), m, n, k), strict=True))
    operands["alpha"] = np.ones((1, 1), np.float32).view(np.uint8)
    operand = operands[name]
    memory = np.zeros(2 * m * n + operand.size + 2 * m * n, np.uint8)
    at = 2 * m * n
    operands[name] = memory[at : at + operand.size].reshape(operand.shape)
    operands[name][...] = operand
    alpha = operands.pop("alpha").view(np.float32)
    for start in (1, at, at + operand.size - 1):
        out = memory[start : start + 2 * m * n].view(np.float16).reshape(m, n)
        refused(ValueError, f"overlaps {name}", **operands, alpha=alpha, out=out)
    for start in (0, at + operand.size):
        out = memory[start : start + 2 * m * n].view(np.float16).reshape(m, n)
        sparse_gemm(**operands, alpha=alpha, out=out)


def test_overlap_of_strided_regions_is_exact():
    """Against a set of addresses, for many pairs of strided views in one buffer."""
    rng = np.random.default_rng(5)
    m, n, k = 5, 3, 16
    operands = random_operands(rng, m, n, k)
    found = {True: 0, False: 0}
    for _ in range(3000):
        memory = np.zeros(400, np.uint8)
        out_step, in_step = int(rng.integers(n, 12)) * 2, int(rng.integers(4, 24))
        column_major = bool(rng.integers(2))
        shape, strides = ((m, n), (out_step, 2))
        if column_major:
            out_step = int(rng.integers(m, 12)) * 2
            strides = (2, out_step)
        out_start, in_start = (int(x) for x in rng.integers(0, 200, 2))
        runs = (n, m * 2) if column_major else (m, n * 2)
        written = {out_start + i * out_step + b for i in range(runs[0]) for b in range(runs[1])}
        read = {in_start + i * in_step + b for i in range(m) for b in range(4)}
        out = np.ndarray(shape, np.float16, memory, out_start, strides)
        vals = np.ndarray((m, 4), np.uint8, memory, in_start, (in_step, 1))
        overlaps = bool(written & read)
        found[overlaps] += 1
        if overlaps:
            refused(ValueError, "overlaps a_vals", vals, *operands[1:], out)
        else:
            sparse_gemm(vals, *operands[1:], out)
    assert min(found.values()) > 300


def test_read_only_out(operands):
    for dtype in ("float32", "bfloat16"):
        out = np.zeros((M, N), numpy_dtype(dtype))
        out.flags.writeable = False
        refused(ValueError, "out must be writable", *operands, out)
        assert not out.any()


def test_read_only_inputs(operands):
    frozen = [operand.copy() for operand in operands]
    for operand in frozen:
        operand.flags.writeable = False
    np.testing.assert_array_equal(sparse_gemm(*frozen), sparse_gemm(*operands))


# --- options ---


def test_out_dtype(device, tensors):
    for name in ("bfloat16", "float16", "float32"):
        for spelling in (name, numpy_dtype(name), numpy_dtype(name).type):
            assert device.host(sparse_gemm(*tensors, out_dtype=spelling)).dtype.kind in "fV"
            out = device.empty((M, N), name)
            assert sparse_gemm(*tensors, out, out_dtype=spelling) is out
        assert sparse_gemm(*tensors, out_dtype=name).dtype == device.empty((1,), name).dtype
        for other in {"bfloat16", "float16", "float32"} - {name}:
            text = f"out_dtype must agree with out, got out_dtype {other} and an out of {name}"
            refused(ValueError, text, *tensors, device.empty((M, N), name), out_dtype=other)
    for wrong in ("int8", "float", "half", "", "BFLOAT16", np.float64, np.dtype("i4"), 5):
        refused(
            ValueError, "out_dtype must be bfloat16, float16 or float32", *tensors, out_dtype=wrong
        )


def test_out_dtype_of_torch(operands):
    torch = pytest.importorskip("torch")
    assert sparse_gemm(*operands, out_dtype=torch.float16).dtype == np.float16
    assert sparse_gemm(*operands, out_dtype=torch.bfloat16).dtype == ml_dtypes.bfloat16
    refused(ValueError, "out_dtype must be", *operands, out_dtype=torch.float64)


@pytest.mark.parametrize(
    "alpha", [2, 2.0, True, np.float32(2), np.float64(2), np.int8(2), np.float16(2)], ids=repr
)
def test_alpha_numbers(device, operands, tensors, alpha):
    """The exact value is twice as large, so the bits are known."""
    got = device.numpy(sparse_gemm(*tensors, alpha=alpha, out_dtype="float32"))
    twice = device.gemm(*operands, out_dtype="float32") * np.float32(alpha)
    assert_same_bits(got, twice)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (1, 1, 1)], ids=str)
def test_alpha_tensors(device, operands, tensors, shape):
    alpha = device.to(np.full(shape, -0.5, np.float32))
    got = device.numpy(sparse_gemm(*tensors, alpha=alpha))
    assert_same_bits(got, device.gemm(*operands, alpha=-0.5))


def test_wrong_alpha(device, tensors):
    for wrong in ("1", [1.0], 1j, object()):
        refused(TypeError, "alpha must be a number or a float32 tensor", *tensors, alpha=wrong)
    refused(ValueError, "alpha must fit a float64", *tensors, alpha=10**400)
    for dtype in ("float16", "float64", "int32"):
        refused(TypeError, f"got a tensor of {dtype}", *tensors, alpha=device.to(np.ones(1, dtype)))
    for shape in ((2,), (0,), (1, 3)):
        wrong = device.to(np.ones(shape, np.float32))
        refused(
            ValueError, f"alpha must have one element, got shape {shape}", *tensors, alpha=wrong
        )


def test_misaligned_alpha(operands):
    memory = np.zeros(8, np.uint8)
    alpha = memory[1:5].view(np.float32)
    alpha[...] = 3
    np.testing.assert_array_equal(
        sparse_gemm(*operands, alpha=alpha), sparse_gemm(*operands, alpha=3)
    )


def test_kernel(device, tensors):
    refused(ValueError, "kernel names no kernel: 'fast'; there are ", *tensors, kernel="fast")
    refused(ValueError, "naive, cpu", *tensors, kernel="")
    refused(TypeError, "kernel must be a str", *tensors, kernel=1)
    other = "naive" if device.kind == "cpu" else "cpu"
    refused(ValueError, f"kernel={other} cannot run this: it runs on ", *tensors, kernel=other)


def test_stream(device, tensors):
    if device.kind == "cpu":
        for wrong in (0, 1, object()):
            refused(
                ValueError, "stream must be None for tensors in host memory", *tensors, stream=wrong
            )
        return
    for wrong in ("0", 1.0, [0], object()):
        refused(TypeError, "stream must be None, an int handle", *tensors, stream=wrong)
    for wrong in (-1, 2**70):
        refused(ValueError, "stream must be a stream handle", *tensors, stream=wrong)


# --- types of NumPy and JAX ---


def test_ml_dtypes_of_numpy(operands, device):
    a_vals, a_meta, a_scale, b_fp4, b_scale = operands
    e4m3 = ml_dtypes.float8_e4m3fn
    if device.kind != "cpu":
        pytest.skip("NumPy alone")
    got = sparse_gemm(a_vals, a_meta, a_scale.view(e4m3), b_fp4, b_scale.view(e4m3))
    np.testing.assert_array_equal(got, sparse_gemm(*operands))
    assert got.dtype == ml_dtypes.bfloat16
    wide = np.zeros((M, 2 * K // 16), e4m3)
    wide[:, 3 : 3 + K // 16] = a_scale.view(e4m3)
    wide.flags.writeable = False
    views = (a_vals, a_meta, wide[:, 3 : 3 + K // 16], b_fp4, b_scale)
    np.testing.assert_array_equal(sparse_gemm(*views), got)
    refused(
        ValueError,
        "a_scale must have stride 1",
        a_vals,
        a_meta,
        np.repeat(a_scale, 2, 1).view(e4m3)[:, ::2],
        b_fp4,
        b_scale,
    )
    out = np.zeros((N, M), ml_dtypes.bfloat16).T
    assert sparse_gemm(*operands, out) is out
    np.testing.assert_array_equal(out, got)


def test_wrong_dtypes_of_numpy(operands):
    for dtype in ("datetime64[s]", "complex64", "S1", ">f2", ml_dtypes.float8_e5m2, ml_dtypes.int4):
        wrong = np.zeros((M, K // 4), dtype)
        refused(TypeError, "a_vals", wrong, *operands[1:])
    float4 = np.zeros((M, K // 2), ml_dtypes.float4_e2m1fn)
    refused(TypeError, "a_vals must hold two float4 values per byte", float4, *operands[1:])


def test_jax(operands):
    jax = pytest.importorskip("jax")
    with jax.default_device(jax.devices("cpu")[0]):
        arrays = [jax.numpy.asarray(operand) for operand in operands]
        result = sparse_gemm(*arrays)
        assert isinstance(result, jax.Array)
        assert result.dtype == jax.numpy.bfloat16
        expected = sparse_gemm(*operands)
        np.testing.assert_array_equal(np.asarray(result), expected)
        np.testing.assert_array_equal(np.asarray(result + 0), expected)
        out = jax.numpy.zeros((M, N), jax.numpy.bfloat16)
        refused(ValueError, "JAX arrays are immutable", *arrays, out)
        refused(ValueError, "JAX arrays are immutable", *operands, out)
        assert not np.asarray(out).any()
        scale = arrays[2].view(jax.numpy.float8_e4m3fn)
        got = sparse_gemm(*arrays[:2], scale, *arrays[3:], out_dtype=jax.numpy.float32)
        np.testing.assert_array_equal(np.asarray(got), sparse_gemm(*operands, out_dtype="float32"))
        np.testing.assert_array_equal(sparse_gemm(operands[0], *arrays[1:]), expected)


def test_torch_types(operands):
    torch = pytest.importorskip("torch")
    tensors = [torch.from_numpy(operand) for operand in operands]
    expected = sparse_gemm(*tensors)
    assert type(expected) is torch.Tensor
    assert expected.dtype == torch.bfloat16
    typed = list(tensors)
    typed[2] = tensors[2].view(torch.float8_e4m3fn)
    if hasattr(torch, "float4_e2m1fn_x2"):
        typed[0] = tensors[0].view(torch.float4_e2m1fn_x2)
        typed[3] = tensors[3].view(torch.float4_e2m1fn_x2)
    typed[4] = torch.nn.Parameter(tensors[4], requires_grad=False)
    assert torch.equal(sparse_gemm(*typed), expected)
    parameter = torch.nn.Parameter(tensors[0], requires_grad=False)
    assert torch.equal(sparse_gemm(parameter, *tensors[1:]), expected)
    out = torch.zeros(N, M, dtype=torch.bfloat16).t()
    assert sparse_gemm(*tensors, out) is out
    assert torch.equal(out, expected)
    with pytest.raises((RuntimeError, ValueError, TypeError, BufferError)):
        sparse_gemm(tensors[0].to("meta"), *tensors[1:])
