# SPDX-License-Identifier: Apache-2.0
"""The build's decisions (no compiler runs here), and the linkage of the module that it made."""

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
setuptools = pytest.importorskip("setuptools")


def load(path):
    """Import a file of the build, which is no part of the installed package."""
    spec = importlib.util.spec_from_file_location(f"built_by_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


setup = load(ROOT / "setup.py")  # puts .build-backend on sys.path
toolkit = sys.modules["nvs_toolkit"]
images = sys.modules["nvs_images"]
TARGETS = frozenset(("75", *setup.PORTABLE))


def executable(path, text="#!/bin/sh\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


class TestFindNvcc:
    def test_nothing(self, tmp_path):
        assert toolkit.find_nvcc({"PATH": str(tmp_path)}, []) is None

    def test_order_of_places(self, tmp_path):
        wheel = executable(tmp_path / "site" / toolkit.NVCC_IN_WHEEL)
        environ = {"PATH": str(tmp_path / "empty")}
        assert toolkit.find_nvcc(environ, [str(tmp_path / "site")]) == wheel
        environ["PATH"] = str(tmp_path / "path")
        expected = executable(tmp_path / "path" / "nvcc")
        assert toolkit.find_nvcc(environ, [str(tmp_path / "site")]) == expected
        for variable in ("CUDA_PATH", "CUDA_HOME"):
            environ[variable] = str(tmp_path / variable)
            expected = executable(tmp_path / variable / "bin" / "nvcc")
            assert toolkit.find_nvcc(environ, []) == expected
        environ["NVCC"] = executable(tmp_path / "mine" / "nvcc-13")
        assert toolkit.find_nvcc(environ, []) == environ["NVCC"]

    def test_home_without_a_compiler_is_passed_over(self, tmp_path):
        nvcc = executable(tmp_path / "path" / "nvcc")
        environ = {"CUDA_HOME": str(tmp_path / "runtime_only"), "PATH": str(tmp_path / "path")}
        assert toolkit.find_nvcc(environ, []) == nvcc

    def test_named_but_missing_is_an_error(self, tmp_path):
        executable(tmp_path / "nvcc")
        with pytest.raises(FileNotFoundError, match="NVCC names 'nvcc-99'"):
            toolkit.find_nvcc({"NVCC": "nvcc-99", "PATH": str(tmp_path)}, [])


class TestToolkit:
    def test_reads_version_and_targets(self, tmp_path):
        executable(tmp_path / "g++")
        text = """#!/bin/sh
        case $1 in
        --version) echo 'Cuda compilation tools, release 13.0, V13.0.88' ;;
        --list-gpu-code) printf 'sm_80\\nsm_90a\\nsm_121\\n' ;;
        esac
        """
        environ = {"PATH": str(tmp_path), "NVCC": executable(tmp_path / "nvcc", text)}
        found, reason = toolkit.find_toolkit(environ)
        assert reason is None
        assert found.version == "13.0.88"
        assert found.targets == {"80", "90", "121"}

    def test_reasons(self, tmp_path):
        environ = {"PATH": str(tmp_path), "NVFP4SPARSE_NO_CUDA": "1"}
        assert toolkit.find_toolkit(environ) == (None, "built with NVFP4SPARSE_NO_CUDA=1")
        executable(tmp_path / "nvcc")
        assert "needs g++" in toolkit.find_toolkit({"PATH": str(tmp_path)})[1]

    @pytest.mark.parametrize(
        ("value", "expected"), [("1", True), ("yes", True), ("0", False), ("", False), (" ", False)]
    )
    def test_flag(self, value, expected):
        assert toolkit.flag({"X": value}, "X") is expected
        assert not toolkit.flag({}, "X")


class TestBackend:
    @pytest.fixture
    def bare_linux(self, monkeypatch, tmp_path):
        """An x86-64 Linux with a C++ compiler and no nvcc: the one case for the wheels."""
        monkeypatch.setattr(sys, "platform", "linux")
        monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
        monkeypatch.setattr(platform, "machine", lambda: "x86_64")
        executable(tmp_path / "g++")
        return {"PATH": str(tmp_path)}

    def test_wheels_where_they_help(self, bare_linux, monkeypatch):
        assert toolkit.wants_wheels(bare_linux, [])
        monkeypatch.setattr(platform, "machine", lambda: "aarch64")
        assert toolkit.wants_wheels(bare_linux, [])

    def test_no_wheels_for_a_cpu_only_build(self, bare_linux):
        assert not toolkit.wants_wheels(bare_linux | {"NVFP4SPARSE_NO_CUDA": "1"}, [])

    def test_no_wheels_beside_an_nvcc(self, bare_linux, tmp_path):
        executable(tmp_path / "nvcc")
        assert not toolkit.wants_wheels(bare_linux, [])

    def test_no_wheels_without_a_host_compiler(self, bare_linux, tmp_path):
        (tmp_path / "g++").unlink()
        assert not toolkit.wants_wheels(bare_linux, [])

    @pytest.mark.parametrize(
        ("module", "name", "value"),
        [
            (sys, "platform", "darwin"),
            (platform, "machine", lambda: "riscv64"),
            (platform, "libc_ver", lambda: ("", "")),
        ],
    )
    def test_no_wheels_where_there_are_none(self, bare_linux, monkeypatch, module, name, value):
        monkeypatch.setattr(module, name, value)
        assert not toolkit.wants_wheels(bare_linux, [])

    @pytest.mark.parametrize("wanted", [True, False])
    @pytest.mark.parametrize("kind", ["wheel", "editable"])
    def test_hooks_add_to_what_setuptools_asks_for(self, monkeypatch, kind, wanted):
        backend = load(ROOT / ".build-backend" / "nvs_backend.py")
        hook = f"get_requires_for_build_{kind}"
        monkeypatch.setattr(backend.build_meta, hook, lambda settings: ["wheel"])
        monkeypatch.setattr(backend, "wants_wheels", lambda: wanted)
        added = list(toolkit.NVCC_WHEELS) if wanted else []
        assert getattr(backend, hook)() == ["wheel", *added]
        assert getattr(backend, f"build_{kind}") == getattr(backend.build_meta, f"build_{kind}")

    def test_wheels_share_one_release(self):
        assert len(toolkit.NVCC_WHEELS) == 5
        assert {pin.partition("==")[2] for pin in toolkit.NVCC_WHEELS} == {"13.0.*"}


class TestArchitectures:
    @pytest.mark.parametrize("text", ["90a", "90", "9.0", "9.0a", "sm_90a", " 90a; "])
    def test_spellings_of_one_device(self, text):
        assert images.parse_archs(text, setup.IMAGES) == {"90"}

    @pytest.mark.parametrize("text", ["80 90a 12.0", "80,90a,120", "80;90a, 12.0"])
    def test_separators(self, text):
        assert images.parse_archs(text, setup.IMAGES) == {"80", "90", "120"}

    def test_empty_is_no_restriction(self):
        assert images.parse_archs(" ", setup.IMAGES) is None

    @pytest.mark.parametrize("word", ["75", "hopper", "9", "90b", "900"])
    def test_unknown_is_an_error(self, word):
        with pytest.raises(ValueError, match=f"no kernel is built for '{word}'; known: 80, 86"):
            images.parse_archs(f"90 {word}", setup.IMAGES)

    def plan(self, targets=TARGETS, wanted=None):
        sources = [Path(name) for name in ("gemm_naive.cu", "gemm_sm90_wgmma.cu")]
        planned = images.plan_images(sources, setup.IMAGES, targets, wanted, Path("out"))
        return [image.archs for image in planned]

    def test_each_kernel_gets_its_row_of_the_table(self):
        portable = "sm_80 sm_86 sm_89 sm_90 sm_100 sm_103 sm_120 sm_121 compute_80"
        assert self.plan() == [portable, "sm_90a"]

    def test_restricted(self):
        assert self.plan(wanted={"90"}) == ["sm_90", "sm_90a"]
        assert self.plan(wanted={"80", "120"}) == ["sm_80 sm_120", ""]

    def test_older_nvcc(self):
        older = TARGETS - {"103", "120", "121"}
        assert self.plan(older) == ["sm_80 sm_86 sm_89 sm_90 sm_100 compute_80", "sm_90a"]

    def test_no_nvcc(self):
        assert self.plan(frozenset()) == ["", ""]


# Stands in for nvcc: notes each run, copies the source to -o, writes the -MF file.
FAKE_NVCC = """#!/bin/sh
echo "$*" >> {runs}
while [ $# -gt 1 ]; do
    case $1 in -o) out=$2 ;; -MF) dep=$2 ;; esac
    shift
done
grep -q syntax_error "$1" && {{ echo "$1(1): error"; exit 2; }}
cp "$1" "$out"
echo "$out : $1 \\\\" > "$dep"
echo "  /elsewhere/cuda.h cuda/ptx.cuh" >> "$dep"
echo "ptxas info: 0 bytes spill stores"
"""


class TestImages:
    @pytest.fixture
    def tree(self, tmp_path):
        """A project with one kernel, and a function that builds it and counts nvcc's runs."""
        root = tmp_path / "pro ject"
        (root / "cuda").mkdir(parents=True)
        (root / "cuda" / "ptx.cuh").write_text("")
        (root / "cuda" / "gemm_naive.cu").write_text("kernel")
        runs = tmp_path / "runs"
        nvcc = executable(tmp_path / "nvcc", FAKE_NVCC.format(runs=runs))

        def build(options=(), version="13.0.88"):
            sources = sorted((root / "cuda").glob("*.cu"))
            planned = images.plan_images(sources, setup.IMAGES, TARGETS, None, root / "build")
            tools = toolkit.Toolkit(nvcc, version, TARGETS)
            before = len(runs.read_text().splitlines()) if runs.exists() else 0
            images.build_images(tools, planned, list(options), 2, root)
            return planned, len(runs.read_text().splitlines()) - before

        return root, build

    def test_compiled_once(self, tree):
        root, build = tree
        assert build()[1] == 1
        assert build()[1] == 0
        assert "0 bytes spill" in (root / "build" / "gemm_naive.ptxas.log").read_text()

    @pytest.mark.parametrize("name", ["gemm_naive.cu", "ptx.cuh"])
    def test_compiled_again_after_a_change(self, tree, name):
        root, build = tree
        build()
        later = (root / "build" / "gemm_naive.stamp").stat().st_mtime_ns + 1
        os.utime(root / "cuda" / name, ns=(later, later))
        assert build()[1] == 1

    def test_compiled_again_for_other_options_or_another_nvcc(self, tree):
        _, build = tree
        build()
        assert build(options=["-lineinfo"])[1] == 1
        assert build(options=["-lineinfo"], version="13.1.0")[1] == 1

    def test_failure_shows_what_nvcc_said_and_is_not_kept(self, tree):
        root, build = tree
        (root / "cuda" / "gemm_naive.cu").write_text("syntax_error")
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"gemm_naive.cu \(exit status 2\)[^$]*error"):
                build()

    def test_embedding(self, tree):
        root, build = tree
        planned, _ = build()
        planned.append(images.Image(Path("gemm_sm90_x.cu"), (), None, root / "no.fatbin"))
        written = images.write_embedding(planned, "nvcc 13.0.88", root / "build")
        table, assembly = (path.read_text() for path in written)
        assert f'{{"gemm_naive", nvs_image_bytes_gemm_naive, 6, "{planned[0].archs}"}},' in table
        assert '{"gemm_sm90_x", NULL, 0, ""},' in table
        assert "nvs_image_count = 2;" in table
        assert 'nvs_build_info[] = "nvcc 13.0.88";' in table
        assert assembly.count(".incbin") == 1
        assert ".note.GNU-stack" in assembly
        times = [path.stat().st_mtime_ns for path in written]
        images.write_embedding(planned, "nvcc 13.0.88", root / "build")
        assert [path.stat().st_mtime_ns for path in written] == times

    def test_embedding_of_a_build_without_kernels(self, tmp_path):
        table, _ = images.write_embedding([], "built without CUDA", tmp_path)
        assert "nvs_image_count = 0;" in table.read_text()


def test_dependencies_are_those_of_the_project(tmp_path):
    rule = "x.fatbin : cuda/a.cu \\\n   /usr/include/a.h cuda/b\\ c.cuh \\\n  cuda/../src/n.h\n"
    found = images.project_dependencies(rule, tmp_path)
    names = [str(path.relative_to(tmp_path)) for path in found]
    assert names == ["cuda/a.cu", "cuda/b c.cuh", "src/n.h"]


def test_switches_of_the_c_compiler(monkeypatch):
    for name in ("WERROR", "DEBUG_BUILD"):
        monkeypatch.delenv(f"NVFP4SPARSE_{name}", raising=False)
    assert "-Werror" not in setup.extension().extra_compile_args
    monkeypatch.setenv("NVFP4SPARSE_WERROR", "1")
    monkeypatch.setenv("NVFP4SPARSE_DEBUG_BUILD", "1")
    flags = setup.extension().extra_compile_args
    assert "-Werror" in flags
    assert flags.index("-O0") > flags.index("-O3")


def test_ptxas_log_check(tmp_path, capsys):
    check = load(ROOT / ".ci" / "check_ptxas.py")
    log, stamp = tmp_path / "gemm.ptxas.log", tmp_path / "gemm.stamp"
    stamp.write_text("nvcc 13 -gencode arch=compute_90a,code=sm_90a\n")
    good = (
        "ptxas info    : Compiling entry function 'nvs_gemm' for 'sm_90a'\n"
        "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Used 168 registers, used 1 barriers\n"
    )
    log.write_text(good)
    assert check.main([tmp_path]) == 0
    assert "nvs_gemm: registers: sm_90a 168" in capsys.readouterr().out
    log.write_text(good.replace("0 bytes spill loads", "16 bytes spill loads"))
    assert check.main([tmp_path]) == 1
    log.write_text(good + "(C7510) wgmma.mma_async instructions are serialized due to ...\n")
    assert check.main([tmp_path]) == 1
    log.write_text("")
    assert check.main([tmp_path]) == 1
    assert check.main([tmp_path / "empty"]) == 1


class TestModule:
    """The module as installed."""

    @pytest.fixture
    def path(self):
        import nvfp4sparse._C

        return nvfp4sparse._C.__file__

    @pytest.fixture
    def binutils(self):
        """Runs a tool of binutils; CI has them."""

        def call(*command):
            if not shutil.which(command[0]) and not os.environ.get("CI"):
                pytest.skip(f"no {command[0]} here")
            return subprocess.run(command, check=True, capture_output=True, text=True).stdout

        return call

    def test_links_libc_alone(self, path, binutils):
        needed = re.findall(r"\(NEEDED\).*\[(.*?)\]", binutils("readelf", "-dW", path))
        allowed = r"(libc|libm|libpthread|libdl|ld-linux-[\w-]+)\.so\.\d"
        assert needed
        assert [name for name in needed if not re.fullmatch(allowed, name)] == []

    def test_exports_its_init_function_alone(self, path, binutils):
        symbols = binutils("nm", "-D", "--defined-only", path).split()[2::3]
        assert symbols == ["PyInit__C"]

    def test_stack_is_not_executable(self, path, binutils):
        headers = binutils("readelf", "-lW", path)
        assert re.search(r"GNU_STACK.* RW ", headers)
        assert "RWE" not in headers

    def test_is_abi3_where_there_is_one(self, path):
        assert path.endswith(".abi3.so") == setup.LIMITED_API

    def test_import_needs_numpy_and_ml_dtypes_only(self):
        code = "import sys, nvfp4sparse; print(*sys.modules)"
        done = subprocess.run(
            [sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True
        )
        optional = {"torch", "cupy", "jax", "matplotlib", "sklearn", "rich", "IPython"}
        assert optional.isdisjoint(done.stdout.split())

    def test_version_is_the_project_s(self):
        import nvfp4sparse

        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        assert nvfp4sparse.__version__ == project["version"]
