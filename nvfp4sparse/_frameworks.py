# SPDX-License-Identifier: Apache-2.0
"""What sparse_gemm() asks of a framework that only Python can answer.

Called from C (src/stream.c, src/result.c), never by users. A framework is imported only when one
of its tensors came, so these imports find it loaded.
"""

from typing import Any

_LEGACY, _PER_THREAD = 1, 2  # handles of CUDA's two default streams; 0 is the legacy one too


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


def empty(
    framework: str, like: Any, shape: tuple[int, int], dtype: str, device: int, stream: int | None
) -> Any:
    """A new array on the device of `like`, allocated for `stream` (None: the current one)."""
    return _EMPTY[framework](like, shape, dtype, device, stream)


def jax_gemm(*operands: Any, alpha: Any, out_dtype: str, kernel: str | None) -> Any:
    """sparse_gemm() of JAX arrays or tracers by way of XLA, or NotImplemented for DLPack's way."""
    try:
        from nvfp4sparse import jax
    except (ImportError, AttributeError):  # a JAX without jax.ffi
        return NotImplemented
    return jax.call_from_c(operands, alpha, out_dtype, kernel)


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


def _numpy_dtype(name):
    if name == "bfloat16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    return name


_EMPTY = {"torch": _torch_empty, "cupy": _cupy_empty, "numpy": _numpy_empty}
