# SPDX-License-Identifier: Apache-2.0
"""PyTorch's tensors on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .devices import SCRUB_BYTES, GpuDevice
from .workload import Problem


class TorchDevice(GpuDevice):
    """The current CUDA device through PyTorch."""

    framework = "torch"

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.device = torch.device("cuda", torch.cuda.current_device())
        properties = torch.cuda.get_device_properties(self.device)
        self.label = str(self.device)
        self.name = properties.name
        self.multiprocessors = properties.multi_processor_count
        self.smi_id = f"GPU-{properties.uuid}"
        self._scratch = self.scratch(SCRUB_BYTES)

    def put(self, array: np.ndarray) -> Any:
        """See Device."""
        return self.torch.from_numpy(array).to(self.device)

    def empty(self, problem: Problem) -> Any:
        """See Device."""
        shape = (problem.n, problem.m) if problem.column_major else (problem.m, problem.n)
        c = self.torch.empty(shape, dtype=self.torch.bfloat16, device=self.device)
        return c.t() if problem.column_major else c

    def scratch(self, nbytes: int) -> Any:
        """See GpuDevice."""
        return self.torch.empty(nbytes, dtype=self.torch.uint8, device=self.device)

    def to_host(self, tensor: Any) -> np.ndarray:
        """See Device."""
        is_bytes = tensor.dtype == self.torch.uint8
        return (tensor if is_bytes else tensor.float()).cpu().numpy()

    def product(self, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See Device."""
        a64, b64 = self.put(a).double(), self.put(b).double()
        exact, magnitude = a64 @ b64.T, a64.abs() @ b64.abs().T
        return exact.cpu().numpy(), magnitude.cpu().numpy()

    def synchronize(self) -> None:
        """See GpuDevice."""
        self.torch.cuda.synchronize(self.device)

    def scrub(self) -> None:
        """See GpuDevice."""
        self._scratch.fill_(1)

    def capture(self, call: Callable[[], Any]) -> Callable[[], None]:
        """See GpuDevice."""
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            call()
        return graph.replay

    def seconds(self, call: Callable[[], Any]) -> float:
        """See GpuDevice."""
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e-3
