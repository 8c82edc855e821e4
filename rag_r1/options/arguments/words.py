"""Writes arguments as the words of a command line, for a child process or a person."""

from __future__ import annotations

from pydantic import BaseModel

from rag_r1.options.arguments.fields import flag_of, is_positional, presentation, values_of


def words_of(arguments: BaseModel) -> list[str]:
    """Return the words that pass an Arguments to its command (see `Arguments.to_argv`). Raises ValueError
    for a value that a command line cannot express."""
    flags: list[str] = []
    positional: list[str] = []
    for name, field, value in values_of(arguments):
        if value == field.default:
            continue
        flag = flag_of(name)
        if isinstance(value, bool):
            flags.append(flag if value else f"--no-{flag[2:]}")
        elif is_positional(field):
            positional += map(str, value if isinstance(value, list) else [value])
        elif value is None or value == []:
            raise ValueError(f"{flag}: {value!r} cannot be given on a command line")
        elif isinstance(value, tuple):
            flags += [flag, *map(str, value)]
        else:
            # A flag with several values takes all words that follow it, so each value gets its own flag.
            takes_words = isinstance(presentation(field)["metavar"], tuple)
            for text in map(str, value if isinstance(value, list) else [value]):
                joined = takes_words or text.startswith(("-", "@"))  # @FILE.yaml would be read as settings
                flags += [f"{flag}={text}"] if joined else [flag, text]
    return [*flags, *positional]
