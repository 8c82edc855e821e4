"""Lists the OpenMP runtimes that a process has loaded; `benchmarks/openmp_runtimes.py` shows them.

Several runtimes in one process, such as torch's and FAISS's, each have their own threads, which can take the
cores from each other.
"""

from __future__ import annotations

from pathlib import Path

_MAPS = "/proc/{}/maps"
#: Prefixes of the file names of OpenMP runtimes: GNU's, LLVM's and Intel's.
_RUNTIMES = ("libgomp", "libomp", "libiomp")


def openmp_runtimes(process: int | str = "self") -> list[str]:
    """Return the files of the OpenMP runtimes that a process has loaded, sorted by path. Linux only.

    Raises OSError if the process does not exist or belongs to another user.
    """
    maps = Path(_MAPS.format(process)).read_text(encoding="utf-8", errors="replace")
    # The sixth column is the file; other memory has only five.
    paths = {entry[5] for line in maps.splitlines() if len(entry := line.split(maxsplit=5)) == 6}
    return sorted(path for path in paths if Path(path).name.startswith(_RUNTIMES))
