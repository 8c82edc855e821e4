"""Scores global answer correctness (GAC): is the final answer right if a search returns one passage alone?

For each candidate of each round, the episode is replayed up to the search, which then returns only this
candidate; the other searches of the same turn keep their results. The agent continues from there with its own
searches and with the turns and tokens that are left (`Episode.resume`). GAC is 1 or 0 by the run's reward
term for right answers (exact match by default), or the mean over several continuations.

An agent that was trained with a fixed number of passages may not be able to read a single one. With
`--beside N` the candidate is therefore followed by N distractors, passages that are unrelated to the
question: they are drawn from the candidates of other questions, contain no accepted answer, and are the same
for all candidates of a round.

The continuations are played by the runner of an evaluation, in the run folder `steps/correctness`. So they
run concurrently, and none that has ended is lost or repeated if the process is killed. Their records keep
only the fields that the score needs. If the infrastructure fails in a continuation, its round has no score
until the next run of the command has played it again.

Source: Agentic-R (arXiv 2601.11888), step 3-2. The published code joins the prefix as text; here the tokens
are replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from statistics import fmean
from typing import Any

from rag_r1.protocols import Document
from rag_r1.retriever.data.arguments import DataArguments
from rag_r1.retriever.data.candidates import CandidateStore
from rag_r1.retriever.data.journal import Key, fingerprint_of
from rag_r1.retriever.data.relevance import holds_answer
from rag_r1.retriever.data.rounds import SearchRound
from rag_r1.retriever.data.trajectories import TrajectoryReader
from rag_r1.retriever.records import Continuation, ContinuationMetrics, CorrectnessRecord
from rag_r1.rollouts.requests import EpisodeRequest, seeded_fraction
from rag_r1.rollouts.session import RunSession
from rag_r1.runs.errors import RunError
from rag_r1.runs.folder import EpisodeOutcome

#: The largest number of passages from which distractors are drawn.
MAX_POOL_PASSAGES = 2000


class CorrectnessScorer:
    """Plays the continuations of all candidates in a session, and reads their scores."""

    def __init__(
        self, session: RunSession, candidates: CandidateStore, args: DataArguments, pool: Sequence[Document]
    ):
        """`pool`: the passages from which distractors are drawn; it may be empty without --beside."""
        self.session, self.candidates, self.args, self._pool = session, candidates, args, pool
        self._distractors: dict[Key, list[Document]] = {}
        session.runner.written_fields = _score_fields

    async def play(self, trajectories: TrajectoryReader, total: int) -> bool:
        """Play the missing ones of `total` continuations. Returns False if the session stopped before all of
        them had ended, successfully or not; `session.stop` then has the reason."""
        outcomes = await self.session.runner.run(self._jobs(trajectories), total, "continuation")
        return None not in outcomes

    def records(self, trajectories: TrajectoryReader) -> Iterator[CorrectnessRecord]:
        """Yield the scores of each round whose continuations all have a score."""
        for search, documents in self.candidates.rounds(trajectories):
            scores = {document.id: self._score(search, document) for document in documents}
            if None not in scores.values():
                yield CorrectnessRecord(
                    id=search.played.id,
                    question=search.played.question,
                    round_index=search.index,
                    history_queries=search.history,
                    current_query=search.query,
                    docid_score={name: score for name, score in scores.items() if score is not None},
                    dataset=search.played.dataset,
                )

    def open_rounds(self, trajectories: TrajectoryReader) -> int:
        """Return the number of rounds with continuations that the next run of the command plays again."""
        return sum(
            any(self._is_open(search, document) for document in documents)
            for search, documents in self.candidates.rounds(trajectories)
        )

    def _is_open(self, search: SearchRound, document: Document) -> bool:
        """Return whether a continuation of a candidate is missing, or failed and will be tried again."""
        outcomes = self._outcomes(search, document)
        return any(outcome is None or self.session.runner.is_open(outcome) for outcome in outcomes)

    def _outcomes(self, search: SearchRound, document: Document) -> list[EpisodeOutcome | None]:
        """Return the outcome of each continuation of a candidate; None for one that has not ended."""
        name = _continuation_name(search, self._documents(search, document))
        return [self.session.folder.outcome(f"{name}#{sample}") for sample in range(self.args.samples)]

    def _jobs(self, trajectories: TrajectoryReader) -> Iterator[Callable[[], Any]]:
        """Yield a job for each continuation of each candidate, which plays it."""
        for search, documents in self.candidates.rounds(trajectories):
            for document, sample in product(documents, range(self.args.samples)):
                yield partial(self._continue, search, document, sample)

    async def _continue(self, search: SearchRound, document: Document, sample: int) -> EpisodeOutcome:
        """Play one continuation of a candidate; `sample` is its number, from 0."""
        documents = self._documents(search, document)
        trajectory = search.played
        name = _continuation_name(search, documents)
        request = EpisodeRequest(
            question_id=name,
            question=trajectory.question,
            golds=trajectory.golds,
            messages=trajectory.messages,
            data_source=trajectory.dataset,
            sample=sample,
            seed=int(seeded_fraction(self.args.seed, "continuation", f"{name}#{sample}") * (1 << 31)),
            temperature=self.args.temperature,
            past=search.past(documents),
        )
        return await self.session.runner.play(request)

    def _score(self, search: SearchRound, document: Document) -> Continuation | None:
        """Return the score of a candidate; None if one of its continuations is missing or failed."""
        outcomes = self._outcomes(search, document)
        scored = [outcome for outcome in outcomes if outcome is not None and outcome.right is not None]
        if len(scored) < self.args.samples:
            return None
        earlier_searches = sum(len(turn.calls) for turn in search.played.turns[: search.turn + 1])
        return Continuation(
            metric_score=ContinuationMetrics(em=fmean(outcome.right for outcome in scored)),
            retrieved_times=fmean(outcome.searches - earlier_searches for outcome in scored),
        )

    def _documents(self, search: SearchRound, document: Document) -> list[Document]:
        """Return the passages that the search returns in a continuation: the candidate, then distractors."""
        if not self.args.beside:
            return [document]
        if search.key not in self._distractors:
            self._distractors[search.key] = self._draw_distractors(search)
        return [document, *self._distractors[search.key]]

    def _draw_distractors(self, search: SearchRound) -> list[Document]:
        """Draw the distractors of a round, which depend only on the seed and the round. Raises RunError if
        the pool has too few suitable passages."""
        rounds, golds, seed = search.played.rounds, search.played.golds, self.args.seed
        own_ids = {document.id for item in rounds for document in self.candidates.passages_of(item) or ()}
        others = (passage for passage in self._pool if passage.id not in own_ids)
        unrelated = [passage for passage in others if not holds_answer(passage, golds)]
        if len(unrelated) < self.args.beside:
            raise RunError(
                f"--beside {self.args.beside}: only {len(unrelated)} candidates of other questions can stand "
                f"behind those of {search.played.id}: give more questions, or a smaller number"
            )
        unrelated.sort(key=lambda passage: seeded_fraction(seed, "beside", f"{search.key}{passage.id}"))
        return unrelated[: self.args.beside]


def _continuation_name(search: SearchRound, documents: Sequence[Document]) -> str:
    """Return the name of a candidate's continuations: its round, its id, and a hash of all their inputs."""
    key = fingerprint_of([search.fingerprint, [[document.id, document.contents] for document in documents]])
    return f"{search.played.id}/{search.index}/{documents[0].id}/{key}"


def _score_fields(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an episode's record that a score and a resumed run need. Whole records would
    store a copy of each trajectory for each of its candidates."""
    turns = [
        {"status": turn["status"], "calls": [call["tool"] for call in turn["calls"]]}
        for turn in record["turns"]
    ]
    names = ("id", "right", "try", "status", "answer", "failures")
    return {**{name: record[name] for name in names}, "turns": turns}
