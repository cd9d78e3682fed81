# SPDX-License-Identifier: Apache-2.0
"""Every way through the module, many times over: memory and references must not grow."""

import contextlib
import gc
import sys
import sysconfig

import ml_dtypes
import numpy as np
import pytest

import nvfp4sparse
from cases import random_operands
from dlpack_fakes import Producer, exchange_type
from nvfp4sparse import _C, sparse_gemm

TURNS = 3000
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
ROUNDS = 16 if FREE_THREADED else 4  # its allocator gives pages back later
ALLOWED = 128 * 1024  # bytes of growth in a round; 50 bytes a turn are more

OPERANDS = random_operands(np.random.default_rng(0), 2, 3, 32)
OUT = np.zeros((2, 3), np.float32)
EXCHANGING = exchange_type()


def frozen(array):
    array.flags.writeable = False
    return array


E4M3 = [OPERANDS[i].view(ml_dtypes.float8_e4m3fn) if i in (2, 4) else OPERANDS[i] for i in range(5)]
GOOD = {
    "out": lambda: sparse_gemm(*OPERANDS, OUT),
    "result": lambda: sparse_gemm(*OPERANDS),
    "float16": lambda: sparse_gemm(*OPERANDS, out_dtype=np.float16),
    "alpha tensor": lambda: sparse_gemm(*OPERANDS, OUT, alpha=np.ones(1, np.float32)),
    "ml_dtypes": lambda: sparse_gemm(*E4M3, np.zeros((2, 3), ml_dtypes.bfloat16)),
    "exporter": lambda: sparse_gemm(Producer(OPERANDS[0]), *OPERANDS[1:], out_dtype="float32"),
    "exporter read": lambda: np.from_dlpack(GOOD["exporter"]()).sum(),
    "exporter capsules": lambda: (
        GOOD["exporter"]().__dlpack__(),
        GOOD["exporter"]().__dlpack__(max_version=(1, 0)),
        repr(GOOD["exporter"]()),
    ),
    "exchange API": lambda: sparse_gemm(*map(EXCHANGING, OPERANDS), OUT),
    "old producers": lambda: sparse_gemm(*(Producer(o, "before-1.0") for o in OPERANDS), OUT),
    "kernels": nvfp4sparse.kernels,
    "plan": lambda: (nvfp4sparse.plan(1, 1, 16, "cpu"), nvfp4sparse.plan(1, 1, 16, cc=90)),
    "no plan": lambda: nvfp4sparse.plan(1, 1, 16, cc=10),
    "cuda_info": nvfp4sparse.cuda_info,
    "build_info": nvfp4sparse.build_info,
}
BAD = {
    "no operands": lambda: sparse_gemm(),
    "twice": lambda: sparse_gemm(*OPERANDS, a_vals=1),
    "unknown keyword": lambda: sparse_gemm(*OPERANDS, beta=1),
    "no tensor": lambda: sparse_gemm(*OPERANDS[:4], object()),
    "dtype": lambda: sparse_gemm(*OPERANDS[:4], np.zeros((3, 2), np.float32)),
    "numpy dtype": lambda: sparse_gemm(*OPERANDS[:4], np.zeros((3, 2), "S1")),
    "shape": lambda: sparse_gemm(*OPERANDS[:4], OPERANDS[4][:2]),
    "strides": lambda: sparse_gemm(*OPERANDS[:4], np.zeros((2, 3), np.uint8).T),
    "broken": lambda: sparse_gemm(*OPERANDS[:4], Producer(OPERANDS[4], ndim=-1)),
    "version": lambda: sparse_gemm(*OPERANDS[:4], Producer(OPERANDS[4], version=(2, 0))),
    "device": lambda: sparse_gemm(*OPERANDS[:4], Producer(OPERANDS[4], device=(10, 0))),
    "out read-only": lambda: sparse_gemm(*OPERANDS, frozen(np.zeros((2, 3), np.float32))),
    "out shape": lambda: sparse_gemm(*OPERANDS, OUT.T),
    "out overlaps": lambda: sparse_gemm(*OPERANDS, OUT, alpha=OUT[:1, :1]),
    "out_dtype": lambda: sparse_gemm(*OPERANDS, out_dtype="int8"),
    "out_dtype differs": lambda: sparse_gemm(*OPERANDS, OUT, out_dtype="float16"),
    "alpha": lambda: sparse_gemm(*OPERANDS, alpha="1"),
    "alpha shape": lambda: sparse_gemm(*OPERANDS, alpha=np.ones(2, np.float32)),
    "kernel": lambda: sparse_gemm(*OPERANDS, kernel="none"),
    "kernel does not fit": lambda: sparse_gemm(*OPERANDS, kernel="naive"),
    "stream": lambda: sparse_gemm(*OPERANDS, stream=1),
    "plan": lambda: nvfp4sparse.plan(1, 1, 16, "gpu"),
    "plan cc": lambda: nvfp4sparse.plan(1, 1, 16, "cpu", cc=90),
    "floor": lambda: _C.launch_floor(OUT, OUT, blocks=1),
    "exporter": lambda: GOOD["exporter"]().__dlpack__(stream=1),
}


def resident_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


def repeat(call, turns):
    for _ in range(turns):
        with contextlib.suppress(TypeError, ValueError, BufferError, RuntimeError):
            call()
    gc.collect()


def growth(call, turns):
    """Bytes that a round of calls adds. A leak adds in every round, an arena in one."""
    rounds = []
    while len(rounds) < ROUNDS and min(rounds, default=ALLOWED) >= ALLOWED:
        before = resident_bytes()
        repeat(call, turns)
        rounds.append(resident_bytes() - before)
    return min(rounds)


@pytest.mark.parametrize("name", [*GOOD, *(f"bad {name}" for name in BAD)])
def test_nothing_grows(name):
    if name.startswith("bad "):
        call = BAD[name.removeprefix("bad ")]
        with pytest.raises((TypeError, ValueError, BufferError, RuntimeError)):
            call()
    else:
        call = GOOD[name]
        call()
    turns = TURNS // 3 if "exporter" in name else TURNS
    repeat(call, turns // 4)
    references = [sys.getrefcount(x) for x in [*OPERANDS, OUT]]
    assert growth(call, turns) < ALLOWED
    assert [sys.getrefcount(x) for x in [*OPERANDS, OUT]] == references
    expected = sparse_gemm(*OPERANDS, out_dtype="float32")
    np.testing.assert_array_equal(sparse_gemm(*OPERANDS, OUT), expected)


@pytest.mark.skipif(
    FREE_THREADED and sys.version_info < (3, 14),
    reason="free-threaded Python 3.13 keeps every type for good once a thread has run",
)
def test_types_are_kept_but_few():
    """A type once seen may stay, so that its address is not another's; but not any number."""
    for _ in range(50):
        kind = exchange_type()
        sparse_gemm(*map(kind, OPERANDS), OUT)
    before = len([t for t in Producer.__subclasses__() if t.__name__ == "Exchanging"])
    gc.collect()
    kept = [t for t in Producer.__subclasses__() if t.__name__ == "Exchanging"]
    assert len(kept) <= before
    assert len(kept) <= 10
