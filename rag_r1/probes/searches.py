"""The search tools of the probes (probes.py), which stand in for the agent's own search.

`ConstantSearch` and `RandomSearch` answer without it. The others change its results: `GoldSearch` adds the
gold passages that it misses, and `WithoutGoldSearch` removes those that it finds.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from rag_r1.agent import Tool
from rag_r1.agent.interfaces import call_tool
from rag_r1.data.evidence import GoldEvidence, title_of
from rag_r1.protocols import Document, Failure, Refusal
from rag_r1.protocols.retriever_query import Context
from rag_r1.tools.function_tool import SearchTool

#: The result of one query or call. The probes change documents only.
Result = Sequence[Document] | Failure | Refusal


@dataclass(frozen=True)
class ConstantSearch:
    """A search tool that finds the same documents for every query."""

    documents: Sequence[Document]

    async def search(self, queries: Sequence[str]) -> list[Result]:
        """Return the documents once for each query."""
        return [list(self.documents) for _ in queries]


@dataclass(frozen=True)
class RandomSearch:
    """A search tool that finds passages of a pool, drawn by a hash of the question and the query."""

    question_id: str
    pool: Sequence[Document]
    topk: int

    async def search(self, queries: Sequence[str]) -> list[Result]:
        """Return `topk` passages for each query, the same ones for equal queries."""
        return [self._draw(query) for query in queries]

    def _draw(self, query: str) -> list[Document]:
        """Draw `topk` different passages of the pool for a query."""
        sample: dict[int, Document] = {}
        # So many draws find enough different passages, even if the pool has hardly more than `topk`.
        for number in range(64 * self.topk):
            text = f"{self.question_id}\n{query}\n{number}".encode("utf-8", "surrogatepass")
            index = int.from_bytes(hashlib.sha256(text).digest()[:8], "big") % len(self.pool)
            sample.setdefault(index, self.pool[index])
            if len(sample) == self.topk:
                break
        return list(sample.values())


@dataclass(eq=False)
class _ProbedSearch(SearchTool):
    """Base of the search tools that change the results of another one, `tool`, which also checks the
    arguments. All calls of a turn are made at once, even if `tool` has `together = False`."""

    reads_context: ClassVar[bool] = True
    tool: Tool
    evidence: GoldEvidence
    topk: int

    @property
    def index(self) -> str:
        """Name of the index that answered last, as far as `tool` knows it."""
        return getattr(self.tool, "index", "")

    def fault(self, arguments: Mapping[str, Any]) -> str | None:
        """Return what is wrong with the arguments, or None."""
        return self.tool.fault(arguments)

    async def checked(self, arguments: Mapping[str, Any]) -> str | None:
        """Return the same as `fault`, without blocking the event loop if `tool` has `checked`, too."""
        check = getattr(self.tool, "checked", None)
        return self.tool.fault(arguments) if check is None else await check(arguments)


class GoldSearch(_ProbedSearch):
    """The real search, with the gold passages that a call would miss.

    Each result begins with gold passages: those that the search found for this query, and those that it found
    for no query of the call. Passages with more words of the query come first. The other documents follow, up
    to `topk` in all; a result is longer only if there are more gold passages than that.

    So the policy sees the ranking of an ideal search, with the usual number of passages. If the search finds
    every gold passage itself, only their ranks change. Not all gold passages are put into every result,
    because the policy has never seen observations of that form.
    """

    async def call(
        self, arguments: Sequence[Mapping[str, Any]], context: Context | None = None
    ) -> list[Result]:
        """Return the results of the calls, with gold passages first."""
        results = await call_tool(self.tool, arguments, context)
        gold = {_key(passage): passage for passage in self.evidence.passages}
        shown_keys = [self._shown_keys(result) for result in results]
        missed = gold.keys() - set().union(*shown_keys)
        changed: list[Result] = []
        for call_arguments, result, keys in zip(arguments, results, shown_keys, strict=True):
            if not isinstance(result, Failure | Refusal):
                gold_to_show = [passage for key, passage in gold.items() if key in keys | missed]
                query = " ".join(map(str, call_arguments.values()))  # a tool may name its argument otherwise
                result = self._with_gold(query, result, gold_to_show)
            changed.append(result)
        return changed

    def _shown_keys(self, result: Result) -> set[tuple[str, str]]:
        """Return the keys of the documents that the real run would show. This deeper search returns more."""
        if isinstance(result, Failure | Refusal):
            return set()
        return {_key(document) for document in result[: self.topk]}

    def _with_gold(self, query: str, result: Sequence[Document], gold: Sequence[Document]) -> list[Document]:
        """Return the gold passages, ranked by their words in common with the query, then other results."""
        ranked_gold = sorted(gold, key=partial(_rank, _split_words(query)))
        gold_keys = {_key(passage) for passage in ranked_gold}
        remaining = (document for document in result if _key(document) not in gold_keys)
        return [*ranked_gold, *remaining][: max(self.topk, len(ranked_gold))]


class WithoutGoldSearch(_ProbedSearch):
    """The real search without the documents that the evidence `holds`; the next ones take their place."""

    async def call(
        self, arguments: Sequence[Mapping[str, Any]], context: Context | None = None
    ) -> list[Result]:
        """Return the results of the calls without these documents, each with at most `topk` documents."""
        results = await call_tool(self.tool, arguments, context)
        return [
            result
            if isinstance(result, Failure | Refusal)
            else [document for document in result if not self.evidence.holds(document)][: self.topk]
            for result in results
        ]


def _key(document: Document) -> tuple[str, str]:
    """Return what identifies a passage: its id or, in a corpus without ids, its text."""
    return (document.id, "" if document.id else document.contents)


def _rank(words: frozenset[str], document: Document) -> tuple[int, int]:
    """Return the sort key of a document: those with more of the words, first in the title, rank higher."""
    return -len(words & _split_words(title_of(document))), -len(words & _split_words(document.contents))


def _split_words(text: str) -> frozenset[str]:
    """Return the different words of a text, regardless of their case."""
    return frozenset(re.findall(r"\w+", text.casefold()))
