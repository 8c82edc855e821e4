"""Refuses a parquet file whose rows take too much memory or time, before this process reads them.

`check_parquet` has a worker try the file out (parquet_trial.py), once for each file and choice of columns. A
file that has passed is read by the caller, at most BATCH_ROWS rows at a time.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rag_r1.io.errors import DataError
from rag_r1.sandbox.worker_pool import JobError, JobLimits, LimitError, WorkerPool

#: Rows that are read at a time.
BATCH_ROWS = 1024
_MEMORY_BYTES = 4 << 30
#: Seconds of processor time for any file, and bytes of the file for one second more.
_CPU_S, _BYTES_PER_CPU_S = 20.0, 2 << 20
_REMEDY = "leave these rows or columns out, or take the file from its source again"
_workers = WorkerPool(1)
#: Files that have passed: path, size, time of the last change, columns.
_checked_files: set[tuple[object, ...]] = set()


def check_parquet(path: str | Path, columns: Sequence[str]) -> None:
    """Raises DataError, with file, row group, column and remedy, if columns of a file take too much
    to read, and OSError if there is no file. A file that is not parquet passes."""
    status = os.stat(path)
    real_path = os.path.realpath(path)
    key = (real_path, status.st_size, status.st_mtime_ns, *columns)
    if key in _checked_files:
        return
    limits = JobLimits(_CPU_S + status.st_size / _BYTES_PER_CPU_S, _MEMORY_BYTES, 1 << 20)
    job = [os.fsencode(real_path).decode("latin-1"), list(columns), BATCH_ROWS]
    try:
        _workers.call("rag_r1.sandbox.parquet_trial:try_out", job, limits)
    except (LimitError, JobError) as error:
        raise DataError(f"{path}: {error}: {_REMEDY}") from None
    _checked_files.add(key)
