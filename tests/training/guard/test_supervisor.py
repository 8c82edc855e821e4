"""A supervised training goes back after a sign, goes on after a crash or a hang, and stops when neither
helps. The trainings are processes that only pretend (pretended_training.py); real ones stand in
test_real_supervision.py.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from rag_r1.config.guard import GuardOptions
from rag_r1.config.recipes import RECIPES, Recipe
from rag_r1.inference.model_folders import TRACKER
from rag_r1.runs.errors import RunError
from rag_r1.training.composition import compose_recipe
from rag_r1.training.guard.attempts import Attempts
from rag_r1.training.guard.signs import TrainingFacts
from rag_r1.training.guard.supervisor import Supervisor, check_supervision
from rag_r1.training.guard.watched_run import WatchedRun
from rag_r1.training.metrics_files import MetricsFile

pytestmark = pytest.mark.slow  # seconds of waiting

PRETENDED = Path(__file__).with_name("pretended_training.py")


def watched(folder: Path, **guard) -> WatchedRun:
    options = GuardOptions(**{"hang_s": 60.0, **guard})
    run = WatchedRun(folder, options, TrainingFacts({"em": 1.0}), 1e-3, folder / "t")
    return WatchedRun.from_json(run.to_json())  # as `rag-r1 train` passes it on


def supervisor(folder: Path, plan: dict, monkeypatch, **guard) -> Supervisor:
    def command(changes: Sequence[str], metrics: Path) -> list[str]:
        return [sys.executable, str(PRETENDED), str(folder), str(metrics), json.dumps(plan), *changes]

    made = Supervisor(watched(folder, **guard), command)
    # A pretended checkpoint has no optimizer.
    monkeypatch.setattr(made.checkpoints, "set_learning_rate", lambda step, rate: rates.append((step, rate)))
    rates: list[tuple[int, float]] = []
    made.rates = rates
    return made


def starts(folder: Path) -> list[str]:
    return (folder / "starts.txt").read_text().splitlines()


def test_a_training_without_a_sign_is_started_once(tmp_path, monkeypatch):
    assert supervisor(tmp_path, {"steps": 6, "save": 2}, monkeypatch).run() == 0
    (attempt,) = Attempts(tmp_path).all
    assert (attempt.ending, attempt.last, attempt.signs) == ("finished", 6, [])


def test_it_goes_back_to_a_checkpoint_from_before_the_sign_with_a_smaller_learning_rate(
    tmp_path, monkeypatch
):
    records = tmp_path / "t" / "train"
    records.mkdir(parents=True)
    for step in (4, 5, 7):
        (records / f"step_{step:06d}-1.jsonl").touch()
    plan = {"steps": 12, "save": 1, "collapse": {"at": 7, "in": 1}, "wait": 0.3}
    made = supervisor(tmp_path, plan, monkeypatch)
    assert made.run() == 0
    first, second = Attempts(tmp_path).all
    assert first.ending.startswith("rolled back to step 5: right answers fell") and 7 <= first.last < 12
    assert (second.first, second.ending, second.last) == (5, "finished", 12)
    assert second.changes == ["actor_rollout_ref.actor.optim.lr=0.0003"] == starts(tmp_path)[1:]
    assert made.rates == [(5, pytest.approx(3e-4))]
    assert (tmp_path / "global_step_5" / "actor" / "weights").read_text() == "attempt 1, step 5"
    assert (tmp_path / "global_step_7" / "actor" / "weights").read_text() == "attempt 2, step 7"
    assert [path.name for path in sorted(records.iterdir())] == ["step_000004-1.jsonl", "step_000005-1.jsonl"]
    assert (tmp_path / "attempts" / "1" / "train" / "step_000007-1.jsonl").exists()


def test_a_sign_in_a_batch_ends_the_training_before_it_is_learned_from(tmp_path, monkeypatch):
    plan = {"steps": 9, "save": 1, "collapse": {"at": 7, "in": 1}, "long_update": {"at": 7, "in": 1}}
    assert supervisor(tmp_path, plan, monkeypatch).run() == 0
    first, second = Attempts(tmp_path).all
    assert first.ending.startswith("rolled back to step 5: right answers fell") and first.last == 7
    assert [step for step, _ in MetricsFile(tmp_path / "metrics-1.jsonl").new_lines()] == [1, 2, 3, 4, 5, 6]
    assert (second.first, second.ending) == (5, "finished")


@pytest.mark.full
def test_a_training_that_is_ended_while_it_writes_its_tracker_goes_on_from_a_whole_checkpoint(
    tmp_path, monkeypatch
):
    plan = {"steps": 6, "save": 1, "long_tracker": {"at": 4, "in": 1}}
    assert supervisor(tmp_path, plan, monkeypatch, hang_s=2.0, hang_factor=1.0).run() == 0
    first, second = Attempts(tmp_path).all
    assert (first.ending, second.first, second.ending) == ("it hung", 4, "finished")


@pytest.mark.full
def test_a_sign_that_comes_back_climbs_the_ladder_and_then_stops_with_its_cause(tmp_path, monkeypatch):
    plan = {"steps": 12, "save": 1, "collapse": {"at": 5, "in": 99}, "wait": 0.3}
    ladder = [{"learning_rate": 0.5}, {"learning_rate": 0.5, "set": ["a=1"]}]
    made = supervisor(tmp_path, plan, monkeypatch, ladder=ladder, max_restarts=3)
    with pytest.raises(RunError, match="right answers fell"):
        made.run()
    rate = "actor_rollout_ref.actor.optim.lr"
    assert starts(tmp_path) == ["", f"{rate}=0.0005", f"{rate}=0.00025 a=1", f"{rate}=0.00025 a=1"]
    assert [rate for _, rate in made.rates] == pytest.approx([5e-4, 2.5e-4, 2.5e-4])
    assert Attempts(tmp_path).all[-1].ending.startswith("stopped after 3 restarts")


def test_after_a_crash_it_goes_on_from_the_last_checkpoint_as_it_was(tmp_path, monkeypatch):
    plan = {"steps": 6, "save": 2, "crash": {"at": 5, "in": 2, "status": 9}}
    assert supervisor(tmp_path, plan, monkeypatch).run() == 0
    attempts = Attempts(tmp_path).all
    assert [attempt.first for attempt in attempts] == [0, 4, 4] and starts(tmp_path) == ["", "", ""]
    assert attempts[0].ending == "it ended with status 9" and attempts[-1].ending == "finished"


def test_a_crash_that_comes_back_before_each_checkpoint_is_given_up(tmp_path, monkeypatch):
    plan = {"steps": 6, "save": 2, "crash": {"at": 1, "in": 99, "status": 9}}
    with pytest.raises(RunError, match="status 9"):
        supervisor(tmp_path, plan, monkeypatch, max_restarts=2).run()
    assert len(starts(tmp_path)) == 2


def test_a_training_that_hangs_is_ended_and_goes_on(tmp_path, monkeypatch):
    plan = {"steps": 6, "save": 2, "hang": {"at": 4, "in": 1}}
    assert supervisor(tmp_path, plan, monkeypatch, hang_s=2.0, hang_factor=1.0).run() == 0
    first, second = Attempts(tmp_path).all
    assert first.ending == "it hung" and second.first == 2


def test_a_killed_supervisor_ends_what_it_left_and_goes_on(tmp_path):
    script = (
        "import sys; sys.path[:0] = [sys.argv[2]]\n"
        "from pathlib import Path\n"
        "from tests.training.guard.test_supervisor import supervisor\n"
        "from pytest import MonkeyPatch\n"
        "plan = {'steps': 8, 'save': 2, 'hang': {'at': 5, 'in': 1}}\n"
        "raise SystemExit(supervisor(Path(sys.argv[1]), plan, MonkeyPatch()).run())\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path), str(Path(__file__).parents[3])]
    killed = subprocess.Popen(command)
    deadline = time.monotonic() + 60
    while not (tmp_path / TRACKER).exists() or (tmp_path / TRACKER).read_text() != "4":
        assert time.monotonic() < deadline and killed.poll() is None
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "ended 1 processes of an earlier start" in done.stdout
    assert [attempt.ending for attempt in Attempts(tmp_path).all] == ["the supervisor was ended", "finished"]


@pytest.mark.full
def test_a_supervisor_that_was_killed_while_it_went_back_does_so_at_its_next_start(tmp_path, monkeypatch):
    plan = {"steps": 12, "save": 1, "collapse": {"at": 7, "in": 1}, "wait": 0.3}
    made = supervisor(tmp_path, plan, monkeypatch)

    def killed(step: int | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(made.checkpoints, "go_back", killed)
    with pytest.raises(KeyboardInterrupt):
        made.run()
    again = supervisor(tmp_path, plan, monkeypatch)
    assert again.run() == 0
    first, second = Attempts(tmp_path).all
    assert (
        first.back_to == second.first == again.rates[0][0] and second.changes and second.ending == "finished"
    )


def test_a_rate_that_returns_to_the_first_one_is_written_into_the_checkpoint(tmp_path, monkeypatch):
    """The kept checkpoint may be of the attempt between, which had the smaller rate."""
    made = supervisor(tmp_path, {}, monkeypatch, ladder=[{"learning_rate": 0.5}, {"learning_rate": 2.0}])
    monkeypatch.setattr(made.checkpoints, "go_back", lambda step: None)
    attempts = Attempts(tmp_path)
    for number in (1, 2):
        attempts.begin(0, [], tmp_path / f"metrics-{number}.jsonl")
        attempts.end("rolled back to step 4", 6, back_to=4)
        made._prepare(attempts)
    assert made.rates == [(4, 5e-4), (4, 1e-3)]


def test_an_attempt_that_ends_before_its_metrics_keeps_its_file(tmp_path, monkeypatch):
    made = supervisor(tmp_path, {"steps": 3, "save": 1}, monkeypatch)
    train, files = made.command, []

    def command(changes: Sequence[str], metrics: Path) -> Sequence[str]:
        files.append(metrics.name)
        return train(changes, metrics) if len(files) > 1 else [sys.executable, "-c", "raise SystemExit(3)"]

    made.command = command
    assert made.run() == 0
    assert files == [attempt.metrics for attempt in Attempts(tmp_path).all]
    assert files == ["metrics-1.jsonl", "metrics-2.jsonl"]


def test_the_last_step_of_an_attempt_that_was_killed_is_its_own(tmp_path, monkeypatch):
    made = Attempts(tmp_path)
    made.begin(0, [], tmp_path / "metrics-1.jsonl")
    data = {"search/right": 0.5, "search/score": 0.5}
    lines = [json.dumps({"step": step, "data": data}) + "\n" for step in range(1, 7)]
    (tmp_path / "metrics-1.jsonl").write_text("".join(lines))
    made.end("rolled back to step 2", 6, back_to=2)
    made.begin(2, [], tmp_path / "metrics-2.jsonl")
    (tmp_path / "metrics-2.jsonl").touch()
    (tmp_path / "global_step_2" / "actor").mkdir(parents=True)
    (tmp_path / TRACKER).write_text("2")
    assert supervisor(tmp_path, {"steps": 4, "save": 2}, monkeypatch).run() == 0
    assert [attempt.last for attempt in Attempts(tmp_path).all] == [6, 2, 4]


def test_the_page_tells_every_attempt_with_its_signs(tmp_path, monkeypatch):
    plan = {"steps": 9, "save": 1, "collapse": {"at": 6, "in": 1}, "wait": 1.0}
    supervisor(tmp_path, plan, monkeypatch).run()
    page = (tmp_path / "attempts.md").read_text()
    assert (tmp_path / "attempts.png").exists() and "attempts.png" in page
    assert re.search(r"\| 1 \| 1 to [67] \| none \| 0.40 → 0.80 → 0.00 \| rolled back to step 4", page)
    assert "lr=0.0003" in page and "attempt 1, step 6: roll back: right answers fell" in page


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ("trainer.save_freq=-1", "trainer.save_freq"),
        ("trainer.save_freq=abc", "trainer.save_freq"),
        ("trainer.resume_mode=disable", "trainer.resume_mode"),
        ("trainer.resume_mode=resume_path", "trainer.resume_mode"),
        ("trainer.logger=[console]", "trainer.logger"),
        ("trainer.logger=5", "trainer.logger"),
        (
            "actor_rollout_ref.actor.checkpoint.save_contents=[hf_model]",
            "actor_rollout_ref.actor.checkpoint.save_contents",
        ),
        ("trainer.total_epochs=1", None),
    ],
)
def test_what_it_needs_is_asked_for_before_it_starts(change, where, monkeypatch):
    monkeypatch.delenv("VERL_FILE_LOGGER_PATH", raising=False)
    right = ["trainer.save_freq=2", "trainer.resume_mode=auto"]
    config = compose_recipe(Recipe(RECIPES, "demo/grpo"), [*right, change])
    assert [problem.where for problem in check_supervision(config)] == ([where] if where else [])


@pytest.mark.parametrize(
    ("changes", "is_zero", "is_asynchronous"),
    [
        ([], True, False),
        (["actor_rollout_ref.actor.ppo_mini_batch_size=4"], False, False),
        (["preset=llds"], False, False),
        (["trainer.v1.trainer_mode=search_separate_async"], True, True),
    ],
)
def test_what_is_watched_is_read_from_the_composed_recipe(changes, is_zero, is_asynchronous, tmp_path):
    folder = f"trainer.default_local_dir={tmp_path}"
    run = WatchedRun.from_config(compose_recipe(Recipe(RECIPES, "demo/grpo"), [folder, *changes]))
    assert WatchedRun.from_json(run.to_json()) == run
    assert (run.folder, run.rate, run.records) == (tmp_path, 3e-4, tmp_path / "trajectories")
    assert run.facts == TrainingFacts({"em": 1.0, "turn_cost": -0.05}, 16, is_zero, is_asynchronous)
    assert run.options == GuardOptions()
