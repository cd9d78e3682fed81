# SPDX-License-Identifier: Apache-2.0
"""Where tensors live: one small adapter for NumPy here, for PyTorch and CuPy beside this file."""

from __future__ import annotations

import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from .workload import Problem, exact_product

SCRUB_BYTES = 256 << 20  # more than any GPU's L2
ALIGNMENT = 256


def concatenate(arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, list[int]]:
    """Return a uint8 buffer of all arrays and their offsets, multiples of ALIGNMENT.

    One buffer holds all operands so that the read-once floor reads the very bytes a kernel does.
    """
    offsets, end = [], 0
    for array in arrays:
        offsets.append(end)
        end += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    buffer = np.zeros(end, np.uint8)
    for offset, array in zip(offsets, arrays, strict=True):
        buffer[offset : offset + array.nbytes] = array.ravel()
    return buffer, offsets


class Device(ABC):
    """What all adapters can do."""

    kind: str  # "cpu" or "cuda"
    framework: str  # whose tensors they are
    name: str  # of the hardware
    label: str  # "cpu" or "cuda:N", what plan() takes

    @abstractmethod
    def put(self, array: np.ndarray) -> Any:
        """Copy a NumPy array to the device."""

    @abstractmethod
    def empty(self, problem: Problem) -> Any:
        """Make an uninitialised C, bf16, in the problem's layout."""

    @abstractmethod
    def to_host(self, tensor: Any) -> np.ndarray:
        """Copy a tensor to NumPy: uint8 as it is, C as float32."""

    def upload(self, arrays: Sequence[np.ndarray]) -> tuple[Any, tuple[Any, ...]]:
        """Return one uint8 buffer that holds all arrays, and its views shaped like them."""
        host, offsets = concatenate(arrays)
        buffer = self.put(host)
        views = (
            buffer[offset : offset + array.nbytes].reshape(array.shape)
            for offset, array in zip(offsets, arrays, strict=True)
        )
        return buffer, tuple(views)

    def product(self, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return what `exact_product` does, as fast as the device can."""
        return exact_product(a, b)


class GpuDevice(Device):
    """What timers ask of a GPU; all of it on the current device and the current stream."""

    kind = "cuda"
    multiprocessors: int
    smi_id: str  # what `nvidia-smi --id=` takes

    @abstractmethod
    def scratch(self, nbytes: int) -> Any:
        """Make an uninitialised uint8 tensor."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for the device."""

    @abstractmethod
    def scrub(self) -> None:
        """Push everything out of L2."""

    @abstractmethod
    def capture(self, call: Callable[[], Any]) -> Callable[[], None]:
        """Record one run of `call` as a CUDA graph; the result replays it."""

    @abstractmethod
    def seconds(self, call: Callable[[], Any]) -> float:
        """Return the time between two CUDA events around `call`."""


class NumpyDevice(Device):
    """The CPU path."""

    kind = "cpu"
    framework = "numpy"
    label = "cpu"
    name = f"CPU, {len(os.sched_getaffinity(0))} cores"

    def put(self, array: np.ndarray) -> np.ndarray:
        """Return the array itself."""
        return array

    def empty(self, problem: Problem) -> np.ndarray:
        """See Device."""
        order = "F" if problem.column_major else "C"
        return np.empty((problem.m, problem.n), ml_dtypes.bfloat16, order)

    def to_host(self, tensor: np.ndarray) -> np.ndarray:
        """See Device."""
        return tensor if tensor.dtype == np.uint8 else tensor.astype(np.float32)


def find_gpu() -> tuple[GpuDevice | None, str]:
    """Return an adapter of the current GPU and "", or None and why there is none."""
    reasons = []
    for framework, adapter in (("torch", "TorchDevice"), ("cupy", "CupyDevice")):
        try:
            module = importlib.import_module(framework)
        except ImportError as error:  # a broken installation is as good as none
            absent = isinstance(error, ModuleNotFoundError) and error.name == framework
            detail = "is not installed" if absent else f"does not import ({error})"
            reasons.append(f"{framework} {detail}")
            continue
        if module.cuda.is_available():
            home = importlib.import_module(f".{framework}_device", __package__)
            return getattr(home, adapter)(module), ""
        reasons.append(f"{framework} sees no CUDA device")
    return None, ", ".join(reasons)
