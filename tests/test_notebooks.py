# SPDX-License-Identifier: Apache-2.0
"""The notebooks run from top to bottom, and are stored small and without outputs."""

import json
import sys
from pathlib import Path

import pytest

import nvfp4sparse
from nvfp4sparse.cli import host_report, report, timing, workload

NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "notebooks").glob("*.ipynb"))
NEEDS = ("nbclient", "nbformat", "ipykernel", "matplotlib", "sklearn")

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@every_notebook
def test_stored_without_outputs(path):
    cells = json.loads(path.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


def write_bench(path):
    """A bench CSV with two problems, for the notebook that plots one."""
    rows = []
    for m in (1, 64):
        for kernel, role in (("naive", "ours"), ("cuBLAS bf16", "peer")):
            row = report.new_row(kernel, role, workload.Problem(m, 64, 64))
            sample = timing.Sample(1e-6 * m, 1e-6, 1e-7, 40)
            row.add_timing(timing.Timing(sample, sample, None), None)
            rows.append(row)
    report.write_csv(path, rows)


def write_host(path):
    """A CSV of bench --host with a call, its parts and a peer, for the notebook that plots one."""
    calls = ("sparse_gemm(out)", "cuLaunchKernelEx alone", "preparation", "sparse_gemm", "torch.mm")
    rows = [host_report.HostRow("torch", c, "").add([4000, 5000, 6000]) for c in calls]
    report.write_csv(path, rows, host_report.HostRow)


@pytest.mark.slow
@every_notebook
@pytest.mark.filterwarnings("ignore")  # jupyter's own, of the transport to its kernel
def test_runs_and_draws(path, tmp_path, monkeypatch):
    for module in NEEDS:
        pytest.importorskip(module)
    import nbformat
    from nbclient import NotebookClient

    write_bench(tmp_path / "bench.csv")
    monkeypatch.setenv("NVFP4SPARSE_BENCH_CSV", str(tmp_path / "bench.csv"))
    write_host(tmp_path / "host.csv")
    monkeypatch.setenv("NVFP4SPARSE_HOST_CSV", str(tmp_path / "host.csv"))
    monkeypatch.setenv("PYTHONPATH", str(Path(nvfp4sparse.__file__).parents[1]))
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=120,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.km = client.create_kernel_manager()
    client.km.kernel_spec.argv[0] = sys.executable  # this interpreter, whatever the spec names
    client.execute()  # raises what a cell raises
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
