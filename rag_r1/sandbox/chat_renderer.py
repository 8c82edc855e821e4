"""Renders a chat with a model's chat template, as a job of the sandbox.

A template is a program by the model's author. The sandbox of transformers limits what it can access, but not
its time or memory: nested loops take forever, `'x' * 10**10` takes gigabytes, and constant expressions are
evaluated as soon as the template is compiled. The environment built here is equal to that of transformers
(`_compile_jinja_template` in its chat_template_utils), whose import would take a worker seconds.
tests/sandbox/test_chat_template.py compares the two.
"""

from __future__ import annotations

import json
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn


def render(template: str, values: dict[str, Any]) -> str:
    """A job: returns the text of a chat. `values` are the template's variables, such as `messages`. Raises
    jinja2.TemplateError, and whatever an expression of the template raises."""
    return _compiled(template).render(**values)


@lru_cache(8)  # compiling takes longer than rendering
def _compiled(template: str) -> Any:
    """Return the compiled template. Raises jinja2.TemplateSyntaxError."""
    return environment().from_string(template)


def environment() -> Any:
    """Return a Jinja2 environment with the extensions, filters and globals that transformers provides to
    templates."""
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_generation_extension(), loopcontrols]
    )
    env.filters["tojson"] = _tojson
    env.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
    return env


def _generation_extension() -> type:
    """Return the Jinja2 extension for `{% generation %}`, which marks the trained text and does not change
    it."""
    from jinja2 import nodes
    from jinja2.ext import Extension

    class Generation(Extension):
        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

        def _body(self, caller: Any) -> str:
            return caller()

    return Generation


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter `tojson`, which leaves `<` and `&` unchanged, unlike Jinja2's own."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    """The function with which a template refuses a chat."""
    import jinja2

    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    """The function that gives a template the current time."""
    return datetime.now().strftime(format)
