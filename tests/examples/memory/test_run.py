"""The memory in miniature: figures of its trainings, the page, and that nothing finished is repeated."""

from __future__ import annotations

import json

import pytest

from examples.common.comparison import finished_runs
from examples.memory import run as memory
from examples.memory.markdown import claims_of, draw, markdown
from examples.memory.run import RECIPES, figures
from examples.memory.warm_start import warm_start_hash
from rag_r1.demo.run import recipe_names

EMS = {f"EM {kind}": 0.5 for kind in ("one_hop", "bridge", "both")}
OTHERS = {"summary": 0.25, "backtrack": 0.5, "token limit": 0.0, "rows": 2.0}


def run_of(arm: str, seed: int, *ems: float) -> dict:
    """A finished training whose validations, six steps apart, had these EMs."""
    held_out = {str(6 * i): {**EMS, **OTHERS, "EM all": em} for i, em in enumerate(ems)}
    same = {"overrides": [], "made_of": warm_start_hash(), "seconds": 90.0}
    return {"arm": arm, "seed": seed, **same, "held_out": held_out}


def turn(action: str, row: int) -> dict:
    return {"text": "", "action": action, "row": row, "calls": []}


def test_figures_are_shares_of_trajectories_whatever_their_rows():
    right = {"id": "q", "question": "?", "protocol": "memory", "data_source": "demo/both"}
    right |= {"rewards": {"em": 1.0}, "status": "answered"}
    right["turns"] = [turn("search", 0), turn("backtrack", 0), turn("summary", 1), turn("answer", 2)]
    full = right | {"rewards": {"em": 0.0}, "status": "token_limit", "turns": [turn("search", 0)]}
    shares = figures([right, full])
    names = ("EM all", "EM both", "summary", "backtrack", "token limit")
    assert {shares[name] for name in names} == {0.5} and shares["rows"] == 2.0
    assert figures([full | {"turns": []}])["rows"] == 1.0, "an episode may end before its first turn"


@pytest.mark.parametrize(
    ("memory_ems", "plain_em", "verdict"),
    [
        ((0.2, 0.8), 0.3, "+0.50 over plain, +0.60 over its own start: held"),
        ((0.2, 0.4), 0.2, "+0.20 over plain, +0.20 over its own start: held"),
        ((0.2, 0.8), 0.7, "+0.10 over plain, +0.60 over its own start: missed"),
        ((0.7, 0.8), 0.2, "+0.60 over plain, +0.10 over its own start: missed"),
    ],
)
def test_the_claim_needs_both_gains(memory_ems, plain_em, verdict):
    runs = [run_of("memory", 3, *memory_ems), run_of("plain", 3, 0.1, plain_em)]
    assert list(map(str, claims_of(runs))) == [f"seed 3: {verdict}"]
    assert claims_of(runs[:1]) == []


@pytest.mark.slow  # the first picture of a process
def test_the_page_has_a_line_for_each_training_and_a_picture(tmp_path):
    runs = [run_of("memory", 0, 0.2, 0.5, 0.8), run_of("plain", 0, 0.2, 0.3), run_of("ppo", 0, 0.2, 0.7)]
    page = markdown(runs)
    assert "| memory, GRPO | 0 | 0.50 → 0.50 | 0.50 → 0.50 | 0.50 → 0.50 | 0.20 → 0.80 |" in page
    assert "| 12 | 1.5 |" in page and "seed 0: +0.50 over plain" in page
    assert page.count("| memory, PPO |") == 1
    draw(runs, tmp_path / "memory.png")
    assert (tmp_path / "memory.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow  # a picture
def test_finished_trainings_are_shown_again_and_those_of_other_settings_are_refused(tmp_path, capsys):
    def write(run):
        (folder := tmp_path / f"seed{run['seed']}" / run["arm"]).mkdir(parents=True)
        (folder / "memory.json").write_text(json.dumps(run))

    for run in (run_of("plain", 0, 0.2, 0.3), run_of("memory", 0, 0.2, 0.8)):
        write(run)
    runs = finished_runs(tmp_path, "memory.json", list(RECIPES))
    assert [run["arm"] for run in runs] == ["memory", "plain"]
    assert memory.main(["--out", str(tmp_path)]) == 0
    assert "held" in capsys.readouterr().out and (tmp_path / "memory.md").exists()
    assert memory.main(["--out", str(tmp_path), "trainer.total_training_steps=3"]) == 1
    assert "trainer.total_training_steps=3" in capsys.readouterr().err
    write(run_of("memory", 1, 0.2, 0.8) | {"made_of": "an earlier form"})
    # A seed that is not there: the refusal comes before any training.
    assert memory.main(["--out", str(tmp_path), "--seeds", "2"]) == 1
    assert "made_of was 'an earlier form' and is now" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--arms", "memory", "memory"], "--arms: each once"),
        (["--seeds", "1", "1"], "--seeds: each once"),
        (["--measure", "0"], "--measure"),
    ],
)
def test_wrong_arguments_are_named(words, message, capsys):
    with pytest.raises(SystemExit):
        memory.main(words)
    assert message in capsys.readouterr().err


def test_its_recipes_have_a_command_of_their_own():
    assert not set(recipe_names()) & set(RECIPES.values())
    assert {"grpo", "ppo_sq", "r1_stage1"} <= set(recipe_names())
