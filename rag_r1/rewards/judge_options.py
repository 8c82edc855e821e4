"""The options of a judged term: the endpoint of the judge, its limits and its cache.

They are checked when the run starts; the key is read from the environment at the first request. Error
messages never show the key, nor a text in `url` or `api_key_env`, where it may have been written by mistake.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import model_validator

from rag_r1.io.secrets import read_secret
from rag_r1.options.declare import OptionsError, options
from rag_r1.options.from_config import options_from
from rag_r1.options.server_address import AN_ADDRESS, is_server_address, model_server_base
from rag_r1.options.types import Count, PositiveCount, PositiveSeconds, Seconds, Text
from rag_r1.rewards.registry import RewardError
from rag_r1.rewards.term_call import DEFAULT_TIMEOUT_S

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@options("rag_r1.reward")
class JudgeOptions:
    """The keys of a judged term besides `term`, `weight` and `name`."""

    #: Address of the endpoint, up to and including /v1.
    url: Text
    #: Name of the model that judges.
    model: Text
    #: Environment variable with the key of the endpoint; null: no key is sent.
    api_key_env: Text | None = None
    #: Where replies are kept: a file whose name ends in .jsonl, or a folder; null: in memory, for this run.
    cache: Text | None = None
    #: Most requests of a process, including retries; after them the term has no value.
    max_requests: PositiveCount = 100_000
    #: Most requests at a time, per process.
    concurrency: PositiveCount = 16
    #: Most tokens of a reply. A judge that thinks before it replies needs more.
    max_tokens: PositiveCount = 16
    #: Attempts after the first.
    retries: Count = 3
    #: Seconds before the first retry; doubles each time, with jitter.
    backoff_s: Seconds = 1.0
    #: Seconds for one attempt. The whole term has the same limit for a trajectory (term_call.py).
    timeout_s: PositiveSeconds = DEFAULT_TIMEOUT_S

    @model_validator(mode="after")
    def _has_no_secret(self) -> JudgeOptions:
        # These messages do not show the value: it may contain a key.
        if not is_server_address(self.url):
            raise ValueError(f"url must be {AN_ADDRESS}: a key's variable is named by api_key_env")
        if self.api_key_env is not None and not _VARIABLE.fullmatch(self.api_key_env):
            raise ValueError("api_key_env must be the name of an environment variable, not the key itself")
        return self

    @property
    def endpoint(self) -> str:
        """The full address to which requests are sent."""
        return f"{model_server_base(self.url)}/chat/completions"


def option_faults(entry: Mapping[str, Any], key: str) -> list[str]:
    """Return the faults of the options of the term at `key`; they are reported when the run starts."""
    try:
        options_from(JudgeOptions, entry, key)
    except OptionsError as error:
        return list(map(str, error.faults))
    return []


def key_header(variable: str | None) -> dict[str, str]:
    """Return the header with the key from an environment variable, which must not be logged; {} for None.

    Raises RewardError if the variable is not set or contains no key. The message does not show the name of
    the variable, since the key itself may have been given there by mistake.
    """
    if variable is None:
        return {}
    try:
        key = read_secret(variable)
    except ValueError:
        raise RewardError(
            "the environment variable that api_key_env names has characters that a key cannot have: set it "
            "to the key alone"
        ) from None
    if key is None:
        raise RewardError(
            "the environment variable that api_key_env names is not set: export it, or set api_key_env to "
            "null"
        )
    return {"Authorization": f"Bearer {key}"}
