"""A round of the loop with everything real (veRL, vLLM, retrieval server, encoder), killed in the agent's
training and given again."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from examples.agentic_r.loop_inputs import LoopInputs
from examples.agentic_r.warm_start import PROTOCOL, protocol, warm_start_hash
from examples.agentic_r.world import write_misleading_data
from rag_r1.demo.policy import policy_path

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(3600)]

QUESTIONS, GROUP, STEPS = 4, 4, 2
SMALL = (
    f"data.train_batch_size={QUESTIONS}",
    f"actor_rollout_ref.actor.ppo_mini_batch_size={QUESTIONS}",
    f"actor_rollout_ref.rollout.n={GROUP}",
    f"trainer.total_training_steps={STEPS}",
    "trainer.save_freq=1",
)
#: A round on a busy machine, with three starts of veRL.
AT_MOST_S = 1500


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> Path:
    """The miniature's recipe with few questions and steps, and the embedded policy as the agent."""
    out = tmp_path_factory.mktemp("loop")
    (out / f"warm-{warm_start_hash()}").symlink_to(policy_path(PROTOCOL))
    ground = LoopInputs.make(out, 0)
    write_misleading_data(ground.folder / "few", protocol(), 0, scored=12, val=9)
    plan = yaml.safe_load(ground.write_recipe("loop", 0).read_text())
    for section, name in (("data", "scored"), ("evaluation", "val")):
        plan[section]["questions"] = [str(ground.folder / "few" / f"{name}.parquet")]
    plan["agent"]["overrides"] += SMALL
    # The embedded policy was always shown two passages a search. With one, it may answer nothing correctly,
    # and by correctness no row would be selected.
    plan["data"]["options"] |= {"utility": "relevance", "negatives": 2}
    plan["retriever"]["options"] |= {"epochs": 1, "negatives": 2, "batch_size": 8}
    path = out / "loop.yaml"
    path.write_text(yaml.safe_dump(plan))
    return path


def start(recipe: Path, out: Path, log: Path) -> subprocess.Popen:
    words = ["iterate", "--recipe", str(recipe), "--rounds", "1", "--out", str(out)]
    with log.open("a") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "rag_r1.cli", *words],
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            start_new_session=True,
        )


def test_a_killed_loop_goes_on_in_the_middle_of_the_agents_training(recipe: Path, tmp_path: Path):
    out, log = tmp_path / "out", tmp_path / "log.txt"
    tracker = out / "round1/agent/training/stage1/checkpoints/latest_checkpointed_iteration.txt"
    first = start(recipe, out, log)
    deadline = time.monotonic() + AT_MOST_S
    try:
        while not tracker.exists():
            assert first.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.05)
    finally:
        first.kill()
        first.wait()
    kept = {
        path: path.stat().st_mtime_ns
        for path in (out / "start/evaluation/done.json", tracker.parent / "global_step_1" / "data.pt")
    }
    assert not (out / "round1/agent/done.json").exists()
    second = start(recipe, out, log)
    try:
        assert second.wait(AT_MOST_S) == 0, log.read_text()[-3000:]
    finally:
        if second.poll() is None:
            second.terminate()
            second.wait(60)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept  # nothing was done twice
    rows = json.loads((out / "rounds.json").read_text())["rows"]
    after = ["start", "round 1, agent", "round 1, retriever", "round 2, agent"]
    assert [row["after"] for row in rows] == after
    assert all(row["questions"] == 9 and not row["failed"] for row in rows)
    state = json.loads((out / "state.json").read_text())
    assert {step["status"] for step in state["steps"]} == {"done"} and state["now"] is None
    for number in (1, 2):
        assert (out / f"round{number}/agent/model/config.json").is_file()
    assert (out / "round1/retriever/run/model/retriever.json").is_file()
    assert (out / "rounds.png").stat().st_size > 10_000
