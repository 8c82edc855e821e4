"""Refuses a parquet file whose rows take too much memory or time, before this process reads them.

`check_parquet` has a worker try the file out (parquet_trial.py), once for each file and choice of columns.
After that the caller reads the file itself, at most BATCH_ROWS rows at a time.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rag_r1.io.errors import DataError
from rag_r1.sandbox.job_paths import path_argument
from rag_r1.sandbox.worker_pool import JobError, JobLimits, LimitError, WorkerPool

#: Number of rows that are read at a time.
BATCH_ROWS = 1024
#: Address space of the worker, for pyarrow and one column's batch, of at most 512 MiB, with what it unpacks.
_MEMORY_BYTES = 4 << 30
#: Processor time allowed for any file, in seconds, and bytes of the file for which another second is added.
_CPU_S, _BYTES_PER_CPU_S = 20.0, 2 << 20
_REMEDY = "leave these rows or columns out, or take the file from its source again"
_workers = WorkerPool(max_workers=1)  # several could together take several times the memory
#: Checked files that have passed, each as its path, size, modification time and columns.
_checked_files: set[tuple[object, ...]] = set()


def check_parquet(path: str | Path, columns: Sequence[str]) -> None:
    """Check that reading these columns takes neither too much memory nor too much time.

    Raises DataError, with the file and the remedy, if it takes too much. The message names the row group and
    the column, too, unless the job as a whole exceeds its limits or the file has too many columns. Raises
    OSError if there is no file or no worker can be started, and RuntimeError if the interpreter shuts down. A
    file that is not parquet passes.
    """
    status = os.stat(path)
    real_path = os.path.realpath(path)
    key = (real_path, status.st_size, status.st_mtime_ns, *columns)
    if key in _checked_files:
        return
    cpu_s = _CPU_S + status.st_size / _BYTES_PER_CPU_S
    limits = JobLimits(cpu_s, _MEMORY_BYTES, answer_bytes=1 << 20)  # the answer is None or an error
    job = [path_argument(real_path), list(columns), BATCH_ROWS]
    try:
        _workers.call("rag_r1.sandbox.parquet_trial:try_out", job, limits)
    except (LimitError, JobError) as error:
        raise DataError(f"{path}: {error}: {_REMEDY}") from None
    _checked_files.add(key)
