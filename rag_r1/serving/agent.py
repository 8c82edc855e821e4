"""The chat agent: plays an episode for each question over one endpoint.

The agent, with the limits and the search of a validation, its engine and its sampling are made from the
arguments of `rag-r1 eval` (EvalArguments). So a greedy episode has the same tokens as in an evaluation.
`open_agent` makes a `ChatAgent` for the server, `rag-r1 mcp` and the Python API. Before anything is started,
`check_agent` checks its arguments, and `try_agent_servers` the servers that are running already.

If the endpoint refuses all requests, for example because of a wrong key or an empty account, an evaluation
ends. Here only the current chats fail, and the next one opens a new connection.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from rag_r1.agent import Observer, Trajectory
from rag_r1.config.agent_setup import AgentSetup
from rag_r1.evaluation.eval_arguments import EvalArguments
from rag_r1.evaluation.target import check_tokens, resolve_model
from rag_r1.evaluation.validation_limits import validation_limits
from rag_r1.inference.client import Endpoint
from rag_r1.inference.streaming import OnText
from rag_r1.io.errors import error_text
from rag_r1.options.import_path import add_working_directory
from rag_r1.rollouts.checks import all_problems
from rag_r1.rollouts.engine_factory import TokenUnit, endpoint_options, engine_maker
from rag_r1.rollouts.requests import EpisodeRequest
from rag_r1.rollouts.response_format import IDS, requires_token_ids, response_format
from rag_r1.rollouts.search_check import check_search, try_first_search
from rag_r1.rollouts.server_check import ModelServer, check_replies
from rag_r1.rollouts.session import prepare_agent, sampling_of
from rag_r1.runs.cancel_token import CancelToken, unless_cancelled
from rag_r1.runs.errors import RunError
from rag_r1.runs.response_cache import ResponseCache
from rag_r1.runs.start_checks import FAULTS, StartChecks, run_in_thread, try_servers
from rag_r1.tools import close_tools, shared_tools

logger = logging.getLogger(__name__)

#: Plays a question and returns its trajectory, as `ChatAgent.play` does.
Play = Callable[[str], Awaitable[Trajectory]]


class ChatAgent:
    """Plays one episode for each question, any number of them concurrently. Use `open_agent` to make one."""

    def __init__(self, args: EvalArguments, setup: AgentSetup, retriever: Mapping[str, Any]):
        """`args` must come from `serve_model` (rag_r1/evaluation/target.py); `retriever` has the keys under
        `rag_r1.retriever`."""
        self.args = args
        self.setup = setup
        self.retriever = retriever
        #: The keys of each request to the model; `body` has those that --body adds.
        self.sampling = {"model": args.model, **sampling_of(args)}
        self.body = json.loads(args.body)
        #: The form of the endpoint's answers (rag_r1/rollouts/response_format.py), which `try_out` finds out.
        self.response_format = ""
        self._endpoint = self._connect()

    def prompt_fits(self, question: str) -> bool:
        """Return whether the prompt with this question is within the token limit. A prompt that cannot be
        made does not fit."""
        return self.setup.prompt_fits(question)

    async def play(
        self,
        question: str,
        *,
        temperature: float = 0.0,
        seed: int = 0,
        observer: Observer | None = None,
        on_text: OnText | None = None,
    ) -> Trajectory:
        """Play an episode and return its trajectory. Failures are recorded in the trajectory; only
        cancellation is raised.

        `observer` gets the events of the episode. `on_text` gets each turn while it is generated
        (rag_r1/inference/streaming.py), but only from an endpoint that returns token ids."""
        endpoint = await self._open_endpoint()
        request = EpisodeRequest(uuid.uuid4().hex, question, (), seed=seed, temperature=temperature)
        make_engine = engine_maker(
            self.response_format,
            self.setup,
            endpoint,
            ResponseCache(),
            self.sampling,
            self.body,
            logprobs=self.setup.budget.max_state is not None,
            on_text=on_text if self.response_format == IDS else None,
        )
        episode = self.setup.episode(make_engine(request), observer)
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
        """Request one search and one token, so that faults of the servers show at start. Raises RunError,
        also if the agent needs token ids and the endpoint does not return them."""
        args = self.args
        reply = response_format(args.engine, self._endpoint, args.model, self.body, self.setup)
        search = try_first_search(self.retriever, args.retriever_url)
        self.response_format, _ = await try_servers(unless_cancelled(self._endpoint.stop, reply), search)
        requires_token_ids(self.setup, self.response_format)  # raises the error

    async def close(self) -> None:
        """Close the connections to the endpoint."""
        await self._endpoint.close()

    async def _open_endpoint(self) -> Endpoint:
        """Return the endpoint, which is replaced by a new connection if a refusal has ended the old one."""
        if (current := self._endpoint).stop.reason is not None:
            self._endpoint = self._connect()
            await current.close()
        return self._endpoint

    def _connect(self) -> Endpoint:
        """Return a new connection to the endpoint."""
        assert self.args.base_url is not None  # set by `serve_model`
        return Endpoint(endpoint_options(self.args, self.args.base_url, self.args.api_key_env), CancelToken())


async def _prompt_ids(setup: AgentSetup, question: str) -> list[int]:
    """Return the prompt's token ids. The episode awaits this coroutine, so a prompt that cannot be made
    fails only this question."""
    # In a thread, because the model's chat template may take long.
    return await asyncio.to_thread(setup.prompt_ids, question)


def check_agent(args: EvalArguments, checks: Sequence[Callable[[], Any]] = ()) -> None:
    """Check an agent's arguments and files before anything is started. `checks` are further checks of the
    command. Raises RunError for a single problem, StartError for several ones."""
    add_working_directory()
    limits = validation_limits(args.protocol)
    try:
        with all_problems(args, limits, [*checks, partial(_check_prompt_limit, args)]):
            prepared = prepare_agent(args, limits, validation=True)
            check_tokens(args, prepared.tokens)
            for check in [*checks, partial(_check_prompt_limit, args, prepared.setup)]:
                check()
    except (ValueError, OSError) as error:
        raise RunError(error_text(error)) from error


def _check_prompt_limit(args: EvalArguments, setup: AgentSetup | None = None) -> None:
    """Raise RunError if not even the prompt of a short question is within the limits. Does nothing if the
    tokenizer is not known yet. Without a `setup`, one is made from the arguments without their overrides; if
    that is impossible, nothing is checked."""
    if args.tokenizer is None and args.engine == "completions":
        return
    with suppress(*FAULTS):
        if setup is None:
            setup = prepare_agent(args.changed(overrides=[]), {}, validation=True).setup
    if setup is not None and not setup.prompt_fits("?"):
        limits = "--max-prompt-tokens, and --max-context-tokens if it is given"
        raise RunError(f"no prompt has {args.max_prompt_tokens} tokens or fewer: raise {limits}")


def try_agent_servers(args: EvalArguments, *, search: bool = True) -> None:
    """Send one request to each server of the agent that is already running: to the retrieval server, unless
    `search` is false, and to the model's server if there is a --base-url. Raises RunError or StartError."""
    attempts: list[Awaitable[Any]] = []
    if search:
        attempts.append(asyncio.to_thread(check_search, args, validation_limits(args.protocol)))
    if args.base_url is not None:
        attempts.append(asyncio.to_thread(_try_model, args, args.base_url))
    run_in_thread(try_servers(*attempts))


def _try_model(args: EvalArguments, url: str) -> None:
    """Check the model's server at `url`, and load the model's tokenizer. Raises RunError or StartError."""
    with StartChecks() as checks:
        if not args.trust_env:  # behind a proxy, this machine may not reach the server itself
            checks.run(check_replies, ModelServer(url, args.api_key_env, args.model), args.engine)
        checks.run(resolve_model, args)
        # A tokenizer that the user names was loaded by `check_agent`.
        if args.engine == "completions" and args.tokenizer is None:
            checks.run(TokenUnit.of, args.model, is_model=True)


@asynccontextmanager
async def open_agent(args: EvalArguments) -> AsyncIterator[ChatAgent]:
    """Yield an agent whose servers have answered a test request, and close it after the block. Raises
    RunError if an argument is wrong or a server does not work."""
    add_working_directory()
    limits = validation_limits(args.protocol)
    try:
        with all_problems(args, limits):
            prepared = prepare_agent(args, limits, validation=True)
    except ValueError as error:  # a wrong key, or a file that cannot be read
        raise RunError(str(error)) from error
    config = prepared.config
    agent = ChatAgent(args, prepared.setup, config.validation_retriever)
    try:
        await agent.try_out()
        yield agent
    finally:
        await agent.close()
        await close_tools(shared_tools(config.validation_retriever, config.tools))
