"""The chat agent: runs an episode for each question, over one endpoint.

Everything comes from the arguments of `rag-r1 eval` (EvalArguments): the agent with the limits and the search
of a validation, the engine, the sampling. Greedy, an episode has the tokens that it has in an evaluation.

An endpoint whose refusal concerns all requests (a wrong key, an empty account) ends an evaluation. Here it
fails the chats that are under way, and the next chat tries a new connection.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from rag_r1.agent import Observer, Trajectory
from rag_r1.config.agent_setup import AgentSetup
from rag_r1.config.schema import RagR1Config
from rag_r1.evaluation.eval_arguments import EvalArguments
from rag_r1.evaluation.target import check_tokens, resolve_model
from rag_r1.evaluation.validation_limits import validation_limits
from rag_r1.inference.client import Endpoint
from rag_r1.inference.streaming import OnText
from rag_r1.io.atomic_files import error_text
from rag_r1.options.import_path import add_working_directory
from rag_r1.rollouts.checks import all_problems, run_in_thread, try_first_search
from rag_r1.rollouts.engine_factory import TokenUnit, engine_maker
from rag_r1.rollouts.requests import EpisodeRequest
from rag_r1.rollouts.response_format import IDS, requires_token_ids, response_format
from rag_r1.rollouts.server_check import check_replies
from rag_r1.rollouts.session import endpoint_options, prepare_agent, sampling_of
from rag_r1.runs.cancel_token import CancelToken, unless_cancelled
from rag_r1.runs.errors import RunError
from rag_r1.runs.response_cache import ResponseCache
from rag_r1.runs.start_checks import try_servers
from rag_r1.tools import close_tools, shared_tools

logger = logging.getLogger(__name__)

#: Plays a question, as `ChatAgent.play` does with its defaults.
Play = Callable[[str], Awaitable[Trajectory]]


class ChatAgent:
    """Plays one episode for each question, any number at a time; `open_agent` makes one. `args`: as
    `resolve_model` and `serve_model` return them (rag_r1/evaluation/target.py); `retriever`: the keys of the
    search."""

    def __init__(self, args: EvalArguments, setup: AgentSetup, retriever: Mapping[str, Any]):
        self.args = args
        self.setup = setup
        self.retriever = retriever
        self.sampling = {"model": args.model, **sampling_of(args)}
        self.body = json.loads(args.body)
        self.response_format = ""  # what the endpoint returns; `try_out` finds it out
        self._endpoint = self._connect()

    def prompt_fits(self, question: str) -> bool:
        """Whether the prompt with this question is within the limit, if there is one; False if it cannot be
        made."""
        limit = self.setup.budget.prompt_limit
        try:
            return limit is None or len(self.setup.prompt_ids(question)) <= limit
        except ValueError:
            return False

    async def play(
        self,
        question: str,
        *,
        temperature: float = 0.0,
        seed: int = 0,
        observer: Observer | None = None,
        on_text: OnText | None = None,
    ) -> Trajectory:
        """Play the episode and return its trajectory; raises nothing but its own cancellation. `on_text` gets
        each turn as it grows (rag_r1/inference/streaming.py), if the endpoint returns token ids; other
        endpoints are asked for whole turns."""
        endpoint = await self._open_endpoint()
        request = EpisodeRequest(uuid.uuid4().hex, question, (), seed=seed, temperature=temperature)
        engine_of = engine_maker(
            self.response_format,
            self.setup,
            endpoint,
            ResponseCache(),
            self.sampling,
            self.body,
            logprobs=self.setup.budget.max_state is not None,
            on_text=on_text if self.response_format == IDS else None,
        )
        episode = self.setup.episode(engine_of(request), observer)
        try:
            return await unless_cancelled(
                endpoint.stop, episode.run(request.id, question, _prompt_ids(self.setup, question))
            )
        except RunError as error:
            logger.error("the endpoint refuses requests: %s", error)
            trajectory = Trajectory(request.id, question, self.setup.protocol.name, status="engine_failure")
            trajectory.add_failure("engine", str(error))
            return trajectory

    async def try_out(self) -> None:
        """Request one search and one token, so that a fault is known at start. Raises RunError."""
        args = self.args
        token = response_format(args.engine, self._endpoint, args.model, self.body, self.setup)
        search = try_first_search(self.retriever, args.retriever_url)
        self.response_format, _ = await try_servers(unless_cancelled(self._endpoint.stop, token), search)
        requires_token_ids(self.setup, self.response_format)

    async def close(self) -> None:
        """Close the connections to the endpoint."""
        await self._endpoint.close()

    async def _open_endpoint(self) -> Endpoint:
        """The endpoint, or a new connection if it was ended by a refusal."""
        if (old := self._endpoint).stop.reason is not None:
            self._endpoint = self._connect()
            await old.close()
        return self._endpoint

    def _connect(self) -> Endpoint:
        assert self.args.base_url is not None  # `serve_model` has set it
        return Endpoint(endpoint_options(self.args, self.args.base_url, self.args.api_key_env), CancelToken())


def check_agent(args: EvalArguments, checks: Sequence[Callable[[], Any]] = ()) -> RagR1Config:
    """Check an agent's arguments and files before anything is started for it, and return its configuration.
    `checks`: further checks of the command. Raises StartError with all problems, or RunError with the only
    one."""
    add_working_directory()
    limits = validation_limits(args.protocol)
    try:
        with all_problems(args, limits, checks):
            config, tokens, _ = prepare_agent(args, limits, validation=True)
            check_tokens(args, tokens)
            for check in checks:
                check()
    except (ValueError, OSError) as error:
        raise RunError(error_text(error)) from error
    return config


def try_agent_servers(args: EvalArguments, config: RagR1Config, *, search: bool = True) -> None:
    """Send one request to each server of an agent that runs already: the search's (unless `search` is false)
    and the model's at --base-url. Raises StartError, or RunError."""
    attempts: list[Awaitable[Any]] = []
    if search:
        attempts.append(try_first_search(config.validation_retriever, args.retriever_url))
    if args.base_url is not None:
        attempts.append(asyncio.to_thread(_try_model, args, args.base_url))
    run_in_thread(try_servers(*attempts))


def _try_model(args: EvalArguments, url: str) -> None:
    resolved = resolve_model(args)
    if args.tokenizer is None:  # one that the user names was loaded with the agent
        TokenUnit.of(resolved.tokenizer)
    if not args.trust_env:  # behind a proxy, this machine may not reach the server itself
        check_replies(url, args.api_key_env, "model server", "--base-url", args.model, args.engine)


@asynccontextmanager
async def open_agent(args: EvalArguments) -> AsyncIterator[ChatAgent]:
    """Yields an agent that has been tried out, and closes it after the block. Raises RunError."""
    add_working_directory()
    try:
        with all_problems(args, {}):
            config, _, setup = prepare_agent(args, validation_limits(args.protocol), validation=True)
    except ValueError as error:  # a wrong key, or a file that cannot be read
        raise RunError(str(error)) from error
    agent = ChatAgent(args, setup, config.validation_retriever)
    try:
        await agent.try_out()
        yield agent
    finally:
        await agent.close()
        await close_tools(shared_tools(config.validation_retriever, config.tools))


async def _prompt_ids(setup: AgentSetup, question: str) -> list[int]:
    """The prompt's token ids. The episode awaits this coroutine, so that a prompt that cannot be made is the
    question's failure."""
    # In a thread: the model's chat template decides how long it takes.
    return await asyncio.to_thread(setup.prompt_ids, question)
