# SPDX-License-Identifier: Apache-2.0
"""Streams and graphs on a real GPU. (Without one: test_driver.py. First calls and forks:
test_processes.py. Two GPUs: test_two_devices.py.)

The way to see whose stream a call ran on: operands are zeros until the stream, after a long wait,
copies the real ones in. A call on another stream would find zeros, or half of a copy.
"""

import time

import numpy as np
import pytest

from cases import random_operands
from conftest import missing
from dlpack_fakes import Foreign
from nvfp4sparse import cuda_info, kernels, sparse_gemm
from reference import assert_within_bound

pytestmark = pytest.mark.cuda

SHAPE = (33, 47, 512)
WAIT = 200_000_000  # GPU clocks, about 0.1 s


@pytest.fixture(scope="module")
def host():
    return random_operands(np.random.default_rng(0), *SHAPE, scales="ordinary")


@pytest.fixture(scope="module")
def torch(torch_cuda):
    return torch_cuda


@pytest.fixture
def late(torch, host):
    """(operands that are still zero, a function that fills them late on the current stream)."""
    real = [torch.from_numpy(operand).cuda() for operand in host]
    zeros = [torch.zeros_like(operand) for operand in real]
    torch.cuda.synchronize()

    def fill():
        torch.cuda._sleep(WAIT)
        for target, source in zip(zeros, real, strict=True):
            target.copy_(source, non_blocking=True)

    return zeros, fill


@pytest.fixture(scope="module")
def expected(torch, host):
    """The bits that a call gives when nothing is going on."""
    return sparse_gemm(*(torch.from_numpy(operand).cuda() for operand in host)).float().cpu()


def side_streams(torch):
    return {
        "default": torch.cuda.default_stream(),
        "side": torch.cuda.Stream(),
        "urgent": torch.cuda.Stream(priority=-1),
    }


@pytest.mark.parametrize("name", ["default", "side", "urgent"])
@pytest.mark.parametrize("given", [False, True])
def test_current_stream(torch, late, expected, name, given):
    """The current stream of PyTorch; what follows on it sees the result."""
    operands, fill = late
    stream = side_streams(torch)[name]
    out = torch.zeros(SHAPE[:2], dtype=torch.bfloat16, device="cuda") if given else None
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        fill()
        result = sparse_gemm(*operands, out)
        copied = result.float()
    stream.synchronize()
    assert torch.equal(copied.cpu(), expected)


@pytest.mark.parametrize("spelling", ["int", "object"])
def test_given_stream(torch, late, expected, spelling):
    """Another stream than the current one, for the kernel and for the result's memory."""
    operands, fill = late
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        fill()
    if spelling == "object" and not hasattr(stream, "__cuda_stream__"):
        pytest.skip("an older PyTorch")
    result = sparse_gemm(*operands, stream=stream if spelling == "object" else stream.cuda_stream)
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    with torch.cuda.stream(stream):
        copied = result.float()
    stream.synchronize()
    assert torch.equal(copied.cpu(), expected)


@pytest.mark.parametrize("handle", [0, 1, 2])
def test_default_streams_by_number(torch, host, expected, handle):
    operands = [torch.from_numpy(operand).cuda() for operand in host]
    torch.cuda.synchronize()
    result = sparse_gemm(*operands, stream=handle)
    torch.cuda.synchronize()
    assert torch.equal(result.float().cpu(), expected)


def test_a_call_does_not_wait(torch, late):
    operands, fill = late
    out = torch.empty(SHAPE[:2], dtype=torch.bfloat16, device="cuda")
    sparse_gemm(*operands, out)
    torch.cuda.synchronize()
    fill()
    start = time.perf_counter()
    sparse_gemm(*operands, out)
    sparse_gemm(*operands)
    taken = time.perf_counter() - start
    assert not torch.cuda.current_stream().query()
    assert taken < 0.03
    torch.cuda.synchronize()


def test_memory_of_a_result_is_the_frameworks(torch, host):
    operands = [torch.from_numpy(operand).cuda() for operand in host]
    before = torch.cuda.memory_allocated()
    result = sparse_gemm(*operands)
    assert torch.cuda.memory_allocated() > before
    assert result.is_contiguous()
    assert not result.requires_grad
    del result
    assert torch.cuda.memory_allocated() == before


@pytest.mark.parametrize("kernel", [row["name"] for row in kernels() if row["kind"] == "cuda"])
def test_graph(torch, kernel):
    """A captured call sees new operands and a new alpha, and gives the bits of an eager one."""
    row = next(row for row in kernels() if row["name"] == kernel)
    if not row["cc_min"] <= cuda_info()["devices"][0]["cc"] <= row["cc_max"]:
        pytest.skip(f"{kernel} is for other GPUs")
    m, n = max(row["m_min"], min(16, row["m_max"])), min(64, row["n_max"])
    shape = m, n, min(2048, row["k_max"])
    rng = np.random.default_rng(1)
    operands = [torch.from_numpy(o).cuda() for o in random_operands(rng, *shape)]
    alpha = torch.ones(1, device="cuda")
    out = torch.empty(shape[:2], dtype=torch.float32, device="cuda")
    sparse_gemm(*operands, kernel=kernel)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sparse_gemm(*operands, out, alpha=alpha, kernel=kernel)
        own = sparse_gemm(*operands, alpha=alpha, kernel=kernel)
    for seed, factor in ((2, 1.0), (3, -0.75), (4, 0.0)):
        fresh = random_operands(np.random.default_rng(seed), *shape)
        for target, source in zip(operands, fresh, strict=True):
            target.copy_(torch.from_numpy(source))
        alpha.fill_(factor)
        for _ in range(2):
            graph.replay()
        torch.cuda.synchronize()
        eager = sparse_gemm(*operands, alpha=factor, kernel=kernel)
        assert torch.equal(own.view(torch.int16), eager.view(torch.int16))
        eager = sparse_gemm(*operands, alpha=factor, out_dtype="float32", kernel=kernel)
        assert torch.equal(out.view(torch.int32), eager.view(torch.int32))


def test_errors_leave_the_context_alone(torch, host, expected):
    operands = [torch.from_numpy(operand).cuda() for operand in host]
    for wrong in (dict(kernel="none"), dict(stream=-1), dict(alpha="x"), dict(out_dtype="int8")):
        with pytest.raises((ValueError, TypeError)):
            sparse_gemm(*operands, **wrong)
        assert torch.equal(sparse_gemm(*operands).float().cpu(), expected)
    with pytest.raises(ValueError, match="one device"):
        sparse_gemm(*operands[:4], host[4])
    torch.cuda.synchronize()


# --- other frameworks ---


def test_cupy_streams(cupy_cuda, host, expected):
    """CuPy's current stream, and a given one."""
    cupy = cupy_cuda
    operands = [cupy.asarray(operand) for operand in host]
    cupy.cuda.Device().synchronize()
    for non_blocking in (False, True):
        stream = cupy.cuda.Stream(non_blocking=non_blocking)
        with stream:
            inside = sparse_gemm(*operands)
        given = sparse_gemm(*operands, stream=stream)
        by_handle = sparse_gemm(*operands, stream=stream.ptr)
        stream.synchronize()
        for result in (inside, given, by_handle, sparse_gemm(*operands)):
            bits = cupy.asnumpy(result.view(np.uint16)).astype(np.uint32) << 16
            np.testing.assert_array_equal(bits.view(np.float32), expected.numpy())


def test_cupy_graph(cupy_cuda, host, expected):
    cupy = cupy_cuda
    operands = [cupy.asarray(operand) for operand in host]
    out = cupy.zeros(SHAPE[:2], np.float32)
    eager = cupy.asnumpy(sparse_gemm(*operands, out_dtype="float32"))
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        sparse_gemm(*operands, out)
        graph = stream.end_capture()
    graph.launch(stream=stream)
    stream.synchronize()
    np.testing.assert_array_equal(cupy.asnumpy(out), eager)


def test_cupy_operands_follow_the_stream_of_pytorch(torch, cupy_cuda, late, expected):
    """a_vals decides; a producer of another framework is told to let its stream wait."""
    operands, fill = late
    stream = torch.cuda.Stream()
    scale = cupy_cuda.asarray(operands[4].cpu().numpy())
    cupy_cuda.cuda.Device().synchronize()
    with torch.cuda.stream(stream):
        fill()
        scale_is_late = cupy_cuda.from_dlpack(operands[4])
        result = sparse_gemm(*operands[:4], scale_is_late)
        copied = result.float()
    stream.synchronize()
    assert scale.shape == scale_is_late.shape
    assert torch.equal(copied.cpu(), expected)


def test_pytorch_operands_follow_the_stream_of_cupy(torch, cupy_cuda, host, late, expected):
    """The other way round: PyTorch's are filled on its side stream, and CuPy's waits for that."""
    operands, fill = late
    vals = cupy_cuda.asarray(host[0])
    cupy_cuda.cuda.Device().synchronize()
    with torch.cuda.stream(torch.cuda.Stream()), cupy_cuda.cuda.Stream(non_blocking=True):
        fill()
        result = sparse_gemm(vals, *operands[1:])
        assert isinstance(result, cupy_cuda.ndarray)
        bits = cupy_cuda.asnumpy(result.view(np.uint16)).astype(np.uint32) << 16
    np.testing.assert_array_equal(bits.view(np.float32), expected.numpy())


@pytest.mark.parametrize("reader", ["default", "side"])
def test_result_of_our_own(torch, host, expected, reader):
    """Readers wait for the kernel, on any stream; many in turn, so that memory is used again."""
    operands = [torch.from_numpy(operand).cuda() for operand in host]
    stream = side_streams(torch)[reader]
    torch.cuda.synchronize()
    for _ in range(20):
        result = sparse_gemm(*map(Foreign, operands))
        with torch.cuda.stream(stream):
            copied = torch.from_dlpack(result).float()
        del result
        stream.synchronize()
        assert torch.equal(copied.cpu(), expected)


def test_jax(torch, host, expected):
    jax = pytest.importorskip("jax")
    try:
        gpu = jax.devices("gpu")[0]
    except RuntimeError as error:
        missing(f"JAX sees no GPU ({error})")
    arrays = [jax.device_put(operand, gpu) for operand in host]
    for _ in range(20):
        result = sparse_gemm(*arrays)
        assert isinstance(result, jax.Array)
        doubled = result.astype(jax.numpy.float32) * 2
        del result
        np.testing.assert_array_equal(np.asarray(doubled), expected.numpy() * 2)
    with pytest.raises(ValueError, match="JAX arrays are immutable"):
        sparse_gemm(*arrays, jax.numpy.zeros(SHAPE[:2], jax.numpy.bfloat16))


def test_information(torch):
    info = cuda_info()
    assert info["available"] is True
    assert len(info["devices"]) == torch.cuda.device_count()
    properties = torch.cuda.get_device_properties(0)
    assert info["devices"][0]["cc"] == 10 * properties.major + properties.minor
    assert info["devices"][0]["sm_count"] == properties.multi_processor_count


def test_more_elements_than_int32(torch):
    """C of more than 2^31 elements: the last row and column are right."""
    m, n, k = 65536, 32800, 16
    if torch.cuda.mem_get_info()[0] < 3 * m * n * 2:
        pytest.skip("too little memory")
    host = random_operands(np.random.default_rng(5), m, n, k, scales="ordinary")
    out = sparse_gemm(*(torch.from_numpy(operand).cuda() for operand in host))
    for rows, columns in ((slice(-3, None), slice(-5, None)), (slice(0, 3), slice(-5, None))):
        a, b = (operand[rows] for operand in host[:3]), (operand[columns] for operand in host[3:])
        got = out[rows, columns].float().cpu().numpy()
        assert_within_bound(got, (*a, *b))
