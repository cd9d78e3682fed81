# SPDX-License-Identifier: Apache-2.0
"""The extension module: what it shows, what importing it does, and threads."""

import ast
import importlib.machinery
import importlib.util
import inspect
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

import nvfp4sparse
from cases import random_operands
from nvfp4sparse import _C
from threads import run_on_threads

PACKAGE = Path(nvfp4sparse.__file__).parent


def test_public_names():
    for name in nvfp4sparse.__all__:
        public = getattr(nvfp4sparse, name)
        assert public.__doc__, name
    assert len(set(nvfp4sparse.__all__)) == len(nvfp4sparse.__all__)


def test_sparse_gemm_is_the_c_function():
    assert nvfp4sparse.sparse_gemm is _C.sparse_gemm
    assert inspect.isbuiltin(nvfp4sparse.sparse_gemm)
    assert str(inspect.signature(nvfp4sparse.sparse_gemm)) == (
        "(a_vals, a_meta, a_scale, b_fp4, b_scale, out=None, *, alpha=1.0, out_dtype=None, "
        "stream=None, kernel=None)"
    )


def parameters(node):
    """[(name, has a default)] of a function in a stub."""
    plain = node.args.posonlyargs + node.args.args
    missing = len(plain) - len(node.args.defaults)
    named = [(a.arg, i >= missing) for i, a in enumerate(plain)]
    pairs = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    return named + [(a.arg, default is not None) for a, default in pairs]


def test_stub_agrees():
    tree = ast.parse((PACKAGE / "_C.pyi").read_text())
    stubbed = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    real = {n: f for n, f in vars(_C).items() if inspect.isbuiltin(f)}
    assert set(stubbed) == set(real)
    for name, function in real.items():
        signature = inspect.signature(function).parameters.values()
        expected = [(p.name, p.default is not inspect.Parameter.empty) for p in signature]
        assert parameters(stubbed[name]) == expected, name
    assert "Result" in {n.name for n in tree.body if isinstance(n, ast.ClassDef)}


def run(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_import_opens_no_driver():
    done = run("import nvfp4sparse; print(open('/proc/self/maps').read())")
    assert done.returncode == 0, done.stderr
    assert "_C." in done.stdout
    assert "libcuda" not in done.stdout


def test_import_needs_no_framework():
    done = run("import nvfp4sparse, sys; print(*sys.modules)")
    assert {"torch", "cupy", "jax"}.isdisjoint(done.stdout.split())


def test_two_modules_have_two_states():
    """Multi-phase initialisation: nothing is shared but the driver."""
    loader = importlib.machinery.ExtensionFileLoader("nvfp4sparse._C", _C.__file__)
    spec = importlib.util.spec_from_file_location("nvfp4sparse._C", _C.__file__, loader=loader)
    other = importlib.util.module_from_spec(spec)
    loader.exec_module(other)
    assert other is not _C
    assert other.Result is not _C.Result
    operands = random_operands(np.random.default_rng(0), 3, 4, 32)
    np.testing.assert_array_equal(other.sparse_gemm(*operands), _C.sparse_gemm(*operands))


SUB_INTERPRETER = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
script = {script!r}
try:
    print(interpreters.run_string(interpreters.create(), script))
except Exception as error:
    print(error)
"""

# The package imports NumPy, which may refuse first: this is the module alone.
LOAD_ALONE = """
import importlib.util
spec = importlib.util.spec_from_file_location("nvfp4sparse._C", {path!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
"""


def test_sub_interpreters_are_refused():
    script = LOAD_ALONE.format(path=_C.__file__)
    assert run(script).returncode == 0
    done = run(SUB_INTERPRETER.format(script=script))
    assert done.returncode == 0, done.stderr
    assert "ImportError" in done.stdout
    assert "sub" in done.stdout


def test_threads():
    """Calls from several threads at once, on arrays of their own."""

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(20):
            operands = random_operands(rng, 9, 33, 160)
            got = nvfp4sparse.sparse_gemm(*operands, out_dtype="float32")
            exact = nvfp4sparse.reference_gemm(*operands).astype(np.float32)
            np.testing.assert_array_equal(got, exact)

    run_on_threads(work, range(8))


@pytest.mark.skipif(
    not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="needs a free-threaded Python"
)
def test_the_gil_stays_off():
    done = run(LOAD_ALONE.format(path=_C.__file__) + "import sys; print(sys._is_gil_enabled())")
    assert done.stdout.strip() == "False", done.stderr


def test_after_fork():
    """The CPU path works in a forked child."""
    code = """
import os, numpy as np, nvfp4sparse
zeros = [np.zeros((2, width), np.uint8) for width in (4, 4, 1, 8, 1)]
nvfp4sparse.sparse_gemm(*zeros)
child = os.fork()
if child == 0:
    os._exit(0 if not nvfp4sparse.sparse_gemm(*zeros).any() else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = run(code)
    assert done.stdout.strip() == "0", done.stderr


def test_information():
    build = nvfp4sparse.build_info()
    assert set(build) == {"cuda", "images", "limited_api"}
    assert build["cuda"]
    cuda = nvfp4sparse.cuda_info()
    assert set(cuda) == {"available", "reason", "driver", "devices"}
    if cuda["available"]:
        assert cuda["reason"] is None
        for device in cuda["devices"]:
            assert set(device) == {"id", "name", "cc", "sm_count"}
    else:
        assert cuda["devices"] == []
