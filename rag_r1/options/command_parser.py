"""The parser of command lines, and the class that adds a declaration's arguments to it.

The parser's errors are short. `parse_all` does not stop at unknown or missing arguments: it adds them to
`faults` and parses the others, which are then checked, too, so that one message contains all problems
(wrong_arguments.py).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Container, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, NoReturn, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from rag_r1.options.argument_values import flag_of
from rag_r1.options.suggestions import did_you_mean


class _MissingError(Exception):
    """Required arguments are missing; the other arguments can be parsed."""


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors are one sentence and the command that prints the help. `faults` has messages
    about unknown and missing arguments."""

    def __init__(self, **keywords: Any):
        super().__init__(**keywords)
        self.faults: list[str] = []
        self._tolerates_missing = False

    def parse_all(self, words: Sequence[str]) -> argparse.Namespace:
        """Return the arguments that can be parsed. Positional arguments may stand between flags."""
        self._tolerates_missing = True
        try:
            parsed, unknown = self.parse_known_intermixed_args(words)
        except _MissingError as missing:
            # argparse reports unknown arguments only if none is missing.
            for action in self._actions:
                action.required = False
            parsed, unknown = self.parse_known_intermixed_args(words)
            faults = [str(missing), *self._unknown_flags(words), *_stray_words(unknown)]
            self.faults.append("; ".join(faults))
            return parsed
        finally:
            self._tolerates_missing = False
        if unknown:
            self.faults.append(self._with_hint(f"unrecognized arguments: {' '.join(unknown)}", unknown[0]))
        return parsed

    def error(self, message: str) -> NoReturn:
        """End the process with status 2. While `parse_all` runs, raises _MissingError for missing arguments
        instead."""
        if self._tolerates_missing and "arguments are required" in message:
            raise _MissingError(message)
        message = message.replace("ignored explicit argument", "it takes no value: leave out")
        if message.endswith("expected one argument"):
            message += "; give a value that begins with - as FLAG=VALUE"
        unknown = message.removeprefix("unrecognized arguments: ")
        if unknown != message and "; did you mean" not in message:
            message = self._with_hint(message, unknown)
        self.exit(2, f"{self.prog}: error: {message}\nsee {self.prog} --help\n")

    def _unknown_flags(self, words: Sequence[str]) -> list[str]:
        """Return a message for each unknown flag."""
        names = self._option_string_actions
        flags = [word.partition("=")[0] for word in words if word.startswith("--") and len(word) > 2]
        unknown = [flag for flag in flags if not any(name.startswith(flag) for name in names)]
        return [self._with_hint(f"unrecognized: {flag}", flag, ", ") for flag in unknown]

    def _with_hint(self, message: str, unknown: str, separator: str = "; ") -> str:
        """Return the message, followed by the known flag that is most similar to `unknown`, if there is
        one."""
        hint = did_you_mean(unknown.split()[0].partition("=")[0], self._option_string_actions)
        return message + (f"{separator}{hint}" if hint else "")


def _stray_words(unknown: Sequence[str]) -> list[str]:
    """Return a message for each unknown word, except flags and the words after them, which may be values."""
    pairs = pairwise(["", *unknown])
    return [f"unrecognized: {word}" for before, word in pairs if "--" not in (before[:2], word[:2])]


@dataclasses.dataclass
class ArgumentAdder:
    """Adds the arguments that pydantic-settings derives from a declaration to argparse's parser, with this
    project's help texts and list handling."""

    parser: argparse.ArgumentParser
    #: The fields of the declaration by the names of their flags.
    fields: Mapping[str, FieldInfo]
    #: Names of arguments that are not required, since the settings contain their values.
    optional: Container[Any]
    #: Whether the help includes the rare flags.
    with_rare: bool
    #: The groups of rare flags by their heading.
    groups: dict[str, Any] = dataclasses.field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if any(field.json_schema_extra["rare"] for field in self.fields.values()):
            self.parser.add_argument("--help-all", action="help", help="show all flags, also rare ones")

    def __call__(self, group: Any, *names: str, **kwargs: Any) -> Any:
        """Add one argument as pydantic-settings passes it, and return argparse's action."""
        name = kwargs.get("dest", names[0])
        field = self.fields[name]
        kwargs = _with_our_help(field, kwargs)
        if name in self.optional:
            kwargs.pop("required", None)
        former_name, title = field.json_schema_extra["old"], field.json_schema_extra["rare"]
        if title and not self.with_rare:
            kwargs["help"] = argparse.SUPPRESS
        elif title:
            if title not in self.groups:
                self.groups[title] = self.parser.add_argument_group(title)
            group = self.groups[title]
        action = group.add_argument(*names, **kwargs)
        if former_name:  # known to the parser alone, so that help and messages show only the current name
            group._option_string_actions[flag_of(former_name)] = action
        if kwargs.get("action") == "store_true":  # its opposite overrides a flag set by a settings file
            group.add_argument(
                f"--no-{flag_of(name)[2:]}",
                action="store_const",
                const="false",
                dest=name,
                default=argparse.SUPPRESS,
                help=argparse.SUPPRESS,
            )
        return action


class _JsonListAction(argparse.Action):
    """Collects the values of a list as JSON, which pydantic-settings does not split at commas."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        items = json.loads(getattr(namespace, self.dest, None) or "[]")
        items += values if isinstance(values, list) else [values]
        setattr(namespace, self.dest, json.dumps(items))


def _with_our_help(field: FieldInfo, keywords: dict[str, Any]) -> dict[str, Any]:
    """Return the keywords of an argument that pydantic-settings passes to argparse, with this project's help
    text, metavar and list handling."""
    help_text = field.description or ""
    metavar = field.json_schema_extra["metavar"]
    default = field.default
    if isinstance(default, list | tuple):
        default = " ".join(map(str, default)) or None
    # Compared by identity, since 0, which equals False, is a default to show.
    if not any(default is none for none in (PydanticUndefined, None, False)) and "(default" not in help_text:
        help_text += f" (default: {default})"
    if keywords.get("action") == "append" or "nargs" in keywords:
        keywords.update(action=_JsonListAction, default=argparse.SUPPRESS)
        if isinstance(metavar, tuple) and metavar[-1] is ...:
            keywords["nargs"], metavar = "+", metavar[0]
        elif isinstance(metavar, tuple):
            keywords["nargs"] = len(metavar)
    if "metavar" in keywords:  # not for a flag without a value
        if metavar is None and get_origin(field.annotation) is Literal:
            metavar = f"{{{','.join(map(str, get_args(field.annotation)))}}}"
        keywords["metavar"] = metavar
    return {**keywords, "help": help_text.replace("%", "%%")}
