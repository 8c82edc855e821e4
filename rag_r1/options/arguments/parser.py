"""The parser of command lines.

Its errors are one sentence and the command that prints the help. `parse_all` does not stop at unknown or
missing arguments, or at a flag with too few or too many values: it adds them to `faults` and returns the
others, which are then checked, too, so that one message contains all problems
(rag_r1/options/wrong_arguments.py).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import pairwise, takewhile
from typing import Any, NoReturn

from pydantic_core import PydanticUndefined

from rag_r1.options.suggestions import did_you_mean


class CommandParser(argparse.ArgumentParser):
    """argparse's parser with shorter errors."""

    def __init__(self, **keywords: Any):
        super().__init__(**keywords)
        #: Messages about the wrong arguments that `parse_all` has found.
        self.faults: list[str] = []
        #: Names of the arguments with too few or too many values.
        self.wrong_names: set[str] = set()
        #: The words that follow unknown flags, and may be their values.
        self.behind_unknown: set[str] = set()

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> argparse.Namespace:
        """Return the parsed `args`, by default those of the process. Ends the process if one is wrong."""
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(self._unrecognized(unknown))
        return parsed

    def parse_all(self, words: Sequence[str]) -> argparse.Namespace:
        """Return the arguments that can be parsed, and add messages about the others to `faults`. Positional
        arguments may stand between flags.

        Can be called once, since no argument is required afterwards. Ends the process if a shortened flag is
        ambiguous.
        """
        # Fixed before `required` is cleared below, since the usage shows which arguments are required.
        self.usage = self.format_usage().removeprefix("usage: ")
        required = [action for action in self._actions if action.required]
        for action in required:
            action.required = False
        self.exit_on_error = False
        while True:
            try:
                parsed, unknown = self.parse_known_intermixed_args(words)
                break
            except argparse.ArgumentError as error:
                words = self._without_wrong_flag(words, error)
        absent = (None, PydanticUndefined)  # the latter for a positional argument
        missing = [
            argparse._get_action_name(action)
            for action in required
            if action.dest not in self.wrong_names and getattr(parsed, action.dest, None) in absent
        ]
        if missing:
            self.faults.append(f"the following arguments are required: {', '.join(missing)}")
        if unknown:
            self.faults.append(self._unrecognized(unknown))
        self.behind_unknown = {word for flag, word in pairwise(words) if flag in unknown}
        return parsed

    def _without_wrong_flag(self, words: Sequence[str], error: argparse.ArgumentError) -> list[str]:
        """Return the words without the flag that `error` is about, and without its values. The error is added
        to `faults`. Ends the process if no flag has too few or too many values, so that the error has another
        cause."""
        for index, word in enumerate(words):
            flag, equals, _ = word.partition("=")
            # A flag may be shortened; argparse has refused one that is ambiguous.
            flags = [name for name in self._option_string_actions if flag and name.startswith(flag)]
            action = self._option_string_actions.get(flag if flag in flags else "".join(flags[:1]))
            if action is None or argparse._get_action_name(action) != error.argument_name:
                continue
            following = [] if equals else words[index + 1 :]
            values = list(takewhile(lambda value: not value.startswith("-"), following))
            n_needed = action.nargs if isinstance(action.nargs, int) else 1
            if n_needed != 1 if equals else len(values) < n_needed:  # FLAG=VALUE gives one
                self.faults.append(str(error))
                self.wrong_names.add(action.dest)
                return [*words[:index], *words[index + 1 + len(values) :]]
        self.error(str(error))

    def error(self, message: str) -> NoReturn:
        """Print a message with the command that prints the help, and end the process with status 2."""
        message = message.replace("ignored explicit argument", "it takes no value: leave out")
        self.exit(2, f"{self.prog}: error: {message}\nsee {self.prog} --help\n")

    def _match_argument(self, action: argparse.Action, arg_strings_pattern: str) -> int:
        """Return how many words are values of an argument. Raises ArgumentError, with a remedy if a flag has
        no value."""
        try:
            return super()._match_argument(action, arg_strings_pattern)
        except argparse.ArgumentError as error:
            if action.nargs is None:
                error.message += "; give a value that begins with - as FLAG=VALUE"
            raise

    def _unrecognized(self, words: Sequence[str]) -> str:
        """Return the message about unknown words, with the known flag that is most similar to the first of
        them, and to each further flag, if there is one."""
        flags = [words[0], *(word for word in words[1:] if word.startswith("--"))]
        hints = [did_you_mean(flag.partition("=")[0], self._option_string_actions) for flag in flags]
        return "; ".join([f"unrecognized arguments: {' '.join(words)}", *filter(None, dict.fromkeys(hints))])
