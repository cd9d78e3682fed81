# SPDX-License-Identifier: Apache-2.0
"""Threads and processes: first calls in odd places, forks, many threads, and who holds the GIL."""

import threading
import time

import numpy as np
import pytest

from cases import random_operands
from new_processes import case_names, complaints_of
from nvfp4sparse import sparse_gemm
from threads import run_on_threads

CASES = case_names("process_cases.py")


@pytest.fixture(scope="module")
def complaints(torch_cuda):
    """What each of process_cases.py complained of: one process for all, as PyTorch loads slowly."""
    return complaints_of("process_cases.py")


@pytest.mark.cuda
@pytest.mark.parametrize("case", CASES)
def test_in_a_new_process(complaints, case):
    assert complaints[case] == ""


@pytest.mark.cuda
def test_threads_with_streams_of_their_own(torch_cuda):
    """Eight threads, each on its stream, with operands, results and outs of its own."""
    torch = torch_cuda
    barrier = threading.Barrier(8)
    failures = []

    def work(seed):
        rng = np.random.default_rng(seed)
        operands = [torch.from_numpy(o).cuda() for o in random_operands(rng, 8 * seed + 1, 64, 256)]
        expected = sparse_gemm(*operands).clone()
        out = torch.empty_like(expected)
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()
        barrier.wait()
        with torch.cuda.stream(stream):
            for _ in range(100):
                results = [sparse_gemm(*operands), sparse_gemm(*operands, out)]
                stream.synchronize()
                same = (
                    torch.equal(r.view(torch.int16), expected.view(torch.int16)) for r in results
                )
                if not all(same):
                    failures.append(seed)

    run_on_threads(work, range(8))
    assert failures == []


def test_the_gil_is_free_while_the_cpu_computes():
    """Another thread makes progress; a call that kept the GIL would let it take no turn."""
    operands = random_operands(np.random.default_rng(0), 200, 600, 2048)
    out = np.empty((200, 600), np.float32)
    spans, ticks = [], []

    def compute():
        for _ in range(20):
            begin = time.perf_counter()
            sparse_gemm(*operands, out)
            spans.append((begin, time.perf_counter()))

    thread = threading.Thread(target=compute)
    thread.start()
    while thread.is_alive():
        ticks.append(time.perf_counter())
        time.sleep(0.0002)
    thread.join()
    assert any(begin < tick < end for begin, end in spans for tick in ticks)
    inside = sum(any(begin < tick < end for tick in ticks) for begin, end in spans)
    assert inside >= len(spans) // 2


def test_threads_share_operands_and_the_caches_of_types():
    """First calls at the same time, with new types, on the same operands."""
    operands = random_operands(np.random.default_rng(1), 9, 33, 160)
    expected = sparse_gemm(*operands, out_dtype="float32")
    barrier = threading.Barrier(8)

    def work(seed):
        kind = type(f"Array{seed}", (np.ndarray,), {})
        views = [operand.view(kind) for operand in operands]
        barrier.wait()
        for _ in range(50):
            np.testing.assert_array_equal(sparse_gemm(*views, out_dtype="float32"), expected)
            with pytest.raises(ValueError, match="b_scale must have shape"):
                sparse_gemm(*views[:4], views[3])

    run_on_threads(work, range(8))
