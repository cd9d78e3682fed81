# SPDX-License-Identifier: Apache-2.0
"""The read-once floor: the time of a kernel that only reads the operands and writes C."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp4sparse import _C

from .devices import GpuDevice
from .timing import Call, Sample, Timing

THREADS = 256  # per block, as src/floor.c launches it
BLOCKS_PER_MULTIPROCESSOR = (1, 2, 4, 8)


class Floor:
    """The floor of operands in `buffer` (uint8, one allocation) and `out_bytes` of C."""

    name = "read-once floor"

    def __init__(self, device: GpuDevice, buffer: Any, out_bytes: int) -> None:
        self.buffer = buffer
        self.out = device.scratch(-(-out_bytes // 16) * 16)
        self.grids = [device.multiprocessors * blocks for blocks in BLOCKS_PER_MULTIPROCESSOR]

    def call(self, blocks: int) -> Call:
        """Return the launch of the floor on a grid of `blocks`."""
        return lambda: _C.launch_floor(self.buffer, self.out, blocks=blocks)


def expected(buffer: np.ndarray, out_bytes: int, blocks: int) -> np.ndarray:
    """Return what the floor kernel writes: uint8 [out_bytes], a multiple of 16.

    Its 16-byte word j is the XOR of the operand words i with i = j modulo the grid's threads,
    so one word that was not read shows.
    """
    threads = blocks * THREADS
    words = buffer.view(np.uint64).reshape(-1, 2)
    padded = np.zeros((-(-len(words) // threads) * threads, 2), np.uint64)
    padded[: len(words)] = words
    sums = np.bitwise_xor.reduce(padded.reshape(-1, threads, 2), axis=0)
    return sums[np.arange(out_bytes // 16) % threads].view(np.uint8).reshape(-1)


def best(timings: list[Timing]) -> Timing:
    """Return the fastest of several grids, for each form by itself."""
    cold = [timing.cold for timing in timings if timing.cold is not None]
    graph = [timing.graph for timing in timings if timing.graph is not None]

    def median(sample: Sample) -> float:
        return sample.median

    return Timing(
        cold=min(cold, key=median, default=None),
        warm=min((timing.warm for timing in timings), key=median),
        graph=min(graph, default=None),
    )
