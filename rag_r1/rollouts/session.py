"""A run session: opens what a command's run needs and closes it at the end.

The settings of a run are all that decides which episodes are played and how; what only decides how fast
(requests at a time, retries, addresses, the cost limit) may differ when the run is resumed. A failure of the
endpoint or of a search is never a wrong answer, here as in training: such an episode is masked. Episodes
do not retry: the clients of the endpoint and of the retrieval server do.
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
from rag_r1.rollouts.arguments import EndpointArguments, RolloutArguments, config_of, keys_of
from rag_r1.rollouts.checks import try_first_search
from rag_r1.rollouts.engine_factory import TokenUnit, agent_setup, engine_maker
from rag_r1.rollouts.requests import QuestionSet, questions_hash, read_questions
from rag_r1.rollouts.response_format import requires_token_ids, response_format
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
#: The format of the journal; a folder of another one is refused.
_FORMAT = 1
#: Terms that every record has.
_DEFAULT_TERMS = ("em", "f1", "cover_em")


@dataclass(frozen=True)
class RunSetup:
    """The inputs of a run, read and checked before anything is asked. `setup`: the agent; `retriever`: the
    keys of the search; `right`: when an answer counts as right."""

    questions: QuestionSet
    config: RagR1Config
    tokens: TokenUnit
    setup: AgentSetup
    retriever: dict[str, Any]
    reward: RewardSum
    right: CorrectnessRule


def prepare(args: RolloutArguments, defaults: Mapping[str, Any], *, validation: bool = False) -> RunSetup:
    """Read the questions and check every key. `defaults`: this command's keys of the block rag_r1, by
    section. With `validation` the limits and the search are those of a validation. Raises RunError."""
    add_working_directory()
    try:
        return _prepare_setup(args, defaults, validation)
    except ValueError as error:  # of the configuration, of a reward, of the files
        raise RunError(str(error)) from error


def prepare_agent(
    args: RolloutArguments, defaults: Mapping[str, Any], *, validation: bool
) -> tuple[RagR1Config, TokenUnit, AgentSetup]:
    """Returns the block rag_r1, the tokens and the agent that the arguments select; `defaults`, `validation`:
    as for `prepare`. Raises ValueError or RunError."""
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
    reward, right = _reward_of(args, config)
    questions = read_questions(
        args.questions, config.protocol, skip_bad_rows=args.skip_bad_rows, limit=args.limit
    )
    retriever = dict(config.validation_retriever if validation else config.retriever)
    return RunSetup(questions, config, tokens, setup, retriever, reward, right)


def _reward_of(args: RolloutArguments, config: RagR1Config) -> tuple[RewardSum, CorrectnessRule]:
    """Returns the terms of every record, and the one that says what is right. Without a key rag_r1.reward
    these are the default terms and --term. Raises ValueError."""
    entries = [dict(entry) for entry in config.reward]
    if "rag_r1.reward" not in keys_of(args):
        terms = dict.fromkeys([*_DEFAULT_TERMS, args.term])
        entries = [{"term": term, "weight": float(term == args.term)} for term in terms]
    reward = RewardSum.from_config(entries, config.protocol)
    names = [term.name for term in reward.terms]
    name = args.term if args.term in names else args.term.rpartition(":")[2]
    if name not in names:
        raise ValueError(f"--term {args.term}: rag_r1.reward has only {', '.join(names)}: name one of these")
    return reward, CorrectnessRule(name, args.right_from)


def settings_of(args: RolloutArguments, run_setup: RunSetup, command: str, **settings: Any) -> dict[str, Any]:
    """Returns the settings that decide which episodes are played and how, for the run's folder. `settings`:
    those of the command alone."""
    protocol = json.dumps(dataclasses.asdict(run_setup.config.protocol), sort_keys=True, default=str)
    return {
        "command": command,
        "format": _FORMAT,
        "questions": len(run_setup.questions.rows),
        "questions_sha256": questions_hash(run_setup.questions.rows),
        "protocol": run_setup.config.protocol.name,
        "protocol_sha256": hashlib.sha256(protocol.encode()).hexdigest(),
        "prompt": args.prompt is not None,
        "tokenizer": run_setup.tokens.name,
        "top_p": args.top_p,
        "seed": args.seed,
        "body": json.loads(args.body),
        "budget": vars(run_setup.setup.budget),
        "retriever": search_settings(run_setup.retriever),
        "tools": run_setup.config.tools,
        "term": run_setup.right.term,
        "right_from": run_setup.right.least,
        "rewards": [{"term": term.name, "weight": term.weight} for term in run_setup.reward.terms],
        **settings,
    }


def search_settings(retriever: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a search that decide what it finds."""
    return {key: value for key, value in retriever.items() if key not in _SPEED_KEYS}


@dataclass
class RunSession:
    """A run under way, with everything that it has open. `answers`: what the endpoint returns, token ids or
    text (response_format.py)."""

    run_setup: RunSetup
    folder: RunFolder
    runner: EpisodeRunner
    endpoint: Endpoint
    spending: CostTracker
    stop: CancelToken
    answers: str


@asynccontextmanager
async def open_session(
    args: RolloutArguments,
    run_setup: RunSetup,
    url: str,
    model: str,
    settings: Mapping[str, Any],
    *,
    out: Path | None = None,
    searches: bool = True,
) -> AsyncIterator[RunSession]:
    """Open everything that a run needs, after one request to the endpoint and one search, and close it after
    the block. `url`, `model`: the endpoint; `out`: the run's folder, if it is not `--out`; `searches`: false
    for a run without a search. Raises RunError."""
    setup, extra_body = run_setup.setup, json.loads(args.body)
    stop = CancelToken()
    spending = CostTracker(stop, args.price_in, args.price_out, args.max_cost)
    options = endpoint_options(args, url, args.api_key_env)
    endpoint = Endpoint(options, stop, spending, RateLimiter(args.rpm, args.tpm))
    try:
        search = [try_first_search(run_setup.retriever, args.retriever_url)] if searches else []
        sampling = {"model": model, **sampling_of(args)}
        model_server = response_format(args.engine, endpoint, model, extra_body, setup)
        answers, *_ = await try_servers(unless_cancelled(stop, model_server), *search)
        needs_logprobs = requires_token_ids(setup, answers)
        with RunFolder(out or args.out, {**settings, "model": model, "answers": answers}) as folder:
            spending.add(folder.cache.usage)
            make_engine = engine_maker(
                answers, setup, endpoint, folder.cache, sampling, extra_body, logprobs=needs_logprobs
            )
            runner = EpisodeRunner(
                setup,
                make_engine,
                run_setup.reward,
                folder,
                right=run_setup.right,
                in_flight=args.in_flight,
                tries=args.tries,
                stop=stop,
                idle=endpoint.idle,
                spending=spending,
            )
            yield RunSession(run_setup, folder, runner, endpoint, spending, stop, answers)
    finally:
        await endpoint.close()
        await close_tools(setup.tools())


def endpoint_options(args: EndpointArguments, url: str, key_variable: str) -> EndpointOptions:
    """Returns the options of requests to the server at this address, whose key is in an environment
    variable."""
    return EndpointOptions(
        url,
        key_variable,
        timeout_s=args.timeout_s,
        retries=args.retries,
        backoff_s=args.backoff_s,
        in_flight=args.in_flight,
        trust_env=args.trust_env,
    )


async def check_only(args: RolloutArguments, run_setup: RunSetup, url: str | None, model: str) -> int:
    """Do what `--check-only` does after the arguments are read: one search, and one request to the model's
    server at `url`; None: the command would start it. Returns 0. Raises RunError with all that does not
    answer."""
    stop = CancelToken()
    attempts: list[Awaitable[Any]] = [try_first_search(run_setup.retriever, args.retriever_url)]
    endpoint = None if url is None else Endpoint(endpoint_options(args, url, args.api_key_env), stop)
    try:
        if endpoint is not None:
            attempts.append(_try_model(args, run_setup, endpoint, model))
        await try_servers(*(unless_cancelled(stop, attempt) for attempt in attempts))
    finally:
        if endpoint is not None:
            await endpoint.close()
        await close_tools(run_setup.setup.tools())
    note = "the model's server answers" if endpoint is not None else "the model is served by the command"
    print(f"all checks passed: {len(run_setup.questions.rows):,} questions, the search answers, {note}")
    return 0


async def _try_model(args: RolloutArguments, run_setup: RunSetup, endpoint: Endpoint, model: str) -> None:
    """Send at least one request to the model's server, and one for a token if it lists no models."""
    await response_format(args.engine, endpoint, model, json.loads(args.body), run_setup.setup)
    if args.engine == "chat" and not args.trust_env:  # with the other engine it was asked for a token
        url, key_variable = endpoint.base, args.api_key_env
        await asyncio.to_thread(check_replies, url, key_variable, "model server", "--base-url", model)


def sampling_of(args: RolloutArguments) -> dict[str, Any]:
    """Returns the keys of every request, besides the temperature. vLLM takes what a request leaves out from
    the model's generation_config.json (Qwen's has a repetition penalty, and top-p and top-k of its own), so a
    policy is asked with all of them, as in training."""
    if args.engine == "chat":
        return {"top_p": None if args.top_p == 1 else args.top_p}
    return {"top_p": args.top_p, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}


def usage_line(session: RunSession) -> str:
    """A line with the requests, tokens and cost of a run, all its starts together."""
    spending = session.spending
    usage = spending.usage
    text = (
        f"endpoint: {usage.requests:,} answers, {usage.prompt_tokens:,} prompt tokens, "
        f"{usage.completion_tokens:,} generated tokens"
    )
    if usage.estimated:
        text += f" ({usage.estimated:,} answers named no tokens: estimated)"
    return text + (f", cost {spending.cost:.4g}" if spending.has_prices else "")
