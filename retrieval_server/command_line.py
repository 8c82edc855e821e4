"""Parses command lines into the models that declare their options (`options.py`).

argparse splits the command line, and the model validates the values. If they are not valid, the process ends
with status 2 and a sentence for each fault, which names the flag. `parse` reads neither environment variables
nor files. pydantic-settings (2.16) is not used because it splits the values of a repeated flag at commas, and
typer because it does not support `--corpus A B`.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from itertools import pairwise
from types import MappingProxyType
from typing import Annotated, Any, NoReturn, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from retrieval_server.errors import UserError, listed, single_errors
from retrieval_server.options import (
    ContradictionError,
    Flag,
    Group,
    Model,
    Option,
    Options,
    declared_options,
    empty_values,
    is_model,
)

#: Type of pydantic's error -> what the value must be.
_EXPECTED = {
    "int_parsing": "a whole number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "string_too_short": "a text that is not empty",
}
#: The hint for an argument such as @settings.yaml, which other commands of rag-r1 take.
_NO_SETTINGS_FILE = "this command takes no settings file: give its flags"


class _Parser(argparse.ArgumentParser):
    """A parser whose error messages are short and refer to --help."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\nsee {self.prog} --help\n")


def parse(
    model: type[Model],
    description: str | None,
    argv: Sequence[str] | None = None,
    prog: str | None = None,
    settled: Mapping[str, Any] = MappingProxyType({}),
    check: Callable[[Model], Any] | None = None,
) -> Model:
    """Return the options in `argv` (None: the arguments of the process).

    `description` is the text of `--help` above the flags, and `prog` the command as the user called it.
    Fields in `settled`, which are fields of `model` itself, have fixed values and no flags. The process ends
    with status 2 if the options are not valid, and with 0 after `--help`.

    `check` raises UserError for problems of files and folders. It is called here only if options are not
    valid, with the valid ones, so that one message lists all problems, also their contradictions. Problems
    that only follow from an invalid option are left out.
    """
    options = [option for option in declared_options(model) if option.path[0] not in settled]
    parser = _make_parser(options, prog, description)
    arguments = sys.argv[1:] if argv is None else argv
    texts, unknown = parser.parse_known_args(arguments)
    values = empty_values(model) | dict(settled)
    values_of_unknown = {value for flag, value in pairwise(arguments) if flag in unknown}
    unreadable = _read_values(values, texts, options, values_of_unknown)
    faults = [UserError(_unrecognized_text(unknown, options))] if unknown else []
    faults += [UserError(text, flag) for flag, text in unreadable.items()]
    try:
        parsed = model.model_validate(values)
    except ValidationError as error:
        # For the model a flag whose value cannot be read is also missing, which is no second fault.
        faults += [fault for fault in _faults(error, options) if not unreadable.keys() & set(fault.flags)]
    if faults:
        faults += _further_faults(faults, check, _valid_options(model, values))
        parser.error(listed(list(map(str, faults))))
    return parsed


def _make_parser(options: Sequence[Option], prog: str | None, description: str | None) -> _Parser:
    """Return a parser with these options, arranged by their groups."""
    parser = _Parser(prog=prog, description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    groups: dict[Group | None, argparse._ActionsContainer] = {None: parser}
    for option in options:
        if option.group not in groups:
            assert option.group is not None  # options without a group belong to the parser itself
            below = textwrap.fill(option.group.description, 90) if option.group.description else None
            groups[option.group] = parser.add_argument_group(option.group.title, below)
        _add_option(groups[option.group], option)
    return parser


def _read_values(
    values: dict[str, Any], texts: argparse.Namespace, options: Sequence[Option], values_of_unknown: set[str]
) -> dict[str, str]:
    """Set the options of the command line in `values`. Returns the faults, by the flag that cannot be read.

    `values_of_unknown` are the arguments that follow unknown flags. They are taken for the values of these
    flags, so as positional arguments they are no further faults.
    """
    faults: dict[str, str] = {}
    for option in options:
        if (text := getattr(texts, option.dest)) is not None:
            try:
                _set_value(values, option.path, option.read(text))
            except ValueError as error:
                if option.flag.positional and text in values_of_unknown:
                    continue
                is_file = option.flag.positional and text.startswith("@")
                faults[option.names[0]] = f"{text}: {_NO_SETTINGS_FILE}" if is_file else str(error)
    return faults


def _set_value(values: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Set the value of the field of `values` to which the names in `path` lead."""
    *sections, name = path
    for section in sections:
        values = values[section]
    values[name] = value


def _valid_options(model: type[Options], values: Mapping[str, Any]) -> Any:
    """Return the options, with the default (or None) in place of each one that is not valid.

    A nested model in `values` is a dictionary, or an object of the model if the command has settled it.
    """
    valid: dict[str, Any] = {name: None for name, field in model.model_fields.items() if field.is_required()}
    for name, field in model.model_fields.items():
        if is_model(field):
            valid[name] = _valid_options(field.annotation, dict(values.get(name, {})))  # type: ignore[arg-type]
        elif name in values:
            # The None is for a field without metadata, since `Annotated` needs an item.
            kind = Annotated[field.annotation, *field.metadata, None]
            with suppress(ValidationError):
                valid[name] = TypeAdapter(kind).validate_python(values[name])
    return model.model_construct(**valid)


def _further_faults(
    faults: Sequence[UserError], check: Callable[[Any], Any] | None, command: Any
) -> list[UserError]:
    """Return the contradictions of these options, and the further errors of the checks, that do not merely
    follow from these faults."""
    errors: list[UserError] = []
    texts = set(map(str, faults))
    flags = {flag for fault in faults for flag in fault.flags}
    # Either may fail because an option is missing. After a wrong step, others would be asked for.
    if all(flag.startswith("-") for flag in flags):
        with suppress(TypeError, AttributeError, AssertionError):
            groups = [value for _, value in command if isinstance(value, Options)]
            errors += [error for options in (command, *groups) for error in options.contradictions()]
    try:
        if check is not None:
            check(command)
    except UserError as error:
        errors += single_errors(error)
    except (TypeError, AttributeError, AssertionError):
        pass
    further = {str(error): error for error in errors if not flags & set(error.flags)}
    return [error for text, error in further.items() if text not in texts]


def _add_option(parser: argparse._ActionsContainer, option: Option) -> None:
    """Add a flag, or a positional argument, to a parser or to one of its groups."""
    kind = option.type
    flag = option.flag
    settings: dict[str, Any] = {"help": _help(flag, option.default)}
    if kind is bool:
        settings["action"] = "store_true" if option.default is False else argparse.BooleanOptionalAction
    else:
        if get_origin(kind) is tuple and get_args(kind)[-1] is Ellipsis:
            settings |= {"nargs": "+", "action": "extend"} if flag.in_a_row else {"action": "append"}
        choices = option.choices and f"{{{','.join(option.choices)}}}"
        settings["metavar"] = choices or flag.metavar or option.path[-1].upper()
    # Every flag has the default None, which means "not set": the model has the real defaults.
    if flag.positional:
        parser.add_argument(option.dest, nargs="?", **settings)
    else:
        parser.add_argument(*option.names, dest=option.dest, default=None, **settings)


def _help(flag: Flag, default: Any) -> str:
    """Return the help text of a flag with its default. Percent signs are doubled for argparse."""
    text = flag.default
    if text is None and isinstance(default, int | float | str) and not isinstance(default, bool):
        text = f"{default:g}" if isinstance(default, float) else str(default)
    return (flag.help + (f" (default {text})" if text else "")).replace("%", "%%")


def _unrecognized_text(arguments: Sequence[str], options: Sequence[Option]) -> str:
    """Return the sentence for arguments that the command does not know, with similar flags."""
    names = [name for option in options for name in option.names]
    flags = [argument.partition("=")[0] for argument in arguments if argument.startswith("-")]
    similar = [name for flag in flags for name in get_close_matches(flag, names, n=1, cutoff=0.75)]
    hint = f"; did you mean {', '.join(similar)}?" if similar else ""
    if any(argument.startswith("@") for argument in arguments):
        hint += f"; {_NO_SETTINGS_FILE}"
    return f"unrecognized arguments: {' '.join(arguments)}{hint}"


def _faults(error: ValidationError, options: Sequence[Option]) -> Iterator[UserError]:
    """Yield an error for each fault: that of a validator, or one with the flag and what its value must be."""
    for fault in error.errors():
        option = next((item for item in options if item.path == fault["loc"][: len(item.path)]), None)
        flags = () if option is None else option.names[:1]
        cause = fault.get("ctx", {}).get("error")
        if isinstance(cause, ContradictionError):
            yield from cause.errors
        elif cause is not None or option is None:  # of a whole model, whose validators name the flags
            yield UserError(cause or fault["msg"], *flags)
        else:
            yield UserError(_sentence(fault, option), *flags)


def _sentence(fault: ErrorDetails, option: Option) -> str:
    """Return the sentence for a wrong value, or a missing one: the flag and what the value must be."""
    name = option.names[0]
    if fault["type"] == "missing":
        return f"{name} {option.flag.metavar} is needed: {option.flag.help}"
    if fault["type"] in _EXPECTED:
        return f"{name} must be {_EXPECTED[fault['type']]}, not {fault['input']!r}"
    limits = fault.get("ctx", {})
    unit = " seconds" if option.flag.metavar == "SECONDS" else ""
    bounds = (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below"))
    bound = next((f"{text} {limits[key]:g}{unit}" for key, text in bounds if key in limits), None)
    return f"{name} must be {bound}" if bound else f"{name}: {fault['msg']}"
