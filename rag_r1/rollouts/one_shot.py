"""One-shot RAG: searches for the question once and puts the passages into the prompt.

The search goes through the same guard, failure policy and token limit as a search of the agent, and it
becomes the record's first turn, so retrievals and recall are counted as everywhere. It is a turn without a
text: the policy has not written it, and its passages are tokens of the prompt. The prompt is the protocol's,
with the passages in place of `{documents}`.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rag_r1.agent import Trajectory, Turn
from rag_r1.agent.failures import FailureRecord, error_line
from rag_r1.agent.tool_executor import ToolExecutor
from rag_r1.agent.trajectory import CallRecord
from rag_r1.agent.truncation import fit_observation
from rag_r1.config.agent_setup import AgentSetup
from rag_r1.protocols import SEARCH, Document, Failure, Search
from rag_r1.protocols.protocol import ObservationFormat
from rag_r1.protocols.retriever_query import CallContext
from rag_r1.rollouts.requests import EpisodeRequest

logger = logging.getLogger(__name__)

#: Where the passages go in a prompt.
PASSAGES_FIELD = "{documents}"
_FORMAT = ObservationFormat(
    template="{body}", body="text", document="Doc {rank}: {contents}", separator="\n", trim="ends"
)
#: A prompt is tokenized as a whole, so its parts' tokens may not add up exactly.
_MARGIN = 32


@dataclass(frozen=True)
class OneShotRequest:
    """A request whose messages have the passages, the agent for it, and the turn that found them. `failure`:
    what went wrong; `is_masked`: whether that ends the episode."""

    request: EpisodeRequest
    setup: AgentSetup
    turn: Turn
    retries: int = 0
    failure: Failure | None = None

    @property
    def is_masked(self) -> bool:
        return self.failure is not None and self.failure.kind in self.setup.failures.mask

    def failed_record(self) -> Trajectory:
        """The record of an episode that ended with the search."""
        record = Trajectory(self.request.id, self.request.question, self.setup.protocol.name, [self.turn])
        assert self.failure is not None
        record.status = "error" if self.failure.kind == "error" else "tool_failure"
        record.seconds, record.retries = self.turn.tool_s, self.retries
        record.add_failure(self.failure.kind, self.failure.detail)
        return record

    def prepend_search_turn(self, record: Trajectory) -> None:
        """Make the search the first turn of the record."""
        record.turns.insert(0, self.turn)
        record.failures = [
            FailureRecord(failure.kind, failure.turn + 1, failure.detail) for failure in record.failures
        ]
        if self.failure is not None:
            record.failures.insert(0, FailureRecord(self.failure.kind, 0, self.failure.detail[:200]))
        record.seconds += self.turn.tool_s
        record.retries += self.retries


async def prepare_one_shot(request: EpisodeRequest, setup: AgentSetup) -> OneShotRequest:
    """Search for the question and put what is found into the messages. Raises nothing but its own
    cancellation."""
    retries = 0

    async def wait(attempt: int) -> None:
        nonlocal retries
        retries += 1
        await asyncio.sleep(setup.failures.delay(attempt))

    call = CallRecord(SEARCH, {"query": request.question})
    turn = Turn("", Search.kind, [call])
    started = time.perf_counter()
    executor = ToolExecutor(setup.tools(), setup.failures, wait, lambda: CallContext(request.question))
    [result] = await executor.call([call])
    turn.tool_s = time.perf_counter() - started
    failure = result if isinstance(result, Failure) else None
    if failure is not None:
        turn.status = "tool_failure"
        passages = failure.reason
    else:
        try:
            passages, call.documents = _fit_passages(request, setup, result)
        except Exception as error:  # of the tokenizer, or a bug, as in the turn loop
            logger.exception("the passages of %s", request.id)
            passages, failure = "", Failure("", "error", error_line(error))
    plain_setup = replace(setup, own_prompt=False)  # with the messages of the request
    messages = _messages(request, setup, passages)
    return OneShotRequest(
        replace(request, messages=messages, setup=plain_setup), plain_setup, turn, retries, failure
    )


def _fit_passages(
    request: EpisodeRequest, setup: AgentSetup, documents: Sequence[Document]
) -> tuple[str, list[Document]]:
    """The passages' text, and the documents that fit into it."""
    protocol = replace(setup.protocol, format=_FORMAT, turns="text", chat_turns=None)
    room = _room(request, setup)
    fitted = None
    if room > 0:
        fitted = fit_observation(protocol, [request.question], [documents], setup.codec.encode, room, room)
    shown = fitted.documents[0] if fitted else []
    return protocol.observation([request.question], [shown]), shown


def _room(request: EpisodeRequest, setup: AgentSetup) -> int:
    """Tokens that the passages may take: no more than those of a search of the agent, or than the prompt has
    room for."""
    room = setup.budget.max_query_observation_tokens
    limit = setup.budget.prompt_limit
    if limit is None:
        return room
    plain_setup = replace(setup, own_prompt=False)
    try:
        prompt_ids = plain_setup.prompt_ids(request.question, _messages(request, setup, ""))
    except ValueError:  # a question that is too long: the episode begins with it, and says so
        return 0
    return min(room, limit - len(prompt_ids) - _MARGIN)


def _messages(request: EpisodeRequest, setup: AgentSetup, passages: str) -> tuple[dict[str, str], ...]:
    """The prompt's messages. Question and passages are put in at once, so that neither is searched for the
    place of the other."""
    protocol = setup.protocol
    parts = {"{question}": protocol.neutralise(request.question), PASSAGES_FIELD: passages}
    text = re.sub("|".join(map(re.escape, parts)), lambda match: parts[match[0]], protocol.user_prompt)
    system = [{"role": "system", "content": protocol.system_prompt}] if protocol.system_prompt else []
    return (*system, {"role": "user", "content": text})
