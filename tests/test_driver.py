# SPDX-License-Identifier: Apache-2.0
"""The CUDA host code without a GPU: fake_driver_cases.py, with fake_cuda.c as libcuda.so.1."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import nvfp4sparse

HERE = Path(__file__).parent
CASES = [
    node.name
    for node in ast.parse((HERE / "fake_driver_cases.py").read_text()).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
]


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """A folder with a libcuda.so.1."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    if not nvfp4sparse.build_info()["images"].get("gemm_naive"):
        pytest.skip("this build has no kernels")
    folder = tmp_path_factory.mktemp("driver")
    flags = ["-std=c11", "-D_DEFAULT_SOURCE", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    paths = [f"-I{HERE.parent / 'src'}", str(HERE / "fake_cuda.c"), "-o", "libcuda.so.1", "-lm"]
    subprocess.run([compiler, *flags, *paths], cwd=folder, check=True, timeout=120)
    return folder


@pytest.mark.parametrize("case", CASES)
def test_fake_driver(driver, case):
    """In a process of its own: the driver is opened once per process."""
    where = f"{HERE / 'fake_driver_cases.py'}::{case}"
    options = ["-q", "-p", "no:cacheprovider", "--rootdir", str(HERE.parent)]
    path = os.environ.get("LD_LIBRARY_PATH")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, where],
        env={
            **{k: v for k, v in os.environ.items() if not k.startswith(("NVFP4", "PYTEST_"))},
            "LD_LIBRARY_PATH": f"{driver}:{path}" if path else str(driver),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout
