"""A run session: opens what a command's run needs and closes it at the end.

The settings of a run are all that decides which episodes are played and how; what only decides how fast
(requests at a time, retries, addresses, the cost limit) may differ when the run is resumed. A failure of the
endpoint or of a search is never a wrong answer, here as in training: such an episode is masked. Episodes
retry nothing themselves, since the clients of endpoint and retrieval server do.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rag_r1.config.agent_setup import AgentSetup, RowLimits
from rag_r1.config.schema import RagR1Config
from rag_r1.inference.client import Endpoint, EndpointOptions
from rag_r1.inference.cost_limit import CostTracker
from rag_r1.inference.rate_limit import RateLimiter
from rag_r1.options.import_path import add_working_directory
from rag_r1.rewards import RewardSum
from rag_r1.rollouts.arguments import RolloutArguments, config_of, keys_of
from rag_r1.rollouts.checks import try_first_search
from rag_r1.rollouts.engine_factory import MakeEngine, TokenUnit, agent_setup, engine_maker
from rag_r1.rollouts.requests import QuestionSet, questions_hash, read_questions
from rag_r1.rollouts.response_format import IDS, response_format
from rag_r1.rollouts.runner import CorrectnessRule, EpisodeRunner
from rag_r1.rollouts.server_check import check_replies
from rag_r1.runs.cancel_token import CancelToken, unless_cancelled
from rag_r1.runs.errors import RunError
from rag_r1.runs.folder import RunFolder
from rag_r1.runs.start_checks import try_servers
from rag_r1.tools import close_tools

#: Keys of rag_r1.retriever that do not change what a search finds.
_SPEED_KEYS = {
    "url",
    "timeout_s",
    "retries",
    "backoff_s",
    "cache_size",
    "max_connections",
    "gather_s",
    "max_queries",
}
#: Of the journal; a folder of another format is refused.
_FORMAT = 1
#: Terms that every record has.
_DEFAULT_TERMS = ("em", "f1", "cover_em")


@dataclass(frozen=True)
class RunSetup:
    """What a command has read and checked before anything is asked. `retriever`: the keys of the search."""

    questions: QuestionSet
    config: RagR1Config
    tokens: TokenUnit
    setup: AgentSetup
    retriever: dict[str, Any]
    reward: RewardSum
    right: CorrectnessRule


def prepare(args: RolloutArguments, defaults: Mapping[str, Any], *, validation: bool = False) -> RunSetup:
    """Read the questions and check every key. `defaults`: keys of the block rag_r1, by section, of this
    command. With `validation` the limits and the search are those of a validation. Raises RunError."""
    add_working_directory()
    try:
        return _prepare_setup(args, defaults, validation)
    except ValueError as error:  # of the configuration, of a reward, of the files
        raise RunError(str(error)) from error


def prepare_agent(
    args: RolloutArguments, defaults: Mapping[str, Any], *, validation: bool
) -> tuple[RagR1Config, TokenUnit, AgentSetup]:
    """The agent by the arguments; see `prepare`. Raises ValueError."""
    config = config_of(args, defaults)
    tokens = TokenUnit.of(args.tokenizer)
    limits = RowLimits(args.max_prompt_tokens, args.max_response_tokens, args.max_context_tokens)
    setup = agent_setup(config, tokens, limits, validation=validation)
    if setup.budget.paths > 1 and getattr(args, "temperature", 1) == 0:
        raise ValueError(
            "rag_r1.agent.paths above 1 needs a --temperature above 0, which `rag-r1 eval` has: greedy paths "
            "are equal, and a chat plays one path"
        )
    return config, tokens, setup


def _prepare_setup(args: RolloutArguments, defaults: Mapping[str, Any], validation: bool) -> RunSetup:
    config, tokens, setup = prepare_agent(args, defaults, validation=validation)
    retriever = config.validation_retriever if validation else config.retriever
    entries = [dict(entry) for entry in config.reward]
    if "rag_r1.reward" not in keys_of(args):
        terms = dict.fromkeys([*_DEFAULT_TERMS, args.term])
        entries = [{"term": term, "weight": float(term == args.term)} for term in terms]
    reward = RewardSum.from_config(entries, config.protocol)
    names = [term.name for term in reward.terms]
    name = args.term if args.term in names else args.term.rpartition(":")[2]
    if name not in names:
        raise ValueError(f"--term {args.term}: rag_r1.reward has only {', '.join(names)}")
    questions = read_questions(
        args.questions, config.protocol, skip_bad_rows=args.skip_bad_rows, limit=args.limit
    )
    right = CorrectnessRule(name, args.right_from)
    return RunSetup(questions, config, tokens, setup, dict(retriever), reward, right)


def settings_of(args: RolloutArguments, ready: RunSetup, command: str, **settings: Any) -> dict[str, Any]:
    """What decides which episodes are played and how."""
    protocol = json.dumps(dataclasses.asdict(ready.config.protocol), sort_keys=True, default=str)
    retriever = search_settings(ready.retriever)
    return {
        "command": command,
        "format": _FORMAT,
        "questions": len(ready.questions.rows),
        "questions_sha256": questions_hash(ready.questions.rows),
        "protocol": ready.config.protocol.name,
        "protocol_sha256": hashlib.sha256(protocol.encode()).hexdigest(),
        "prompt": args.prompt is not None,
        "tokenizer": ready.tokens.name,
        "top_p": args.top_p,
        "seed": args.seed,
        "body": json.loads(args.body),
        "budget": vars(ready.setup.budget),
        "retriever": retriever,
        "tools": ready.config.tools,
        "term": ready.right.term,
        "right_from": ready.right.least,
        "rewards": [{"term": term.name, "weight": term.weight} for term in ready.reward.terms],
        **settings,
    }


def search_settings(retriever: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a search that decide what it finds."""
    return {key: value for key, value in retriever.items() if key not in _SPEED_KEYS}


@dataclass
class RunSession:
    """A run under way: see the top of the module. `answers`: what the endpoint returns
    (response_format.py)."""

    ready: RunSetup
    folder: RunFolder
    runner: EpisodeRunner
    endpoint: Endpoint
    spending: CostTracker
    stop: CancelToken
    answers: str


@asynccontextmanager
async def open_session(
    args: RolloutArguments,
    ready: RunSetup,
    url: str,
    model: str,
    settings: Mapping[str, Any],
    *,
    out: Path | None = None,
    searches: bool = True,
) -> AsyncIterator[RunSession]:
    """Opens everything that a run needs, tries out the endpoint and the search, and closes it again. `out`:
    the run's folder, if it is not `--out`; `searches`: false for a run without a search. Raises RunError."""
    stop, extra_body = CancelToken(), json.loads(args.body)
    spending = CostTracker(stop, args.price_in, args.price_out, args.max_cost)
    endpoint = Endpoint(endpoint_options(args, url), stop, spending, RateLimiter(args.rpm, args.tpm))
    try:
        search = [try_first_search(ready.retriever, args.retriever_url)] if searches else []
        sampling = {"model": model, **sampling_of(args)}
        model_server = response_format(args.engine, endpoint, model, extra_body, ready.setup)
        answers, *_ = await try_servers(unless_cancelled(stop, model_server), *search)
        needs_logprobs = requires_token_ids(ready.setup, answers)
        with RunFolder(out or args.out, {**settings, "model": model, "answers": answers}) as folder:
            spending.add(folder.cache.usage)
            make_engine = engine_maker(
                answers, ready.setup, endpoint, folder.cache, sampling, extra_body, logprobs=needs_logprobs
            )
            runner = _runner(args, ready, make_engine, folder, endpoint)
            yield RunSession(ready, folder, runner, endpoint, spending, stop, answers)
    finally:
        await endpoint.close()
        await close_tools(ready.setup.tools())


def _runner(
    args: RolloutArguments, ready: RunSetup, make_engine: MakeEngine, folder: RunFolder, endpoint: Endpoint
) -> EpisodeRunner:
    limits = {"in_flight": args.in_flight, "tries": args.tries}
    of_endpoint = {"stop": endpoint.stop, "idle": endpoint.idle, "spending": endpoint.spending}
    parts = ready.setup, make_engine, ready.reward, folder
    return EpisodeRunner(*parts, right=ready.right, **limits, **of_endpoint)


def endpoint_options(args: RolloutArguments, url: str) -> EndpointOptions:
    """The options of requests to the model's server at this address."""
    values = args.model_dump(include={"timeout_s", "retries", "backoff_s", "in_flight", "trust_env"})
    return EndpointOptions(url, args.api_key_env, **values)


async def check_only(args: RolloutArguments, ready: RunSetup, url: str | None, model: str) -> int:
    """What `--check-only` does when the arguments are read: one search, and one request to the model's server
    at `url`, unless it would be started here. Returns 0. Raises RunError with all that does not answer."""
    stop = CancelToken()
    attempts: list[Awaitable[Any]] = [try_first_search(ready.retriever, args.retriever_url)]
    endpoint = Endpoint(endpoint_options(args, url), stop) if url is not None else None
    try:
        if endpoint is not None:
            attempts.append(_try_model(args, ready, endpoint, model))
        await try_servers(*(unless_cancelled(stop, attempt) for attempt in attempts))
    finally:
        if endpoint is not None:
            await endpoint.close()
        await close_tools(ready.setup.tools())
    note = "the model's server answers" if endpoint is not None else "the model is served by the command"
    print(f"all checks passed: {len(ready.questions.rows):,} questions, the search answers, {note}")
    return 0


async def _try_model(args: RolloutArguments, ready: RunSetup, endpoint: Endpoint, model: str) -> None:
    """At least one request to the model's server, and one for a token if it lists no models."""
    await response_format(args.engine, endpoint, model, json.loads(args.body), ready.setup)
    if args.engine == "chat" and not args.trust_env:  # with the other engine it was asked for a token
        server = (endpoint.base, args.api_key_env, "model server", "--base-url", model)
        await asyncio.to_thread(check_replies, *server)


def sampling_of(args: RolloutArguments) -> dict[str, Any]:
    """Keys of every request, besides the temperature. vLLM takes what a request leaves out from the model's
    generation_config.json (Qwen's has a repetition penalty, and top-p and top-k of its own), so a policy is
    asked with all of them, as in training."""
    if args.engine == "chat":
        return {"top_p": None if args.top_p == 1 else args.top_p}
    return {"top_p": args.top_p, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}


def requires_token_ids(setup: AgentSetup, answers: str) -> bool:
    """Does the agent need log-probs of tokens? Raises RunError if so and the endpoint gives none."""
    if setup.budget.max_state is None:
        return False
    if answers != IDS:
        raise RunError(
            "rag_r1.agent.max_state needs the log-probs of tokens: use --engine completions and a server "
            "that returns token ids (vLLM), or leave max_state out"
        )
    return True


def usage_line(run: RunSession) -> str:
    """Requests, tokens and cost of a run, all its starts together."""
    usage, spending = run.spending.usage, run.spending
    text = (
        f"endpoint: {usage.requests:,} answers, {usage.prompt_tokens:,} prompt tokens, "
        f"{usage.completion_tokens:,} generated tokens"
    )
    if usage.estimated:
        text += f" ({usage.estimated:,} answers named no tokens: estimated)"
    return text + (f", cost {spending.cost:.4g}" if spending.has_prices else "")
