"""Rewards: scoring terms over a trajectory and its gold answers, and their weighted sum.

`reward_sum.py` computes the sum, `credit.py` each turn's part of it, `token_credit.py` (with `spans.py`) each
token's; `registry.py` explains how to add a term, `config.py` reads a term's entry in the configuration,
`term_call.py` calls it. The shipped terms are in `terms/` (those that ask a model use `judge_*.py`), the
metrics that evaluation shares in `answer_metrics.py`, the normalisers in `normalise.py`.
"""

from rag_r1.data.rows import as_golds
from rag_r1.rewards import terms as _terms  # noqa: F401  (registers the shipped terms)
from rag_r1.rewards.answer_metrics import cover_exact_match, exact_match, token_f1
from rag_r1.rewards.normalise import normalise
from rag_r1.rewards.registry import CannotJudgeError, Refused, RewardError, register, term_names
from rag_r1.rewards.reward_sum import RewardResult, RewardSum

__all__ = [
    "RewardResult",
    "CannotJudgeError",
    "Refused",
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
