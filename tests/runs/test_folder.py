"""A run's folder: what was written before a kill is there after it, and only one process writes."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_r1.io.atomic_files import write_lines
from rag_r1.runs.errors import RunError
from rag_r1.runs.folder import RunFolder
from rag_r1.runs.json_lines import JsonLinesFile
from rag_r1.runs.response_cache import Usage
from tests.evaluation.scripted_runs import folder_at

#: Anything that Python's text can hold: half characters, and what other readers take for the end of a line.
TEXTS = st.text(st.characters() | st.sampled_from('\ud800\u2028\x85\n\r\\"é'), max_size=8)


def record(ask_id: str, right: bool | None = True, number: int = 1, **more) -> dict:
    return {"id": ask_id, "right": right, "try": number, "status": "answered", "turns": [], **more}


def lines_of(path: Path) -> list[dict]:
    values: list[dict] = []
    lines = JsonLinesFile(path, lambda value, place: values.append(value))
    lines.close()
    return values


def test_records_and_answers_are_there_again(tmp_path: Path):
    with folder_at(tmp_path) as folder:
        folder.write(record("b#0", None, text="\ud800"))
        folder.write(record("a#0", False))
        folder.write(record("b#0", True, 2, text="\u2028"))
        folder.cache.put("a#0", 0, b"request", {"text": "t"}, Usage(1, 7, 3))
    with folder_at(tmp_path) as folder:
        assert folder.outcome("a#0").right is False and folder.outcome("c#0") is None
        assert (folder.outcome("b#0").right, folder.outcome("b#0").tries) == (True, 2)
        assert [one["id"] for one in folder.records(["a#0", "b#0", "c#0"])] == ["a#0", "b#0"]
        assert folder.record("b#0")["text"] == "\u2028"
        assert folder.cache.get("a#0", 0, b"request") == {
            "ask": "a#0",
            "turn": 0,
            "sha256": folder.cache.get("a#0", 0, b"request")["sha256"],
            "usage": vars(Usage(1, 7, 3)),
            "answer": {"text": "t"},
        }
        assert vars(folder.cache.usage) == vars(Usage(1, 7, 3))


@settings(max_examples=40)
@given(values=st.lists(st.dictionaries(TEXTS, TEXTS, max_size=2), max_size=5), data=st.data())
def test_a_file_that_was_cut_anywhere_gives_its_whole_lines_and_goes_on(values, data, tmp_path_factory):
    path = tmp_path_factory.mktemp("cut") / "lines"
    places: list[tuple[int, int]] = []
    lines = JsonLinesFile(path, lambda value, place: places.append(place))
    for value in values:
        lines.append(value)
    assert [lines.at(place) for place in places] == values
    lines.close()
    content = path.read_bytes()
    kept = data.draw(st.integers(0, len(content)))
    path.write_bytes(content[:kept])
    survived = [value for value, (start, size) in zip(values, places, strict=True) if start + size <= kept]
    assert lines_of(path) == survived
    again = JsonLinesFile(path, lambda value, place: None)
    again.append({"after": "the kill"})
    again.close()
    assert lines_of(path) == [*survived, {"after": "the kill"}]


@pytest.mark.parametrize("line", [{"no": "record"}, record("b#0", right=1)])
def test_a_line_of_something_else_is_named(tmp_path: Path, line: dict):
    with folder_at(tmp_path) as folder:
        folder.write(record("a#0"))
    file = tmp_path / "journal" / "records.ndjson"
    file.write_bytes(file.read_bytes() + json.dumps(line).encode() + b"\n")
    with pytest.raises(RunError, match=r"records\.ndjson, line 2 was not written .*: remove the line; the"):
        folder_at(tmp_path)


SETTINGS = {"temperature": 1.0, "budget": {"max_turns": 4, "final_turn": True}, "tools": {}}
CHANGED = {"temperature": 0.7, "budget": {"max_turns": 5, "final_turn": True}, "tools": {}, "seed": 1}


def journal_of_an_earlier_version(out: Path, content: dict) -> Path:
    (out / "journal").mkdir(parents=True)
    (out / "journal" / "settings.json").write_text(json.dumps(content))
    return out


def test_other_settings_are_refused_and_every_key_is_named(tmp_path: Path):
    RunFolder(tmp_path, SETTINGS).close()
    assert json.loads((tmp_path / "provenance.json").read_text()) == {"settings": SETTINGS}
    RunFolder(tmp_path, SETTINGS).close()
    with pytest.raises(RunError) as error:
        RunFolder(tmp_path, CHANGED)
    assert "temperature was 1.0 and is now 0.7; budget.max_turns was 4 and is now 5; seed was None" in str(
        error.value
    )
    assert "final_turn" not in str(error.value)


def test_a_run_of_an_earlier_version_goes_on_and_has_its_settings_beside_its_card(tmp_path: Path):
    before = {"settings": SETTINGS, "notes": {"endpoint": "of an earlier version"}}
    journal_of_an_earlier_version(tmp_path, before)
    (tmp_path / "provenance.json").write_text('{"format": 1}')
    with pytest.raises(RunError, match=r"budget\.max_turns was 4 and is now 5"):
        RunFolder(tmp_path, CHANGED)
    RunFolder(tmp_path, SETTINGS).close()
    assert json.loads((tmp_path / "provenance.json").read_text()) == {"format": 1, "settings": SETTINGS}


@pytest.mark.parametrize("text", ["{", "[1]", '{"settings": 1}'])
@pytest.mark.parametrize("name", ["provenance.json", "journal/settings.json"])
def test_settings_that_cannot_be_read_are_refused(tmp_path: Path, name: str, text: str):
    (tmp_path / "journal").mkdir()
    (tmp_path / name).write_text(text)
    with pytest.raises(RunError, match="choose another --out"):
        RunFolder(tmp_path, SETTINGS)


def test_a_secret_is_compared_but_not_kept(tmp_path: Path):
    settings = {"tools": {"web": {"api_key": "hush", "url": "https://me:hush@host/x?index=a"}}}
    other = {"tools": {"web": {"api_key": "hush", "url": "https://me:hush@host/x?index=b"}}}
    RunFolder(tmp_path / "new", settings).close()
    RunFolder(tmp_path / "new", settings).close()
    assert "hush" not in (tmp_path / "new" / "provenance.json").read_text()
    old = journal_of_an_earlier_version(tmp_path / "old", {"settings": settings})
    RunFolder(old, settings).close()
    for out in (tmp_path / "new", old):
        with pytest.raises(RunError, match="secrets_sha256 was"):
            RunFolder(out, other)


def test_a_second_process_is_refused_while_the_first_holds_the_folder(tmp_path: Path):
    with folder_at(tmp_path), pytest.raises(RunError, match="is in use by another process"):
        folder_at(tmp_path)
    folder_at(tmp_path).close()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot use the folder .*file/run"):
        folder_at(tmp_path / "file" / "run")


def test_a_full_disk_ends_the_run_and_leaves_no_partial_line(tmp_path: Path, monkeypatch):
    lines = JsonLinesFile(tmp_path / "lines", lambda value, place: None)
    lines.append({"first": 1})
    write = os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda file, data: write(file, data[: len(data) // 2]))
        with pytest.raises(RunError, match="No space left on device.*run the same command again"):
            lines.append({"second": 2})
    lines.append({"third": 3})
    lines.close()
    assert lines_of(tmp_path / "lines") == [{"first": 1}, {"third": 3}]


def test_a_torn_line_is_told(tmp_path: Path, caplog):
    (tmp_path / "lines").write_bytes(b'{"a": 1}\n{"b"')
    with caplog.at_level(logging.WARNING):
        assert lines_of(tmp_path / "lines") == [{"a": 1}]
    assert "line 2 was cut off by a kill" in caplog.text
    assert (tmp_path / "lines").read_bytes() == b'{"a": 1}\n'


def test_what_a_run_writes_is_for_its_owner_only(tmp_path: Path):
    with folder_at(tmp_path / "run") as folder:
        folder.write(record("a#0"))
        write_lines(tmp_path / "run" / "out", ["x"], private=True)
    assert (tmp_path / "run" / "out").read_text() == "x"
    for path in (tmp_path / "run" / "out", tmp_path / "run" / "journal" / "records.ndjson"):
        assert path.stat().st_mode & 0o077 == 0


def test_only_the_same_request_of_the_same_turn_of_the_same_ask_is_answered(tmp_path: Path):
    with folder_at(tmp_path) as folder:
        cache = folder.cache
        cache.put("a#0", 1, b"r", {"text": "t"}, Usage(1, 1, 1))
        assert cache.get("a#0", 1, b"r")["answer"] == {"text": "t"}
        assert [cache.get("a#1", 1, b"r"), cache.get("a#0", 0, b"r"), cache.get("a#0", 1, b"s")] == [None] * 3


def test_a_useless_answer_is_counted_but_never_replayed(tmp_path: Path):
    with folder_at(tmp_path) as folder:
        folder.cache.put("a#0", 0, b"r", None, Usage(1, 100, 5))
        assert folder.cache.get("a#0", 0, b"r") is None
    with folder_at(tmp_path) as folder:
        assert folder.cache.get("a#0", 0, b"r") is None
        assert folder.cache.usage.cost(price_in=1.0, price_out=2.0) == pytest.approx(110e-6)
