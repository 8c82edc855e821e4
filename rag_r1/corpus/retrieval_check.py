"""Checks whether a retrieval server returns a gold answer within its top k passages.

The result of each question is appended to a file as soon as it is known (rag_r1/runs/json_lines.py), so a
check that was killed resumes with the remaining questions. A question whose search failed is not in the file;
the next run sends it again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from rag_r1.corpus.answer_matcher import AnswerMatcher
from rag_r1.corpus.questions import CorpusQuestion
from rag_r1.options.server_address import search_fault
from rag_r1.protocols import Failure
from rag_r1.runs.errors import RunError
from rag_r1.runs.json_lines import JsonLinesFile, LinePosition
from rag_r1.tools.retrieval.client import RetrievalClient, RetrieverConfig
from rag_r1.tools.retrieval.options import first_search

#: Number of questions that are searched for at the same time.
_CONCURRENCY = 64
#: A server that has failed on this many questions, and answered none, is sent no more questions.
_MAX_FIRST_FAILURES = 16


@dataclass(frozen=True)
class RetrievalResult:
    """The first k passages that a server returned for a question, or for each part of it."""

    #: Rank, from 1, of the first passage with a gold answer; for a question with several parts, the largest
    #: of their ranks. None if there is no such passage, or none for one of the parts.
    rank: int | None
    #: Ids of all passages, each once: those of the first part, best first, and then those of the next.
    ids: tuple[str, ...]

    def share_of(self, ids: Sequence[str]) -> float:
        """Return the share of these ids, at least one, that are among the results."""
        return len(set(ids) & set(self.ids)) / len(set(ids))


#: The results of a server, by the key of the question.
RetrievalResults = dict[tuple[str, str], RetrievalResult]


def retrieve(
    questions: Sequence[CorpusQuestion],
    answers: AnswerMatcher,
    config: RetrieverConfig,
    results_file: Path,
    *,
    progress: bool = True,
) -> RetrievalResults:
    """Search a server for all questions, and return the results of the searches that succeeded.

    `answers` contains all gold answers. `results_file` may have the results of an earlier run; they are used
    if the server and k are the same. Raises RunError if all searches fail, if a line of the file was not
    written by this function, or if the disk is full, and OSError if the file cannot be opened.
    """
    digests = {question.key: _digest(question) for question in questions}
    results: RetrievalResults = {}

    def load(row: dict[str, Any], position: LinePosition) -> None:
        key = row["source"], row["id"]
        if digests.get(key) == row["of"]:
            results[key] = RetrievalResult(row["rank"], tuple(row["ids"]))

    def save(question: CorpusQuestion, result: RetrievalResult) -> None:
        row = {"source": question.source, "id": question.id, "of": digests[question.key]}
        lines.append({**row, "rank": result.rank, "ids": result.ids})

    results_file.parent.mkdir(parents=True, exist_ok=True)
    lines = JsonLinesFile(results_file, load, {"endpoint": config.endpoint, "topk": config.topk})
    try:
        unasked = [question for question in questions if question.key not in results]
        hidden = not progress or not unasked
        with tqdm(total=len(unasked), desc=f"asking the {results_file.stem}", disable=hidden) as bar:
            failures = asyncio.run(_search_all(unasked, answers, config, save, bar))
    finally:
        lines.close()
    if failures and not results:
        raise RunError(
            f"{config.endpoint} answered none of the first {len(failures)} questions ({failures[0]}). "
            "Start it: rag-r1 index serve --index DIR; or correct the address"
        )
    return results


async def try_server(config: RetrieverConfig, flag: str) -> None:
    """Send one search to a server as a check. Raises RunError if it fails; the message names `flag`, the
    option with the address."""
    client = RetrievalClient(replace(config, **first_search(vars(config))))
    try:
        [result] = await client.search(["Who wrote Hamlet?"])
    finally:
        await client.close()
    if isinstance(result, Failure):
        raise RunError(search_fault(config.url, result.detail, flag))


async def _search_all(
    questions: Sequence[CorpusQuestion],
    answers: AnswerMatcher,
    config: RetrieverConfig,
    save: Callable[[CorpusQuestion, RetrievalResult], None],
    bar: tqdm,
) -> list[str]:
    """Search for the questions, call `save` with each result, and return the reasons of the failed
    searches. `bar` shows the progress."""
    client = RetrievalClient(config)
    pending: Iterator[CorpusQuestion] = iter(questions)
    has_answered = False
    failures: list[str] = []

    async def search_pending() -> None:
        nonlocal has_answered
        for question in pending:  # shared by all workers, so each question is taken once
            result = await _search(question, answers, client)
            if isinstance(result, RetrievalResult):
                has_answered = True
                save(question, result)
            else:
                failures.append(result)
                if not has_answered and len(failures) >= _MAX_FIRST_FAILURES:
                    return
            bar.update()

    try:
        await asyncio.gather(*(search_pending() for _ in range(_CONCURRENCY)))
    finally:
        await client.close()
    return failures


async def _search(
    question: CorpusQuestion, answers: AnswerMatcher, client: RetrievalClient
) -> RetrievalResult | str:
    """Search for each part of a question. Returns the result, or the reason why a search failed."""
    part_documents = await client.search([text for text, _ in question.parts])
    ranks: list[int | None] = []
    ids: list[str] = []
    for (_, golds), documents in zip(question.parts, part_documents, strict=True):
        if isinstance(documents, Failure):
            return documents.detail
        # All golds are among the answers already, so `add` only returns their keys.
        indices = {answers.keys[key] for gold in golds if (key := answers.add(gold)) is not None}
        hits = (rank for rank, doc in enumerate(documents, 1) if indices & answers.matches_in(doc.contents))
        ranks.append(next(hits, None))
        ids += [document.id for document in documents]
    rank = None if None in ranks else max(rank for rank in ranks if rank is not None)
    return RetrievalResult(rank, tuple(dict.fromkeys(ids)))


def _digest(question: CorpusQuestion) -> str:
    """Return a hash of the question's text and answers, because an id may mean another question in the next
    run."""
    return hashlib.sha256(json.dumps(question.parts).encode()).hexdigest()[:16]
