"""Tools that do not answer, for the entries of `rag_r1.tools` in a training (test_training_tools.py)."""

from __future__ import annotations

import asyncio

from rag_r1.options.tool_limits import ToolLimits
from rag_r1.tools import tool

WORDS = {"words": {"type": "string"}}


@tool("Is always out of order.", WORDS)
async def broken(words: str) -> str:
    raise RuntimeError("out of order")


@tool("Never answers.", WORDS, limits=ToolLimits(timeout_s=1.0, retries=0))
async def hanging(words: str) -> str:
    await asyncio.Event().wait()
    raise AssertionError("nothing sets the event")
