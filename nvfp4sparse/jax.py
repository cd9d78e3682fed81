# SPDX-License-Identifier: Apache-2.0
"""sparse_gemm as a custom call of XLA (src/xla_call.c), for JAX's arrays and its compiled programs.

nvfp4sparse.sparse_gemm() comes here by itself when all its operands are JAX's, eagerly and under
jax.jit, where arrays are tracers without memory that DLPack could show. nvfp4sparse.jax.sparse_gemm
is the same for those who want to be explicit, or who mix tracers with NumPy arrays. The kernel runs
on XLA's stream, and may be part of XLA's CUDA graphs.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nvfp4sparse import _C

_TARGET = "nvfp4sparse_sparse_gemm"
_BYTES = (np.dtype(np.uint8), np.dtype(np.int8))
_RULES = {  # name: rows, columns per byte, further dtypes
    "a_vals": ("m", 4, ()),
    "a_meta": ("m", 4, ()),
    "a_scale": ("m", 16, (np.dtype(jnp.float8_e4m3fn),)),
    "b_fp4": ("n", 2, ()),
    "b_scale": ("n", 16, (np.dtype(jnp.float8_e4m3fn),)),
}
_OUT_DTYPES = ("bfloat16", "float16", "float32")


def sparse_gemm(
    a_vals: jax.Array,
    a_meta: jax.Array,
    a_scale: jax.Array,
    b_fp4: jax.Array,
    b_scale: jax.Array,
    *,
    alpha: float | jax.Array = 1.0,
    out_dtype: Any = "bfloat16",
    kernel: str | None = None,
) -> jax.Array:
    """C[m, n] = alpha * A[m, k] @ B[n, k].T, A 2:4 sparse NVFP4, B dense NVFP4.

    Operands as in nvfp4sparse.sparse_gemm(): a_vals (m, k/4), a_meta (m, k/4), a_scale (m, k/16),
    b_fp4 (n, k/2), b_scale (n, k/16), of int8 or uint8, scales also of float8_e4m3fn. alpha is a
    number, or a float32 array of one element. Raises TypeError for a dtype and ValueError for a
    shape or an option, while tracing. Not differentiable; under vmap one call for each element.
    """
    operands = [jnp.asarray(x) for x in (a_vals, a_meta, a_scale, b_fp4, b_scale)]
    m, n = _check(operands)
    dtype = np.dtype(jnp.dtype(out_dtype))
    if dtype.name not in _OUT_DTYPES:
        raise ValueError(
            f"sparse_gemm: out_dtype must be {', '.join(_OUT_DTYPES)}, got {out_dtype!r}"
        )
    attributes = {"kernel": _kernel_name(kernel)}
    if isinstance(alpha, (jax.Array, np.ndarray)):
        operands.append(_check_alpha(jnp.asarray(alpha)))
    else:
        attributes["alpha"] = np.float32(alpha)
    call = jax.ffi.ffi_call(_TARGET, jax.ShapeDtypeStruct((m, n), dtype), vmap_method="sequential")
    return call(*operands, **attributes)


def _operator(operands, alpha, out_dtype, kernel):
    return sparse_gemm(*operands, alpha=alpha, out_dtype=out_dtype, kernel=kernel)


_compiled = jax.jit(_operator, static_argnums=(2, 3))
_compiled_one = jax.jit(
    lambda operands, out_dtype, kernel: sparse_gemm(*operands, out_dtype=out_dtype, kernel=kernel),
    static_argnums=(1, 2),
)


def call_from_c(operands: tuple[Any, ...], alpha: Any, out_dtype: str, kernel: str | None) -> Any:
    """What nvfp4sparse.sparse_gemm() calls; NotImplemented for what it had better do itself.

    That is float4, which XLA keeps in its own layouts, and kernel= outside jax.jit, where a kernel
    that does not fit shall be a ValueError at once.
    """
    if operands[0].dtype not in _BYTES or operands[3].dtype not in _BYTES:
        return NotImplemented
    if kernel is not None and not any(isinstance(x, jax.core.Tracer) for x in operands):
        return NotImplemented
    if isinstance(alpha, float) and alpha == 1.0:
        return _compiled_one(operands, out_dtype, kernel)
    # An operand, not an attribute: else each new alpha would be another program to compile.
    return _compiled(operands, _as_float32(alpha), out_dtype, kernel)


def _as_float32(alpha):
    return np.float32(alpha) if isinstance(alpha, float) else _check_alpha(alpha)


def _check(operands):
    shapes = [x.shape for x in operands]
    for (name, (rows, columns, others)), x in zip(_RULES.items(), operands, strict=True):
        if x.dtype not in (*_BYTES, *others):
            allowed = ", ".join(dtype.name for dtype in (*_BYTES, *others))
            raise TypeError(
                f"sparse_gemm: {name} must be {allowed}, got {x.dtype}: reinterpret its bytes, do "
                "not convert"
            )
        if x.ndim != 2:
            raise ValueError(
                f"sparse_gemm: {name} must have shape ({rows}, k/{columns}), got {x.shape}"
            )
    extents = {"m": shapes[0][0], "n": shapes[3][0]}
    k = 4 * shapes[0][1]
    if k % 16:
        raise ValueError(
            f"sparse_gemm: a_vals must have shape (m, k/4) with k a multiple of 16, got {shapes[0]}"
        )
    for (name, (rows, columns, _)), shape in zip(_RULES.items(), shapes, strict=True):
        expected = (extents[rows], k // columns)
        if shape != expected:
            raise ValueError(
                f"sparse_gemm: {name} must have shape ({rows}, k/{columns}) = {expected}, got "
                f"{shape}"
            )
    return extents["m"], extents["n"]


def _check_alpha(alpha):
    if alpha.dtype != np.float32:
        raise TypeError(
            "sparse_gemm: alpha must be a number or a float32 array of one element, got an array "
            f"of {alpha.dtype}: convert it to float32"
        )
    if alpha.size != 1:
        raise ValueError(
            f"sparse_gemm: alpha must have one element, got shape {alpha.shape}: scale rows or "
            "columns of the result instead"
        )
    return alpha


def _kernel_name(kernel):
    if kernel is None:
        return ""
    names = [row["name"] for row in _C.kernels()]
    if kernel not in names:
        raise ValueError(
            f"sparse_gemm: kernel names no kernel: {kernel!r}; there are {', '.join(names)}"
        )
    return kernel


def _register():
    for platform, handler in _C.xla_handlers().items():
        jax.ffi.register_ffi_target(_TARGET, handler, platform=platform)


_register()
