"""Checks whether a retrieval server finds a gold answer in its top k passages.

One line a question is appended to a file at once, so a run that was killed asks only the others. A question
whose search failed is not in the file: the next run asks it again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from rag_r1.corpus.answer_matcher import AnswerMatcher
from rag_r1.corpus.questions import CorpusQuestion
from rag_r1.io.atomic_files import name_in_errors
from rag_r1.io.bounded_json import read_json_line
from rag_r1.protocols import Failure
from rag_r1.tools.retrieval.client import RetrievalClient, RetrieverConfig

#: Questions in flight.
_AT_ONCE = 64
#: A server that has answered none of so many is not asked the others.
_GIVE_UP = 16


class RetrieverError(RuntimeError):
    """A retrieval server that answers no question; the message has its address and the remedy."""


@dataclass(frozen=True)
class RetrievalResult:
    """The first k passages for a question. `rank`: that of the first one with a gold answer, from 1 (for a
    question of several parts the last of these ranks); None if there is none. `ids`: of all, best first."""

    rank: int | None
    ids: tuple[str, ...]

    def share_of(self, wanted: Sequence[str]) -> float:
        """The share of the wanted passages that are among these."""
        return len(set(wanted) & set(self.ids)) / len(set(wanted))


def retrieve(
    questions: Sequence[CorpusQuestion],
    table: AnswerMatcher,
    config: RetrieverConfig,
    store: Path,
    *,
    doing: str = "asking the retriever",
    progress: bool = True,
) -> dict[tuple[str, str], RetrievalResult]:
    """What the server finds for each question; those that it did not answer are left out. `table` holds all
    gold answers; `store` is the file of what is known already. Raises RetrieverError if none is answered."""
    header = json.dumps({"endpoint": config.endpoint, "topk": config.topk})
    digests = {question.key: _digest(question) for question in questions}
    stored = _load(store, header)
    known = {key: found for key, (digest, found) in stored.items() if digests.get(key) == digest}
    left = [question for question in questions if question.key not in known]
    if not left:
        return known
    store.parent.mkdir(parents=True, exist_ok=True)
    with name_in_errors(store), store.open("a" if stored else "w", encoding="utf-8") as file:
        if not stored:
            file.write(header + "\n")

        def note(question: CorpusQuestion, found: RetrievalResult) -> None:
            known[question.key] = found
            row = {"source": question.source, "id": question.id, "of": digests[question.key]}
            file.write(json.dumps({**row, "rank": found.rank, "ids": found.ids}) + "\n")
            file.flush()

        failures = asyncio.run(_ask_all(left, table, config, note, doing, progress))
    if not known:
        raise RetrieverError(
            f"{config.endpoint} answered none of the first {len(failures)} questions ({failures[0]}). "
            "Start it: rag-r1 index serve --index DIR; or correct the address"
        )
    return known


async def _ask_all(
    questions: Sequence[CorpusQuestion],
    table: AnswerMatcher,
    config: RetrieverConfig,
    note: Callable[[CorpusQuestion, RetrievalResult], None],
    doing: str,
    progress: bool,
) -> list[str]:
    """Ask the questions; returns why searches failed."""
    client = RetrievalClient(config)
    waiting: Iterator[CorpusQuestion] = iter(questions)
    answered = 0
    failures: list[str] = []
    with tqdm(total=len(questions), desc=doing, disable=not progress) as bar:

        async def work() -> None:
            nonlocal answered
            for question in waiting:  # shared: each question is taken once
                found = await _ask(question, table, client)
                if isinstance(found, RetrievalResult):
                    answered += 1
                    note(question, found)
                else:
                    failures.append(found)
                    if not answered and len(failures) >= _GIVE_UP:
                        return
                bar.update()

        try:
            await asyncio.gather(*(work() for _ in range(_AT_ONCE)))
        finally:
            await client.close()
    return failures


async def _ask(
    question: CorpusQuestion, table: AnswerMatcher, client: RetrievalClient
) -> RetrievalResult | str:
    """What was found, or why a search failed."""
    answers = await client.search([text for text, _ in question.parts])
    ranks: list[int | None] = []
    ids: list[str] = []
    for (_, golds), documents in zip(question.parts, answers, strict=True):
        if isinstance(documents, Failure):
            return documents.detail
        wanted = {table.keys[key] for gold in golds if (key := table.add(gold)) is not None}
        found = (rank for rank, one in enumerate(documents, 1) if wanted & table.found_in(one.contents))
        ranks.append(next(found, None))
        ids += [document.id for document in documents]
    rank = None if None in ranks else max(rank for rank in ranks if rank is not None)
    return RetrievalResult(rank, tuple(dict.fromkeys(ids)))


def _digest(question: CorpusQuestion) -> str:
    """Changes with the question's text and its answers: an id alone may be that of another file's row."""
    return hashlib.sha256(json.dumps(question.parts).encode()).hexdigest()[:16]


def _load(path: Path, header: str) -> dict[tuple[str, str], tuple[str, RetrievalResult]]:
    """What an earlier run of the same server and k has found, with the digest of the question; the last line
    may be cut off."""
    try:
        lines = path.read_bytes().split(b"\n")
        if lines[0].decode() != header:
            return {}
        if lines[-1]:  # killed while writing: what follows would be glued to it
            with path.open("r+b") as file:
                file.truncate(sum(len(line) + 1 for line in lines[:-1]))
        rows = [read_json_line(line) for line in lines[1:-1]]
        return {
            (row["source"], row["id"]): (row["of"], RetrievalResult(row["rank"], tuple(row["ids"])))
            for row in rows
        }
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return {}
