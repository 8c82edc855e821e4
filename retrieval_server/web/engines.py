"""Describes the request and response format of each web search engine.

A new engine needs only a `WebEngine` in `ENGINES`. The formats follow the documentation at:

- Serper (Google): https://serper.dev (playground) and its JSON schema at
  https://schemas.apis.io/schemas/serper/serper-search-response/
- Bing Web Search v7: https://learn.microsoft.com/bing/search-apis/bing-web-search/reference/query-parameters
  and .../reference/response-objects. Microsoft ended this service on 2025-08-11; the adapter is for gateways
  with the same API (`--web-url`).
- Tavily: https://docs.tavily.com/api-reference/endpoint/search
- Brave: https://api-dashboard.search.brave.com/api-reference/web/search/get
- Bocha: https://open.bochaai.com (web-search API), the engine of Agentic RAG-R1. `freshness` and other
  parameters are set with `--web-param`.
- SearXNG: https://docs.searxng.org/dev/search_api.html. The instance must list `json` under `search.formats`
  in its settings.yml, or it answers 403.

A request asks for one or more whole pages of ten results, whatever topk is. So answers for different topk
differ only in length, and one recording serves every topk of a page. This costs nothing, since most engines
charge per request. SearXNG has no field for the number of results, and always answers with one page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from retrieval_server.json_kind import json_kind
from retrieval_server.web.plain_text import document_contents

_RESULTS_PER_PAGE = 10  # every engine's own default, or close to it


@dataclass(frozen=True)
class WebDocument:
    """One result of a search."""

    url: str
    #: Title and snippet as `'"Title"\\nsnippet'`.
    contents: str


@dataclass(frozen=True)
class WebEngine:
    """The API of one engine."""

    name: str
    method: Literal["GET", "POST"]
    #: The default address; None if `url_variable` must be set.
    url: str | None
    #: The environment variable of the key; None for an engine without keys.
    key_variable: str | None
    #: The request's field for the number of results; None if an answer is always one page.
    count_field: str | None
    #: The largest number of results that a request may ask for. Without `count_field` it only takes the place
    #: of that number in the key of a recording.
    max_count: int
    #: The path of keys to the list of results in an answer.
    results_path: tuple[str, ...]
    #: The header that contains the key, and the text before the key.
    key_header: str = "Authorization"
    key_prefix: str = ""
    #: The request's field for the query.
    query_field: str = "q"
    #: The fields of a result.
    title_field: str = "title"
    link_field: str = "url"
    snippet_field: str = "snippet"
    #: Fields of every request.
    fixed: Mapping[str, Any] = field(default_factory=dict)
    #: Fields of a request unless `--web-param` sets them.
    defaults: Mapping[str, Any] = field(default_factory=dict)
    #: The field that is used if the snippet of a result is missing or blank.
    fallback_snippet_field: str | None = None
    #: The environment variable of the address, for an engine without a default address.
    url_variable: str | None = None
    #: Statuses, besides 401 and 403, that mean a problem with the key or the quota.
    refusals: frozenset[int] = frozenset({402})

    def headers(self, key: str) -> dict[str, str]:
        """Return the headers that send the key."""
        return {self.key_header: self.key_prefix + key}

    def depth(self, topk: int) -> int:
        """Return the number of results to request in order to answer with `topk`.

        If topk exceeds `max_count`, the answer has at most `max_count` results, without an error.
        """
        pages = math.ceil(topk / _RESULTS_PER_PAGE)
        return self.max_count if self.count_field is None else min(pages * _RESULTS_PER_PAGE, self.max_count)

    def fields(self, query: str, depth: int, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a request: query parameters (GET) or keys of the JSON body (POST)."""
        count = {} if self.count_field is None else {self.count_field: depth}
        return {**self.defaults, **params, **self.fixed, self.query_field: query, **count}

    def reserved(self) -> set[str]:
        """Return the names of the fields that users must not set, because `fields` sets them."""
        return {self.query_field, *self.fixed} | ({self.count_field} if self.count_field else set())

    def parse(self, answer: Any) -> list[WebDocument]:
        """Return the results of a decoded JSON answer, best first, and each address only once.

        An answer without the list has no results, since some engines leave an empty list out. Results without
        an http(s) address, or with neither title nor snippet, are skipped. Raises ValueError if the answer is
        not in the format of this API.
        """
        documents: dict[str, WebDocument] = {}  # by address
        for item in self._result_list(answer):
            if not isinstance(item, dict):
                raise ValueError(f"{'.'.join(self.results_path)} should hold objects, got {json_kind(item)}")
            if (document := self._document(item)) is not None:
                documents.setdefault(document.url, document)
        return list(documents.values())

    def _result_list(self, answer: Any) -> list[Any]:
        """Return the results in an answer as they are, or [] if there are none. Raises ValueError."""
        value = answer
        for step in self.results_path:
            if not isinstance(value, dict):
                raise ValueError(f"a JSON object was expected around {step!r}, got {json_kind(value)}")
            value = value.get(step)
            if value is None:
                return []
        if not isinstance(value, list):
            raise ValueError(f"{'.'.join(self.results_path)} should be a list, got {json_kind(value)}")
        return value

    def _document(self, item: dict) -> WebDocument | None:
        """Return a result as a document, or None for a result that `parse` skips."""
        title, link = _text(item, self.title_field), _text(item, self.link_field)
        snippet = _text(item, self.snippet_field)
        if self.fallback_snippet_field and not snippet.strip():
            snippet = _text(item, self.fallback_snippet_field)
        if not _is_address(link) or not (title.strip() or snippet.strip()):
            return None
        return WebDocument(link, document_contents(title, snippet))


def _text(item: dict, name: str) -> str:
    """Return the text of a field; empty if the field is missing or has another type."""
    value = item.get(name)
    return value if isinstance(value, str) else ""


def _is_address(link: str) -> bool:
    """Return whether a link is an http(s) address that can be sent in UTF-8."""
    try:
        parts = urlsplit(link)
        link.encode("utf-8")  # fails for half a surrogate pair, which JSON can express
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.netloc) and not any(map(str.isspace, link))


ENGINES: dict[str, WebEngine] = {
    engine.name: engine
    for engine in (
        WebEngine(
            name="serper",
            method="POST",
            url="https://google.serper.dev/search",
            key_variable="SERPER_API_KEY",
            key_header="X-API-KEY",
            count_field="num",
            max_count=100,
            results_path=("organic",),
            link_field="link",
        ),
        WebEngine(
            name="bing",
            method="GET",
            url="https://api.bing.microsoft.com/v7.0/search",
            key_variable="BING_API_KEY",
            key_header="Ocp-Apim-Subscription-Key",
            count_field="count",
            max_count=50,
            results_path=("webPages", "value"),
            title_field="name",
            fixed={"responseFilter": "Webpages", "textFormat": "Raw"},
        ),
        WebEngine(
            name="tavily",
            method="POST",
            url="https://api.tavily.com/search",
            key_variable="TAVILY_API_KEY",
            key_prefix="Bearer ",
            query_field="query",
            count_field="max_results",
            max_count=20,
            results_path=("results",),
            snippet_field="content",
            refusals=frozenset({402, 432, 433}),
        ),
        WebEngine(
            name="brave",
            method="GET",
            url="https://api.search.brave.com/res/v1/web/search",
            key_variable="BRAVE_API_KEY",
            key_header="X-Subscription-Token",
            count_field="count",
            max_count=20,
            results_path=("web", "results"),
            snippet_field="description",
            fixed={"result_filter": "web", "text_decorations": "false"},
        ),
        WebEngine(
            name="bocha",
            method="POST",
            url="https://api.bochaai.com/v1/web-search",
            key_variable="BOCHA_API_KEY",
            key_prefix="Bearer ",
            query_field="query",
            count_field="count",
            max_count=50,
            results_path=("data", "webPages", "value"),
            title_field="name",
            snippet_field="summary",
            fallback_snippet_field="snippet",
            fixed={"summary": True, "page": 1},
            defaults={"freshness": "noLimit"},
        ),
        WebEngine(
            name="searxng",
            method="GET",
            url=None,
            url_variable="SEARXNG_URL",
            key_variable=None,
            count_field=None,
            max_count=100,
            results_path=("results",),
            snippet_field="content",
            fixed={"format": "json"},
        ),
    )
}
