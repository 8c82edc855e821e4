"""What a process of a veRL run knows after nothing but `import verl`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow  # each test imports veRL in a process of its own

REPORT = """
import verl, sys
from verl.experimental.agent_loop.agent_loop import _agent_loop_registry as loops
from verl.experimental.reward_loop.reward_manager import get_reward_manager_cls
plugin = sys.modules.get("rag_r1.plugin")
print("failures", sorted(plugin.FAILURES) if plugin else None)
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY as estimators, POLICY_LOSS_REGISTRY as losses
print("estimator", getattr(estimators.get("turn_loo"), "__module__", None))
print("policy loss", getattr(losses.get("llds"), "__module__", None))
print("agent loop", loops.get("search_agent", {}).get("_target_"))
try:
    print("reward manager", get_reward_manager_cls("search").__name__)
except ValueError as error:
    print(error)
"""


def report(**environment: str) -> str:
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", environment.pop("code", "") + REPORT],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return run.stdout + run.stderr


def test_importing_verl_registers_agent_loop_reward_manager_policy_loss_and_estimator():
    text = report()
    assert "failures []" in text
    assert "agent loop rag_r1.plugin.agent_loop.SearchAgentLoop" in text
    assert "reward manager SearchRewardManager" in text
    assert "policy loss rag_r1.plugin.algorithms.llds" in text
    assert "estimator rag_r1.plugin.algorithms.turn_loo" in text


def test_a_part_that_cannot_be_imported_is_reported_and_takes_no_other_with_it():
    text = report(code="import sys; sys.modules['rag_r1.plugin.reward_manager'] = None\n")
    assert "failures ['reward manager']" in text
    assert "RAG-R1 could not register its reward manager" in text
    assert "agent loop rag_r1.plugin.agent_loop.SearchAgentLoop" in text


def test_without_plugins_verl_does_not_know_us():
    text = report(VERL_USE_EXTERNAL_PLUGINS="none")
    assert "failures None" in text and "agent loop None" in text and "Unknown reward manager: search" in text
