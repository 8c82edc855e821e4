"""What the two-stage benchmark reads from the records of its runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import two_stages

SEARCH = " I look. <|begin_of_query|> Ulm <|end_of_query|>"
ANSWER = " So. </think> <answer> x </answer>"


def record(step: int, *texts: str, f1: float | None = 0.0) -> dict:
    """As the reward manager dumps it: the trajectory and what belongs to the run."""
    search = {"action": "search", "calls": [{"tool": "search", "arguments": {"query": "Ulm"}}]}
    turns = [{"text": t, **(search if "query" in t else {"action": "answer", "calls": []})} for t in texts]
    run = {"id": "q0", "question": "?", "protocol": "r1_searcher", "golds": ["x"], "split": "val"}
    rewards = dict.fromkeys(("score", "f1", "em", "cover_em"), f1)
    return run | {"turns": turns, "rewards": rewards, "step": step, "data_source": "demo/one_hop"}


def dump(folder: Path, split: str, *records: dict) -> None:
    for entry in records:
        path = folder / "trajectories" / split / f"step_{entry['step']:06d}-1.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(json.dumps(entry) + "\n")


def test_only_balanced_searches_count_and_unknown_rewards_are_left_out():
    made_up = SEARCH + "<|begin_of_documents|>"
    records = [
        record(0, *texts, f1=f1)
        for *texts, f1 in ((SEARCH, ANSWER, 1.0), (ANSWER, 0.5), (made_up, ANSWER, None))
    ]
    assert two_stages.summarise(records) == pytest.approx(
        {"searched": 1 / 3, "name": 0.0, "F1": 0.75, "EM": 0.75, "cover-EM": 0.75}
    )


def test_a_trajectory_asks_for_a_name_if_its_first_note_says_so():
    notes = ["a name", "some words", "every name"]
    records = [record(0, f" I take a note of {label}.{SEARCH}", ANSWER, f1=0) for label in notes]
    records.append(record(0, ANSWER, " I take a note of a name.", f1=0))
    assert two_stages.summarise(records)["name"] == pytest.approx(2 / 4)


def test_the_steps_of_the_second_stage_are_counted_on_and_its_first_validation_is_the_first_stages_last(
    tmp_path,
):
    first, second = tmp_path / "stage1", tmp_path / "stage2"
    dump(first, "val", record(0, ANSWER), record(6, SEARCH, ANSWER, f1=0.25))
    dump(second, "val", record(0, ANSWER, f1=0.75), record(4, SEARCH, ANSWER, f1=1.0))
    curve = two_stages.curve([first, second], "val")
    assert {step: point["F1"] for step, point in curve.items()} == {0: 0.0, 6: 0.25, 10: 1.0}


def finished_runs() -> list[dict]:
    """What the runs of two seeds have left behind."""
    figures = {"searched": 0.5, "name": 0.4, "F1": 0.25, "EM": 0.2, "cover-EM": 0.3}
    arms = ("two stages", "control")
    held_out = dict.fromkeys(arms, {str(step): figures for step in (0, 6, 10)})
    training = dict.fromkeys(arms, {str(step): figures | {"name": step / 10} for step in range(1, 11)})
    sampled = {"start": 0.1, "stage 1": 0.2, "stage 2": 0.3, two_stages.CONTROL: 0.15}
    results = {"stage1_steps": 6, "held_out": held_out, "training": training, "sampled": sampled}
    return [{"seed": seed, **results} for seed in (0, 1)]


@pytest.mark.slow
def test_the_table_has_four_lines_a_seed_and_the_picture_is_drawn(tmp_path):
    runs = finished_runs()
    lines = two_stages.table(runs).splitlines()
    assert len(lines) == 2 + 2 * 4
    assert lines[2] == "| 0 | start | 0 | 0.50 | 0.10 | 0.10 | 0.50 | 0.25 | 0.20 | 0.30 |"
    # The share of names is the mean of the six steps before: (0.5 + ... + 1.0) / 6.
    assert lines[5] == "| 0 | control, stage 2 alone | 10 | 0.50 | 0.75 | 0.15 | 0.50 | 0.25 | 0.20 | 0.30 |"
    two_stages.draw(runs, tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.parametrize("published", [False, True])
def test_the_page_goes_beside_the_runs_and_elsewhere_only_if_told_so(tmp_path, published):
    out, policy, elsewhere = (tmp_path / name for name in ("runs", "policy", "pages"))
    for results in finished_runs():
        folder = out / f"seed{results['seed']}"
        folder.mkdir(parents=True)
        (folder / "results.json").write_text(json.dumps(results))
    policy.mkdir()
    (policy / "config.json").write_text("{}")
    pages = Path(__file__).parents[2] / "docs" / "results"
    before = {path: path.stat().st_mtime_ns for path in pages.rglob("*")}
    arguments = ["--results", str(elsewhere)] if published else []
    two_stages.main(["--seeds", "0", "1", "--out", str(out), "--policy", str(policy), *arguments])
    page = (elsewhere if published else out) / "two_stages.md"
    assert "| 1 | stage 2 | 10 |" in page.read_text() and page.with_suffix(".png").exists()
    assert (out / "two_stages.md").exists() != published
    assert {path: path.stat().st_mtime_ns for path in pages.rglob("*")} == before
