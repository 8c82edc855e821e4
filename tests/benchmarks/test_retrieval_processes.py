"""What the retrieval benchmark starts beside itself: with which device, and of which indexes."""

from __future__ import annotations

from contextlib import contextmanager
from io import StringIO
from types import SimpleNamespace

import pytest

from benchmarks import retrieval_processes, search_r1_server
from retrieval_server.folder.manifest import write_manifest

from .conftest import dense_manifest


@pytest.fixture
def compressed(tmp_path):
    """The manifest of an index with the preset small."""
    rescoring = {"rows": "int8", "candidates": 200}
    preset = {"factory": "RR8,IVF1,RaBitQ", "preset": "small", "rescoring": rescoring}
    write_manifest(tmp_path, dense_manifest(**preset))
    return tmp_path


@pytest.mark.parametrize("device", ["cpu", "cuda:1", None])
@pytest.mark.parametrize(
    "factory, searches", [("RR8,IVF1,RaBitQ", ["search"]), ("Flat", ["search", "faiss"])]
)
def test_the_stages_of_the_ceiling_get_the_device_and_an_exact_index_is_also_searched_by_faiss(
    compressed, monkeypatch, device, factory, searches
):
    started = []

    @contextmanager
    def running(*command, **_):
        started.append([str(word) for word in command])
        yield SimpleNamespace(stdout=StringIO("ready\n"))

    if factory == "Flat":
        write_manifest(compressed, dense_manifest())
    monkeypatch.setattr(retrieval_processes, "running", running)
    with retrieval_processes.stages(compressed, ["Where?"], 4, 3, compressed, device) as stages:
        assert len(stages) == len(searches)
    assert [command[-1] for command in started] == ["encode", *searches]
    for command in started:
        value = command[command.index("--device") + 1] if "--device" in command else None
        assert value == device


def test_a_compressed_index_is_refused_for_a_server_that_does_not_rescore(compressed, monkeypatch, capsys):
    monkeypatch.setenv("TQDM_DISABLE", "1")  # which the script sets
    assert search_r1_server.main(["--index", str(compressed), "--checkout", str(compressed)]) == 2
    assert "a compressed index (small): Search-R1's server does not score" in capsys.readouterr().err
