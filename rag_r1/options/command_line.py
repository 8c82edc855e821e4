"""Builds a command line from a typed class: flags, help and validation.

    class Greet(Arguments):
        name: str = argument("who is greeted", "NAME")
        times: Positive = argument("how often", default=1)
        loudly: bool = argument("in capitals", default=False)

    given = read_arguments(Greet, arguments, prog="greet", description="Greet somebody.")

Here `--name NAME` is required, the help shows the default of `--times`, and `--loudly` is a flag.
pydantic-settings makes the parser, and pydantic checks the values. Of the sources of pydantic-settings only
the command line is used, not environment variables or files. This module adds three things. Lists are kept
item by item: pydantic-settings would split them at commas, which Hydra's overrides may contain. The help has
a line for each argument, without Python's type names. And a wrong value ends the command like a wrong flag,
with status 2 and a line that names the flag, the value and what it must be, without the usage.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TypeVar, get_args, get_origin

from pydantic import AfterValidator, Field, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings, CliApp, CliPositionalArg, CliSettingsSource, SettingsConfigDict

from rag_r1.options.declare import Constraint, describe_type, is_safe_to_show

Given = TypeVar("Given", bound="Arguments")

Positive = Annotated[int, Field(ge=1), Constraint("a whole number of at least 1")]


def _key_and_value(override: str) -> str:
    if "=" not in override:
        raise ValueError(f"{override!r} is not key=value")
    return override


#: Hydra's overrides, which may stand between the flags.
Overrides = CliPositionalArg[list[str]]
CheckedOverrides = CliPositionalArg[list[Annotated[str, AfterValidator(_key_and_value)]]]


def hydra_quoted(path: Path | str) -> str:
    """A path as the value of a Hydra override."""
    return "'" + str(path).replace("'", "\\'") + "'"


class Arguments(BaseSettings):
    """Base class of the declarations. A field is a flag, `two_words` is `--two-words`. A validator refuses a
    value by raising ValueError with a message that names the flag."""

    model_config = SettingsConfigDict(
        frozen=True,
        cli_kebab_case=True,
        cli_implicit_flags="toggle",
        cli_enforce_required=True,
        cli_avoid_json=True,
        cli_parse_none_str="\0",  # cannot occur on a command line: "None" is an ordinary word
    )

    @classmethod
    def settings_customise_sources(cls, settings_cls: Any, init_settings: Any, **others: Any) -> tuple:
        """Only the values passed in (pydantic-settings puts the command line before them)."""
        return (init_settings,)


def argument(
    help: str,
    metavar: str | tuple[Any, ...] | None = None,
    *,
    default: Any = PydanticUndefined,
    flag: str | None = None,
) -> Any:
    """A field of Arguments; required if it has no default. `metavar`: placeholder of the value in the help,
    or a tuple if the flag takes several: two for `("TRAIN", "TEST")`, one or more for `("FILE", ...)`.
    `flag`: its name, if that is not a valid name in Python."""
    shown = {"metavar": metavar}
    return Field(default, description=help, validation_alias=flag, json_schema_extra=shown)


def with_defaults(cls: type[Given], **defaults: Any) -> type[Given]:
    """The declaration with other defaults for some fields; a default of None is ignored."""
    changed = {}
    for name, value in defaults.items():
        if value is not None:
            field = copy(cls.model_fields[name])
            field.default = value
            changed[name] = (field.annotation, field)
    return create_model(cls.__name__, __base__=cls, **changed)


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors are one line, and where to read more."""

    def error(self, message: str) -> NoReturn:
        """End the process with status 2."""
        self.exit(2, f"{self.prog}: error: {message}\nsee {self.prog} --help\n")


def read_arguments(
    cls: type[Given],
    arguments: Sequence[str] | None,
    *,
    prog: str | None = None,
    description: str,
    epilog: str | None = None,
) -> Given:
    """The parsed arguments; None: those of the process. Ends the process after `--help` (status 0) and, with
    a message, if an argument is wrong (status 2)."""
    parser = CommandParser(
        prog=prog,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    fields = {field.validation_alias or name: field for name, field in cls.model_fields.items()}
    source: CliSettingsSource = CliSettingsSource(
        cls,
        root_parser=parser,
        parse_args_method=argparse.ArgumentParser.parse_intermixed_args,
        add_argument_method=lambda where, *names, **given: where.add_argument(
            *names, **_shown(fields[given.get("dest", names[0])], given)
        ),
    )
    try:
        given = list(sys.argv[1:] if arguments is None else arguments)
        return CliApp.run(cls, cli_args=given, cli_settings_source=source)
    except ValidationError as error:
        parser.error("; ".join(_sentence(one, fields) for one in error.errors(include_url=False)))


class _JsonListAction(argparse.Action):
    """Collects a list as JSON, which pydantic-settings does not split."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        items = json.loads(getattr(namespace, self.dest, None) or "[]")
        items += values if isinstance(values, list) else [values]
        setattr(namespace, self.dest, json.dumps(items))


def _shown(field: FieldInfo, given: dict[str, Any]) -> dict[str, Any]:
    """The keywords that pydantic-settings gives to argparse for an argument, with our help and our lists."""
    help, metavar = field.description or "", field.json_schema_extra["metavar"]
    default = field.default
    if isinstance(default, list | tuple):
        default = " ".join(map(str, default)) or None
    if not any(default is none for none in (PydanticUndefined, None, False)) and "(default" not in help:
        help += f" (default: {default})"
    if given.get("action") == "append" or "nargs" in given:
        given.update(action=_JsonListAction, default=argparse.SUPPRESS)
        if isinstance(metavar, tuple) and metavar[-1] is ...:
            given["nargs"], metavar = "+", metavar[0]
        elif isinstance(metavar, tuple):
            given["nargs"] = len(metavar)
    if "metavar" in given:  # not for a flag without a value
        if metavar is None and get_origin(field.annotation) is Literal:
            metavar = f"{{{','.join(map(str, get_args(field.annotation)))}}}"
        given["metavar"] = metavar
    return {**given, "help": help.replace("%", "%%")}


def _sentence(error: Any, fields: dict[Any, FieldInfo]) -> str:
    """The message about a wrong value, in argparse's style or from the validator that refused it."""
    cause = error.get("ctx", {}).get("error")
    if cause and not error["loc"]:
        return str(cause)
    name, value = error["loc"][0], error["input"]
    must = describe_type(fields[name].annotation, fields[name].metadata)
    if not is_safe_to_show(fields[name].annotation, fields[name].metadata):
        return f"argument --{name.replace('_', '-')}: must be {must.removesuffix(' or null')}"
    if cause:
        return str(cause)
    return f"argument --{name.replace('_', '-')}: must be {must}, not {value!r}"
