# SPDX-License-Identifier: Apache-2.0
"""What sparse_gemm() asks of a framework that only Python can answer.

Called from C (src/stream.c, src/result.c, src/cupy_array.c, src/jax_route.c), never by users. A
framework is imported only when one of its tensors came, so these imports find it loaded.
"""

import sys
from functools import cache
from typing import Any

_LEGACY, _PER_THREAD = 1, 2  # handles of CUDA's two default streams; 0 is the legacy one too
_CUPY_ATTRIBUTES = ("data", "ptr", "device_id", "shape", "strides", "dtype")


class _Stream:
    """A stream handle as an object of the CUDA stream protocol."""

    def __init__(self, handle: int):
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


def current_stream(framework: str, device: int) -> int:
    """The handle of the framework's current stream on a CUDA device; 0 is the legacy default."""
    if framework == "torch":
        import torch

        return torch._C._cuda_getCurrentRawStream(device)
    import cupy

    return cupy.cuda.get_current_stream(device).ptr


def cupy_facts(kind: type) -> tuple[Any, ...] | None:
    """What src/cupy_array.c reads arrays of that type with, in its order; None: it shall not.

    That is for a subclass of cupy.ndarray, and for CuPy on AMD's GPUs.
    """
    cupy = sys.modules.get("cupy")
    if kind is not getattr(cupy, "ndarray", None) or cupy.cuda.runtime.is_hip:
        return None
    dtypes = map(_numpy_dtype, ("uint8", "int8", "bfloat16", "float16", "float32"))
    return cupy.cuda.get_current_stream, *_CUPY_ATTRIBUTES, *dtypes


def empty(
    framework: str, like: Any, shape: tuple[int, int], dtype: str, device: int, stream: int | None
) -> Any:
    """A new array on the device of `like`, allocated for `stream` (None: the current one)."""
    return _EMPTY[framework](like, shape, dtype, device, stream)


def jax_gemm(*operands: Any, alpha: Any, out_dtype: str, kernel: str | None) -> Any:
    """sparse_gemm() of JAX arrays or tracers by way of XLA, or NotImplemented for DLPack's way."""
    try:
        call = _jax_call()
    except (ImportError, AttributeError):  # a JAX without jax.ffi
        return NotImplemented
    return call(operands, alpha, out_dtype, kernel)


@cache
def _jax_call():
    from nvfp4sparse import jax

    return jax.call_from_c


def jax_array(result: Any) -> Any:
    """A jax.Array that takes over the memory of a Result."""
    import jax.dlpack

    return jax.dlpack.from_dlpack(result)


def _torch_empty(like, shape, dtype, device, stream):
    import torch

    if stream is None:
        return like.new_empty(shape, dtype=getattr(torch, dtype))
    handle = 0 if stream == _LEGACY else stream
    with torch.cuda.stream(torch.cuda.ExternalStream(handle, device=device)):
        return like.new_empty(shape, dtype=getattr(torch, dtype))


def _cupy_empty(like, shape, dtype, device, stream):
    import cupy

    if stream is None and cupy.cuda.runtime.getDevice() == device:
        return cupy.empty(shape, _numpy_dtype(dtype))
    with cupy.cuda.Device(device):
        if stream is None:
            return cupy.empty(shape, _numpy_dtype(dtype))
        with _cupy_stream(stream):
            return cupy.empty(shape, _numpy_dtype(dtype))


def _cupy_stream(handle):
    from cupy.cuda import ExternalStream, Stream

    if handle in (0, _LEGACY):
        return Stream.null
    if handle == _PER_THREAD:
        return Stream.ptds
    if hasattr(Stream, "from_external"):  # CuPy 14 and up
        return Stream.from_external(_Stream(handle))
    return ExternalStream(handle)


def _numpy_empty(like, shape, dtype, device, stream):
    import numpy

    return numpy.empty(shape, _numpy_dtype(dtype))


@cache
def _numpy_dtype(name):
    import ml_dtypes
    import numpy

    return numpy.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


_EMPTY = {"torch": _torch_empty, "cupy": _cupy_empty, "numpy": _numpy_empty}
