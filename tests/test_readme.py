# SPDX-License-Identifier: Apache-2.0
"""README.md: its two commands are where tools look for them, and its examples run."""

import os
import re
import shlex
from pathlib import Path

import pytest

import nvfp4sparse

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)
FRAMEWORKS = ("torch", "cupy", "jax")


def command_after(marker):
    """The text of the bash block that follows <!-- marker -->."""
    found = re.search(rf"<!-- {marker} -->\n```bash\n(.*?)```", README.read_text(), re.S)
    assert found, f"no ```bash block right after <!-- {marker} -->"
    return found.group(1).strip()


@pytest.mark.parametrize("marker", ["demo-command", "test-command"])
def test_command_is_found(marker):
    assert "python -m" in command_after(marker)


def test_commands_name_what_exists():
    assert "python -m nvfp4sparse" in command_after("demo-command")
    words = shlex.split(command_after("test-command"))
    assert "pytest" in words


def framework_of(example):
    return next((name for name in FRAMEWORKS if f"import {name}" in example), "numpy")


@pytest.mark.filterwarnings("ignore")  # of the frameworks
@pytest.mark.parametrize("example", EXAMPLES, ids=framework_of)
def test_example_runs(example):
    framework = framework_of(example)
    if framework != "numpy":
        module = pytest.importorskip(framework)
        if "cuda" in example or framework == "cupy":
            available = module.cuda.is_available()
            if not available and os.environ.get("NVFP4SPARSE_REQUIRE_CUDA") != "1":
                pytest.skip(f"{framework} sees no CUDA device")
    exec(compile(example, str(README), "exec"), {})


def test_every_framework_has_an_example():
    assert {"numpy", "torch", "cupy"} <= set(map(framework_of, EXAMPLES))


def test_names_of_the_package_exist():
    names = set(re.findall(r"\b(?:nvfp4sparse|nvs)\.([a-z_]+)", " ".join(EXAMPLES)))
    assert names
    assert {name for name in names if not hasattr(nvfp4sparse, name)} == set()


def test_environment_variables_are_those_of_the_code():
    named = set(re.findall(r"NVFP4SPARSE_[A-Z_]+", README.read_text()))
    used = set()
    for pattern in ("setup.py", ".build-backend/*.py", "src/*.c", "nvfp4sparse/*.py"):
        for path in ROOT.glob(pattern):
            used |= set(re.findall(r"NVFP4SPARSE_[A-Z_]*[A-Z]", path.read_text()))
    assert used <= named


def test_files_it_names_exist():
    """The way of a call and the layout are told by file names."""
    names = re.findall(r"`((?:src|cuda|nvfp4sparse|tests|notebooks)/[\w./]+)`", README.read_text())
    assert names
    assert [name for name in names if not (ROOT / name).exists()] == []
