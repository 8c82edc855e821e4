"""Rewards: scoring terms over a trajectory and its gold answers, and their weighted sum.

`reward_sum.py` computes the sum, `credit.py` each turn's part of it, `token_credit.py` (with `spans.py`) each
token's; `registry.py` explains how to add a term, `config.py` reads a term's entry in the configuration,
`term_call.py` calls it. The shipped terms are in `rag_r1/rewards/terms/answer.py`, `rag_r1/rewards/terms/choice.py`, `rag_r1/rewards/terms/search_r1.py`, `rag_r1/rewards/terms/r1_searcher.py` and
`rag_r1/rewards/terms/agentic_rag.py`, those that ask a model in `rag_r1/rewards/terms/judged.py` (with `judge_*.py`), the metrics that evaluation
shares in `answer_metrics.py`, the normalisers in `normalise.py`.
"""

from rag_r1.rewards.terms import agentic_rag
from rag_r1.rewards.terms import choice
from rag_r1.rewards.terms import judged
from rag_r1.rewards.terms import r1_searcher
from rag_r1.rewards.terms import search_r1
from rag_r1.rewards.terms import answer  # noqa: F401  (register terms)
from rag_r1.rewards.answer_metrics import cover_exact_match, exact_match, token_f1
from rag_r1.rewards.normalise import normalise
from rag_r1.rewards.registry import CannotJudgeError, RewardError, register, term_names
from rag_r1.rewards.reward_sum import RewardResult, RewardSum
from rag_r1.data.rows import as_golds

__all__ = [
    "RewardResult",
    "CannotJudgeError",
    "RewardError",
    "RewardSum",
    "as_golds",
    "cover_exact_match",
    "exact_match",
    "normalise",
    "register",
    "term_names",
    "token_f1",
]
