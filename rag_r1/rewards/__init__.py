"""Rewards: terms that score a trajectory by its gold answers, and their weighted sum.

`reward_sum.py` computes the sum. `credit.py` divides it among the turns, and `token_credit.py` (with
`spans.py`) among the tokens. `registry.py` explains how to add a term, `config.py` reads the entry of a term
in the configuration, and `term_call.py` calls it. The shipped terms are in `terms/`; those with a model as
judge use `judge_client.py`. Evaluation uses the same metrics of answers (`answer_metrics.py`,
`normalise.py`).
"""

from rag_r1.data.rows import as_golds
from rag_r1.rewards import terms as _terms  # noqa: F401  (registers the shipped terms)
from rag_r1.rewards.answer_metrics import cover_exact_match, exact_match, token_f1
from rag_r1.rewards.normalise import normalise
from rag_r1.rewards.registry import (
    CannotJudgeError,
    Refused,
    RewardError,
    check_threshold,
    find_term,
    register,
    term_names,
)
from rag_r1.rewards.reward_sum import RewardResult, RewardSum

__all__ = [
    "RewardResult",
    "CannotJudgeError",
    "Refused",
    "RewardError",
    "RewardSum",
    "as_golds",
    "check_threshold",
    "cover_exact_match",
    "exact_match",
    "find_term",
    "normalise",
    "register",
    "term_names",
    "token_f1",
]
