# SPDX-License-Identifier: Apache-2.0
"""The DLPack protocol, both ways: what is read, what is refused, and what is given back when."""

import gc
import re

import ml_dtypes
import numpy as np
import pytest

from cases import random_operands
from dlpack_fakes import (
    CPU,
    CUDA_HOST,
    CUDA_MANAGED,
    PADDED,
    READ_ONLY,
    ROCM,
    Producer,
    capsule_name,
    exchange_type,
    failing_exchange_type,
)
from nvfp4sparse import cuda_info, sparse_gemm

NAMES = ("a_vals", "a_meta", "a_scale", "b_fp4", "b_scale")
STYLES = ("versioned", "legacy", "before-1.0")
M, N, K = 5, 6, 64


@pytest.fixture
def operands():
    return random_operands(np.random.default_rng(0), M, N, K)


@pytest.fixture
def expected(operands):
    return sparse_gemm(*operands, out_dtype="float32")


def gemm(*operands, **options):
    """The product as float32 in a NumPy array, whatever the operands are."""
    out = np.full((M, N), 7, np.float32)
    assert sparse_gemm(*operands, out, **options) is out
    return out


def with_one(operands, index, replacement):
    return [*operands[:index], replacement, *operands[index + 1 :]]


# --- what is read ---


@pytest.mark.parametrize("style", STYLES)
def test_capsules(operands, expected, style):
    """Every kind of capsule; each is taken over and its deleter runs once."""
    producers = [Producer(operand, style) for operand in operands]
    np.testing.assert_array_equal(gemm(*producers), expected)
    for producer in producers:
        assert producer.deleted == 1
        assert [capsule_name(c).split("_")[0] for c in producer.capsules] == ["used"]
        assert producer.asked[0]["max_version"] == (1, 3)
        assert len(producer.asked) == (2 if style == "before-1.0" else 1)
        assert not any("stream" in c for c in producer.asked)  # CPU producers take none


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("index", range(5), ids=NAMES)
def test_facts(operands, expected, style, index):
    """Offsets are in bytes and added; missing strides mean row-major; no deleter is needed."""
    operand = operands[index]
    shifted = np.concatenate([np.zeros(3, np.uint8), operand.ravel()])
    one = Producer(shifted, style, shape=operand.shape, strides=None, byte_offset=3)
    np.testing.assert_array_equal(gemm(*with_one(operands, index, one)), expected)
    assert one.deleted == 1
    one = Producer(operand, style, has_deleter=False, version=(1, 99), flags=READ_ONLY)
    np.testing.assert_array_equal(gemm(*with_one(operands, index, one)), expected)


@pytest.mark.parametrize("device", [(CPU, 5), (CUDA_HOST, 0), (CUDA_HOST, 1)])
def test_host_memory(operands, expected, device):
    """Pinned memory is host memory, and host memory has no number."""
    producers = [Producer(operands[0]), *(Producer(o, device=device) for o in operands[1:])]
    np.testing.assert_array_equal(gemm(*producers), expected)


def test_strides_of_extent_one_count_for_nothing():
    operands = random_operands(np.random.default_rng(1), 1, 1, 16)
    expected = sparse_gemm(*operands)
    producers = [Producer(o, strides=(-77, -99 if o.shape[1] == 1 else 1)) for o in operands]
    out = np.zeros((1, 1), np.uint16)
    sparse_gemm(*producers, Producer(out, dtype="bfloat16", strides=(-5, 0)))
    np.testing.assert_array_equal(out.view(ml_dtypes.bfloat16), expected)


@pytest.mark.parametrize("style", STYLES)
def test_empty_tensors_may_have_no_data(style):
    operands = random_operands(np.random.default_rng(2), M, N, 0)
    producers = [Producer(o, style, data=None, strides=(0, 0)) for o in operands]
    assert not gemm(*producers).any()


@pytest.mark.parametrize("dtype", ["int8", "float4_e2m1fn_x2"])
@pytest.mark.parametrize("index", [0, 3])
def test_float4_pairs(operands, expected, dtype, index):
    one = Producer(operands[index], dtype=dtype)
    np.testing.assert_array_equal(gemm(*with_one(operands, index, one)), expected)


@pytest.mark.parametrize("index", [0, 3])
def test_float4_values(operands, expected, index):
    """Shape and strides count values: two to a byte."""
    operand = operands[index]
    rows, columns = operand.shape
    one = Producer(operand, dtype="float4_e2m1fn", shape=(rows, 2 * columns), strides=None)
    np.testing.assert_array_equal(gemm(*with_one(operands, index, one)), expected)
    wide = np.concatenate([operand, operand], axis=1)
    one = Producer(wide, dtype="float4_e2m1fn", shape=(rows, 2 * columns), strides=(4 * columns, 1))
    np.testing.assert_array_equal(gemm(*with_one(operands, index, one)), expected)


# --- what is refused, and given back all the same ---

BROKEN = {
    "negative ndim": (dict(ndim=-1), BufferError, "negative number of dimensions"),
    "many dimensions": (dict(shape=(1,) * 9, strides=(1,) * 9), ValueError, "at most 8 dimensions"),
    "no shape": (dict(shape=None), BufferError, "no shape"),
    "negative extent": (dict(shape=(-M, 16)), BufferError, "negative extent"),
    "no data": (dict(data=None), BufferError, "no data"),
    "huge extent": (dict(shape=(2**62, 16)), ValueError, "2^57 bytes"),
    "huge product": (dict(shape=(2**40, 2**40), strides=None), ValueError, "2^57 bytes"),
    "huge stride": (dict(strides=(2**61, 1)), ValueError, "2^57 bytes"),
    "least stride": (dict(strides=(-(2**63), 1)), ValueError, "2^57 bytes"),
    "huge offset": (dict(byte_offset=2**64 - 1), BufferError, "byte offset"),
    "a scalar": (dict(shape=(), strides=()), ValueError, "must have shape"),
}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("case", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("index", [0, 4])
def test_broken_producers(operands, expected, style, case, index):
    facts, error, text = case
    producers = [Producer(operand, style) for operand in operands]
    producers[index] = Producer(operands[index], style, **facts)
    with pytest.raises(error, match=re.escape(text)) as caught:
        gemm(*producers)
    assert f"sparse_gemm: {NAMES[index]} " in str(caught.value)
    assert [p.deleted for p in producers[: index + 1]] == [1] * (index + 1)
    assert [p.deleted for p in producers[index + 1 :]] == [
        len(p.asked) > 0 for p in producers[index + 1 :]
    ]
    np.testing.assert_array_equal(gemm(*operands), expected)


@pytest.mark.parametrize("version", [(0, 8), (2, 0), (99, 1)])
def test_unknown_major_version(operands, version):
    """Nothing but the deleter may be touched: the tensor behind it is not even there."""
    one = Producer(operands[2], version=version, data=1, ndim=1000)
    with pytest.raises(BufferError, match=r"a_scale was exported as DLPack \d+\.\d+"):
        gemm(*with_one(operands, 2, one))
    assert one.deleted == 1


def test_consumed_capsule(operands):
    """A capsule can be had once; its tensor is then not ours to free."""
    first = Producer(operands[1])
    gemm(*with_one(operands, 1, first))
    second = Producer(operands[1])
    second.__dlpack__ = None

    class Again(Producer):
        def __dlpack__(self, **keywords):
            return first.capsules[0]

    with pytest.raises(BufferError, match="a_meta comes from a broken DLPack producer"):
        gemm(*with_one(operands, 1, Again(operands[1])))
    assert first.deleted == 1


@pytest.mark.parametrize("returned", [None, 5, "dltensor", object()])
def test_no_capsule(operands, returned):
    class Wrong(Producer):
        def __dlpack__(self, **keywords):
            return returned

    with pytest.raises(BufferError, match="must return a capsule"):
        gemm(*with_one(operands, 3, Wrong(operands[3])))


@pytest.mark.parametrize("returned", [None, 5, (1,), (1, 0, 0), (2**40, 0), (2**80, 0), ("cpu", 0)])
def test_no_device(operands, returned):
    class Wrong(Producer):
        def __dlpack_device__(self):
            return returned

    with pytest.raises(BufferError, match="b_fp4 "):
        gemm(*with_one(operands, 3, Wrong(operands[3])))


@pytest.mark.parametrize("error", [BufferError("no"), TypeError("no"), KeyError("no")], ids=repr)
def test_errors_of_a_producer_come_through(operands, expected, error):
    class Raising(Producer):
        def __dlpack__(self, **keywords):
            raise error

    producers = [Producer(operand) for operand in operands[:4]]
    with pytest.raises(type(error)) as caught:
        gemm(*producers, Raising(operands[4]))
    assert caught.value is error
    assert [p.deleted for p in producers] == [1] * 4
    np.testing.assert_array_equal(gemm(*operands), expected)


def test_an_error_survives_deleters(operands):
    """A deleter may run Python, and raise and catch errors of its own."""

    def busy():
        try:
            raise ZeroDivisionError
        except ZeroDivisionError:
            gc.collect()

    producers = [Producer(operand, on_delete=busy) for operand in operands]
    producers[4] = Producer(operands[4][:, :-1], on_delete=busy)
    with pytest.raises(ValueError, match=re.escape("b_scale must have shape (n, k/16) = (6, 4)")):
        gemm(*producers)
    assert [p.deleted for p in producers] == [1] * 5


@pytest.mark.parametrize(
    "facts", [dict(strides=(-16, 1)), dict(strides=(0, 1)), dict(strides=(1, 5))]
)
def test_strides(operands, facts):
    with pytest.raises(ValueError, match=r"a_meta must have .*\.contiguous\(\)"):
        gemm(*with_one(operands, 1, Producer(operands[1], **facts)))


WRONG_DTYPES = [
    "uint16",
    "float16",
    "bfloat16",
    "float32",
    "bool",
    (12, 8, 1),
    (1, 8, 2),
    (200, 0, 0),
]


@pytest.mark.parametrize("dtype", [*WRONG_DTYPES, "float4_e2m1fn", "float8_e4m3fn"], ids=str)
@pytest.mark.parametrize("index", range(5), ids=NAMES)
def test_wrong_dtypes(operands, dtype, index):
    allowed = {"float4_e2m1fn": (0, 3), "float8_e4m3fn": (2, 4)}
    if index in allowed.get(dtype, ()):
        pytest.skip("a right one")
    one = Producer(operands[index], dtype=dtype)
    with pytest.raises(TypeError, match=f"sparse_gemm: {NAMES[index]} must be int8") as caught:
        gemm(*with_one(operands, index, one))
    assert "view" in str(caught.value)
    assert one.deleted == 1


def test_float4_that_is_no_packed_bytes(operands):
    vals = operands[0]
    rows, columns = vals.shape
    values = dict(dtype="float4_e2m1fn", shape=(rows, 2 * columns), strides=None)
    with pytest.raises(TypeError, match="a_vals must hold two float4 values per byte"):
        gemm(Producer(vals, flags=PADDED, **values), *operands[1:])
    with pytest.raises(ValueError, match="a_vals must have rows of whole bytes, got 31"):
        gemm(Producer(vals, **{**values, "shape": (rows, 31)}), *operands[1:])
    with pytest.raises(ValueError, match="a_vals must have rows that start at whole bytes"):
        gemm(Producer(vals, **{**values, "strides": (33, 1)}), *operands[1:])
    with pytest.raises(ValueError, match="a_vals must have stride 1"):
        gemm(Producer(vals, **{**values, "strides": (32, 2)}), *operands[1:])


@pytest.mark.parametrize("device", [(ROCM, 0), (7, 0), (0, 0), (-1, 3)])
def test_other_devices(operands, device):
    one = Producer(operands[0], device=device)
    with pytest.raises(ValueError, match=rf"a_vals must be in host memory .* {device[0]} "):
        gemm(one, *operands[1:])
    assert one.asked == []


def test_managed_memory_is_cuda_memory(operands):
    """Only where there is no driver: with one, this host address would be used."""
    if cuda_info()["driver"]:
        pytest.skip("there is a CUDA driver")
    producers = [Producer(operand, device=(CUDA_MANAGED, 0)) for operand in operands]
    with pytest.raises(RuntimeError, match="no CUDA driver"):
        sparse_gemm(*producers)
    assert [p.deleted for p in producers] == [1] * 5


@pytest.mark.parametrize("flags", [READ_ONLY, READ_ONLY | PADDED])
def test_read_only_out(operands, flags):
    out = Producer(np.zeros((M, N), np.float32), flags=flags)
    with pytest.raises(ValueError, match="out must be writable"):
        sparse_gemm(*operands, out)
    assert out.deleted == 1
    assert not out.array.any()


@pytest.mark.parametrize("style", STYLES)
def test_out(operands, expected, style):
    out = Producer(np.zeros((M, N), np.float32), style)
    assert sparse_gemm(*operands, out) is out
    np.testing.assert_array_equal(out.array, expected)
    assert out.deleted == 1


# --- the exchange API ---


@pytest.mark.parametrize("owning", [False, True])
@pytest.mark.parametrize(
    "versions", [((1, 3),), ((1, 77),), ((2, 0), (1, 3)), ((3, 1), (2, 0), (1, 0))]
)
def test_exchange_api(operands, expected, owning, versions):
    exchanging = exchange_type(owning=owning, versions=versions)

    class Subclass(exchanging):
        pass

    for kind in (exchanging, Subclass):
        producers = [kind(operand) for operand in operands]
        out = kind(np.zeros((M, N), np.float32))
        assert sparse_gemm(*producers, out) is out
        np.testing.assert_array_equal(out.array, expected)
        assert [p.conversions for p in [*producers, out]] == [1] * 6
        assert [p.deleted for p in [*producers, out]] == [int(owning)] * 6
        assert [p.asked for p in producers] == [[]] * 5
    assert exchanging.stream_queries == []  # host memory has no stream


@pytest.mark.parametrize(
    "options", [dict(versions=((2, 0),)), dict(versions=((0, 9),)), dict(capsule=b"other")]
)
def test_an_exchange_api_we_cannot_read(operands, expected, options):
    exchanging = exchange_type(**options)
    producers = [exchanging(operand) for operand in operands]
    np.testing.assert_array_equal(gemm(*producers), expected)
    assert [p.conversions for p in producers] == [0] * 5
    assert [p.deleted for p in producers] == [1] * 5


def test_an_exchange_api_that_is_no_capsule(operands, expected):
    class Odd(Producer):
        __dlpack_c_exchange_api__ = 5

    np.testing.assert_array_equal(gemm(*map(Odd, operands)), expected)


@pytest.mark.parametrize("owning", [False, True])
def test_exchange_api_fails(operands, expected, owning):
    silent = exchange_type(owning=owning, status=-1)
    with pytest.raises(BufferError, match="a_meta: its DLPack exchange API failed"):
        gemm(*with_one(operands, 1, silent(operands[1])))
    with pytest.raises(TypeError, match="has no len"):
        gemm(*with_one(operands, 1, failing_exchange_type()(operands[1])))
    np.testing.assert_array_equal(gemm(*operands), expected)


def test_exchange_api_unknown_major_of_a_tensor(operands):
    one = exchange_type(owning=True)(operands[1], version=(2, 0))
    with pytest.raises(BufferError):
        gemm(*with_one(operands, 1, one))
    assert one.deleted == 1


def test_exchange_api_broken_tensor(operands):
    one = exchange_type(owning=True)(operands[1], shape=(-1, 16))
    with pytest.raises(BufferError, match="negative extent"):
        gemm(*with_one(operands, 1, one))
    assert one.deleted == 1


# --- results for a framework that is not known ---


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_result(operands, dtype):
    result = sparse_gemm(*map(Producer, operands), out_dtype=dtype)
    assert result.__dlpack_device__() == (CPU, 0)
    assert result.shape == (M, N)
    assert f"{dtype} (5, 6) on cpu" in repr(result)
    expected = sparse_gemm(*operands, out_dtype=dtype)
    if dtype == "bfloat16":  # not for NumPy: back through ourselves, as an alias of itself
        with pytest.raises(ValueError, match="out_dtype must agree"):
            sparse_gemm(*operands, result, out_dtype="float32")
        torch = pytest.importorskip("torch")
        got = torch.from_dlpack(result).float().numpy()
        np.testing.assert_array_equal(got, expected.astype(np.float32))
        return
    first, second = np.from_dlpack(result), np.from_dlpack(result)
    del result
    gc.collect()
    np.testing.assert_array_equal(first, expected)
    assert np.shares_memory(first, second)


def test_result_protocol(operands):
    result = sparse_gemm(*map(Producer, operands), out_dtype="float32")
    assert capsule_name(result.__dlpack__()) == "dltensor"
    assert capsule_name(result.__dlpack__(max_version=(0, 8))) == "dltensor"
    assert capsule_name(result.__dlpack__(max_version=(1, 0))) == "dltensor_versioned"
    assert capsule_name(result.__dlpack__(max_version=(7, 0))) == "dltensor_versioned"
    assert capsule_name(result.__dlpack__(stream=None, dl_device=(1, 0), copy=False)) == "dltensor"
    for wrong, error in (
        (dict(stream=1), ValueError),
        (dict(copy=True), BufferError),
        (dict(dl_device=(2, 0)), BufferError),
        (dict(dl_device="cpu"), TypeError),
        (dict(max_version=1), TypeError),
        (dict(unheard_of=1), TypeError),
    ):
        with pytest.raises(error):
            result.__dlpack__(**wrong)
    with pytest.raises(TypeError):
        type(result)()


def test_result_as_out(operands, expected):
    result = sparse_gemm(*map(Producer, operands), out_dtype="float32", alpha=0.0)
    assert not np.from_dlpack(result).any()
    assert sparse_gemm(*operands, result) is result
    np.testing.assert_array_equal(np.from_dlpack(result), expected)


@pytest.mark.parametrize("shape", [(0, 3, 16), (3, 0, 16)])
def test_empty_results(shape):
    operands = random_operands(np.random.default_rng(3), *shape)
    result = sparse_gemm(*map(Producer, operands), out_dtype="float32")
    assert np.from_dlpack(result).shape == shape[:2]
