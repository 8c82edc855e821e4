"""The explorer and the report of an evaluation count the same causes."""

from __future__ import annotations

from pathlib import Path

from rag_r1.agent import Turn
from rag_r1.evaluation.report.bootstrap import Bootstrap
from rag_r1.evaluation.report.report import make_report
from rag_r1.explorer import queries
from rag_r1.explorer.filters import Selection, selection_of
from tests.explorer.made_records import GOLD, answered, failed_search, record, searched, write

CASES = [
    ([searched(), answered(GOLD)], GOLD, True),
    ([searched(), answered("x")], "x", False),
    ([searched("Mara", ["nothing"]), answered("x")], "x", False),
    ([searched("Tito", ["nothing"]), answered("x")], "x", False),
    ([answered("x")], "x", False),
    ([failed_search(), answered("x")], "x", False),
    ([searched(), Turn("<th", "invalid", status="truncated")], None, False),
    ([searched()], None, False),
]


def evaluation(folder: Path) -> Path:
    """A finished evaluation with every cause, some of them twice, and an episode that has failed."""
    records = [
        record(f"q{i}-{k}#0", answer, turns, right=right, question_id=f"q{i}-{k}", sample=0)
        for i, (turns, answer, right) in enumerate(CASES)
        for k in range(1 + i % 2)
    ]
    lost = record("lost#0", None, [], right=None, status="engine_failure", rewards={"score": None})
    lost["failures"] = [{"kind": "engine", "turn": 0, "detail": ""}]
    write(folder / "trajectories" / "records.jsonl", [*records, lost])
    return folder


def test_the_counts_of_the_page_are_those_of_the_report(read, tmp_path):
    run = evaluation(tmp_path / "run")
    report = make_report(run, bootstrap=Bootstrap(resamples=10))
    with read(run).cache.connection() as connection:
        page = queries.causes(connection, Selection())
        wrong = queries.trajectories(connection, selection_of([("right", "false")]), "tid", False, 0, 0)
    counts = {cause["name"]: cause["n"] for cause in page["causes"]}
    assert len(counts) == 7 and report["counts"]["all"]["causes"] == counts
    assert page["failures"] == sum(counts.values()) == wrong["total"] == wrong["wrong"]
    text = (run / "report.md").read_text()
    for cause in page["causes"]:
        assert f"{cause['name']}: {cause['sentence']} | {cause['n']} |" in text


def test_a_report_without_wrong_answers_names_no_causes(tmp_path):
    write(tmp_path / "trajectories" / "records.jsonl", [record("q#0", right=True)])
    assert make_report(tmp_path, bootstrap=Bootstrap(resamples=10))["counts"]["all"]["causes"] == {}
    assert "Why answers are wrong" not in (tmp_path / "report.md").read_text()
