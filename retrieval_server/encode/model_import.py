"""Imports model libraries: one at a time, and without Python's garbage collector."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

#: Held while transformers loads a model. It replaces methods of its own classes meanwhile, and puts back what
#: it found. Of two threads at once the second finds, and puts back, what the first has put there: the process
#: then ties no weights any more, and models that share some load with random ones (transformers 5.10,
#: initialization.no_tie_weights).
model_load_lock = threading.Lock()


@contextmanager
def import_library(library: str) -> Iterator[None]:
    """Import `library`, and what it brings, within this; it does nothing if the library is there already.

    sentence-transformers makes 800,000 objects, nearly all of them for good. The collector goes through them
    several times while they come, again at each full collection of a server that runs for days, and once more
    at the end of the process. Here it waits, and afterwards leaves them alone, which saves about two of eight
    seconds of CPU for a process that loads a model.
    """
    if library in sys.modules:
        yield
        return
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collects:
            gc.enable()
