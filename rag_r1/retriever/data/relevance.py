"""Scores local relevance (LR): how well a candidate serves the query, from 0 to 100.

A judge (judge.py) scores ten passages at a time. What serves a query of a longer search is not always plain,
so first the judge says for each query of a trajectory what it should have found, given the accepted answers
of the question: the sub-answer. It is the reference with which passages are scored, unless it is not known.
The question itself is not shown with the passages, so a passage is scored for its query alone.

Without a judge a rule takes its place: 100 for a passage in which an accepted answer of the question stands,
or the answer of one of the steps that lead to it, if the question's row names them (`step_answers`,
rag_r1/data/rows.py); else 0. It costs nothing. It does not know which step a query is for, and finds nothing
for a query whose answer is a step that is not named. Of a question whose only answers are yes or no, or have
no letter or digit, it says nothing: such words stand anywhere.

Source: Agentic-R (arXiv 2601.11888), its steps 3-0 and 3-1; the prompts are in our own words.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rag_r1.evaluation.judge import JudgeArguments
from rag_r1.protocols import Document
from rag_r1.retriever.data.candidates import CandidateStore, rounds_with_candidates
from rag_r1.retriever.data.journal import Key, ResultJournal, fingerprint_of
from rag_r1.retriever.data.judge import (
    ATTEMPTS,
    RETRY_MESSAGE,
    JudgeUnansweredError,
    RelevanceJudge,
    instructions,
    read_scores,
    read_texts,
)
from rag_r1.retriever.data.rounds import PlayedTrajectory, SearchRound
from rag_r1.retriever.data.trajectories import TrajectoryReader
from rag_r1.retriever.records import RelevanceRecord, SubAnswersRecord
from rag_r1.rewards import cover_exact_match, normalise
from rag_r1.rollouts.concurrency import JobPool

#: What the judge says of a query whose answer it cannot tell.
NOT_SURE = "Not Sure"
#: Passages in a request.
PASSAGES_PER_REQUEST = 10
#: Characters of a passage that the judge is shown.
MOST_CHARS = 6000
#: Round number under which the sub-answers of a whole trajectory are kept.
_WHOLE = 0

#: What the judge is told, and how its list is read.
_Case = tuple[Mapping[str, Any], Callable[[list[Any]], Sequence[Any]]]


class RelevanceScorer:
    """Sub-answers and scores by a judge; a context manager, which holds the step's folder."""

    def __init__(self, args: JudgeArguments, candidates: CandidateStore, folder: Path):
        self.args, self.candidates = args, candidates
        self._told = {name: instructions(name) for name in ("sub_answers", "relevance")}
        hashes = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in self._told.items()}
        self.results = ResultJournal(
            folder,
            {
                "command": "relevance",
                "judge": args.judge_model,
                "body": json.loads(args.judge_body),
                "prompts_sha256": hashes,
                "at_once": PASSAGES_PER_REQUEST,
                "attempts": ATTEMPTS,
                "again": RETRY_MESSAGE,
            },
        )

    def __enter__(self) -> RelevanceScorer:
        return self

    def __exit__(self, *unused: object) -> None:
        self.results.__exit__()

    async def score(self, judge: RelevanceJudge, trajectories: TrajectoryReader) -> None:
        """Ask for what is missing; `judge.endpoint.stop` has the reason if the run was stopped before."""
        pool = JobPool(self.args.judge_in_flight, judge.endpoint.stop, judge.endpoint.idle)
        jobs = (partial(self._answer, judge, played) for played in trajectories)
        await pool.run(jobs, len(trajectories), "sub-answer")
        if judge.endpoint.stop.reason is None:
            scoring = (partial(self._score, judge, one) for one in trajectories.iter_rounds())
            await pool.run(scoring, trajectories.rounds, "round")

    def sub_answers(self, trajectories: TrajectoryReader) -> Iterator[SubAnswersRecord]:
        """The sub-answers of the trajectories that have them."""
        for played in trajectories:
            if answers := self.results.get(_whole(played), _whole_fingerprint(played)):
                yield SubAnswersRecord(id=played.id, sub_answers=tuple(answers))

    def records(self, trajectories: TrajectoryReader) -> Iterator[RelevanceRecord]:
        """The scores, for the rounds that have them."""
        for played in trajectories:
            for one, documents in rounds_with_candidates(self.candidates, played):
                scores = self.results.get(one.key, self._fingerprint(one, documents))
                if scores is not None:
                    by_id = {d.id: score for d, score in zip(documents, scores, strict=True)}
                    yield RelevanceRecord(id=played.id, round_index=one.index, docid_score=by_id)

    async def _answer(self, judge: RelevanceJudge, played: PlayedTrajectory) -> None:
        """Ask for the sub-answers of a trajectory."""
        case = {
            "question": played.question,
            "accepted_answers": list(played.golds),
            "searches": [_shown(one) for one in played.rounds],
        }
        read = partial(read_texts, count=len(played.rounds))
        await self._ask(judge, "sub_answers", _whole(played), _whole_fingerprint(played), [(case, read)])

    async def _score(self, judge: RelevanceJudge, one: SearchRound) -> None:
        """Ask for the scores of a round, in as many requests as it takes; not before it is settled what the
        sub-answer is, which would change the requests."""
        whole = _whole(one.played), _whole_fingerprint(one.played)
        if not self.results.has(*whole) and not self.results.attempts(*whole):
            return
        documents = self.candidates.of(one) or []
        parts = [
            documents[start : start + PASSAGES_PER_REQUEST]
            for start in range(0, len(documents), PASSAGES_PER_REQUEST)
        ]
        cases = [(self._case(one, part), partial(read_scores, count=len(part))) for part in parts]
        if cases:
            await self._ask(judge, "relevance", one.key, self._fingerprint(one, documents), cases)

    async def _ask(
        self, judge: RelevanceJudge, prompt: str, key: Key, fingerprint: str, cases: Sequence[_Case]
    ) -> None:
        """Keep what the judge says of these cases, one list after the other, or which of them failed: a case
        that has its list is not asked again."""
        if self.results.has(key, fingerprint):
            return
        before = self.results.attempts(key, fingerprint)
        name = f"{prompt}/{key[0]}/{key[1]}/{fingerprint}"
        lists = self.results.parts(key, fingerprint) or [None] * len(cases)
        missing = [number for number, one in enumerate(lists) if one is None]
        asked = await asyncio.gather(
            *(
                judge.ask(f"{name}/{number}", self._told[prompt], *cases[number], before)
                for number in missing
            ),
            return_exceptions=True,
        )
        for one in asked:
            if isinstance(one, BaseException) and not isinstance(one, JudgeUnansweredError):
                raise one
        if any(isinstance(one, JudgeUnansweredError) for one in asked):
            return
        for number, one in zip(missing, asked, strict=True):
            lists[number] = one
        if None in lists:
            self.results.failed(key, fingerprint, before + ATTEMPTS, lists)
        else:
            self.results.put(key, fingerprint, [value for one in lists for value in one])

    def _reference(self, one: SearchRound) -> str | None:
        """The sub-answer of a round, if it is known."""
        answers = self.results.get(_whole(one.played), _whole_fingerprint(one.played))
        answer = answers[one.index - 1] if answers else NOT_SURE
        return None if answer.rstrip(".").casefold() == NOT_SURE.casefold() else answer

    def _case(self, one: SearchRound, documents: Sequence[Document]) -> dict[str, Any]:
        """What the judge is told of some of a round's candidates."""
        reference = self._reference(one)
        return {
            "query": one.query,
            **({} if reference is None else {"answer": reference}),
            "passages": [
                {"number": number, "text": document.contents[:MOST_CHARS]}
                for number, document in enumerate(documents, 1)
            ],
        }

    def _fingerprint(self, one: SearchRound, documents: Sequence[Document]) -> str:
        return fingerprint_of([self._case(one, documents), [document.id for document in documents]])


def rule_records(candidates: CandidateStore, trajectories: TrajectoryReader) -> Iterator[RelevanceRecord]:
    """The scores by the rule: 100 where an accepted answer, or that of a step, stands in the passage, else 0.
    Rounds of a question without an answer that can be found so are left out."""
    for played in trajectories:
        answers = [*played.golds, *played.step_answers]
        if not _findable(answers):
            continue
        for one, documents in rounds_with_candidates(candidates, played):
            scores = {d.id: 100 * int(holds_answer(d, answers)) for d in documents}
            yield RelevanceRecord(id=played.id, round_index=one.index, docid_score=scores)


def holds_answer(document: Document, answers: Sequence[str]) -> bool:
    """Does one of these answers stand in the passage, word for word? Yes and no do not count."""
    found = _findable(answers)
    return bool(found) and bool(cover_exact_match(document.contents, found, ordered=True))


def _findable(answers: Sequence[str]) -> list[str]:
    """The answers that say something where they stand."""
    return [answer for answer in answers if normalise(answer) not in ("", "yes", "no")]


def _whole(played: PlayedTrajectory) -> Key:
    return played.id, _WHOLE


def _whole_fingerprint(played: PlayedTrajectory) -> str:
    return fingerprint_of([played.question, played.golds, [_shown(one) for one in played.rounds]])


def _shown(one: SearchRound) -> dict[str, Any]:
    """A search as the judge of sub-answers sees it."""
    return {
        "number": one.index,
        "written": one.played.turns[one.turn].text.strip(),
        "query": one.query,
        "passages": [document.contents[:MOST_CHARS] for document in one.record.documents or ()],
    }
