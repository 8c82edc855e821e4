"""Builds command lines from pydantic models: each field is a flag.

    class EngineOptions(Options):
        group = Group("batching")
        max_batch: Annotated[int, Field(ge=1), Flag("queries in a batch")] = 64

gives the flag ``--max-batch``, its line in ``--help`` with the default, the refusal of 0, and the field that
the engine reads. The type of a field decides how its flag is read: ``Literal`` makes choices, ``bool`` a flag
without a value, ``tuple`` a flag that takes several values. A field that is a model adds the flags of that
model under the title of its ``group``. A field without ``Flag`` has no flag. Conditions between options are
the ``contradictions`` of the model that holds them.

``parse`` reads ``sys.argv`` and no environment variable or file. What does not fit ends the process with
status 2 and a sentence for each fault, which names the flag: argparse splits the words, the model checks.
pydantic-settings (2.16) would split a repeated flag's values at commas; typer has no ``--corpus A B``.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, NoReturn, Self, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic.fields import FieldInfo

from retrieval_server.errors import UserError, listed

#: What a value must be that pydantic cannot read.
_KINDS = {"int_parsing": "a whole number", "float_parsing": "a number"}
#: A number that makes no sense below 1.
AtLeastOne = Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class Group:
    """A heading of ``--help``, and a text below the heading."""

    title: str
    description: str | None = None


@dataclass(frozen=True)
class Flag:
    """How a field appears on the command line; ``help`` is its text, to which the default is added."""

    help: str
    #: All spellings, the first one shown; none: the field's name, ``max_batch`` as ``--max-batch``.
    names: tuple[str, ...] = ()
    metavar: str | None = None
    choices: tuple[str, ...] | None = None  # the allowed values, if the type does not give them
    #: Converts the text, if the type does not say how. Raises ValueError with the reason.
    read: Callable[[str], Any] | None = None
    #: For a tuple: all values follow one flag (``--corpus A B``); else a flag for each (``--of A --of B``).
    in_a_row: bool = False
    #: Given without a name, by its position.
    positional: bool = False
    #: Another heading than that of the model.
    group: Group | None = None
    #: What ``--help`` shows as the default; None: the default itself, if it is a number or a word.
    default: str | None = None


class Options(BaseModel):
    """Base of the models that declare options."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    group: ClassVar[Group | None] = None

    def contradictions(self) -> Iterator[str]:
        """What does not fit together, one line each, which names the flags and the remedy."""
        return iter(())

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if faults := list(self.contradictions()):
            raise ValueError("\n".join(faults))
        return self


Model = TypeVar("Model", bound=Options)


@dataclass(frozen=True)
class _Option:
    """One flag: the path to its field through nested models, the field, its declaration and its heading."""

    path: tuple[str, ...]
    field: FieldInfo
    flag: Flag
    group: Group | None

    @property
    def names(self) -> tuple[str, ...]:
        name = self.path[-1]
        return (name,) if self.flag.positional else self.flag.names or ("--" + name.replace("_", "-"),)

    @property
    def dest(self) -> str:
        return ".".join(self.path)

    @property
    def default(self) -> Any:
        return self.field.get_default(call_default_factory=True)

    @property
    def type(self) -> Any:
        """The field's type, without its None."""
        annotation = self.field.annotation
        if get_origin(annotation) in (Union, types.UnionType):
            (annotation,) = (kind for kind in get_args(annotation) if kind is not type(None))
        return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation

    @property
    def choices(self) -> Sequence[str] | None:
        """The allowed values, if they are a list."""
        return get_args(self.type) if get_origin(self.type) is Literal else self.flag.choices

    def read(self, value: Any) -> Any:
        """The value of the field from the text of its flag, or from a list of texts. Raises ValueError."""
        read, choices = self.flag.read, self.choices
        for text in value if isinstance(value, list) else [value]:
            if choices and text not in choices:
                raise ValueError(f"must be {' or '.join(choices)}, not {text!r}")
            if text == "" and Path in (self.type, *get_args(self.type)):  # of --out "$UNSET"
                raise ValueError("must be a path, not ''")
        if read is None:
            return value
        return list(map(read, value)) if isinstance(value, list) else read(value)


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are short, and say where to read more."""

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
    """The options in ``argv`` (None: the process's own).

    ``prog`` is how the user has called the command. Fields in ``settled`` have these values, and no flags.
    Ends the process with status 2 if the options are not valid, and with 0 after ``--help``. ``check``: the
    checks of files and folders, which raise UserError. Beside options that are not valid they are made with
    the others, so that one message has all problems, without those that follow from such an option.
    """
    parser = _Parser(prog=prog, description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options = [option for option in _options(model) if option.path[0] not in settled]
    groups: dict[Group | None, Any] = {None: parser}
    for option in options:
        if option.group not in groups:
            assert option.group is not None
            below = textwrap.fill(option.group.description, 90) if option.group.description else None
            groups[option.group] = parser.add_argument_group(option.group.title, below)
        _add(groups[option.group], option)
    words = sys.argv[1:] if argv is None else argv
    known, unknown = parser.parse_known_args(words)
    behind_unknown = {word for flag, word in pairwise(words) if flag in unknown}
    faults = [_unrecognized(unknown, options)] if unknown else []
    values, unread = _empty(model) | dict(settled), list[str]()
    for option in options:
        if (given := getattr(known, option.dest)) is not None:
            at = values
            for step in option.path[:-1]:
                at = at[step]
            try:
                at[option.path[-1]] = option.read(given)
            except ValueError as error:
                if option.flag.positional and given in behind_unknown:  # the value of such a flag
                    continue
                unread.append(option.names[0])
                faults.append(f"{option.names[0]}{'' if option.choices else ':'} {error}")
    try:
        parsed = model.model_validate(values)
    except ValidationError as error:
        # That a flag is missing whose value cannot be read is no second fault.
        faults += [text for text in _sentences(error, options) if not set(text.split()) & set(unread)]
    if faults:
        if check is not None:
            faults += _beside(faults, check, _without_wrong(model, values), options)
        parser.error(listed(faults))
    return parsed


def _without_wrong(model: type[Options], values: Mapping[str, Any]) -> Any:
    """The options without those that are not valid, which have their default, or None."""
    read: dict[str, Any] = {name: None for name, field in model.model_fields.items() if field.is_required()}
    for name, field in model.model_fields.items():
        if _is_model(field):
            read[name] = _without_wrong(field.annotation, values.get(name, {}))  # type: ignore[arg-type]
        elif name in values:
            kind = Annotated[field.annotation, *field.metadata, None]
            with suppress(ValidationError):
                read[name] = TypeAdapter(kind).validate_python(values[name])
    return model.model_construct(**read)


def _beside(
    faults: Sequence[str], check: Callable[[Any], Any], command: Any, options: Sequence[_Option]
) -> list[str]:
    """What the checks refuse beside these faults."""
    messages: list[str] = []
    try:
        check(command)
    except UserError as error:
        messages = getattr(error, "messages", [str(error)])
    except (TypeError, AttributeError, AssertionError):  # for want of an option
        return []
    named = {name for option in options for name in option.names} & set(" ".join(faults).split())
    return [text for text in messages if not named & set(text.replace(":", " ").split())]


def _options(
    model: type[Options], path: tuple[str, ...] = (), group: Group | None = None
) -> Iterator[_Option]:
    group = model.group or group
    for name, field in model.model_fields.items():
        if _is_model(field):
            yield from _options(field.annotation, (*path, name), group)  # type: ignore[arg-type]
            continue
        flag = next((item for item in field.metadata if isinstance(item, Flag)), None)
        if flag is not None:
            yield _Option((*path, name), field, flag, flag.group or group)


def _is_model(field: FieldInfo) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, Options)


def _empty(model: type[Options]) -> dict[str, Any]:
    """An empty dictionary for every nested model, which then gets its own defaults."""
    fields = model.model_fields.items()
    return {name: _empty(field.annotation) for name, field in fields if _is_model(field)}  # type: ignore


def _add(parser: Any, option: _Option) -> None:
    kind, flag = option.type, option.flag
    settings: dict[str, Any] = {"help": _help(flag, option.default)}
    if kind is bool:
        settings["action"] = "store_true" if option.default is False else argparse.BooleanOptionalAction
    else:
        if get_origin(kind) is tuple and get_args(kind)[-1] is Ellipsis:
            settings |= {"nargs": "+"} if flag.in_a_row else {"action": "append"}
        choices = option.choices and f"{{{','.join(option.choices)}}}"
        settings["metavar"] = choices or flag.metavar or option.path[-1].upper()
    # None is "not given", for every flag: the model knows the defaults.
    if flag.positional:
        parser.add_argument(option.dest, nargs="?", **settings)
    else:
        parser.add_argument(*option.names, dest=option.dest, default=None, **settings)


def _help(flag: Flag, default: Any) -> str:
    text = flag.default
    if text is None and isinstance(default, int | float | str) and not isinstance(default, bool):
        text = f"{default:g}" if isinstance(default, float) else str(default)
    return (flag.help + (f" (default {text})" if text else "")).replace("%", "%%")


def _unrecognized(words: Sequence[str], options: Sequence[_Option]) -> str:
    names = [name for option in options for name in option.names]
    flags = [word.partition("=")[0] for word in words if word.startswith("-")]
    near = [name for flag in flags for name in get_close_matches(flag, names, n=1, cutoff=0.75)]
    hint = f"; did you mean {', '.join(near)}?" if near else ""
    return f"unrecognized arguments: {' '.join(words)}{hint}"


def _sentences(error: ValidationError, options: Sequence[_Option]) -> Iterator[str]:
    """The faults: validators' own sentences, or the flag and its limit."""
    for fault in error.errors():
        if fault["type"] == "value_error":
            yield from str(fault["ctx"]["error"]).split("\n")
            continue
        option = next(option for option in options if option.path == fault["loc"][: len(option.path)])
        limits = fault.get("ctx", {})
        unit = " seconds" if option.flag.metavar == "SECONDS" else ""
        words = (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below"))
        if fault["type"] == "missing":
            yield f"{option.names[0]} {option.flag.metavar} is needed: {option.flag.help}"
            continue
        must = next((f"{text} {limits[key]:g}{unit}" for key, text in words if key in limits), None)
        if fault["type"] in _KINDS:
            must = f"{_KINDS[fault['type']]}, not {fault['input']!r}"
        yield f"{option.names[0]} must be {must}" if must else f"{option.names[0]}: {fault['msg']}"
