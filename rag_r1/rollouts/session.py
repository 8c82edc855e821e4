"""A run session: opens what a command's run needs and closes it at the end.

A command such as `rag-r1 eval` first calls `prepare`, which reads the questions and checks every key without
asking a server. It then enters `open_session`, which sends one request to the endpoint and one to the search,
opens the run's folder and yields a `RunSession`, whose `runner` plays the episodes.

The settings of a run (`settings_of`) decide which episodes are played and how; a run is resumed only with
equal settings. What only affects speed or cost (concurrency, retries, addresses, the cost limit) is not part
of them. As in training, a failure of the endpoint or of a search never counts as a wrong answer: such an
episode is masked. Requests are retried by the clients of the two servers, not by the episodes.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator, Awaitable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rag_r1.config.agent_setup import AgentSetup, RowLimits
from rag_r1.config.schema import RagR1Config
from rag_r1.inference.client import Endpoint
from rag_r1.inference.cost_limit import CostTracker
from rag_r1.inference.rate_limit import RateLimiter
from rag_r1.options.import_path import add_working_directory
from rag_r1.rewards import RewardSum, check_threshold, find_term
from rag_r1.rollouts.arguments import RolloutArguments, check_paths, config_of, keys_of
from rag_r1.rollouts.engine_factory import TokenUnit, agent_setup, endpoint_options, engine_maker
from rag_r1.rollouts.requests import QuestionSet, questions_hash, read_questions
from rag_r1.rollouts.response_format import requires_token_ids, response_format
from rag_r1.rollouts.runner import CorrectnessRule, EpisodeRunner
from rag_r1.rollouts.search_check import search_settings, try_first_search
from rag_r1.runs.cancel_token import CancelToken, unless_cancelled
from rag_r1.runs.errors import RunError
from rag_r1.runs.folder import RunFolder
from rag_r1.runs.settings import json_hash
from rag_r1.runs.start_checks import try_servers
from rag_r1.tools import close_tools

#: Version of the journal's format. A folder with another version is refused.
_FORMAT = 1
#: Reward terms that are computed for every record.
_DEFAULT_TERMS = ("em", "f1", "cover_em")


@dataclass(frozen=True)
class RunSetup:
    """The inputs of a run, which are read and checked before any server is asked."""

    questions: QuestionSet
    #: The block `rag_r1` of the run.
    config: RagR1Config
    tokens: TokenUnit
    #: The agent that plays the questions.
    setup: AgentSetup
    #: The keys of the search.
    retriever: dict[str, Any]
    reward: RewardSum
    #: Decides which answers count as right.
    correctness: CorrectnessRule


class PreparedAgent(NamedTuple):
    """An agent as the arguments select it."""

    #: The block `rag_r1`.
    config: RagR1Config
    #: The unit in which lengths are counted.
    tokens: TokenUnit
    setup: AgentSetup


def prepare(args: RolloutArguments, defaults: Mapping[str, Any], *, validation: bool = False) -> RunSetup:
    """Read the questions and check every key of the configuration.

    `defaults` are the command's own values in the block rag_r1, by section. With `validation`, the limits and
    the search of a validation apply instead of those of training. Raises RunError if an argument, a key or a
    file is wrong, and OSError if a file cannot be read."""
    add_working_directory()
    try:
        config, tokens, setup = prepare_agent(args, defaults, validation=validation)
        reward, correctness = reward_of(args, config)
        questions = read_questions(
            args.questions, config.protocol, skip_bad_rows=args.skip_bad_rows, limit=args.limit
        )
    except ValueError as error:  # from the configuration, a reward or a file
        raise RunError(str(error)) from error
    retriever = dict(config.validation_retriever if validation else config.retriever)
    return RunSetup(questions, config, tokens, setup, retriever, reward, correctness)


def prepare_agent(args: RolloutArguments, defaults: Mapping[str, Any], *, validation: bool) -> PreparedAgent:
    """Return the agent that the arguments select. `defaults` and `validation` have the same meaning as in
    `prepare`. Raises ValueError or RunError if an argument or key is wrong."""
    config = config_of(args, defaults)
    tokens = TokenUnit.of(args.tokenizer)
    limits = RowLimits(args.max_prompt_tokens, args.max_response_tokens, args.max_context_tokens)
    setup = agent_setup(config, tokens, limits, validation=validation)
    check_paths(args, setup.budget.paths)
    return PreparedAgent(config, tokens, setup)


def reward_of(args: RolloutArguments, config: RagR1Config) -> tuple[RewardSum, CorrectnessRule]:
    """Return the reward terms of every record, and the rule that decides which answers are right. Without a
    key rag_r1.reward, the terms are the default ones and --term. Raises ValueError if a term is wrong, if
    rag_r1.reward lacks --term, or if --right-from is not in the range of its values."""
    entries = list(config.reward)
    if "rag_r1.reward" not in keys_of(args):
        find_term(args.term, "--term")
        terms = dict.fromkeys([*_DEFAULT_TERMS, args.term])
        entries = [{"term": term, "weight": float(term == args.term)} for term in terms]
    reward = RewardSum.from_config(entries, config.protocol)
    terms_by_name = {term.name: term for term in reward.terms}
    name = args.term if args.term in terms_by_name else args.term.rpartition(":")[2]
    if name not in terms_by_name:
        names = ", ".join(terms_by_name)
        raise ValueError(f"--term {args.term}: rag_r1.reward has only {names}: name one of these")
    term = terms_by_name[name]
    check_threshold("--right-from", args.right_from, name, term.function, term.options)
    return reward, CorrectnessRule(name, args.right_from)


def settings_of(args: RolloutArguments, run_setup: RunSetup, command: str, **settings: Any) -> dict[str, Any]:
    """Return the settings that decide which episodes are played and how, as the run's folder records them.
    `settings` are further settings of the command, which may replace those of the run."""
    return {
        "command": command,
        "format": _FORMAT,
        **question_settings(run_setup.questions),
        **config_settings(run_setup.config, run_setup.retriever),
        "tokenizer": run_setup.tokens.name,
        **argument_settings(args),
        "budget": vars(run_setup.setup.budget),
        **reward_settings(run_setup.reward, run_setup.correctness),
        **settings,
    }


def argument_settings(args: RolloutArguments) -> dict[str, Any]:
    """Return the settings that are arguments."""
    return {
        "prompt": args.prompt is not None,
        "top_p": args.top_p,
        "seed": args.seed,
        "body": json.loads(args.body),
    }


def question_settings(questions: QuestionSet) -> dict[str, Any]:
    """Return the settings that identify the questions."""
    return {"questions": len(questions.rows), "questions_sha256": questions_hash(questions.rows)}


def config_settings(config: RagR1Config, retriever: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the protocol and the tools. `retriever` are the keys of the search."""
    return {
        "protocol": config.protocol.name,
        "protocol_sha256": json_hash(dataclasses.asdict(config.protocol)),
        "retriever": search_settings(retriever),
        "tools": config.tools,
    }


def reward_settings(reward: RewardSum, correctness: CorrectnessRule) -> dict[str, Any]:
    """Return the settings of the reward and of what is right."""
    return {
        "term": correctness.term,
        "right_from": correctness.threshold,
        "rewards": [{"term": term.name, "weight": term.weight} for term in reward.terms],
    }


@dataclass
class RunSession:
    """An open run: its inputs, its folder, and the connections that it uses."""

    run_setup: RunSetup
    folder: RunFolder
    runner: EpisodeRunner
    endpoint: Endpoint
    #: Requests, tokens and cost so far, including earlier runs of the command.
    spending: CostTracker
    #: Cancels the run when it is called with a reason.
    stop: CancelToken
    #: The format of the endpoint's answers: CHAT, IDS or TEXT of response_format.py.
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
    """Open everything that a run needs, after a test request to the endpoint and to the search, and close it
    after the block.

    `url` and `model` name the endpoint, `out` the run's folder if it is not `--out`. A run with
    `searches=False` needs no search. Raises RunError, and OSError if a file of the folder cannot be opened or
    written."""
    setup, extra_body = run_setup.setup, json.loads(args.body)
    stop = CancelToken()
    spending = CostTracker(stop, args.price_in, args.price_out, args.max_cost)
    options = endpoint_options(args, url, args.api_key_env)
    endpoint = Endpoint(options, stop, spending, RateLimiter(args.rpm, args.tpm))
    try:
        search_checks = [try_first_search(run_setup.retriever, args.retriever_url)] if searches else []
        sampling = {"model": model, **sampling_of(args)}
        format_check = _format_check(args, run_setup, endpoint, model)
        answers, *_ = await try_servers(unless_cancelled(stop, format_check), *search_checks)
        needs_logprobs = requires_token_ids(setup, answers)
        with RunFolder(out or args.out, {**settings, "model": model, "answers": answers}) as folder:
            spending.usage.add(folder.cache.usage)
            make_engine = engine_maker(
                answers, setup, endpoint, folder.cache, sampling, extra_body, logprobs=needs_logprobs
            )
            runner = EpisodeRunner(
                setup,
                make_engine,
                run_setup.reward,
                folder,
                correctness=run_setup.correctness,
                in_flight=args.in_flight,
                tries=args.tries,
                stop=stop,
                wait_until_idle=endpoint.idle,
                spending=spending,
            )
            yield RunSession(run_setup, folder, runner, endpoint, spending, stop, answers)
    finally:
        await endpoint.close()
        await close_tools(setup.tools())


async def check_only(
    args: RolloutArguments, run_setup: RunSetup, url: str | None, model: str, *, searches: bool = True
) -> int:
    """Finish a `--check-only` command, whose arguments have been read: send one request to the search and one
    to the model's server at `url` (None if the command would start that server itself). With
    `searches=False` the command needs no search. Returns 0. Raises RunError, which names every server that
    does not answer."""
    stop = CancelToken()
    endpoint = None if url is None else Endpoint(endpoint_options(args, url, args.api_key_env), stop)
    attempts: list[Awaitable[Any]] = []
    try:
        if searches:
            attempts.append(try_first_search(run_setup.retriever, args.retriever_url))
        if endpoint is not None:
            attempts.append(_format_check(args, run_setup, endpoint, model))
        await try_servers(*(unless_cancelled(stop, attempt) for attempt in attempts))
    finally:
        if endpoint is not None:
            await endpoint.close()
        await close_tools(run_setup.setup.tools())
    search = "the search answers" if searches else "no search"
    note = "the model's server answers" if endpoint is not None else "the model is served by the command"
    print(f"all checks passed: {len(run_setup.questions.rows):,} questions, {search}, {note}")
    return 0


def _format_check(
    args: RolloutArguments, run_setup: RunSetup, endpoint: Endpoint, model: str
) -> Coroutine[Any, Any, str]:
    """Return a coroutine that checks the model's server and returns the format of its answers. When it is
    awaited, it raises the errors of `response_format`."""
    body = json.loads(args.body)
    return response_format(args.engine, endpoint, model, body, run_setup.setup, model_flag=args.model_flag)


def sampling_of(args: RolloutArguments) -> dict[str, Any]:
    """Return the sampling keys of every request, without the temperature.

    vLLM fills in missing keys from the model's generation_config.json (Qwen's sets a repetition penalty,
    top-p and top-k), so the completions engine sends all of them, as training does."""
    if args.engine == "chat":
        return {"top_p": None if args.top_p == 1 else args.top_p}
    return {"top_p": args.top_p, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}


def usage_line(session: RunSession) -> str:
    """Return a line with the requests, tokens and cost of a run, summed over all runs of its command."""
    spending = session.spending
    usage = spending.usage
    text = (
        f"endpoint: {usage.requests:,} answers, {usage.prompt_tokens:,} prompt tokens, "
        f"{usage.completion_tokens:,} generated tokens"
    )
    if usage.estimated:
        text += f" ({usage.estimated:,} answers named no tokens: estimated)"
    return text + (f", cost {spending.cost:.4g}" if spending.has_prices else "")
