# SPDX-License-Identifier: Apache-2.0
"""What no linter checks: sizes, names and heads of files, and nothing of one machine in them."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (".build-backend", ".ci", "src", "cuda", "nvfp4sparse", "tests", "notebooks")
TOP_LEVEL = {
    "setup.py",
    "pyproject.toml",
    "src",
    "cuda",
    "nvfp4sparse",
    "tests",
    "notebooks",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
}
BUILT = {"build", "dist", "venv", "__pycache__"}  # made by tools, ignored by git; *.egg-info too
LIMITS = {  # lines, by folder and suffix
    ("src", ".c"): 300,
    ("src", ".h"): 150,
    ("cuda", ".cu"): 450,
    ("cuda", ".cuh"): 450,
    ("nvfp4sparse", ".py"): 200,
}
FUNCTION_LIMIT = 60
BANNED_STEMS = {"utils", "util", "common", "helpers", "misc"}
# Written in halves, for this file is searched as well.
HALVES = (("ho", "me"), ("ro", "ot"), ("wo", "rk"), ("tm", "p"), ("Us", "ers"))
MACHINE_PATHS = re.compile("/(" + "|".join(map("".join, HALVES)) + ")/")


def files():
    """Text files that belong to the project."""
    found = [path for path in ROOT.iterdir() if path.is_file()]
    for folder in FOLDERS:
        found += [path for path in (ROOT / folder).rglob("*") if path.is_file()]
    skipped = {".so", ".pyc", ".png", ".npz", ".npy", ".bin"}
    hidden = {"__pycache__", ".ipynb_checkpoints"}
    return sorted(p for p in found if p.suffix not in skipped and hidden.isdisjoint(p.parts))


def relative(path):
    return str(path.relative_to(ROOT))


every_file = pytest.mark.parametrize("path", files(), ids=relative)
sources = pytest.mark.parametrize(
    "path",
    [p for p in files() if p.suffix in {".c", ".h", ".cu", ".cuh", ".py"}],
    ids=relative,
)


def test_top_level():
    """The layout is part of the interface; only dotfiles may join it."""
    names = {p.name for p in ROOT.iterdir() if not p.name.startswith(".")}
    unexpected = {n for n in names - TOP_LEVEL - BUILT if not n.endswith(".egg-info")}
    assert unexpected <= {"PKG-INFO", "setup.cfg"}  # an unpacked source distribution's


@every_file
def test_names_no_machine(path):
    found = [line for line in path.read_text().splitlines() if MACHINE_PATHS.search(line)]
    assert found == []


@every_file
def test_name_says_what_it_holds(path):
    assert path.stem.lower() not in BANNED_STEMS


@sources
def test_head(path):
    assert "SPDX-License-Identifier: Apache-2.0" in path.read_text()[:120]


@sources
def test_size(path):
    lines = path.read_text().count("\n")
    assert lines <= LIMITS.get((path.relative_to(ROOT).parts[0], path.suffix), 10**6)


@sources
def test_functions_fit_a_screen(path):
    """60 lines; kernels are excepted, their main loops want to be read in one piece."""
    text = path.read_text()
    if path.suffix == ".py":
        spans = {
            node.name: node.end_lineno - node.lineno + 1
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.FunctionDef)
        }
    elif path.suffix in {".c", ".h"}:
        bodies = re.finditer(r"^(\w.*)\n\{\n(.*?)^\}", text, re.M | re.S)
        spans = {body.group(1): body.group(2).count("\n") + 2 for body in bodies}
    else:
        spans = {}
    assert {name: lines for name, lines in spans.items() if lines > FUNCTION_LIMIT} == {}


@pytest.mark.parametrize("folder", ["src", "cuda"])
def test_no_cplusplus_runtime_and_no_cuda_runtime(folder):
    """C11 and device code: no C++ library, no libcudart, no system CUDA header in C."""
    banned = re.compile(r"#include <(iostream|vector|string|memory|cuda_runtime\w*\.h)>|\bstd::")
    for path in (ROOT / folder).iterdir():
        assert not banned.search(path.read_text()), relative(path)
