"""Collects the candidates of each search: the current retriever's best passages (Agentic-R's step 2).

Each query is sent exactly as the agent sends it (rag_r1/protocols/retriever_query.py), with the same checks
and retries, but it asks for more passages. Training rows refer to passages by their ids in the corpus, so a
search that returns a passage without an id ends the command with an error. A search that fails is left out;
the next run of the command sends it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rag_r1.agent.tool_executor import ToolExecutor
from rag_r1.agent.trajectory import CallRecord
from rag_r1.protocols import SEARCH, Document, Failure
from rag_r1.retriever.data.journal import ResultJournal, fingerprint_of
from rag_r1.retriever.data.rounds import PlayedTrajectory, SearchRound
from rag_r1.retriever.data.trajectories import TrajectoryReader
from rag_r1.retriever.records import CandidatesRound, PassageRecord, RoundsRecord
from rag_r1.rollouts.concurrency import JobPool
from rag_r1.rollouts.provenance_facts import describe_server, index_identity
from rag_r1.rollouts.search_check import search_settings
from rag_r1.rollouts.session import RunSetup
from rag_r1.runs.cancel_token import CancelToken
from rag_r1.runs.errors import RunError
from rag_r1.tools import RetrieverConfig, close_tools, shared_tools
from rag_r1.tools.registry import DEFAULT_TOOL


def retriever_settings(run_setup: RunSetup) -> dict[str, Any]:
    """Return the settings on which search results depend: the configured ones, and under `served` the index
    that the retrieval server reports (None for any other search tool). Raises RunError if the server does not
    answer."""
    keys = search_settings(run_setup.retriever)
    served = None
    if (keys.get("tool") or DEFAULT_TOOL) == DEFAULT_TOOL:
        options = {key: value for key, value in run_setup.retriever.items() if key != "tool"}
        served = index_identity(describe_server(RetrieverConfig.from_config(options).base)["ready"])
    return {**keys, "served": served}


class CandidateStore(ResultJournal):
    """Finds the candidates of rounds and keeps them in a journal, which locks the step's folder."""

    def __init__(self, run_setup: RunSetup, retriever: Mapping[str, Any], count: int, folder: Path):
        """`retriever`: the result of `retriever_settings`; `count`: the largest number of passages that a
        search returns."""
        self.run_setup, self.count = run_setup, count
        super().__init__(folder, {"command": "candidates", "candidates": count, "retriever": dict(retriever)})
        #: The reason of the latest failed search; empty if no search has failed.
        self.last_failure = ""

    def passages_of(self, search: SearchRound) -> list[Document] | None:
        """Return the candidates of a round, best first; None if its search was not carried out or failed."""
        value = self.get(search.key, search.fingerprint)
        return None if value is None else [Document(*pair) for pair in value["documents"]]

    async def find(self, trajectories: TrajectoryReader, in_flight: int) -> int:
        """Search for the rounds that have no candidates yet, at most `in_flight` at a time, and record the
        results. Returns the number of rounds whose search failed. Raises RunError for a passage without an
        id, and if the disk is full."""
        tools = shared_tools({**self.run_setup.retriever, "topk": self.count}, {})
        try:
            pool = JobPool(in_flight, CancelToken())
            jobs = (partial(self._search, tools, search) for search in trajectories.iter_rounds())
            outcomes = await pool.run(jobs, trajectories.rounds, "search")
        finally:
            await close_tools(tools)
        return sum(not has_succeeded for has_succeeded in outcomes)

    def rounds(
        self, trajectories: Iterable[PlayedTrajectory]
    ) -> Iterator[tuple[SearchRound, list[Document]]]:
        """Yield each round that has candidates, together with its candidates."""
        for trajectory in trajectories:
            for search in trajectory.rounds:
                if documents := self.passages_of(search):
                    yield search, documents

    def records(self, trajectories: TrajectoryReader) -> Iterator[RoundsRecord]:
        """Yield the record of each trajectory, with its rounds and their candidates. Rounds whose search
        failed are left out, and so is a trajectory all of whose searches failed."""
        for trajectory in trajectories:
            if rounds := tuple(filter(None, map(self._record, trajectory.rounds))):
                yield RoundsRecord(
                    id=trajectory.id,
                    question=trajectory.question,
                    golden_answers=trajectory.golds,
                    trajectory=rounds,
                    dataset=trajectory.dataset,
                )

    def passages(self, trajectories: TrajectoryReader) -> Iterator[PassageRecord]:
        """Yield the text of every candidate, each passage only once."""
        ids: set[str] = set()
        for _, documents in self.rounds(trajectories):
            for document in documents:
                if document.id not in ids:
                    ids.add(document.id)
                    yield PassageRecord(id=document.id, contents=document.contents)

    def fingerprint(self, trajectories: TrajectoryReader) -> str:
        """Return a hash of all rounds and their candidates."""
        parts = []
        for search in trajectories.iter_rounds():
            documents = [[document.id, document.contents] for document in self.passages_of(search) or ()]
            parts.append(fingerprint_of([search.fingerprint, documents]))
        return fingerprint_of(parts)

    async def _search(self, tools: dict, search: SearchRound) -> bool:
        """Carry out a search that has no result yet, and record its candidates. Returns False if the search
        failed."""
        if self.has(search.key, search.fingerprint):
            return True
        call = CallRecord(SEARCH, {"query": search.query})
        setup = self.run_setup.setup
        call_context = partial(search.call_context, setup.protocol)
        [result] = await ToolExecutor(tools, setup.failures, self._wait, call_context).call([call])
        if isinstance(result, Failure) or call.status != "ok":
            self.last_failure = result.detail if isinstance(result, Failure) else "the query was refused"
            return False
        # Reversed, so that of two documents with the same id the better-ranked one counts.
        contents = {document.id: document.contents for document in reversed(result)}
        if not all(contents):
            raise RunError(
                f"the search for {search.query[:100]!r} returned a passage without an id, by which training "
                "rows name it: add an `id` to each row of the corpus, and build the index again"
            )
        value = {
            "sent": (call.sent or call.arguments)["query"],
            "documents": [[name, contents[name]] for name in dict.fromkeys(item.id for item in result)],
        }
        self.put(search.key, search.fingerprint, value)
        return True

    async def _wait(self, attempt: int) -> None:
        """Wait before a search is sent again after its failed `attempt`, counted from 0."""
        await asyncio.sleep(self.run_setup.setup.failures.delay(attempt))

    def _record(self, search: SearchRound) -> CandidatesRound | None:
        """Return the record of a round, or None if its search failed."""
        value = self.get(search.key, search.fingerprint)
        if value is None:
            return None
        protocol = self.run_setup.setup.protocol
        return CandidatesRound(
            round_index=search.index,
            reasoning_context=search.context(protocol),
            current_query=search.query,
            candidate_passage_ids=tuple(passage_id for passage_id, _ in value["documents"]),
            sent_query=value["sent"],
            history_queries=search.history,
            turn=search.turn,
            reasoning=search.call_context(protocol).reasoning,
        )
