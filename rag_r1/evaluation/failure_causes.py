"""Finds out why an answer is wrong, by rules that need only the trajectory record.

A trajectory that was judged wrong has exactly one cause, the first that applies:

    tool_failed             a search failed, and no other search returned a passage
    cut                     no answer, because the tokens ran out or the last turn was cut off
    no_answer               no answer for another reason, such as the turn limit
    not_searched            answered without a search
    not_traceable           the gold is yes, no or empty, and the record names no gold passages, so the shown
                            ones cannot tell
    asked_for_wrong_thing   no gold was retrieved, and no query has a content word of the question, or all
                            queries are the same
    gold_never_retrieved    no gold was retrieved
    retrieved_and_misread   a gold was retrieved, but the answer differs from it

A gold was retrieved if all gold passages that the record names were shown, or if a shown passage contains a
gold answer word for word. The parts of an answer such as "A and B" may be in different passages. The rules
describe what happened, not what the policy thought: a passage that mentions the gold in another context
counts as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rag_r1.agent.trajectory import FAILURE_STATUSES, query_key
from rag_r1.corpus.answer_matcher import YES_NO, AnswerMatcher, answer_tokens, join_numbers_and_initials
from rag_r1.data.evidence import GoldEvidence
from rag_r1.data.rows import as_golds
from rag_r1.protocols import SEARCH, Document
from rag_r1.rewards.answer_metrics import exact_match

#: The causes, each with the sentence that reports show, in the order in which the explorer lists them.
CAUSES = {
    "tool_failed": "A search failed, and no other search returned a passage.",
    "cut": "The tokens ran out, or the last turn was cut off, before there was an answer.",
    "no_answer": "The episode ended without an answer.",
    "not_searched": "The policy answered without a search.",
    "asked_for_wrong_thing": "The queries have no word of the question, or repeat the same query.",
    "gold_never_retrieved": "No shown passage contains a gold answer: it was missed, or not searched for.",
    "retrieved_and_misread": "A gold answer stood in a shown passage, and the answer is another.",
    "not_traceable": "The gold answer is yes, no or empty, so passages do not show whether it was retrieved.",
}
#: Statuses of episodes that are not judged. A failed tool is a cause of its own.
_NOT_JUDGED = frozenset(FAILURE_STATUSES) - {"tool_failure"}
_STOP_WORDS = frozenset(
    "and are as at be been by did do does for from had has have he her his how in is it its many much of on "
    "or she that their they this to was were what when where which who whom whose why will with".split()
)
#: Separates the parts of a gold answer.
_PARTS = re.compile(r",\s*(?:and\s+)?|\s+and\s+|;\s*")

#: Length of the longest passage, in characters, whose lower-case form is cached.
_CACHED_CHARS = 2000

Record = Mapping[str, Any]
#: The indices of a turn, of a call within it, and of a document within the call, from 0.
DocumentPosition = tuple[int, int, int]


def verdict(record: Record) -> bool | None:
    """Return whether the answer was right; None for a trajectory that was not judged, such as a masked one.

    The record's key `right` decides if there is one, else the EM in its rewards, else the EM that is computed
    from its golds. Raises TypeError for a status that is a list or an object.
    """
    if "right" in record:
        return record["right"] if isinstance(record["right"], bool) else None
    rewards = record.get("rewards")
    rewards = rewards if isinstance(rewards, Mapping) else {}
    if rewards.get("score", 0.0) is None or record.get("status") in _NOT_JUDGED:
        return None
    if isinstance(em := rewards.get("em"), int | float):
        return em >= 1.0
    golds, answer = as_golds(record.get("golds")), record.get("answer")
    return bool(exact_match(answer if isinstance(answer, str) else None, golds)) if golds else None


def cause_of(record: Record) -> str | None:
    """Return the cause of a wrong answer, one of CAUSES; None if the answer was not judged wrong. Raises
    TypeError, AttributeError or KeyError for a record that is not a trajectory."""
    if verdict(record) is not False:
        return None
    turns = record.get("turns") or []
    searches = [call for turn in turns for call in turn.get("calls") or () if call.get("tool") == SEARCH]
    has_passages = any(call.get("documents") for call in searches)
    if not has_passages and any(call.get("status") == "failed" for call in searches):
        return "tool_failed"
    if record.get("answer") is None:
        was_cut = record.get("status") == "token_limit" or (turns and turns[-1].get("status") == "truncated")
        return "cut" if was_cut else "no_answer"
    if not searches:
        return "not_searched"
    was_retrieved = _was_retrieved(record)
    if was_retrieved is None:
        return "not_traceable"
    if was_retrieved:
        return "retrieved_and_misread"
    return "asked_for_wrong_thing" if _misses_question(record, searches) else "gold_never_retrieved"


def gold_positions(record: Record) -> list[DocumentPosition]:
    """Return the positions of the shown passages that are gold passages, or that contain a gold answer or one
    of its parts."""
    golds, evidence = _Golds.of(record), evidence_of(record)
    return [
        position
        for position, document in _documents(record)
        if golds.within(document.get("contents")) or (evidence and evidence.holds(_document(document)))
    ]


def _was_retrieved(record: Record) -> bool | None:
    """Return whether a gold was retrieved; None if passages cannot show it."""
    evidence = evidence_of(record)
    if evidence and evidence.recall([_document(document) for _, document in _documents(record)]) == 1.0:
        return True
    golds = _Golds.of(record)
    matches: set[int] = set()
    for _, document in _documents(record):
        matches |= golds.within(document.get("contents"))
        if any(parts <= matches for parts in golds.answers):
            return True
    return False if evidence or golds.answers else None


def _misses_question(record: Record, searches: Sequence[Record]) -> bool:
    """Return whether all of several queries are the same, or no query has a content word of the question."""
    queries = [str((call.get("arguments") or {}).get("query", "")) for call in searches]
    if len(queries) > 1 and len(set(map(query_key, queries))) == 1:
        return True
    words = set(answer_tokens(str(record.get("question", "")))) - _STOP_WORDS
    return bool(words) and not any(words & set(answer_tokens(query)) for query in queries)


@dataclass(frozen=True)
class _Golds:
    """The gold answers of a record that can be found in a text."""

    matcher: AnswerMatcher
    #: For each gold answer, as a whole and split into parts: the numbers of its parts in the matcher.
    answers: list[frozenset[int]]
    #: The longest word of each part. Most texts contain none of them and need no further search.
    words: frozenset[str]

    @classmethod
    def of(cls, record: Record) -> _Golds:
        """Return the gold answers of a record, without those that are yes, no or empty."""
        matcher, answers, words = AnswerMatcher(), [], set()
        for gold in as_golds(record.get("golds")):
            for parts in {(gold,), tuple(filter(None, _PARTS.split(gold)))}:
                keys = [matcher.key_of(part) for part in parts]
                if keys and all(key is not None and key not in YES_NO for key in keys):
                    answers.append(frozenset(matcher.keys[matcher.add(part)] for part in parts))
                    words |= {max(key.split(), key=len) for key in keys}
        return cls(matcher, answers, frozenset(words))

    def within(self, text: object) -> set[int]:
        """Return the numbers of the parts that a text contains."""
        if not self.answers or not isinstance(text, str):
            return set()
        if text.isascii():  # a fast check, which is exact for ASCII: most passages have none of the words
            lowered = _lower(text) if len(text) <= _CACHED_CHARS else join_numbers_and_initials(text).lower()
            if not any(word in lowered for word in self.words):
                return set()
        return self.matcher.matches_in(text)


@lru_cache(maxsize=4096)
def _lower(text: str) -> str:
    """Return a text in lower case, with thousands and initials joined. The result is cached, since many
    trajectories of a question contain the same passages."""
    return join_numbers_and_initials(text).lower()


def evidence_of(record: Record) -> GoldEvidence | None:
    """Return the gold passages that a record or its metadata name; None if there are none."""
    metadata = record.get("metadata")
    evidence = GoldEvidence.of(record)
    if not evidence and isinstance(metadata, Mapping):
        evidence = GoldEvidence.of(metadata)
    return evidence or None


def _documents(record: Record) -> Iterator[tuple[DocumentPosition, Record]]:
    """Yield the documents of all calls with their positions."""
    for turn_index, turn in enumerate(record.get("turns") or ()):
        for call_index, call in enumerate(turn.get("calls") or ()):
            for document_index, document in enumerate(call.get("documents") or ()):
                yield (turn_index, call_index, document_index), document


def _document(document: Record) -> Document:
    """Return the document of a record, whose fields may be missing."""
    return Document(str(document.get("id", "")), str(document.get("contents", "")))
