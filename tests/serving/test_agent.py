"""The agent behind the server."""

from __future__ import annotations

import pytest

from rag_r1.runs.errors import RunError
from rag_r1.serving.agent import open_agent
from rag_r1.serving.arguments import to_eval_arguments
from tests.serving.running_chat import GOLD, QUESTION, arguments, policy_of

pytestmark = pytest.mark.slow  # loads a tokenizer
STATES = ["rag_r1.agent.max_state=1000000"]


async def test_an_agent_with_a_max_state_gets_log_probs_in_one_piece_and_streamed(tmp_path):
    prompts: list[str] = []
    with policy_of() as policy:
        async with open_agent(to_eval_arguments(arguments(policy.url, tmp_path, overrides=STATES))) as player:
            records = [
                await player.play(QUESTION),
                await player.play(QUESTION, on_text=lambda: prompts.append),
            ]
    assert [record.answer for record in records] == [GOLD, GOLD] and prompts
    whole, streamed = (record.turns[-1].state for record in records)
    assert whole == streamed > 0


async def test_a_max_state_without_log_probs_is_an_error_at_the_start(tmp_path):
    with policy_of(ids=False) as policy:
        with pytest.raises(RunError, match="rag_r1.agent.max_state needs the log-probs"):
            async with open_agent(to_eval_arguments(arguments(policy.url, tmp_path, overrides=STATES))):
                pass
