"""The search agent, which writes down what each trajectory generated, and under which weights, and what it
called; and a tool that holds its first call back until the weights have been updated.

Chosen through veRL's own key `actor_rollout_ref.rollout.agent.agent_loop_config_path` and through an entry of
`rag_r1.tools`, so that a training runs with nothing in it replaced. `$RAG_R1_RECORD/journal.jsonl` gets a
line for each trajectory that has ended: `id`, that of its record, and `events`, in order:

    context, ids, first, last      a turn was generated: the tokens before it, its tokens, and the versions of
                                   the weights that wrote the first and the last of them
    queries, held, updated, ended  the tool was called: was it held back, were the weights updated meanwhile,
                                   and did it answer
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient

from rag_r1.plugin.agent_loop import SearchAgentLoop
from rag_r1.protocols import Document, Failure
from rag_r1.tools import RetrievalClient, RetrieverConfig
from tests.e2e.left_behind import step_metrics

#: The events of the trajectory that is running; a tool's call runs in a copy of its context.
_events: ContextVar[list[dict[str, Any]]] = ContextVar("events")


class JournalClient(FullyAsyncLLMServerClient):
    """veRL's client with the connections of `client`; each generation is an event of its trajectory."""

    def __init__(self, client: FullyAsyncLLMServerClient):
        vars(self).update(vars(client))

    async def generate(self, request_id: str, *, prompt_ids: list[int], **more: Any) -> Any:
        out = await super().generate(request_id, prompt_ids=prompt_ids, **more)
        versions = (out.extra_fields[name] for name in ("min_global_steps", "max_global_steps"))
        event = dict(zip(("first", "last"), versions, strict=True))
        _events.get().append({"context": list(prompt_ids), "ids": list(out.token_ids), **event})
        return out


class JournalAgentLoop(SearchAgentLoop):
    """SearchAgentLoop with a JournalClient."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.server_manager = JournalClient(self.server_manager)

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> Any:
        events: list[dict[str, Any]] = []
        _events.set(events)
        output = await super().run(sampling_params, **row)
        line = {"id": output.extra_fields["trajectory"]["id"], "events": events}
        with (Path(os.environ["RAG_R1_RECORD"]) / "journal.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        return output


class HeldSearch:
    """A search whose first call begins when the metrics of step 1 are there, which veRL writes after the
    weights have been updated; or after `at_most_s` seconds."""

    def __init__(self, url: str, metrics: str, at_most_s: float):
        # Each turn has its own request, and its own chance to be delayed over a weight update.
        self.client = RetrievalClient(RetrieverConfig(url=url, topk=2, gather_s=0))
        self.metrics, self.at_most_s, self.holds = Path(metrics), at_most_s, True

    async def search(self, queries: Sequence[str]) -> Sequence[Sequence[Document] | Failure]:
        held, self.holds = self.holds, False
        event = {"queries": list(queries), "held": held, "updated": False, "ended": False}
        _events.get().append(event)
        if held:
            event["updated"] = await self._updated()
        results = await self.client.search(queries)
        event["ended"] = True
        return results

    async def _updated(self) -> bool:
        """Wait until the weights have been updated; False if that took too long."""
        deadline = time.monotonic() + self.at_most_s
        while 1 not in step_metrics(self.metrics):
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.05)
        return True


def make_search(options: dict[str, Any]) -> HeldSearch:
    """The tool, from the keys of its entry: `url`, `metrics` (the file of veRL's logger), `at_most_s`."""
    return HeldSearch(**options)
