# SPDX-License-Identifier: Apache-2.0
"""What test_two_devices.py runs on two GPUs, each in a process where nothing has used CUDA yet.

As process_cases.py does it: one process imports PyTorch and forks a child for every case. Values
are -1, 0 and 1 and scales 1, so that every kernel gives the CPU's bits.
"""

import json
import os
import sys
import threading

import numpy as np
import torch

import nvfp4sparse
from cases import random_operands
from process_cases import run
from threads import run_on_threads

K = 512  # 256 products: a sum has at most 256 in magnitude, which bfloat16 holds exactly
TERNARY = np.array([0x0, 0x2, 0xA], dtype=np.uint8)


def problem(m=16, n=48, seed=0):
    """Operands in host memory and the result in bfloat16."""
    rng = np.random.default_rng(seed)
    operands = [torch.from_numpy(o) for o in random_operands(rng, m, n, K)]
    for i, (low, high) in (
        (0, rng.choice(TERNARY, (2, m, K // 4))),
        (3, rng.choice(TERNARY, (2, n, K // 2))),
    ):
        operands[i] = torch.from_numpy(low | high << 4)
    for i in (2, 4):
        operands[i].fill_(0x38)
    expected = nvfp4sparse.sparse_gemm(*operands)
    assert 1 < expected.float().abs().max() <= K // 2
    return operands, expected


def problems():
    """One for every kernel that these GPUs run: name, operands, result."""
    properties = torch.cuda.get_device_properties(0)
    cc = 10 * properties.major + properties.minor
    for row in nvfp4sparse.kernels():
        if row["kind"] == "cuda" and row["cc_min"] <= cc <= row["cc_max"]:
            extents = max(row["m_min"], 5), min(max(row["n_min"], 24), row["n_max"])
            yield row["name"], *problem(*extents)


def put(operands, device):
    moved = [operand.to(f"cuda:{device}") for operand in operands]
    torch.cuda.synchronize(device)
    return moved


def check(inputs, expected, **options):
    """A call where the inputs are, while the current device is whichever it is."""
    current = torch.cuda.current_device()
    result = nvfp4sparse.sparse_gemm(*inputs, **options)
    assert torch.cuda.current_device() == current
    assert result.device == inputs[0].device
    assert torch.equal(result.cpu(), expected), options


def first_calls_on_both_at_once():
    """Every kernel is loaded on both devices at the same moment."""
    given = [(name, [put(host, d) for d in (0, 1)], want) for name, host, want in problems()]
    barrier = threading.Barrier(2, timeout=60)

    def work(device):
        for name, inputs, expected in given:
            barrier.wait()
            check(inputs[device], expected, kernel=name)

    run_on_threads(work, (0, 1))


def first_calls_in_opposite_order():
    """Each device loads its kernels in an order of its own, on threads current on the other."""
    given = [(name, [put(host, d) for d in (0, 1)], want) for name, host, want in problems()]
    barrier = threading.Barrier(2, timeout=60)

    def work(device):
        torch.cuda.set_device(1 - device)
        barrier.wait()
        for name, inputs, expected in given[:: 1 - 2 * device]:
            check(inputs[device], expected, kernel=name)

    run_on_threads(work, (0, 1))


def one_device_after_the_other():
    """What the second device was told (shared memory, clusters) does not count for the first."""
    for device in (1, 0):
        for name, host, expected in problems():
            check(put(host, device), expected, kernel=name)
    assert torch.cuda.current_device() == 0


def first_call_on_a_thread():
    """A thread without a context, and nothing has run on device 0."""
    host, expected = problem()
    inputs = put(host, 1)
    run_on_threads(lambda _: check(inputs, expected), (0, 1))
    check(inputs, expected)


def first_call_in_a_capture(current, mode, kernel):
    """On device 1, with any device current. Nothing of the package has run on a GPU before."""
    host, expected = problem()
    inputs = put(host, 1)
    out = torch.zeros(expected.shape, dtype=torch.bfloat16, device="cuda:1")
    torch.zeros(1, device=f"cuda:{current}")  # no context shall be made while capturing
    torch.cuda.synchronize(1)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(device=1)
    capture = torch.cuda.graph(graph, stream=stream, capture_error_mode=mode)
    with torch.cuda.device(1), capture, torch.cuda.device(current):
        own = nvfp4sparse.sparse_gemm(*inputs, kernel=kernel)
        nvfp4sparse.sparse_gemm(*inputs, out, kernel=kernel)
        assert torch.cuda.current_device() == current
    graph.replay()
    torch.cuda.synchronize(1)
    assert torch.equal(own.cpu(), expected)
    assert torch.equal(out.cpu(), expected)
    check(inputs, expected, kernel=kernel)
    assert torch.cuda.current_device() == 0


def capture_global():
    first_call_in_a_capture(1, "global", None)


def capture_thread_local():
    first_call_in_a_capture(1, "thread_local", "naive")


def capture_while_the_other_is_current():
    first_call_in_a_capture(0, "global", None)


def check_visible(*order):
    """Among the GPUs that this process may see, only these shall be visible, in this order."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or "0,1"
    names = visible.split(",")
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(names[i] for i in order)
    assert torch.cuda.device_count() == len(order)
    assert [d["id"] for d in nvfp4sparse.cuda_info()["devices"]] == list(range(len(order)))
    for device in reversed(range(len(order))):
        for name, host, expected in problems():
            check(put(host, device), expected, kernel=name)
    assert torch.cuda.current_device() == 0


def visible_in_reverse():
    check_visible(1, 0)


def only_the_second_is_visible():
    check_visible(1)


CASES = (
    first_calls_on_both_at_once,
    first_calls_in_opposite_order,
    one_device_after_the_other,
    first_call_on_a_thread,
    capture_global,
    capture_thread_local,
    capture_while_the_other_is_current,
    visible_in_reverse,
    only_the_second_is_visible,
)


if __name__ == "__main__":
    json.dump({case.__name__: run(case) for case in CASES}, sys.stdout)
