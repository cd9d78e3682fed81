# SPDX-License-Identifier: Apache-2.0
"""Where nvcc is, and what to ask pip for when it is nowhere.

Read by both users of this folder: the PEP 517 backend (before the build, in pip's process) and
setup.py (during it). Only the standard library is imported, and nothing here compiles anything.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

# One toolkit version for all five: nvcc from one minor release rejects the headers of another.
NVCC_WHEELS = tuple(
    f"{name}==13.0.*"
    for name in (
        "nvidia-cuda-nvcc",  # nvcc, ptxas, fatbinary
        "nvidia-nvvm",  # cicc
        "nvidia-cuda-crt",  # include/crt
        "nvidia-cuda-runtime",  # cuda_fp16.h and its neighbours
        "nvidia-cuda-cccl",  # <nv/target>, which cuda_fp16.h includes
    )
)
# Where those wheels put nvcc, under an entry of sys.path.
NVCC_IN_WHEEL = "nvidia/cu13/bin/nvcc"

NO_NVCC = "no nvcc was found (NVCC, CUDA_HOME, CUDA_PATH, PATH, nvidia-cuda-nvcc wheel)"


@dataclass(frozen=True)
class Toolkit:
    """One usable nvcc: its path, its version ("13.0.88") and the SASS targets it lists ("90")."""

    nvcc: str
    version: str
    targets: frozenset


def flag(environ, name):
    """True if the environment sets this switch; unset, empty and "0" are off."""
    return environ.get(name, "").strip() not in ("", "0")


def find_nvcc(environ=os.environ, sys_path=None):
    """The path of nvcc, or None.

    An explicit NVCC that does not exist is an error: to build with another compiler than the one
    asked for, or with none, would go unnoticed.
    """
    named = environ.get("NVCC", "").strip()
    if named:
        found = shutil.which(named, path=environ.get("PATH"))
        if not found:
            raise FileNotFoundError(f"NVCC names {named!r}, which is not an executable file")
        return found
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        home = environ.get(variable, "").strip()
        found = home and shutil.which("nvcc", path=os.path.join(home, "bin"))
        if found:
            return found
    found = shutil.which("nvcc", path=environ.get("PATH", ""))
    if found:
        return found
    for entry in sys.path if sys_path is None else sys_path:
        candidate = Path(entry or ".") / NVCC_IN_WHEEL
        if os.access(candidate, os.X_OK):
            return str(candidate)
    return None


def has_host_compiler(environ=os.environ):
    """True if nvcc will find the C++ compiler with which it preprocesses even device code."""
    return bool(environ.get("NVCC_CCBIN") or shutil.which("g++", path=environ.get("PATH", "")))


def wants_wheels(environ=os.environ, sys_path=None):
    """True if the nvcc wheels would turn a CPU-only build into a CUDA build on this machine."""
    if flag(environ, "NVFP4SPARSE_NO_CUDA"):
        return False
    glibc_linux = sys.platform == "linux" and platform.libc_ver()[0] == "glibc"
    if not (glibc_linux and platform.machine() in ("x86_64", "aarch64")):
        return False
    return has_host_compiler(environ) and find_nvcc(environ, sys_path) is None


def find_toolkit(environ=os.environ):
    """(Toolkit, None), or (None, why the kernels cannot be built)."""
    if flag(environ, "NVFP4SPARSE_NO_CUDA"):
        return None, "built with NVFP4SPARSE_NO_CUDA=1"
    nvcc = find_nvcc(environ)
    if nvcc is None:
        return None, f"built without CUDA: {NO_NVCC}"
    if not has_host_compiler(environ):
        return None, "built without CUDA: nvcc needs g++, which was not found"
    return Toolkit(nvcc, _version(nvcc), _targets(nvcc)), None


def _output(*command):
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout


def _version(nvcc):
    match = re.search(r"\bV(\d+\.\d+\.\d+)", _output(nvcc, "--version"))
    return match.group(1) if match else "of unknown version"


def _targets(nvcc):
    return frozenset(re.findall(r"^sm_(\d+)[af]?\s*$", _output(nvcc, "--list-gpu-code"), re.M))
