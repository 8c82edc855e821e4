"""sq against mq: what is measured of a run, what is said to hold, and that nothing finished is repeated."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import pytest

from examples.sq_mq import run as sq_mq
from examples.sq_mq.markdown import criteria_met, markdown
from examples.sq_mq.run import ALL, TWO_FACTS, read_figures
from rag_r1.runs.errors import RunError
from tests.evaluation.finished_runs import record, write_run


def run_of(folder: Path, **fields) -> Path:
    """One question of each kind; those with two facts are searched for in `given["searches"]`."""
    records = [
        record("q1", source="demo/one_hop", searches=[["a"]], seconds=1.0),
        record("q2", source="demo/bridge", searches=[["a"], ["b"]], seconds=2.0),
        record("q3", "no", source="demo/comparison", **fields),
        record("q4", source="demo/both", **fields),
    ]
    return write_run(folder, records)


def group(*values: float) -> dict[str, float]:
    return dict(zip(("questions", "em", "rounds", "seconds"), values, strict=True))


def test_rounds_are_turns_with_a_search_however_many_queries_they_have(tmp_path):
    figures = read_figures(run_of(tmp_path, searches=[["a", "b", "c"]], seconds=3.0))
    assert figures["bridge"] == group(1, 1.0, 2.0, 2.0)
    assert figures[TWO_FACTS] == group(2, 0.5, 1.0, 3.0)
    assert figures[ALL] == group(4, 0.75, 1.25, 2.25)


def test_a_kind_without_questions_has_no_figures(tmp_path):
    figures = read_figures(write_run(tmp_path, [record("q1", source="demo/both")]))
    assert list(figures) == ["both", TWO_FACTS, ALL]


def test_an_episode_that_failed_has_no_time_that_counts(tmp_path):
    run = write_run(tmp_path, [record("q1", source="demo/both", failure="engine")])
    with pytest.raises(RunError, match="1 episodes failed"):
        read_figures(run)


def arms(em=(0.8, 0.9), rounds=(2.0, 1.0), seconds=(2.0, 1.4)) -> dict:
    figures = [{"em": e, "rounds": r, "seconds": s} for e, r, s in zip(em, rounds, seconds, strict=True)]
    return dict(zip(("sq", "mq"), figures, strict=True))


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        (arms(), [True, True, True]),
        (arms(em=(0.8, 0.8), rounds=(2.0, 1.1), seconds=(4.0, 3.0)), [True, True, True]),
        (arms(em=(0.8, 0.7)), [False, True, True]),
        (arms(rounds=(2.0, 1.2)), [True, False, True]),
        (arms(seconds=(2.0, 1.6)), [True, True, False]),
        (arms(rounds=(0.0, 0.0)), [True, False, True]),
    ],
)
def test_each_part_of_the_claim_holds_or_not(figures, expected):
    assert list(criteria_met(figures).values()) == expected


def results(*seeds: dict) -> dict:
    runs = [
        {"seed": number} | {arm: {TWO_FACTS: figures, ALL: figures} for arm, figures in of.items()}
        for number, of in enumerate(seeds)
    ]
    settings = {"policies": "trained", "questions": 160, "search_s": 0.3, "overrides": []}
    return {"settings": settings, "runs": runs}


def test_the_page_tells_the_change_what_held_and_the_papers_figures():
    page = markdown(results(arms(), arms(em=(0.8, 0.7)), arms(rounds=(2.0, 1.9))))
    assert "| two independent facts | 0.80 | 0.83 | 2.00 | 1.30 | -35 % | 2.00 | 1.40 | -30 % |" in page
    assert "- EM at least as high: held in part (2 of 3 seeds)" in page
    assert "- at least 45 % fewer search rounds: held in part (2 of 3 seeds)" in page
    assert "- at least 25 % less time a question: held (3 of 3 seeds)" in page
    assert "published, not measured here" in page and "8.21 and 7.42 s (-10 %)" in page


def test_a_finished_comparison_is_printed_again_and_other_settings_are_refused(tmp_path, capsys):
    made = results(arms(), arms())
    for run in made["runs"]:
        (folder := tmp_path / f"seed{run['seed']}").mkdir()
        (folder / "results.json").write_text(json.dumps({"settings": made["settings"], "results": run}))
    words = ["--seeds", "0", "1", "--out", str(tmp_path)]
    assert sq_mq.main(words) == 0
    assert "held (2 of 2 seeds)" in capsys.readouterr().out
    assert json.loads((tmp_path / "sq_mq.json").read_text())["runs"] == made["runs"]
    assert sq_mq.main([*words, "--search-s", "1"]) == 1
    assert "search_s" in capsys.readouterr().err


def test_an_interrupted_comparison_is_refused_with_other_settings(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sq_mq, "run_demo", lambda *unused: None)
    assert [sq_mq.main(["--out", str(tmp_path), "--search-s", value]) for value in ("0.1", "0.2")] == [1, 1]
    assert "search_s was 0.1 and is now 0.2" in capsys.readouterr().err


def test_more_questions_than_the_world_has_are_refused_before_a_training(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sq_mq, "write_demo", Mock(side_effect=ValueError("ask for fewer")))
    monkeypatch.setattr(sq_mq, "run_demo", training := Mock())
    assert sq_mq.main(["--out", str(tmp_path)]) == 1 and not training.called
    assert "ask for fewer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--untrained", "--policies", "a", "b"], "give one of them"),
        (["--seeds", "1", "1"], "each once"),
        (["--search-s", "-1"], "--search-s: must be a number of at least 0"),
    ],
)
def test_wrong_arguments_are_named(words, message, capsys):
    with pytest.raises(SystemExit):
        sq_mq.main(words)
    assert message in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_the_embedded_warm_starts_are_compared_through_vllm(tmp_path, capsys):
    pytest.importorskip("vllm")
    words = ["--untrained", "--questions", "8", "--search-s", "0.05", "--out", str(tmp_path / "out")]
    assert sq_mq.main(words) == 0
    assert "| two independent facts |" in capsys.readouterr().out
    results = json.loads((tmp_path / "out" / "sq_mq.json").read_text())
    [run] = results["runs"]
    for arm in ("sq", "mq"):
        assert run[arm][ALL]["questions"] == 8
        # Each search waits, one after the other.
        assert run[arm][ALL]["seconds"] >= 0.05 * run[arm][ALL]["rounds"]
