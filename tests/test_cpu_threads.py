# SPDX-License-Identifier: Apache-2.0
"""Threads of the CPU path: how many there are is never seen in the result."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from cases import random_operands
from nvfp4sparse import sparse_gemm

# Large enough for several threads. Prints the CPU time of others than the main thread, and C.
PROGRAM = """
import sys, time
import numpy as np
from cases import random_operands
from nvfp4sparse import sparse_gemm
operands = random_operands(np.random.default_rng(0), 70, 500, 2048)
others = time.process_time() - time.thread_time()
for _ in range(5):
    c = sparse_gemm(*operands, out_dtype="float32")
print(time.process_time() - time.thread_time() - others)
print(c.tobytes().hex())
"""


def run(threads):
    environment = os.environ | {
        "NVFP4SPARSE_NUM_THREADS": threads,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
        "OPENBLAS_NUM_THREADS": "1",
    }
    command = [sys.executable, "-c", PROGRAM]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    seconds, digits = result.stdout.split()
    return float(seconds), digits


@pytest.fixture(scope="module")
def single():
    """What one thread computes."""
    seconds, digits = run("1")
    assert seconds < 1e-3
    return digits


@pytest.mark.parametrize("threads", ["3", "1000000", "", "many", "-2"])
def test_thread_counts(single, threads):
    """A number, too large a number, and what is no positive number and counts for nothing."""
    assert run(threads)[1] == single


def test_calls_at_the_same_time():
    """Nothing is shared between calls."""
    rng = np.random.default_rng(1)
    problems = [random_operands(rng, 40, 300 + i, 1024) for i in range(8)]
    expected = [sparse_gemm(*operands, out_dtype="float32") for operands in problems]
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda operands: sparse_gemm(*operands, out_dtype="float32"), problems))
    assert all(np.array_equal(*pair) for pair in zip(got, expected, strict=True))
