"""Reads records into the cache (cache.py); of files that have grown, only the appended part is read.

If a run was interrupted and resumed, an episode may have been played twice. Only its last record counts, so a
record can replace one in another file of the run. Therefore, if a file has shrunk, was replaced or has
disappeared, all files of its run are read anew. One thread reads batches of rows
(record_files/batches.py), while another one writes the batch before.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from rag_r1.explorer.cache import Cache
from rag_r1.explorer.record_files.batches import Batch, BatchReader, PendingFile, Reading
from rag_r1.explorer.record_files.file_state import FileState, is_replaced
from rag_r1.explorer.record_files.sources import RecordFile, Sources
from rag_r1.explorer.schema import FILE_COLUMNS, arrow_schema
from rag_r1.explorer.texts import REMOVE_ORPHANS, TextTables

#: A run counts as growing for this number of seconds after its last write.
_GROWING_S = 60.0
#: Deletes the older records of every episode of which a record was read from a `tid` on.
_REMOVE_REPEATED = """
    DELETE FROM trajectories WHERE tid IN (
        SELECT tid FROM (
            SELECT tid, row_number() OVER (
                PARTITION BY run, kind, split, step, id ORDER BY tid DESC) AS recency
            FROM trajectories
            WHERE id <> '' AND id IN (SELECT id FROM trajectories WHERE tid >= ?))
        WHERE recency > 1)"""


class Store:
    """The records below some paths, in their cache.

    Raises OSError if a path does not exist, and duckdb.Error if the cache cannot be used.
    """

    def __init__(self, paths: Sequence[Path]):
        #: Finds the record files.
        self.sources = Sources(paths)
        #: The progress of a refresh.
        self.reading = Reading()
        #: Grows with every change of the records.
        self.version = 0
        self._lock = threading.Lock()
        self.cache = Cache(self.sources.paths)
        try:
            self._load()
        except BaseException:
            self.cache.close()
            raise

    def close(self) -> None:
        """Close the cache."""
        self.cache.close()

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple]:
        """Return the rows of a query. Raises duckdb.Error."""
        with self.cache.connection() as connection:
            return connection.execute(sql, list(parameters)).fetchall()

    @property
    def title(self) -> str:
        """The name of the deepest folder that contains all paths."""
        return self.sources.common.name

    def files(self) -> list[FileState]:
        """Return the states of the files that have been read, or are being read."""
        return list(self._files.values())

    def is_growing(self, run: str) -> bool:
        """Return whether a file of the run was written to in the last minute."""
        newest = max((state.mtime_ns for state in self.files() if state.run == run), default=0)
        return time.time() - newest / 1e9 < _GROWING_S

    def rebuild(self, generation: int) -> None:
        """Replace the cache by an empty one, so that the next `refresh` reads everything anew.

        Nothing happens if the cache of this generation has been replaced already.
        """
        with self._lock:
            if self.cache.generation == generation:
                self.cache.rebuild()
                self._load()

    def refresh(self, stop: threading.Event | None = None) -> bool:
        """Read what has changed; returns whether anything has.

        When `stop` is set, the refresh ends after the present batch; the store must then be closed.
        """
        with self._lock:
            sources = {str(source.path): source for source in self.sources.files()}
            has_changed = self._drop_outdated(sources)
            pending = [file for source in sources.values() if (file := self._unread(source)) is not None]
            if not pending:
                return has_changed
            pending.sort(key=lambda file: (file.status.st_mtime_ns, file.state.path))
            self.reading = Reading(len(pending), 0, sum(file.unread_bytes for file in pending))
            try:
                self._read_pending(pending, stop)
            except BaseException:
                self._load()  # forget the rows that were read but not written
                raise
            finally:
                self.reading = Reading()
            return True

    def _load(self) -> None:
        """Load the states of the files and the next free numbers from the cache."""
        columns = ", ".join(f'"{name}"' for name in FILE_COLUMNS)
        rows = self.query(f"SELECT {columns} FROM files")
        self._files = {row[1]: FileState(*row[:-1], faults=list(row[-1])) for row in rows}
        self._next_file_id = 1 + max((state.file_id for state in self._files.values()), default=0)
        self._texts = TextTables()
        self._next_tid = 1 + self.query("SELECT coalesce(max(tid), 0) FROM trajectories")[0][0]
        self._bump()

    def _bump(self) -> None:
        """Increase the version, by the clock, so that it also exceeds the versions of earlier processes."""
        self.version = max(self.version + 1, time.time_ns() // 1_000_000)

    def _drop_outdated(self, sources: dict[str, RecordFile]) -> bool:
        """Delete the rows of runs that have a replaced file; returns whether there are any such runs."""
        runs = {state.run for path, state in self._files.items() if is_replaced(state, sources.get(path))}
        outdated = [state for state in self._files.values() if state.run in runs]
        if outdated:
            ids = [state.file_id for state in outdated]
            with self.cache.connection() as connection:
                connection.begin()
                connection.execute("DELETE FROM trajectories WHERE file_id IN (SELECT unnest(?))", [ids])
                _remove_orphans(connection)
                connection.execute("DELETE FROM files WHERE file_id IN (SELECT unnest(?))", [ids])
                connection.commit()
            for state in outdated:
                del self._files[state.path]
            self._bump()
        return bool(outdated)

    def _unread(self, source: RecordFile) -> PendingFile | None:
        """Return the state and the present status of a file if it is new or has grown, else None."""
        try:
            status = source.path.stat()
        except OSError:
            return None
        path = str(source.path)
        if (state := self._files.get(path)) is None:
            state = FileState(self._next_file_id, path, source.run, str(source.folder), source.kind)
            self._next_file_id += 1
            self._files[path] = state
        elif state.size == status.st_size:
            return None
        return PendingFile(state, status)

    def _read_pending(self, pending: Sequence[PendingFile], stop: threading.Event | None) -> None:
        """Read files and write their rows in batches; each batch is written while the next one is read."""
        with ThreadPoolExecutor(1, thread_name_prefix="explorer-writer") as writer:
            writing: Future[None] | None = None
            for batch in BatchReader(self._next_tid, self.reading).batches(pending):
                if writing is not None:
                    writing.result()
                self._next_tid += len(batch.rows)
                writing = writer.submit(self._write, batch)
                if stop is not None and stop.is_set():
                    break
            if writing is not None:
                writing.result()

    def _write(self, batch: Batch) -> None:
        """Write a batch in one transaction."""
        rows, texts = batch.rows, self._texts.new_rows(batch.rows)
        names = ", ".join(f'"{name}"' for name in FILE_COLUMNS)
        placeholders = ", ".join("?" for _ in FILE_COLUMNS)
        with self.cache.connection() as connection:
            connection.begin()
            if rows:
                trajectories = pa.Table.from_pylist(rows, schema=arrow_schema("trajectories"))
                for table, new_rows in {"trajectories": trajectories, **texts}.items():
                    connection.register("new_rows", new_rows)
                    connection.execute(f"INSERT INTO {table} BY NAME SELECT * FROM new_rows")
                    connection.unregister("new_rows")
                if connection.execute(_REMOVE_REPEATED, [rows[0]["tid"]]).fetchall() != [(0,)]:
                    _remove_orphans(connection)
            for state in batch.states:
                values = [getattr(state, name) for name in FILE_COLUMNS]
                connection.execute(f"INSERT OR REPLACE INTO files ({names}) VALUES ({placeholders})", values)
            connection.commit()
        self._bump()


def _remove_orphans(connection: duckdb.DuckDBPyConnection) -> None:
    """Delete the searched texts of trajectories that have been deleted."""
    for statement in REMOVE_ORPHANS:
        connection.execute(statement)
