"""What all judges share: how a case is shown to a language model, and how its verdict of one word is read.

The reward's judge is rag_r1/rewards/judge_client.py, the evaluation's rag_r1/evaluation/judge.py, and that of
a retriever's data rag_r1/retriever/data/judge.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rag_r1.protocols.actions import well_formed


def judge_messages(instructions: str, case: Mapping[str, Any]) -> list[dict[str, str]]:
    """The conversation with the judge. The texts of the case are data: they stand apart from the
    instructions, as JSON."""
    case_text = well_formed(json.dumps(dict(case), ensure_ascii=False))
    return [{"role": "system", "content": instructions}, {"role": "user", "content": case_text}]


def verdict_word(reply: str) -> str:
    """The word that a reply consists of, in lower case; white space around it and a full stop do not matter.
    The caller compares it with the words that are allowed."""
    return reply.strip().removesuffix(".").casefold()
