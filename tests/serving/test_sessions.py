"""How chats end, and how they are counted."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

from rag_r1.config.agent_setup import AgentSetup
from rag_r1.serving.admission import AdmissionQueue
from rag_r1.serving.metrics import ChatMetrics
from rag_r1.serving.sessions import ChatSessions


async def test_chats_that_the_stop_ends_are_not_counted_as_abandoned():
    full = AdmissionQueue(max_running=0, max_waiting=2)  # both chats wait
    chats = ChatSessions(None, full, ChatMetrics(full), "model", max_history=0)
    abandoned, ended = chats.begin(None), chats.begin(None)
    await asyncio.sleep(0)
    abandoned.task.cancel()
    await asyncio.wait([abandoned.task])
    chats.stop()
    await asyncio.wait([ended.task])
    assert b"chat_abandoned_total 1.0" in chats.metrics.page() and full.waiting == 0


def test_a_prompt_that_a_tokenizer_cannot_make_does_not_fit():
    setup = Mock(**{"budget.prompt_limit": 9, "prompt_ids.side_effect": RuntimeError("no worker")})
    assert not AgentSetup.prompt_fits(setup, "Who?")
