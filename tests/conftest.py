# SPDX-License-Identifier: Apache-2.0
"""The `device` fixture: one suite for host memory and for each framework on a GPU.

A missing GPU skips with the reason; NVFP4SPARSE_REQUIRE_CUDA=1 turns that into a failure.
"""

import os

import ml_dtypes
import numpy as np
import pytest

import nvfp4sparse

INTEGERS = {"bfloat16": np.uint16, "float16": np.uint16, "float32": np.uint32}


def numpy_dtype(name):
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


class Device:
    """Moves NumPy arrays to a place and back. `to` and `numpy` copy."""

    kind = "cuda"

    def gemm(self, *operands, **options):
        """sparse_gemm on this device, from NumPy operands to a float32 result."""
        return self.numpy(nvfp4sparse.sparse_gemm(*map(self.to, operands), **options))

    def numpy(self, array):
        """The array in host memory; floats as float32."""
        host = self.host(array)
        return host if host.dtype.kind in "iu" else host.astype(np.float32)


class Numpy(Device):
    kind = "cpu"

    def to(self, array):
        return np.array(array)

    def host(self, array):
        assert isinstance(array, np.ndarray)
        return np.array(array)

    def empty(self, shape, dtype="bfloat16", column_major=False):
        return np.empty(shape, numpy_dtype(dtype), order="F" if column_major else "C")

    def synchronize(self):
        pass


class Torch(Device):
    def __init__(self, torch, where):
        self.torch, self.where = torch, where

    def to(self, array):
        return self.torch.from_numpy(np.array(array)).to(self.where)

    def host(self, array):
        assert isinstance(array, self.torch.Tensor)
        if array.dtype == self.torch.bfloat16:
            return array.float().cpu().numpy()
        return array.cpu().numpy()

    def empty(self, shape, dtype="bfloat16", column_major=False):
        dtype = getattr(self.torch, dtype)
        if column_major:
            return self.torch.empty(shape[::-1], dtype=dtype, device=self.where).t()
        return self.torch.empty(shape, dtype=dtype, device=self.where)

    def synchronize(self):
        self.torch.cuda.synchronize(self.where)


class TorchCpu(Torch):
    kind = "cpu"

    def synchronize(self):
        pass


class Cupy(Device):
    def __init__(self, cupy):
        self.cupy = cupy

    def to(self, array):
        return self.cupy.array(array)

    def host(self, array):
        assert isinstance(array, self.cupy.ndarray)
        if array.dtype.name in INTEGERS:  # the same bits, whatever CuPy can copy
            integers = self.cupy.asnumpy(array.view(INTEGERS[array.dtype.name]))
            return integers.view(numpy_dtype(array.dtype.name))
        return self.cupy.asnumpy(array)

    def empty(self, shape, dtype="bfloat16", column_major=False):
        return self.cupy.empty(shape, numpy_dtype(dtype), order="F" if column_major else "C")

    def synchronize(self):
        self.cupy.cuda.Device().synchronize()


def missing(reason, *, is_failure=True):
    if is_failure and os.environ.get("NVFP4SPARSE_REQUIRE_CUDA") == "1":
        pytest.fail(f"NVFP4SPARSE_REQUIRE_CUDA=1, but {reason}")
    pytest.skip(reason)


def make_device(name):
    """The device of that id, or a skip."""
    if name == "cpu-numpy":
        return Numpy()
    if name == "cpu-torch":
        return TorchCpu(pytest.importorskip("torch"), "cpu")
    if name == "cuda-torch":
        try:
            import torch
        except ImportError as error:
            missing(f"PyTorch does not import ({error})")
        if not torch.cuda.is_available():
            missing("PyTorch sees no GPU")
        return Torch(torch, "cuda")
    try:
        import cupy
    except ImportError as error:
        missing(f"CuPy does not import ({error})", is_failure=False)
    if not cupy.cuda.is_available():
        missing("CuPy sees no GPU")
    return Cupy(cupy)


CUDA = [pytest.param(name, marks=pytest.mark.cuda) for name in ("cuda-torch", "cuda-cupy")]


@pytest.fixture(scope="session", params=["cpu-numpy", "cpu-torch", *CUDA])
def device(request):
    """Each place that tensors can be in."""
    return make_device(request.param)


@pytest.fixture(scope="session")
def torch_cuda():
    """PyTorch, where it sees a GPU."""
    return make_device("cuda-torch").torch


@pytest.fixture(scope="session")
def cupy_cuda():
    """CuPy, where it sees a GPU."""
    return make_device("cuda-cupy").cupy
