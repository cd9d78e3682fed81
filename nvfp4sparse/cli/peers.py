# SPDX-License-Identifier: Apache-2.0
"""What the same product costs elsewhere, on operands that were dequantised beforehand.

Each peer gets the layout it likes best. It is timed for its product alone: unpacking NVFP4 is
work it is not charged for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import nvfp4sparse

from .devices import Device
from .kernels import Candidate, Missing, check_device, reason_of
from .torch_device import TorchDevice
from .workload import Problem

ROWS = 16  # fp8 and 2:4 kernels want multiples of this; fewer rows are padded with zeros


class _Output:
    """Keeps what the last call returned."""

    def __init__(self, product: Callable[[], Any]) -> None:
        self.product = product
        self.value: Any = None

    def __call__(self) -> None:
        self.value = self.product()


def peers_of(
    device: Device, problem: Problem, operands: tuple[np.ndarray, ...], a: np.ndarray, b: np.ndarray
) -> list[Candidate | Missing]:
    """Return the peers for a problem; a: float32 [m, k], b: float32 [n, k], dequantised.

    A peer that cannot run is Missing. Raises DeviceLostError if the device did not survive it.
    """
    if device.kind == "cpu":
        return [_numpy(operands)]
    builders = {
        "cuBLAS bf16": _cublas_bf16,
        "cuBLAS fp8": _cublas_fp8,
        "cuSPARSELt fp16 2:4": _cusparselt,
    }
    if not isinstance(device, TorchDevice):
        return [Missing(name, "peer", "needs PyTorch with CUDA") for name in builders]
    found: list[Candidate | Missing] = []
    for name, build in builders.items():
        try:
            peer = build(name, device, problem, device.put(a), device.put(b))
            device.synchronize()  # what went wrong there shall not show up in the next one
            found.append(peer)
        except (RuntimeError, AttributeError, NotImplementedError, TypeError) as error:
            check_device(device, name, "peer")
            found.append(Missing(name, "peer", reason_of(error)))
    return found


def _numpy(operands: tuple[np.ndarray, ...]) -> Candidate:
    def product() -> np.ndarray:
        a = nvfp4sparse.decompress(*operands[:3])
        return a @ nvfp4sparse.dequantize(*operands[3:]).T

    run = _Output(product)
    return Candidate("NumPy: unpack, float32 @", "peer", run, lambda: run.value)


def _cublas_bf16(name: str, device: TorchDevice, problem: Problem, a: Any, b: Any) -> Candidate:
    torch = device.torch
    # Column-major C is row-major C^T = B @ A^T: what a user of sparse weights would write.
    x, w = (b, a) if problem.column_major else (a, b)
    x, w = x.bfloat16(), w.bfloat16()
    out = torch.empty(x.shape[0], w.shape[0], dtype=torch.bfloat16, device=device.device)
    return Candidate(
        name,
        "peer",
        lambda: torch.mm(x, w.T, out=out),
        lambda: device.to_host(out.T if problem.column_major else out),
    )


def _cublas_fp8(name: str, device: TorchDevice, problem: Problem, a: Any, b: Any) -> Candidate:
    torch = device.torch
    x, w = (b, a) if problem.column_major else (a, b)
    rows, columns = x.shape[0], w.shape[0]
    x, x_scale = _to_e4m3(torch, _pad_rows(torch, x))
    w, w_scale = _to_e4m3(torch, _pad_rows(torch, w))

    def product_of(x: Any) -> Callable[[], Any]:
        return lambda: torch._scaled_mm(
            x, w.T, x_scale, w_scale, out_dtype=torch.bfloat16, use_fast_accum=True
        )

    run = _Output(product_of(x[:rows]))
    notes = ["inexact: operands rounded to e4m3", "fast accumulation"]
    try:
        run()
    except RuntimeError:
        run = _Output(product_of(x))
        run()
        notes.append(f"rows padded to {x.shape[0]}")

    def result() -> np.ndarray:
        c = run.value[:rows, :columns]
        return device.to_host(c.T if problem.column_major else c)

    return Candidate(name, "peer", run, result, ", ".join(notes))


def _cusparselt(name: str, device: TorchDevice, problem: Problem, a: Any, b: Any) -> Candidate:
    torch = device.torch
    sparse = torch._cslt_compress(_pad_rows(torch, a).half())
    dense = _pad_rows(torch, b).half().T
    # C row-major whatever the problem says: the layout that a sparse left operand gives by itself.
    algorithm, split_k, split_k_mode, _ = torch._C._cusparselt.mm_search(
        sparse, dense, None, None, None, False
    )
    run = _Output(
        lambda: torch._cslt_sparse_mm(
            sparse, dense, alg_id=algorithm, split_k=split_k, split_k_mode=split_k_mode
        )
    )
    run()
    notes = [f"algorithm {algorithm}, split-k {split_k}"]
    if problem.m % ROWS or problem.n % ROWS:
        notes.append(f"rows padded to multiples of {ROWS}")
    if problem.column_major:
        notes.append("C row-major")

    def result() -> np.ndarray:
        return device.to_host(run.value[: problem.m, : problem.n])

    return Candidate(name, "peer", run, result, ", ".join(notes))


def _to_e4m3(torch: Any, x: Any) -> tuple[Any, Any]:
    """Return (x / scale rounded to e4m3, scale), one scale for the tensor."""
    scale = x.abs().max() / 448
    return (x / scale).to(torch.float8_e4m3fn), scale


def _pad_rows(torch: Any, x: Any) -> Any:
    """Return x with rows of zeros added up to a multiple of ROWS."""
    missing = -x.shape[0] % ROWS
    if not missing:
        return x
    return torch.cat([x, x.new_zeros(missing, x.shape[1])])
