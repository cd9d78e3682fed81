# SPDX-License-Identifier: Apache-2.0
"""As much of CuPy as sparse_gemm() asks, over a Producer's host memory, for machines without a GPU.

install() puts it where `import cupy` finds it. Of an array, `asked` and `devices_asked` show
whether it was read through DLPack; what its attributes say can be replaced by `facts`.
"""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np

from dlpack_fakes import CUDA, Producer


def install(streams, *, is_hip=False):
    """Make and return the module, once per process; streams: device to its current stream."""

    class ndarray(Producer):  # noqa: N801
        def __init__(self, array, device=(CUDA, 0), **facts):
            super().__init__(array, device=device, **facts.pop("dlpack", {}))
            self.data = SimpleNamespace(ptr=array.ctypes.data, device_id=device[1])
            self.shape, self.strides, self.dtype = array.shape, array.strides, array.dtype
            self.devices_asked = 0
            vars(self).update(facts)

        def __dlpack_device__(self):
            self.devices_asked += 1
            return super().__dlpack_device__()

    ndarray.__module__ = "cupy"
    runtime = SimpleNamespace(is_hip=is_hip, getDevice=lambda: 0)
    module = ModuleType("cupy")
    module.ndarray = ndarray
    module.empty = lambda shape, dtype: ndarray(np.empty(shape, dtype))
    module.cuda = SimpleNamespace(
        runtime=runtime, get_current_stream=lambda device: SimpleNamespace(ptr=streams[device])
    )
    sys.modules["cupy"] = module
    return module
