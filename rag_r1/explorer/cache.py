"""Opens the cache of the explorer, a DuckDB file with the records that have been read.

There is a file for each set of paths in $XDG_CACHE_HOME/rag-r1/explorer (default ~/.cache). Only its owner
can read it, and it may be deleted at any time. A file is used by one process at a time. A second `view` of
the same paths uses a private file in a temporary folder, and so does a process that cannot write into the
cache folder. A file that is broken, or belongs to another version, is deleted, since everything in it can be
read again.

DuckDB may neither open other files (`enable_external_access`) nor install or load extensions. The texts that
are searched are in separate tables and divided into parts (texts.py), because each thread of DuckDB unpacks
2,048 rows at a time. Row groups are small, because they are the units by which threads share the work.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import duckdb

from rag_r1.explorer.schema import TABLES
from rag_r1.runs.lock import hold_lock

#: Must be increased whenever rows are made in another way from the same records.
_FORMAT = 4
#: DuckDB's memory limit, and the size at which its log is written into the file.
_MEMORY_LIMIT, _CHECKPOINT_THRESHOLD = "140MB", "64MB"
_ROW_GROUP_ROWS = 4096
#: Errors that mean that the file is broken (see `is_broken`).
_BROKEN = (duckdb.IOException, duckdb.InternalException, duckdb.FatalException, duckdb.SerializationException)


class _BusyError(Exception):
    """Raised if another process uses the cache of the same paths."""


class Cache:
    """The open cache of some paths, which must be closed. Each thread needs its own `connection()`. Raises
    duckdb.Error or OSError if not even an empty file can be opened."""

    def __init__(self, paths: Sequence[Path]):
        self._resources = ExitStack()
        #: Number of times that the cache has been rebuilt.
        self.generation = 0
        try:
            #: The database file.
            self.file = self._database_path(_key(paths))
            try:
                self._database = _open(self.file)
            except (duckdb.Error, OSError, UnicodeDecodeError):
                self._delete_files()
                self._database = _open(self.file)
        except BaseException:
            self._resources.close()
            raise
        self._resources.callback(lambda: self._database.close())  # `rebuild` replaces the database

    def connection(self) -> duckdb.DuckDBPyConnection:
        """Open a new connection to the cache."""
        connection = self._database.cursor()
        connection.execute("USE cache")
        return connection

    def rebuild(self) -> None:
        """Replace the file by an empty one. Connections that are open fail from then on."""
        self.generation += 1
        self._database.close()
        self._delete_files()
        self._database = _open(self.file)

    def close(self) -> None:
        """Close the file, and remove it if it is private."""
        self._resources.close()

    def _database_path(self, key: str) -> Path:
        """Lock and return the file in the user's cache folder.

        If it is in use, or the folder cannot be written, a private file is returned instead.
        """
        folder = cache_folder()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.chmod(0o700)
            self._resources.enter_context(hold_lock(folder, _BusyError(), name=f"{key}.lock"))
            return folder / f"{key}.duckdb"
        except (_BusyError, OSError):
            private = Path(tempfile.mkdtemp(prefix="rag-r1-explorer-"))
            self._resources.callback(shutil.rmtree, private, ignore_errors=True)
            return private / f"{key}.duckdb"

    def _delete_files(self) -> None:
        """Delete the database and its log."""
        for file in (self.file, self.file.with_name(f"{self.file.name}.wal")):
            file.unlink(missing_ok=True)


def is_broken(error: duckdb.Error) -> bool:
    """Return whether an error means that the file is broken; others mean that a query is wrong."""
    # DuckDB reports a block with a wrong checksum by the base class of its errors.
    return isinstance(error, _BROKEN) or type(error) is duckdb.Error


def cache_folder() -> Path:
    """Return the folder of all caches: $XDG_CACHE_HOME/rag-r1/explorer, or the same below ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "rag-r1" / "explorer"


def _key(paths: Sequence[Path]) -> str:
    """Return a hash of the paths that does not depend on their order."""
    text = "\0".join(sorted(map(os.fspath, paths)))
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=12).hexdigest()


def _open(file: Path) -> duckdb.DuckDBPyConnection:
    """Open a database to which the file is attached as `cache`.

    Raises duckdb.Error if the file is broken, or is not a cache of this version.
    """
    database = duckdb.connect(
        ":memory:",
        config={
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "memory_limit": _MEMORY_LIMIT,
            "checkpoint_threshold": _CHECKPOINT_THRESHOLD,
            "threads": str(max(1, min(4, os.cpu_count() or 1))),
            "temp_directory": str(file.with_name(f"{file.name}.tmp")),
        },
    )
    try:
        name = str(file).replace("'", "''")
        options = f"ROW_GROUP_SIZE {_ROW_GROUP_ROWS}, STORAGE_VERSION 'latest'"
        database.execute(f"ATTACH '{name}' AS cache ({options})")
        database.execute("SET enable_external_access = false")
        database.execute("SET lock_configuration = true")
        database.execute("USE cache")
        _check_or_create_tables(database)
    except BaseException:
        database.close()
        raise
    return database


def _check_or_create_tables(database: duckdb.DuckDBPyConnection) -> None:
    """Create the tables of an empty cache, or check those of an existing one.

    Raises duckdb.Error if the cache is broken, or was made by another version.
    """
    version = f"{_FORMAT} {duckdb.__version__} {TABLES}"
    present = {name for (name,) in database.execute("SELECT table_name FROM duckdb_tables()").fetchall()}
    if not present:
        for table, columns in TABLES.items():
            declared = ", ".join(f'"{name}" {kind}' for name, kind in columns.items())
            database.execute(f"CREATE TABLE {table} ({declared})")
        database.execute("CREATE TABLE format AS SELECT ? AS text", [version])
        return
    is_ours = present == {*TABLES, "format"}
    if not is_ours or database.execute("SELECT text FROM format").fetchall() != [(version,)]:
        raise duckdb.InvalidInputException("a cache of another version")
    # These queries read every row, and so raise if a part of the file cannot be read.
    for table in ("files", "trajectories"):
        database.execute(f"SELECT sum(hash(columns(*))) FROM {table}").fetchall()
