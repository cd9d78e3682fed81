# SPDX-License-Identifier: Apache-2.0
"""`bench --host`: its timers, its figures, and the whole of it, small, on what is here."""

import numpy as np
import pytest

from cases import random_operands
from nvfp4sparse import _C, sparse_gemm
from nvfp4sparse import __main__ as command_line
from nvfp4sparse.cli import devices, host, host_calls, host_report, report


@pytest.fixture
def arguments():
    operands = random_operands(np.random.default_rng(0), 3, 4, 32)
    return (*operands, np.zeros((3, 4), np.float32))


def test_timers_run_what_a_call_runs(arguments):
    *operands, out = arguments
    assert len(_C.time_preparation(arguments, 5)) == 5
    assert not out.any()
    times = _C.time_launches(arguments, 7)
    assert len(times) == 7
    assert all(isinstance(t, int) and t >= 0 for t in times)
    np.testing.assert_array_equal(out, sparse_gemm(*operands, out_dtype="float32"))
    assert len(_C.time_launches(arguments, 7, True)) == 7
    assert len(_C.time_preparation(tuple(operands), 5)) == 5


@pytest.mark.parametrize("function", [_C.time_launches, _C.time_preparation])
def test_timers_refuse(arguments, function):
    for calls in (0, -1, 1 << 30):
        with pytest.raises(ValueError, match="at most 6 arguments and 1 to"):
            function(arguments, calls)
    with pytest.raises(ValueError, match="at most 6 arguments"):
        function((*arguments, 1), 1)
    with pytest.raises(TypeError):
        function(list(arguments), 1)
    with pytest.raises(ValueError, match="sparse_gemm: b_scale must have shape"):
        function((*arguments[:4], arguments[3], arguments[5]), 1)


def test_nothing_to_time():
    empty = random_operands(np.random.default_rng(0), 0, 4, 32)
    with pytest.raises(ValueError, match="nothing to compute"):
        _C.time_launches(tuple(empty), 1)


def test_measure_counts_calls_and_waits():
    """Calls take turns, each waits for its own last result, and none is made twice or left out."""
    log = []

    def series(name):
        numbers = iter(range(10**6))
        call = host_calls.HostCall(
            name, "", "ours", lambda: next(numbers), lambda result: log.append((name, result))
        )
        return host.Series(host_report.HostRow(name, "", "ours"), host.in_python(call))

    calls = 2 * host.WAIT_EVERY + 1
    both = [series("a"), series("b")]
    host.measure(both, calls)
    assert [len(one.found) for one in both] == [one.row.calls for one in both] == [calls] * 2
    last = [host.WARM_UP, *(host.WARM_UP + n for n in (host.WAIT_EVERY, calls - 1, calls))]
    assert log == [(name, n - 1) for n in last for name in ("a", "b")]


def test_rows_survive_the_csv(tmp_path):
    rows = [
        host_report.HostRow("torch", "sparse_gemm(out)", "ours").add([1000, 2000, 3000]),
        host_report.HostRow("cupy", "", "", status="not run: No module named 'cupy'"),
    ]
    assert (rows[0].median_us, rows[0].max_us, rows[0].calls) == (2.0, 3.0, 3)
    report.write_csv(tmp_path / "host.csv", rows, host_report.HostRow)
    assert host_report.read_csv(tmp_path / "host.csv") == rows
    text = host_report.summary(rows)
    assert "2.00" in text
    assert "cupy: not run: No module named" in text


def test_targets():
    medians = {
        "empty call": 0.25,
        "sparse_gemm(out)": 3.0,
        "cuLaunchKernelEx alone": 2.0,
        "cuLaunchKernelEx in a call": 2.25,
        "torch.mm(out=)": 10.0,
        "torch.mm": 12.0,
        "sparse_gemm": 9.0,
    }
    rows = [
        host_report.HostRow("torch", name, "", median_us=median) for name, median in medians.items()
    ]
    rows.append(
        host_report.HostRow("torch", "500 m", "", max_us=7.0, kernel=host_report.EACH_ITS_OWN)
    )
    found = [(value, bound) for _, value, bound in host_report.targets(rows)]
    assert found == [(0.75, 1.2), (0.5, 1.2), (3.0, 5.0), (9.0, 12.0), (7.0, 1000.0)]
    assert list(host_report.targets(rows[:1])) == []


@pytest.mark.filterwarnings("ignore")  # of the frameworks that it times
def test_end_to_end(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(host, "QUICK_CALLS", 300)
    words = ["bench", "--host", "--quick", "--out", str(tmp_path), "--commit", "abc"]
    assert command_line.main(words) == 0
    printed = capsys.readouterr().out
    gpu, _ = devices.find_gpu()
    assert ("computing included, no GPU" in printed) == (gpu is None)
    rows = host_report.read_csv(tmp_path / "host.csv")
    ours = [row for row in rows if row.role == "ours"]
    assert {"sparse_gemm(out)", "sparse_gemm", "sparse_gemm(out), 500 different m"} <= {
        row.call for row in ours
    }
    assert all(row.median_us > 0 and row.max_us >= row.p90_us >= row.p10_us for row in ours)
    assert {row.commit for row in rows} == {"abc"}
    assert ("at most" in printed) == (gpu is not None)
