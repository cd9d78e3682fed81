# SPDX-License-Identifier: Apache-2.0
"""PEP 517 backend: setuptools', which also asks for nvcc as wheels where the machine has none.

`pip install .` on a machine with gcc and g++ but without a CUDA toolkit thereby builds the CUDA
kernels all the same. The wheels live in pip's build environment only and are gone afterwards.
With --no-build-isolation pip does not ask, and setup.py says what is missing.
"""

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403  (every other hook is setuptools' own)

from nvs_toolkit import NVCC_WHEELS, wants_wheels


def get_requires_for_build_wheel(config_settings=None):
    """What setuptools asks for, and nvcc if need be."""
    return build_meta.get_requires_for_build_wheel(config_settings) + _nvcc_requirements()


def get_requires_for_build_editable(config_settings=None):
    """What setuptools asks for, and nvcc if need be."""
    return build_meta.get_requires_for_build_editable(config_settings) + _nvcc_requirements()


def _nvcc_requirements():
    return list(NVCC_WHEELS) if wants_wheels() else []
