"""What a process that loads models needs: a pause of the garbage collector during imports, and a lock."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

#: Held while transformers loads a model. Loading temporarily replaces methods of its classes. If two threads
#: load at once, the second one finds the replacements of the first and restores these at the end. From then
#: on the process does not tie weights any more, and models with shared weights get random ones (transformers
#: 5.10, initialization.no_tie_weights).
model_load_lock = threading.Lock()


@contextmanager
def pause_collector(library: str) -> Iterator[None]:
    """Pause the garbage collector in the block, which imports `library`.

    Importing sentence-transformers creates 800,000 objects, most of which stay until the end of the process.
    The collector would traverse them several times during the import, at each later full collection, and at
    the end. Here it pauses during the import, and then permanently ignores all objects that exist by then,
    not only the library's. This saves about two of eight seconds of CPU in a process that loads a model. If
    the library is already imported, nothing changes.
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
