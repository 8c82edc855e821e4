"""A real training whose judge says nothing, declines, writes something else, or has been asked often enough.

The judge is a real HTTP server. What the training must have left behind stands in judged_checks.py.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from rag_r1.demo.run import run_demo
from tests.e2e.demo_training import recording
from tests.e2e.judged_checks import BOUNDED, CHECKS, JUDGED, JudgedRun, behaviour
from tests.fakes.judge_server import JudgeServer
from tests.fakes.openai_server import chat

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]

STEPS, QUESTIONS, GROUP = 2, 4, 8
WEIGHTS = {"em": 1.0, "turn_cost": -0.05, JUDGED: 0.5, BOUNDED: 0.25}
MOST = 5
#: Every request is sent at once, so that none waits for one that gets no answer.
TERM = (
    "{{term: judged_accuracy, name: {name}, model: {name}, weight: {weight}, url: '{url}', concurrency: 64, "
    "retries: 0, timeout_s: 8, max_requests: {most}}}"
)
OVERRIDES = (
    f"trainer.total_training_steps={STEPS}",
    f"trainer.test_freq={STEPS}",
    "data.val_max_samples=12",
    f"data.train_batch_size={QUESTIONS}",
    f"actor_rollout_ref.actor.ppo_mini_batch_size={QUESTIONS}",
    f"actor_rollout_ref.rollout.n={GROUP}",
    "actor_rollout_ref.model.external_lib=tests.e2e.recording_engine",
    # Without `judge`: such trajectories are trained on.
    "rag_r1.failures.mask=[retriever,tool,engine,row,error]",
)


def reply(body: dict[str, Any]) -> Any:
    """What the judge answers: by lot about `judged`, always a verdict about `bounded`."""
    case = json.loads(body["messages"][1]["content"])
    if body["model"] == BOUNDED:
        return "correct"
    drawn = behaviour(case["question"], case["given_answer"])
    if drawn == "refusal":
        return json.dumps(chat(None, refusal="I cannot judge this.")).encode()
    return {"silence": None, "garbage": "It depends: correct, or incorrect."}.get(drawn, drawn)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> JudgedRun:
    out = tmp_path_factory.mktemp("judged")
    with JudgeServer(reply) as server, recording(out):
        terms = ["{term: em}", f"{{term: turn_cost, weight: {WEIGHTS['turn_cost']}}}"]
        for name, most in ((JUDGED, 100_000), (BOUNDED, MOST)):
            terms.append(TERM.format(name=name, weight=WEIGHTS[name], url=server.base, most=most))
        overrides = [*OVERRIDES, f"rag_r1.reward=[{', '.join(terms)}]"]
        run_demo("grpo", out, seed=1, overrides=overrides, timeout_s=900)
        received = Counter(body["model"] for body in server.bodies)
    return JudgedRun(out, WEIGHTS, STEPS, QUESTIONS * GROUP, dict(received), MOST)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_finished_training(finished, check):
    check(finished)
