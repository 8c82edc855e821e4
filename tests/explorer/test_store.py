"""What is read of the files of runs, and what is read again."""

from __future__ import annotations

import gzip
import json
import os
import threading
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import duckdb
import pytest

from rag_r1.explorer.cache import cache_folder
from rag_r1.explorer.record_files.batches import Batch
from rag_r1.explorer.record_files.file_state import FileState
from rag_r1.explorer.store import Store
from tests.explorer.made_records import GOLD, answered, lines, record, searched, training, write


def ids(store: Store) -> list[str]:
    return [name for (name,) in store.query("SELECT id FROM trajectories ORDER BY tid")]


def column(store: Store, name: str) -> set:
    return {value for (value,) in store.query(f'SELECT DISTINCT "{name}" FROM trajectories')}


@pytest.mark.parametrize("name", ["step_000001-7.jsonl", "step_000001-7.jsonl.gz"])
def test_only_what_was_appended_is_read(read, tmp_path, name):
    path = write(tmp_path / "trajectories" / "train" / name, [training("a", 1), training("b", 1)])
    store = read(tmp_path)
    version = store.version
    assert not store.refresh() and store.version == version
    write(path, [training("c", 1)], append=True)
    assert store.refresh() and store.version > version
    assert ids(store) == ["a", "b", "c"]


def test_a_new_file_of_a_run_is_read(read, tmp_path):
    folder = tmp_path / "trajectories" / "train"
    write(folder / "step_000001-7.jsonl", [training("a", 1)])
    store = read(tmp_path)
    write(folder / "step_000002-7.jsonl", [training("a", 2)])
    store.refresh()
    assert ids(store) == ["a", "a"] and column(store, "step") == {1, 2}


@pytest.mark.parametrize("how", ["shrunk", "replaced", "edited in place", "removed"])
def test_a_file_that_is_not_what_it_was_is_read_anew(read, tmp_path, how):
    path = write(tmp_path / "a.jsonl", [record("one"), record("two")])
    store = read(tmp_path)
    if how == "shrunk":
        path.write_bytes(lines([record("three")]))
    elif how == "replaced":
        other = write(tmp_path / "new", [record("three"), record("four"), record("five")])
        other.replace(path)
    elif how == "edited in place":
        path.write_bytes(path.read_bytes().replace(b'"one"', b'"six"'))
        os.utime(path, ns=(1, 1))
    else:
        path.unlink()
    store.refresh()
    expected = {"shrunk": ["three"], "replaced": ["three", "four", "five"], "removed": []}
    assert ids(store) == expected.get(how, ["six", "two"])


@pytest.mark.parametrize("count", [1, 9])
def test_a_file_that_was_written_anew_and_is_longer_is_read_anew(read, tmp_path, count):
    """The start of a file tells whether it was only appended to; a short file is compared as a whole."""
    path = write(tmp_path / "a.jsonl", [record(f"old{i}") for i in range(count)])
    store = read(tmp_path)
    path.write_bytes(lines(record(f"new{i}") for i in range(12)))
    store.refresh()
    assert ids(store) == [f"new{i}" for i in range(12)]


def test_the_inode_of_a_file_may_have_64_bits(read, tmp_path):
    store = read(tmp_path)
    store._write(Batch([], [FileState(1, "a.jsonl", "run", "folder", None, inode=2**64 - 1)]))
    assert store.query("SELECT inode FROM files") == [(2**64 - 1,)]


def test_broken_lines_are_counted_and_named_and_the_others_are_read(read, tmp_path):
    path = tmp_path / "a.jsonl"
    bad = [
        b"{",
        b"[1]",
        b'{"turns": 3}',
        b'{"turns": [1], "question": "q"}',
        b"\xff\xfe",
        b"[" * 100_000,
        b"",
    ]
    path.write_bytes(lines([record("a")]) + b"\n".join(bad) + b"\n" + lines([record("b")]))
    store = read(tmp_path)
    (state,) = store.files()
    assert ids(store) == ["a", "b"]
    assert state.broken == 6 and [fault.split(":")[0] for fault in state.faults] == [
        f"a.jsonl, line {number}" for number in range(2, 8)
    ]


def test_behind_damaged_gzip_data_what_is_appended_is_read_and_the_damage_is_named_once(read, tmp_path):
    path = write(tmp_path / "a.jsonl.gz", [record("a")])
    path.write_bytes(path.read_bytes() + b"this is no gzip data")
    store = read(tmp_path)
    for name in ("b", "c"):
        write(path, [record(name)], append=True)
        store.refresh()
    (state,) = store.files()
    assert ids(store) == ["a", "b", "c"] and len(state.faults) == 1


HOSTILE = [
    "'; DROP TABLE trajectories; --",
    "<script>alert(1)</script>",
    "\ud800 a lone surrogate",
    "a NUL \0 and \u2028 and \u202e",
    "\\u0000",
    "x" * 100_000,
    "",
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_any_text_may_stand_anywhere(read, tmp_path, text):
    one = record(
        text, text, [searched(text, [text]), answered(text)], question=text, golds=[text], status=text
    )
    one |= {"data_source": text, "split": text, "rewards": {text: 1.0, "score": 0.5}, "step": 3}
    write(tmp_path / "a.jsonl", [one, record("after")])
    store = read(tmp_path)
    shown = text.encode("utf-8", "replace").decode()
    assert store.query("SELECT question, answer, source FROM trajectories ORDER BY tid")[0] == (shown,) * 3
    assert len(ids(store)) == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"step": 1e400},
        {"step": "seven"},
        {"seconds": float("nan")},
        {"generated_tokens": 10**40},
        {"rewards": {"score": "high"}},
        {"golds": {"target": [["a", 7], None]}},
        {"right": "yes"},
        {"metadata": [1]},
    ],
    ids=str,
)
def test_values_of_other_types_are_no_reason_to_fail(read, tmp_path, fields):
    write(tmp_path / "a.jsonl", [{**record("a"), **fields}, record("b")])
    assert "b" in ids(read(tmp_path))


def test_an_episode_that_ran_twice_counts_as_it_ran_last(read, tmp_path):
    folder = tmp_path / "trajectories" / "train"
    first = write(folder / "step_000003-9.jsonl", [training("a", 3, "wrong"), training("b", 3)])
    os.utime(first, ns=(10**9, 10**9))
    write(folder / "step_000003-1.jsonl", [training("a", 3, GOLD)])
    store = read(tmp_path)
    assert store.query("SELECT id, answer FROM trajectories ORDER BY id") == [("a", GOLD), ("b", GOLD)]
    (folder / "step_000003-1.jsonl").unlink()
    store.refresh()
    assert store.query("SELECT answer FROM trajectories WHERE id = 'a'") == [("wrong",)]


def journal(folder: Path, command: str, records: list[dict]) -> Path:
    settings = folder / "journal" / "settings.json"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(json.dumps({"settings": {"command": command}}))
    return write(folder / "journal" / "records.ndjson", records)


def test_a_run_under_way_is_read_from_its_journal_and_then_from_its_records(read, tmp_path):
    begun = journal(tmp_path / "run", "eval", [record("a", right=True), record("b", right=False)])
    os.utime(begun, ns=(10**9, 10**9))
    store = read(tmp_path)
    assert (ids(store), column(store, "kind"), column(store, "run")) == (["a", "b"], {"evaluation"}, {"run"})
    write(tmp_path / "run" / "trajectories" / "records.jsonl", [record(name, right=True) for name in "abc"])
    store.refresh()
    assert ids(store) == ["a", "b", "c"]


def test_a_run_that_was_begun_again_after_its_end_is_read_from_its_journal(read, tmp_path):
    done = write(tmp_path / "trajectories" / "records.jsonl", [record("a")])
    os.utime(done, ns=(10**9, 10**9))
    journal(tmp_path, "traces", [record("a"), record("b")])
    assert ids(read(tmp_path)) == ["a", "b"]


def test_runs_are_named_from_the_common_folder_and_have_their_kinds(read, tmp_path):
    write(tmp_path / "grpo" / "trajectories" / "train" / "step_000001-1.jsonl", [training("a", 1)])
    write(tmp_path / "grpo" / "trajectories" / "val" / "step_000000-1.jsonl", [training("b", 0, split="val")])
    journal(tmp_path / "sft" / "filter", "filter", [record("c", right=True)])
    write(tmp_path / "notes.jsonl", [{"question": "no record"}])
    write(tmp_path / "grpo" / "checkpoints" / "trajectories" / "x.jsonl", [record("not entered")])
    store = read(tmp_path)
    assert set(store.query("SELECT run, kind, id FROM trajectories")) == {
        ("grpo", "training", "a"),
        ("grpo", "validation", "b"),
        ("sft/filter", "filter", "c"),
    }


def test_a_second_start_reads_nothing_again(read, tmp_path):
    write(tmp_path / "a.jsonl", [record("a")])
    first = Store([tmp_path])
    first.refresh()
    first.close()
    second = read(tmp_path)
    assert not second.refresh() and ids(second) == ["a"]
    write(tmp_path / "a.jsonl", [record("b")], append=True)
    second.refresh()
    assert ids(second) == ["a", "b"]


@pytest.mark.parametrize(
    "content", [b"", b"no database", b"\0" * 65536, "another database", "an old version"]
)
def test_a_cache_file_that_is_broken_or_foreign_is_made_again(read, tmp_path, cache_home, content):
    write(tmp_path / "a.jsonl", [record("a")])
    Store([tmp_path]).close()
    (file,) = cache_home.glob("*.duckdb")
    file.unlink()
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        with duckdb.connect(str(file)) as other:
            other.execute("CREATE TABLE format AS SELECT 'another' AS text")
            if content == "an old version":
                other.execute("CREATE TABLE files (path TEXT); CREATE TABLE trajectories (tid INT)")
    assert ids(read(tmp_path)) == ["a"]


def test_a_cache_whose_list_of_files_is_broken_is_made_again(read, tmp_path, cache_home):
    write(tmp_path / "a.jsonl", [record("a")])
    read(tmp_path).close()
    (file,) = cache_home.glob("*.duckdb")
    file.write_bytes(file.read_bytes().replace(b"/a.jsonl", b"/b.jsonl"))
    assert ids(read(tmp_path)) == ["a"]


@pytest.mark.slow
def test_a_cache_whose_pages_are_broken_is_read_anew(tmp_path, cache_home):
    write(tmp_path / "a.jsonl", [record(f"q{i}", question=f"{i} " * 500) for i in range(3000)])
    first = Store([tmp_path])
    first.refresh()
    first.close()
    (file,) = cache_home.glob("*.duckdb")
    size = file.stat().st_size
    with file.open("r+b") as content:
        content.seek(size // 4)
        content.write(os.urandom(size // 2))
    store = Store([tmp_path])
    try:
        for _ in range(3):
            try:
                store.refresh()
                found = store.query("SELECT count(*), min(length(part)) > 500 FROM texts")
                break
            except duckdb.Error:
                store.rebuild(store.cache.generation)
        assert found == [(3000, True)]
    finally:
        store.close()


def test_two_views_of_the_same_run_do_not_disturb_each_other(read, tmp_path, cache_home):
    write(tmp_path / "a.jsonl", [record("a")])
    one, other = read(tmp_path), read(tmp_path)
    assert ids(one) == ids(other) == ["a"] and one.cache.file != other.cache.file
    private = other.cache.file.parent
    assert private != cache_home and private.stat().st_mode & 0o077 == 0
    other.close()
    assert not private.exists() and one.cache.file.exists()


def test_without_a_place_for_the_cache_it_is_temporary(read, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    write(tmp_path / "a.jsonl", [record("a")])
    assert ids(read(tmp_path)) == ["a"]


def test_the_cache_is_for_its_owner_only(read, tmp_path, cache_home):
    read(tmp_path)
    assert cache_home.stat().st_mode & 0o077 == 0


def test_the_database_opens_no_other_file_and_loads_nothing(read, tmp_path):
    (tmp_path / "secret.csv").write_text("a,b\n1,2\n")
    store = read(tmp_path)
    for statement in (
        f"SELECT * FROM read_csv('{tmp_path}/secret.csv')",
        f"ATTACH '{tmp_path}/other.duckdb'",
        f"COPY trajectories TO '{tmp_path}/copy.csv'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SET autoinstall_known_extensions = true",
    ):
        with pytest.raises(duckdb.Error):
            store.query(statement)


def test_a_file_that_could_not_be_read_is_read_at_the_next_start(read, tmp_path, monkeypatch):
    """The error may pass, such as a missing permission; the cache must not keep it."""

    def refused(path, start):
        raise PermissionError(13, "Permission denied", str(path))

    write(tmp_path / "trajectories" / "a.jsonl", [record("a")])
    with monkeypatch.context() as patched, closing(Store([tmp_path])) as store:
        patched.setattr("rag_r1.explorer.record_files.batches.whole_lines", refused)
        assert store.refresh() and not store.refresh() and ids(store) == []
        assert [state.broken for state in store.files()] == [1]
    store = read(tmp_path)
    assert ids(store) == ["a"] and [state.broken for state in store.files()] == [0]


def test_reading_can_be_ended_and_goes_on_where_it_was(tmp_path):
    write(tmp_path / "a.jsonl", [record(f"q{i}") for i in range(5000)])
    stop = threading.Event()
    stop.set()
    store = Store([tmp_path])
    store.refresh(stop)
    begun = len(ids(store))
    store.close()
    store = Store([tmp_path])
    store.refresh()
    assert 0 < begun < 5000 and ids(store) == [f"q{i}" for i in range(5000)]
    store.close()


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_the_progress_is_in_bytes_of_the_file_and_counts_lines_without_a_record(tmp_path, monkeypatch, name):
    write(tmp_path / name, [record("a"), {"no": "record"}, record("b")])
    write_rows, seen = Store._write, []

    def noted(self, batch):
        seen.append((self.reading.bytes_done, self.reading.bytes_total))
        write_rows(self, batch)

    monkeypatch.setattr(Store, "_write", noted)
    with closing(Store([tmp_path])) as store:
        store.refresh()
    ((done, total),) = seen
    last_member = len(gzip.compress(lines([record("b")]), mtime=0)) if name.endswith(".gz") else 0
    assert done == total - last_member and total == (tmp_path / name).stat().st_size


def test_a_store_that_does_not_open_lets_go_of_its_cache(tmp_path, monkeypatch):
    broken = duckdb.IOException("broken")  # keeps the store that raised it
    with monkeypatch.context() as patched:
        patched.setattr(Store, "_load", Mock(side_effect=broken))
        with pytest.raises(duckdb.IOException):
            Store([tmp_path])
    with closing(Store([tmp_path])) as store:
        assert store.cache.file.is_relative_to(cache_folder())  # not a private one beside a locked one


def test_numbers_of_many_turns_that_no_table_can_hold_are_left_out(read, tmp_path):
    turns = [{**searched().to_dict(), "repeated_queries": 1 << 53}] * 1100
    write(tmp_path / "a.jsonl", [{**record("a"), "turns": turns}, record("b")])
    store = read(tmp_path)
    assert ids(store) == ["a", "b"] and column(store, "repeated") == {None, 0}


def test_a_path_that_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        Store([tmp_path / "nothing"])
