# SPDX-License-Identifier: Apache-2.0
"""The kernel table and its choice, without a GPU."""

import os
import subprocess
import sys

import numpy as np
import pytest

from cases import random_operands
from nvfp4sparse import build_info, kernels, plan, sparse_gemm

ROWS = {row["name"]: row for row in kernels()}
CUDA_ROWS = [row for row in kernels() if row["kind"] == "cuda"]


def test_every_row_is_complete():
    assert len(ROWS) == len(kernels())
    for row in kernels():
        assert row["kind"] in ("cpu", "cuda")
        assert (row["symbol"] is None) == (row["image"] is None) == (row["kind"] == "cpu")
        assert 0 <= row["m_min"] <= row["m_max"]
        assert 0 <= row["n_min"] <= row["n_max"]
        assert row["k_multiple"] % 16 == 0
        assert row["k_max"] >= 0
        assert set(row["needs"]) <= {"aligned_16", "aligned_out", "aligned_scales"}
        assert min(row["tile_m"], row["tile_n"]) > 0
        assert row["when"]
        assert row["persistent"] in (False, True)
        assert row["one_wave"] in (False, True)
        assert row["wave_ns"] >= 0
        assert row["pays_mk"] >= 0
        if row["kind"] == "cuda":
            assert row["cc_min"] <= row["cc_max"]
            assert row["threads"] % 32 == 0
            assert 32 <= row["threads"] <= 1024
            assert 1 <= row["cluster"] <= 16
            assert 0 <= row["shared_bytes"] <= 227 * 1024
            assert 0 <= row["a_box_rows"] <= 256
            if row["a_box_rows"]:  # tensor maps ask for 16 bytes
                assert row["needs"] == ["aligned_16", "aligned_out", "aligned_scales"]
            built = bool(build_info()["images"].get(row["image"]))
            assert row["built"] is built
        else:
            assert row["built"] is True


def test_the_last_rows_take_everything():
    """Whatever does not fit a special row runs on the baseline of its device."""
    for m, n, k in ((1, 1, 16), (1, 10**9, 16), (10**9, 1, 0), (7, 5, 10**6 * 16)):
        assert plan(m, n, k, "cpu")["kernel"] == "cpu"
        for cc in (80, 86, 89, 90, 100, 103, 120, 121):
            assert plan(m, n, k, cc=cc, aligned=False)["kernel"] == "naive"


@pytest.mark.parametrize("cc", [80, 86, 89, 90, 100, 103, 120, 121])
@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 16), (64, 2048, 2048), (4096, 4096, 4096), (3, 5, 48)])
def test_a_plan_is_the_first_row_that_fits(shape, cc, aligned):
    m, n, k = shape
    choice = plan(m, n, k, cc=cc, aligned=aligned)
    row = ROWS[choice["kernel"]]
    assert row["kind"] == choice["kind"] == "cuda"
    assert row["cc_min"] <= cc <= row["cc_max"]
    assert row["m_min"] <= m <= row["m_max"]
    assert row["n_min"] <= n <= row["n_max"]
    assert k % row["k_multiple"] == 0
    assert k <= row["k_max"]
    assert aligned or not row["needs"]
    order = list(ROWS)
    assert list(choice["why"]) == order[: order.index(choice["kernel"])]
    assert all(choice["why"].values())
    assert choice["cc"] == cc
    assert choice["pinned"] is False
    for fact in ("threads", "cluster", "shared_bytes"):
        assert choice[fact] == row[fact]
    rows, columns = -(-m // row["tile_m"]), -(-n // row["tile_n"])
    assert not row["persistent"]
    assert choice["grid"] == (columns * row["cluster"], min(rows, 32768), -(-rows // 32768))


def one_wave_of_rows(m, k, columns):
    """The kernel whose tiles of all columns are one wave of 132 blocks, or None."""
    if columns == 16 and m <= 2112 and 2048 < k <= 8192 and k % 512 == 0:
        return f"sm90_m32n16_two_k{4096 if k <= 4096 else 8192}"  # 66 clusters of two blocks
    for rows, most_k in ((16, 8192), (32, 4096), (64, 2048)):
        if m > rows * 132:
            continue
        name = f"sm90_m{rows}n{columns}"
        if k <= 2048:
            return name
        if k <= most_k and k % 512 == 0:
            return f"{name}_k{most_k}"
        return f"{name}_long" if rows < 64 else None
    return None


@pytest.mark.parametrize("n", range(1, 18))
@pytest.mark.parametrize("m", [33, 512, 2112, 2113, 4224, 4225, 8448, 8449, 28672])
def test_sparse_weights_and_few_tokens(m, n):
    """On Hopper a wave of blocks takes the rows if it can; else they walk, which with no GPU in
    sight is one per tile. Where there is much of A, they do so by whole lines."""
    for k in (256, 2048, 2304, 4096, 4352, 8192, 9728):
        choice = plan(m, n, k, cc=90)
        if n > 16:
            assert not ROWS[choice["kernel"]]["persistent"]
            continue
        columns = 8 if n <= 8 else 16
        name = one_wave_of_rows(m, k, columns)
        if name is None:
            name = f"sm90_stream{columns}"
            lines = ROWS[name + ("_k2048" if k <= 2048 else "_lines")]
            if k <= 1024:
                name += "_k1024"
            elif m * k >= lines["pays_mk"] > 0:
                name = lines["name"]
            else:
                assert choice["why"][lines["name"]].endswith("where there is more of A")
        row = ROWS[name]
        assert choice["kernel"] == row["name"]
        assert row["persistent"] == ("stream" in name)
        assert row["tile_n"] >= n
        tiles = -(-m // row["tile_m"])
        walking, waiting = (tiles, 1, 1), (row["cluster"], tiles, 1)
        assert choice["grid"] == (walking if row["persistent"] else waiting)
    assert "one wave" in plan(28672, 1, 2048, cc=90)["why"]["sm90_m16n8"]
    for k, aligned in ((32768, True), (2048 + 64, True), (2048, False)):
        choice = plan(m, n, k, cc=90, aligned=aligned)
        assert not ROWS[choice["kernel"]]["persistent"]


@pytest.mark.parametrize(
    ("m", "name", "long", "other"),
    [
        (1, "m8", "m8_long", "m8_long"),
        (8, "m8", "m8_long", "m8_long"),
        (9, "m16", "m16_long", "m16_long"),
        (17, "m32n32", "m32_long", "m32_long"),
        (32, "m32n32", "m32_long", "m32_long"),
        (33, "m64n32", "m64n32_ring", "m64n32_long"),
        (65, "m64n64", "m64n64_ring", "m64n32_long"),
        (129, "m128n64", "m128n64_ring", "m64n32_long"),
        (257, "m192n64_ring", "m192n64_ring", "m64n32_long"),
        (385, "m256n64_ring", "m256n64_ring", "m64n32_long"),
        (1024, "m256n64_solo", "m256n64_solo", "m64n32_long"),
    ],
)
def test_one_stage_takes_whole_shares_of_k(m, name, long, other):
    """On Hopper a K of whole 256 columns runs in one stage; other K have rows of their own."""
    name, long, other = "sm90_" + name, "sm90_" + long, "sm90_" + other
    for k in (256, 1024, 1280, 2048):
        assert plan(m, 2048, k, cc=90)["kernel"] == name
    for k in (64, 1984):
        choice = plan(m, 2048, k, cc=90)
        assert choice["kernel"] == other
        assert "multiples of 256" in choice["why"][name]
    choice = plan(m, 2048, 2304, cc=90)
    assert choice["kernel"] == long
    if long != name:
        assert "up to 2048" in choice["why"][name]
    nothing = plan(m, 2048, 0, cc=90)
    if ROWS[name]["a_box_rows"]:  # TMA has no map of nothing
        assert nothing["kernel"] == other
        assert "k from 256 on, got 0" in nothing["why"][name]
    else:
        assert nothing["kernel"] == name


def waves_passed_over(why):
    return [name for name, phrase in why.items() if "expected to take longer" in phrase]


@pytest.mark.parametrize(
    ("m", "n", "name"),
    [
        (33, 2048, "m64n32"),
        (64, 2048, "m64n32"),
        (64, 2112, "m64n32"),  # 132 blocks
        (64, 2113, "m64n64"),  # 134 of m64n32
        (64, 8192, "m64n64"),  # two waves; four of m64n32, two of m128n64
        (65, 2048, "m64n64"),
        (128, 1056, "m64n32"),
        (128, 2048, "m64n64"),
        (129, 2048, "m128n64"),
        (256, 2048, "m128n64"),
        (257, 2048, "m192n64_ring"),
        (384, 2048, "m192n64_ring"),
        (385, 2048, "m256n64_ring"),
        (512, 2048, "m256n64_ring"),  # one wave; two of m128n64
        (513, 2048, "m128n64"),  # three waves
        (769, 2048, "m256n64_solo"),
        (1024, 2048, "m256n64_solo"),
        (2048, 17, "m64n32"),
        (2048, 64, "m64n32"),
        (2048, 65, "m64n64"),
        (2048, 128, "m64n64"),
        (2048, 129, "m128n64"),
        (4224, 32, "m64n32"),
        (4225, 32, "m128n64"),
        (8192, 32, "m128n64"),
        (8192, 64, "m128n64"),
        (8449, 32, "m192n64_ring"),  # one wave; three of m64n32
        (16384, 32, "m256n64_ring"),
        (2**20, 2**20, "m256n64_solo"),
    ],
)
def test_the_cheapest_waves(m, n, name):
    """Of rows with wave_ns: least waves * wave_ns, 132 blocks a wave where no GPU is in sight."""
    choice = plan(m, n, 2048, cc=90)
    assert choice["kernel"] == "sm90_" + name

    def waves(row):
        return -(-row["cluster"] * -(-m // row["tile_m"]) * -(-n // row["tile_n"]) // 132)

    rows = [row for row in CUDA_ROWS if row["wave_ns"]]
    best = min(rows, key=lambda row: waves(row) * row["wave_ns"])
    assert best["name"] == choice["kernel"]
    before = rows[: rows.index(best)]
    assert waves_passed_over(choice["why"]) == [row["name"] for row in before]
    for row in before:
        plural = "waves" if waves(row) > 1 else "wave"
        phrase = choice["why"][row["name"]]
        assert phrase.startswith(f"its {waves(row)} {plural} of {row['wave_ns']} ns ")
        assert phrase.endswith(f" {waves(best)} of {best['wave_ns']} ns of {best['name']}")


def test_few_rows_come_before_few_columns():
    """Up to 32 rows have kernels of their own, for any n."""
    for n in (1, 8, 16, 17, 2048, 4224, 8192):
        wide = "_stream_k2048" if n > 32 * 132 else "n32" if n > 16 * 132 else ""
        for m, name in ((1, "m8" + wide), (8, "m8" + wide), (16, "m16" + wide), (32, "m32n32")):
            assert plan(m, n, 2048, cc=90)["kernel"] == "sm90_" + name


@pytest.mark.parametrize(
    ("n", "k", "name"),
    [
        (2048, 2048, "{}"),
        (2112, 256, "{}"),
        (2113, 2048, "{}n32"),  # one wave; two of 16 columns
        (4225, 2048, "{}_stream_k2048"),  # two waves of 32 columns
        (14336, 1024, "{}_stream_k2048"),
        (2112, 2560, "{}_k8192"),
        (2113, 2560, "{}n32_k4096"),
        (4096, 4096, "{}n32_k4096"),
        (4225, 4096, "{}_stream_k4096"),
        (4096, 4608, "{}_stream_k8192"),
        (2**31 - 1, 8192, "{}_stream_k8192"),
        (4096, 8448, "{}_stream"),
        (2112, 8448, "{}_long"),
        (2048, 8192, "{}_k8192"),
        (2048, 8704, "{}_long"),
        (2048, 4352, "{}_long"),  # rows that are not whole lines
        (2113, 4352, "{}_stream_k8192"),
        (2048, 2304, "{}_long"),
        (4096, 2048 + 64, "{}_long"),
    ],
)
def test_few_rows(n, k, name):
    """A wave of blocks takes the columns if it can, with all of K in one stage as far as shared
    memory reaches; else they walk."""
    for m in (1, 8, 9, 16):
        choice = plan(m, n, k, cc=90)
        row = ROWS[choice["kernel"]]
        assert row["name"] == "sm90_" + name.format("m8" if m <= 8 else "m16")
        assert row["persistent"] == ("stream" in name)
        assert row["m_max"] == row["tile_m"] >= m
        assert choice["grid"] == (-(-n // row["tile_n"]), 1, 1)  # no GPU in sight: all tiles
    why = plan(8, 2112, 2304, cc=90)["why"]["sm90_m8_stream_k4096"]
    assert why.endswith("faster where its tiles are more than a wave of blocks")


def test_grid_of_many_rows():
    tall = plan(16 * 32768 * 3 + 1, 17, 16, cc=80, aligned=False)
    assert (tall["kernel"], tall["grid"]) == ("naive", (2, 32768, 4))
    assert plan(1, 16 * (2**31 - 1), 0, cc=80, aligned=False)["grid"] == (2**31 - 1, 1, 1)
    for m, n in ((1, 16 * (2**31 - 1) + 1), (16 * 32768 * 65535 + 1, 1), (2**62, 2**62)):
        choice = plan(m, n, 0, cc=80, aligned=False)
        assert choice["kernel"] is None
        assert "more tiles than a grid takes" in choice["why"]["naive"]


def test_no_kernel():
    for cc in (50, 75, 79):
        choice = plan(64, 64, 64, cc=cc)
        assert choice["kernel"] is None
        assert f"the GPU has {cc // 10}.{cc % 10}" in choice["why"]["naive"]
        assert choice["why"]["cpu"] == "it runs on the CPU, the operands are on a GPU"
    assert plan(64, 64, 64, "cpu")["why"]["naive"].startswith("it runs on a GPU")


def test_devices():
    for spelling in ("cuda", "cuda:1", 0, 1, None):
        assert plan(1, 1, 16, spelling, cc=90)["cc"] == 90
    torch = sys.modules.get("torch")
    if torch is not None:
        assert plan(1, 1, 16, torch.device("cpu"))["kernel"] == "cpu"
    for wrong in ("gpu", "cuda:", "cuda:x", "cuda:1x", "cuda:-1", "CPU", -1, object()):
        with pytest.raises(ValueError, match="plan: device must be"):
            plan(1, 1, 16, wrong)
    with pytest.raises(ValueError, match="cc is for GPUs"):
        plan(1, 1, 16, "cpu", cc=90)
    with pytest.raises(ValueError, match="times 10"):
        plan(1, 1, 16, cc=9)
    with pytest.raises(TypeError):
        plan(1, 1, 16, cc="9.0")


def test_no_such_gpu():
    with pytest.raises(RuntimeError, match=r"plan: (no CUDA driver|there is no CUDA device 63)"):
        plan(1, 1, 16, 63)


@pytest.mark.parametrize("shape", [(-1, 1, 16), (1, -1, 16), (1, 1, -16), (1, 1, 8), (1, 1, 17)])
def test_impossible_problems(shape):
    with pytest.raises(ValueError, match="plan: m, n and k must be 0 or more"):
        plan(*shape)


def python(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


SECOND_WAVE = """
import nvfp4sparse
choice = nvfp4sparse.plan(2**20, 2**20, 2048, cc=90)
print(choice["kernel"], choice["pinned"], set(choice["why"].values()))
"""


@pytest.mark.parametrize("name", [row["name"] for row in CUDA_ROWS if row["wave_ns"]])
def test_a_pinned_row_takes_any_number_of_waves(name):
    """What its waves cost counts for the choice alone."""
    found = python(SECOND_WAVE, NVFP4SPARSE_KERNEL=name)
    assert found.startswith(f"{name} True ")
    assert "expected to take longer" not in found
    free = python(SECOND_WAVE, NVFP4SPARSE_KERNEL="")
    assert "expected to take longer" in free


PINNED = """
import numpy as np
import nvfp4sparse
zeros = [np.zeros((2, width), np.uint8) for width in (4, 4, 1, 8, 1)]
try:
    print(nvfp4sparse.sparse_gemm(*zeros).shape, nvfp4sparse.plan(2, 2, 16, "cpu")["pinned"])
    print(nvfp4sparse.plan(2, 2, 16, cc=90)["kernel"], nvfp4sparse.plan(2, 2, 16, cc=90)["pinned"])
    nvfp4sparse.sparse_gemm(*zeros, kernel="cpu")
except ValueError as error:
    print(error)
"""


def test_pinned_by_the_environment():
    """A pin counts for its own kind of device; plan() says so."""
    assert python(PINNED, NVFP4SPARSE_KERNEL="cpu").splitlines()[0] == "(2, 2) True"
    assert python(PINNED, NVFP4SPARSE_KERNEL="naive").splitlines() == [
        "(2, 2) False",
        "naive True",
    ]
    assert python(PINNED, NVFP4SPARSE_KERNEL="").splitlines()[0] == "(2, 2) False"
    wrong = python(PINNED, NVFP4SPARSE_KERNEL="fast")
    assert wrong.startswith("sparse_gemm: NVFP4SPARSE_KERNEL names no kernel: 'fast'; there are ")


def test_kernel_runs_the_row_it_names():
    operands = random_operands(np.random.default_rng(0), 3, 4, 32)
    np.testing.assert_array_equal(sparse_gemm(*operands, kernel="cpu"), sparse_gemm(*operands))
