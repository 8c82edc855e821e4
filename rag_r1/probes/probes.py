"""Probes: run the agent with another search, to see whether it searches or already knows.

A score alone does not show that a policy reads what it finds: agents answer many questions from memory, and
some do worse with a search that finds nothing than without one (arXiv 2605.28721). Each probe changes one
aspect of an episode, and keeps the prompt, the budgets, the search tool's own limits and the sampling of the
real run:

    real          no change
    closed_book   the policy may not search and has to answer at once
    empty         every search finds nothing
    random        every search finds passages of the corpus that are unrelated to the query
    gold          the real search, with the gold passages that it misses added
    withheld      the real search without the question's gold passages and, if titles are known, the other
                  passages of these pages; the next results take their place

A policy that searches and reads scores low under all probes but `real` and `gold`. `random` draws its
passages by a hash of the question and the query, so the draws do not depend on the order of the searches, and
a run that is resumed shows the same passages.

An evaluation plays all probes (rag_r1/evaluation/probes/suite.py), and the validations of a training can play
them too (plugin/probe_rows.py, `rag_r1.probes`). For both, `ProbeAgent` makes the agent of each question. The
search tools of the probes are in searches.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from rag_r1.agent import Tool
from rag_r1.config.agent_setup import AgentSetup
from rag_r1.data.evidence import GoldEvidence
from rag_r1.probes.passages import Passages
from rag_r1.probes.searches import ConstantSearch, GoldSearch, RandomSearch, WithoutGoldSearch
from rag_r1.protocols import SEARCH, Document
from rag_r1.tools import RetrieverConfig, search_tools
from rag_r1.tools.function_tool import Searcher

Probe = Literal["real", "closed_book", "empty", "random", "gold", "withheld"]
PROBES: tuple[Probe, ...] = get_args(Probe)
#: Probes for which a question must name its gold passages.
NEED_GOLD: tuple[Probe, ...] = ("gold", "withheld")
#: Probes that use passages, the question's gold ones or random ones.
NEED_PASSAGES: tuple[Probe, ...] = ("random", *NEED_GOLD)
#: Documents beyond top-k that the search behind `gold` and `withheld` returns, which the server's --max-topk
#: must allow. If `withheld` leaves out more of them, which can happen with a gold page of many passages, it
#: shows fewer than top-k.
SPARE = 20


def probe_setup(
    setup: AgentSetup,
    probe: Probe,
    question_id: str,
    topk: int,
    evidence: GoldEvidence | None = None,
    pool: Sequence[Document] = (),
) -> AgentSetup:
    """Return the setup of one question's episode under a probe.

    `topk` is the number of documents per query, and `pool` has the passages for `random`. For `withheld`, the
    search of `setup` must return enough documents to replace those that are left out. Raises ValueError if
    the probe needs evidence or passages that are missing, without which no search can be answered. `applies`
    and `enough_random` say before a run whether that can happen, and whether the result means something.
    """
    if probe == "real":
        return setup
    if probe == "closed_book":
        return replace(setup, budget=replace(setup.budget, max_turns=0, final_turn=True))
    if probe in NEED_GOLD and not evidence:
        raise ValueError(f"{question_id}: the probe `{probe}` needs the question's supporting ids or titles")
    if probe == "empty":
        return _with_search(setup, lambda tools: ConstantSearch(()))
    if probe == "random":
        if len(pool) < topk:
            raise ValueError(f"the probe `random` needs at least {topk} passages, not {len(pool)}")
        return _with_search(setup, lambda tools: RandomSearch(question_id, pool, topk))
    assert evidence is not None  # checked above, since both remaining probes are in NEED_GOLD
    if probe == "gold" and not evidence.passages:
        raise ValueError(f"{question_id}: the probe `gold` needs the text of the gold passages")
    search_class = GoldSearch if probe == "gold" else WithoutGoldSearch
    return _with_search(setup, lambda tools: search_class(tools[SEARCH], evidence, topk))


@dataclass(frozen=True)
class ProbeAgent:
    """Makes the agent that plays a question under a probe, for search cards and for trainings."""

    #: The agent of the real run.
    setup: AgentSetup
    #: The same agent with the search of `deeper_search`, for the probes in NEED_GOLD.
    deeper: AgentSetup
    #: The number of documents that a search shows (`topk_of`).
    topk: int
    passages: Passages = field(default_factory=Passages)

    def evidence(self, metadata: Mapping[str, Any], golds: Sequence[str]) -> GoldEvidence:
        """Return a question's evidence from the metadata of its row, with the gold passages to show."""
        return self.passages.evidence(metadata, golds, self.topk)

    def under(self, probe: Probe, question_id: str, evidence: GoldEvidence) -> AgentSetup:
        """Return the agent that plays a question with this evidence. Raises the errors of `probe_setup`."""
        setup = self.deeper if probe in NEED_GOLD else self.setup
        pool = self.passages.distractors(evidence) if probe == "random" else ()
        return probe_setup(setup, probe, question_id, self.topk, evidence, pool)


def topk_of(retriever: Mapping[str, Any]) -> int:
    """Return the number of documents that a search with these keys shows; 0 if `topk` is not a number, since
    the key may have another meaning for a custom search tool."""
    topk = retriever.get("topk", RetrieverConfig().topk)
    return topk if isinstance(topk, int) else 0


def deeper_search(retriever: Mapping[str, Any], topk: int) -> dict[str, Any]:
    """Return the keys of a search that fills top-k even after up to SPARE of its documents are removed."""
    return {**retriever, "topk": topk + SPARE}


def applies(probe: Probe, evidence: GoldEvidence) -> bool:
    """Return whether a question with this evidence can be played under a probe."""
    if probe == "gold":
        return bool(evidence.passages)
    return probe not in NEED_GOLD or bool(evidence)


def enough_random(passages: Passages, evidence: Iterable[GoldEvidence], topk: int) -> bool:
    """Return whether `random` has enough passages: for every question, more random passages must remain
    without its gold ones than two searches show, so that searches differ."""
    return all(len(passages.distractors(gold)) > 2 * topk for gold in (GoldEvidence(), *evidence))


def _with_search(setup: AgentSetup, search: Callable[[Mapping[str, Tool]], Searcher | Tool]) -> AgentSetup:
    """Return the setup with another search, which `search` makes from the setup's tools. It keeps the limits
    of the real search."""

    def tools() -> dict[str, Tool]:
        real = setup.tools()
        probed = search_tools(search(real))
        probed[SEARCH].limits = getattr(real.get(SEARCH), "limits", None)
        return {**real, **probed}

    return replace(setup, tools=tools)
