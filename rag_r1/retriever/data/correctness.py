"""Scores global answer correctness (GAC): is the final answer right if a search finds one passage alone?

For each candidate of each round the episode is played up to the search, which then finds this candidate and
nothing else; the other searches of its turn keep what they found. The agent goes on from there with its own
searches and with the turns and tokens that are left (`Episode.resume`). GAC is 1 or 0 by the run's term,
exact match by default; of several continuations, their mean.

An agent that was trained with a fixed number of passages may not be able to read a single one. With `beside`
the candidate is followed by so many passages that have nothing to do with the question: drawn from the
candidates of other questions, the same for all candidates of a round, and without an accepted answer in them.

The continuations are asks of the same runner that plays an evaluation, in a run's folder of its own: many at
a time, each once, and none is lost or repeated if the process is killed. Of their records only what the score
needs is kept. A continuation in which the infrastructure failed has no score, and neither has its round until
the next start has played it again.

Source: Agentic-R (arXiv 2601.11888), its step 3-2, where the prefix is put together as text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from rag_r1.protocols import Document
from rag_r1.retriever.data.candidates import CandidateStore, rounds_with_candidates
from rag_r1.retriever.data.journal import Key, fingerprint_of
from rag_r1.retriever.data.relevance import holds_answer
from rag_r1.retriever.data.rounds import SearchRound
from rag_r1.retriever.data.trajectories import TrajectoryReader
from rag_r1.retriever.records import Continuation, ContinuationMetrics, CorrectnessRecord
from rag_r1.rollouts.requests import EpisodeRequest, seeded_fraction
from rag_r1.rollouts.session import RunSession
from rag_r1.runs.errors import RunError
from rag_r1.runs.folder import EpisodeOutcome, RunFolder

#: Passages from which those beside a candidate are drawn.
POOL = 2000


class CorrectnessScorer:
    """The continuations of all candidates in a session. `samples`: of each candidate. `beside`: passages of
    which `count` are shown behind each candidate, see the top of the module."""

    def __init__(
        self,
        run: RunSession,
        candidates: CandidateStore,
        samples: int,
        temperature: float,
        seed: int,
        beside: Sequence[Document] = (),
        count: int = 0,
    ):
        self.run, self.candidates = run, candidates
        self.samples, self.temperature, self.seed = samples, temperature, seed
        self._pool, self._count = list(beside)[:POOL], count
        self._beside: dict[Key, list[Document]] = {}
        run.runner.folder = _ScoreFolder(run.folder)  # type: ignore[assignment]

    async def play(self, trajectories: TrajectoryReader, total: int) -> bool:
        """Play what is missing of `total` continuations; returns whether all were played (or have failed). If
        not, `run.stop` has the reason."""
        played = await self.run.runner.run(self._jobs(trajectories), total, "continuation")
        return None not in played

    def records(self, trajectories: TrajectoryReader) -> Iterator[CorrectnessRecord]:
        """The scores, for the rounds of which all continuations have one."""
        for played in trajectories:
            for one, documents in rounds_with_candidates(self.candidates, played):
                scores = {document.id: self._score(one, document) for document in documents}
                if None not in scores.values():
                    yield CorrectnessRecord(
                        id=played.id,
                        question=played.question,
                        round_index=one.index,
                        history_queries=one.history,
                        current_query=one.query,
                        docid_score={name: score for name, score in scores.items() if score is not None},
                        dataset=played.dataset,
                    )

    def open_rounds(self, trajectories: TrajectoryReader) -> int:
        """Rounds of which the next start plays a continuation again."""
        return sum(
            any(self._is_open(one, document) for document in documents)
            for played in trajectories
            for one, documents in rounds_with_candidates(self.candidates, played)
        )

    def _is_open(self, one: SearchRound, document: Document) -> bool:
        return any(
            outcome is None or self.run.runner.is_open(outcome) for outcome in self._outcomes(one, document)
        )

    def _outcomes(self, one: SearchRound, document: Document) -> list[EpisodeOutcome | None]:
        """How the continuations of a candidate have ended, as far as they have."""
        name = _name(one, self._found(one, document))
        return [self.run.folder.outcome(f"{name}#{sample}") for sample in range(self.samples)]

    def _jobs(self, trajectories: TrajectoryReader) -> Iterator[Callable[[], Any]]:
        for played in trajectories:
            for one, documents in rounds_with_candidates(self.candidates, played):
                for document in documents:
                    for sample in range(self.samples):
                        yield partial(self._continue, one, document, sample)

    async def _continue(self, one: SearchRound, document: Document, sample: int) -> EpisodeOutcome:
        found, played = self._found(one, document), one.played
        name = _name(one, found)
        ask = EpisodeRequest(
            question_id=name,
            question=played.question,
            golds=played.golds,
            messages=played.messages,
            data_source=played.dataset,
            sample=sample,
            seed=int(seeded_fraction(self.seed, "continuation", f"{name}#{sample}") * (1 << 31)),
            temperature=self.temperature,
            past=one.past(found),
        )
        return await self.run.runner.play(ask)

    def _score(self, one: SearchRound, document: Document) -> Continuation | None:
        outcomes = self._outcomes(one, document)
        rights = [outcome.right for outcome in outcomes if outcome is not None and outcome.right is not None]
        if len(rights) < self.samples:
            return None
        before = sum(len(turn.calls) for turn in one.played.turns[: one.turn + 1])
        after = [outcome.searches - before for outcome in outcomes if outcome is not None]
        return Continuation(metric_score=ContinuationMetrics(em=_mean(rights)), retrieved_times=_mean(after))

    def _found(self, one: SearchRound, document: Document) -> list[Document]:
        """What the search of a round finds: the candidate, and what stands behind it."""
        if not self._count:
            return [document]
        if one.key not in self._beside:
            self._beside[one.key] = self._drawn(one)
        return [document, *self._beside[one.key]]

    def _drawn(self, one: SearchRound) -> list[Document]:
        near = {document.id for other in one.played.rounds for document in self.candidates.of(other) or ()}
        far = [d for d in self._pool if d.id not in near and not holds_answer(d, one.played.golds)]
        if len(far) < self._count:
            raise RunError(
                f"--beside {self._count}: only {len(far)} candidates of other questions can stand behind "
                f"those of {one.played.id}: give more questions, or a smaller number"
            )
        return sorted(far, key=lambda d: seeded_fraction(self.seed, "beside", f"{one.key}{d.id}"))[
            : self._count
        ]


def _name(one: SearchRound, found: Sequence[Document]) -> str:
    """Of a continuation: the round and the passage, and all that it depends on."""
    whole = fingerprint_of([one.fingerprint, [[document.id, document.contents] for document in found]])
    return f"{one.played.id}/{one.index}/{found[0].id}/{whole}"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


class _ScoreFolder:
    """A run's folder that keeps of each record only what a score and a resumed run need. (The whole records
    would repeat each trajectory for each of its candidates.)"""

    def __init__(self, folder: RunFolder):
        self._folder = folder
        self.outcome = folder.outcome

    def write(self, record: Mapping[str, Any]) -> EpisodeOutcome:
        """As RunFolder.write."""
        kept = {name: record[name] for name in ("id", "right", "try", "status", "answer", "failures")}
        turns = [
            {"status": turn["status"], "calls": [call["tool"] for call in turn["calls"]]}
            for turn in record["turns"]
        ]
        return self._folder.write({**kept, "turns": turns})
