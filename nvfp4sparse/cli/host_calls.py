# SPDX-License-Identifier: Apache-2.0
"""The calls whose host time `bench --host` takes, framework by framework."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

import nvfp4sparse

from .workload import Problem


@dataclass(frozen=True)
class HostCall:
    """Something to call many times; `wait` gets the last result, before the queue is full."""

    framework: str
    name: str
    role: str  # ours, peer or part
    function: Callable[[], Any]
    wait: Callable[[Any], None]
    arguments: tuple[Any, ...] = ()  # of sparse_gemm, operands and out, where C may time them


@dataclass(frozen=True)
class Absent:
    """A framework that is not here, and why."""

    framework: str
    reason: str


def no_wait(result: Any) -> None:
    """Host memory: a call has finished when it returns."""


def numpy_calls(operands: tuple[np.ndarray, ...], problem: Problem) -> Iterator[HostCall]:
    """Yield calls on arrays in host memory."""
    out = np.empty((problem.m, problem.n), ml_dtypes.bfloat16)
    yield from _ours("numpy", operands, out, no_wait)


def torch_calls(
    operands: tuple[np.ndarray, ...], problem: Problem, on_gpu: bool
) -> Iterator[HostCall]:
    """Yield calls on tensors of PyTorch, and its own matrix product in bfloat16."""
    import torch

    device = "cuda" if on_gpu else "cpu"

    def wait(result: Any) -> None:
        if on_gpu:
            torch.cuda.synchronize()

    tensors = tuple(torch.from_numpy(x).to(device) for x in operands)
    out = torch.empty((problem.m, problem.n), dtype=torch.bfloat16, device=device)
    a = torch.randn(problem.m, problem.k, dtype=torch.bfloat16, device=device)
    b = torch.randn(problem.n, problem.k, dtype=torch.bfloat16, device=device).t()
    yield from _ours("torch", tensors, out, wait)
    operator = torch.ops.nvfp4sparse.sparse_gemm_out.default
    yield HostCall(
        "torch", "torch.ops sparse_gemm_out", "ours", partial(operator, *tensors, out), wait
    )
    yield HostCall("torch", "torch.mm(out=)", "peer", partial(torch.mm, a, b, out=out), wait)
    yield HostCall("torch", "torch.mm", "peer", partial(torch.mm, a, b), wait)
    empty = partial(tensors[0].new_empty, out.shape, dtype=out.dtype)
    yield HostCall("torch", "new_empty", "part", empty, wait)


def cupy_calls(operands: tuple[np.ndarray, ...], problem: Problem) -> Iterator[HostCall]:
    """Yield calls on arrays of CuPy, and its own matrix product in float16."""
    import cupy

    def wait(result: Any) -> None:
        cupy.cuda.get_current_stream().synchronize()

    out = cupy.empty((problem.m, problem.n), np.float16)
    a, b = (
        cupy.ones((problem.m, problem.k), np.float16),
        cupy.ones((problem.k, problem.n), np.float16),
    )
    yield from _ours("cupy", tuple(map(cupy.asarray, operands)), out, wait)
    yield HostCall("cupy", "cupy.matmul(out=)", "peer", partial(cupy.matmul, a, b, out=out), wait)


def jax_calls(
    operands: tuple[np.ndarray, ...], problem: Problem, on_gpu: bool
) -> Iterator[HostCall]:
    """Yield calls on arrays of JAX, and its own matrix product in bfloat16, compiled."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the GPU is shared here
    import jax

    wait = jax.block_until_ready
    device = jax.devices("gpu" if on_gpu else "cpu")[0]
    arrays = tuple(jax.device_put(x, device) for x in operands)
    shapes = (problem.m, problem.k), (problem.n, problem.k)
    a, b = (jax.device_put(np.ones(shape, ml_dtypes.bfloat16), device) for shape in shapes)
    ours = partial(nvfp4sparse.sparse_gemm, *arrays)
    yield HostCall("jax", "sparse_gemm", "ours", ours, wait)
    compiled = jax.jit(nvfp4sparse.sparse_gemm)
    yield HostCall("jax", "jax.jit(sparse_gemm)", "ours", partial(compiled, *arrays), wait)
    product = jax.jit(lambda x, y: x @ y.T)
    yield HostCall("jax", "jax.jit(matmul)", "peer", partial(product, a, b), wait)


def _ours(framework, tensors, out, wait):
    gemm = nvfp4sparse.sparse_gemm
    with_out = (*tensors, out)
    yield HostCall(framework, "sparse_gemm(out)", "ours", partial(gemm, *with_out), wait, with_out)
    yield HostCall(framework, "sparse_gemm", "ours", partial(gemm, *tensors), wait)


def all_calls(
    operands: tuple[np.ndarray, ...], problem: Problem, on_gpu: bool
) -> Iterator[HostCall | Absent]:
    """Yield the calls of every framework that is here and has a device of that kind."""
    makers: dict[str, Callable[[], Iterator[HostCall]]] = {
        "torch": partial(torch_calls, operands, problem, on_gpu),
        "jax": partial(jax_calls, operands, problem, on_gpu),
    }
    if on_gpu:
        makers["cupy"] = partial(cupy_calls, operands, problem)
    else:
        makers["numpy"] = partial(numpy_calls, operands, problem)
    for framework, maker in makers.items():
        try:
            importlib.import_module(framework)
            calls = list(maker())
        except (ImportError, RuntimeError) as error:  # not installed, or without a device
            yield Absent(framework, str(error).splitlines()[0])
            continue
        yield from calls
