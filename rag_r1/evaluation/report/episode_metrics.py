"""Computes the metrics of one episode from its trajectory record.

Answers are scored by the same functions as the rewards of training (rag_r1/rewards), but with both
normalisers. Facts that are not in a record come from files of annotations (rag_r1/data/annotations.py):
whether the corpus can answer a question, and which passages have its answer. A number that is unknown is
None.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import get_args

from rag_r1.agent import Trajectory
from rag_r1.agent.records import summary
from rag_r1.data.evidence import GoldEvidence
from rag_r1.rewards.answer_metrics import cover_exact_match, exact_match, token_f1
from rag_r1.rewards.normalise import NormaliserName

#: The scores of an answer by name.
METRICS = {"em": exact_match, "cover_em": cover_exact_match, "f1": token_f1}
NORMALISER_NAMES: tuple[NormaliserName, ...] = get_args(NormaliserName)
#: Prefix of columns with the terms of the reward, such as a judge's.
TERM_PREFIX = "term:"
#: Figures that the logs of a training also have, under the same names (agent/records.py).
_LOGGED_FIGURES = (
    "repeated_queries", "turns", "calls", "failed_calls", "refused_calls", "retries", "seconds",
)  # fmt: skip
#: Entries of a record's rewards without a column of their own: METRICS, and those that RewardSum adds.
_SKIPPED_TERMS = (*METRICS, "score", "missing_terms")

#: Kinds of failure (agent/failures.py) that always exclude an episode, since the policy could not answer.
_NO_ANSWER = frozenset({"engine", "row", "error"})
#: Kinds of failure that a run either masks or shows to the policy. `judge` and `budget` never exclude an
#: episode: its answer does not depend on the judge, and the policy itself has spent the budget.
_SHOWN_OR_MASKED = frozenset({"retriever", "tool"})


def masked_kinds(mask: Collection[str] | None) -> frozenset[str]:
    """Return the kinds of failure that exclude an episode from the scores. `mask` are the kinds that the run
    masks; if it is None, the run is assumed to mask all of them."""
    return _NO_ANSWER | (_SHOWN_OR_MASKED if mask is None else _SHOWN_OR_MASKED & set(mask))


def episode_metrics(
    trajectory: Trajectory, golds: Sequence[str], evidence: GoldEvidence | None, answerable: bool | None
) -> dict[str, float | None]:
    """Return the metrics of one episode by name. All episodes have the same names, except for the terms of
    the reward. `evidence` and `answerable` are None if they are unknown."""
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
            f"{TERM_PREFIX}{name}": None if value is None else float(value)
            for name, value in trajectory.rewards.items()
            if name not in _SKIPPED_TERMS
        },
    }
