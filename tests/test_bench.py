# SPDX-License-Identifier: Apache-2.0
"""The bench's parts that need no GPU, and the whole of it, small, on what is here."""

import csv
import math
import os
import time
from types import SimpleNamespace

import numpy as np
import pytest

import reference
from nvfp4sparse import _C
from nvfp4sparse import __main__ as command_line
from nvfp4sparse.cli import (
    bench,
    cupti,
    devices,
    floor,
    kernels,
    peers,
    plots,
    report,
    sweep,
    table,
    timing,
    torch_device,
    workload,
)

SEPARATOR = "fill"


def trace(*calls):
    """Events of a trace: each call is a list of (name, start, end) after its separator."""
    events = []
    for number, call in enumerate((*calls, [])):
        events.append((SEPARATOR, 100.0 * number, 100.0 * number + 1))
        events += [(name, 100.0 * number + s, 100.0 * number + e) for name, s, e in call]
    return events


def test_a_call_lasts_from_its_first_start_to_its_last_end():
    calls = [[("gemm", 10, 12), ("reduce", 15, 16)], [("reduce", 25, 27), ("gemm", 20, 24)]]
    assert cupti.split_calls(trace(*calls), {SEPARATOR}, 2) == [6.0, 7.0]
    shuffled = trace(*calls)[::-1]
    assert cupti.split_calls(shuffled, {SEPARATOR}, 2) == [6.0, 7.0]


@pytest.mark.parametrize(
    "calls",
    [
        [[("gemm", 1, 2)], []],
        [[("gemm", 1, 2)], [("other", 1, 2)]],
        [[("gemm", 1, 2)]],
        [[("gemm", 1, 2)], [("gemm", 1, 2), ("gemm", 3, 4)]],
    ],
    ids=["lost kernel", "another kernel", "lost call", "one kernel more"],
)
def test_an_incomplete_trace_is_no_figure(calls):
    with pytest.raises(RuntimeError, match="not 2 alike"):
        cupti.split_calls(trace(*calls), {SEPARATOR}, 2)


def test_a_trace_of_several_problems():
    """Each problem's calls are alike; those of two problems need not be."""
    first, second = [("gemm", 1, 2)], [("gemm", 1, 2), ("reduce", 3, 4)]
    events = trace(first, first, second, second)
    assert cupti.split_problems(events, {SEPARATOR}, 2, 2) == [[1.0, 1.0], [3.0, 3.0]]
    with pytest.raises(RuntimeError, match="holds 4 calls, not 3 of 2 problems"):
        cupti.split_problems(events, {SEPARATOR}, 3, 2)
    with pytest.raises(RuntimeError, match="not 2 alike"):
        cupti.split_problems(trace(first, second, second, second), {SEPARATOR}, 2, 2)


class NotedCupti(cupti.CuptiTimer):
    """Its traces hold what the calls note down, the first `lossy` ones less their last event."""

    def __init__(self, lossy):
        self.lossy = lossy
        self.clock = 0.0
        self.events = []
        self.device = SimpleNamespace(scrub=self.kernel(SEPARATOR, 1.0), synchronize=lambda: None)
        self._separators = {SEPARATOR}

    def kernel(self, name, seconds):
        def call():
            self.events.append((name, self.clock, self.clock + seconds))
            self.clock += seconds

        return call

    def _trace(self, run):
        self.events.clear()
        run()
        self.lossy -= 1
        return self.events[: -1 if self.lossy >= 0 else None]


def test_cold_times_of_several_problems():
    """A trace that lost an event is taken once more, and never turns into a figure."""
    for lossy in (0, 1):
        timer = NotedCupti(lossy)
        samples = timer.cold([timer.kernel("one", 3.0), timer.kernel("other", 5.0)], 4)
        assert [(sample.median, sample.calls) for sample in samples] == [(3.0, 4), (5.0, 4)]
    timer = NotedCupti(2)
    with pytest.raises(RuntimeError, match="holds 7 calls, not 4 of 2 problems"):
        timer.cold([timer.kernel("one", 3.0), timer.kernel("other", 5.0)], 4)


def test_a_sample_summarises():
    sample = timing.summarize([3.0, 1.0, 2.0, 5.0, 4.0])
    assert (sample.median, sample.minimum, sample.calls) == (3.0, 1.0, 5)
    assert math.isclose(sample.spread, 3.2)


def test_bf16_ulp():
    x = np.array([1.0, 1.99, 2.0, -3.0, 0.0, 2.0**-126, 2.0**-140])
    expected = [2.0**-7, 2.0**-7, 2.0**-6, 2.0**-6, 2.0**-133, 2.0**-133, 2.0**-133]
    assert workload.bf16_ulp(x).tolist() == expected


def test_judge_sees_one_element():
    exact = np.full((4, 5), 1.0)
    magnitude = np.ones_like(exact)
    good = workload.judge(exact.astype(np.float32), exact, magnitude, 64)
    assert good.within_bound
    assert good.ulps == 0
    for wrong in (1.0 + 2.0**-7, np.nan):
        c = exact.astype(np.float32)
        c[3, 4] = wrong
        bad = workload.judge(c, exact, magnitude, 64)
        assert not bad.within_bound
        assert bad.ulps >= 1


@pytest.mark.parametrize("rows", [3, workload.MAX_ROWS + 5])
def test_operands_are_what_they_say(rows):
    problem = workload.Problem(rows, 7, 32)
    operands = workload.make_operands(problem, seed=1)
    assert [x.shape for x in operands] == [(rows, 8), (rows, 8), (rows, 2), (7, 16), (7, 2)]
    assert all(x.dtype == np.uint8 for x in operands)
    assert sum(x.nbytes for x in operands) == problem.operand_bytes
    a, b = workload.dense_values(operands)
    exact, _ = workload.exact_product(a[:16], b)
    assert np.array_equal(
        exact, reference.exact_gemm(*(x[:16] for x in operands[:3]), *operands[3:])
    )
    assert np.count_nonzero(a) > 0.4 * a.size


def test_operands_share_a_buffer_at_aligned_offsets():
    arrays = [np.arange(size, dtype=np.uint8).reshape(1, -1) for size in (5, 256, 7)]
    buffer, offsets = devices.concatenate(arrays)
    assert offsets == [0, 256, 512]
    assert buffer.size == 768
    for offset, array in zip(offsets, arrays, strict=True):
        assert np.array_equal(buffer[offset : offset + array.nbytes], array[0])


def test_floor_result_sees_every_word():
    """The plain meaning of the kernel, thread by thread."""
    rng = np.random.default_rng(0)
    words = rng.integers(0, 256, (2 * floor.THREADS + 3, 16), dtype=np.uint8)
    sums = np.zeros((floor.THREADS, 16), np.uint8)
    for index, word in enumerate(words):
        sums[index % floor.THREADS] ^= word
    written = floor.expected(words.reshape(-1), 16 * (floor.THREADS + 2), blocks=1)
    assert np.array_equal(written.reshape(-1, 16), np.concatenate([sums, sums[:2]]))


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore")  # of the framework
@pytest.mark.parametrize("words", [0, 1, 300, 512, 1000, 2000, 4000, 5000, 20001])
def test_floor_on_a_gpu(words):
    """From fewer words than threads to several passes of eight loads, on two blocks."""
    gpu, why = devices.find_gpu()
    if gpu is None and os.environ.get("NVFP4SPARSE_REQUIRE_CUDA") != "1":
        pytest.skip(why)
    operands = np.random.default_rng(words).integers(0, 256, 16 * words, dtype=np.uint8)
    out = gpu.put(np.full(16 * 700, 0xAA, np.uint8))
    _C.launch_floor(gpu.put(operands), out[: 16 * 600], blocks=2)
    written = gpu.to_host(out)
    assert np.array_equal(written[: 16 * 600], floor.expected(operands, 16 * 600, blocks=2))
    assert (written[16 * 600 :] == 0xAA).all()


@pytest.mark.parametrize(
    ("operands", "blocks", "complaint"),
    [
        (np.zeros(32, np.uint8), 1, "operands must be a contiguous uint8 vector on a GPU"),
        (np.zeros(32, np.uint8), 0, "blocks must be 1 to 65536, got 0"),
        (np.zeros(32, np.uint8), 1 << 20, "blocks must be 1 to 65536, got 1048576"),
    ],
)
def test_floor_refuses(operands, blocks, complaint):
    with pytest.raises(ValueError, match=f"launch_floor: {complaint}"):
        _C.launch_floor(operands, operands.copy(), blocks=blocks)


def test_best_takes_each_form_by_itself():
    def sample(median):
        return timing.Sample(median, median, 0.0, 40)

    one = timing.Timing(sample(3.0), sample(1.0), None)
    other = timing.Timing(sample(2.0), sample(2.0), 1.5)
    found = floor.best([one, other])
    assert (found.cold.median, found.warm.median, found.graph) == (2.0, 1.0, 1.5)


def test_table_aligns_numbers_right():
    text = table.render(["name", "us"], [["a", 1.5], ["bcd", 10.25]])
    assert text.splitlines() == ["name     us", "----  -----", "a       1.5", "bcd   10.25"]


def test_progress_yields_everything(capsys):
    assert list(table.progress([1, 2], "work")) == [1, 2]
    assert "work 2/2: 2" in capsys.readouterr().err


def parse(*words):
    return command_line.build_parser().parse_args(["bench", *words])


def test_problems():
    sweep = bench.problems_of(parse(), on_gpu=True)
    assert [p.m for p in sweep if (p.n, p.k) == (2048, 2048)] == list(bench.SWEEP_M)
    assert len(bench.problems_of(parse("--quick"), on_gpu=True)) < len(sweep)
    assert bench.problems_of(parse("--m", "3", "--k", "32"), on_gpu=True) == [
        workload.Problem(3, 2048, 32)
    ]
    weights = bench.problems_of(parse("--transposed"), on_gpu=True)
    assert len(weights) == 48
    assert all(p.column_major for p in weights)


def test_problems_of_a_sweep():
    found = sweep.problems_of(parse("--sweep", "m"), on_gpu=True)
    assert found == [workload.Problem(m, 2048, 2048) for m in range(1, 513)]
    found = sweep.problems_of(parse("--sweep", "n", "--m", "64", "--k", "32"), on_gpu=True)
    assert found == [workload.Problem(64, n, 32, column_major=True) for n in range(1, 257)]
    found = sweep.problems_of(parse("--sweep", "m", "--m", "3", "1", "3"), on_gpu=False)
    assert [p.m for p in found] == [1, 3]
    assert len(sweep.problems_of(parse("--sweep", "n"), on_gpu=False)) < 10


def test_steps_of_a_sweep():
    """Up and down count alike, and a point without a time has no step."""
    rows = []
    times = (1.0, 1.1, 1.65, 1.65, None, 3.0, 2.4)
    for m, (kernel, microseconds) in enumerate(zip("aabbbbc", times, strict=True), start=1):
        rows.append(report.new_row(kernel, "ours", workload.Problem(m, 32, 16)))
        rows[-1].cold_us = microseconds
    rows[4].status = "FAILED: lost"
    steps = [(round(factor, 3), a.m, b.m) for factor, a, b in sweep.steps_of(rows)]
    assert steps == [(1.1, 1, 2), (1.5, 2, 3), (1.0, 3, 4), (0.8, 6, 7)]
    words = sweep.summary(rows, "m").splitlines()
    assert [line.split() for line in words[2:5]] == [
        ["1", "2", "a", "1.00", "1.10"],
        ["3", "6", "b", "1.65", "3.00"],
        ["7", "7", "c", "2.40", "2.40"],
    ]
    assert words[6:] == [
        "- step of 1.50x from m = 2 (a, 1.10 us) to m = 3 (b, 1.65 us)",
        "- step of 0.80x from m = 6 (b, 3.00 us) to m = 7 (c, 2.40 us)",
        "- the largest of 4 steps: 1.50x from m = 2 (a, 1.10 us) to m = 3 (b, 1.65 us)",
        "- b: FAILED: lost",
    ]


def test_rows_survive_the_csv(tmp_path):
    rows = []
    for m in (1, 64):
        problem = workload.Problem(m, 32, 16)
        sample = timing.Sample(2e-6 * m, 1e-6, 1e-7, 40)
        row = report.new_row("k", "ours", problem)
        row.add_timing(timing.Timing(sample, sample, None), timing.Timing(sample, sample, None))
        row.commit = "123456789012"
        rows.append(row)
    rows.append(report.new_row("other", "peer", problem))
    rows[-1].status = "not run: absent"
    path = tmp_path / "bench.csv"
    report.write_csv(path, rows)
    found = plots.read_csv(path)
    assert [(row["m"], row["cold_us"], row["cold_to_floor"]) for row in found] == [
        (1, 2.0, 1.0),
        (64, 128.0, 1.0),
    ]
    assert found[0]["commit"] == "123456789012"
    assert found[0]["graph_us"] == ""
    assert [(title, free) for title, free, _ in plots.slices(found)] == [("n = 32, k = 16", "m")]
    text = report.summary(rows)
    assert "128.00" in text
    assert "other: not run: absent" in text


def test_a_line_follows_what_calls_choose():
    pytest.importorskip("matplotlib")
    rows = [
        {"kernel": kernel, "role": "ours", "m": m, "cold_us": us, "cold_to_floor": "", "note": note}
        for kernel, m, us, note in (
            ("few", 16, 3.0, plots.CHOSEN),
            ("many", 64, 4.0, plots.CHOSEN),
            ("few", 8, 2.0, plots.CHOSEN),
            ("many", 8, 5.0, ""),
        )
    ]
    for row in rows:
        row["device"] = "pretend"
    lines = plots.figure_of("title", "m", rows).axes[0].get_lines()
    assert [line.get_label() for line in lines] == ["ours, as chosen", "few", "many"]
    assert lines[0].get_xydata().tolist() == [[8, 2], [16, 3], [64, 4]]


class PretendGpu(devices.NumpyDevice, devices.GpuDevice):
    """Host memory that times like a GPU, so that what only a GPU's bench does runs anywhere."""

    kind = "cuda"
    name = "pretend"
    multiprocessors = 2
    smi_id = "none"

    def scratch(self, nbytes):
        return np.zeros(nbytes, np.uint8)

    def synchronize(self):
        pass

    def scrub(self):
        pass

    def capture(self, call):
        return call

    def seconds(self, call):
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin


def run_pretended_bench(monkeypatch, folder, launch_floor):
    monkeypatch.setattr(bench, "find_gpu", lambda: (PretendGpu(), ""))
    monkeypatch.setattr(floor._C, "launch_floor", launch_floor)
    words = ["bench", "--m", "4", "16", "--n", "32", "--k", "64", "--quick", "--kernels", "cpu"]
    status = command_line.main([*words, "--out", str(folder)])
    with (folder / "bench.csv").open(newline="") as file:
        return status, list(csv.DictReader(file))


def test_bench_of_the_chosen_kernel(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "find_gpu", lambda: (None, "none for this test"))
    monkeypatch.setattr(bench, "names_of", lambda kind: ["naive", "cpu"])
    words = ["bench", "--m", "4", "--n", "32", "--k", "64", "--quick", "--chosen", "--no-peers"]
    assert command_line.main([*words, "--out", str(tmp_path)]) == 0
    with (tmp_path / "bench.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["kernel"], row["role"], row["status"]) for row in rows] == [("cpu", "ours", "ok")]
    with pytest.raises(SystemExit):
        command_line.main([*words, "--kernels", "cpu", "--out", str(tmp_path)])


def test_bench_of_a_gpu(tmp_path, monkeypatch):
    def launch_floor(operands, out, *, blocks):
        out[:] = floor.expected(operands, out.size, blocks)

    status, rows = run_pretended_bench(monkeypatch, tmp_path, launch_floor)
    assert status == 0
    by_kernel = {row["kernel"]: row for row in rows}
    assert {"read-once floor", "cpu", "cuBLAS bf16", "cuSPARSELt fp16 2:4"} < set(by_kernel)
    ours = by_kernel["cpu"]
    assert ours["status"] == "ok"
    for figure in ("cold_us", "warm_us", "graph_us", "cold_to_floor", "warm_to_floor"):
        assert float(ours[figure]) > 0
    assert int(ours["calls"]) == bench.QUICK_CALLS
    assert "CUDA events" in ours["timer"]
    assert by_kernel["cuBLAS bf16"]["status"] == "not run: needs PyTorch with CUDA"


def run_pretended_sweep(monkeypatch, folder, *words):
    monkeypatch.setattr(sweep, "find_gpu", lambda: (PretendGpu(), ""))
    status = command_line.main(["bench", *words, "--k", "64", "--out", str(folder)])
    with (folder / f"sweep_{words[1]}.csv").open(newline="") as file:
        return status, list(csv.DictReader(file))


@pytest.mark.parametrize(("swept", "fixed", "layout"), [("m", "n", "row"), ("n", "m", "column")])
def test_sweep_of_a_gpu(tmp_path, monkeypatch, swept, fixed, layout):
    points = [str(point) for point in range(1, sweep.Stretch.LENGTH + 4)]
    words = ["--sweep", swept, f"--{fixed}", "24", f"--{swept}", *points]
    status, rows = run_pretended_sweep(monkeypatch, tmp_path, *words)
    assert status == 0
    assert [row[swept] for row in rows] == points
    for row in rows:
        assert (row[fixed], row["k"], row["layout"]) == ("24", "64", layout)
        assert (row["kernel"], row["status"]) == ("cpu", "ok")
        assert int(row["calls"]) == bench.QUICK_CALLS
        assert row["cold_us"]
        assert not row["warm_us"]
    checked = [int(row[swept]) for row in rows if row["error_of_bound"]]
    assert checked == [1, 17, 33, 35]  # the first and the last of one kernel, and every 16th


def test_sweep_sees_a_wrong_result(tmp_path, monkeypatch):
    gemm = kernels.nvfp4sparse.sparse_gemm

    def wrong_gemm(*operands, **options):
        found = gemm(*operands, **options)
        found[-1, -1] += 1 if len(found) >= 16 else 0
        return found

    monkeypatch.setattr(kernels.nvfp4sparse, "sparse_gemm", wrong_gemm)
    points = [str(point) for point in range(12, 31)]
    words = ["--sweep", "m", "--n", "24", "--m", *points]
    status, rows = run_pretended_sweep(monkeypatch, tmp_path, *words)
    assert status == 1
    wrong = [int(row["m"]) for row in rows if row["status"].startswith("WRONG")]
    assert wrong == [28, 29, 30]  # the first that is checked, and from then on


def test_sweep_keeps_the_points_that_lost_the_gpu(tmp_path, monkeypatch, capsys):
    def broken(self):
        raise RuntimeError("CUDA error: gone")

    monkeypatch.setattr(sweep, "_measure", lambda timer, timed: broken(timer))
    points = [str(point) for point in range(1, 4)]
    found = sweep.check_device

    def check(device, name, role):
        monkeypatch.setattr(PretendGpu, "synchronize", broken)
        found(device, name, role)

    monkeypatch.setattr(sweep, "check_device", check)
    status, rows = run_pretended_sweep(
        monkeypatch, tmp_path, "--sweep", "m", "--n", "24", "--m", *points
    )
    assert status == 1
    assert [row["status"] for row in rows] == ["FAILED: CUDA error: gone"] * 3
    assert "the sweep ends after 3 points: cpu left the GPU unusable" in capsys.readouterr().err


def test_sweep_times_the_chosen_kernel_alone(tmp_path, capsys):
    for words in (["--kernels", "cpu"], ["--n", "16", "32"]):
        words = ["bench", "--sweep", "m", *words, "--out", str(tmp_path / "none")]
        assert command_line.main(words) == 2
        assert "--sweep m takes one --n, one --k and no --kernels" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


@pytest.mark.filterwarnings("ignore")  # of the frameworks that it times
def test_sweep_end_to_end(tmp_path, capsys):
    """With whatever device is here."""
    words = ["bench", "--sweep", "n", "--m", "48", "--k", "64", "--n", "1", "2", "3"]
    assert command_line.main([*words, "--out", str(tmp_path), "--commit", "abc"]) == 0
    printed = capsys.readouterr().out
    assert "the largest of 2 steps: " in printed
    rows = plots.read_csv(tmp_path / "sweep_n.csv")
    assert [(row["n"], row["commit"]) for row in rows] == [(1, "abc"), (2, "abc"), (3, "abc")]
    device = devices.find_gpu()[0]
    for row in rows:
        choice = _C.plan(48, row["n"], 64, device.label if device else "cpu")
        assert row["kernel"] == choice["kernel"]
        assert row["warm_us" if device is None else "cold_us"] > 0


def test_bench_fails_if_the_floor_skips_a_word(tmp_path, monkeypatch):
    def launch_floor(operands, out, *, blocks):
        skipping = operands.copy()
        skipping[:16] = 0
        out[:] = floor.expected(skipping, out.size, blocks)

    status, rows = run_pretended_bench(monkeypatch, tmp_path, launch_floor)
    assert status == 1
    assert any("did not read every byte" in row["status"] for row in rows)
    assert all(row["cold_to_floor"] == "" for row in rows)


class PretendTorch(PretendGpu, torch_device.TorchDevice):
    """A GPU with peers, on which `broken` tells what a synchronisation raises, and how often."""

    product = devices.NumpyDevice.product

    def __init__(self):
        self.broken = []

    def synchronize(self):
        if self.broken:
            raise RuntimeError(self.broken.pop())


FOREVER = 1000
FAULT = "CUDA error: an illegal instruction was encountered\nCompile with ..."


def run_bench_with_peers(monkeypatch, folder, use_first, use_second, *words):
    """Two peers; each uses the device when it is built, and says what it then does in a call."""
    device = PretendTorch()

    def builder(use):
        def build(name, device, problem, a, b):
            product = (a @ b.T).astype(np.float32)
            return kernels.Candidate(name, "peer", use(device), lambda: product)

        return build

    def idle(device):
        return lambda: None

    for name, use in (("bf16", use_first), ("fp8", use_second), ("lt", idle)):
        names = {"bf16": "_cublas_bf16", "fp8": "_cublas_fp8", "lt": "_cusparselt"}
        monkeypatch.setattr(peers, names[name], builder(use or idle))

    def launch_floor(operands, out, *, blocks):
        out[:] = floor.expected(operands, out.size, blocks)

    monkeypatch.setattr(bench, "find_gpu", lambda: (device, ""))
    monkeypatch.setattr(bench, "make_timer", timing.EventTimer)
    monkeypatch.setattr(floor._C, "launch_floor", launch_floor)
    words = ["bench", "--n", "32", "--k", "64", "--quick", "--kernels", "cpu", *words]
    status = command_line.main([*words, "--out", str(folder)])
    with (folder / "bench.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return status, {(int(row["m"]), row["kernel"]): row["status"] for row in rows}


def test_peers_are_timed(tmp_path, monkeypatch):
    status, found = run_bench_with_peers(monkeypatch, tmp_path, None, None, "--m", "4")
    assert status == 0
    assert set(found.values()) == {"ok"}
    assert len(found) == 5


def test_an_error_belongs_to_the_peer_that_made_it(tmp_path, monkeypatch):
    """It shows up in the synchronisation after the build; the device and the others go on."""

    def fail_once(device):
        device.broken = ["CUDA error: once\nand more"]

    status, found = run_bench_with_peers(monkeypatch, tmp_path, fail_once, None, "--m", "4", "16")
    assert status == 0
    for m in (4, 16):
        assert found.pop((m, "cuBLAS bf16")) == "not run: CUDA error: once"
    assert set(found.values()) == {"ok"}


def test_a_peer_that_loses_the_gpu_ends_the_bench(tmp_path, monkeypatch, capsys):
    """While it is built, before anything of that problem is timed but the floor."""

    def break_it(device):
        device.broken = [FAULT] * FOREVER

    status, found = run_bench_with_peers(monkeypatch, tmp_path, None, break_it, "--m", "4", "16")
    assert status == 1
    fault = FAULT.splitlines()[0]
    assert found == {(4, "read-once floor"): "ok", (4, "cuBLAS fp8"): f"FAILED: {fault}"}
    words = f"the bench ends at m=4 n=32 k=64: cuBLAS fp8 left the GPU unusable: {fault}\n"
    assert capsys.readouterr().err.endswith(words)


def test_a_peer_that_loses_the_gpu_in_a_call(tmp_path, monkeypatch, capsys):
    """What was timed before is kept."""

    def break_later(device):
        def call():
            device.broken = [FAULT] * FOREVER

        return call

    status, found = run_bench_with_peers(monkeypatch, tmp_path, break_later, None, "--m", "4", "16")
    assert status == 1
    assert found.pop((4, "cuBLAS bf16")).startswith("FAILED: CUDA error")
    assert found == {(4, "read-once floor"): "ok", (4, "cpu"): "ok"}
    assert "cuBLAS bf16 left the GPU unusable" in capsys.readouterr().err


def test_our_own_kernel_is_named_as_well(tmp_path, monkeypatch, capsys):
    gemm = kernels.nvfp4sparse.sparse_gemm

    def breaking_gemm(*operands, **options):
        found = gemm(*operands, **options)
        bench.find_gpu()[0].broken = [FAULT] * FOREVER
        return found

    monkeypatch.setattr(kernels.nvfp4sparse, "sparse_gemm", breaking_gemm)
    status, found = run_bench_with_peers(monkeypatch, tmp_path, None, None, "--m", "4")
    assert status == 1
    assert found.pop((4, "cpu")).startswith("FAILED: CUDA error")
    assert set(found) == {(4, "read-once floor")}
    assert "cpu left the GPU unusable" in capsys.readouterr().err


class Halves(np.ndarray):
    """As much of a tensor as the peer asks of one."""

    def half(self):
        return self.astype(np.float16)

    def new_zeros(self, *shape):
        return np.zeros(shape, self.dtype).view(Halves)


@pytest.mark.parametrize("column_major", [False, True])
def test_cusparselt_gives_c_row_major(column_major):
    """Both layouts of C are judged against the same product, [m, n]."""
    asked = []

    def mm_search(*arguments):
        asked.append(arguments[-1])
        return 7, 1, 0, 4

    def sparse_mm(sparse, dense, *, transpose_result=False, **options):
        asked.append(transpose_result)
        assert options == {"alg_id": 7, "split_k": 1, "split_k_mode": 0}
        assert dense.strides[0] == dense.itemsize  # B as it lies in memory
        return sparse @ dense

    torch = SimpleNamespace(
        cat=lambda parts: np.concatenate(parts).view(Halves),
        _C=SimpleNamespace(_cusparselt=SimpleNamespace(mm_search=mm_search)),
        _cslt_compress=lambda tensor: tensor,
        _cslt_sparse_mm=sparse_mm,
    )
    device = PretendTorch()
    device.torch = torch
    problem = workload.Problem(20, 3, 32, column_major)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, (rows, 32)).astype(np.float32) for rows in (20, 3))
    peer = peers._cusparselt("lt", device, problem, a.view(Halves), b.view(Halves))
    peer.call()
    np.testing.assert_array_equal(peer.result(), a @ b.T)
    assert not any(asked)
    assert ("C row-major" in peer.note) == column_major


@pytest.mark.filterwarnings("ignore")  # of the frameworks that it times
def test_bench_end_to_end(tmp_path, capsys):
    """Small, with whatever device is here; on a GPU the floor and the peers take part."""
    words = ["bench", "--m", "4", "16", "--n", "48", "--k", "64", "--quick"]
    assert command_line.main([*words, "--out", str(tmp_path), "--commit", "abc"]) == 0
    printed = capsys.readouterr().out
    assert "timer: " in printed
    with (tmp_path / "bench.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    timed = [row for row in rows if row["status"] == "ok"]
    assert {row["m"] for row in timed if row["role"] == "ours"} == {"4", "16"}
    assert all(float(row["warm_us"]) > 0 and row["timer"] for row in timed)
    assert all(float(row["error_of_bound"]) <= 1 for row in timed if row["role"] == "ours")
    assert {row["commit"] for row in rows} == {"abc"}
    if devices.find_gpu()[0] is not None:
        assert {"read-once floor"} < {row["kernel"] for row in timed}
        assert all(float(row["cold_us"]) > 0 for row in timed)
