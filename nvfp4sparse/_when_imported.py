# SPDX-License-Identifier: Apache-2.0
"""Running something once a module has been imported, without importing it.

How the operators of nvfp4sparse.torch come to exist whenever PyTorch does, before or after this
package, while a program without PyTorch never pays for it.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Finder:
    """Stands first in sys.meta_path, lets the others find, and watches some names being loaded."""

    def __init__(self) -> None:
        self.actions: dict[str, Callable[[], None]] = {}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in self.actions:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find and finder is not self else None
            if spec is not None:
                self._watch(name, spec)
                return spec
        return None

    def _watch(self, name: str, spec: ModuleSpec) -> None:
        loader = spec.loader
        load = getattr(loader, "exec_module", None)
        if load is None:
            return

        def exec_module(module: ModuleType) -> None:
            load(module)
            self._done(name)

        try:
            loader.exec_module = exec_module  # of this one loader object, which belongs to the spec
        except AttributeError:
            return

    def _done(self, name: str) -> None:
        action = self.actions.pop(name, None)
        if not self.actions and self in sys.meta_path:
            sys.meta_path.remove(self)
        if action is not None:
            _run(name, action)


_FINDER = _Finder()


def _run(name: str, action: Callable[[], None]) -> None:
    try:
        action()
    except Exception as error:  # must not keep somebody else's module from importing
        warnings.warn(f"nvfp4sparse: after the import of {name}: {error!r}", stacklevel=2)


def when_imported(name: str, action: Callable[[], None]) -> None:
    """Run `action` after the module `name` is imported: now if it is, else when that happens."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    if module is not None and not getattr(spec, "_initializing", False):
        _run(name, action)
        return
    if not _FINDER.actions:
        sys.meta_path.insert(0, _FINDER)
    _FINDER.actions[name] = action


def _operators() -> None:
    importlib.import_module("nvfp4sparse.torch")


def _substitution() -> None:
    importlib.import_module("nvfp4sparse.torch").substitute_in_compiled_code()


def register_operators() -> None:
    """Register PyTorch's operators, now or when PyTorch is imported."""
    when_imported("torch", _operators)
    when_imported("torch._dynamo", _substitution)
