"""The tool `page`: opens a page by its address.

    rag_r1:
      tools:
        page: {tool: page, url: "http://127.0.0.1:8000"}

The pages are those with which the retrieval server was started (`--pages FILE.jsonl`); nothing is fetched
from the web. They are requested from its route `/access`, as in ASearcher. A long page is read in parts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from rag_r1.options.declare import options
from rag_r1.options.from_config import options_from
from rag_r1.options.server_address import Address
from rag_r1.options.types import Constraint, PositiveCount, PositiveSeconds
from rag_r1.protocols import Refusal
from rag_r1.tools.function_tool import MAX_RESULT_CHARS, FunctionTool, schema_of
from rag_r1.tools.http import HttpFailure, JsonClient
from rag_r1.tools.retrieval.options import token_header

#: Most characters of a part, so that it is not cut together with the line `(part 1 of 3)` above it.
_MAX_PART_CHARS = MAX_RESULT_CHARS - 100
_PART_REQUIREMENT = Constraint(f"a whole number from 1 to {_MAX_PART_CHARS:,}")
_PARAMETERS = schema_of(
    {
        "url": {"type": "string", "maxLength": 2000, "description": "the address of the page"},
        "part": {"type": "integer", "minimum": 1, "description": "of a long page, which part (1 first)"},
    },
    required=["url"],
)


@options("rag_r1.tools.NAME")
class PageOptions:
    """The keys of the tool `page`."""

    #: Address of the retrieval server.
    url: Address = "http://127.0.0.1:8000"
    #: Number of characters of a part.
    part_chars: Annotated[PositiveCount, Field(le=_MAX_PART_CHARS), _PART_REQUIREMENT] = 4000
    #: Seconds within which the server must answer.
    timeout_s: PositiveSeconds = 30.0


def make_page(options: Mapping[str, Any], key: str) -> FunctionTool:
    """Return the tool `page`. Raises OptionsError for a wrong option, and what `token_header` raises."""
    parsed = options_from(PageOptions, options, key)
    return PageTool(parsed, JsonClient(token_header(), parsed.timeout_s))


class PageTool(FunctionTool):
    """Reads pages from a retrieval server."""

    def __init__(self, options: PageOptions, server: JsonClient):
        description = "Opens a page by its address and shows its text; a long page in parts."
        super().__init__("page", description, _PARAMETERS, self.read)
        self.options, self.server = options, server

    async def read(self, url: str, part: int = 1) -> str | Refusal:
        """Return the text of a part of a page, where parts count from 1, or a Refusal if there is no such
        page or part. Raises HttpFailure."""
        answer = await self.server.ask("POST", f"{self.options.url.rstrip('/')}/access", json={"urls": [url]})
        pages = answer.get("result") if isinstance(answer, dict) else None
        if not isinstance(pages, list) or len(pages) != 1:
            raise HttpFailure("its answer does not have exactly one page")
        contents = pages[0].get("contents") if isinstance(pages[0], dict) else None
        if not isinstance(contents, str):
            return Refusal(f"There is no page {url[:100]!r}. Open an address that a search has shown.")
        part_chars = self.options.part_chars
        part = int(part)  # 2.0 is an integer in JSON schemas
        n_parts = max(1, math.ceil(len(contents) / part_chars))
        if part > n_parts:
            return Refusal(f"There is no part {part}: the last one is {n_parts}.")
        text = contents[(part - 1) * part_chars : part * part_chars]
        return text if n_parts == 1 else f"(part {part} of {n_parts})\n{text}"

    async def close(self) -> None:
        """Close the connections."""
        await self.server.close()
