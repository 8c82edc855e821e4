"""The agent loop under veRL's asynchronous trainers, with generations aborted for weight updates and resumed.

The learning rate is 0: the weights of every version are the same, so whatever a trajectory went through, the
probability that the engine gave to each of its tokens must be the one that the actor computes for it
afterwards (`training/rollout_probs_diff_max`). A log-prob that has slipped by one token, or a token too many
at a seam, would show. Half of the searches are slow, so that trajectories are under way when the weights
change.

One of them is made to be. What the policy writes between `<search>` tags is, in this protocol, a call of a
tool of `rag_r1.tools`, which searches; its first call is held back until the metrics of step 1 are there,
which veRL writes after the weights have been updated (journal_loop.py). It is a first turn's call, so another
turn follows, of the new weights. That its group is trained on before the run ends is made sure of by veRL's
own limit on staleness: from step 3 on, no batch is taken before the prompts of step 1 are finished, and the
oldest come first.

`separate_async` runs on a CPU with engines of their own only (`hybrid_engine=false`, one vLLM instead of two)
and with the checkpoint engine `tcp`. veRL 0.9.1 logs a line there with an argument that loggers do not take
(trainer_separate_async.py, line 181: `logger.info(..., flush=True)`), so its level must be above INFO.

What a training must have left behind stands in async_checks.py.
"""

from __future__ import annotations

import pytest

from rag_r1.demo.policy import policy_path
from tests.chaos.async_checks import CHECKS, AsyncRun
from tests.e2e.demo_training import GROUP, QUESTIONS, Training, hydra

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2400)]

STEPS = 3
#: Seconds for which the first call is held back at most; step 1 ends long before, also on a busy machine.
HELD_S = 600
#: A policy of RAG-R1's multi-query form; between its tags it calls the tool `lookup`.
PROTOCOL = """\
extends: rag_r1_mq
name: calls_a_tool
tags:
  search: ["<ask>", "</ask>"]
blocks:
  lookup: {tags: ["<search>", "</search>"], role: call, syntax: list, tool: lookup}
"""
COMMON = (
    f"trainer.total_training_steps={STEPS}",
    "trainer.v1.sampler.custom_sampler.name=SearchReplayBufferAsync",
    "actor_rollout_ref.actor.optim.lr=0",
    "algorithm.rollout_correction.bypass_mode=false",
    "trainer.v1.sampler.max_off_policy_strategy=wait",
    f"trainer.v1.sampler.max_off_policy_threshold={STEPS}",
)
MODES = {
    "colocate_async": ("trainer.v1.trainer_mode=colocate_async",),
    "separate_async": (
        "trainer.v1.trainer_mode=separate_async",
        "trainer.v1.separate_async.parameter_sync_step=2",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={QUESTIONS // 2}",
        "actor_rollout_ref.hybrid_engine=false",
        "actor_rollout_ref.rollout.nnodes=1",
        "actor_rollout_ref.rollout.n_gpus_per_node=1",
        "actor_rollout_ref.rollout.checkpoint_engine.backend=tcp",
        "ray_kwargs.ray_init.num_gpus=2",
    ),
}


# The mode whose trainer and engines are apart has all that the other has to get right, and more.
@pytest.fixture(
    scope="module", params=["separate_async", pytest.param("colocate_async", marks=pytest.mark.full)]
)
def trained(request, demo_index, make_module_server, make_proxy, tmp_path_factory) -> AsyncRun:
    out = tmp_path_factory.mktemp(request.param)
    loops, protocol = out / "agent_loops.yaml", out / "protocol.yaml"
    # By the name that the rows have for their agent loop, which takes the place of the default one.
    loops.write_text("- {name: search_agent, _target_: tests.chaos.journal_loop.JournalAgentLoop}\n")
    protocol.write_text(PROTOCOL)
    server = make_module_server()
    with make_proxy(server.url, rate=0.5, delay_s=1.5, faults=["delayed"]) as proxy:
        lookup = {
            "tool": "tests.chaos.journal_loop:make_search",
            "url": proxy.url,
            "metrics": str(out / "run.jsonl"),
            "at_most_s": HELD_S,
            # A call that is held back is slow, not lost.
            "limits": {"timeout_s": 2 * HELD_S},
        }
        overrides = (
            *COMMON,
            *MODES[request.param],
            f"actor_rollout_ref.rollout.agent.agent_loop_config_path={loops}",
            f"rag_r1.protocol={protocol}",
            f"+rag_r1.tools.lookup={hydra(lookup)}",
        )
        run = Training(out, "run", demo_index / "data", proxy.url, overrides, VERL_LOGGING_LEVEL="WARNING")
        try:
            run.start()
            assert run.finish(900) == 0, run.tail()
        finally:
            run.stop()
    return AsyncRun(out, policy_path("rag_r1_mq"), STEPS, QUESTIONS * GROUP)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_finished_training(trained, check):
    check(trained)
