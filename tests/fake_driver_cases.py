# SPDX-License-Identifier: Apache-2.0
"""What test_driver.py runs, each in a process of its own, with fake_cuda.c for a driver.

Device memory is host memory here, so that NumPy arrays behind a Producer are CUDA tensors.
"""

import ctypes
import gc
import os
import threading
import time

import numpy as np
import pytest

import fake_cupy
import xla_fakes
from cases import random_operands
from dlpack_fakes import CUDA, CUDA_MANAGED, Legacy, Producer, exchange_type
from nvfp4sparse import _C, cuda_info, kernels, plan, reference_gemm, sparse_gemm
from threads import run_on_threads

FAKE = ctypes.CDLL("libcuda.so.1")
FAKE.fake_calls.restype = ctypes.c_char_p
FAKE.fake_stream.restype = ctypes.c_void_p
FAKE.fake_capture.argtypes = (ctypes.c_void_p, ctypes.c_int)
M, N, K = 5, 6, 64
TMA_ROWS = [row for row in kernels() if row["a_box_rows"]]
each_tma_row = pytest.mark.parametrize("row", TMA_ROWS, ids=[row["name"] for row in TMA_ROWS])


def calls():
    """The driver's functions called since this was asked last."""
    names = FAKE.fake_calls().decode().split()
    FAKE.fake_clear()
    return names


def launch():
    names = ("device", "gx", "gy", "gz", "bx", "by", "bz", "shared", "cluster", "attribute")
    values = (ctypes.c_uint * 10).in_dll(FAKE, "fake_launch")
    facts = dict(zip(names, values, strict=True))
    facts["stream"] = ctypes.c_void_p.in_dll(FAKE, "fake_launch_stream").value or 0
    facts["symbol"] = (ctypes.c_char * 64).in_dll(FAKE, "fake_launch_symbol").value.decode()
    return facts


def counter(name):
    return ctypes.c_int.in_dll(FAKE, name).value


class Problem:
    """Operands behind producers on a device, and an out."""

    def __init__(self, device=0, kind=Producer, device_type=CUDA, seed=0, shape=(M, N, K)):
        self.where = (device_type, device)
        self.host = random_operands(np.random.default_rng(seed), *shape)
        self.operands = [kind(operand, device=self.where) for operand in self.host]
        self.out = kind(np.zeros(shape[:2], np.float32), device=self.where)

    def run(self, **options):
        assert sparse_gemm(*self.operands, self.out, **options) is self.out
        return self

    def check(self, alpha=1.0):
        expected = (reference_gemm(*self.host) * alpha).astype(np.float32)
        np.testing.assert_allclose(self.out.array, expected, rtol=1e-6, atol=1e-6)


def test_first_and_second_call():
    """The first call opens and loads; the second only launches, and waits for nothing."""
    Problem().run(kernel="naive").check()
    first = calls()
    for needed in ("cuInit", "cuDevicePrimaryCtxRetain", "cuLibraryLoadData", "cuFuncLoad"):
        assert first.count(needed) == 1
    Problem(seed=1).run(kernel="naive").check()
    hot = ["cuCtxGetCurrent", "cuCtxPushCurrent", "cuLaunchKernelEx", "cuCtxPopCurrent"]
    assert calls() == hot
    FAKE.fake_set_device(0)  # already current: nothing to push
    Problem(seed=2).run(kernel="naive").check()
    assert calls() == [hot[0], hot[2]]


@pytest.mark.parametrize("current", [-1, 0, 1])
@pytest.mark.parametrize("device", [0, 1])
def test_current_device_stays(current, device):
    FAKE.fake_set_device(current)
    before = FAKE.fake_depth()
    for _ in range(2):
        Problem(device, device_type=CUDA_MANAGED).run().check()
        assert launch()["device"] == device
    with pytest.raises(ValueError, match="stream must belong"):
        Problem(device).run(stream=FAKE.fake_stream(1 - device))
    assert FAKE.fake_depth() == before
    assert FAKE.fake_current_device() == current


@pytest.mark.parametrize("name", ["naive", None])
def test_launch_is_what_plan_says(name):
    problem = Problem(1, shape=(70, 33, 128))
    problem.run(kernel=name).check()
    choice = plan(70, 33, 128, 1)
    facts = launch()
    if name is None:
        assert (facts["gx"], facts["gy"], facts["gz"]) == choice["grid"]
        assert (facts["bx"], facts["by"], facts["bz"]) == (choice["threads"], 1, 1)
        assert (facts["shared"], facts["cluster"]) == (choice["shared_bytes"], choice["cluster"])
    else:
        assert facts["symbol"] == "nvs_gemm_naive"
        assert (facts["gx"], facts["gy"], facts["gz"], facts["bx"]) == (3, 5, 1, 256)
    assert facts["stream"] == 1  # nobody's current stream: the legacy default one


@pytest.mark.parametrize(("m", "blocks"), [(100, 7), (112, 7), (113, 8), (128, 8), (1000, 8)])
def test_persistent_grid_is_no_larger_than_the_gpu(m, blocks):
    """The second device has 8 multiprocessors; a tile has 16 rows."""
    problem = Problem(1, shape=(m, 5, 256))
    problem.run(kernel="sm90_stream8").check()
    facts = launch()
    assert facts["symbol"] == "nvs_gemm_sm90_stream8"
    assert (facts["gx"], facts["gy"], facts["gz"], facts["cluster"]) == (blocks, 1, 1, 1)
    if m > 128:  # else a kernel for one wave of tiles is chosen
        assert plan(m, 5, 256, 1)["grid"] == (blocks, 1, 1)


@pytest.mark.parametrize(("n", "blocks"), [(100, 7), (128, 8), (256, 8), (257, 8), (1000, 8)])
@pytest.mark.parametrize(
    ("m", "k", "name"),
    [(5, 256, "m8_stream_k2048"), (16, 4352, "m16_stream_k8192"), (9, 8448, "m16_stream")],
)
def test_few_rows_walk_where_tiles_are_more_than_a_wave(m, n, k, name, blocks):
    """The second device has 8 multiprocessors; a tile has 16 columns."""
    problem = Problem(1, shape=(m, n, k))
    problem.run(kernel="sm90_" + name).check()
    facts = launch()
    assert facts["symbol"] == "nvs_gemm_sm90_" + name
    assert (facts["gx"], facts["gy"], facts["gz"], facts["cluster"]) == (blocks, 1, 1, 1)
    one_wave = 256 if k <= 2048 else 128  # there are tiles of 32 columns too
    assert (plan(m, n, k, 1)["kernel"] == "sm90_" + name) == (n > one_wave)


@pytest.mark.parametrize(
    ("device", "m", "n", "chosen"),
    [
        (1, 64, 128, "m64n32"),  # one wave of 8 blocks
        (1, 64, 129, "m64n64"),
        (1, 64, 257, "m64n64"),
        (1, 65, 129, "m128n64"),
        (0, 64, 96, "m64n32"),
        (0, 64, 128, "m64n64"),
        (0, 64, 224, "m64n64"),  # 14 blocks of m64n32 are three waves: one block has no second
    ],
)
def test_a_wave_is_as_large_as_the_gpu(device, m, n, chosen):
    """7 and 8 multiprocessors, for the choice alone: a named kernel runs any number of waves."""
    problem = Problem(device, shape=(m, n, 256))
    for name in ("m64n32", "m64n64", "m128n64", None):
        problem.run(kernel=name and f"sm90_{name}").check()
        assert launch()["symbol"] == f"nvs_gemm_sm90_{name or chosen}"
    assert plan(m, n, 256, device)["kernel"] == f"sm90_{chosen}"


def test_first_call_inside_a_capture():
    stream = FAKE.fake_stream(0)
    FAKE.fake_capture(stream, 1)
    Problem().run(stream=stream).check()
    assert "cuLibraryLoadData" in calls()
    assert launch()["stream"] == stream
    # The thread's own mode is back: what is unsafe is refused again.
    mode = ctypes.c_int(2)
    exchange = ctypes.c_void_p()
    status = ctypes.c_int()
    FAKE.cuGetProcAddress_v2(
        b"cuThreadExchangeStreamCaptureMode",
        ctypes.byref(exchange),
        10010,
        ctypes.c_uint64(1),
        ctypes.byref(status),
    )
    ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))(exchange.value)(mode)
    assert mode.value == 0


# --- tensor maps ---

BYTES, NOT_INTERLEAVED, SWIZZLE_64, SWIZZLE_128, L2_128, ZEROS = 0, 0, 2, 3, 2, 0


def tma_problem(row, k=768, seed=0):
    """One that the row takes, with m no multiple of a box where it may be, padded rows of A."""
    m = min(row["m_max"], max(row["m_min"], 2 * row["a_box_rows"] + 5))
    problem = Problem(1, seed=seed, shape=(m, max(row["n_min"], 3), k))
    for i, (before, after) in enumerate(((16, 0), (0, 48), (32, 32))):
        padded = np.pad(problem.host[i], ((0, 0), (before, after)))
        view = padded[:, before : padded.shape[1] - after]
        problem.operands[i] = Producer(view, device=problem.where)
    return problem


def launched_maps():
    """The last launch's, each as the arguments that it was encoded from; None: it had none."""
    words = ((ctypes.c_uint64 * 16) * 3).in_dll(FAKE, "fake_launch_maps")
    return [list(one) for one in words] if counter("fake_launch_has_maps") else None


@each_tma_row
def test_tensor_maps(row):
    """A kernel that loads A by TMA gets the maps of its operands, made for each launch."""
    for seed in range(2):
        problem = tma_problem(row, seed=seed).run(kernel=row["name"])
        problem.check()
        expected = []
        for operand, box, swizzle in zip(
            problem.operands, (128, 128, 64), (SWIZZLE_128, SWIZZLE_128, SWIZZLE_64), strict=False
        ):
            where, (rows, columns) = operand.array.ctypes.data, operand.array.shape
            assert operand.array.strides[0] > columns
            facts = [where, columns, rows, operand.array.strides[0], box, row["a_box_rows"], 1, 1]
            modes = [BYTES, NOT_INTERLEAVED, swizzle, L2_128, ZEROS]
            expected.append([*facts, *modes, 0, 0, 0])
        assert launched_maps() == expected
        names = calls()
    assert names == [
        "cuCtxGetCurrent",
        "cuCtxPushCurrent",
        *["cuTensorMapEncodeTiled"] * 3,
        "cuLaunchKernelEx",
        "cuCtxPopCurrent",
    ]
    Problem(1).run(kernel="naive").check()
    assert launched_maps() is None


@each_tma_row
def test_no_columns_have_no_maps(row):
    """The driver would refuse to encode them: another kernel writes the zeros."""
    problem = tma_problem(row, k=0)
    with pytest.raises(ValueError, match=f"kernel={row['name']} cannot run this: .*, got 0"):
        problem.run(kernel=row["name"])
    problem.out.array[...] = 1
    problem.run().check()
    assert launched_maps() is None


@each_tma_row
def test_a_map_that_cannot_be_encoded(row):
    problem = tma_problem(row)
    calls()
    FAKE.fake_fail(b"cuTensorMapEncodeTiled", 7)
    with pytest.raises(RuntimeError, match="cuTensorMapEncodeTiled failed: FAKE_ERROR_7"):
        problem.run(kernel=row["name"])
    assert "cuLaunchKernelEx" not in calls()
    assert FAKE.fake_depth() == 0
    problem.run(kernel=row["name"]).check()


STEPS = (
    "cuDriverGetVersion",
    "cuDeviceGetCount",
    "cuThreadExchangeStreamCaptureMode",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuCtxGetCurrent",
    "cuCtxPushCurrent",
    "cuLibraryLoadData",
    "cuLibraryGetKernel",
    "cuKernelGetFunction",
    "cuFuncLoad",
    "cuLaunchKernelEx",
)


def test_every_status_is_checked():
    """Each step fails once, then all is well: nothing half-made is kept."""
    for call in STEPS:
        FAKE.fake_fail(call.encode(), 7)
        problem = Problem()
        with pytest.raises(
            RuntimeError, match=rf"sparse_gemm: {call} failed: FAKE_ERROR_7 \(as the"
        ):
            problem.run(kernel="naive")
        assert not problem.out.array.any()
        assert FAKE.fake_depth() == 0
        assert [p.deleted for p in problem.operands] == [1] * 5
    Problem().run(kernel="naive").check()


def test_init_fails():
    os.environ["FAKE_INIT_STATUS"] = "100"
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"no CUDA driver.*cuInit failed: FAKE_ERROR_100"):
            Problem().run()
    assert cuda_info()["available"] is False
    assert plan(1, 1, 16)["kernel"] == "cpu"


def test_an_old_driver():
    os.environ["FAKE_MISSING"] = "cuLibraryLoadData"
    with pytest.raises(RuntimeError, match="the CUDA driver lacks cuLibraryLoadData"):
        Problem().run()


def test_a_driver_without_func_load():
    os.environ["FAKE_MISSING"] = "cuFuncLoad"
    Problem().run().check()


def test_no_such_device():
    for device in (2, 63, 64, -1, 2**31 - 1):
        with pytest.raises(RuntimeError, match=f"there is no CUDA device {device}: .* reports 2"):
            Problem(device).run()
    Problem(1).run().check()


def test_no_kernel_for_a_gpu():
    os.environ["FAKE_CC"] = "75"
    # The least specific row first: what its reason is must not be cut off.
    with pytest.raises(RuntimeError, match=r"on compute capability 7\.5: naive: it needs"):
        Problem().run()
    with pytest.raises(
        ValueError, match="kernel=naive cannot run this: it needs compute capability"
    ):
        Problem().run(kernel="naive")


def test_information():
    info = cuda_info()
    assert info["driver"] == "13.1"
    assert info["devices"] == [
        {"id": 0, "name": "fake 0", "cc": 90, "sm_count": 7},
        {"id": 1, "name": "fake 1", "cc": 90, "sm_count": 8},
    ]
    assert plan(1, 1, 16)["kind"] == "cuda"


# --- streams ---


def test_streams_that_producers_are_told():
    stream = FAKE.fake_stream(0)

    class Stream:
        def __cuda_stream__(self):
            return 0, stream

    given = [(None, 1, 1), (0, 1, 0), (1, 1, 1), (2, 2, 2), (stream, stream, stream)]
    for argument, told, launched in [*given, (Stream(), stream, stream)]:
        problem = Problem().run(stream=argument)
        problem.check()
        asked = [p.asked for p in [*problem.operands, problem.out]]
        assert asked == [[{"stream": told, "max_version": (1, 3)}]] * 6
        assert launch()["stream"] == launched


def test_current_work_stream():
    stream = FAKE.fake_stream(1)
    kind = exchange_type(stream=stream)
    Problem(1, kind).run().check()
    assert launch()["stream"] == stream
    assert kind.stream_queries == [(CUDA, 1)]
    # Others are told the stream of a_vals.
    mixed = Problem(1)
    mixed.operands[0] = kind(mixed.host[0], device=mixed.where)
    mixed.run().check()
    assert [p.asked[0]["stream"] for p in mixed.operands[1:]] == [stream] * 4
    # A given stream counts, and nobody is asked for the current one.
    other = FAKE.fake_stream(1)
    kind.stream_queries.clear()
    Problem(1, kind).run(stream=other).check()
    assert launch()["stream"] == other
    assert kind.stream_queries == []


@pytest.mark.parametrize("first", ["ours", "legacy"])
def test_tensors_of_another_current_stream_wait(first):
    """The exchange API orders nothing: whose work is elsewhere is told our stream by __dlpack__."""
    ours, theirs = FAKE.fake_stream(1), FAKE.fake_stream(1)
    kind, told, same = (exchange_type(stream=ours), ours, ours) if first == "ours" else (None, 1, 0)
    for current, asked in ((theirs, [told]), (same, [])):
        problem = Problem(1, exchange_type(stream=current))
        problem.operands[0] = (kind or Producer)(problem.host[0], device=problem.where)
        problem.run().check()
        assert launch()["stream"] == told
        others = [*problem.operands[1:], problem.out]
        assert [[k["stream"] for k in p.asked] for p in others] == [asked] * 5
        assert [p.conversions for p in others] == [1 - len(asked)] * 5
        assert [p.deleted for p in others] == [len(p.capsules) for p in others]


def test_a_null_current_stream_is_the_legacy_one():
    Problem(1, exchange_type(stream=0)).run().check()
    assert launch()["stream"] == 0
    assert launch()["device"] == 1


# --- CuPy's arrays by their attributes ---


def was_asked(array):
    """The streams that an array's __dlpack__() was told."""
    return [keywords["stream"] for keywords in array.asked]


def test_cupy_arrays():
    """Nothing of DLPack is called, and the stream is CuPy's current one at the time."""
    streams = {}
    kind = fake_cupy.install(streams).ndarray
    for device, stream in ((0, 0), (1, FAKE.fake_stream(1)), (0, 2), (1, 1), (0, 0)):
        streams[device] = stream
        problem = Problem(device, kind).run(alpha=2)
        problem.check(2)
        assert (launch()["stream"], launch()["device"]) == (stream, device)
        arrays = [*problem.operands, problem.out]
        assert [(was_asked(x), x.devices_asked) for x in arrays] == [([], 0)] * 6
    alpha = kind(np.full((), 3, np.float32), device=(CUDA, device))
    Problem(device, kind).run(alpha=alpha).check(3)
    wide = np.zeros((M, 3 * N), np.float32)
    problem.out = kind(wide[:, N : 2 * N], device=(CUDA, device))
    problem.run().check()
    assert not wide[:, :N].any()
    assert not wide[:, 2 * N :].any()
    for shape in ((0, 3, 32), (3, 0, 32)):
        Problem(device, kind, shape=shape).run()


def test_cupy_results():
    cupy = fake_cupy.install({0: 0})
    problem = Problem(0, cupy.ndarray)
    problem.out = sparse_gemm(*problem.operands, out_dtype="float32")
    assert type(problem.out) is cupy.ndarray
    assert was_asked(problem.out) == []
    problem.check()
    bits = sparse_gemm(*problem.operands)
    assert (bits.dtype.name, bits.shape) == ("bfloat16", (M, N))


def test_cupy_arrays_on_other_streams():
    """They are told the stream where it is not CuPy's own choice."""
    kind = fake_cupy.install({0: FAKE.fake_stream(0)}).ndarray
    given = FAKE.fake_stream(0)
    problem = Problem(0, kind).run(stream=given)
    problem.check()
    assert [was_asked(x) for x in [*problem.operands, problem.out]] == [[given]] * 6
    theirs = exchange_type(stream=given)
    problem = Problem(0, kind)
    problem.operands[0] = theirs(problem.host[0], device=problem.where)
    problem.run().check()
    assert launch()["stream"] == given
    assert [was_asked(x) for x in [*problem.operands[1:], problem.out]] == [[given]] * 5


def test_what_only_dlpack_can_tell():
    """Subclasses, CuPy on AMD's GPUs, other dtypes, strides within an element, many dimensions."""
    on_amd = Problem(0, fake_cupy.install({0: 0}, is_hip=True).ndarray).run()
    cupy = fake_cupy.install({0: 0})

    class Subclass(cupy.ndarray):
        pass

    for problem in (on_amd, Problem(0, Subclass).run()):
        problem.check()
        arrays = [*problem.operands, problem.out]
        assert [(was_asked(x), x.devices_asked) for x in arrays] == [([-1], 1)] * 6
    problem = Problem(0, cupy.ndarray)
    for facts, error in (
        (dict(dtype=np.dtype(np.uint16)), None),
        (dict(shape=(1,) * 9, strides=(1,) * 9), None),
        (dict(dtype=np.dtype(np.float32), strides=(64, 4)), "int8 or uint8, got float32"),
        (dict(dtype=np.dtype(np.float16), strides=(7, 1)), None),
        (dict(shape=(M, 17)), r"a_meta must have shape \(m, k/4\) = \(5, 16\), got \(5, 17\)"),
    ):
        operands = list(problem.operands)
        operands[1] = cupy.ndarray(problem.host[1], **facts)
        if error is None:
            sparse_gemm(*operands, problem.out)
            assert was_asked(operands[1]) == [-1]
            continue
        with pytest.raises((TypeError, ValueError), match=error):
            sparse_gemm(*operands, problem.out)
        assert was_asked(operands[1]) == []


def test_broken_attributes():
    """An error of an array's own comes through, and nothing is left behind."""
    kind = fake_cupy.install({0: 0}).ndarray
    problem = Problem(0, kind)
    for facts in (dict(shape=5), dict(shape=("a", 1)), dict(strides=(2**70, 1)), dict(data=None)):
        operands = list(problem.operands)
        operands[2] = kind(problem.host[2], **facts)
        with pytest.raises((SystemError, TypeError, OverflowError, AttributeError)):
            sparse_gemm(*operands, problem.out)
    problem.run().check()


def test_alpha_tensor():
    problem = Problem()
    alpha = Producer(np.full(1, -3, np.float32), device=(CUDA, 0))
    problem.run(alpha=alpha).check(alpha=-3.0)
    with pytest.raises(ValueError, match="got a_vals on cuda:0 and alpha on cpu"):
        problem.run(alpha=np.ones(1, np.float32))
    with pytest.raises(ValueError, match="got a_vals on cuda:0 and b_fp4 on cuda:1"):
        sparse_gemm(*problem.operands[:3], Problem(1).operands[3], problem.operands[4])


def test_nothing_to_compute_launches_nothing():
    for shape in ((0, 3, 32), (3, 0, 32), (0, 0, 0)):
        Problem(shape=shape).run()
        problem = Problem(shape=shape)
        assert sparse_gemm(*problem.operands).shape == shape[:2]
    assert calls() == []
    Problem(shape=(3, 4, 0)).run().check()


# --- results of our own ---


def as_numpy(result, **keywords):
    """The memory of a Result, which the fake driver keeps on the host."""

    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    capsule = result.__dlpack__(**keywords)
    managed = Legacy.from_address(pointer(capsule, b"dltensor"))
    assert (managed.tensor.device_type, managed.tensor.device_id) == result.__dlpack_device__()
    values = (ctypes.c_float * (M * N)).from_address(managed.tensor.data)
    return np.array(values, np.float32).reshape(M, N)


def test_result():
    """Allocated on the stream, ordered by an event, freed once when the last reader is done."""
    problem = Problem(1)
    result = sparse_gemm(*problem.operands, out_dtype="float32")
    queued = calls()
    assert queued.index("cuMemAllocAsync") < queued.index("cuLaunchKernelEx")
    assert queued.index("cuLaunchKernelEx") < queued.index("cuEventRecord")
    assert "cuCtxSynchronize" not in queued
    assert "cuStreamWaitEvent" not in queued
    assert result.__dlpack_device__() == (CUDA, 1)
    problem.out.array[...] = as_numpy(result)
    problem.check()
    calls()
    for stream, waits in ((None, 1), (1, 1), (2, 2), (FAKE.fake_stream(1), None), (-1, 0)):
        result.__dlpack__(stream=stream)
        assert calls().count("cuStreamWaitEvent") == (waits != 0)
        if waits:
            assert launch()["stream"] == waits
    for wrong in (0, -2):
        with pytest.raises(ValueError, match="stream must be"):
            result.__dlpack__(stream=wrong)
    held = result.__dlpack__(max_version=(1, 0))
    del result
    gc.collect()
    assert (counter("fake_allocations"), counter("fake_events")) == (1, 1)
    calls()
    del held
    assert (counter("fake_allocations"), counter("fake_events")) == (0, 0)
    freed = calls()
    assert freed.index("cuCtxSynchronize") < freed.index("cuMemFree")
    assert FAKE.fake_depth() == 0


def test_result_failures_free_memory():
    for call in (
        "cuStreamIsCapturing",
        "cuEventCreate",
        "cuMemAllocAsync",
        "cuLaunchKernelEx",
        "cuEventRecord",
    ):
        problem = Problem()
        FAKE.fake_fail(call.encode(), 2)
        with pytest.raises(RuntimeError, match=f"{call} failed: FAKE_ERROR_2"):
            sparse_gemm(*problem.operands)
        assert (counter("fake_allocations"), counter("fake_events")) == (0, 0)
        assert FAKE.fake_depth() == 0


def test_no_result_inside_a_capture():
    stream = FAKE.fake_stream(0)
    FAKE.fake_capture(stream, 1)
    with pytest.raises(RuntimeError, match="while the stream is capturing: pass out="):
        sparse_gemm(*Problem().operands, stream=stream)
    Problem().run(stream=stream).check()


# --- processes and threads ---


def test_fork():
    Problem().run().check()
    child = os.fork()
    if child == 0:
        try:
            Problem().run()
        except RuntimeError as error:
            os._exit(0 if "fork" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    Problem(seed=1).run().check()


def test_threads():
    """Many threads at their first calls, on both devices."""
    barrier = threading.Barrier(8)

    def work(seed):
        barrier.wait()
        for turn in range(20):
            Problem(turn % 2, seed=seed).run(kernel="naive").check()

    run_on_threads(work, range(8))
    assert calls().count("cuLibraryLoadData") == 1


@pytest.mark.parametrize("call", ["cuLaunchKernelEx", "cuCtxSynchronize"])
def test_the_gil_is_free_while_the_driver_waits(call):
    """A launch waits for a full queue, and freeing a result of ours for the device."""
    problem = Problem()
    problem.run(kernel="naive").check()
    FAKE.fake_hold(call.encode())
    # The thread drops its result at once.
    thread = threading.Thread(target=sparse_gemm, args=problem.operands)
    thread.start()
    while FAKE.fake_held() < 2:
        time.sleep(0.001)
    FAKE.fake_let_go()  # Python runs while the driver waits
    thread.join()
    assert FAKE.fake_held() == 3
    problem.check()


def test_times_of_a_call():
    """The bench's timers launch what a call launches, and preparation launches nothing."""
    problem = Problem()
    arguments = (*problem.operands, problem.out)
    problem.run().check()
    problem.out.array[...] = 0
    calls()
    assert len(_C.time_preparation(arguments, 3)) == 3
    assert "cuLaunchKernelEx" not in calls()
    assert not problem.out.array.any()
    times = _C.time_launches(arguments, 4)
    assert len(times) == 4
    assert all(t >= 0 for t in times)
    assert calls().count("cuLaunchKernelEx") == 4
    assert [len(p.capsules) for p in arguments] == [5] * 6
    problem.check()
    assert len(_C.time_launches(arguments, 4, True)) == 4
    assert calls().count("cuLaunchKernelEx") == 4
    assert [len(p.capsules) for p in arguments] == [9] * 6
    FAKE.fake_fail(b"cuLaunchKernelEx", 7)
    with pytest.raises(RuntimeError, match="cuLaunchKernelEx failed: FAKE_ERROR_7"):
        _C.time_launches(arguments, 4)
    assert [p.deleted for p in arguments] == [len(p.capsules) for p in arguments]


def test_the_time_of_a_launch_is_without_its_maps():
    """Encoding is made to last a second, which the launch does not."""
    problem = Problem(1, shape=(64, 64, 256)).run()
    assert calls().count("cuTensorMapEncodeTiled") == 3
    times = []

    def work():
        times.extend(_C.time_launches((*problem.operands, problem.out), 1))

    FAKE.fake_hold(b"cuTensorMapEncodeTiled")
    thread = threading.Thread(target=work)
    thread.start()
    while FAKE.fake_held() < 2:
        assert thread.is_alive()
        time.sleep(0.001)
    time.sleep(1)
    FAKE.fake_let_go()
    thread.join()
    assert calls().count("cuTensorMapEncodeTiled") == 3
    assert times[0] < 1e9


def test_calls_of_xla():
    """The custom call behind nvfp4sparse.jax, on a GPU: XLA's stream and device, and its errors."""
    stream = FAKE.fake_stream(1)
    call = xla_fakes.Call(_C.xla_handlers()["CUDA"], stream=stream, device=1)
    host = random_operands(np.random.default_rng(0), M, N, K)
    out = np.zeros((M, N), np.float32)
    assert call.metadata() == (0, call.MINOR, 1)
    assert call.run(host, out, stage=1) is None
    assert calls() == []
    assert call.run(host, out) is None
    assert (launch()["stream"], launch()["device"]) == (stream, 1)
    np.testing.assert_allclose(out, reference_gemm(*host), rtol=1e-6, atol=1e-6)
    alpha = np.full((1, 1), 2, np.float32)
    assert call.run([*host, alpha], out, alpha=None) is None
    np.testing.assert_allclose(out, 2 * reference_gemm(*host), rtol=1e-6, atol=1e-6)
    assert call.run(host, out, kernel="naive") is None
    assert launch()["symbol"] == "nvs_gemm_naive"
    assert "kernel=cpu cannot run this: it runs on the CPU" in call.run(host, out, kernel="cpu")
    assert "kernel names no kernel: none" in call.run(host, out, kernel="none")
    assert "do not fit together" in call.run(host[:4], out)
    for failing in ("cuLaunchKernelEx", "cuCtxGetCurrent"):
        FAKE.fake_fail(failing.encode(), 7)
        assert f"sparse_gemm: {failing} failed: FAKE_ERROR_7" in call.run(host, out)
    call.device = 7
    assert "there is no CUDA device 7" in call.run(host, out)
    call.device, call.struct_size = 1, 100
    assert "this JAX is too old" in call.run(host, out)
    assert FAKE.fake_depth() == 0


@pytest.mark.parametrize("current", [-1, 0, 1])
def test_calls_of_xla_leave_the_current_device(current):
    """XLA itself does not: see test_two_devices.py."""
    call = xla_fakes.Call(_C.xla_handlers()["CUDA"], stream=FAKE.fake_stream(1), device=1)
    host = random_operands(np.random.default_rng(0), M, N, K)
    out = np.zeros((M, N), np.float32)
    FAKE.fake_set_device(current)
    before = FAKE.fake_depth()
    for failing in (None, None, "cuLaunchKernelEx"):
        if failing:
            FAKE.fake_fail(failing.encode(), 7)
        assert (call.run(host, out) is None) == (failing is None)
        assert launch()["device"] == 1
        assert (FAKE.fake_current_device(), FAKE.fake_depth()) == (current, before)
