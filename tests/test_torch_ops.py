# SPDX-License-Identifier: Apache-2.0
"""sparse_gemm as an operator of PyTorch: registered in any order, traced, compiled, refused."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import nvfp4sparse
from cases import random_operands
from conftest import make_device
from nvfp4sparse import sparse_gemm

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")  # of the compiler and of what it imports

M, N, K = 5, 24, 64
OPS = torch.ops.nvfp4sparse
NO_GRADIENTS = "alpha must not require gradients, which are not recorded: pass alpha.detach()"


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def place(request):
    """cpu or cuda."""
    make_device(f"{request.param}-torch")
    return request.param


def operands_on(place, m=M, seed=0):
    rng = np.random.default_rng(seed)
    return [torch.from_numpy(o).to(place) for o in random_operands(rng, m, N, K, scales="ordinary")]


@pytest.fixture
def operands(place):
    return operands_on(place)


def compiled(function, **options):
    return torch.compile(
        function, fullgraph=True, dynamic=True, **{"backend": "aot_eager", **options}
    )


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()


# --- the operators themselves ---


def test_operators_are_the_function(place, operands):
    expected = sparse_gemm(*operands)
    assert torch.equal(OPS.sparse_gemm(*operands), expected)
    halved = OPS.sparse_gemm(*operands, alpha=0.5, out_dtype=torch.float32)
    assert torch.equal(halved, sparse_gemm(*operands, alpha=0.5, out_dtype="float32"))
    alpha = torch.full((1,), 0.5, device=place)
    by_tensor = OPS.sparse_gemm(*operands, alpha_tensor=alpha, out_dtype=torch.float32)
    assert torch.equal(by_tensor, halved)
    for dtype in ("float32", "torch.float32", np.float32):
        named = nvfp4sparse.torch.sparse_gemm(*operands, alpha=0.5, out_dtype=dtype)
        assert torch.equal(named, halved)
    for out in (torch.empty(M, N, device=place), torch.empty(N, M, device=place).t()):
        assert OPS.sparse_gemm_out(*operands, out, alpha=0.5) is None
        assert torch.equal(out, halved)
    with pytest.raises(ValueError, match="alpha and alpha_tensor exclude each other"):
        OPS.sparse_gemm(*operands, alpha=2.0, alpha_tensor=alpha)


@pytest.mark.parametrize("case", ["new", "alpha tensor", "row-major out", "column-major out"])
def test_opcheck(place, operands, case):
    if case == "new":
        torch.library.opcheck(OPS.sparse_gemm.default, operands)
    elif case == "alpha tensor":
        options = {"alpha_tensor": torch.ones(1, device=place), "out_dtype": torch.float16}
        torch.library.opcheck(OPS.sparse_gemm.default, operands, options)
    else:
        out = torch.zeros(M, N, dtype=torch.bfloat16, device=place)
        out = out if case.startswith("row") else out.reshape(N, M).t()
        torch.library.opcheck(OPS.sparse_gemm_out.default, (*operands, out))


# --- compiled ---


@pytest.mark.parametrize(
    "gemm", [sparse_gemm, nvfp4sparse.torch.sparse_gemm, OPS.sparse_gemm], ids=["C", "torch", "ops"]
)
def test_compiles_whole_with_dynamic_shapes(place, gemm):
    function = compiled(lambda *operands: gemm(*operands).float() + 1)
    for m in (5, 7, 2, 33):
        operands = operands_on(place, m, seed=m)
        assert torch.equal(function(*operands), sparse_gemm(*operands).float() + 1)


def test_options_compile(place, operands):
    function = compiled(
        lambda *operands, alpha: sparse_gemm(*operands, alpha=alpha, out_dtype="float32")
    )
    expected = sparse_gemm(*operands, out_dtype="float32")
    for alpha in (0.5, 2, torch.full((1,), -1.5, device=place)):
        assert torch.equal(function(*operands, alpha=alpha), expected * alpha)


@pytest.mark.parametrize("column_major", [False, True])
def test_out_compiles(place, operands, column_major):
    """An out from outside and one that the compiled code makes."""

    def into(out, *operands):
        return sparse_gemm(*operands, out, alpha=2.0) * 2

    def inside(*operands):
        out = torch.zeros(M, N, device=operands[0].device)
        sparse_gemm(*operands, out)
        return out + 1

    expected = sparse_gemm(*operands, out_dtype="float32")
    out = torch.zeros(N, M, device=place).t() if column_major else torch.zeros(M, N, device=place)
    assert torch.equal(compiled(into)(out, *operands), 4 * expected)
    assert torch.equal(out, 2 * expected)
    assert torch.equal(compiled(inside)(*operands), expected + 1)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_inductor(place, mode):
    """With the compiler that is the default, and inside the CUDA graphs that it makes."""
    function = torch.compile(lambda *o: sparse_gemm(*o) * 2, fullgraph=True, mode=mode)
    for seed in range(3):
        operands = operands_on(place, seed=seed)
        assert torch.equal(function(*operands), sparse_gemm(*operands) * 2)


def test_exports(operands):
    class Module(torch.nn.Module):
        def forward(self, *operands):
            return OPS.sparse_gemm(*operands)

    program = torch.export.export(Module(), tuple(operands))
    assert torch.equal(program.module()(*operands), sparse_gemm(*operands))
    assert "sparse_gemm" in str(program.graph)


# --- tensors without memory, and gradients ---


def test_operators_take_tensors_without_memory(operands):
    from torch._subclasses.fake_tensor import FakeTensorMode

    assert OPS.sparse_gemm(*(o.to("meta") for o in operands)).shape == (M, N)
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(o) for o in operands]
        result = OPS.sparse_gemm(*fakes)
        assert (result.shape, result.dtype) == ((M, N), torch.bfloat16)
        assert result.device == operands[0].device
        with pytest.raises(RuntimeError, match=r"b_scale must have shape \(n, k/16\) = \(24, 4\)"):
            OPS.sparse_gemm(*fakes[:4], fakes[3])
        with pytest.raises(RuntimeError, match=r"out must have shape \(m, n\)"):
            OPS.sparse_gemm_out(*fakes, fakes[0])


def wrapped(tensor):
    """A wrapper subclass: a tensor that holds another, and no memory itself."""

    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            shape, strides = inner.shape, inner.stride()
            facts = dict(dtype=inner.dtype, device=inner.device, strides=strides)
            return torch.Tensor._make_wrapper_subclass(cls, shape, **facts)

        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            raise NotImplementedError(f"{function}")

    return Wrapper(tensor)


@pytest.mark.parametrize("kind", ["fake", "meta", "wrapper", "sparse"])
@pytest.mark.parametrize("index", [0, 4])
def test_the_function_refuses_tensors_without_memory(operands, kind, index):
    from torch._subclasses.fake_tensor import FakeTensorMode

    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("an older PyTorch, whose own words come through")
    make = {
        "fake": FakeTensorMode().from_tensor,
        "meta": lambda tensor: tensor.to("meta"),
        "wrapper": wrapped,
        "sparse": lambda tensor: tensor.to_sparse(),
    }[kind]
    name = ("a_vals", "b_scale")[index // 4]
    operands[index] = make(operands[index])
    with pytest.raises(TypeError, match=rf"sparse_gemm: {name} must be a strided tensor with mem"):
        sparse_gemm(*operands)


def test_gradients_are_refused_and_never_lost(place, operands):
    alpha = torch.ones(1, device=place, requires_grad=True)
    out = torch.zeros(M, N, device=place, requires_grad=True)
    with pytest.raises(ValueError, match=NO_GRADIENTS):
        sparse_gemm(*operands, alpha=alpha)
    with pytest.raises(ValueError, match="out must not require gradients"):
        sparse_gemm(*operands, out)
    with pytest.raises(ValueError, match=NO_GRADIENTS):
        OPS.sparse_gemm(*operands, alpha_tensor=alpha)
    with pytest.raises(Exception, match=NO_GRADIENTS):
        compiled(lambda *o, alpha: sparse_gemm(*o, alpha=alpha))(*operands, alpha=alpha)
    expected = sparse_gemm(*operands, out_dtype="float32")
    with torch.no_grad():
        assert sparse_gemm(*operands, out, alpha=alpha) is out
    assert torch.equal(out, expected)
    with torch.inference_mode():
        assert torch.equal(sparse_gemm(*operands, alpha=alpha, out_dtype="float32"), expected)


def test_a_stream_cannot_be_traced(operands):
    with pytest.raises(ValueError, match="stream must be None in code that PyTorch traces"):
        nvfp4sparse.torch.sparse_gemm(*operands, stream=1)
    with pytest.raises(ValueError, match="out_dtype must agree with out"):
        nvfp4sparse.torch.sparse_gemm(*operands, torch.zeros(M, N), out_dtype="float16")
    with pytest.raises(ValueError, match="out_dtype must be bfloat16, float16 or float32"):
        nvfp4sparse.torch.sparse_gemm(*operands, out_dtype="int8")


# --- registration ---

ORDERS = {
    "torch first": "import torch, nvfp4sparse",
    "torch last": "import nvfp4sparse, torch",
    "found only": """
import importlib.util, sys, nvfp4sparse
assert importlib.util.find_spec("torch") and "torch" not in sys.modules
import torch
""",
}


@pytest.mark.parametrize("order", ORDERS)
def test_registered_in_any_order(order):
    code = f"""
{ORDERS[order]}
import sys
torch.ops.nvfp4sparse.sparse_gemm.default, torch.ops.nvfp4sparse.sparse_gemm_out.default
assert "torch._dynamo" not in sys.modules
operands = [torch.zeros((2, w), dtype=torch.uint8) for w in (4, 4, 1, 8, 1)]
f = torch.compile(nvfp4sparse.sparse_gemm, fullgraph=True, backend="eager")
assert not f(*operands).any()
assert not any("nvfp4sparse" in type(finder).__module__ for finder in sys.meta_path)
"""
    root = str(Path(nvfp4sparse.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"import sys; sys.path.insert(0, {root!r})\n{code}"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


def test_a_failure_is_a_warning(monkeypatch, tmp_path):
    """Whatever goes wrong with our part, somebody else's module is imported."""
    from nvfp4sparse import _when_imported

    (tmp_path / "nvs_somebody_else.py").write_text("value = 1")
    monkeypatch.syspath_prepend(tmp_path)

    def fail():
        raise OSError("no luck")

    _when_imported.when_imported("nvs_somebody_else", fail)
    with pytest.warns(UserWarning, match="after the import of nvs_somebody_else: OSError"):
        import nvs_somebody_else
    assert nvs_somebody_else.value == 1
