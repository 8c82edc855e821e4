"""The report: its claims, its curves, and that texts from files never become markup."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.own.results.report import curves, markdown, step_items


def figure(value: float | None) -> dict:
    return {"value": value, "low": value, "high": value}


def report(*names: str, label: str | None = None, **more) -> dict:
    models = {
        name: {
            "label": label or name,
            "questions": 40,
            "failed": 0,
            **{key: figure(0.5) for key in ("em", "f1", "queries", "recall")},
        }
        for name in names
    }
    return {"models": models, "claims": [], "card": [], "steps": {}, "seconds": {}, **more}


def test_a_page_has_every_model_claim_and_step():
    claim = {"claim": "better", "verdict": "held", "p": 0.0001, **figure(0.25)}
    facts = {
        "documents": {"passages": 1234, "documents": 7},
        "index": {"passages": 1234},
        "questions": {"kept": 5, "seeds": 9, "rows": {"train": 4, "test": 1}, "cost": 0.25},
        "traces": {"right": 3, "judged": 4, "cost": 0.0},
        "sft_data": {"samples": 8},
        "sft": {"samples": 8, "loss": None},
        "filter": {"kept": 2, "questions": 4, "right_at_first": 1, "right_later": 2, "never_right": 1},
        "grpo": {"model": "stage1/checkpoints"},
    }
    seconds = {**dict.fromkeys(facts, 300.0), "evaluation/trained": 7200.0}
    made = report("untrained", "trained", claims=[claim], steps=facts, seconds=seconds, card=["It searches."])
    page = markdown(made)
    for words in (
        "| better | +0.250 [+0.250, +0.250] | <0.001 | **held** |",
        "**documents** (5 min): 1,234 passages of 7 documents",
        "5 of 9 kept: 4 in train, 1 in test; cost 0.25",
        "3 of 4 right",
        "**evaluation/trained** (2.0 h): exact match 0.500",
        "It searches.",
    ):
        assert words in page
    assert len(step_items(made)) == len(facts) + 1


@given(st.text(min_size=1))
def test_no_label_is_markup(label):
    page = markdown(report("untrained", label=label))
    [row] = [line for line in page.splitlines() if line.startswith("| ") and " | 0.500" in line]
    assert "<" not in row.replace("&lt;", "") and len(row.replace("\\|", "").split("|")) == 8


def test_curves_are_means_of_the_records_that_have_the_term(tmp_path):
    for split, rewards in (
        ("train", [{"score": 1.0}, {"score": 0.0}, {}]),
        ("test", [{"em": 1.0}, {"em": None}]),
        ("failed", [{}, {"em": None}]),
    ):
        folder = tmp_path / split
        folder.mkdir()
        lines = [
            json.dumps({"id": str(number), "turns": [], "step": 3, "rewards": values}) + "\n"
            for number, values in enumerate(rewards)
        ]
        (folder / "step_000003-1.jsonl").write_text("".join(lines))
    assert curves(tmp_path) == {"reward": {3: 0.5}, "held_out_em": {3: 1.0}}
    assert curves(tmp_path / "none") == {"reward": {}, "held_out_em": {}}
    (tmp_path / "test").rename(tmp_path / "old")
    (tmp_path / "failed").rename(tmp_path / "test")
    assert curves(tmp_path)["held_out_em"] == {}  # and no NaN, which JSON does not have


@pytest.mark.slow  # the first picture of a process
@pytest.mark.parametrize("trained", [True, False])
def test_the_picture_has_a_panel_for_a_training_only_if_there_was_one(tmp_path, trained):
    from rag_r1.own.results.picture import draw

    made = report("untrained", "one_shot")
    made["models"]["one_shot"]["em"] = figure(None)
    found = {"reward": {1: 0.5} if trained else {}, "held_out_em": {0: 0.25} if trained else {}}
    [path] = draw({**made, "curves": found}, tmp_path / "report.png")
    assert path.stat().st_size > 5_000
