"""One-shot RAG: searches for the question once and puts the passages into the prompt.

This is the baseline `one_shot` of an evaluation: `EpisodeRunner` calls `prepare_one_shot` before it plays the
episode. The search goes through the same guard, failure policy and token limit as a search of the agent. It
becomes the first turn of the trajectory, so that retrievals and recall are counted as for the agent; this
turn has no text, since the policy has not written it. The passages replace `{documents}` in the protocol's
prompt, so their tokens belong to the prompt.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rag_r1.agent import Trajectory, Turn
from rag_r1.agent.failures import error_line
from rag_r1.agent.tool_executor import ToolExecutor
from rag_r1.agent.trajectory import CallRecord
from rag_r1.agent.truncation import fit_observation
from rag_r1.config.agent_setup import AgentSetup
from rag_r1.protocols import SEARCH, Document, Failure, Search
from rag_r1.protocols.protocol import ObservationFormat
from rag_r1.protocols.retriever_query import CallContext
from rag_r1.rollouts.requests import EpisodeRequest

logger = logging.getLogger(__name__)

#: The placeholder that the passages replace in a prompt.
PASSAGES_FIELD = "{documents}"
_FORMAT = ObservationFormat(
    template="{body}", body="text", document="Doc {rank}: {contents}", separator="\n", trim="ends"
)
#: Tokens that are kept free, since the tokens of a prompt may be more than those of its parts together.
_MARGIN_TOKENS = 32


@dataclass(frozen=True)
class OneShotRequest:
    """A request with the passages in its messages, and the search that found them."""

    request: EpisodeRequest
    #: The agent that plays the request.
    setup: AgentSetup
    #: The search alone: its turn, time and retries, and its failure if it failed.
    search: Trajectory

    @property
    def is_masked(self) -> bool:
        """Whether the search failed in a way that masks the episode. `search` is then the whole episode."""
        return self.search.masked(self.setup.failures.mask)

    def prepend_search_turn(self, trajectory: Trajectory) -> None:
        """Insert the search as the first turn of the trajectory, and add its failure, time and retries."""
        trajectory.turns[:0] = self.search.turns
        later_failures = [replace(failure, turn=failure.turn + 1) for failure in trajectory.failures]
        trajectory.failures = [*self.search.failures, *later_failures]
        trajectory.seconds += self.search.seconds
        trajectory.retries += self.search.retries


async def prepare_one_shot(request: EpisodeRequest, setup: AgentSetup) -> OneShotRequest:
    """Search for the question and put the passages into the request's messages. A failure is reported in the
    result; only cancellation is raised."""
    setup = replace(setup, own_prompt=False)  # which uses the messages of the request
    call = CallRecord(SEARCH, {"query": request.question})
    turn = Turn("", Search.kind, [call])
    search = Trajectory(request.id, request.question, setup.protocol.name, [turn])

    async def wait(attempt: int) -> None:
        search.retries += 1
        await asyncio.sleep(setup.failures.delay(attempt))

    started = time.perf_counter()
    executor = ToolExecutor(setup.tools(), setup.failures, wait, lambda: CallContext(request.question))
    [result] = await executor.call([call])
    search.seconds = turn.tool_s = time.perf_counter() - started
    if isinstance(result, Failure):
        turn.status = "tool_failure"
        passages = result.reason
        _record_failure(search, result.kind, result.detail)
    else:
        try:
            passages, call.documents = _fit_passages(request, setup, result)
        except Exception as error:  # from the tokenizer, or a bug; the turn loop handles them in the same way
            logger.exception("the passages of %s", request.id)
            passages = ""
            _record_failure(search, "error", error_line(error))
    messages = _messages(request, setup, passages)
    return OneShotRequest(replace(request, messages=messages, setup=setup), setup, search)


def _record_failure(search: Trajectory, kind: str, detail: str) -> None:
    """Add the failure to the search, and give it the status of an episode that ends with this failure."""
    search.add_failure(kind, detail)
    search.status = "error" if kind == "error" else "tool_failure"


def _fit_passages(
    request: EpisodeRequest, setup: AgentSetup, documents: Sequence[Document]
) -> tuple[str, list[Document]]:
    """Return the text of the passages that fit into the prompt, and the documents in that text."""
    protocol = replace(setup.protocol, format=_FORMAT, turns="text", chat_turns=None)
    limit = _passage_tokens(request, setup)
    fitted = None
    if limit > 0:
        fitted = fit_observation(protocol, [request.question], [documents], setup.codec.encode, limit, limit)
    shown = fitted.documents[0] if fitted else []
    return protocol.observation([request.question], [shown]), shown


def _passage_tokens(request: EpisodeRequest, setup: AgentSetup) -> int:
    """Return how many tokens the passages may have: the limit of a search of the agent, or less if the
    prompt has less room. `setup` uses the messages of the request."""
    search_tokens = setup.budget.max_query_observation_tokens
    prompt_limit = setup.budget.prompt_limit
    if prompt_limit is None:
        return search_tokens
    try:
        prompt_ids = setup.prompt_ids(request.question, _messages(request, setup, ""))
    except ValueError:  # the question alone is too long; the episode will report it
        return 0
    return min(search_tokens, prompt_limit - len(prompt_ids) - _MARGIN_TOKENS)


def _messages(request: EpisodeRequest, setup: AgentSetup, passages: str) -> tuple[dict[str, str], ...]:
    """Return the messages of the prompt. Both placeholders are replaced in one pass, so that a placeholder
    inside the question or the passages is not replaced."""
    protocol = setup.protocol
    parts = {"{question}": protocol.neutralise(request.question), PASSAGES_FIELD: passages}
    text = re.sub("|".join(map(re.escape, parts)), lambda match: parts[match[0]], protocol.user_prompt)
    system = [{"role": "system", "content": protocol.system_prompt}] if protocol.system_prompt else []
    return (*system, {"role": "user", "content": text})
