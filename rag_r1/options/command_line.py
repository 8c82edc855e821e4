"""Builds a command line from a typed class: flags, help and validation.

    class Greet(Arguments):
        name: str = argument("who is greeted", "NAME")
        times: Positive = argument("how often", default=1)
        loudly: bool = argument("in capitals", default=False)

    args = read_arguments(Greet, arguments, prog="greet", description="Greet a person.")

Here `--name NAME` is required, the help shows the default of `--times`, and `--loudly` is a flag.
pydantic-settings builds the parser, and pydantic validates the values. The command line is the only source of
values; environment variables are not used. This module adds four things to pydantic-settings:

- Lists are kept item by item. pydantic-settings would split them at commas, which Hydra overrides may
  contain.
- The help has one line for each argument, without Python's type names. `rare` flags are shown by `--help-all`
  only.
- A wrong value ends the command like a wrong flag, with status 2 and a line that names the flag, the value
  and the requirement. If the command passes a `check`, the same message includes all problems with files and
  servers (wrong_arguments.py).
- `@FILE.yaml` among the arguments stands for the settings in that file (settings_file.py).

Other parts of the program use a declaration, too, to start a command: `Greet(name="you")` validates its
values like the command line but raises ArgumentsError, and `to_argv()` returns the words for a child process
or a person (arguments/words.py).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from typing import Annotated, Any, Self, TypeVar

from pydantic import Field, PrivateAttr, ValidationError, create_model, field_validator
from pydantic_core import ErrorDetails, PydanticUndefined
from pydantic_settings import BaseSettings, CliApp, CliSettingsSource, SettingsConfigDict

from rag_r1.io.unknown_value import listed
from rag_r1.options.arguments.empty_paths import no_empty_path
from rag_r1.options.arguments.errors import ArgumentsError, message_of
from rag_r1.options.arguments.fields import Fields, Metavar, Presentation, fields_of, flag_of, is_positional
from rag_r1.options.arguments.parser import CommandParser
from rag_r1.options.arguments.parser_arguments import ArgumentAdder
from rag_r1.options.arguments.plain_values import from_plain
from rag_r1.options.arguments.words import words_of
from rag_r1.options.settings_file import SplitWords, split_files
from rag_r1.options.types import Constraint
from rag_r1.options.wrong_arguments import problems_beside, right_arguments

ArgumentsType = TypeVar("ArgumentsType", bound="Arguments")
#: A command's check of files and servers, which raises an error about all problems.
Check = Callable[[ArgumentsType], object]

#: Precedes the command's own epilogue in the help of each command.
_FILES_HELP = (
    "@FILE.yaml (or .json) among the arguments stands for the settings in that file, by the names of the\n"
    "flags; flags on the command line replace them."
)

#: Values of flags, which are read from words: unlike those of types.py they are not strict.
Positive = Annotated[int, Field(ge=1), Constraint("a whole number of at least 1")]
Above0 = Annotated[float, Field(gt=0, allow_inf_nan=False), Constraint("a number above 0")]
From0 = Annotated[float, Field(ge=0, allow_inf_nan=False), Constraint("a number of at least 0")]
From0Count = Annotated[int, Field(ge=0), Constraint("a whole number of at least 0")]
Share = Annotated[float, Field(ge=0, le=1), Constraint("a number from 0 to 1")]
Below1 = Annotated[float, Field(ge=0, lt=1), Constraint("a number from 0 to below 1")]
Port = Annotated[int, Field(ge=0, le=65535), Constraint("a port, 0 to 65535")]
Filled = Annotated[str, Field(pattern=r"\S"), Constraint("a text that is not empty")]
HostName = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$"),
    Constraint("the name of a host alone, without scheme, port and path"),
]
#: Wrong values are not repeated, since a user may give the key itself.
Variable = Annotated[
    str,
    Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"),
    Constraint("the name of an environment variable", is_shown=False),
]


class Arguments(BaseSettings):
    """The base class of all declarations. A field is a flag, and `two_words` becomes `--two-words`. A
    validator refuses a value by raising ValueError with a message that names the flag."""

    model_config = SettingsConfigDict(
        frozen=True,
        cli_kebab_case=True,
        cli_implicit_flags="toggle",
        cli_enforce_required=True,
        cli_avoid_json=True,
        cli_parse_none_str="\0",  # cannot occur on a command line, so that "None" is an ordinary word
    )

    #: Whether wrong arguments were left out, so that the others could be checked (wrong_arguments.py).
    _is_partial: bool = PrivateAttr(False)

    @property
    def is_partial(self) -> bool:
        """Whether wrong arguments were left out, and only the problems of the others are looked for."""
        return self._is_partial

    @classmethod
    def settings_customise_sources(cls, settings_cls: Any, init_settings: Any, **others: Any) -> tuple:
        """Restrict the sources to the values that are passed in. pydantic-settings adds the command line
        itself."""
        return (init_settings,)

    def __init__(self, **values: Any) -> None:
        """Validate the values. Raises ArgumentsError for wrong ones, with messages that name the flags."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            if "_build_sources" in values:  # by read_arguments, which ends the process
                raise
            raise ArgumentsError.of(error, fields_of(type(self))) from error

    _no_empty_path = field_validator("*", mode="before")(no_empty_path)

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> Self:
        """Return the arguments with values read from YAML. A number may stand for a text, and a single item
        for a list; null selects the default. Raises ArgumentsError."""
        return cls(**from_plain(values, fields_of(cls)))

    def changed(self, **values: Any) -> Self:
        """Return a copy with other values, which are validated unless wrong arguments were left out. Raises
        ArgumentsError."""
        if self._is_partial:
            return self.model_copy(update=values)
        values_set = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self)(**values_set | values)

    def as_type(self, cls: type[ArgumentsType], **values: Any) -> ArgumentsType:
        """Return the arguments of another declaration, all of which this one has, with other values. They are
        validated unless wrong arguments were left out. Raises ArgumentsError."""
        return self.converted(cls, {name: getattr(self, name) for name in cls.model_fields} | values)

    def converted(self, cls: type[ArgumentsType], values: Mapping[str, Any]) -> ArgumentsType:
        """Return the arguments of another declaration with these values, which come from this one. They are
        validated unless wrong arguments were left out. Raises ArgumentsError."""
        if not self._is_partial:
            return cls(**values)
        partial_arguments = cls.model_construct(**values)
        partial_arguments._is_partial = True
        return partial_arguments

    def refuse_unused(self, names: Iterable[str], reason: str, *, even_defaults: bool = False) -> None:
        """Raise ArgumentsError if one of the arguments `names` is set, since it would have no effect. The
        message begins with `reason`. A default counts as not set, since the settings file of a run has all of
        them; with `even_defaults`, one that was given counts as set."""
        unused = [
            name
            for name in sorted(self.model_fields_set & set(names))
            if even_defaults or getattr(self, name) != type(self).model_fields[name].default
        ]
        if unused:
            flags = [flag_of(name) for name in unused]
            words: list[str] = []  # positional arguments have no flag, and their values may be secret
            for name, flag in zip(unused, flags, strict=True):
                is_flag = not is_positional(type(self).model_fields[name])
                words += [flag] if is_flag else [str(word).partition("=")[0] for word in getattr(self, name)]
            raise ArgumentsError(f"{reason}: leave out {', '.join(words)}", flags)

    def to_argv(self) -> list[str]:
        """Return the words that pass these arguments to the command: flags in declared order, then
        positional arguments. Values equal to the default are left out. Raises ValueError for a value that a
        command line cannot express: null or an empty list where that is not the default."""
        return words_of(self)


def argument(
    help: str,
    metavar: Metavar | None = None,
    *,
    default: Any = PydanticUndefined,
    flag: str | None = None,
    old: str | None = None,
    rare: str | None = None,
) -> Any:
    """Return a field of Arguments, which is required unless it has a default.

    - `help`: the description in the help
    - `metavar`: placeholder for the value in the help. A tuple declares several values: two for `("TRAIN",
      "TEST")`, one or more for `("FILE", ...)`.
    - `flag`: the name of the flag, if it is not a valid name in Python
    - `old`: a former name of the field, which still works and is not shown
    - `rare`: a heading; the flag is only shown by `--help-all`, under this heading
    """
    extra = Presentation(metavar=metavar, old=old, rare=rare)
    return Field(default, description=help, validation_alias=flag, json_schema_extra=extra)


def with_defaults(cls: type[ArgumentsType], **defaults: Any) -> type[ArgumentsType]:
    """Return a subclass of the declaration `cls` in which some fields have other `defaults`. A default of
    None leaves the field as it is."""
    changed = {}
    for name, value in defaults.items():
        if value is not None:
            field = copy(cls.model_fields[name])
            field.default = value
            changed[name] = (field.annotation, field)
    return create_model(cls.__name__, __base__=cls, **changed)


def read_arguments(
    cls: type[ArgumentsType],
    arguments: Sequence[str] | None,
    *,
    prog: str | None = None,
    description: str,
    epilog: str | None = None,
    settings: Mapping[str, Any] | None = None,
    check: Check[ArgumentsType] | None = None,
    faults: Sequence[str] = (),
) -> ArgumentsType:
    """Return the parsed arguments, by default those of the process.

    Ends the process with status 0 after `--help`, and with status 2 and a message if an argument is wrong.

    - `settings`: validated values by name; arguments on the command line replace them
    - `check`: the command's check of files and servers. It is only called here if an argument is wrong, so
      that one message contains all problems (wrong_arguments.py).
    - `faults`: messages about wrong settings. If there are any, no argument is required, since it may be
      among the settings that could not be read.
    """
    epilog = "\n\n".join(filter(None, [_FILES_HELP, epilog]))
    layout = argparse.RawDescriptionHelpFormatter
    parser = CommandParser(prog=prog, description=description, epilog=epilog, formatter_class=layout)
    fields = fields_of(cls)
    words, settings, file_faults, wrong_flags = _words_and_settings(
        cls, arguments, settings or {}, fields, prog
    )
    faults = [*faults, *file_faults]
    optional = fields if faults else settings
    add_argument = ArgumentAdder(parser, fields, optional, with_rare="--help-all" in words)
    source: CliSettingsSource = CliSettingsSource(
        cls, root_parser=parser, parse_args_method=CommandParser.parse_all, add_argument_method=add_argument
    )
    try:
        args = CliApp.run(cls, cli_args=words, cli_settings_source=source, **settings)
        if not (faults or parser.faults):
            return args
        errors = []
    except ValidationError as error:
        errors = [
            item
            for item in error.errors(include_url=False)
            if item["type"] != "missing" and not _is_of_unknown_flag(item, parser, fields)
        ]
    faults += [*parser.faults, *(message_of(item, fields) for item in errors)]
    parsed = source()
    known_wrong = {str(item["loc"][0]) for item in errors if item["loc"]} | parser.wrong_names
    known_wrong |= {name for name in fields if flag_of(name) in wrong_flags and name not in parsed}
    faults += _other_faults(cls, {**settings, **parsed}, known_wrong, check)
    parser.error("; ".join(faults) if check is None else listed(faults))


def _is_of_unknown_flag(error: ErrorDetails, parser: CommandParser, fields: Fields) -> bool:
    """Return whether an error is about a positional argument that is rather the value of an unknown flag."""
    name, *index = error["loc"] or ("",)
    return bool(index) and is_positional(fields[str(name)]) and error["input"] in parser.behind_unknown


def names_flag(words: Sequence[str], flag: str) -> bool:
    """Return whether a flag is among the words of a valid command line, where it may be shortened."""
    names = (word.partition("=")[0] for word in words if word.startswith("--"))
    return any(len(name) > 2 and flag.startswith(name) for name in names)


def _other_faults(
    cls: type[ArgumentsType],
    values: Mapping[str, Any],
    known_wrong: Iterable[str],
    check: Check[ArgumentsType] | None,
) -> list[str]:
    """Return the faults that the class's validators and `check` find in addition to the values that are
    known to be wrong."""
    args, faults, wrong_names = right_arguments(cls, values, known_wrong)
    return faults if check is None else [*faults, *problems_beside(check, args, wrong_names)]


def _words_and_settings(
    cls: type[Arguments],
    arguments: Sequence[str] | None,
    settings: Mapping[str, Any],
    fields: Fields,
    command: str | None,
) -> SplitWords:
    """Return the words without settings files, and the settings including those of the files. All positional
    arguments are among the words."""
    words, file_settings, faults, wrong_flags = split_files(
        sys.argv[1:] if arguments is None else arguments, cls, command
    )
    merged = {**settings, **file_settings}
    for name in [name for name in merged if is_positional(fields[name])]:
        words = [*merged.pop(name), *words]
    return SplitWords(words, merged, faults, wrong_flags)
