# SPDX-License-Identifier: Apache-2.0
"""JAX: eager and compiled through XLA, and through DLPack where other arrays take part."""

import os

import numpy as np
import pytest

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # other tests need memory as well
jax = pytest.importorskip("jax")

import nvfp4sparse.jax  # noqa: E402
from cases import random_operands  # noqa: E402
from conftest import missing  # noqa: E402
from dlpack_fakes import Foreign  # noqa: E402
from nvfp4sparse import sparse_gemm  # noqa: E402
from reference import assert_within_bound  # noqa: E402

jnp = jax.numpy
M, N, K = 5, 24, 64


@pytest.fixture(scope="module", params=["cpu", pytest.param("gpu", marks=pytest.mark.cuda)])
def device(request):
    try:
        return jax.devices(request.param)[0]
    except RuntimeError as error:
        missing(f"JAX sees no {request.param} ({error})")


@pytest.fixture(scope="module")
def host():
    return random_operands(np.random.default_rng(0), M, N, K, scales="ordinary")


@pytest.fixture
def operands(device, host):
    return [jax.device_put(operand, device) for operand in host]


@pytest.fixture
def expected(operands, host):
    """The product in float32, by way of DLPack."""
    result = sparse_gemm(Foreign(operands[0]), *operands[1:], out_dtype="float32")
    taken = np.asarray(jax.dlpack.from_dlpack(result))
    assert_within_bound(taken, host, dtype="float32")
    return taken


def test_eager(device, operands, expected):
    result = sparse_gemm(*operands, out_dtype="float32")
    assert isinstance(result, jax.Array)
    assert result.devices() == {device}
    np.testing.assert_array_equal(result, expected)
    assert sparse_gemm(*operands).dtype == jnp.bfloat16
    for alpha in (-2.0, jnp.full((1, 1), -2.0), np.float32(-2), np.int64(-2)):
        scaled = sparse_gemm(*operands, alpha=alpha, out_dtype=jnp.float32)
        np.testing.assert_array_equal(scaled, -2 * expected)


@pytest.mark.parametrize("gemm", [sparse_gemm, nvfp4sparse.jax.sparse_gemm], ids=["C", "jax"])
def test_compiled(operands, expected, gemm):
    def function(alpha, *operands):
        return gemm(*operands, alpha=alpha, out_dtype="float32") + gemm(*operands, alpha=3.0)

    for alpha in (1.0, 0.5):
        got = jax.jit(function)(jnp.float32(alpha), *operands)
        other = np.asarray(sparse_gemm(*operands, alpha=3.0).astype(jnp.float32))
        np.testing.assert_array_equal(got, alpha * expected + other)
    text = jax.jit(function).lower(jnp.float32(1), *operands).as_text()
    assert "nvfp4sparse_sparse_gemm" in text


def test_in_a_loop(operands, expected):
    """Many calls in one program, which on a GPU may become one CUDA graph."""

    def step(carry, _):
        return carry + sparse_gemm(*operands, out_dtype="float32"), None

    start = jnp.zeros((M, N), jnp.float32)
    total, _ = jax.jit(lambda x: jax.lax.scan(step, x, length=8))(start)
    np.testing.assert_allclose(total, 8 * expected, rtol=1e-6)


def test_types_of_operands(operands, expected):
    signed = [operand.view(jnp.int8) for operand in operands]
    scales = [operands[i].view(jnp.float8_e4m3fn) for i in (2, 4)]
    typed = [*operands[:2], scales[0], operands[3], scales[1]]
    for variant in (signed, typed):
        got = sparse_gemm(*variant, out_dtype="float32")
        np.testing.assert_array_equal(got, expected)


def test_by_way_of_dlpack(device, host, operands, expected):
    """float4, and kernel= outside jax.jit."""
    if hasattr(jnp, "float4_e2m1fn") and device.platform == "cpu":
        pairs = jax.lax.bitcast_convert_type(operands[0], jnp.float4_e2m1fn)
        got = sparse_gemm(pairs.reshape(M, K // 2), *operands[1:], out_dtype="float32")
        np.testing.assert_array_equal(got, expected)
    kernel = "cpu" if device.platform == "cpu" else "naive"
    got = sparse_gemm(*operands, out_dtype="float32", kernel=kernel)
    assert isinstance(got, jax.Array)
    assert_within_bound(np.asarray(got), host, dtype="float32")
    with pytest.raises(ValueError, match="cannot run this"):
        sparse_gemm(*operands, kernel="naive" if device.platform == "cpu" else "cpu")


def test_kernel_in_compiled_code(device, operands):
    fits, misfits = ("cpu", "naive") if device.platform == "cpu" else ("naive", "cpu")
    compiled = jax.jit(lambda kernel, *o: sparse_gemm(*o, kernel=kernel), static_argnums=0)
    assert compiled(fits, *operands).shape == (M, N)
    with pytest.raises(RuntimeError, match=f"sparse_gemm: kernel={misfits} cannot run this"):
        jax.block_until_ready(compiled(misfits, *operands))


@pytest.mark.parametrize("extents", [(0, N, K), (M, 0, K), (M, N, 0)])
def test_empty(device, extents):
    host = random_operands(np.random.default_rng(0), *extents)
    got = jax.jit(sparse_gemm)(*(jax.device_put(operand, device) for operand in host))
    assert got.shape == extents[:2]
    assert not np.asarray(got.astype(jnp.float32)).any()


def test_vmap(operands, expected):
    stacked = jnp.stack([operands[0], operands[0]])
    got = jax.vmap(lambda a: sparse_gemm(a, *operands[1:], out_dtype="float32"))(stacked)
    np.testing.assert_array_equal(got, np.stack([expected] * 2))


@pytest.mark.parametrize("jit", [False, True])
def test_errors(operands, jit):
    def call(*operands, **options):
        gemm = nvfp4sparse.jax.sparse_gemm
        function = jax.jit(lambda *o: gemm(*o, **options)) if jit else sparse_gemm
        return function(*operands, **({} if jit else options))

    with pytest.raises(ValueError, match=r"b_scale must have shape \(n, k/16\) = \(24, 4\), got"):
        call(*operands[:4], operands[3])
    with pytest.raises(TypeError, match="b_scale must be uint8, int8, float8_e4m3fn, got float32"):
        call(*operands[:4], operands[4].astype(jnp.float32))
    with pytest.raises(ValueError, match="out_dtype must be"):
        call(*operands, out_dtype="int8")
    with pytest.raises(ValueError, match="alpha must have one element"):
        call(*operands, alpha=jnp.ones(2))
    with pytest.raises(TypeError, match="alpha must be a number or a float32"):
        call(*operands, alpha=jnp.ones(1, jnp.float16))
    with pytest.raises(ValueError, match="kernel names no kernel"):
        call(*operands, kernel="none")


def test_out_is_refused(device, operands):
    out = jax.device_put(jnp.zeros((M, N), jnp.bfloat16), device)
    with pytest.raises(ValueError, match="JAX arrays are immutable"):
        sparse_gemm(*operands, out)


def test_tracers_beside_other_arrays(operands, host, expected):
    """Only the explicit function takes them."""
    with pytest.raises(TypeError, match=r"inside jax.jit call nvfp4sparse\.jax\.sparse_gemm"):
        jax.jit(lambda a: sparse_gemm(a, *host[1:]))(operands[0])
    got = jax.jit(lambda a: nvfp4sparse.jax.sparse_gemm(a, *host[1:], out_dtype="float32"))
    np.testing.assert_array_equal(got(operands[0]), expected)


def test_no_derivative(operands):
    def loss(alpha):
        return sparse_gemm(*operands, alpha=alpha, out_dtype="float32").sum()

    with pytest.raises(ValueError, match="cannot be differentiated"):
        jax.grad(loss)(jnp.float32(1))


def raw(operands, **attributes):
    """The custom call without the checks of nvfp4sparse.jax."""
    shape = jax.ShapeDtypeStruct((M, N), jnp.float32)
    call = jax.ffi.ffi_call("nvfp4sparse_sparse_gemm", shape)
    return jax.block_until_ready(call(*operands, **attributes))


def test_the_handler_checks_for_itself(operands, expected):
    good = {"alpha": np.float32(1), "kernel": ""}
    np.testing.assert_array_equal(raw(operands, **good), expected)
    wrong = [
        ([], good),
        (operands[:4], good),
        ([*operands, operands[0], operands[0]], good),
        ([*operands[:4], operands[3]], good),
        ([operands[0][0], *operands[1:]], good),
        ([*operands[:4], operands[4].astype(jnp.float32)], good),
        ([*operands, jnp.ones(2)], good),
        (operands, {"alpha": np.int32(2), "kernel": ""}),
        (operands, {"kernel": ""}),
    ]
    for arrays, attributes in wrong:
        with pytest.raises(RuntimeError, match="sparse_gemm: operands or attributes do not fit"):
            raw(arrays, **attributes)
    with pytest.raises(RuntimeError, match="kernel names no kernel: none"):
        raw(operands, alpha=np.float32(1), kernel="none")
