"""What the retrieval benchmark starts beside itself: with which device, and of which indexes."""

from __future__ import annotations

import json
from contextlib import contextmanager
from io import StringIO
from types import SimpleNamespace

import pytest

from benchmarks import retrieval_processes, search_r1_server
from retrieval_server.folder.manifest import (
    FORMAT_VERSION,
    CorpusSection,
    DenseSection,
    EncoderSection,
    Manifest,
    RescoringSection,
    write_manifest,
)


@pytest.fixture
def compressed(tmp_path):
    """The manifest of an index with the preset small."""
    encoder = EncoderSection(
        name="none",
        sha256="0",
        pooling="mean",
        query_prefix="",
        passage_prefix="",
        normalize=True,
        separator=" ",
        max_length=16,
        dimension=8,
    )
    dense = DenseSection(
        encoder=encoder,
        metric="inner_product",
        factory="RR8,IVF1,RaBitQ",
        preset="small",
        rescoring=RescoringSection(rows="int8", candidates=200),
    )
    corpus = CorpusSection(source="c.jsonl", sha256="0")
    made = {"format_version": FORMAT_VERSION, "backend": "dense", "files": {}, "built_with": {}}
    write_manifest(tmp_path, Manifest(**made, count=1, corpus=corpus, dense=dense))
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
        manifest = compressed / "manifest.json"
        known = json.loads(manifest.read_text())
        known["dense"].update(factory=factory, rescoring=None)
        manifest.write_text(json.dumps(known))
    monkeypatch.setattr(retrieval_processes, "running", running)
    with retrieval_processes.stages(compressed, ["Where?"], 4, 3, compressed, device) as found:
        assert len(found) == len(searches)
    assert [command[-1] for command in started] == ["encode", *searches]
    for command in started:
        given = command[command.index("--device") + 1] if "--device" in command else None
        assert given == device


def test_a_compressed_index_is_refused_for_a_server_that_does_not_rescore(compressed, monkeypatch, capsys):
    monkeypatch.setenv("TQDM_DISABLE", "1")  # which the script sets
    assert search_r1_server.main(["--index", str(compressed), "--checkout", str(compressed)]) == 2
    assert "a compressed index (small): Search-R1's server does not score" in capsys.readouterr().err
