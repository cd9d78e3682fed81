# SPDX-License-Identifier: Apache-2.0
"""Whose memory it is: each export given back once, whatever goes wrong; nothing grows on a GPU."""

import ctypes
import gc
import os
import sys

import numpy as np
import pytest

from cases import random_operands
from dlpack_fakes import Foreign, Producer
from nvfp4sparse import _C, sparse_gemm

M, N, K = 3, 5, 32


def out_over(operand):
    """An out that begins where an operand does."""
    memory = np.zeros(M * N + operand.array.size, np.float32)
    operand.array = memory.view(np.uint8)[: operand.array.size].reshape(operand.array.shape)
    return Producer(memory[: M * N].reshape(M, N))


# What is wrong, from five producers: (operands, out or None, options).
WRONG = {
    "dtype": lambda ops: ([*ops[:4], Producer(np.zeros((N, 2), np.float32))], None, {}),
    "shape": lambda ops: ([*ops[:4], Producer(np.zeros((N, 3), np.uint8))], None, {}),
    "strides": lambda ops: ([*ops[:4], Producer(np.zeros((2, N), np.uint8).T)], None, {}),
    "rank": lambda ops: ([*ops[:3], Producer(np.zeros(4, np.uint8)), ops[4]], None, {}),
    "k": lambda ops: ([Producer(np.zeros((M, 3), np.uint8)), *ops[1:]], None, {}),
    "device": lambda ops: ([*ops[:2], Producer(ops[2].array, device=(2, 0)), *ops[3:]], None, {}),
    "alpha dtype": lambda ops: (ops, None, {"alpha": Producer(np.zeros(1, np.float64))}),
    "alpha shape": lambda ops: (ops, None, {"alpha": Producer(np.zeros(2, np.float32))}),
    "out dtype": lambda ops: (ops, Producer(np.zeros((M, N), np.float64)), {}),
    "out shape": lambda ops: (ops, Producer(np.zeros((N, M), np.float32)), {}),
    "out strides": lambda ops: (ops, Producer(np.zeros((M, 2 * N), np.float32)[:, ::2]), {}),
    "out read-only": lambda ops: (ops, Producer(np.zeros((M, N), np.float32), flags=1), {}),
    "out overlaps": lambda ops: (ops, out_over(ops[3]), {}),
    "out_dtype": lambda ops: (
        ops,
        Producer(np.zeros((M, N), np.float32)),
        {"out_dtype": "float16"},
    ),
    "kernel": lambda ops: (ops, Producer(np.zeros((M, N), np.float32)), {"kernel": "naive"}),
    "kernel, new result": lambda ops: (ops, None, {"kernel": "naive"}),
    "stream": lambda ops: (ops, None, {"stream": 1}),
}


@pytest.mark.parametrize("style", ["versioned", "legacy", "before-1.0"])
@pytest.mark.parametrize("wrong", WRONG)
def test_every_export_is_given_back_once(style, wrong):
    host = random_operands(np.random.default_rng(0), M, N, K)
    operands, out, options = WRONG[wrong]([Producer(operand, style) for operand in host])
    producers = [*operands, *(p for p in (out, options.get("alpha")) if p is not None)]
    with pytest.raises((TypeError, ValueError)):
        sparse_gemm(*operands, out, **options)
    assert [p.deleted for p in producers] == [len(p.capsules) for p in producers]
    references = [sys.getrefcount(p) for p in producers]
    with pytest.raises((TypeError, ValueError)):
        sparse_gemm(*operands, out, **options)
    for function in (_C.time_launches, _C.time_preparation):
        if not options:
            with pytest.raises((TypeError, ValueError)):
                function((*operands, *([] if out is None else [out])), 3)
    assert [sys.getrefcount(p) for p in producers] == references
    assert [p.deleted for p in producers] == [len(p.capsules) for p in producers]


# --- on a GPU ---

SHAPE = (33, 64, 512)
CALLS = 10_000
ALONE = "PYTEST_XDIST_WORKER" not in os.environ  # else other workers allocate on the GPU as well
SLACK = 4 << 20  # bytes: programs beside the tests may share the GPU
POOL_RESERVED = 5  # CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT; what is used was seen to go up by
# cuMemAllocAsync and not down by cuMemFree (driver 580)
LARGE = (8192, 4096, 64)  # a result of 64 MiB


@pytest.fixture(scope="module")
def host():
    return random_operands(np.random.default_rng(1), *SHAPE, scales="ordinary")


def pool_bytes(torch):
    """What this process has reserved in the driver's pool, where results of our own come from."""
    driver = ctypes.CDLL("libcuda.so.1")
    device, pool, reserved = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    for status in (
        driver.cuDeviceGet(ctypes.byref(device), torch.cuda.current_device()),
        driver.cuDeviceGetMemPool(ctypes.byref(pool), device),
        driver.cuMemPoolGetAttribute(pool, POOL_RESERVED, ctypes.byref(reserved)),
    ):
        assert status == 0
    return reserved.value


def settled(torch):
    """Bytes in use: this process's, and the whole GPU's, which says nothing if it is shared."""
    gc.collect()
    torch.cuda.synchronize()
    own = torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), pool_bytes(torch)
    free, total = torch.cuda.mem_get_info()
    return own, total - free


def assert_nothing_stayed(torch, before):
    own, on_gpu = settled(torch)
    assert all(now <= was for now, was in zip(own, before[0], strict=True))
    if ALONE:
        assert on_gpu - before[1] < SLACK


@pytest.mark.cuda
@pytest.mark.parametrize("way", ["out", "result", "error", "operator"])
def test_calls_leave_nothing_behind(torch_cuda, host, way):
    """References, the framework's memory and the driver's are what they were."""
    torch = torch_cuda
    operands = [torch.from_numpy(operand).cuda() for operand in host]
    out = torch.empty(SHAPE[:2], dtype=torch.bfloat16, device="cuda")

    def call():
        if way == "out":
            sparse_gemm(*operands, out)
        elif way == "result":
            sparse_gemm(*operands)
        elif way == "operator":
            torch.ops.nvfp4sparse.sparse_gemm(*operands)
        else:
            with pytest.raises(ValueError, match="out must have shape"):
                sparse_gemm(*operands, out.t())

    for _ in range(100):
        call()
    references = [sys.getrefcount(x) for x in (*operands, out)]
    before = settled(torch)
    for turn in range(CALLS):
        call()
        if turn % 500 == 0:
            torch.cuda.synchronize()
    assert [sys.getrefcount(x) for x in (*operands, out)] == references
    assert_nothing_stayed(torch, before)


@pytest.mark.cuda
def test_results_of_our_own_leave_nothing_behind(torch_cuda):
    """Results so large that two that stay are seen, whatever the pool keeps back."""
    torch = torch_cuda
    host = random_operands(np.random.default_rng(2), *LARGE, scales="ordinary")
    operands = [Foreign(torch.from_numpy(operand).cuda()) for operand in host]
    size = LARGE[0] * LARGE[1] * 2
    torch.from_dlpack(sparse_gemm(*operands))
    before = settled(torch)[0]
    kept = [sparse_gemm(*operands) for _ in range(2)]
    assert settled(torch)[0][2] >= before[2] + size  # so it is this pool
    kept.clear()
    for _ in range(20):
        torch.from_dlpack(sparse_gemm(*operands))
        sparse_gemm(*operands)
    after = settled(torch)[0]
    assert all(now <= was for now, was in zip(after[:2], before[:2], strict=True))
    assert after[2] - before[2] < 2 * size


@pytest.mark.cuda
def test_temporaries_on_a_side_stream(torch_cuda, host):
    """Operands freed while the kernel waits, and another stream that allocates all the while."""
    torch = torch_cuda
    operands = [torch.from_numpy(operand).cuda() for operand in host]
    expected = sparse_gemm(*operands).clone()
    side, other = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    results = []
    for turn in range(20):
        with torch.cuda.stream(side):
            torch.cuda._sleep(2_000_000)
            results.append(sparse_gemm(*(operand.clone() for operand in operands)))
            results[-1] = results[-1] + 0  # the call's own result is a temporary as well
        with torch.cuda.stream(other):
            for operand in operands:  # of the sizes that the temporaries had
                torch.full_like(operand, turn)
            torch.full_like(expected, float("nan"))
    torch.cuda.synchronize()
    for result in results:
        assert torch.equal(result, expected)
