"""JSON files of a foreign index or model are counted before objects are made of them."""

from __future__ import annotations

import json
import os

import pytest

from retrieval_server.encode import model_folder
from retrieval_server.errors import BadRowError, UserError
from retrieval_server.folder.atomic import replacing, write_json
from retrieval_server.folder.corpus_rows import parse_jsonl_row
from retrieval_server.folder.manifest import read_manifest
from retrieval_server.json_limits import read_json_file

MANY = '{"a": [' + "[]," * 3_000_000 + "[]]}"


@pytest.fixture
def loaded(monkeypatch):
    """What was read as JSON."""
    texts: list[object] = []
    monkeypatch.setattr(json, "loads", texts.append)
    return texts


@pytest.mark.parametrize(
    "read, error, name",
    [
        (lambda path: read_manifest(path.parent), UserError, "manifest.json"),
        (model_folder._read_json, UserError, "manifest.json"),
        (lambda path: parse_jsonl_row(path.read_text()), BadRowError, ""),
    ],
    ids=["manifest", "settings of a model", "row of a corpus"],
)
def test_millions_of_lists_are_refused_before_objects_are_made(tmp_path, loaded, read, error, name):
    path = tmp_path / "manifest.json"
    path.write_text(MANY)
    with pytest.raises(error, match=f"{name}.*more than 500,000 values"):
        read(path)
    assert not loaded


def test_a_file_that_is_too_large_or_a_pipe_is_not_read(tmp_path):
    with (tmp_path / "modules.json").open("wb") as file:
        file.truncate(1 << 40)  # a hole
    with pytest.raises(UserError, match="more than 16,777,216 bytes"):
        model_folder._read_json(tmp_path / "modules.json")
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(UserError, match="no ordinary file"):
        model_folder._read_json(tmp_path / "config.json")


def test_a_file_that_could_not_be_written_whole_is_still_the_old_one(tmp_path):
    write_json(tmp_path / "record.json", {"town": "Lübeck"})
    with pytest.raises(ZeroDivisionError), replacing(tmp_path / "record.json") as unfinished:
        unfinished.write_text("{")
        raise ZeroDivisionError
    assert read_json_file(tmp_path / "record.json") == {"town": "Lübeck"}
    write_json(tmp_path / "record.json", {})
    assert read_json_file(tmp_path / "record.json") == {} and len(list(tmp_path.iterdir())) == 1
