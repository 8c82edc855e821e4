"""The request and response formats of each web search engine. To add one: a `WebEngine` in `ENGINES`.

They follow the documentation at:

- Serper (Google): https://serper.dev (playground) and its JSON schema at
  https://schemas.apis.io/schemas/serper/serper-search-response/
- Bing Web Search v7: https://learn.microsoft.com/bing/search-apis/bing-web-search/reference/query-parameters
  and .../reference/response-objects. Microsoft ended its own service on 2025-08-11; the adapter is for
  gateways with the same API (`--web-url`).
- Tavily: https://docs.tavily.com/api-reference/endpoint/search
- Brave: https://api-dashboard.search.brave.com/api-reference/web/search/get
- Bocha: https://open.bochaai.com (web-search API); Agentic RAG-R1's engine. `freshness` and other
  parameters are given with `--web-param`.
- SearXNG: https://docs.searxng.org/dev/search_api.html; `json` must be among `search.formats` of the
  instance's settings.yml, else it answers 403.

Whatever topk is, a whole page of ten results, or several, is requested of an engine: so answers for different
topk differ only in length, one recording serves every topk of the page, and most engines charge per request.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from retrieval_server.web.plain_text import document_contents

_RESULTS_PER_PAGE = 10  # every engine's own default, or close to it


@dataclass(frozen=True)
class WebDocument:
    """One result: its address, and title and snippet as `'"Title"\\nsnippet'`."""

    url: str
    contents: str


@dataclass(frozen=True)
class WebEngine:
    """The API of one engine. Field names are the API's; `results` is the path to the list of results."""

    name: str
    method: Literal["GET", "POST"]
    url: str | None  # None: no default address; the environment's `url_variable` has it
    key_variable: str | None
    count: str | None  # None: one page, of whatever size
    max_count: int
    results: tuple[str, ...]
    #: The header of the key, and how its value begins.
    key_header: str = "Authorization"
    key_prefix: str = ""
    query: str = "q"
    title: str = "title"
    link: str = "url"
    snippet: str = "snippet"
    #: Fields of every request.
    fixed: Mapping[str, Any] = field(default_factory=dict)
    #: Fields of a request, unless `--web-param` gives them.
    defaults: Mapping[str, Any] = field(default_factory=dict)
    #: Used for a result whose `snippet` is missing.
    short_snippet: str | None = None
    url_variable: str | None = None
    #: Statuses, besides 401 and 403, that mean a problem with key or quota.
    refusals: frozenset[int] = frozenset({402})

    def headers(self, key: str) -> dict[str, str]:
        """The headers that send the key."""
        return {self.key_header: self.key_prefix + key}

    def depth(self, topk: int) -> int:
        """How many results to request in order to answer with `topk`."""
        pages = math.ceil(topk / _RESULTS_PER_PAGE)
        return self.max_count if self.count is None else min(pages * _RESULTS_PER_PAGE, self.max_count)

    def fields(self, query: str, depth: int, params: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a request: query parameters (GET) or keys of the JSON body (POST)."""
        count = {} if self.count is None else {self.count: depth}
        return {**self.defaults, **params, **self.fixed, self.query: query, **count}

    def reserved(self) -> set[str]:
        """The fields that `fields` sets by itself."""
        return {self.query, *self.fixed} | ({self.count} if self.count else set())

    def parse(self, answer: Any) -> list[WebDocument]:
        """The results of a decoded JSON answer, best first, each address once.

        An answer without the list has no results: some engines leave the list out then. A result without an
        http(s) address, or with neither title nor snippet, is left out. Raises ValueError if the answer is
        not this API's JSON.
        """
        value = answer
        for step in self.results:
            if not isinstance(value, dict):
                raise ValueError(f"a JSON object was expected around {step!r}, got {type(value).__name__}")
            value = value.get(step)
            if value is None:
                return []
        if not isinstance(value, list):
            raise ValueError(f"{'.'.join(self.results)} should be a list, got {type(value).__name__}")
        documents: dict[str, WebDocument] = {}
        for item in value:
            if not isinstance(item, dict):
                raise ValueError(f"{'.'.join(self.results)} should hold objects, got {type(item).__name__}")
            title, link, snippet = (_text(item, name) for name in (self.title, self.link, self.snippet))
            if self.short_snippet and not snippet.strip():
                snippet = _text(item, self.short_snippet)
            if _is_address(link) and (title.strip() or snippet.strip()):
                documents.setdefault(link, WebDocument(link, document_contents(title, snippet)))
        return list(documents.values())


def _text(item: dict, name: str) -> str:
    """The text of a field; empty if it is missing or of another type."""
    value = item.get(name)
    return value if isinstance(value, str) else ""


def _is_address(link: str) -> bool:
    """Whether a link is an http(s) address that can be sent."""
    try:
        parts = urlsplit(link)
        link.encode("utf-8")  # JSON can write half a surrogate pair, which is not a character
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.netloc) and not any(c.isspace() for c in link)


ENGINES: dict[str, WebEngine] = {
    engine.name: engine
    for engine in (
        WebEngine(
            name="serper",
            method="POST",
            url="https://google.serper.dev/search",
            key_variable="SERPER_API_KEY",
            key_header="X-API-KEY",
            count="num",
            max_count=100,
            results=("organic",),
            link="link",
        ),
        WebEngine(
            name="bing",
            method="GET",
            url="https://api.bing.microsoft.com/v7.0/search",
            key_variable="BING_API_KEY",
            key_header="Ocp-Apim-Subscription-Key",
            count="count",
            max_count=50,
            results=("webPages", "value"),
            title="name",
            fixed={"responseFilter": "Webpages", "textFormat": "Raw"},
        ),
        WebEngine(
            name="tavily",
            method="POST",
            url="https://api.tavily.com/search",
            key_variable="TAVILY_API_KEY",
            key_prefix="Bearer ",
            query="query",
            count="max_results",
            max_count=20,
            results=("results",),
            snippet="content",
            refusals=frozenset({402, 432, 433}),
        ),
        WebEngine(
            name="brave",
            method="GET",
            url="https://api.search.brave.com/res/v1/web/search",
            key_variable="BRAVE_API_KEY",
            key_header="X-Subscription-Token",
            count="count",
            max_count=20,
            results=("web", "results"),
            snippet="description",
            fixed={"result_filter": "web", "text_decorations": "false"},
        ),
        WebEngine(
            name="bocha",
            method="POST",
            url="https://api.bochaai.com/v1/web-search",
            key_variable="BOCHA_API_KEY",
            key_prefix="Bearer ",
            query="query",
            count="count",
            max_count=50,
            results=("data", "webPages", "value"),
            title="name",
            snippet="summary",
            short_snippet="snippet",
            fixed={"summary": True, "page": 1},
            defaults={"freshness": "noLimit"},
        ),
        WebEngine(
            name="searxng",
            method="GET",
            url=None,
            url_variable="SEARXNG_URL",
            key_variable=None,
            count=None,
            max_count=100,
            results=("results",),
            snippet="content",
            fixed={"format": "json"},
        ),
    )
}
