"""`rag-r1 eval --card` with policies behind HTTP: one that searches and reads, one that knows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rag_r1.agent.records import read_records
from rag_r1.data.rows import QuestionRow, write_rows
from rag_r1.demo.policy import policy_path
from rag_r1.demo.world import demo_protocol, make_questions, make_world, to_row
from rag_r1.evaluation import command
from rag_r1.evaluation.probes.collect import RANDOM_SAMPLE_SIZE
from rag_r1.io.atomic_files import write_json_lines
from rag_r1.probes.probes import SPARE
from tests.evaluation.command_words import PROMPT, command_words
from tests.fakes.reading_policy import ReadingPolicy

SQ = demo_protocol("rag_r1_sq")
WORLD = make_world(3, "train", people=60, places=20)
QUESTIONS = make_questions(WORLD, 32, 3)
TOPK = 2


def rows() -> list[QuestionRow]:
    """The questions; the first two name no gold passages, and the third one names a page that is missing."""
    rows = [to_row(question, index, "test", SQ) for index, question in enumerate(QUESTIONS)]
    for i, titles in enumerate(([], [], ["No Such Page"])):
        rows[i] = replace(rows[i], metadata={**rows[i].metadata, "supporting_titles": titles})
    return rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("card")
    write_rows(path / "questions.parquet", rows())
    write_json_lines(path / "corpus.jsonl", WORLD.passages)
    return path


def run(policy: ReadingPolicy, folder: Path, out: Path, *more: str) -> int:
    flags = {
        "data": folder / "questions.parquet",
        "base_url": policy.url,
        "model": "m",
        "tokenizer": policy_path("rag_r1_sq"),
        "retriever_url": policy.url,
        "protocol": "rag_r1_sq",
        "prompt": PROMPT,
        "out": out,
        "in_flight": 8,
    }
    return command.main(["--card", *command_words(*more, f"rag_r1.retriever.topk={TOPK}", **flags)])


@pytest.mark.slow
def test_a_policy_that_reads_is_right_only_where_it_finds_the_evidence(
    folder, sq_tokenizer, tmp_path, capsys
):
    with ReadingPolicy.of(sq_tokenizer, QUESTIONS, WORLD.passages) as policy:
        named = tmp_path / "supporting.jsonl"
        first = to_row(QUESTIONS[0], 0, "test", SQ)
        titles = first.metadata["supporting_titles"]
        named.write_text(json.dumps({"id": first.id, "supporting_titles": list(titles)}))
        corpus = ["--corpus", str(folder / "corpus.jsonl"), "--supporting", str(named)]
        assert run(policy, folder, tmp_path / "out", *corpus) == 0
        card = json.loads((tmp_path / "out" / "search_card.json").read_text())
        em = {name: run["em"]["value"] for name, run in card["conditions"].items()}
        assert (em["real"], em["gold"]) == (1.0, 1.0)
        assert em["closed_book"] == em["empty"] == 0.0
        # The question that names another page keeps its own, and those that name none may be lucky.
        assert em["withheld"] == pytest.approx(1 / 31, abs=1e-6) and em["random"] <= 2 / 32
        assert card["verdict"] == "searches"
        assert "It answers 100 % [" in card["sentences"][0] and "It searches" in capsys.readouterr().out

        counts = {name: run["questions"] for name, run in card["conditions"].items()}
        assert counts == {**dict.fromkeys(em, 32), "gold": 30, "withheld": 31}
        # The first question's passages are named by the file.
        assert list(card["left_out"]["gold"].values()) == [1, 1]
        assert list(card["left_out"]["withheld"].values()) == [1]
        assert set(policy.topks) == {TOPK, TOPK + SPARE}, (
            "only the runs with and without the gold passages ask for more"
        )

        counts = [
            len(call["documents"])
            for record in read_records(tmp_path / "out" / "gold" / "trajectories")
            for turn in record["turns"]
            for call in turn["calls"]
        ]
        assert set(counts) == {TOPK}, "as many as a search shows, the gold ones among them"

        page = (tmp_path / "out" / "search_card.md").read_text()
        assert "**It searches" in page and "| demo/bridge |" in page
        assert (tmp_path / "out" / "search_card.png").read_bytes()[:4] == b"\x89PNG"
        assert len(json.loads((tmp_path / "out" / "passages.json").read_text())["drawn"]) == min(
            RANDOM_SAMPLE_SIZE, len(WORLD.passages)
        )

        before, requests = (tmp_path / "out" / "search_card.json").read_bytes(), len(policy.bodies)
        assert run(policy, folder, tmp_path / "out", *corpus) == 0
        assert (tmp_path / "out" / "search_card.json").read_bytes() == before
        assert len(policy.bodies) == requests, "a finished card asks nothing again"


@pytest.mark.slow
def test_a_policy_that_knows_is_right_under_every_condition(folder, sq_tokenizer, tmp_path):
    with ReadingPolicy.of(sq_tokenizer, QUESTIONS, WORLD.passages, knows=True) as policy:
        assert run(policy, folder, tmp_path / "out") == 0
    card = json.loads((tmp_path / "out" / "search_card.json").read_text())
    assert card["verdict"] == "knows" and set(card["conditions"]) == {
        "real", "closed_book", "empty", "withheld"
    }  # fmt: skip
    assert all(run["em"]["value"] == 1.0 for run in card["conditions"].values())
    assert [list(card["left_out"][name].values()) for name in ("random", "gold")] == [[None], [None]]
    assert "--corpus FILE" in (tmp_path / "out" / "search_card.md").read_text()


@pytest.mark.slow
def test_other_random_passages_are_refused_in_a_run_that_has_begun(folder, sq_tokenizer, tmp_path, capsys):
    with ReadingPolicy.of(sq_tokenizer, QUESTIONS, WORLD.passages, knows=True) as policy:
        few = ["--limit", "4"]
        assert run(policy, folder, tmp_path / "out", *few, "--corpus", str(folder / "corpus.jsonl")) == 0
        more = [*WORLD.passages, {"id": "new", "contents": '"New"\nA passage.'}]
        other = folder / "other.jsonl"
        write_json_lines(other, more)
        assert run(policy, folder, tmp_path / "out", *few, "--corpus", str(other)) == 1
    assert "passages_sha256 was" in capsys.readouterr().err


@pytest.mark.slow
def test_a_corpus_with_a_bad_row_is_refused_unless_it_is_left_out(folder, sq_tokenizer, tmp_path, capsys):
    broken = tmp_path / "broken.jsonl"
    broken.write_text("{\n" + (folder / "corpus.jsonl").read_text())
    with ReadingPolicy.of(sq_tokenizer, QUESTIONS, WORLD.passages, knows=True) as policy:
        options = ["--corpus", str(broken), "--limit", "4"]
        assert run(policy, folder, tmp_path / "out", *options) == 1
        assert "broken.jsonl, line 1: not JSON" in capsys.readouterr().err
        assert run(policy, folder, tmp_path / "out", *options, "--skip-bad-rows") == 0
    card = json.loads((tmp_path / "out" / "search_card.json").read_text())
    assert card["verdict"] == "open" and "Too few questions" in card["sentences"][1]


@pytest.mark.parametrize(
    ("flags", "message"),
    [(["--card", "--baseline", "direct"], "leave out --baseline"), (["--corpus", "c.jsonl"], "for --card")],
)
def test_flags_that_do_not_go_together_are_refused(flags, message, capsys):
    with pytest.raises(SystemExit):
        command.main(["--data", "q.parquet", "--model", "m", "--out", "o", *flags])
    assert message in capsys.readouterr().err
