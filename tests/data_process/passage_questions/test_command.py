"""`rag-r1 passage-questions`: the files, the messages, and the real corpus."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from data_process.build import main as build
from data_process.passage_questions.command import SplitQuestion, _balance_answers, main, make_rows
from data_process.passage_questions.questions import KINDS, MadeQuestion
from rag_r1.data.annotations import read_supporting
from rag_r1.data.files.bad_rows import BadRows
from tests.data_process.conftest import DATA, needs_data, read_lines
from tests.data_process.passage_questions.made_pages import PAGES, passages

CORPUS = DATA / "corpus" / "hotpotqa_corpus.jsonl.gz"


def write_corpus(path, pages):
    path.write_text("".join(json.dumps(passage.row()) + "\n" for passage in passages(pages)))
    return str(path)


def test_the_files_are_read_by_the_other_commands(tmp_path, capsys):
    corpus, out = write_corpus(tmp_path / "corpus.jsonl", PAGES), tmp_path / "made"
    assert main(["--corpus", corpus, "--out", str(out), "--no-progress", "--test-share", "0.3"]) == 0
    names = {path.name for path in out.iterdir()}
    assert names == {"train.jsonl", "test.jsonl", "summary.json", "settings.yaml"}
    rows = read_lines(out / "train.jsonl")
    summary = json.loads((out / "summary.json").read_text())
    assert summary["splits"]["train"] == {
        kind: Counter(row["kind"] for row in rows)[kind] for kind in summary["splits"]["train"]
    }
    assert f"train.jsonl: {len(rows):,} questions" in capsys.readouterr().out
    gold = read_supporting(out / "train.jsonl", bad := BadRows())
    assert gold and not bad.count
    words = ["--train", f"questions:made={out / 'train.jsonl'}", "--out", str(tmp_path / "data")]
    assert build([*words, "--near-duplicates", "0"]) == 0
    assert f"made: {len(rows)} of {len(rows)} rows" in capsys.readouterr().out


def test_both_files_are_replaced_or_none(tmp_path):
    """Or an entity of the new training file might be in the earlier test file."""
    words = ["--corpus", write_corpus(tmp_path / "c.jsonl", PAGES), "--out", str(tmp_path), "--no-progress"]
    assert main(words) == 0
    before = (tmp_path / "train.jsonl").read_bytes()
    (tmp_path / "test.jsonl").unlink()
    (tmp_path / "test.jsonl").mkdir()  # cannot be replaced by a file
    assert main([*words, "--seed", "1"]) == 1
    assert (tmp_path / "train.jsonl").read_bytes() == before


def test_the_first_rows_of_a_file_are_of_all_kinds(tmp_path):
    """A validation of the first N questions is one of all kinds, not of the first kind."""
    rows, _ = make_rows(passages(PAGES), 0, 100, 0.0)
    kinds = [row["kind"] for row in rows]
    most = Counter(kinds).most_common(1)[0][1]
    assert kinds != sorted(kinds, key=KINDS.index) and len(set(kinds[:most])) > 1


def test_a_form_of_question_to_which_the_answer_is_always_yes_is_left_out():
    questions = [MadeQuestion("yes_no", "same director", f"{i}?", ("yes",), ()) for i in range(2)]
    assert _balance_answers([SplitQuestion(question, "train") for question in questions]) == []


def test_a_drawn_question_that_lacks_its_counterpart_is_counted_as_dropped():
    (rows, _), (drawn, dropped) = (make_rows(passages(PAGES), 0, count, 0.0) for count in (100, 3))
    n_all, n_drawn = (sum(row["kind"] == "yes_no" for row in each) for each in (rows, drawn))
    assert n_all - n_drawn == dropped["more than 3 of yes_no"] and n_drawn == 2


def test_a_corpus_of_something_else_is_refused_with_what_the_rules_need(tmp_path, capsys):
    corpus = write_corpus(tmp_path / "corpus.jsonl", {"Notes": "Buy milk."})
    assert main(["--corpus", corpus, "--out", str(tmp_path / "made"), "--no-progress"]) == 1
    assert "no question can be made of 1 passages" in capsys.readouterr().err
    assert not (tmp_path / "made").exists()


def test_a_row_that_is_no_passage_is_named(tmp_path, capsys):
    corpus = tmp_path / "corpus.jsonl"
    write_corpus(corpus, PAGES)
    with corpus.open("a") as file:
        file.write('{"id": "x"}\n')
    assert main(["--corpus", str(corpus), "--out", str(tmp_path / "made"), "--no-progress"]) == 1
    assert f"{corpus}, line {len(PAGES) + 1}: " in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.nightly
@needs_data(CORPUS.parent)
def test_the_real_corpus_gives_thousands_of_questions_of_five_kinds(tmp_path):
    assert main(["--corpus", str(CORPUS), "--out", str(tmp_path), "--no-progress"]) == 0
    splits = {split: read_lines(tmp_path / f"{split}.jsonl") for split in ("train", "test")}
    kinds = Counter(row["kind"] for rows in splits.values() for row in rows)
    assert len(kinds) == 5 and min(kinds.values()) >= 500 and kinds.total() >= 4000
    # As many of both answers for each form of a yes-or-no question: saying yes to all is worth nothing.
    answers = Counter(
        (split, row["relation"], row["golden_answers"][0])
        for split, rows in splits.items()
        for row in rows
        if row["kind"] == "yes_no"
    )
    for split, relation, _ in list(answers):
        assert answers[split, relation, "yes"] == answers[split, relation, "no"] > 0
    titles = {s: {t for row in rows for t in row["supporting_titles"]} for s, rows in splits.items()}
    assert not titles["train"] & titles["test"]
