"""The background thread that reads new records, and what it says when it cannot."""

from __future__ import annotations

import errno
import os
from contextlib import closing
from pathlib import Path

import duckdb
import pytest

from rag_r1.explorer import cache, watcher
from rag_r1.explorer.store import Store
from rag_r1.explorer.watcher import Watcher
from tests.explorer.made_records import record, write
from tests.fakes.waiting import wait_until


def test_a_cache_that_cannot_be_replaced_is_a_problem_until_there_is_room(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(watcher, "_MIN_PAUSE_S", 0.01)
    open_cache, disk = cache._open, {"is_full": False}

    def open_if_there_is_room(file: Path) -> duckdb.DuckDBPyConnection:
        if disk["is_full"]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return open_cache(file)

    def fill_the_disk(*unused) -> None:
        monkeypatch.delattr(store, "_read_pending")  # the next refresh reads
        disk["is_full"] = True
        raise duckdb.Error("a wrong checksum")

    monkeypatch.setattr(cache, "_open", open_if_there_is_room)
    write(tmp_path / "a.jsonl", [record("a")])
    with closing(Store([tmp_path])) as store:
        monkeypatch.setattr(store, "_read_pending", fill_the_disk)
        thread = Watcher(store)
        thread.start()
        try:
            wait_until(lambda: thread.problem)
            assert "No space left" in str(thread.problem)
            disk["is_full"] = False
            wait_until(lambda: not thread.problem and store.query("SELECT id FROM trajectories") == [("a",)])
        finally:
            thread.stop()


def test_a_new_cache_that_breaks_as_well_is_a_problem_and_not_rebuilt_without_end(tmp_path, monkeypatch):
    def fill_the_disk(*unused) -> None:
        raise duckdb.IOException(os.strerror(errno.ENOSPC))

    with closing(Store([tmp_path])) as store:
        monkeypatch.setattr(store, "refresh", fill_the_disk)
        thread = Watcher(store)
        assert thread._refresh()
        with pytest.raises(duckdb.IOException, match="No space left"):
            thread._refresh()
