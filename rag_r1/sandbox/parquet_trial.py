"""Reads a parquet file in a worker, to find out whether its rows expand to too much data.

A kilobyte of parquet can contain one long text that a million rows refer to, or a list of a billion nulls,
and its metadata need not be true. So the columns are actually read here, each column of each row group
separately, in batches of the size that the caller will use, under the worker's limits.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rag_r1.io.errors import DataError
from rag_r1.sandbox.job_paths import path_of

#: Most columns of a file, where each leaf of a struct counts as a column.
MAX_COLUMNS = 10_000
#: Most bytes and values in a batch of one column. As Python objects, this many values take about 200 MB.
MAX_BATCH_BYTES, MAX_BATCH_VALUES = 512 << 20, 2_000_000
#: A file may expand to _FREE_BYTES, and additionally to _MAX_EXPANSION times its size.
_FREE_BYTES = 1 << 30
_MAX_EXPANSION = 1000


def try_out(path: str, columns: Sequence[str], batch_rows: int) -> None:
    """A job: reads those of the columns that the file has, `batch_rows` rows at a time.

    `path` comes from `path_argument`. Raises DataError if reading takes too much. A broken file passes if its
    readable part does, since its actual reader reports what is wrong.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    pa.set_cpu_count(1)
    name = path_of(path)
    bytes_left = _FREE_BYTES + _MAX_EXPANSION * os.path.getsize(name)
    try:
        with pq.ParquetFile(name, buffer_size=1 << 20, pre_buffer=False) as file:
            if (count := file.metadata.num_columns) > MAX_COLUMNS:
                raise DataError(f"it has {count:,} columns, more than {MAX_COLUMNS:,}")
            present = [column for column in columns if column in file.schema_arrow.names]
            for group in range(file.metadata.num_row_groups):
                for column in present:
                    bytes_left -= _check_column(file, group, column, batch_rows, bytes_left)
    except MemoryError:
        raise DataError("its metadata takes too much memory") from None
    except (pa.ArrowException, OSError):
        return


def _check_column(file: Any, group: int, column: str, batch_rows: int, bytes_left: int) -> int:
    """Return the expanded bytes of a column in a row group; 0 if it is broken. Raises DataError, which names
    the row group and the column."""
    import pyarrow as pa

    location = f"row group {group}, column {column!r}"
    try:
        return _unpacked_bytes(file, group, column, batch_rows, bytes_left)
    except DataError as error:
        raise DataError(f"{location}: {error}") from None
    except MemoryError:
        raise DataError(f"{location}: a batch of {batch_rows:,} rows takes too much memory") from None
    except (pa.ArrowException, OSError):
        return 0


def _unpacked_bytes(file: Any, group: int, column: str, batch_rows: int, bytes_left: int) -> int:
    """Return the expanded bytes of a column in a row group. Raises DataError if a batch is too large, or the
    column has more than `bytes_left`."""
    total = 0
    for batch in file.iter_batches(batch_rows, row_groups=[group], columns=[column], use_threads=False):
        parts = list(_parts(batch.columns))
        size = batch.nbytes + sum(map(_referred_bytes, parts))
        total += size
        if size > MAX_BATCH_BYTES:
            raise DataError(f"{batch.num_rows:,} rows take more than {MAX_BATCH_BYTES >> 20} MiB")
        if sum(map(len, parts)) > MAX_BATCH_VALUES:
            raise DataError(f"{batch.num_rows:,} rows have more than {MAX_BATCH_VALUES:,} values")
        if total > bytes_left:
            limit = f"{_FREE_BYTES >> 30} GiB and {_MAX_EXPANSION:,} times its size"
            raise DataError(f"the rows up to here take more than {limit}")
    return total


def _parts(arrays: Iterable[Any]) -> Iterator[Any]:
    """Yield Arrow arrays, and those inside their lists and structs. An extension array, such as that of a
    tensor of fixed shape, is replaced by its storage, which may be a list."""
    import pyarrow.types as kinds

    for array in arrays:
        array = getattr(array, "storage", array)
        yield array
        kind = array.type
        if kinds.is_struct(kind):
            yield from _parts(array.flatten())
        elif kinds.is_map(kind):
            yield from _parts([array.keys, array.items])
        elif kinds.is_nested(kind):
            yield from _parts([array.flatten()])


def _referred_bytes(array: Any) -> int:
    """Return the bytes of the texts to which the rows of a dictionary array refer; 0 for other arrays. A text
    counts once for each row, since each row becomes a Python object. Files with Arrow's schema can have such
    arrays."""
    import pyarrow.compute as pc
    import pyarrow.types as kinds

    if not kinds.is_dictionary(array.type) or kinds.is_primitive(array.type.value_type):
        return 0
    lengths = pc.binary_length(pc.cast(array.dictionary, "large_binary"))  # of texts, bytes and views of them
    return pc.sum(lengths.take(array.indices)).as_py() or 0
