# SPDX-License-Identifier: Apache-2.0
"""CuPy's tensors on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from .devices import SCRUB_BYTES, GpuDevice
from .workload import Problem


class CupyDevice(GpuDevice):
    """The current CUDA device through CuPy."""

    framework = "cupy"

    def __init__(self, cupy: Any) -> None:
        self.cupy = cupy
        device = cupy.cuda.Device()
        properties = cupy.cuda.runtime.getDeviceProperties(device.id)
        self.label = f"cuda:{device.id}"
        self.name = properties["name"].decode()
        self.multiprocessors = properties["multiProcessorCount"]
        self.smi_id = device.pci_bus_id
        self._scratch = self.scratch(SCRUB_BYTES)

    def put(self, array: np.ndarray) -> Any:
        """See Device."""
        return self.cupy.asarray(array)

    def empty(self, problem: Problem) -> Any:
        """See Device."""
        order = "F" if problem.column_major else "C"
        return self.cupy.empty((problem.m, problem.n), ml_dtypes.bfloat16, order)

    def scratch(self, nbytes: int) -> Any:
        """See GpuDevice."""
        return self.cupy.empty(nbytes, np.uint8)

    def to_host(self, tensor: Any) -> np.ndarray:
        """See Device."""
        host = self.cupy.asnumpy(tensor)
        return host if host.dtype == np.uint8 else host.astype(np.float32)

    def synchronize(self) -> None:
        """See GpuDevice."""
        self.cupy.cuda.Device().synchronize()

    def scrub(self) -> None:
        """See GpuDevice."""
        self._scratch.fill(1)

    def capture(self, call: Callable[[], Any]) -> Callable[[], None]:
        """See GpuDevice."""
        with self.cupy.cuda.Stream(non_blocking=True) as stream:
            stream.begin_capture()
            call()
            graph = stream.end_capture()
        return graph.launch

    def seconds(self, call: Callable[[], Any]) -> float:
        """See GpuDevice."""
        begin, end = (self.cupy.cuda.Event() for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        return self.cupy.cuda.get_elapsed_time(begin, end) * 1e-3
