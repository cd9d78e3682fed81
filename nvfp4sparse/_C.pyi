# SPDX-License-Identifier: Apache-2.0
"""Types of the C module; what its functions do stands in their docstrings."""

from typing import Any, Protocol, SupportsFloat, final

class DLPackTensor(Protocol):
    def __dlpack__(self, *, stream: Any = ...) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

class CUDAStream(Protocol):
    def __cuda_stream__(self) -> tuple[int, int]: ...

@final
class Result:
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    @property
    def shape(self) -> tuple[int, int]: ...

def sparse_gemm(
    a_vals: DLPackTensor,
    a_meta: DLPackTensor,
    a_scale: DLPackTensor,
    b_fp4: DLPackTensor,
    b_scale: DLPackTensor,
    out: DLPackTensor | None = None,
    *,
    alpha: SupportsFloat | DLPackTensor = 1.0,
    out_dtype: Any = None,
    stream: int | CUDAStream | None = None,
    kernel: str | None = None,
) -> Any: ...
def kernels() -> list[dict[str, Any]]: ...
def plan(
    m: int,
    n: int,
    k: int,
    device: Any = None,
    *,
    cc: int | None = None,
    aligned: bool = True,
) -> dict[str, Any]: ...
def cuda_info() -> dict[str, Any]: ...
def build_info() -> dict[str, Any]: ...
def launch_floor(
    operands: DLPackTensor,
    out: DLPackTensor,
    *,
    blocks: int,
    stream: int | CUDAStream | None = None,
) -> None: ...
def time_launches(
    arguments: tuple[DLPackTensor, ...], calls: int, in_calls: bool = False, /
) -> list[int]: ...
def time_preparation(arguments: tuple[DLPackTensor, ...], calls: int, /) -> list[int]: ...
def xla_handlers() -> dict[str, Any]: ...
