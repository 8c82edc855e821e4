"""The metrics of one episode, computed from its trajectory record.

Answers are compared by the same functions that reward them in training (rag_r1/rewards), here with both
normalisers. What a record cannot tell (whether a question can be answered from the corpus, which passages
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
#: Figures of the logs of a training (agent/records.py), under the same names.
_ALL_RUN_FIGURES = (
    "repeated_queries", "turns", "calls", "failed_calls", "refused_calls", "retries", "seconds",
)  # fmt: skip
#: Terms that are not repeated: the metrics above, and what the sum adds.
_NO_TERMS = (*METRICS, "score", "missing_terms")

#: Failures after which there is no answer of the policy, whatever the run's policy of failures was.
_NO_ANSWER = frozenset({"engine", "row", "error"})
#: The kinds that a run may mask as well as show to the policy. `judge` and `budget` are never masked here:
#: the answer is there without the judge, and a spent budget is the policy's doing.
_SHOWN_OR_MASKED = frozenset({"retriever", "tool"})


def masked_kinds(mask: Collection[str] | None) -> frozenset[str]:
    """The kinds of failure that exclude an episode from the scores. `mask`: that of the run, None if it is
    not known."""
    return _NO_ANSWER | (_SHOWN_OR_MASKED if mask is None else _SHOWN_OR_MASKED & set(mask))


def episode_metrics(
    record: Trajectory, golds: Sequence[str], evidence: GoldEvidence | None, answerable: bool | None
) -> dict[str, float | None]:
    """The numbers of one episode by name; the same names for all, but for the terms of the reward."""
    figures = summary(record)
    calls = (call for turn in record.turns for call in turn.calls)
    documents = [document for call in calls for document in call.documents or ()]
    answered = record.answer is not None
    recall = evidence.recall(documents) if evidence else None
    return {
        **{
            f"{name}:{normaliser}": metric(record.answer, list(golds), normaliser=normaliser)
            for normaliser in NORMALISER_NAMES
            for name, metric in METRICS.items()
        },
        "answered": float(answered),
        "formatted": float(answered and not figures["invalid_turns"]),
        "answerable": None if answerable is None else float(answerable),
        "recall": recall,
        "found_all": None if recall is None else float(recall == 1.0),
        "searched": float(figures["searches"] > 0),
        "retrievals": float(sum(bool(turn.queries) for turn in record.turns)),
        "queries": figures["searches"],
        **{name: figures[name] for name in _ALL_RUN_FIGURES},
        "prompt_tokens": float(record.prompt_tokens),
        "generated_tokens": float(record.generated_tokens),
        "observed_tokens": float(record.observed_tokens),
        **{
            f"{TERM}{name}": None if value is None else float(value)
            for name, value in record.rewards.items()
            if name not in _NO_TERMS
        },
    }
