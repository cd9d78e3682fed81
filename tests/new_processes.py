# SPDX-License-Identifier: Apache-2.0
"""Scripts of cases that each want a process where nothing has used CUDA yet.

Such a script has a tuple CASES and prints a JSON object of case to complaint (process_cases.run).
It imports PyTorch, so only its text is looked at here, where tests are collected.
"""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import nvfp4sparse

HERE = Path(__file__).parent


def case_names(script):
    """The names in the CASES of a script in this folder."""
    return [
        element.id
        for node in ast.parse((HERE / script).read_text()).body
        if isinstance(node, ast.Assign) and node.targets[0].id == "CASES"
        for element in node.value.elts
    ]


def complaints_of(script):
    """Run the script and return what each of its cases complained of, "" for nothing."""
    root = str(Path(nvfp4sparse.__file__).parents[1])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / script)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
