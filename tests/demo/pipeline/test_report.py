"""The report of a pipeline: its figures, its verdicts, and its files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.agent import Trajectory, Turn
from rag_r1.demo.pipeline import report
from rag_r1.demo.pipeline.evaluation import score_of
from rag_r1.demo.world import KINDS, Question
from rag_r1.evaluation.report.significance import mcnemar
from rag_r1.runs.steps import PipelineFolder, Step

QUESTION = Question("q", "bridge", "Who?", "Ann Lee", ())


def scores(*ems: float) -> list[dict]:
    """The scores of a model on questions of all kinds in turn."""
    return [
        {"id": str(i), "kind": KINDS[i % 4], "em": em, "searches": 2, "format": 1.0}
        for i, em in enumerate(ems)
    ]


def trajectory(*turns: tuple[str, str], status: str = "answered", answer: str | None = None) -> Trajectory:
    made = [Turn.searched(text, [text]) if name == "search" else Turn(text, name) for text, name in turns]
    return Trajectory("q", "Who?", "rag_r1_mq", made, answer, status)


@pytest.mark.parametrize(
    ("record", "em", "searches", "format"),
    [
        (trajectory(("a", "search"), ("b", "search"), ("c", "answer"), answer="ann lee"), 1.0, 2, 1.0),
        (trajectory(("a", "invalid"), ("c", "answer"), answer="Bob"), 0.0, 0, 0.0),
        (trajectory(("a", "search"), status="turn_limit"), 0.0, 1, 0.0),
    ],
)
def test_an_episode_is_scored_by_its_answer_its_searches_and_its_format(record, em, searches, format):
    scored = {"id": "q", "kind": "bridge", "em": em, "searches": searches, "format": format}
    assert score_of(QUESTION, record) == scored


def test_figures_are_means_over_all_questions_and_over_each_kind():
    figures = report.figures(scores(1, 0, 0, 0, 1, 1, 0, 0))
    assert figures["em"] == 3 / 8 and figures["questions"] == 8 and figures["searches"] == 2
    assert [figures[f"em_{kind}"] for kind in KINDS] == [1.0, 0.5, 0.0, 0.0]


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        ([1.0] * 12, [0.0] * 12, "holds"),
        ([0.0] * 12, [1.0] * 12, "the opposite holds"),
        ([1.0] * 12, [1.0] * 12, "not shown"),
        ([1.0, 1.0] + [0.0] * 10, [0.0] * 12, "not shown"),
    ],
)
def test_a_claim_holds_its_opposite_does_or_neither_was_shown(first, second, verdict):
    both = {"grpo": scores(*first), "sft": scores(*second)}
    entry = report.check_claim(report.ModelClaim("c", "grpo", "sft"), both)
    assert entry["verdict"] == verdict


EMS = st.lists(st.tuples(st.sampled_from([0.0, 1.0]), st.sampled_from([0.0, 1.0])), min_size=1, max_size=30)


@given(EMS)
def test_a_claim_and_its_opposite_mirror_each_other(pairs):
    both = {name: scores(*(pair[i] for pair in pairs)) for i, name in enumerate(("grpo", "sft"))}
    claim, opposite = (
        report.check_claim(report.ModelClaim("c", "grpo", "sft"), both),
        report.check_claim(report.ModelClaim("c", "sft", "grpo"), both),
    )
    assert claim["difference"] == -opposite["difference"] and claim["p"] == opposite["p"]
    assert claim["only_first"] == opposite["only_second"] == sum(a > b for a, b in pairs)
    assert claim["p"] == mcnemar(claim["only_first"], claim["only_second"])
    assert {claim["verdict"], opposite["verdict"]} in ({"not shown"}, {"holds", "the opposite holds"})


def record(step: int, number: int, em: float) -> dict:
    rewards = {"em": em, "score": em - 0.05}
    made = trajectory(("a", "search"), ("b", "answer"))
    run = {"step": step, "split": "x", "data_source": "demo/both", "golds": ["x"]}
    return {**run, **made.to_dict(), "id": str(number), "rewards": rewards}


def finished(out: Path, models: dict[str, list[dict]]) -> PipelineFolder:
    """The folder of a pipeline as its steps leave it, as far as the report reads it."""
    splits = {"train": {"samples": 7}, "validation": {"samples": 1}}
    facts = {
        "world": {},
        "base": {"steps": 5},
        "traces": {"judged": 4, "right": 3},
        "sft_data": {"splits": splits},
        "sft": {"epochs": 2, "samples": 7},
        "filter": {"kept": 2, "questions": 6, "right_at_first": 3, "right_later": 1, "never_right": 2},
    }
    folder = PipelineFolder(out)
    for name in (*facts, *[name for name in models if name.startswith("grpo")]):
        folder.run(Step(name, {}, lambda _, name=name: facts.get(name, {}), ()))
        if name not in facts:
            for split, step, em in (("train", 1, 0.5), ("val", 0, 0.0), ("val", 2, 1.0)):
                path = out / name / "stage1" / "trajectories" / split / f"step_{step:06d}-1.jsonl"
                path.parent.mkdir(parents=True, exist_ok=True)
                lines = [json.dumps(record(step, number, em)) for number in range(3)]
                path.write_text("\n".join(lines) + "\n")
    (out / "evaluation").mkdir()
    (out / "evaluation" / "scores.json").write_text(json.dumps(models))
    return folder


@pytest.mark.slow  # draws
def test_the_report_has_what_the_steps_have_left(tmp_path):
    models = {
        "base": scores(*[0.0] * 12),
        "sft": scores(*[1.0] * 6, *[0.0] * 6),
        "grpo": scores(*[1.0] * 12),
        "grpo_without_sft": scores(*[0.0] * 12),
    }
    made = report.make_report(finished(tmp_path, models), {"protocol": "rag_r1_mq", "seed": 0})
    assert json.loads((tmp_path / "report.json").read_text())["models"]["grpo"]["em"] == 1.0
    assert [entry["verdict"] for entry in made["claims"]] == ["holds", "holds", "holds", "not shown"]
    assert made["curves"]["grpo"] == {"reward": {1: 0.45}, "held_out_em": {0: 0.0, 2: 1.0}}
    text = (tmp_path / "report.md").read_text()
    for words in (
        "| SFT, then GRPO | 1.00 |",
        "**not shown**",
        "3 of 4 right",
        "7 samples in train, 1 samples in validation",
        "2 of 6 questions kept",
        "0.00 (step 0), 1.00 (step 2)",
        "12 held-out questions",
    ):
        assert words in text
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_pipeline_without_the_control_is_reported_without_it(tmp_path):
    models = {name: scores(*[1.0] * 8) for name in ("base", "sft", "grpo")}
    folder = finished(tmp_path, models)
    shutil.rmtree(tmp_path / "grpo" / "stage1" / "trajectories" / "val")  # the training had no validation
    made = report.make_report(folder, {"protocol": "rag_r1_sq", "seed": 1})
    assert list(made["curves"]) == ["grpo"] and len(made["claims"]) == 2
    assert "without SFT" not in (tmp_path / "report.md").read_text()
