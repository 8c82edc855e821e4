"""Probes: run the agent with another search, to see whether it searches or already knows.

A score alone does not show that a policy reads what it finds: agents answer many questions from memory, and
some do worse with a search that finds nothing than without one (arXiv 2605.28721). Each probe changes one
thing of an episode and nothing else; prompt, budgets and sampling are those of the real run:

    real          the run itself
    closed_book   no turn in which the policy may search: it has to answer at once
    empty         every search finds nothing
    random        every search finds passages of the corpus that have nothing to do with the query
    gold          the real search, to which the gold passages that it misses are added
    withheld      the real search without the question's gold passages; what it ranks next takes their place

A policy that searches and reads scores low in all but `real` and `gold`. `random` draws its passages by a
hash of the question and the query, so that a run shows the same ones in any order and after any resumption.

Evaluation plays all of them (rag_r1/evaluation/probes/suite.py), and so can the validations of a training
(plugin/probe_rows.py, `rag_r1.probes`). For both, `ProbeAgent` makes the agent of each question.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal

from rag_r1.agent import Tool
from rag_r1.agent.interfaces import call_tool
from rag_r1.config.agent_setup import AgentSetup
from rag_r1.data.evidence import GoldEvidence, title_of
from rag_r1.probes.passages import Passages
from rag_r1.protocols import SEARCH, Document, Failure
from rag_r1.protocols.retriever_query import Context
from rag_r1.tools import RetrieverConfig, search_tools
from rag_r1.tools.function_tool import SearchTool

Probe = Literal["real", "closed_book", "empty", "random", "gold", "withheld"]
PROBES: tuple[Probe, ...] = ("real", "closed_book", "empty", "random", "gold", "withheld")
#: Probes that need the question's gold passages.
NEED_GOLD: tuple[Probe, ...] = ("gold", "withheld")
#: Probes that depend on the question's gold passages, or on random ones.
NEED_PASSAGES: tuple[Probe, ...] = ("random", *NEED_GOLD)
#: Documents that the search behind `gold` and `withheld` returns beyond top-k: a gold page may have many
#: passages.
SPARE = 20

Result = Sequence[Document] | Failure


def probe_setup(
    setup: AgentSetup,
    probe: Probe,
    question_id: str,
    topk: int,
    evidence: GoldEvidence | None = None,
    pool: Sequence[Document] = (),
) -> AgentSetup:
    """The setup of one question's episode under a probe.

    `topk`: documents for each query. `pool`: passages for `random`. For `withheld`, the setup's own search
    must return more than `topk` documents, enough to replace those that are left out. Raises ValueError if
    the probe needs evidence or passages that are missing.
    """
    if probe == "real":
        return setup
    if probe == "closed_book":
        return replace(setup, budget=replace(setup.budget, max_turns=0, final_turn=True))
    if probe in NEED_GOLD and not evidence:
        raise ValueError(f"{question_id}: the probe `{probe}` needs the question's supporting ids or titles")
    if probe == "empty":
        return _with_search(setup, lambda tools: _ConstantSearch(()))
    if probe == "random":
        if len(pool) < topk:
            raise ValueError(f"the probe `random` needs at least {topk} passages, not {len(pool)}")
        return _with_search(setup, lambda tools: _RandomSearch(question_id, pool, topk))
    assert evidence is not None  # checked above: both probes that are left need gold
    if probe == "gold" and not evidence.passages:
        raise ValueError(f"{question_id}: the probe `gold` needs the text of the gold passages")
    search_class = _GoldSearch if probe == "gold" else _WithoutGoldSearch
    return _with_search(setup, lambda tools: search_class(tools[SEARCH], evidence, topk))


@dataclass(frozen=True)
class ProbeAgent:
    """Makes the agent of each question under a probe, the same for a search card and in a training.

    `setup`: the real run's. `deeper`: the same with the search of `deeper_search`, for the probes of
    NEED_GOLD. `topk`: the number of documents that a search shows, from `topk_of`.
    """

    setup: AgentSetup
    deeper: AgentSetup
    topk: int
    passages: Passages = field(default_factory=Passages)

    def evidence(self, metadata: Mapping[str, Any], golds: Sequence[str]) -> GoldEvidence:
        """A question's evidence, with the gold passages that it is shown. `metadata`: its row's."""
        return self.passages.evidence(metadata, golds, self.topk)

    def under(self, probe: Probe, question_id: str, evidence: GoldEvidence) -> AgentSetup:
        """The agent that plays a question with this evidence. Raises ValueError as `probe_setup`."""
        setup = self.deeper if probe in NEED_GOLD else self.setup
        pool = self.passages.distractors(evidence) if probe == "random" else ()
        return probe_setup(setup, probe, question_id, self.topk, evidence, pool)


def topk_of(retriever: Mapping[str, Any]) -> int:
    """The number of documents that a search with these keys shows; 0 if `topk` is not a number, since a
    search tool of the user's own need not have the key."""
    topk = retriever.get("topk", RetrieverConfig().topk)
    return topk if isinstance(topk, int) else 0


def deeper_search(retriever: Mapping[str, Any], topk: int) -> dict[str, Any]:
    """The keys of a search that returns enough to fill top-k without the passages of gold pages."""
    return {**retriever, "topk": topk + SPARE}


def applies(probe: Probe, evidence: GoldEvidence) -> bool:
    """Whether a question with this evidence can be played under a probe."""
    if probe == "gold":
        return bool(evidence.passages)
    return probe not in NEED_GOLD or bool(evidence)


def enough_random(passages: Passages, evidence: Iterable[GoldEvidence], topk: int) -> bool:
    """Whether `random` can be played: without the gold passages of a question, more passages are left than
    two searches show, so that searches differ."""
    return all(len(passages.distractors(gold)) > 2 * topk for gold in (GoldEvidence(), *evidence))


@dataclass(frozen=True)
class _ConstantSearch:
    """A search that finds the same documents for every query."""

    documents: Sequence[Document]

    async def search(self, queries: Sequence[str]) -> list[Result]:
        return [list(self.documents) for _ in queries]


@dataclass(frozen=True)
class _ProbedSearch(SearchTool):
    """Base of the searches that change the results of the tool's own search."""

    reads_context: ClassVar[bool] = True
    tool: Tool
    evidence: GoldEvidence
    topk: int


class _GoldSearch(_ProbedSearch):
    """The tool's own search, with the gold passages that a call would miss.

    Each result begins with gold passages: its own, and those that no result of the call has, the ones with
    most words in common with the query first. The other documents of the search follow, up to `topk` in all;
    more than `topk` are shown only if there are more gold passages to show.

    So a policy that reads what ranks first reads what an ideal search would rank first, among as many
    passages as ever; and where the search finds every gold passage itself, only their rank changes. All gold
    passages in every result would be another form of observation, which a policy has never seen.
    """

    async def call(
        self, arguments: Sequence[Mapping[str, Any]], context: Context | None = None
    ) -> list[Result]:
        """The results of the calls, with gold passages first."""
        results = await call_tool(self.tool, arguments, context)
        gold = {_key(passage): passage for passage in self.evidence.passages}
        # The documents that the real run would show of each result; the search behind it returns more.
        shown_keys = [set() if isinstance(r, Failure) else {_key(d) for d in r[: self.topk]} for r in results]
        missed = gold.keys() - set().union(*shown_keys)
        return [
            result
            if isinstance(result, Failure)
            else self._with_gold(args["query"], result, [gold[key] for key in gold if key in keys | missed])
            for args, result, keys in zip(arguments, results, shown_keys, strict=True)
        ]

    def _with_gold(self, query: str, result: Sequence[Document], gold: Sequence[Document]) -> list[Document]:
        """The gold passages, by common words with the query, and then the other documents of a result."""
        ranked_gold = sorted(gold, key=partial(_rank, _split_words(query)))
        gold_keys = {_key(passage) for passage in ranked_gold}
        remaining = (document for document in result if _key(document) not in gold_keys)
        return [*ranked_gold, *remaining][: max(self.topk, len(ranked_gold))]


def _key(document: Document) -> tuple[str, str]:
    """The id of a passage, or its text: some corpora have no ids."""
    return (document.id, "" if document.id else document.contents)


def _rank(words: frozenset[str], document: Document) -> tuple[int, int]:
    """Sorts documents with more of the words first: in the title, then in the whole text."""
    return -len(words & _split_words(title_of(document))), -len(words & _split_words(document.contents))


def _split_words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text.casefold()))


@dataclass(frozen=True)
class _RandomSearch:
    """A search that finds passages of the pool, drawn by a hash of question and query."""

    question_id: str
    pool: Sequence[Document]
    topk: int

    async def search(self, queries: Sequence[str]) -> list[Result]:
        return [self._draw(query) for query in queries]

    def _draw(self, query: str) -> list[Document]:
        """Draws `topk` different passages of the pool for a query."""
        sample: dict[int, Document] = {}
        for number in range(64 * self.topk):
            text = f"{self.question_id}\n{query}\n{number}".encode("utf-8", "surrogatepass")
            index = int.from_bytes(hashlib.sha256(text).digest()[:8], "big") % len(self.pool)
            sample.setdefault(index, self.pool[index])
            if len(sample) == self.topk:
                break
        return list(sample.values())


class _WithoutGoldSearch(_ProbedSearch):
    """The tool's own search without the gold passages; the next documents take their place."""

    async def call(
        self, arguments: Sequence[Mapping[str, Any]], context: Context | None = None
    ) -> list[Result]:
        """The results of the calls without gold passages, `topk` documents each."""
        results = await call_tool(self.tool, arguments, context)
        return [
            result
            if isinstance(result, Failure)
            else [document for document in result if not self.evidence.holds(document)][: self.topk]
            for result in results
        ]


def _with_search(setup: AgentSetup, search: Callable[[Mapping[str, Tool]], Any]) -> AgentSetup:
    """The setup with another search, which `search` makes of the setup's tools."""

    def tools() -> dict[str, Tool]:
        real = setup.tools()
        return {**real, **search_tools(search(real))}

    return replace(setup, tools=tools)
