"""The parser of command lines: its errors are short, and it goes on past unknown and missing arguments.

`parse_all` adds them to `faults` and parses the other arguments, which are then checked too, so that one
message has all that is wrong (wrong_arguments.py).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn

from rag_r1.options.suggestions import did_you_mean


class _MissingError(Exception):
    """Required arguments are missing; the others can be parsed."""


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors are one sentence and the command that prints the help. `faults`: sentences about
    unknown and missing arguments."""

    def __init__(self, prog: str | None, description: str, epilog: str = ""):
        layout = argparse.RawDescriptionHelpFormatter
        super().__init__(prog, description=description, epilog=epilog, formatter_class=layout)
        self.faults: list[str] = []
        self._goes_on = False

    def parse_all(self, words: Sequence[str]) -> argparse.Namespace:
        """Returns the arguments that can be read; positional ones may stand among the flags."""
        self._goes_on = True
        try:
            parsed, unknown = self.parse_known_intermixed_args(words)
        except _MissingError as missing:
            # argparse looks for unknown flags only if none is missing.
            self.faults.append("; ".join([str(missing), *self._unknown_flags(words)]))
            for action in self._actions:
                action.required = False
            return self.parse_known_intermixed_args(words)[0]
        finally:
            self._goes_on = False
        if unknown:
            self.faults.append(self._with_hint(f"unrecognized arguments: {' '.join(unknown)}", unknown[0]))
        return parsed

    def error(self, message: str) -> NoReturn:
        """End the process with status 2. Raises _MissingError for missing arguments within `parse_all`."""
        if self._goes_on and "arguments are required" in message:
            raise _MissingError(message)
        message = message.replace("ignored explicit argument", "it takes no value: leave out")
        if message.endswith("expected one argument"):
            message += "; give a value that begins with - as FLAG=VALUE"
        unknown = message.removeprefix("unrecognized arguments: ")
        if unknown != message and "; did you mean" not in message:
            message = self._with_hint(message, unknown)
        self.exit(2, f"{self.prog}: error: {message}\nsee {self.prog} --help\n")

    def _unknown_flags(self, words: Sequence[str]) -> list[str]:
        """A message for each flag that is unknown."""
        names = self._option_string_actions
        flags = [word.partition("=")[0] for word in words if word.startswith("--") and len(word) > 2]
        unknown = [flag for flag in flags if not any(name.startswith(flag) for name in names)]
        return [self._with_hint(f"unrecognized: {flag}", flag, ", ") for flag in unknown]

    def _with_hint(self, message: str, unknown: str, separator: str = "; ") -> str:
        """The message, followed by the known flag that is most like `unknown`, if there is one."""
        hint = did_you_mean(unknown.split()[0].partition("=")[0], self._option_string_actions)
        return message + (f"{separator}{hint}" if hint else "")
