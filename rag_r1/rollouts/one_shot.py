"""One-shot RAG: searches for the question once and puts the passages into the prompt.

The search goes through the same guard, failure policy and token limit as a search of the agent, and it
becomes the first turn of the trajectory, so retrievals and recall are counted as everywhere. It is a turn
without a text: the policy has not written it, and its passages are tokens of the prompt. The prompt is the
protocol's, with the passages in place of `{documents}`."""

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
#: Tokens that stay free: a prompt is tokenized as a whole, so its parts' tokens may not add up exactly.
_MARGIN_TOKENS = 32


@dataclass(frozen=True)
class OneShotRequest:
    """A request whose messages have the passages, the agent for it, and the turn that searched for them.
    `failure`: what went wrong in the search."""

    request: EpisodeRequest
    setup: AgentSetup
    turn: Turn
    retries: int = 0
    failure: Failure | None = None

    @property
    def is_masked(self) -> bool:
        """Whether the search failed in a way that ends the episode."""
        return self.failure is not None and self.failure.kind in self.setup.failures.mask

    def failed_trajectory(self) -> Trajectory:
        """Returns the trajectory of an episode that ended with the search; only for a masked one."""
        assert self.failure is not None  # as `is_masked` says
        protocol = self.setup.protocol.name
        trajectory = Trajectory(self.request.id, self.request.question, protocol, [self.turn])
        trajectory.status = "error" if self.failure.kind == "error" else "tool_failure"
        trajectory.seconds, trajectory.retries = self.turn.tool_s, self.retries
        trajectory.add_failure(self.failure.kind, self.failure.detail)
        return trajectory

    def prepend_search_turn(self, trajectory: Trajectory) -> None:
        """Make the search the first turn of the trajectory."""
        trajectory.turns.insert(0, self.turn)
        trajectory.failures = [
            FailureRecord(failure.kind, failure.turn + 1, failure.detail) for failure in trajectory.failures
        ]
        if self.failure is not None:
            trajectory.failures.insert(0, FailureRecord(self.failure.kind, 0, self.failure.detail[:200]))
        trajectory.seconds += self.turn.tool_s
        trajectory.retries += self.retries


async def prepare_one_shot(request: EpisodeRequest, setup: AgentSetup) -> OneShotRequest:
    """Search for the question and put the passages into the messages; a failure is in the result. Raises only
    its own cancellation."""
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
    """Returns the text of the passages that fit into the prompt, and these documents."""
    protocol = replace(setup.protocol, format=_FORMAT, turns="text", chat_turns=None)
    limit = _passage_tokens(request, setup)
    fitted = None
    if limit > 0:
        fitted = fit_observation(protocol, [request.question], [documents], setup.codec.encode, limit, limit)
    shown = fitted.documents[0] if fitted else []
    return protocol.observation([request.question], [shown]), shown


def _passage_tokens(request: EpisodeRequest, setup: AgentSetup) -> int:
    """Returns how many tokens the passages may take: as many as those of a search of the agent, but no more
    than the prompt has room for."""
    search_tokens = setup.budget.max_query_observation_tokens
    prompt_limit = setup.budget.prompt_limit
    if prompt_limit is None:
        return search_tokens
    plain_setup = replace(setup, own_prompt=False)
    try:
        prompt_ids = plain_setup.prompt_ids(request.question, _messages(request, setup, ""))
    except ValueError:  # a question that is too long: the episode begins with it, and says so
        return 0
    return min(search_tokens, prompt_limit - len(prompt_ids) - _MARGIN_TOKENS)


def _messages(request: EpisodeRequest, setup: AgentSetup, passages: str) -> tuple[dict[str, str], ...]:
    """Returns the messages of the prompt. Question and passages are put in at once, so that neither is
    searched for the field of the other."""
    protocol = setup.protocol
    parts = {"{question}": protocol.neutralise(request.question), PASSAGES_FIELD: passages}
    text = re.sub("|".join(map(re.escape, parts)), lambda match: parts[match[0]], protocol.user_prompt)
    system = [{"role": "system", "content": protocol.system_prompt}] if protocol.system_prompt else []
    return (*system, {"role": "user", "content": text})
