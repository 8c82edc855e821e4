"""Loads a custom back end, which the user names as `--backend my_module:open`.

The function is called with the index folder and its manifest, and returns a `Backend`. The rows that this
finds become documents of the index. Only the command line can name a function, never a manifest, so that an
index folder from elsewhere cannot run code.

    # my_search.py
    from retrieval_server.folder.manifest import PASSAGES
    from retrieval_server.folder.passages import PassageStore
    from retrieval_server.search.backends import Backend, Hit

    class Substring(Backend):
        def __init__(self, texts): self.texts = texts
        def prepare(self, queries): return [query.lower() for query in queries]
        def find(self, prepared, topk):
            return [[Hit(row, 1.0) for row, text in enumerate(self.texts) if word in text][:topk]
                    for word in prepared]

    def open(folder, manifest):
        return Substring([passage.contents.lower() for passage in PassageStore(folder / PASSAGES)])
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

from retrieval_server.errors import UserError
from retrieval_server.folder.manifest import Manifest
from retrieval_server.search.backends import Backend


def import_factory(path: str) -> Callable[[Path, Manifest], object]:
    """Return the function at `module:function`. Raises UserError if it cannot be imported.

    Modules are also found in the working directory, which stays at the end of `sys.path`.
    """
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise UserError(f"--backend {path}: write it as package.module:function.")
    working_directory = os.getcwd()
    if working_directory not in sys.path:  # at the end, so that a file here cannot shadow a module
        sys.path.append(working_directory)
    try:
        return getattr(importlib.import_module(module_name), name)
    except ModuleNotFoundError as error:
        remedy = "Correct the name, install the package, or start the server in the folder of your module."
        raise UserError(f"--backend {path}: there is no module {error.name}. {remedy}") from error
    except Exception as error:
        raise _failure(path, error) from error


def open_custom_backend(path: str, folder: Path, manifest: Manifest) -> Backend:
    """Return the back end that `module:function` opens. Raises UserError if the function fails."""
    factory = import_factory(path)
    try:
        backend = factory(folder, manifest)
    except Exception as error:
        raise _failure(path, error) from error
    if not isinstance(backend, Backend):
        raise UserError(
            f"--backend {path} gives {type(backend).__name__}; it must give a "
            "retrieval_server.search.backends.Backend."
        )
    return backend


def _failure(path: str, error: Exception) -> UserError:
    """Return the error for a module or function of the user that raises an exception."""
    return UserError(f"--backend {path} raises {type(error).__name__}: {error}. Correct the function.")
