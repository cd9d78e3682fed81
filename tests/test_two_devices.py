# SPDX-License-Identifier: Apache-2.0
"""Two GPUs: tensors on the one that is not current, on both, and first uses of each.

HERE is current throughout, THERE is not. What the first device gives is the measure for the
second, bit by bit. Late operands: see test_stream.py.
"""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

from cases import random_operands
from conftest import missing
from dlpack_fakes import CUDA, Foreign
from kernels import check
from new_processes import case_names, complaints_of
from nvfp4sparse import cuda_info, kernels, plan, sparse_gemm

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # other tests need memory as well

pytestmark = pytest.mark.cuda

SHAPE = (33, 47, 512)
WAIT = 200_000_000  # GPU clocks, about 0.1 s
HERE, THERE = "cuda:0", "cuda:1"
STREAMS = ("default", "side", "urgent")
ON_BOTH = "all tensors must be on one device, got a_vals on {} and {} on {}"


@pytest.fixture(scope="module")
def torch(torch_cuda):
    """PyTorch, where it sees two GPUs."""
    if torch_cuda.cuda.device_count() < 2:
        pytest.skip("one GPU alone")
    return torch_cuda


@pytest.fixture(autouse=True)
def the_current_device_stays(torch):
    assert torch.cuda.current_device() == 0
    yield
    assert torch.cuda.current_device() == 0
    for place in (HERE, THERE):
        torch.cuda.synchronize(place)


@pytest.fixture(scope="module")
def host():
    return random_operands(np.random.default_rng(0), *SHAPE, scales="ordinary")


@pytest.fixture(scope="module")
def both(torch, host):
    """The operands on each device."""
    return {place: put(torch, host, place) for place in (HERE, THERE)}


@pytest.fixture(scope="module")
def here(both):
    return both[HERE]


@pytest.fixture(scope="module")
def there(both):
    return both[THERE]


@pytest.fixture(scope="module")
def expected(torch, here, host):
    """The bits on device 0."""
    result = sparse_gemm(*here)
    check("auto", result.float().cpu().numpy(), host)
    return result.cpu()


@pytest.fixture(scope="module")
def halved(torch, here):
    """The same in float32, with alpha=0.5."""
    return sparse_gemm(*here, alpha=0.5, out_dtype="float32").cpu()


@pytest.fixture
def half(torch):
    return torch.full((1,), 0.5, device=THERE)


def put(torch, arrays, place):
    moved = [torch.from_numpy(np.array(array)).to(place) for array in arrays]
    torch.cuda.synchronize(place)
    return moved


def stream_on(torch, place, name):
    if name == "default":
        return torch.cuda.default_stream(place)
    return torch.cuda.Stream(place, priority=-1 if name == "urgent" else 0)


@contextmanager
def current(torch, stream):
    """The stream is current on its device; device 0 stays the current one."""
    with torch.cuda.stream(stream), torch.cuda.device(0):
        yield


def bits(torch, tensor):
    """The elements as integers, in host memory."""
    integers = {torch.bfloat16: torch.int16, torch.float32: torch.int32}[tensor.dtype]
    return tensor.cpu().view(integers).numpy()


def assert_same(torch, got, wanted, place=THERE):
    assert str(got.device) == place
    np.testing.assert_array_equal(bits(torch, got), bits(torch, wanted))


def assert_both_work(torch, both, expected):
    assert torch.cuda.current_device() == 0
    for place, operands in both.items():
        assert_same(torch, sparse_gemm(*operands), expected, place)


# --- the other device than the current one ---


@pytest.mark.parametrize("kernel", [row["name"] for row in kernels() if row["kind"] == "cuda"])
def test_every_kernel(torch, half, kernel):
    row = next(row for row in kernels() if row["name"] == kernel)
    if not row["cc_min"] <= cuda_info()["devices"][0]["cc"] <= row["cc_max"]:
        pytest.skip("a kernel for other GPUs")
    n = min(max(row["n_min"], 24), row["n_max"])
    shape = max(row["m_min"], 5), n, max(row["k_multiple"], 256)
    host = random_operands(np.random.default_rng(1), *shape)
    here, there = put(torch, host, HERE), put(torch, host, THERE)
    expected = sparse_gemm(*here, kernel=kernel)
    check(kernel, expected.float().cpu().numpy(), host)
    halved = sparse_gemm(*here, alpha=0.5, out_dtype="float32", kernel=kernel)
    for name in STREAMS:
        stream = stream_on(torch, THERE, name)
        out = torch.full(shape[:2], 7.0, device=THERE)
        torch.cuda.synchronize(THERE)
        with current(torch, stream):
            result = sparse_gemm(*there, kernel=kernel)
            scaled = sparse_gemm(*there, alpha=half, out_dtype="float32", kernel=kernel)
            assert sparse_gemm(*there, out, alpha=half, kernel=kernel) is out
            assert torch.cuda.current_device() == 0
        stream.synchronize()
        assert_same(torch, result, expected)
        assert_same(torch, scaled, halved)
        assert_same(torch, out, halved)


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("given", [False, True], ids=["current", "given"])
def test_streams(torch, there, expected, name, given):
    """Late operands: a call on another stream, or on that of device 0, would find zeros."""
    zeros = [torch.zeros_like(operand) for operand in there]
    out = torch.zeros(SHAPE[:2], dtype=torch.bfloat16, device=THERE)
    stream = stream_on(torch, THERE, name)
    torch.cuda.synchronize(THERE)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(WAIT)
        for target, source in zip(zeros, there, strict=True):
            target.copy_(source, non_blocking=True)
    assert torch.cuda.current_device() == 0
    if given:
        result = sparse_gemm(*zeros, stream=stream.cuda_stream)
        sparse_gemm(*zeros, out, stream=stream.cuda_stream)
    else:
        with current(torch, stream):
            result = sparse_gemm(*zeros)
            sparse_gemm(*zeros, out)
    assert torch.cuda.current_device() == 0
    with torch.cuda.stream(stream):
        copies = [result.clone(), out.clone()]
    stream.synchronize()
    for copied in copies:
        assert_same(torch, copied, expected)


@pytest.mark.parametrize("name", STREAMS)
def test_operators_of_pytorch(torch, there, expected, halved, half, name):
    operators = torch.ops.nvfp4sparse
    stream = stream_on(torch, THERE, name)
    out = torch.zeros(SHAPE[:2], device=THERE)
    torch.cuda.synchronize(THERE)
    with current(torch, stream):
        result = operators.sparse_gemm(*there)
        scaled = operators.sparse_gemm(*there, alpha_tensor=half, out_dtype=torch.float32)
        operators.sparse_gemm_out(*there, out, alpha=0.5)
    stream.synchronize()
    assert_same(torch, result, expected)
    assert_same(torch, scaled, halved)
    assert_same(torch, out, halved)


class Elsewhere(Foreign):
    """PyTorch exports no tensor of a device that is not current; this producer does."""

    def __init__(self, tensor, torch):
        super().__init__(tensor)
        self.device = torch.cuda.device(tensor.device)

    def __dlpack__(self, *, stream=None, max_version=None):
        with self.device:
            return super().__dlpack__(stream=stream)


@pytest.mark.parametrize("reader", STREAMS)
def test_result_of_our_own(torch, there, expected, reader):
    """Memory of ours on device 1, read on a stream of it; many in turn, so that it is used again.

    Readers wait for the kernel, which runs on the default stream, after a wait.
    """
    operands = [Elsewhere(operand, torch) for operand in there]
    stream = stream_on(torch, THERE, reader)
    for _ in range(10):
        with torch.cuda.device(1):
            torch.cuda._sleep(WAIT // 20)
        result = sparse_gemm(*operands)
        assert result.__dlpack_device__() == (CUDA, 1)
        with current(torch, stream):
            copied = torch.from_dlpack(result).clone()
        del result
        stream.synchronize()
        assert_same(torch, copied, expected)


def test_unknown_producers_beside_pytorch(torch, there, expected):
    """As one of the inputs, and as out."""
    out = torch.zeros(SHAPE[:2], dtype=torch.bfloat16, device=THERE)
    torch.cuda.synchronize(THERE)
    mixed = [*there[:4], Elsewhere(there[4], torch)]
    assert_same(torch, sparse_gemm(*mixed), expected)
    sparse_gemm(*mixed, Elsewhere(out, torch))
    assert_same(torch, out, expected)


# --- tensors on both devices ---

MIXED = {  # what is where: the message, and such a call
    "b_fp4": (
        ON_BOTH.format(HERE, "b_fp4", THERE),
        lambda gemm, here, there, others: gemm(*here[:3], there[3], here[4]),
    ),
    "all but a_vals": (
        ON_BOTH.format(THERE, "a_meta", HERE),
        lambda gemm, here, there, others: gemm(there[0], *here[1:]),
    ),
    "out there": (
        ON_BOTH.format(HERE, "out", THERE),
        lambda gemm, here, there, others: gemm(*here, others[THERE]["out"]),
    ),
    "out here": (
        ON_BOTH.format(THERE, "out", HERE),
        lambda gemm, here, there, others: gemm(*there, others[HERE]["out"]),
    ),
    "alpha there": (
        ON_BOTH.format(HERE, "alpha", THERE),
        lambda gemm, here, there, others: gemm(*here, alpha=others[THERE]["alpha"]),
    ),
    "alpha here": (
        ON_BOTH.format(THERE, "alpha", HERE),
        lambda gemm, here, there, others: gemm(*there, alpha=others[HERE]["alpha"]),
    ),
    "stream here": (
        "stream must belong to the tensors' device cuda:1, got a stream of cuda:0",
        lambda gemm, here, there, others: gemm(*there, stream=others[HERE]["stream"]),
    ),
    "stream there": (
        "stream must belong to the tensors' device cuda:0, got a stream of cuda:1",
        lambda gemm, here, there, others: gemm(*here, stream=others[THERE]["stream"]),
    ),
    "out and stream": (
        "stream must belong to the tensors' device cuda:1, got a stream of cuda:0",
        lambda gemm, here, there, others: gemm(
            *there, others[THERE]["out"], stream=others[HERE]["stream"]
        ),
    ),
}


@pytest.fixture
def others(torch):
    """An out, an alpha and a stream of each device."""
    found = {}
    streams = [torch.cuda.Stream(place) for place in (HERE, THERE)]
    for place, stream in zip((HERE, THERE), streams, strict=True):
        found[place] = {
            "out": torch.full(SHAPE[:2], 7.0, device=place),
            "alpha": torch.ones(1, device=place),
            "stream": stream.cuda_stream,
        }
    yield found
    for place in (HERE, THERE):
        assert (found[place]["out"] == 7).all()


@pytest.mark.parametrize("where", MIXED)
@pytest.mark.parametrize("now", [0, 1], ids=["current 0", "current 1"])
def test_devices_must_agree(torch, both, expected, others, where, now):
    """Refused with the names of both, whichever is current; then both go on."""
    message, call = MIXED[where]
    with torch.cuda.device(now):
        with pytest.raises(ValueError, match=message):
            call(sparse_gemm, both[HERE], both[THERE], others)
        assert torch.cuda.current_device() == now
    assert_both_work(torch, both, expected)


def test_devices_must_agree_elsewhere(torch, both, here, there, expected):
    """Operators and foreign producers: the same words, before a producer is asked to export."""
    message = ON_BOTH.format(HERE, "b_scale", THERE)
    with pytest.raises(ValueError, match=message):
        torch.ops.nvfp4sparse.sparse_gemm(*here[:4], there[4])
    with pytest.raises(ValueError, match=message):
        sparse_gemm(*map(Foreign, (*here[:4], there[4])))
    assert_both_work(torch, both, expected)


def test_peers(torch, both, here, there, host, expected):
    """Operands that a peer copy brings late; with peer access on, tensors must agree as ever."""
    late = [torch.zeros_like(operand) for operand in here]
    source, target = (stream_on(torch, place, "side") for place in (HERE, THERE))
    for place in (HERE, THERE):
        torch.cuda.synchronize(place)
    with torch.cuda.stream(source), current(torch, target):
        torch.cuda._sleep(WAIT)
        for operand, real in zip(late, here, strict=True):
            operand.copy_(real, non_blocking=True)
        moved = [operand.to(THERE, non_blocking=True) for operand in late]
        result = sparse_gemm(*moved)
        copied = result.clone()
        back = result.to(HERE, non_blocking=True)
    target.synchronize()
    source.synchronize()
    assert_same(torch, copied, expected)
    assert_same(torch, back, expected, HERE)
    with pytest.raises(ValueError, match=ON_BOTH.format(HERE, "b_fp4", THERE)):
        sparse_gemm(*late[:3], moved[3], late[4])
    with pytest.raises(ValueError, match=ON_BOTH.format(THERE, "out", HERE)):
        sparse_gemm(*moved, back)
    assert_both_work(torch, both, expected)


# --- threads, graphs, processes ---


def test_threads_on_either_device(torch, both, here, there, expected):
    """Each thread has its own current device and calls on both; errors leave it as well."""
    barrier = threading.Barrier(4, timeout=60)

    def work(index):
        now = index % 2
        torch.cuda.set_device(now)
        barrier.wait()
        for _ in range(50):
            for place in (HERE, THERE)[:: 1 - 2 * now]:
                assert_same(torch, sparse_gemm(*both[place]), expected, place)
                assert torch.cuda.current_device() == now
            with pytest.raises(ValueError, match="must be on one device"):
                sparse_gemm(*here[:4], there[4])
            assert torch.cuda.current_device() == now

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


@pytest.mark.parametrize("now", [0, 1], ids=["current 0", "current 1"])
@pytest.mark.parametrize("kernel", [None, "naive"], ids=["auto", "naive"])
def test_graph(torch, now, kernel):
    """Captured on device 1, replayed after the contents changed."""
    rng = np.random.default_rng(2)
    operands = put(torch, random_operands(rng, *SHAPE), THERE)
    alpha = torch.ones(1, device=THERE)
    out = torch.zeros(SHAPE[:2], device=THERE)
    sparse_gemm(*operands, kernel=kernel)
    torch.cuda.synchronize(THERE)
    graph = torch.cuda.CUDAGraph()
    capture = torch.cuda.graph(graph, stream=torch.cuda.Stream(THERE))
    with torch.cuda.device(1), capture, torch.cuda.device(now):
        sparse_gemm(*operands, out, alpha=alpha, kernel=kernel)
        own = sparse_gemm(*operands, alpha=alpha, kernel=kernel)
    for factor in (1.0, -0.75):
        fresh = random_operands(rng, *SHAPE)
        for target, source in zip(operands, put(torch, fresh, THERE), strict=True):
            target.copy_(source)
        alpha.fill_(factor)
        graph.replay()
        torch.cuda.synchronize(THERE)
        on_first = put(torch, fresh, HERE)
        assert_same(torch, own, sparse_gemm(*on_first, alpha=factor, kernel=kernel))
        wanted = sparse_gemm(*on_first, alpha=factor, out_dtype="float32", kernel=kernel)
        assert_same(torch, out, wanted)


@pytest.fixture(scope="module")
def complaints(torch):
    """What each of two_device_cases.py complained of: one process that forks for each."""
    return complaints_of("two_device_cases.py")


@pytest.mark.parametrize("case", case_names("two_device_cases.py"))
def test_in_a_new_process(complaints, case):
    assert complaints[case] == ""


def test_information(torch):
    devices = cuda_info()["devices"]
    assert [device["id"] for device in devices] == list(range(torch.cuda.device_count()))
    for device in devices[:2]:
        properties = torch.cuda.get_device_properties(device["id"])
        assert device["cc"] == 10 * properties.major + properties.minor
        assert device["sm_count"] == properties.multi_processor_count
        planned = plan(*SHAPE, f"cuda:{device['id']}")
        assert planned["kernel"] == plan(*SHAPE, cc=device["cc"])["kernel"]


# --- other frameworks ---


@pytest.fixture(scope="module")
def cupy(torch, request):
    """CuPy, after it is known that there are two GPUs."""
    return request.getfixturevalue("cupy_cuda")


def cupy_bits(cupy, array):
    assert array.device.id == 1
    with cupy.cuda.Device(1):
        return cupy.asnumpy(array.view({2: np.int16, 4: np.int32}[array.dtype.itemsize]))


def test_cupy(torch, cupy, host, expected, halved):
    """CuPy's current stream of device 1, a given one, and the default."""
    with cupy.cuda.Device(1):
        operands = [cupy.asarray(operand) for operand in host]
        half = cupy.full(1, 0.5, np.float32)
        outs = [cupy.zeros(SHAPE[:2], np.float32) for _ in range(2)]
        stream = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.Device().synchronize()
        with stream, cupy.cuda.Device(0):
            results = [sparse_gemm(*operands)]
            sparse_gemm(*operands, outs[0], alpha=half)
            assert cupy.cuda.Device().id == 0
    results.append(sparse_gemm(*operands, stream=stream))
    results.append(sparse_gemm(*operands, stream=stream.ptr))
    sparse_gemm(*operands, outs[1], alpha=half, stream=stream)
    results.append(sparse_gemm(*operands))
    assert cupy.cuda.Device().id == 0
    cupy.cuda.Device(1).synchronize()
    for result in results:
        np.testing.assert_array_equal(cupy_bits(cupy, result), bits(torch, expected))
    for out in outs:
        np.testing.assert_array_equal(cupy_bits(cupy, out), bits(torch, halved))


def test_cupy_on_both(torch, cupy, both, host, expected):
    arrays = []
    for device in (0, 1):
        with cupy.cuda.Device(device):
            arrays.append([cupy.asarray(operand) for operand in host])
            cupy.cuda.Device().synchronize()
    with pytest.raises(ValueError, match=ON_BOTH.format(HERE, "b_fp4", THERE)):
        sparse_gemm(*arrays[0][:3], *arrays[1][3:])
    with pytest.raises(ValueError, match=ON_BOTH.format(THERE, "a_meta", HERE)):
        sparse_gemm(arrays[1][0], *both[HERE][1:])
    result = sparse_gemm(*arrays[1])
    cupy.cuda.Device(1).synchronize()
    np.testing.assert_array_equal(cupy_bits(cupy, result), bits(torch, expected))
    assert_both_work(torch, both, expected)


@pytest.mark.parametrize("now", [0, 1], ids=["current 0", "current 1"])
def test_cupy_graph(torch, cupy, host, expected, now):
    with cupy.cuda.Device(1):
        real = [cupy.asarray(operand) for operand in host]
        operands = [cupy.zeros_like(operand) for operand in real]
        half = cupy.ones(1, np.float32)
        out = cupy.zeros(SHAPE[:2], np.float32)
        sparse_gemm(*operands, out, alpha=half)
        stream = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.Device().synchronize()
        with stream:
            stream.begin_capture()
            with cupy.cuda.Device(now):
                sparse_gemm(*operands, out, alpha=half)
            graph = stream.end_capture()
        for target, source in zip(operands, real, strict=True):
            target[...] = source
        half.fill(0.5)
        cupy.cuda.Device().synchronize()
        graph.launch(stream=stream)
        stream.synchronize()
    wanted = sparse_gemm(*put(torch, host, HERE), alpha=0.5, out_dtype="float32")
    np.testing.assert_array_equal(cupy_bits(cupy, out), bits(torch, wanted))


@pytest.fixture(scope="module")
def jax(torch):
    """JAX, where it sees two GPUs."""
    jax = pytest.importorskip("jax")
    try:
        gpus = jax.devices("gpu")
    except RuntimeError as error:
        missing(f"JAX sees no GPU ({error})")
    finally:
        torch.cuda.set_device(0)
    assert len(gpus) >= 2
    return jax


class LikeJax:
    """Calls that may leave the current device where a plain call of JAX does, and nowhere else.

    XLA makes the context of its device current on a thread and leaves it so. That is no doing of
    ours: where JAX changes nothing, nor may we. Device 0 is current before and after each call.
    """

    def __init__(self, torch, jax):
        self.torch, self.jax = torch, jax
        self.allowed = {0}
        there = jax.devices("gpu")[1]
        plain = jax.jit(lambda x, y: x + y)
        array = self.free(jax.device_put, np.ones(4, np.float32), there)
        for _ in range(2):  # the first one compiles
            self.allowed.add(self._call(plain, array, np.float32(1))[1])
        self.allowed.add(self._call(jax.dlpack.from_dlpack, array)[1])

    def _call(self, function, *arguments, **options):
        """What it returns or raises, and the device that it leaves current.

        Device 0 is made current first: it changes between calls, too, as when arrays are freed.
        """
        self.torch.cuda.set_device(0)
        try:
            result = function(*arguments, **options)
        except Exception as error:
            result = error
        now = self.torch.cuda.current_device()
        self.torch.cuda.set_device(0)
        return result, now

    def free(self, function, *arguments):
        """Call what is not ours."""
        result, _ = self._call(function, *arguments)
        if isinstance(result, Exception):
            raise result
        return result

    def __call__(self, function, *arguments, **options):
        """Call what is ours."""
        result, now = self._call(function, *arguments, **options)
        assert now in self.allowed
        if isinstance(result, Exception):
            raise result
        return result

    def put(self, host, index):
        device = self.jax.devices("gpu")[index]
        arrays = [self.free(self.jax.device_put, operand, device) for operand in host]
        return self.free(self.jax.block_until_ready, arrays)

    def assert_same(self, got, wanted):
        assert isinstance(got, self.jax.Array)
        assert got.devices() == {self.jax.devices("gpu")[1]}
        integers = {2: np.int16, 4: np.int32}[got.dtype.itemsize]
        found = self.free(np.asarray, got).view(integers)
        np.testing.assert_array_equal(found, bits(self.torch, wanted))


@pytest.fixture
def like_jax(torch, jax):
    yield LikeJax(torch, jax)
    torch.cuda.set_device(0)


def test_jax(jax, like_jax, host, expected, halved):
    """Eager and compiled, both by way of XLA, with alpha as a number and as an array."""
    arrays = like_jax.put(host, 1)
    half = like_jax.put([np.full(1, 0.5, np.float32)], 1)[0]

    def scaled(alpha, *operands):
        return sparse_gemm(*operands, alpha=alpha, out_dtype="float32")

    for gemm, scale in ((sparse_gemm, scaled), (jax.jit(sparse_gemm), jax.jit(scaled))):
        for _ in range(2):  # the first one compiles
            like_jax.assert_same(like_jax(gemm, *arrays), expected)
            for alpha in (half, np.float32(0.5)):
                like_jax.assert_same(like_jax(scale, alpha, *arrays), halved)


def test_jax_by_way_of_dlpack(torch, like_jax, host, expected):
    """kernel= takes that way, and a foreign a_vals, whose result is our own."""
    arrays = like_jax.put(host, 1)
    row = plan(*SHAPE, THERE)["kernel"]
    like_jax.assert_same(like_jax(sparse_gemm, *arrays, kernel=row), expected)
    result = like_jax(sparse_gemm, Foreign(arrays[0]), *arrays[1:])
    assert result.__dlpack_device__() == (CUDA, 1)
    assert_same(torch, torch.from_dlpack(result), expected)


def test_jax_on_both(torch, like_jax, both, host, expected):
    """By way of XLA the words are JAX's, by way of DLPack ours."""
    first, second = (like_jax.put(host, index) for index in (0, 1))
    with pytest.raises(ValueError, match="device"):
        like_jax(sparse_gemm, *first[:3], *second[3:])
    with pytest.raises(ValueError, match=ON_BOTH.format(HERE, "b_fp4", THERE)):
        like_jax(sparse_gemm, Foreign(first[0]), *first[1:3], *second[3:])
    like_jax.assert_same(like_jax(sparse_gemm, *second), expected)
    assert_both_work(torch, both, expected)
