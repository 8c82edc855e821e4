"""Resolves import paths in the configuration, such as `package.module:function`.

The module is searched for where Python searches: among the installed packages, on PYTHONPATH, and in the
folder from which the command was started (`add_working_directory`). Importing a module runs its code, so only
trusted modules should be named. An error raised by the import becomes an ImportPathError with the reason and
the remedy.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any


class ImportPathError(ValueError):
    """An import path cannot be resolved. The message gives the reason, and `remedy` says what to do."""

    def __init__(self, message: str, remedy: str):
        super().__init__(message)
        self.remedy = remedy


def add_working_directory() -> None:
    """Append the working directory to this process's module search path.

    veRL's processes do not need this, since `python -m` and Ray's workers search there anyway.
    """
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)


def import_object(path: str) -> Any:
    """Return the object at `module:name`, after importing its module. Raises ImportPathError."""
    module_name, _, name = path.partition(":")
    if not module_name or not name or module_name.startswith("."):  # a relative path has no package here
        remedy = "write it as package.module:name, for example my_rewards:brevity"
        raise ImportPathError(f"{path!r} is not an import path", remedy)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing_module = error.name or ""
        if module_name == missing_module or module_name.startswith(f"{missing_module}."):
            raise _not_found(path, module_name) from error
        raise _broken(path, module_name, error) from error
    except Exception as error:  # the module's own code runs here, and may raise anything
        raise _broken(path, module_name, error) from error
    try:
        return getattr(module, name)
    except AttributeError as error:
        names = ", ".join(sorted(key for key in vars(module) if not key.startswith("_"))[:20])
        raise ImportPathError(
            f"cannot import {path!r}: {getattr(module, '__file__', module_name)} has no {name!r}",
            f"use one of {names}" if names else "define it there",
        ) from error
    except Exception as error:  # raised by the module's own `__getattr__`, which may import another one
        raise _broken(path, module_name, error) from error


def _not_found(path: str, module_name: str) -> ImportPathError:
    """Return the error for a module that does not exist."""
    package, dot, _ = module_name.partition(".")
    file = f"{module_name.replace('.', os.sep)}.py"
    python_path = os.environ.get("PYTHONPATH") or "which is not set"
    return ImportPathError(
        f"cannot import {path!r}: there is no module {module_name!r}; {file} was looked for in {Path.cwd()}, "
        f"on PYTHONPATH ({python_path}) and in the installed packages",
        f"start from the folder that holds {package if dot else file}, or put that folder on PYTHONPATH",
    )


def _broken(path: str, module_name: str, error: Exception) -> ImportPathError:
    """Return the error for a module whose import raised `error`."""
    try:
        spec = importlib.util.find_spec(module_name)
    except Exception:  # raised for a package that cannot be imported
        spec = None
    origin = spec.origin if spec is not None and spec.origin else module_name
    missing_module = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    # A missing part of the module's own package is a fault in its files, not something to install.
    is_foreign = missing_module not in ("", module_name.partition(".")[0])
    return ImportPathError(
        f"cannot import {path!r}: {origin} raises {type(error).__name__}: {error}",
        f"install {missing_module}, which {origin} needs" if is_foreign else f"correct {origin}",
    )
