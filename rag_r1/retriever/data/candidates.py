"""Collects the candidates of each search: the current retriever's best passages (Agentic-R's step 2).

Each query is sent as the agent sends it (rag_r1/protocols/retriever_query.py), with the same checks and
retries, but for more passages. A passage is named by the corpus's own id; a search that returns passages
without one cannot be used. A search that fails is left out until the next start of the command sends it
again.
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
from rag_r1.rollouts.session import RunSetup, search_settings
from rag_r1.runs.cancel_token import CancelToken
from rag_r1.runs.errors import RunError
from rag_r1.tools import RetrieverConfig, close_tools, shared_tools
from rag_r1.tools.registry import DEFAULT_TOOL


def retriever_settings(run_setup: RunSetup) -> dict[str, Any]:
    """The settings on which the results of a search depend: its keys, and under `served` the index that the
    server reports (None for another search tool). Raises RunError if the server does not answer."""
    keys = search_settings(run_setup.retriever)
    served = None
    if (keys.get("tool") or DEFAULT_TOOL) == DEFAULT_TOOL:
        options = {key: value for key, value in run_setup.retriever.items() if key != "tool"}
        served = index_identity(describe_server(RetrieverConfig.from_config(options).base)["ready"])
    return {**keys, "served": served}


class CandidateStore(ResultJournal):
    """The candidates of rounds; a context manager, which holds the step's folder. `search_settings`: what
    `retriever_settings` returns; `count`: the most passages of a search."""

    def __init__(self, run_setup: RunSetup, search_settings: Mapping[str, Any], count: int, folder: Path):
        self.run_setup, self.count = run_setup, count
        settings = {"command": "candidates", "candidates": count, "retriever": dict(search_settings)}
        super().__init__(folder, settings)
        #: Why the search failed that failed last; empty if none did.
        self.problem = ""

    def of(self, search: SearchRound) -> list[Document] | None:
        """The candidates of a round, best first; None if its search was not carried out, or failed."""
        value = self.get(search.key, search.fingerprint)
        return None if value is None else [Document(*pair) for pair in value["documents"]]

    async def find(self, trajectories: TrajectoryReader, in_flight: int) -> int:
        """Carry out the searches of the rounds that have no candidates yet, at most `in_flight` at a time,
        and record what they return; returns the number of rounds whose search has failed. Raises RunError for
        passages without an id."""
        tools = shared_tools({**self.run_setup.retriever, "topk": self.count}, {})
        try:
            pool = JobPool(in_flight, CancelToken())
            jobs = (partial(self._search, tools, search) for search in trajectories.iter_rounds())
            outcomes = await pool.run(jobs, trajectories.rounds, "search")
        finally:
            await close_tools(tools)
        return len(outcomes) - sum(map(bool, outcomes))

    def rounds(
        self, trajectories: Iterable[PlayedTrajectory]
    ) -> Iterator[tuple[SearchRound, list[Document]]]:
        """Yields each round that has candidates, with these."""
        for trajectory in trajectories:
            for search in trajectory.rounds:
                if documents := self.of(search):
                    yield search, documents

    def records(self, trajectories: TrajectoryReader) -> Iterator[RoundsRecord]:
        """Yields the record of each trajectory, with its rounds and their candidates. Rounds whose search
        failed are left out, and so are trajectories without any other."""
        for trajectory in trajectories:
            records = map(self._record, trajectory.rounds)
            rounds = tuple(record for record in records if record is not None)
            if rounds:
                yield RoundsRecord(
                    id=trajectory.id,
                    question=trajectory.question,
                    golden_answers=trajectory.golds,
                    trajectory=rounds,
                    dataset=trajectory.dataset,
                )

    def passages(self, trajectories: TrajectoryReader) -> Iterator[PassageRecord]:
        """Yields the text of all candidates, each passage once."""
        ids: set[str] = set()
        for _, documents in self.rounds(trajectories):
            for document in documents:
                if document.id not in ids:
                    ids.add(document.id)
                    yield PassageRecord(id=document.id, contents=document.contents)

    def fingerprint(self, trajectories: TrajectoryReader) -> str:
        """A hash of all rounds and their candidates."""
        parts = (
            fingerprint_of([search.fingerprint, [[d.id, d.contents] for d in self.of(search) or ()]])
            for search in trajectories.iter_rounds()
        )
        return fingerprint_of(list(parts))

    async def _search(self, tools: dict, search: SearchRound) -> bool:
        """Carry out a search, unless it has a result, and record the candidates; returns whether it has
        them."""
        if self.has(search.key, search.fingerprint):
            return True
        call = CallRecord(SEARCH, {"query": search.query})
        setup = self.run_setup.setup

        async def wait(attempt: int) -> None:
            await asyncio.sleep(setup.failures.delay(attempt))

        context = partial(search.call_context, setup.protocol)
        [result] = await ToolExecutor(tools, setup.failures, wait, context).call([call])
        if isinstance(result, Failure) or call.status != "ok":
            self.problem = result.detail if isinstance(result, Failure) else "the query was refused"
            return False
        passages = {document.id: document.contents for document in reversed(result)}
        if not all(passages):
            raise RunError(
                f"the search for {search.query[:100]!r} returned a passage without an id, by which training "
                "rows name it: add an `id` to each row of the corpus, and build the index again"
            )
        value = {
            "sent": (call.sent or call.arguments)["query"],
            "documents": [[name, passages[name]] for name in dict.fromkeys(d.id for d in result)],
        }
        self.put(search.key, search.fingerprint, value)
        return True

    def _record(self, search: SearchRound) -> CandidatesRound | None:
        """The record of a round; None if its search has failed."""
        value = self.get(search.key, search.fingerprint)
        if value is None:
            return None
        protocol = self.run_setup.setup.protocol
        return CandidatesRound(
            round_index=search.index,
            reasoning_context=search.context(protocol),
            current_query=search.query,
            candidate_passage_ids=tuple(name for name, _ in value["documents"]),
            sent_query=value["sent"],
            history_queries=search.history,
            turn=search.turn,
            reasoning=search.call_context(protocol).reasoning,
        )
