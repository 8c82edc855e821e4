"""The text of a chat by a model's chat template, rendered in a worker (rag_r1/sandbox).

A template is a program of whoever made the model. The sandbox of transformers limits what it can reach, but
not its time or memory: loops in loops take for ever, `'x' * 10**10` takes gigabytes, and some of it is
calculated as soon as the template is compiled. The environment here is the one of transformers, whose import
would take a worker seconds; a test compares the two.
"""

from __future__ import annotations

import json
from datetime import datetime
from functools import lru_cache
from typing import Any


def render(template: str, values: dict[str, Any]) -> str:
    """A job: the text of a chat. `values`: what the template can name, such as `messages`. Raises what
    Jinja2 and the template raise."""
    return _compiled(template).render(**values)


@lru_cache(8)
def _compiled(template: str) -> Any:
    return environment().from_string(template)


def environment() -> Any:
    """What a template is compiled in, as by transformers' `apply_chat_template`."""
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks what is trained; the text is the same with it and without."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

        def _same(self, caller: Any) -> str:
            return caller()

    def raise_exception(message: str) -> None:
        raise jinja2.exceptions.TemplateError(message)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """Unlike Jinja2's own, it leaves `<` and `&` as they are."""
        return json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return made
