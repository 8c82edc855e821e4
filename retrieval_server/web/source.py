"""Opens a web search engine as a source, which answers live or from a recording.

`WebSource.open` checks parameters, address, key and recording before anything is sent, and reports all
problems at once. An answer comes from the recording if it has one, and otherwise from the client.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import urlsplit

from retrieval_server.errors import SearchFailedError, UserError, check_all
from retrieval_server.folder.passages import Passage
from retrieval_server.source import RemoteSource, ScoredPassage, SourceDescription
from retrieval_server.web.client import WebClient
from retrieval_server.web.engines import ENGINES, WebDocument, WebEngine
from retrieval_server.web.options import WebOptions, WebSelection
from retrieval_server.web.recordings import Recording, RecordingKey


class WebSource(RemoteSource):
    """Returns the documents of one engine. The id of a document is its address, and its score is 1 / rank.

    `client` is None if only the recording is used.
    """

    def __init__(
        self, engine: WebEngine, options: WebOptions, client: WebClient | None, recording: Recording | None
    ):
        self.engine = engine
        self.concurrency = options.concurrency
        self._params = dict(options.params)
        self._client = client
        self._recording = recording

    @classmethod
    def open(
        cls,
        name: str,
        environment: Mapping[str, str],
        options: WebOptions | None = None,
        *,
        url: str | None = None,
        replay: Path | None = None,
        record: Path | None = None,
    ) -> WebSource:
        """Open the engine with this name, which is one of ENGINES, with its key from `environment`.

        With `replay` alone no request is ever sent, and no key is needed. Raises UserError, or UserErrors
        with all problems.
        """
        engine = ENGINES[name]
        options = options or WebOptions()
        connects = replay is None or record is not None
        with ExitStack() as stack:  # closes the recording, which is locked, if another check fails
            # The results are in the order of the checks; the first one only raises.
            _, address, api_key, recording = check_all(
                lambda: _check_params(engine, options),
                lambda: _url(engine, environment, url) if connects else None,
                lambda: _key(engine, environment) if connects else None,
                lambda: stack.enter_context(closing(Recording(replay, record))) if replay or record else None,
            )
            stack.pop_all()
        client = WebClient(engine, address, api_key, options) if connects else None
        return cls(engine, options, client, recording)

    @property
    def description(self) -> SourceDescription:
        """The description, which contains only the engine's name."""
        return SourceDescription(backend=f"web:{self.engine.name}")

    @property
    def origin(self) -> str:
        """The origin of the answers in words, for the output at the start."""
        count = None if self._recording is None else len(self._recording)
        recorded = "nothing recorded" if count is None else f"{count} recorded answers"
        return recorded if self._client is not None else f"{recorded}, nothing else"

    async def answer(self, query: str, topk: int) -> tuple[ScoredPassage, ...]:
        """Return at most `topk` documents, recorded or live. Raises SearchFailedError."""
        key = RecordingKey(self.engine.name, query, self.engine.depth(topk), self._params)
        try:
            documents = self._recording.get(key) if self._recording is not None else None
            if documents is None:
                documents = await self._search_live(key, topk)
        except (UserError, OSError) as error:  # of the recording: the client raises neither
            raise SearchFailedError(503, "record_failed", str(error), retry_after=60) from None
        return tuple(
            ScoredPassage(Passage(document.url, document.contents, document.url), 1 / rank)
            for rank, document in enumerate(documents[:topk], 1)
        )

    async def _search_live(self, key: RecordingKey, topk: int) -> list[WebDocument]:
        """Search with the engine and record the answer. Raises SearchFailedError without a client."""
        if self._client is None:
            reason = f"the recording has no answer of {key.engine} for {key.query[:100]!r}"
            raise SearchFailedError(404, "not_recorded", f"{reason}, topk {topk}, these parameters")
        documents = await self._client.search(key.query, key.depth)
        return documents if self._recording is None else self._recording.put(key, documents)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
        self.discard()

    def discard(self) -> None:
        """Close the recording, which is locked, of a source that will not be served."""
        if self._recording is not None:
            self._recording.close()


def open_web(choice: WebSelection) -> WebSource:
    """Open the source of the options, which must name an engine. Raises UserError."""
    assert choice.web is not None, "no engine is chosen"
    parse_value = _json_or_text if ENGINES[choice.web].method == "POST" else str
    pairs = (pair.partition("=") for pair in choice.web_param)
    params = {name: parse_value(value) for name, _, value in pairs}
    options = choice.client.model_copy(update={"params": params})
    return WebSource.open(
        choice.web, os.environ, options, url=choice.web_url, replay=choice.replay, record=choice.record
    )


def _json_or_text(value: str) -> object:
    """Return the value of a JSON text, such as `true` or `["a.org"]`, or any other text as it is."""
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _key(engine: WebEngine, environment: Mapping[str, str]) -> str | None:
    """Return the API key in the environment, or None for an engine without keys.

    Raises UserError if the key is missing or malformed.
    """
    if engine.key_variable is None:
        return None
    key = environment.get(engine.key_variable, "").strip()
    if not key:
        raise UserError(f"{engine.key_variable} is not set: export it, or use --replay without --record.")
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise UserError(f"{engine.key_variable} must be printable ASCII without blanks. Set it again.")
    return key


def _url(engine: WebEngine, environment: Mapping[str, str], url: str | None) -> str:
    """Return the address: `url` (--web-url), the one in the environment, or the engine's default.

    Raises UserError if it is missing or malformed.
    """
    name = "--web-url"
    if url is None and engine.url_variable is not None:
        name = engine.url_variable
        url = environment.get(name, "").strip()
        if not url:
            raise UserError(f"{engine.name} has no default address: export {name}=http://127.0.0.1:8080")
        if not url.rstrip("/").endswith("/search"):
            url = url.rstrip("/") + "/search"
    url = engine.url if url is None else url
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        # Addresses are logged and shown, so they must not contain a password or a key. For the same reason
        # the error message does not repeat the address.
        is_valid = is_valid and "@" not in parts.netloc and url.isprintable() and not set(url) & set("?# ")
    except ValueError:
        is_valid = False
    if not is_valid:
        raise UserError(f"{name} is not an http(s) address without blanks, user, password, query, fragment.")
    return url


def _check_params(engine: WebEngine, options: WebOptions) -> None:
    """Raise UserError for a parameter that the server itself sets, or that looks like a key."""
    for name in options.params:
        if name in engine.reserved():
            raise UserError(f"--web-param {name}: the server sets this field of {engine.name} itself.")
        if any(word in name.lower() for word in ("key", "token", "secret")):
            remedy = f"it is read from {engine.key_variable}" if engine.key_variable else "leave it out"
            raise UserError(f"--web-param {name}: a key does not belong on a command line; {remedy}.")
