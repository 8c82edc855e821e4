"""Command-line options shared by the commands that run many episodes.

Commands such as `rag-r1 eval` inherit from `RolloutArguments` and add the flags of their model's server. The
agent is configured as in training: arguments of the form `key=value` override keys of the block `rag_r1:` and
are checked by the same declarations (rag_r1/config/schema.py). `config_of` merges flags, the command's
defaults and these overrides into one configuration.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator

from rag_r1.config.schema import RagR1Config
from rag_r1.config.search_faults import search_faults
from rag_r1.data.files.bad_rows import HELP
from rag_r1.io.bounded_yaml import YamlError, load_yaml
from rag_r1.options.command_line import Above0, Arguments, From0, From0Count, Positive, argument, names_flag
from rag_r1.options.out_folder import refuse_replaced
from rag_r1.options.types import Constraint
from rag_r1.rewards import term_names
from rag_r1.rollouts.agent_arguments import (
    COST,
    MODEL_SERVER,
    RUN,
    SAMPLING,
    SCORING,
    AgentSelection,
    EpisodeTokens,
)
from rag_r1.runs.start_checks import CHECK_ONLY, StartError

#: The example of a body in error messages.
_BODY_EXAMPLE = '{"top_k": 20}'
#: Keys that the command sets: with other values it would ask another model, or could not read the reply.
_OWN_KEYS = ("model", "messages", "prompt", "n", "stream")


def json_body(flag: str, text: str) -> dict[str, Any]:
    """Parse the value of a flag that adds keys to a request, a JSON object. Raises ValueError, which names
    the flag."""
    try:
        body = json.loads(text, parse_constant=_refuse_constant)
        json.dumps(body, allow_nan=False)  # raises ValueError for 1e999, which is read as infinite
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{flag} is not JSON: {error}: correct it, such as {_BODY_EXAMPLE}") from None
    if not isinstance(body, dict):
        raise ValueError(f"{flag} must be a JSON object, such as {_BODY_EXAMPLE}")
    if reserved := [key for key in _OWN_KEYS if key in body]:
        raise ValueError(f"{flag}: the command itself sets {', '.join(reserved)}: leave that out of the JSON")
    return body


def _refuse_constant(name: str) -> None:
    """Raise ValueError for NaN and infinity, which Python's parser accepts."""
    raise ValueError(f"{name} is not a number of JSON")


class EndpointArguments(Arguments):
    """Options of the requests to a model's server: concurrency, limits, retries and cost."""

    body: str = argument(
        'further keys of each request as JSON, {"top_k": 20}; null leaves a key out',
        "JSON",
        default="{}",
        rare=MODEL_SERVER,
    )
    in_flight: Positive = argument("requests at a time", "N", default=64)
    rpm: Above0 | None = argument("limit of requests per minute", "N", default=None, rare=MODEL_SERVER)
    tpm: Above0 | None = argument("limit of tokens per minute", "N", default=None, rare=MODEL_SERVER)
    timeout_s: Above0 = argument("seconds to wait for an answer", default=300.0, rare=MODEL_SERVER)
    retries: From0Count = argument(
        "attempts after the first for what may pass: 429, 5xx, broken connections and answers",
        default=6,
        rare=MODEL_SERVER,
    )
    backoff_s: From0 = argument(
        "seconds before the first retry; doubled each time", default=1.0, rare=MODEL_SERVER
    )
    price_in: From0 = argument("price of a million prompt tokens, in any currency", default=0.0, rare=COST)
    price_out: From0 = argument("price of a million generated tokens", default=0.0, rare=COST)
    max_cost: Above0 | None = argument("cost at which the run is stopped", default=None, rare=COST)
    trust_env: bool = argument(
        "use HTTPS_PROXY and the like for the endpoint", default=False, rare=MODEL_SERVER
    )

    # Each check is a validator of its own, since only the first error of one is reported.
    @model_validator(mode="after")
    def _has_prices(self) -> EndpointArguments:
        if self.max_cost is not None and not (self.price_in or self.price_out):
            raise ValueError("--max-cost needs --price-in and --price-out")
        return self

    @model_validator(mode="after")
    def _body_is_valid(self) -> EndpointArguments:
        json_body("--body", self.body)
        return self


class _QuestionArguments(Arguments):
    """The files of questions, and the folder of the run."""

    questions: list[Path] = argument(
        "veRL parquet as `rag-r1 data` writes it, or question and answers as JSON, JSON lines, CSV, TSV or "
        "parquet; may be repeated",
        "FILE",
    )
    out: Path = argument("folder of the run; run again, the command goes on where it was interrupted", "DIR")
    check_only: bool = argument(CHECK_ONLY, default=False)


class RolloutArguments(EndpointArguments, AgentSelection, EpisodeTokens, _QuestionArguments):
    """The arguments of every command that plays many episodes. Each command adds the address and the model of
    its endpoint."""

    #: Whether the command uses the model's own tokenizer if --tokenizer is missing.
    finds_tokenizer: ClassVar[bool] = False
    #: The flag with the name of the model, for messages.
    model_flag: ClassVar[str] = "--model"
    #: The names of the files that the command writes into --out, if a file of questions may be one of them.
    writes: ClassVar[tuple[str, ...]] = ()

    @property
    def url_flag(self) -> str:
        """The flag with the address of the model's server, for messages."""
        return "--base-url"

    tokenizer: str | None = argument(
        "folder or Hub name of the model's tokenizer; without it a token counts as 4 characters",
        "DIR",
        default=None,
        rare=MODEL_SERVER,
    )
    top_p: Annotated[float, Field(gt=0, le=1), Constraint("a number above 0 and at most 1")] = argument(
        "nucleus sampling", "P", default=1.0, rare=SAMPLING
    )
    seed: int = argument("seed of everything that is drawn", default=0, rare=SAMPLING)
    term: str = argument(
        f"reward term that says what is right: {', '.join(term_names())}, or one of rag_r1.reward",
        "NAME",
        default="em",
        rare=SCORING,
    )
    right_from: Above0 = argument(
        "least value of the term with which an answer is right", default=1.0, rare=SCORING
    )
    limit: Positive | None = argument(
        "number of questions that are played, from the first", "N", default=None
    )
    in_flight: Positive = argument("episodes at a time", "N", default=64)
    tries: Positive = argument(
        "starts of the command in which an episode that failed is played again, the first included",
        default=3,
        rare=RUN,
    )
    skip_bad_rows: bool = argument(HELP, default=False, rare=RUN)

    @model_validator(mode="after")
    def _tokenizer_is_named(self) -> RolloutArguments:
        if self.engine == "completions" and self.tokenizer is None and not self.finds_tokenizer:
            raise ValueError("--engine completions needs the model's tokenizer: give --tokenizer")
        return self

    @model_validator(mode="after")
    def _questions_stay(self) -> RolloutArguments:
        if self.writes:
            refuse_replaced(self.questions, self.out, self.writes)
        return self


def doubled_settings(words: Sequence[str]) -> list[str]:
    """Return a message for each flag on a command line that is given with the key of the same setting, which
    would replace it. A flag of a settings file is none."""
    pairs = {"--retriever-url": "retriever.url", "--protocol": "protocol", "--prompt": "prompt"}
    keys = {word.lstrip("+").partition("=")[0] for word in words}
    return [
        f"{flag} and rag_r1.{key} are the same setting: leave one of them out"
        for flag, key in pairs.items()
        if f"rag_r1.{key}" in keys and names_flag(words, flag)
    ]


def keys_of(args: RolloutArguments) -> dict[str, Any]:
    """Return the overrides by their full keys, such as `rag_r1.agent.max_turns`, with values read as YAML.
    Raises ValueError for a key outside rag_r1 or a value that is not YAML."""
    keys = {}
    for override in args.overrides:
        key, _, value = override.lstrip("+").partition("=")
        if key.startswith("~"):
            raise ValueError(f"{override}: a key cannot be removed here: give it a value, {key[1:]}=...")
        if not key.startswith("rag_r1."):
            raise ValueError(
                f"{override}: only keys of rag_r1 can be given, such as rag_r1.agent.max_turns=6"
            )
        try:
            keys[key] = load_yaml(value)
        except YamlError as error:
            raise ValueError(f"{override}: its value cannot be read: {error}") from None
    return keys


def config_of(args: RolloutArguments, defaults: Mapping[str, Any]) -> RagR1Config:
    """Return the checked block rag_r1 of this run. `defaults` has the same meaning as in `block_of`. Raises
    ValueError for a single problem, or StartError with all of them."""
    settings, faults = RagR1Config.read(block_of(args, defaults))
    if settings is not None:
        faults += search_faults(settings)
    if settings is None or faults:
        raise faults[0] if len(faults) == 1 else StartError(list(map(str, faults)))
    return settings


def check_paths(args: RolloutArguments, paths: int) -> None:
    """Raise ValueError if the `paths` of an episode are several, but greedy and therefore equal."""
    if paths > 1 and getattr(args, "temperature", 1) == 0:
        raise ValueError(
            "rag_r1.agent.paths above 1 needs a --temperature above 0, which `rag-r1 eval` has: greedy paths "
            "are equal, and a chat plays one path"
        )


def block_of(args: RolloutArguments, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the unchecked block rag_r1 of this run. The flags come first; the command's `defaults`, which
    are grouped by section, replace them, and the overrides replace both. Raises ValueError for an override
    that cannot be applied."""
    block: dict[str, Any] = {
        "protocol": args.protocol,
        "prompt": args.prompt,
        "retriever": {"url": args.retriever_url},
        # The clients retry by themselves, and waiting for a free request must not time out.
        "failures": {"retries": 0, "engine_timeout_s": None},
    }
    for section, values in defaults.items():
        block[section] = {**block.get(section, {}), **values}
    for key, value in keys_of(args).items():
        *sections, last_name = key.split(".")[1:]
        target = block
        for name in sections:
            target = target.setdefault(name, {})
            if not isinstance(target, dict):
                raise ValueError(f"{key}: {name} is not a section: give a key of a section")
        target[last_name] = value
    return block
