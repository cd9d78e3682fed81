# SPDX-License-Identifier: Apache-2.0
"""Running a product on every kernel that fits it, and judging each by what it promises."""

import numpy as np

import nvfp4sparse
import reference


def each_kernel(device, operands, **options):
    """Yield (name, result as float32 [m, n]) for every kernel that takes the problem."""
    ran = 0
    for row in nvfp4sparse.kernels():
        try:
            got = device.gemm(*operands, kernel=row["name"], **options)
        except ValueError as error:
            if f"kernel={row['name']} cannot run this" not in str(error) or _must_fit(
                device, row, operands
            ):
                raise
            continue
        ran += 1
        yield row["name"], got
    assert ran > 0


def _must_fit(device, row, operands):
    """Whether a kernel that is here has no right to refuse operands in memory of their own."""
    m, n, k = len(operands[0]), len(operands[3]), 2 * operands[3].shape[1]
    if row["kind"] != device.kind:
        return False
    if row["kind"] == "cuda":
        cc = nvfp4sparse.cuda_info()["devices"][0]["cc"]
        if not (row["built"] and row["cc_min"] <= cc <= row["cc_max"]):
            return False
    is_within = m <= row["m_max"] and n <= row["n_max"] and k <= row["k_max"]
    is_aligned = k % 256 == 0 or not row["needs"]  # every row of every operand
    return is_within and is_aligned and k > 0 and k % row["k_multiple"] == 0


def check(name, got, operands, alpha=1.0, dtype="bfloat16"):
    """The CPU path rounds the exact result once; the others stay within the bound."""
    if name == "cpu":
        exact = reference.exact_gemm(*operands, alpha=alpha)
        np.testing.assert_array_equal(got, reference.round_to(dtype, exact))
    reference.assert_within_bound(got, operands, alpha, dtype=dtype)


def assert_same_bits(got, expected, message=""):
    """Equal as bits, which tells -0 from 0 and takes NaN for equal to itself."""
    assert got.dtype == expected.dtype == np.float32
    np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32), message)
