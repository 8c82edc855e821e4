"""JSON of somebody else's server is counted before objects are made of it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.agent.records import read_records
from rag_r1.data import annotations
from rag_r1.data.files.bad_rows import BadRows
from rag_r1.inference.client import Endpoint, EndpointOptions, EngineFailure
from rag_r1.io.bounded_json import read_json, read_json_file
from rag_r1.io.errors import DataError, TooLargeError
from rag_r1.retriever.training.encoder_settings import read_settings
from rag_r1.rollouts.provenance import Provenance
from rag_r1.rollouts.provenance_facts import manifest_facts
from rag_r1.runs.cancel_token import CancelToken
from rag_r1.runs.errors import RunError
from rag_r1.runs.json_lines import JsonLinesFile
from rag_r1.tools.http import HttpFailure, JsonClient
from rag_r1.tools.retrieval.client import RetrievalClient, RetrieverConfig

LISTS = b"[" + b"[]," * 2_000_000 + b"[]]"


@given(st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3)))
def test_honest_values_are_read_as_json_reads_them(value):
    for escaped in (True, False):
        data = json.dumps(value, ensure_ascii=escaped).encode("utf-8", "surrogatepass")
        assert read_json(data, 1000) == value
    assert read_json(b"\xef\xbb\xbf[1]", 10) == [1]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"[" + b"[]," * 2000 + b"[]]", "more than 1,000 values"),
        (b"[" + b'"\\\\",' * 2000 + b"0]", "more than 1,000 values"),
        (b'{"a":{}' + b',"b":{}' * 2000 + b"}", "more than 1,000 values"),
        (b'"ab' * 100_000, "more than 1,000 values"),
        (b"[" + b"]" * 2000, "more than 1,000 values"),
        (b'{"a":' + b"}" * 2000, "more than 1,000 values"),
        (b"[" * 65 + b"]" * 65, "nested more than 64 deep"),
    ],
)
def test_too_many_values_and_levels_are_refused(data, told):
    with pytest.raises(TooLargeError, match=told):
        read_json(data, 1000)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32-le"])
def test_brackets_do_not_hide_in_another_encoding(encoding):
    with pytest.raises(ValueError):
        read_json(("[" + '"\u2200",' + "[]," * 2000 + "[]]").encode(encoding), 1000)


MANY = b'{"a": [' + b"[]," * 3_000_000 + b"[]]}"


def spoilt(path: Path) -> Path:
    """The path, under which a JSON file of 9 MB now has three million lists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(MANY)
    return path


FILES = {
    "provenance.json": (lambda folder: Provenance.read(folder), RunError),
    "manifest.json": (lambda folder: manifest_facts(folder), RunError),
    "config.json": (lambda folder: read_json_file(folder / "config.json"), TooLargeError),
    "retriever.json": (lambda folder: read_settings(folder), RunError),
    "journal/tape.jsonl": (
        lambda folder: JsonLinesFile(folder / "journal/tape.jsonl", lambda value, place: None),
        RunError,
    ),
    "trajectories/val/step_1-1.jsonl": (
        lambda folder: list(read_records(folder / "trajectories")),
        DataError,
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_files_of_a_foreign_folder_are_counted_before_objects_are_made_of_them(tmp_path, monkeypatch, name):
    read, error = FILES[name]
    spoilt(tmp_path / name)
    with (tmp_path / name).open("ab") as file:
        file.write(b"\n")
    loaded: list[object] = []
    monkeypatch.setattr(json, "loads", loaded.append)
    with pytest.raises(error, match=r"more than [\d,]+ values"):
        read(tmp_path)
    assert not loaded


def test_annotations_of_a_foreign_file_are_counted_too(tmp_path, monkeypatch):
    monkeypatch.setattr(annotations, "_MAX_VALUES", 1_000_000)
    path = spoilt(tmp_path / "questions.json")
    with pytest.raises(annotations.DataError, match="more than 1,000,000 values"):
        annotations.read_answerable(path, BadRows())


@pytest.mark.parametrize("kind", ["pipe", "large", "folder"])
def test_what_is_no_small_file_is_not_read_whole(tmp_path, kind):
    path = tmp_path / "config.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        with path.open("wb") as file:
            file.truncate(1 << 40)  # a hole
    with pytest.raises((OSError, TooLargeError), match="not an ordinary file|more than 16,777,216 bytes"):
        read_json_file(path)


def test_a_line_without_end_is_not_read_whole(tmp_path):
    with (tmp_path / "tape.jsonl").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(RunError, match="line 1 has more than 67,108,864 bytes"):
        JsonLinesFile(tmp_path / "tape.jsonl", lambda value, place: None)
    with (tmp_path / "with header").open("wb") as file:
        file.write(b"{}\n")
        file.truncate(1 << 40)
    with pytest.raises(RunError, match="line 2 has more than 67,108,864 bytes"):
        JsonLinesFile(tmp_path / "with header", lambda value, place: None, header={})


async def answered(path: str) -> web.Response:
    return web.Response(body=LISTS, content_type="application/json")


async def test_clients_make_no_objects_of_millions_of_empty_lists():
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answered)
    async with TestServer(app) as server:
        url = str(server.make_url("")).rstrip("/")
        tool = JsonClient()
        with pytest.raises(HttpFailure, match="more than 500,000 values"):
            await tool.ask("GET", url)
        await tool.close()
        endpoint = Endpoint(EndpointOptions(url, retries=0), CancelToken())

        async def attempt() -> None:
            async with endpoint.post("/completions", {"prompt": "q", "max_tokens": 8192}):
                pass

        with pytest.raises(EngineFailure, match="more than 1,500,000 values"):
            await endpoint.retried(attempt)
        await endpoint.close()
        search = RetrievalClient(RetrieverConfig(url=url, retries=0))
        [found] = await search.search(["q"])
        assert "values" in found.detail
        await search.close()
