"""A state file: work goes on from it, or begins again if it is of other work."""

from __future__ import annotations

from pathlib import Path

import pytest

from rag_r1.io.errors import TooLargeError
from rag_r1.runs.errors import RunError
from rag_r1.runs.state_file import StateFile

MADE_FROM = {"input": "abc", "settings": {"budget": {"turns": 4}, "seed": None}}


def test_the_state_of_the_same_work_is_read(tmp_path: Path):
    file = StateFile(tmp_path / "new" / "state.json", MADE_FROM)
    assert file.read(dict) is None
    file.write({"place": [1, 2]})
    assert file.read(lambda content: content["place"]) == [1, 2]
    file.remove()
    assert file.read(dict) is None


def test_a_private_state_with_half_of_a_character_is_read(tmp_path: Path):
    file = StateFile(tmp_path / "state.json", {"input": "caf\udce9"})
    file.write({"place": "\ud800"}, private=True, refuses_too_large=True)
    assert file.read(lambda content: content["place"]) == "\ud800"


@pytest.mark.parametrize("change", [{"input": "abd"}, {"settings": {"budget": {"turns": 5}}}, {"more": 1}])
def test_work_that_is_made_from_something_else_begins_again(tmp_path: Path, change: dict):
    StateFile(tmp_path / "state.json", MADE_FROM).write({"place": 1})
    assert StateFile(tmp_path / "state.json", {**MADE_FROM, **change}).read(dict) is None


def test_other_values_are_refused_by_name_if_the_work_is_not_to_begin_again(tmp_path: Path):
    StateFile(tmp_path / "state.json", MADE_FROM).write({"place": 1})
    file = StateFile(tmp_path / "state.json", {**MADE_FROM, "input": "abd"}, refuses_changes=True)
    with pytest.raises(RunError, match="input was 'abc' and is now 'abd'"):
        file.read(dict)
    assert StateFile(file.path, MADE_FROM, refuses_changes=True).read(dict) is not None


def test_a_setting_that_an_earlier_version_does_not_know_and_that_is_not_set_changes_nothing(tmp_path: Path):
    StateFile(tmp_path / "state.json", MADE_FROM).write({"place": 1})
    now = {**MADE_FROM, "settings": {"budget": {"turns": 4, "paths": None}}}
    assert StateFile(tmp_path / "state.json", now).read(lambda content: content["place"]) == 1


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100, '{"input": "abc"}', "\x00"])
def test_a_broken_file_is_as_none(tmp_path: Path, text: str):
    (tmp_path / "state.json").write_text(text)
    assert StateFile(tmp_path / "state.json", MADE_FROM).read(dict) is None


def test_a_state_of_another_shape_or_size_is_as_none(tmp_path: Path):
    file = StateFile(tmp_path / "state.json", MADE_FROM)
    file.write({"place": 1})
    assert file.read(lambda content: content["place"][0]) is None
    assert StateFile(file.path, MADE_FROM, max_bytes=10).read(dict) is None
    file.write({"place": float("inf")})
    assert file.read(lambda content: int(content["place"])) is None


@pytest.mark.parametrize("limits", [{"max_bytes": 80}, {"max_values": 20}])
def test_a_state_that_is_too_large_to_be_read_again_is_refused_and_the_file_stays(tmp_path: Path, limits):
    file = StateFile(tmp_path / "state.json", {"input": "abc"}, **limits)
    file.write({"place": [1]}, refuses_too_large=True)
    with pytest.raises(TooLargeError):
        file.write({"place": list(range(50))}, refuses_too_large=True)
    assert file.read(lambda content: content["place"]) == [1]
