# SPDX-License-Identifier: Apache-2.0
"""prune(): which two of every four survive."""

import itertools

import ml_dtypes
import numpy as np
import pytest

from nvfp4sparse import prune

FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]


def kept_by_hand(group):
    """The specification's sentence: two by magnitude, ties to the lower index."""
    order = sorted(range(4), key=lambda i: (-abs(group[i]), i))
    return [value if i in order[:2] else 0.0 for i, value in enumerate(group)]


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        ([1, 2, 3, 4], [0, 0, 3, 4]),
        ([4, 3, 2, 1], [4, 3, 0, 0]),
        ([-5, 1, 2, -3], [-5, 0, 0, -3]),
        ([1, 1, 1, 1], [1, 1, 0, 0]),  # ties go to the lower index
        ([0, 2, -2, 2], [0, 2, -2, 0]),
        ([0, 0, 0, 7], [0, 0, 0, 7]),
        ([0.0, -0.0, 0.0, 1e-40], [0, 0, 0, 1e-40]),  # a subnormal beats zero
        ([np.inf, 1, -np.inf, 2], [np.inf, 0, -np.inf, 0]),
    ],
)
def test_single_groups(group, expected):
    assert prune(np.array(group, dtype=np.float32)).tolist() == pytest.approx(expected, rel=1e-6)


def test_every_order_and_tie():
    groups = np.array(list(itertools.product([-2.0, -1.0, -0.0, 0.0, 1.0, 2.0], repeat=4)))
    expected = [kept_by_hand(group) for group in groups.tolist()]
    assert prune(groups).tolist() == expected


@pytest.mark.parametrize("dtype", FLOATS)
def test_keeps_dtype_shape_and_input(dtype):
    x = np.random.default_rng(0).standard_normal((2, 3, 8)).astype(dtype)
    before = x.copy()
    pruned = prune(x)
    assert pruned.dtype == dtype
    assert pruned.shape == x.shape
    assert np.array_equal(x, before)
    assert (np.count_nonzero(pruned.reshape(-1, 4), axis=1) == 2).all()


def test_twice_is_once():
    pruned = prune(np.random.default_rng(1).standard_normal((5, 32)))
    assert np.array_equal(prune(pruned), pruned)


def test_strided_input():
    x = np.random.default_rng(2).standard_normal((16, 6)).T
    assert np.array_equal(prune(x), prune(np.ascontiguousarray(x)))


@pytest.mark.parametrize("shape", [(0,), (0, 8), (3, 0), (2, 0, 4)])
def test_empty(shape):
    assert prune(np.zeros(shape)).shape == shape


@pytest.mark.parametrize(
    ("x", "error", "text"),
    [
        (np.ones(6), ValueError, r"multiple of 4, got shape \(6,\)"),
        (np.float32(1), ValueError, "at least one axis"),
        (np.array([1, np.nan, 2, 3]), ValueError, "NaN"),
        (np.ones(4, dtype=np.int32), TypeError, r"int32; convert it first, e.g. x.astype"),
        (np.ones(4, dtype=np.complex64), TypeError, "complex64"),
        (["a", "b", "c", "d"], TypeError, "got dtype"),
    ],
)
def test_refuses(x, error, text):
    with pytest.raises(error, match=r"^prune: .*" + text):
        prune(x)
