"""Reads the learning rates from a `torch.save` file in a sandbox worker, without torch.

Such a file is a zip archive that contains a pickle. Every object in it that is not a plain value is replaced
by a placeholder, so that nothing named in the file is imported or called, except OrderedDict, and no tensor
is read. A worker is needed because a pickle of a few bytes can request gigabytes (a memo entry with a high
number), or contain nested tuples whose hash takes forever.
"""

from __future__ import annotations

import pickle
import zipfile
from collections import OrderedDict
from typing import Any

from rag_r1.sandbox.job_paths import path_of


def base_rates(path: str) -> list[float]:
    """A job: returns the learning rates with which the scheduler in a file was created; [] if there is no
    scheduler.

    `path` comes from `path_argument`. Raises ValueError, and OSError if the file cannot be opened.
    """
    values = plain_values(path_of(path))
    try:
        scheduler = values.get("lr_scheduler") or {}
        return [float(rate) for rate in scheduler.get("base_lrs", ())]
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"its scheduler has no list of rates ({type(error).__name__})") from None


class _Placeholder:
    """Stands for any object that is not a plain value; it accepts all calls of the unpickler and ignores
    them."""

    def _ignore(self, *args: Any, **kwargs: Any) -> None:
        """Accept a call of the unpickler, which creates or fills the object."""

    __init__ = __setstate__ = __setitem__ = append = extend = _ignore


class _PlainUnpickler(pickle.Unpickler):
    """Loads numbers, texts, lists and dictionaries, and calls nothing that the file names but OrderedDict."""

    def find_class(self, module: str, name: str) -> type:
        return OrderedDict if (module, name) == ("collections", "OrderedDict") else _Placeholder

    def persistent_load(self, pid: Any) -> _Placeholder:
        return _Placeholder()


def plain_values(path: str) -> Any:
    """Return the plain values in a file, with placeholders for all other objects. Raises ValueError if it is
    not a file of `torch.save`, OSError if it cannot be opened, and MemoryError."""
    try:
        with zipfile.ZipFile(path) as archive:
            name = next(name for name in archive.namelist() if name.endswith("data.pkl"))
            with archive.open(name) as file:
                return _PlainUnpickler(file).load()
    except (OSError, MemoryError):
        raise
    except Exception as error:  # a broken pickle may raise anything
        raise ValueError(f"it is not a file of torch.save ({type(error).__name__})") from error
