# SPDX-License-Identifier: Apache-2.0
"""sparse_gemm as an operator of PyTorch: for torch.compile, torch.export and whatever else traces.

    torch.ops.nvfp4sparse.sparse_gemm(
        a_vals, a_meta, a_scale, b_fp4, b_scale,
        *, alpha=1.0, alpha_tensor=None, out_dtype=None, kernel=None) -> Tensor
    torch.ops.nvfp4sparse.sparse_gemm_out(
        a_vals, a_meta, a_scale, b_fp4, b_scale, out,
        *, alpha=1.0, alpha_tensor=None, kernel=None) -> ()

They exist as soon as both PyTorch and nvfp4sparse are imported, in either order: importing this
module is never needed, and does no harm. Inside torch.compile a plain nvfp4sparse.sparse_gemm()
becomes one of them; eager calls go straight to C, which is faster. `out` may be column-major, and
is no keyword because Dynamo takes only contiguous tensors as `out=`.
"""

from __future__ import annotations

from typing import Any

import torch

from nvfp4sparse import _C

_INPUTS = "Tensor a_vals, Tensor a_meta, Tensor a_scale, Tensor b_fp4, Tensor b_scale"
_ALPHA = "float alpha=1.0, Tensor? alpha_tensor=None"
_SCHEMAS = (
    f"sparse_gemm({_INPUTS}, *, {_ALPHA}, ScalarType? out_dtype=None, str? kernel=None) -> Tensor",
    f"sparse_gemm_out({_INPUTS}, Tensor(a!) out, *, {_ALPHA}, str? kernel=None) -> ()",
)
_ROWS_AND_COLUMNS = (("a_vals", "m", 4), ("a_meta", "m", 4), ("a_scale", "m", 16))
_ROWS_AND_COLUMNS += (("b_fp4", "n", 2), ("b_scale", "n", 16))


def sparse_gemm(
    a_vals: torch.Tensor,
    a_meta: torch.Tensor,
    a_scale: torch.Tensor,
    b_fp4: torch.Tensor,
    b_scale: torch.Tensor,
    out: torch.Tensor | None = None,
    *,
    alpha: float | torch.Tensor = 1.0,
    out_dtype: Any = None,
    stream: None = None,
    kernel: str | None = None,
) -> torch.Tensor:
    """nvfp4sparse.sparse_gemm(), by way of the operator: what torch.compile puts in its place.

    Shapes, dtypes and errors are those of nvfp4sparse.sparse_gemm(), but for `stream`, which must
    be None: operators run on the current stream.
    """
    if stream is not None:
        raise ValueError(
            "sparse_gemm: stream must be None in code that PyTorch traces, where the current "
            f"stream counts, got {stream!r}"
        )
    factor: dict[str, Any] = {"alpha": alpha}
    if isinstance(alpha, torch.Tensor):
        factor = {"alpha_tensor": alpha}
    inputs = (a_vals, a_meta, a_scale, b_fp4, b_scale)
    dtype = _torch_dtype(out_dtype)
    if out is None:
        return torch.ops.nvfp4sparse.sparse_gemm.default(
            *inputs, **factor, out_dtype=dtype, kernel=kernel
        )
    if dtype is not None and dtype != out.dtype:
        raise ValueError(
            f"sparse_gemm: out_dtype must agree with out, got out_dtype {dtype} and an out of "
            f"{out.dtype}: leave one of them away"
        )
    torch.ops.nvfp4sparse.sparse_gemm_out.default(*inputs, out, **factor, kernel=kernel)
    return out


def _torch_dtype(dtype):
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    found = getattr(torch, name.removeprefix("torch."), None)
    if found not in (torch.bfloat16, torch.float16, torch.float32):
        raise ValueError(
            "sparse_gemm: out_dtype must be bfloat16, float16 or float32 (a name or a dtype), "
            f"got {dtype!r}"
        )
    return found


def _either(alpha, alpha_tensor):
    if alpha_tensor is None:
        return alpha
    if alpha != 1.0:
        raise ValueError("sparse_gemm: alpha and alpha_tensor exclude each other")
    return alpha_tensor


def _new(*inputs, alpha=1.0, alpha_tensor=None, out_dtype=None, kernel=None):
    alpha = _either(alpha, alpha_tensor)
    return _C.sparse_gemm(*inputs, alpha=alpha, out_dtype=out_dtype, kernel=kernel)


def _into(*inputs_and_out, alpha=1.0, alpha_tensor=None, kernel=None):
    _C.sparse_gemm(*inputs_and_out, alpha=_either(alpha, alpha_tensor), kernel=kernel)


def _check_shapes(inputs):
    """Return m and n, after the checks on shapes and gradients that need no memory."""
    a_vals, b_fp4 = inputs[0], inputs[3]
    for (name, _, _), tensor in zip(_ROWS_AND_COLUMNS, inputs, strict=True):
        if tensor.dim() != 2:
            raise ValueError(f"sparse_gemm: {name} must have 2 dimensions, got {tensor.dim()}")
    extents = {"m": a_vals.shape[0], "n": b_fp4.shape[0]}
    k = 4 * a_vals.shape[1]
    torch._check(k % 16 == 0, lambda: f"sparse_gemm: k must be a multiple of 16, got {k}")
    for (name, rows, columns), tensor in zip(_ROWS_AND_COLUMNS, inputs, strict=True):
        torch._check(
            tensor.shape[0] == extents[rows] and tensor.shape[1] == k // columns,
            lambda name=name, rows=rows, columns=columns, tensor=tensor: (
                f"sparse_gemm: {name} must have shape ({rows}, k/{columns}) = "
                f"({extents[rows]}, {k // columns}), got {tuple(tensor.shape)}"
            ),
        )
    return extents["m"], extents["n"]


def _check_grad(named):
    for name, tensor in named.items():
        if tensor is not None and tensor.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                f"sparse_gemm: {name} must not require gradients, which are not recorded: pass "
                f"{name}.detach() or call inside torch.no_grad()"
            )


def _fake_new(*inputs, alpha=1.0, alpha_tensor=None, out_dtype=None, kernel=None):
    m, n = _check_shapes(inputs)
    _check_grad({"a_scale": inputs[2], "b_scale": inputs[4], "alpha": alpha_tensor})
    return inputs[0].new_empty((m, n), dtype=out_dtype or torch.bfloat16)


def _fake_into(*inputs_and_out, alpha=1.0, alpha_tensor=None, kernel=None):
    *inputs, out = inputs_and_out
    m, n = _check_shapes(inputs)
    _check_grad({"a_scale": inputs[2], "b_scale": inputs[4], "alpha": alpha_tensor, "out": out})
    torch._check(
        out.dim() == 2 and out.shape[0] == m and out.shape[1] == n,
        lambda: f"sparse_gemm: out must have shape (m, n) = ({m}, {n}), got {tuple(out.shape)}",
    )


def _register():
    library = torch.library.Library("nvfp4sparse", "DEF")
    for schema, name, real, fake in zip(
        _SCHEMAS,
        ("sparse_gemm", "sparse_gemm_out"),
        (_new, _into),
        (_fake_new, _fake_into),
        strict=True,
    ):
        library.define(schema, tags=(torch.Tag.needs_fixed_stride_order,))
        for key in ("CPU", "CUDA"):
            library.impl(name, real, key)
        torch.library.register_fake(f"nvfp4sparse::{name}", fake, lib=library)
    return library


def substitute_in_compiled_code() -> None:
    """Let Dynamo put the operator in place of the C function. Costs the import of torch._dynamo."""
    substitute = getattr(torch.compiler, "substitute_in_graph", None)
    if substitute is not None:
        substitute(_C.sparse_gemm)(sparse_gemm)


_LIBRARY = _register()  # registrations last as long as it does
