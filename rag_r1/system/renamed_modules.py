"""Keeps the old names of modules importable until release `REMOVED_IN`, with a DeprecationWarning.

`renamed_modules.txt` has a line `old new` for each renamed module. `import old` returns the module `new`
itself, so that a class imported under both names is one class. `python -m old` runs `new`; for a module that
has moved into a clone's examples it prints the new name. If the name of an old module is now that of a
package, the package forwards the names of the module (`forwarding_getattr`).
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from types import CodeType, ModuleType
from typing import Any

#: The release in which the old names stop working.
REMOVED_IN = "0.2"
#: The code that `python -m old` runs, for a module of this package and for one that only a clone has.
_RUN = "import runpy; runpy.run_module({new!r}, run_name='__main__', alter_sys=True)"
_MOVED = "import sys; sys.exit('python -m {old} is now, in a clone of the repository: python -m {new}')"


@cache
def renamed_modules() -> dict[str, str]:
    """Return the new dotted name of each old one."""
    text = files("rag_r1.system").joinpath("renamed_modules.txt").read_text(encoding="utf-8")
    return dict(line.split() for line in text.splitlines() if line)


def _warn(old: str, new: str) -> None:
    """Issue the DeprecationWarning for the import of an old name. `new` completes the sentence `old is now
    ...`."""
    text = f"{old} is now {new}; the old name stops working in rag_r1 {REMOVED_IN}"
    warnings.warn(text, DeprecationWarning, stacklevel=3)


class _Loader(importlib.abc.InspectLoader):
    """Loads the new module under its old name."""

    def __init__(self, new: str):
        self.new = new

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        _warn(spec.name, self.new)
        module = importlib.import_module(self.new)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # importlib has replaced it by the spec of the old name

    def get_source(self, fullname: str) -> str:
        """Return the source that `python -m old` runs."""
        text = _MOVED if self.new.startswith("examples.") else _RUN  # a wheel does not contain examples
        return text.format(old=fullname, new=self.new)

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.get_source(fullname), fullname, "exec")

    def is_package(self, fullname: str) -> bool:
        return False


class _Finder(importlib.abc.MetaPathFinder):
    """Finds modules by their old names.

    It must come before all other finders. `rag_r1.limited`, for example, is now the package `rag_r1.sandbox`:
    the ordinary finder would find `rag_r1.limited.worker` in it, and load that module a second time.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        new = renamed_modules().get(fullname) if fullname.startswith("rag_r1.") else None
        if new is None or new.startswith(f"{fullname}."):  # a package, which forwards the names itself
            return None
        return importlib.machinery.ModuleSpec(fullname, _Loader(new))


def install() -> None:
    """Make the old names importable in this process."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def forwarding_getattr(package: str, *modules: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package that has the name of an old module, whose contents are now in
    these modules. Reading one of their names issues the DeprecationWarning."""

    def getattr_of_package(name: str) -> Any:
        for new in () if name.startswith("__") else modules:
            module = importlib.import_module(new)
            if hasattr(module, name):
                _warn(f"{package}.{name}", f"in {new}")
                return getattr(module, name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return getattr_of_package
