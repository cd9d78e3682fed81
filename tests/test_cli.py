# SPDX-License-Identifier: Apache-2.0
"""`python -m nvfp4sparse`: exit status, and what it prints."""

import subprocess
import sys

import numpy as np
import pytest

import nvfp4sparse
from nvfp4sparse import __main__ as command_line
from nvfp4sparse.cli import demo, devices, kernels


def run(*words):
    return subprocess.run(
        [sys.executable, "-m", "nvfp4sparse", *words], capture_output=True, text=True, timeout=300
    )


def test_demo_is_the_default():
    done = run("--m", "8", "--n", "32", "--k", "64", "--seed", "3")
    assert done.returncode == 0, done.stderr
    assert "m=8 n=32 k=64" in done.stdout
    row = next(line for line in done.stdout.splitlines() if line.startswith("CPU"))
    assert " cpu " in row
    assert row.endswith("yes")


@pytest.mark.filterwarnings("ignore")  # of the frameworks that it uses
def test_demo_runs_every_kernel_that_fits(capsys):
    assert command_line.main(["demo", "--m", "16", "--n", "64", "--k", "128"]) == 0
    printed = capsys.readouterr().out
    gpu, _ = devices.find_gpu()
    for kernel in nvfp4sparse.kernels():
        if kernel["kind"] == "cpu" or gpu is not None:
            assert kernel["name"] in printed
    assert (gpu is None) == ("no GPU was used" in printed)


def test_demo_fails_on_one_wrong_element(monkeypatch, capsys):
    right = nvfp4sparse.sparse_gemm

    def wrong(*operands, **options):
        out = right(*operands, **options)
        out[-1, -1] += 1
        return out

    monkeypatch.setattr(devices, "find_gpu", lambda: (None, "not asked"))
    monkeypatch.setattr(demo, "find_gpu", devices.find_gpu)
    monkeypatch.setattr(kernels.nvfp4sparse, "sparse_gemm", wrong)
    assert command_line.main(["demo", "--m", "4", "--n", "16", "--k", "32"]) == 1
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("CPU"))
    assert row.endswith("NO")


def test_info_names_version_build_and_every_kernel():
    done = run("info")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"nvfp4sparse {nvfp4sparse.__version__}\n")
    for kernel in nvfp4sparse.kernels():
        assert kernel["name"] in done.stdout


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--k", "24"), "k must be a multiple of 16, got 24"),
        (("bench", "--m", "0"), "must be at least 1, got 0"),
        (("nonsense",), "invalid choice: 'nonsense'"),
        (("bench", "--kernels", "cpu", "cpuu"), "no kernel cpuu; there are "),
    ],
)
def test_usage_errors(words, complaint):
    done = run(*words)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert done.stdout == ""


def test_a_broken_framework_is_as_good_as_none(monkeypatch):
    def refuse(name):
        raise ImportError("libcudart.so: cannot open shared object file")

    monkeypatch.setattr(devices.importlib, "import_module", refuse)
    gpu, why = devices.find_gpu()
    assert gpu is None
    assert why == (
        "torch does not import (libcudart.so: cannot open shared object file),"
        " cupy does not import (libcudart.so: cannot open shared object file)"
    )


def test_a_kernel_that_does_not_fit_says_why():
    problem = devices.Problem(4, 16, 32)
    device = devices.NumpyDevice()
    arrays = [np.zeros(shape, np.uint8) for shape in ((4, 8), (4, 8), (4, 2), (16, 16), (16, 2))]
    _, views = device.upload(arrays)
    cuda = [kernel["name"] for kernel in nvfp4sparse.kernels() if kernel["kind"] == "cuda"]
    for name in cuda:
        missing = kernels.run_ours(device, problem, views, name)
        assert isinstance(missing, kernels.Missing)
        assert name in missing.reason
