"""Scores local relevance (LR): how well a candidate answers the query, from 0 to 100.

A judge (judge.py) scores ten passages per request. What a query in the middle of a trajectory is looking for
is not always obvious, so the judge first writes a sub-answer for each query: what the search should have
found, given the accepted answers of the question. The sub-answer, if it is known, is the reference when the
passages are scored. The question itself is not shown with the passages, so each passage is scored for its
query alone.

Without a judge, a rule takes its place and costs nothing: a passage scores 100 if it contains an accepted
answer of the question, or the answer of an intermediate step if the question's row names these
(`step_answers`, rag_r1/data/rows.py), and 0 otherwise. The rule does not know which step a query is for, and
it misses the answers of steps that are not named. It gives no scores for a question whose only answers are
yes or no, or have no letter or digit, because such words occur in any text.

Source: Agentic-R (arXiv 2601.11888), steps 3-0 and 3-1; the prompts are worded differently.
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
from rag_r1.inference.client import EngineFailure
from rag_r1.inference.strict_replies import ATTEMPTS, RETRY_TEMPERATURE
from rag_r1.protocols import Document
from rag_r1.retriever.data.candidates import CandidateStore
from rag_r1.retriever.data.journal import Key, ResultJournal, fingerprint_of
from rag_r1.retriever.data.judge import ListJudge, check_scores, check_texts
from rag_r1.retriever.data.prompts import instructions
from rag_r1.retriever.data.rounds import PlayedTrajectory, SearchRound
from rag_r1.retriever.data.trajectories import TrajectoryReader
from rag_r1.retriever.records import RelevanceRecord, SubAnswersRecord
from rag_r1.rewards import cover_exact_match, normalise
from rag_r1.rollouts.concurrency import JobPool

#: The judge's sub-answer for a query whose answer is not known.
NOT_SURE = "Not Sure"
#: Most passages in a request to the judge.
PASSAGES_PER_REQUEST = 10
#: Most characters of a passage in a request to the judge.
MAX_PASSAGE_CHARS = 6000
#: Round number under which the journal has the sub-answers of a whole trajectory.
_WHOLE = 0

#: The content of a request to the judge, and the function that validates its list.
_Case = tuple[Mapping[str, Any], Callable[[list[Any]], Sequence[Any]]]


class RelevanceScorer(ResultJournal):
    """Asks a judge for sub-answers and scores, and keeps them in a journal, which locks the step's folder."""

    def __init__(self, args: JudgeArguments, candidates: CandidateStore, folder: Path):
        self.args, self.candidates = args, candidates
        self._prompts = {name: instructions(name) for name in ("sub_answers", "relevance")}
        hashes = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in self._prompts.items()}
        settings = {
            "command": "relevance",
            "judge": args.judge_model,
            "body": json.loads(args.judge_body),
            "prompts_sha256": hashes,
            "at_once": PASSAGES_PER_REQUEST,
            "attempts": ATTEMPTS,
            "again": RETRY_TEMPERATURE,
        }
        super().__init__(folder, settings)

    async def score(self, judge: ListJudge, trajectories: TrajectoryReader) -> None:
        """Ask the judge for the missing sub-answers, then for the missing scores. If the run was stopped
        before the end, `judge.endpoint.stop` has the reason. Raises RunError if the disk is full."""
        pool = JobPool(self.args.judge_in_flight, judge.endpoint.stop, judge.endpoint.idle)
        jobs = (partial(self._request_sub_answers, judge, trajectory) for trajectory in trajectories)
        await pool.run(jobs, len(trajectories), "sub-answer")
        if judge.endpoint.stop.reason is None:
            scoring = (partial(self._score, judge, search) for search in trajectories.iter_rounds())
            await pool.run(scoring, trajectories.rounds, "round")

    def sub_answers(self, trajectories: TrajectoryReader) -> Iterator[SubAnswersRecord]:
        """Yield the sub-answers of the trajectories that have them."""
        for trajectory in trajectories:
            if answers := self.get(*_sub_answer_entry(trajectory)):
                yield SubAnswersRecord(id=trajectory.id, sub_answers=tuple(answers))

    def records(self, trajectories: TrajectoryReader) -> Iterator[RelevanceRecord]:
        """Yield the scores of the rounds that have them."""
        for search, documents in self.candidates.rounds(trajectories):
            scores = self.get(search.key, self._fingerprint(search, documents))
            if scores is not None:
                by_id = {document.id: score for document, score in zip(documents, scores, strict=True)}
                yield RelevanceRecord(id=search.played.id, round_index=search.index, docid_score=by_id)

    async def _request_sub_answers(self, judge: ListJudge, trajectory: PlayedTrajectory) -> None:
        """Ask the judge for the sub-answers of a trajectory, and record them."""
        case = {
            "question": trajectory.question,
            "accepted_answers": list(trajectory.golds),
            "searches": [_search_for_judge(search) for search in trajectory.rounds],
        }
        parse = partial(check_texts, count=len(trajectory.rounds))
        await self._request(judge, "sub_answers", *_sub_answer_entry(trajectory), [(case, parse)])

    async def _score(self, judge: ListJudge, search: SearchRound) -> None:
        """Ask the judge for the scores of a round, and record them. Does nothing while the sub-answers of the
        trajectory are neither known nor given up, because they are part of the requests."""
        sub_answers = _sub_answer_entry(search.played)
        if not self.has(*sub_answers) and not self.attempts(*sub_answers):
            return
        documents = self.candidates.passages_of(search) or []
        parts = [
            documents[start : start + PASSAGES_PER_REQUEST]
            for start in range(0, len(documents), PASSAGES_PER_REQUEST)
        ]
        cases = [(self._case(search, part), partial(check_scores, count=len(part))) for part in parts]
        if cases:
            await self._request(judge, "relevance", search.key, self._fingerprint(search, documents), cases)

    async def _request(
        self, judge: ListJudge, kind: str, key: Key, fingerprint: str, cases: Sequence[_Case]
    ) -> None:
        """Ask the judge about these cases, and record its lists, joined, under `key`.

        `kind` names the instructions, `sub_answers` or `relevance`. If a case fails, the lists of the others
        are recorded, so that only the failed case is requested again. Nothing is recorded if the endpoint did
        not answer one of them; the answers to the others are in the response cache.
        """
        if self.has(key, fingerprint):
            return
        earlier_attempts = self.attempts(key, fingerprint)
        name = f"{kind}/{key[0]}/{key[1]}/{fingerprint}"
        lists = self.parts(key, fingerprint) or [None] * len(cases)
        missing = [index for index, values in enumerate(lists) if values is None]
        replies = await asyncio.gather(
            *(
                judge.ask_list(f"{name}/{index}", self._prompts[kind], *cases[index], earlier_attempts)
                for index in missing
            ),
            return_exceptions=True,
        )
        for reply in replies:
            if isinstance(reply, BaseException) and not isinstance(reply, EngineFailure):
                raise reply
        if any(isinstance(reply, EngineFailure) for reply in replies):
            return
        for index, reply in zip(missing, replies, strict=True):
            lists[index] = reply
        if None in lists:
            self.put_failure(key, fingerprint, earlier_attempts + ATTEMPTS, lists)
        else:
            self.put(key, fingerprint, [value for values in lists for value in values])

    def _reference(self, search: SearchRound) -> str | None:
        """Return the sub-answer of a round; None if the judge did not know it."""
        answers = self.get(*_sub_answer_entry(search.played))
        answer = answers[search.index - 1] if answers else NOT_SURE
        return None if answer.rstrip(".").casefold() == NOT_SURE.casefold() else answer

    def _case(self, search: SearchRound, documents: Sequence[Document]) -> dict[str, Any]:
        """Return the content of the request that scores these candidates of a round."""
        reference = self._reference(search)
        texts = [document.contents[:MAX_PASSAGE_CHARS] for document in documents]
        return {
            "query": search.query,
            **({} if reference is None else {"answer": reference}),
            "passages": [{"number": number, "text": text} for number, text in enumerate(texts, 1)],
        }

    def _fingerprint(self, search: SearchRound, documents: Sequence[Document]) -> str:
        """Return a hash of the requests for a round's scores and of the ids of its candidates."""
        return fingerprint_of([self._case(search, documents), [document.id for document in documents]])


def rule_records(candidates: CandidateStore, trajectories: TrajectoryReader) -> Iterator[RelevanceRecord]:
    """Yield the scores by the rule: 100 if the passage contains an accepted answer or that of a step, and
    otherwise 0. Rounds of a question whose answers could occur in any text are left out."""
    for search, documents in candidates.rounds(trajectories):
        answers = [*search.played.golds, *search.played.step_answers]
        if _findable(answers):
            scores = {document.id: 100 * int(holds_answer(document, answers)) for document in documents}
            yield RelevanceRecord(id=search.played.id, round_index=search.index, docid_score=scores)


def holds_answer(document: Document, answers: Sequence[str]) -> bool:
    """Return whether the passage contains one of these answers word for word. Answers that could occur in any
    text, such as yes and no, do not count."""
    answers = _findable(answers)
    return bool(answers) and bool(cover_exact_match(document.contents, answers, ordered=True))


def _findable(answers: Sequence[str]) -> list[str]:
    """Return the answers that can be searched for: all but yes, no, and those without a letter or digit."""
    return [answer for answer in answers if normalise(answer) not in ("", "yes", "no")]


def _sub_answer_entry(trajectory: PlayedTrajectory) -> tuple[Key, str]:
    """Return the key and the fingerprint of a trajectory's sub-answers in the journal."""
    searches = [_search_for_judge(search) for search in trajectory.rounds]
    return (trajectory.id, _WHOLE), fingerprint_of([trajectory.question, trajectory.golds, searches])


def _search_for_judge(search: SearchRound) -> dict[str, Any]:
    """Return a search as it appears in the request for sub-answers."""
    return {
        "number": search.index,
        "written": search.played.turns[search.turn].text.strip(),
        "query": search.query,
        "passages": [document.contents[:MAX_PASSAGE_CHARS] for document in search.record.documents or ()],
    }
