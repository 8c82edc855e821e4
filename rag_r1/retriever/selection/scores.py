"""Reads recorded scores as rounds of scored candidates.

The files are those of `rag-r1 retriever data` or of the published pipeline (rag_r1/retriever/records.py). A
file of candidates, if there is one, determines the order of the rounds and of their candidates, and it alone
has the thought before each query. Without it, both orders are those of the correctness records, which have
the queries as well. A round counts as unscored if any of its candidates lacks a score, so rows are never
selected from only some of the candidates.

Of the scores, only the byte offset of each record is kept in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from rag_r1.retriever.records import (
    CandidatesRound,
    CorrectnessRecord,
    RelevanceRecord,
    RoundsRecord,
    read_records,
    read_with_offsets,
    record_at,
)
from rag_r1.retriever.selection.rules import QueryRound, ScoredCandidate
from rag_r1.runs.errors import RunError

ScoreRecord = TypeVar("ScoreRecord", RelevanceRecord, CorrectnessRecord)


@dataclass(frozen=True)
class ScoreFiles:
    """The files with the scores of candidates. `candidates` or `correctness` must be given, because only they
    contain the queries."""

    candidates: Path | None = None
    relevance: Path | None = None
    correctness: Path | None = None
    #: The data set of records that name none.
    dataset: str = ""

    def rounds(self) -> Iterator[QueryRound]:
        """Yield all rounds. Raises RunError for a file that cannot be read, and for a round that has two
        records in a file of scores; OSError if a file is removed meanwhile; and ValueError without a file
        that has the queries."""
        relevance = _RoundRecords(RelevanceRecord, self.relevance)
        correctness = _RoundRecords(CorrectnessRecord, self.correctness)
        if self.candidates is not None:
            for record in read_records(RoundsRecord, self.candidates):
                for search in record.trajectory:
                    key = record.id, search.round_index
                    yield self._from_candidates(record, search, relevance.get(key), correctness.get(key))
        elif self.correctness is None:
            raise ValueError("only files of candidates and of correctness have the queries: give one of them")
        else:
            for record in read_records(CorrectnessRecord, self.correctness):
                yield self._from_correctness(record, relevance.get((record.id, record.round_index)))

    def _from_candidates(
        self,
        record: RoundsRecord,
        search: CandidatesRound,
        relevance: RelevanceRecord | None,
        correctness: CorrectnessRecord | None,
    ) -> QueryRound:
        """Return the round of a search in a record of candidates, with the scores that are known."""
        earlier_rounds = (item for item in record.trajectory if item.round_index < search.round_index)
        earlier_queries = tuple(item.current_query for item in earlier_rounds)
        has_history = "history_queries" in search.model_fields_set  # the published records have none
        return QueryRound(
            dataset=record.dataset or self.dataset,
            query_id=record.id,
            question=record.question,
            round_index=search.round_index,
            history_queries=search.history_queries if has_history else earlier_queries,
            query_text=search.current_query,
            candidates=_scored_candidates(search.candidate_passage_ids, relevance, correctness),
            reasoning=search.reasoning,
        )

    def _from_correctness(self, record: CorrectnessRecord, relevance: RelevanceRecord | None) -> QueryRound:
        """Return the round of a correctness record, with the candidates in the order of the record."""
        return QueryRound(
            dataset=record.dataset or self.dataset,
            query_id=record.id,
            question=record.question,
            round_index=record.round_index,
            history_queries=record.history_queries,
            query_text=record.current_query,
            candidates=_scored_candidates(tuple(record.docid_score), relevance, record),
        )


def _scored_candidates(
    passage_ids: Sequence[str], relevance: RelevanceRecord | None, correctness: CorrectnessRecord | None
) -> tuple[ScoredCandidate, ...]:
    """Return the candidates of a round, each once, with their scores from the records."""
    lr = {} if relevance is None else relevance.docid_score
    continuations = {} if correctness is None else correctness.docid_score
    gac = {name: continuation.metric_score.em for name, continuation in continuations.items()}
    return tuple(ScoredCandidate(name, gac.get(name), lr.get(name)) for name in dict.fromkeys(passage_ids))


class _RoundRecords(Generic[ScoreRecord]):
    """Looks up the records of a file by round; without a file there are none. Raises RunError for a file that
    cannot be read, and for a round that has two records."""

    def __init__(self, kind: type[ScoreRecord], path: Path | None):
        self._kind, self._path = kind, path
        self._offsets: dict[tuple[str, int], int] = {}
        for record, offset in () if path is None else read_with_offsets(kind, path):
            key = record.id, record.round_index
            if key in self._offsets:
                raise RunError(f"{path} has round {key[1]} of {key[0]} twice: remove one of them")
            self._offsets[key] = offset

    def get(self, key: tuple[str, int]) -> ScoreRecord | None:
        """Return the record of a round, or None if there is none. Raises RunError if the file has changed,
        and OSError if it was removed."""
        if self._path is None or key not in self._offsets:
            return None
        return record_at(self._kind, self._path, self._offsets[key])
