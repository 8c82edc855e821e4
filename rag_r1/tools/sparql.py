"""The tool `sparql`: queries a SPARQL endpoint, such as Wikidata's.

    rag_r1:
      tools:
        wikidata: {tool: sparql, url: "https://query.wikidata.org/sparql", limits: {timeout_s: 60}}

The policy writes a query (SELECT or ASK). With `template` it writes only words, which replace {words} in the
template as a string literal. The answer has one line for each row: `name: value; name: value`. If the
endpoint refuses a query, that is a mistake of the policy, which reads the reason. Only the query operation of
the SPARQL protocol is used, never update. The endpoint must limit how long a query may run and what it may
reach.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator

from rag_r1.options.declare import options
from rag_r1.options.from_config import options_from
from rag_r1.options.server_address import Address
from rag_r1.options.types import Constraint, PositiveCount, PositiveSeconds, Text
from rag_r1.protocols import Refusal
from rag_r1.tools.function_tool import FunctionTool, schema_of
from rag_r1.tools.http import HttpFailure, HttpRefusal, JsonClient
from rag_r1.tools.secret_option import Variable, bearer_header

#: Longest value that is shown, in characters.
_MAX_CHARS = 300


def _checked_template(template: str) -> str:
    """Return the template. Raises ValueError if it has no place for the words."""
    if "{words}" not in template:
        raise ValueError("no {words}")
    return template


@options("rag_r1.tools.NAME")
class SparqlOptions:
    """The keys of the tool `sparql`."""

    #: Address of the endpoint.
    url: Address
    #: A query with {words}, for policies that write words; null: the policy writes whole queries.
    template: Annotated[
        Annotated[Text, AfterValidator(_checked_template)] | None,
        Constraint("a query with {words} in it, or null"),
    ] = None
    #: Most rows that are shown.
    rows: PositiveCount = 20
    #: Seconds within which the endpoint must answer.
    timeout_s: PositiveSeconds = 60.0
    #: Environment variable with a bearer token.
    token_env: Variable = None


def make_sparql(options: Mapping[str, Any], key: str) -> SparqlTool:
    """Return the tool `sparql`. Raises OptionsError for a wrong option, and what `bearer_header` raises."""
    return SparqlTool(options_from(SparqlOptions, options, key))


class SparqlTool(FunctionTool):
    """Queries one endpoint."""

    def __init__(self, options: SparqlOptions):
        if options.template is None:
            description = "Asks a knowledge graph in SPARQL."
            query = "a SPARQL query, SELECT or ASK"
        else:
            description = "Looks words up in a knowledge graph."
            query = "the words to look up"
        parameters = schema_of({"query": {"type": "string", "maxLength": 4000, "description": query}})
        super().__init__("sparql", description, parameters, self.ask)
        self.options = options
        headers = {"User-Agent": "rag-r1", "Accept": "application/sparql-results+json"}
        self._server = JsonClient({**headers, **bearer_header(options.token_env)}, options.timeout_s)

    async def ask(self, query: str) -> str | Refusal:
        """Return the rows that the endpoint finds as text, or a Refusal with the reason if it does not accept
        the query. Raises HttpFailure."""
        if self.options.template is not None:
            query = self.options.template.replace("{words}", literal(query))
        try:
            answer = await self._server.ask("POST", self.options.url, data={"query": query})
        except HttpRefusal as error:
            return Refusal(f"The endpoint does not accept the query: {error}")
        return self._text_of(answer)

    async def close(self) -> None:
        """Close the connections."""
        await self._server.close()

    def _text_of(self, answer: Any) -> str:
        """Return the answer to SELECT or ASK as lines of text. Raises HttpFailure if it is neither."""
        if isinstance(answer, dict) and isinstance(answer.get("boolean"), bool):
            return "yes" if answer["boolean"] else "no"
        results = answer.get("results") if isinstance(answer, dict) else None
        rows = results.get("bindings") if isinstance(results, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise HttpFailure("its answer has no bindings")
        lines = [_row(row) for row in rows[: self.options.rows]]
        if len(rows) > len(lines):
            lines.append(f"(rows not shown: {len(rows) - len(lines)})")
        return "\n".join(lines) or "Nothing was found."


def _row(row: Mapping[str, Any]) -> str:
    """Return a row of an answer as a line of text."""
    values = {name: cell.get("value") for name, cell in row.items() if isinstance(cell, dict)}
    return "; ".join(f"{name}: {' '.join(str(value).split())[:_MAX_CHARS]}" for name, value in values.items())


def literal(words: str) -> str:
    """Return a text as a SPARQL string literal, with all special characters escaped."""
    escaped = words.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'
