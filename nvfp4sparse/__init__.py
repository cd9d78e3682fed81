# SPDX-License-Identifier: Apache-2.0
"""GEMM of a 2:4 sparse NVFP4 matrix with a dense NVFP4 matrix, on the CPU and on CUDA devices.

from nvfp4sparse import compress, quantize, sparse_gemm

c = sparse_gemm(*compress(a), *quantize(b))  # C[m, n] = A[m, k] @ B[n, k].T
"""

from nvfp4sparse._C import build_info, cuda_info, kernels, plan, sparse_gemm
from nvfp4sparse._when_imported import register_operators as _register_operators
from nvfp4sparse.pack import (
    SparseNVFP4,
    canonicalize,
    compress,
    decompress,
    validate,
)
from nvfp4sparse.prune import prune
from nvfp4sparse.quantize import NVFP4, dequantize, global_scale, quantize
from nvfp4sparse.reference import reference_gemm

__version__ = "0.1.0"

__all__ = [
    # the operation
    "sparse_gemm",
    "kernels",
    "plan",
    "cuda_info",
    "build_info",
    # its operands
    "NVFP4",
    "SparseNVFP4",
    "prune",
    "quantize",
    "compress",
    "dequantize",
    "decompress",
    "global_scale",
    "validate",
    "canonicalize",
    "reference_gemm",
]

_register_operators()
