"""The report of a run: every figure is what its definition says, whatever the records' order."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_r1.agent import Trajectory, Turn
from rag_r1.evaluation.report.bootstrap import Bootstrap
from rag_r1.evaluation.report.published_results import LAYOUT, PUBLISHED, in_paper_order, labels
from rag_r1.evaluation.report.report import make_report, report_of
from rag_r1.evaluation.report.report_markdown import markdown
from rag_r1.evaluation.report.run_table import read_run
from rag_r1.protocols import Document
from rag_r1.runs.errors import RunError
from tests.evaluation.finished_runs import card, dumped_run, record, write_run

FEW = Bootstrap(resamples=20)


def reported(folder: Path, records: list[dict], run_card=None, **options) -> dict:
    """The content of report.json of a run with these records."""
    table = read_run(write_run(folder, records), mask=run_card.mask if run_card else None, **options)
    return report_of(table, run_card, FEW)


def value(report: dict, name: str, group: str = "all") -> float | None:
    """A figure for all questions, for the `mean`, or for a source."""
    figure = report["figures"][name]
    return (figure[group] if group in ("all", "mean") else figure["sources"][group])["value"]


def test_scores_of_each_source_their_mean_and_that_of_all_questions(tmp_path):
    right = [record(f"a{i}") for i in range(3)]
    report = reported(tmp_path, [*right, record("a3", "Rome"), record("b0", "Rome", source="nq")])
    assert value(report, "em", "hotpotqa") == 0.75 and value(report, "em", "nq") == 0.0
    assert value(report, "em", "mean") == 0.375  # each source counts once
    assert value(report, "em") == 0.6  # each question counts once
    assert report["figures"]["em"]["all"]["questions"] == 5
    assert list(report["figures"]["em"]["sources"]) == ["nq", "hotpotqa"]  # the papers' order


def test_the_three_scores_with_both_normalisers(tmp_path):
    # Ours joins "Jean-Luc" to one word, R1-Searcher's makes it two: (em, cover-EM, F1) by hand.
    report = reported(tmp_path, [record("q", "Jean-Luc Picard", golds=["Jean Luc Picard"])])
    assert [value(report, name) for name in ("em", "cover_em", "f1")] == [0.0, 0.0, pytest.approx(0.4)]
    assert [value(report, f"{name}_r1_searcher") for name in ("em", "cover_em", "f1")] == [1.0, 1.0, 1.0]
    report = reported(tmp_path / "2", [record("q", "the city of Paris", golds=["Paris, France", "Paris"])])
    assert [value(report, name) for name in ("em", "cover_em", "f1")] == [0.0, 1.0, 0.5]


def test_a_failed_episode_is_no_wrong_answer(tmp_path):
    records = [record("a"), record("b", None, failure="engine", status="engine_failure", seconds=900.0)]
    report = reported(tmp_path, records)
    assert value(report, "em") == 1.0 and report["figures"]["em"]["all"]["questions"] == 1
    assert value(report, "seconds") == 2.0
    assert value(report, "failed") == 0.5
    assert (value(report, "em_if_failed_wrong"), value(report, "em_if_failed_right")) == (0.5, 1.0)
    assert report["counts"]["all"]["failed_by_kind"] == {"engine": 1}
    page = markdown(report)
    assert "**50.0% of the episodes failed**" in page and "| failed: engine | 1 | 1 |" in page


@pytest.mark.parametrize(
    ("kind", "mask", "scored"),
    [
        ("retriever", None, False),
        ("retriever", ["retriever", "engine"], False),
        ("retriever", [], True),  # shown to the policy, which went on
        ("tool", ["retriever"], True),
        ("engine", [], False),  # there is no answer of the policy
        ("row", [], False),
        ("error", [], False),
        ("judge", ["judge"], True),  # the answer is there without the judge
        ("budget", ["budget"], True),  # the policy's own doing
    ],
)
def test_which_failures_exclude_an_episode(tmp_path, kind, mask, scored):
    run_card = None if mask is None else card(failures={"mask": mask})
    report = reported(tmp_path, [record("a", "Rome", failure=kind), record("b")], run_card)
    assert value(report, "em") == (0.5 if scored else 1.0)
    counts = {} if kind == "budget" else {kind: 1}  # which the statuses show
    assert report["counts"]["all"]["scored_with_failure" if scored else "failed_by_kind"] == counts


def test_a_run_of_which_every_episode_failed_has_no_scores(tmp_path):
    lost = [record("a", None, failure="engine"), record("b", None, failure="row", golds=[])]
    report = reported(tmp_path, lost)
    assert value(report, "em") is None and value(report, "em", "mean") is None
    assert value(report, "failed") == 1.0 and "## Scores" not in markdown(report)


def test_form_of_answers(tmp_path):
    """One right and well formed, one right after an invalid turn, one wrong, one without an answer."""
    records = [record("a"), record("b", invalid=True), record("c", "Rome"), record("d", None)]
    report = reported(tmp_path, records)
    assert value(report, "em") == 0.5
    assert (value(report, "answered"), value(report, "formatted")) == (0.75, 0.5)
    assert value(report, "em_answered") == pytest.approx(2 / 3, abs=1e-6)
    assert value(report, "em_formatted") == 0.5
    assert report["counts"]["all"]["statuses"] == {"answered": 3, "turn_limit": 1}


def test_searches_and_costs(tmp_path):
    records = [record("a", searches=[["x", "y"], ["z"]]), record("b", searches=[], seconds=4.0)]
    report = reported(tmp_path, records)
    figures = {"searched": 0.5, "retrievals": 1.0, "queries": 1.5, "turns": 2.0, "seconds": 3.0}
    assert {name: value(report, name) for name in figures} == figures
    tokens = {"prompt_tokens": 100.0, "generated_tokens": 20.0, "observed_tokens": 50.0}
    assert {name: value(report, name) for name in tokens} == tokens


def test_the_tool_failure_rate_counts_calls_also_those_of_failed_episodes(tmp_path):
    calls = [record("a", searches=[["x"], ["y"], ["z"]]), record("b", searches=[["x"]], failed_calls=1)]
    calls[1]["failures"] = [{"kind": "retriever", "turn": 0, "detail": ""}]
    report = reported(tmp_path, calls)
    assert value(report, "tool_failure_rate") == 0.25 and value(report, "retrievals") == 3.0


def test_samples_of_a_question_count_as_one_question(tmp_path):
    """Four samples of one question, all right, and one of another, wrong: half, and not four fifths."""
    report = reported(tmp_path, [*(record("a", sample=i) for i in range(4)), record("b", "Rome")])
    assert value(report, "em") == 0.5
    em = report["figures"]["em"]["all"]
    assert (em["questions"], em["episodes"]) == (2, 5)


def test_a_failed_sample_leaves_its_question_to_the_others(tmp_path):
    failed = record("a", None, sample=1, failure="engine")
    report = reported(tmp_path, [record("a", sample=0), failed, record("b", "Rome")])
    assert value(report, "em") == 0.5


def test_terms_of_the_reward_are_reported_where_they_have_a_value(tmp_path):
    rewards = [{"judge": 1.0, "score": 9.0}, {"judge": 0.0}, {"judge": None}]
    report = reported(tmp_path, [record(f"q{i}", rewards=terms) for i, terms in enumerate(rewards)])
    judge = report["figures"]["term:judge"]["all"]
    assert (judge["value"], judge["questions"]) == (0.5, 2)
    assert "term:score" not in report["figures"] and "judge (term)" in markdown(report)


def test_recall_of_gold_passages_by_ids_and_by_titles(tmp_path):
    documents = [Document("7", '"Paris"\nA town.'), Document("9", "Rome \nAnother.")]
    by_id = record("a", documents=documents, supporting_ids=["7", "8"])
    by_title = record("b", documents=documents, metadata={"supporting_titles": ["PARIS", "Rome"]})
    report = reported(tmp_path, [by_id, by_title, record("c")])
    assert value(report, "recall") == 0.75 and value(report, "found_all") == 0.5
    assert report["figures"]["recall"]["all"]["questions"] == 2


def test_questions_of_the_data_without_a_record_are_counted(tmp_path):
    report = reported(tmp_path, [record("a"), record("b")], card())  # the card's file has four rows
    assert report["counts"]["questions_without_record"] == 2
    assert "**2 of 4 questions have no record**" in markdown(report)


def records_of(draws: list[tuple[str, int, bool, str | None]]) -> list[dict]:
    records = []
    for i, (source, searches, right, failure) in enumerate(draws):
        options = {"searches": [["q"]] * searches, "rewards": {"judge": searches / 7}, "failure": failure}
        records.append(record(f"{source}/{i}", "Paris" if right else "Rome", source=source, **options))
    return records


SOURCES = st.sampled_from(["nq", "popqa", "own"])
FAILURES = st.sampled_from([None, None, None, "engine", "retriever"])
DRAWS = st.lists(st.tuples(SOURCES, st.integers(0, 9), st.booleans(), FAILURES), min_size=1, max_size=8)


@settings(max_examples=15)
@given(DRAWS, st.integers(0, 1000))
def test_the_order_of_records_changes_nothing(tmp_path_factory, draws, seed):
    records = records_of(draws)
    mixed = [*records, *random.Random(seed).sample(records, len(records) // 2)]  # some twice
    random.Random(seed).shuffle(mixed)
    folder = tmp_path_factory.mktemp("runs")
    first, second = reported(folder / "a", records), reported(folder / "b", mixed)
    assert second["counts"].pop("played_again") == len(records) // 2
    assert first["counts"].pop("played_again") == 0
    assert json.dumps(first) == json.dumps(second)


@settings(max_examples=15)
@given(DRAWS)
def test_every_interval_contains_its_value(tmp_path_factory, draws):
    report = reported(tmp_path_factory.mktemp("run"), records_of(draws))
    for figure in report["figures"].values():
        for group in (*figure["sources"].values(), figure["mean"], figure["all"]):
            assert group["low"] is None or group["low"] <= group["value"] <= group["high"]


@pytest.mark.slow
@pytest.mark.parametrize("failure", [None, "engine"])
def test_all_files_of_a_report_are_the_same_bytes_for_another_order(tmp_path, failure):
    pytest.importorskip("matplotlib")
    records = records_of([("nq", i % 4, i % 3 == 0, failure) for i in range(9)])
    files = []
    for name, mixed in (("a", records), ("b", records[::-1])):
        run = write_run(tmp_path / name, mixed, card())
        make_report(run, bootstrap=FEW)
        files.append({path.name: path.read_bytes() for path in run.glob("report*")})
    names = ["report.json", "report.md", "report_scores.png", "report_searches.png"]
    assert sorted(files[0]) == names and files[0] == files[1]


def test_a_validation_of_a_training_is_reported_without_ids_of_questions(tmp_path):
    trajectories = [
        Trajectory(uid, "Which town?", "rag_r1_mq", [Turn(answer, "answer")], answer, "answered")
        for uid, answer in (("uid-1", "Paris"), ("uid-2", "Rome"))
    ]
    table = read_run(dumped_run(tmp_path, trajectories, ["Paris"]))
    assert [key[1] for key in table.keys] == ["Which town?"] * 2  # two samples of one question
    assert value(report_of(table, None, FEW), "em") == 0.5


def test_records_of_several_steps_need_the_choice_of_one(tmp_path):
    run = write_run(tmp_path, [{**record("a"), "step": None}, {**record("a", "Rome"), "step": 6}])
    with pytest.raises(RunError, match="steps 0, 6: choose one with --step"):
        read_run(run)
    assert read_run(run, step=6).columns["em:squad"].tolist() == [0.0]
    with pytest.raises(RunError, match="no records of --step 7"):
        read_run(run, step=7)


def test_data_sources_are_in_the_papers_order():
    names = ["zzz", "rag_r1/bamboogle", "searchR1_nq", "2wikimultihopqa", "musique", "TriviaQA", "popqa"]
    columns = labels(in_paper_order([*names, "hotpotqa", "aaa", "medqa_zh"]))
    assert list(columns.values()) == [*LAYOUT, "aaa", "zzz"]


def test_two_sources_of_the_same_data_keep_their_own_names():
    assert labels(["nq", "my/nq"]) == {"nq": "nq", "my/nq": "my/nq"}


def test_published_rows_have_the_means_of_their_papers():
    means = {
        row.system: round(float(np.mean(list(row.values.values()))), 3)
        for row in PUBLISHED
        if row.measure == "em"
    }
    assert list(means) == ["RAG", "Search-R1", "R1-Searcher", "RAG-R1-sq", "RAG-R1-mq"]
    assert list(means.values()) == [0.271, 0.368, 0.402, 0.439, 0.455]


def test_medqas_published_rows_are_format_and_judged_accuracy_in_three_modes():
    rows = [(row.measure, row.values["MedQA (zh)"]) for row in PUBLISHED if "MedQA (zh)" in row.values]
    shares = [0.39, 0.84, 0.56, 0.79, 0.92, 0.87]
    assert rows == list(zip(["formatted", "judge"] * 3, shares, strict=True))
