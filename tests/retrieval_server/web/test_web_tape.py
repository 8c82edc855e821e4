"""The recording: what is in it, what survives a kill, and who may write."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval_server.errors import UserError
from retrieval_server.web.engines import WebDocument
from retrieval_server.web.recordings import Recording, RecordingKey
from retrieval_server.web.source import WebSource

text = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
questions = st.builds(RecordingKey, text, text, st.integers(1, 100), st.dictionaries(text, text, max_size=2))
documents = st.lists(st.builds(WebDocument, text, text), max_size=3)


def question(query: str = "x", **other) -> RecordingKey:
    return RecordingKey(**({"engine": "serper", "query": query, "depth": 10, "params": {}} | other))


def answer(query: str = "x") -> list[WebDocument]:
    return [WebDocument(f"https://a.org/{query}", f'"{query}"\nline\u2028é')]


def record(path, *queries, **files):
    with closing(Recording(record=path, **files)) as tape:
        for query in queries:
            tape.put(question(query), answer(query))
    return path.read_bytes()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One for all examples: to make a folder takes longer the more there are."""
    return tmp_path_factory.mktemp("tape")


@given(st.lists(st.tuples(questions, documents), max_size=5))
def test_whatever_is_recorded_comes_back(folder, rows):
    path = folder / "run.jsonl"
    path.unlink(missing_ok=True)
    rows = {key.digest(): (key, results) for key, results in rows}
    with closing(Recording(record=path)) as tape:
        for key, results in rows.values():
            tape.put(key, results)
    with closing(Recording(replay=path)) as replayed:
        assert len(replayed) == len(rows)
        assert all(replayed.get(key) == results for key, results in rows.values())


def test_engine_query_depth_and_parameters_are_all_part_of_the_question(tmp_path):
    tape = Recording(record=tmp_path / "run.jsonl")
    tape.put(question(params={"gl": "us\ud800", "hl": "en"}), answer())
    assert tape.get(question(params={"hl": "en", "gl": "us\ud800"})) == answer()
    for other in ({"engine": "brave"}, {"query": "X"}, {"depth": 20}, {"params": {"gl": "us"}}):
        assert tape.get(question(**({"params": {"gl": "us", "hl": "en"}} | other))) is None
    tape.close()


def test_a_kill_at_any_byte_costs_only_the_line_it_hit(tmp_path):
    whole = record(tmp_path / "whole.jsonl", "a", "b")
    first = whole.index(b"\n") + 1
    path = tmp_path / "cut.jsonl"
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        with closing(Recording(replay=path)) as replayed:
            assert [replayed.get(question(query)) is not None for query in "ab"] == [cut >= first, False]
        assert path.read_bytes() == whole[:cut], "replaying changes nothing"
        assert record(path, "a", "b", replay=path) == whole


def test_the_first_answer_counts_and_stands_in_the_file_once(tmp_path):
    path = tmp_path / "run.jsonl"
    tape = Recording(record=path)
    with ThreadPoolExecutor(8) as threads:
        kept = list(threads.map(lambda n: tape.put(question(str(n % 10)), answer(str(n))), range(200)))
    tape.close()
    rows = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert sorted(row["query"] for row in rows) == sorted(str(n) for n in range(10))
    first = {row["query"]: [WebDocument(**results) for results in row["documents"]] for row in rows}
    assert kept == [first[str(n % 10)] for n in range(200)]


def test_a_second_recorder_is_refused_and_a_reader_is_not(tmp_path):
    path = tmp_path / "run.jsonl"
    tape = Recording(record=path)
    tape.put(question(), answer())
    with pytest.raises(UserError, match="another server is recording"):
        Recording(replay=path, record=path)
    with closing(Recording(replay=path)) as reader:
        assert reader.get(question()) == answer()
    tape.close()


def test_an_old_recording_is_not_recorded_over(tmp_path):
    path = tmp_path / "run.jsonl"
    whole = record(path, "a")
    with pytest.raises(UserError, match="add --replay"):
        Recording(record=path)
    assert path.read_bytes() == whole


def test_a_recording_is_not_kept_locked_if_the_key_is_missing(tmp_path):
    with pytest.raises(UserError, match="TAVILY_API_KEY is not set"):
        WebSource.open("tavily", {}, record=tmp_path / "run.jsonl")
    assert record(tmp_path / "run.jsonl", "a")


def test_one_recording_can_be_used_and_another_written(tmp_path):
    old = record(tmp_path / "old.jsonl", "a")
    with closing(Recording(replay=tmp_path / "old.jsonl", record=tmp_path / "new.jsonl")) as tape:
        assert tape.get(question("a")) == answer("a")
        tape.put(question("b"), answer("b"))
    assert (tmp_path / "old.jsonl").read_bytes() == old
    assert [json.loads(line)["query"] for line in (tmp_path / "new.jsonl").open()] == ["b"]


def test_a_missing_recording_is_an_error_with_its_name(tmp_path):
    with pytest.raises(UserError, match="none.jsonl: cannot be opened"):
        Recording(replay=tmp_path / "none.jsonl")
    with pytest.raises(UserError, match="null: cannot be opened .no ordinary file"):
        Recording(record=tmp_path / "/dev/null")
    record(tmp_path / "file", "a")
    with pytest.raises(UserError, match="file/new.jsonl: cannot be opened"):
        Recording(replay=tmp_path / "file", record=tmp_path / "file" / "new.jsonl")


@pytest.mark.parametrize(
    "line",
    [b"{}", b"no json", b"[]", b'{"documents": []}', b"5", b"[" * 100_000]
    + [
        b'{"engine": "e", "query": "q", "depth": 1, "params": {}, "documents": %s}' % documents
        for documents in (
            *(b'[{"url": 1}]', b'[], "other": 1', b'[{"url": "u", "contents": "\\ud800"}]'),
            *(b'[["url", "contents"]]', b'[], "params": ' + b"[" * 600 + b"]" * 600),
        )
    ],
)
def test_a_line_that_is_no_answer_is_named(tmp_path, line):
    path = tmp_path / "run.jsonl"
    path.write_bytes(record(tmp_path / "good.jsonl", "a") + line + b"\n")
    with pytest.raises(UserError, match="line 2 is not a recorded answer"):
        Recording(replay=path)


def test_without_a_file_to_record_into_nothing_is_kept():
    tape = Recording()
    assert tape.put(question(), answer()) == answer() and tape.get(question()) is None


def test_a_recording_is_its_owners(tmp_path):
    record(tmp_path / "run.jsonl", "a")
    assert (tmp_path / "run.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_recording_that_is_changed_while_it_is_served_is_an_error_and_no_crash(tmp_path):
    path = tmp_path / "run.jsonl"
    whole = record(path, "a", "b")
    tape = Recording(replay=path)
    for changed in (whole.replace(b'"documents"', b'"document_"'), b"x" * len(whole), b""):
        path.write_bytes(changed)
        with pytest.raises(UserError, match="changed since it was opened"):
            tape.get(question("b"))
    path.write_bytes(whole)
    assert tape.get(question("b")) == answer("b")
    tape.close()
    assert tape.get(question("b")) is None, "a closed recording has no answers"


def test_a_line_without_an_end_is_refused_and_not_cut_off(tmp_path, monkeypatch):
    monkeypatch.setattr("retrieval_server.web.recordings.MAX_LINE_BYTES", 1000)
    path = tmp_path / "run.jsonl"
    record(path, "a")
    with path.open("ab") as file:
        file.write(b"x" * 2000)
    before = path.read_bytes()
    with pytest.raises(UserError, match="line 2 is longer than 1000 bytes"):
        Recording(replay=path, record=path)
    assert path.read_bytes() == before
