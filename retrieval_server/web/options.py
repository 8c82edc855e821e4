"""The options of web search engines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator

from retrieval_server.errors import UserError
from retrieval_server.options import AtLeastOne, Flag, Group, Options
from retrieval_server.web.engines import ENGINES

#: The name under which a web engine is served.
WEB = "web"
#: The environment variable of each engine, for `--help`.
_KEYS = ", ".join(f"{name}: {engine.key_variable or engine.url_variable}" for name, engine in ENGINES.items())


class WebOptions(Options):
    """How requests are sent to an engine."""

    concurrency: Annotated[
        AtLeastOne, Flag("queries sent to the engine at a time", names=("--web-concurrency",), metavar="N")
    ] = 16
    #: Includes the time from connecting to the last byte.
    timeout_s: Annotated[
        float,
        Field(gt=0, allow_inf_nan=False),
        Flag("time for one attempt", names=("--web-timeout",), metavar="SECONDS"),
    ] = 10.0
    retries: Annotated[
        int,
        Field(ge=0),
        Flag("further attempts after 429, 5xx or no answer", names=("--web-retries",), metavar="N"),
    ] = 2
    #: Seconds before the first retry, plus or minus half of it; doubled each time.
    backoff_s: float = 0.5
    #: More parameters of the engine's API, such as `{"gl": "us"}`.
    params: Mapping[str, Any] = {}


class WebSelection(Options):
    """Which engine answers, and which recordings are read and written. `web` is None without an engine."""

    group = Group(
        "web search",
        "Asks a search engine and answers in the same wire format. Keys come from the environment "
        f"({_KEYS}). Answers can be recorded, and a recorded run replayed free of charge, byte for byte: "
        "--record run.jsonl the first time, --replay run.jsonl from then on.",
    )

    web: Annotated[
        str | None,
        Flag(
            'the engine, in place of --index; or beside it: it then answers requests with "index": "web"',
            choices=tuple(ENGINES),
        ),
    ] = None
    record: Annotated[
        Path | None,
        Flag(
            "append every answer to this new JSONL file; with --replay FILE the file may exist: answers "
            "in it are used, others are requested and recorded",
            metavar="FILE",
        ),
    ] = None
    replay: Annotated[
        Path | None,
        Flag(
            "answer from this recording; without --record nothing is sent to the engine, no key is needed, "
            "and a query that is not in it gets 404 not_recorded",
            metavar="FILE",
        ),
    ] = None
    client: WebOptions = WebOptions()
    web_param: Annotated[
        tuple[str, ...],
        Flag(
            "a parameter of the engine's own API, such as gl=us (serper) or search_depth=advanced (tavily); "
            "may be given several times; recorded answers are found by it too",
            metavar="NAME=VALUE",
        ),
    ] = ()
    web_url: Annotated[
        str | None,
        Flag("another address of the same API, such as a gateway; it is sent the key", metavar="URL"),
    ] = None

    @field_validator("web_param")
    @classmethod
    def _are_pairs(cls, pairs: tuple[str, ...]) -> tuple[str, ...]:
        for pair in pairs:
            if "=" not in pair.lstrip("="):
                raise ValueError(f"--web-param {pair}: write NAME=VALUE")
        return pairs

    def contradictions(self) -> Iterator[UserError]:
        """Yield an error for each option that has no meaning without an engine."""
        if self.web is None:
            flags = ("--record", "--replay", "--web-param", "--web-url")
            values = (self.record, self.replay, self.web_param, self.web_url)
            for flag, value in zip(flags, values, strict=True):
                if value:
                    yield UserError(f"{flag} belongs to --web ENGINE: add that, or leave {flag} out", "--web")
