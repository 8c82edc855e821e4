"""What a user can choose about asking a web engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class WebOptions:
    """How an engine is asked; the names are those of the flags ``--web-*`` of start_retrieval.py."""

    #: Queries that are with the engine at one time.
    concurrency: int = 16
    #: Seconds for one attempt, from connecting to the last byte.
    timeout_s: float = 10.0
    #: Attempts after the first.
    retries: int = 2
    #: Seconds before the first retry, give or take half; doubles each time.
    backoff_s: float = 0.5
    #: More parameters of the engine's API, such as ``{"gl": "us"}``.
    params: Mapping[str, Any] = field(default_factory=dict)
