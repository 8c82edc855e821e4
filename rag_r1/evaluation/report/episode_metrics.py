"""Computes the metrics of one episode from its trajectory record.

Answers are compared by the same functions that reward them in training (rag_r1/rewards), here with both
normalisers. What a record does not have (whether a question can be answered from the corpus, which passages
hold its answer) comes from side files (rag_r1/data/annotations.py); a number that is not known is None.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import get_args

from rag_r1.agent import Trajectory
from rag_r1.agent.records import summary
from rag_r1.data.evidence import GoldEvidence
from rag_r1.rewards.answer_metrics import cover_exact_match, exact_match, token_f1
from rag_r1.rewards.normalise import NormaliserName

METRICS = {"em": exact_match, "cover_em": cover_exact_match, "f1": token_f1}
NORMALISER_NAMES: tuple[NormaliserName, ...] = get_args(NormaliserName)
#: Prefix of the columns that hold the terms of the reward, e.g. a judge's.
TERM = "term:"
#: Figures that the logs of a training have too (agent/records.py), under the same names.
_LOGGED_FIGURES = (
    "repeated_queries", "turns", "calls", "failed_calls", "refused_calls", "retries", "seconds",
)  # fmt: skip
#: Entries of a record's rewards that get no column: the metrics above, and what the sum of the terms adds.
_SKIPPED_TERMS = (*METRICS, "score", "missing_terms")

#: Failures after which there is no answer of the policy, whatever the run's policy of failures was.
_NO_ANSWER = frozenset({"engine", "row", "error"})
#: The kinds that a run either masks or shows to the policy. `judge` and `budget` are never masked here: the
#: answer exists without the judge, and the policy has spent the budget itself.
_SHOWN_OR_MASKED = frozenset({"retriever", "tool"})


def masked_kinds(mask: Collection[str] | None) -> frozenset[str]:
    """Returns the kinds of failure that exclude an episode from the scores. `mask`: the kinds that the run
    masks, None if they are not known."""
    return _NO_ANSWER | (_SHOWN_OR_MASKED if mask is None else _SHOWN_OR_MASKED & set(mask))


def episode_metrics(
    trajectory: Trajectory, golds: Sequence[str], evidence: GoldEvidence | None, answerable: bool | None
) -> dict[str, float | None]:
    """Returns the numbers of one episode by name; all episodes have the same names, except for terms of the
    reward."""
    figures = summary(trajectory)
    calls = (call for turn in trajectory.turns for call in turn.calls)
    documents = [document for call in calls for document in call.documents or ()]
    answered = trajectory.answer is not None
    recall = evidence.recall(documents) if evidence else None
    return {
        **{
            f"{name}:{normaliser}": metric(trajectory.answer, list(golds), normaliser=normaliser)
            for normaliser in NORMALISER_NAMES
            for name, metric in METRICS.items()
        },
        "answered": float(answered),
        "formatted": float(answered and not figures["invalid_turns"]),
        "answerable": None if answerable is None else float(answerable),
        "recall": recall,
        "found_all": None if recall is None else float(recall == 1.0),
        "searched": float(figures["searches"] > 0),
        "retrievals": float(sum(bool(turn.queries) for turn in trajectory.turns)),
        "queries": figures["searches"],
        **{name: figures[name] for name in _LOGGED_FIGURES},
        "prompt_tokens": float(trajectory.prompt_tokens),
        "generated_tokens": float(trajectory.generated_tokens),
        "observed_tokens": float(trajectory.observed_tokens),
        **{
            f"{TERM}{name}": None if value is None else float(value)
            for name, value in trajectory.rewards.items()
            if name not in _SKIPPED_TERMS
        },
    }
