"""Gold and random passages: found in one reading of a corpus, or asked for by id."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.corpus.reader import Corpus
from rag_r1.data.evidence import GoldEvidence
from rag_r1.evaluation.probes import collect
from rag_r1.evaluation.probes.collect import MAX_PASSAGES_PER_PAGE, find_passages
from rag_r1.evaluation.probes.served_passages import served_passages
from rag_r1.io.errors import DataError
from rag_r1.probes.passages import Passages, read_passages
from rag_r1.protocols import Document
from rag_r1.runs.errors import RunError
from tests.fakes.json_server import Asked, JsonStub

ROWS = [{"id": str(i), "contents": f'"Page {i // 3}"\ntext {i}'} for i in range(120)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def collected(corpus: Path, out: Path, *wanted: GoldEvidence, **options) -> Passages:
    passages, bad = find_passages(Corpus([corpus]), wanted, out, progress=False, **options)
    assert bad.count == 0 and read_passages(out) == passages, "the file has what is returned"
    return passages


def titled(*titles: str) -> GoldEvidence:
    return GoldEvidence.of({"supporting_titles": list(titles)})


def test_passages_are_found_by_their_ids_and_by_the_titles_of_their_pages(corpus, tmp_path):
    named = GoldEvidence.of({"supporting_ids": ["5", "9", "no such"]})
    passages = collected(corpus, tmp_path / "out.json", named, titled("PAGE_7", "Nowhere"))
    assert sorted(passages.by_id) == ["5", "9"] and passages.by_id["5"].contents == ROWS[5]["contents"]
    ids = {key: [passage.id for passage in page] for key, page in passages.by_title.items()}
    assert ids == {"page 7": ["21", "22", "23"]}


def test_of_a_long_page_only_the_first_passages_are_kept(tmp_path):
    path = tmp_path / "long.jsonl"
    path.write_text(
        "".join(
            json.dumps({"id": str(i), "contents": '"P"\nx'}) + "\n" for i in range(MAX_PASSAGES_PER_PAGE + 9)
        )
    )
    assert len(collected(path, tmp_path / "state.json", titled("P")).by_title["p"]) == MAX_PASSAGES_PER_PAGE


def test_the_draw_is_that_of_earlier_releases(corpus, tmp_path):
    """Scans that they have saved go on, and a search card shows the same passages again."""
    drawn = collected(corpus, tmp_path / "out.json", sample_size=5, seed=7).random
    assert [passage.id for passage in drawn] == ["78", "102", "117", "74", "37"]


class Killed(Corpus):
    """A corpus whose reader is killed after some rows."""

    def rows(self, *args, **options):
        for number, row in enumerate(super().rows(*args, **options)):
            if number == 50:
                raise KeyboardInterrupt
            yield row


def test_a_scan_that_was_killed_goes_on_and_finds_the_same(corpus, tmp_path):
    wanted = [titled("Page 3", "Page 30"), GoldEvidence.of({"supporting_ids": ["7", "110"]})]
    whole = collected(corpus, tmp_path / "whole.json", *wanted, sample_size=9)
    state = tmp_path / "state.json"
    with pytest.raises(KeyboardInterrupt):
        find_passages(Killed([corpus]), wanted, state, sample_size=9, save_interval=20, progress=False)
    assert json.loads(state.read_text())["place"][2] == 40
    with pytest.raises(DataError, match="interrupted"):
        read_passages(state)
    assert collected(corpus, state, *wanted, sample_size=9) == whole
    assert collected(corpus, state, *wanted, sample_size=9) == whole, "a finished scan is read from its file"


def test_an_id_of_two_passages_is_refused_with_both_rows_also_after_a_kill(tmp_path):
    path, state = tmp_path / "twice.jsonl", tmp_path / "out.json"
    path.write_text("".join(json.dumps(row) + "\n" for row in [*ROWS, ROWS[7]]))
    with pytest.raises(KeyboardInterrupt):
        find_passages(Killed([path]), [], state, save_interval=20, progress=False)
    for _ in range(2):
        with pytest.raises(DataError, match="line 121: the id '7' is that of .*line 8"):
            find_passages(Corpus([path]), [], state, progress=False)
    with pytest.raises(DataError, match="interrupted or refused"):
        read_passages(state)


def test_a_file_of_another_scan_or_a_broken_one_is_not_used(corpus, tmp_path):
    state = tmp_path / "state.json"
    collected(corpus, state, titled("Page 3"))
    assert "page 4" in collected(corpus, state, titled("Page 4")).by_title
    state.write_text("{")
    assert "page 4" in collected(corpus, state, titled("Page 4")).by_title


def test_a_scan_of_more_passages_than_a_file_may_hold_ends_with_a_remedy(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(collect, "MAX_VALUES", 100)
    with pytest.raises(DataError, match="fewer questions"):
        find_passages(
            Corpus([corpus]), [], tmp_path / "out.json", sample_size=60, save_interval=20, progress=False
        )
    state = json.loads((tmp_path / "out.json").read_text())
    assert not state["done"], "it ends before the corpus does"
    assert state["place"][2] == len(state["drawn"]) == 20, "the last file that can be read stays"


def test_bad_rows_are_refused_and_the_file_is_unfinished_until_they_are_left_out(tmp_path):
    path, out = tmp_path / "bad.jsonl", tmp_path / "out.json"
    path.write_text('{"id": "1", "contents": "a"}\n{\n')
    options = {"sample_size": 5, "progress": False}
    with pytest.raises(DataError, match="1 bad row: .*bad.jsonl, line 2: .*--skip-bad-rows"):
        find_passages(Corpus([path]), [], out, **options)
    with pytest.raises(DataError, match="refused"):
        read_passages(out)
    passages, bad = find_passages(Corpus([path]), [], out, skip_bad_rows=True, **options)
    assert bad.count == 1 and "bad.jsonl, line 2" in bad.first[0], "counted once"
    assert passages.random == [Document("1", "a")] == read_passages(out).random
    with pytest.raises(DataError, match="1 bad row"):
        find_passages(Corpus([path]), [], out, **options)
    assert read_passages(out) == passages, "what was finished stays so"


@given(size=st.integers(0, 130), seed=st.integers(0, 9))
def test_random_passages_are_different_ones_and_depend_on_the_seed_alone(
    corpus, tmp_path_factory, size, seed
):
    folder = tmp_path_factory.mktemp("states")
    drawn = collected(corpus, folder / "a.json", sample_size=size, seed=seed).random
    assert len({passage.id for passage in drawn}) == min(size, len(ROWS)) == len(drawn)
    again = collected(corpus, folder / "b.json", titled("Page 3"), sample_size=size, seed=seed).random
    assert again == drawn
    more = collected(corpus, folder / "c.json", sample_size=size + 1, seed=seed).random
    assert more[:size] == drawn


def server_of_documents(request: Asked):
    """The answer of a retrieval server to documents by id."""
    texts, ids = {row["id"]: row["contents"] for row in ROWS}, request.body["ids"]
    assert len(ids) <= 64
    return {"result": [{"id": i, "contents": texts[i]} if i in texts else None for i in ids]}


def test_a_server_gives_the_passages_that_are_named_by_id():
    named = GoldEvidence.of({"supporting_ids": [row["id"] for row in ROWS] + ["no such"]})
    with JsonStub(server_of_documents) as server:
        passages = served_passages(server.url, [named, titled("Page 1")])
        of_index = served_passages(f"{server.url}/indexes/wiki", [named])
    assert len(passages.by_id) == len(ROWS) and passages.by_id["7"] == Document("7", '"Page 2"\ntext 7')
    assert of_index == passages and {asked.path for asked in server.asked} == {"/documents"}
    assert [asked.body.get("index") for asked in server.asked] == [None] * 2 + ["wiki"] * 2


def test_a_token_that_no_header_can_have_is_named_and_not_shown(monkeypatch):
    monkeypatch.setenv("RETRIEVAL_TOKEN", "SECRET\nx")
    with pytest.raises(RunError, match=r"\$RETRIEVAL_TOKEN has characters that a key cannot have") as raised:
        served_passages("http://127.0.0.1:9", [GoldEvidence.of({"supporting_ids": ["7"]})])
    assert "SECRET" not in str(raised.value)


@pytest.mark.slow
def test_a_server_without_documents_has_none_and_a_wrong_answer_is_an_error():
    named = GoldEvidence.of({"supporting_ids": ["7"]})
    with JsonStub(lambda request: (404, "{}")) as server:
        assert served_passages(server.url, [named]) == Passages()
    for status, body in (422, "{}"), (503, "{}"), (504, "{}"), (404, '{"error": "unknown_index"}'):
        with JsonStub(lambda request, answer=(status, body): answer) as server:
            with pytest.raises(RunError, match=f"HTTP {status}.*--corpus"):
                served_passages(server.url, [named])
    with JsonStub(lambda request: {"result": "?"}) as server, pytest.raises(RunError, match="--corpus"):
        served_passages(server.url, [named])
    with pytest.raises(RunError, match="--corpus"):
        served_passages("http://127.0.0.1:9", [named])
