"""Reads settings of a command from files, as in `rag-r1 eval @run.yaml --samples 4`, and writes such files.

    # run.yaml
    model: models/policy
    questions: [data/test.parquet]
    retriever_url: http://127.0.0.1:8000
    card: true
    overrides: [rag_r1.agent.max_turns=3]

The keys are the names of the flags, with hyphens or underscores; `overrides` contains the positional
arguments. A flag on the command line replaces the value in the file, `--no-card` switches `card` off, and
overrides are appended to those of the file. If there are several files, later ones take precedence. A value
that begins with @ and ends like the name of a settings file is written as `--prompt=@mine.yaml`.

Each command that fills the folder of a run writes such a file, `settings.yaml`, with all its settings
(`recorded_settings`). The run can then be repeated: `rag-r1 eval @RUN/settings.yaml --out OTHER`.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin

import yaml
from pydantic_settings import BaseSettings

from rag_r1.io.atomic_files import write_text
from rag_r1.io.bounded_yaml import YamlError, load_yaml, read_yaml
from rag_r1.io.errors import reason_of
from rag_r1.io.secrets import holds_secret
from rag_r1.options.arguments.errors import ArgumentsError
from rag_r1.options.arguments.fields import Fields, fields_of, flag_of, is_positional, values_of
from rag_r1.options.arguments.plain_values import split_plain
from rag_r1.options.command_exit import CommandError
from rag_r1.options.suggestions import did_you_mean

#: The name of the settings file in the folder of a run, and the beginning of its first line.
SETTINGS = "settings.yaml"
_HEAD = "# rag-r1 "
_EXAMPLES = f"@RUN/{SETTINGS} or one of your own (@mine.yaml)"
_FILE = re.compile(r"@(.+\.(?:ya?ml|json))", re.DOTALL)


class SplitWords(NamedTuple):
    """The words of a command line, and the contents of the settings files among them."""

    #: All words but the files, preceded by the positional arguments of the files.
    words: list[str]
    #: The other settings, by the names of the fields.
    settings: dict[str, Any]
    #: Messages about files that cannot be used, and about wrong keys of the others.
    faults: list[str]
    #: The flags of the wrong keys.
    wrong_flags: frozenset[str] = frozenset()


class SettingsError(ArgumentsError):
    """Keys of a settings file are wrong.

    `faults` has a message for each wrong key, and `right` the other settings by the names of the fields, and
    the right items of lists. `flags` are those of the keys without a right value.
    """

    def __init__(self, path: Path, message_of: Mapping[str, str], right: Mapping[str, Any]):
        flags = set(message_of) - set(map(flag_of, right))
        super().__init__(f"{path}: {'; '.join(message_of.values())}", flags)
        self.faults = [f"{path}: {message}" for message in message_of.values()]
        self.right = dict(right)


def split_files(words: Sequence[str], cls: type[BaseSettings], command: str | None = None) -> SplitWords:
    """Separate the words of a command line from settings files, and read these. `cls` is the declaration of
    the arguments, and `command` that of the command line."""
    others: list[str] = []
    positional: list[str] = []
    settings: dict[str, Any] = {}
    faults: list[str] = []
    wrong_flags: set[str] = set()
    fields = fields_of(cls)
    n_values = 0  # number of following words that are values of the last flag
    for word in words:
        is_value = n_values > 0
        n_values = max(n_values - 1, 0)
        if word.startswith("--") and not is_value:
            n_values = _value_count(word, fields)
        if (match := _FILE.fullmatch(word)) is None:
            if word.startswith("@") and not (is_value or Path(word).exists()):
                faults.append(_no_settings_fault(word))
            else:
                others.append(word)
            continue
        try:
            file_values = read_settings(Path(match[1]), cls, command)
        except SettingsError as error:
            faults += error.faults
            wrong_flags |= set(error.flags)
            file_values = error.right
        except ArgumentsError as error:  # the file cannot be read
            faults.append(str(error))
            continue
        # Not in the order of the file, since positional arguments are told apart by their order.
        for name, value in ((name, file_values[name]) for name in fields if name in file_values):
            if is_positional(fields[name]):
                positional += value if isinstance(value, list) else [value]
            else:
                settings[name] = value
    return SplitWords([*positional, *others], settings, faults, frozenset(wrong_flags))


def _value_count(flag: str, fields: Fields) -> int:
    """Return how many of the following words are values of this flag."""
    if "=" in flag:
        return 0
    kinds = {flag_of(name): field.annotation for name, field in fields.items()}
    kind = kinds.get(flag, kinds.get(flag.replace("--no-", "--")))
    if kind is bool:
        return 0
    return len(get_args(kind)) if get_origin(kind) is tuple else 1


def _no_settings_fault(word: str) -> str:
    """Return the message about a word that begins with @ and is not a settings file."""
    path = Path(word[1:])
    if (path / SETTINGS).is_file():
        return f"{word} is a folder: give its file of settings, {word}/{SETTINGS}"
    reason = "is not a settings file: its name must end in .yaml or .json"
    if path.is_dir():
        reason = f"is a folder without {SETTINGS}, so no run is in it"
    elif not path.exists():
        reason = f"names no settings file, since there is no file or run {word[1:]!r}"
    return f"{word} {reason}: give a file of settings, {_EXAMPLES}"


def read_settings(path: Path, cls: type[BaseSettings], command: str | None = None) -> dict[str, Any]:
    """Return the settings in a file, by the names of the fields of `cls`, a subclass of Arguments. Required
    settings may be absent. Raises SettingsError with all wrong keys, and ArgumentsError if the file cannot be
    read, or if it has wrong keys because a run of another command than `command` has written it; both name
    the file."""
    try:
        values = read_yaml(path)
    except (OSError, YamlError) as error:
        is_malformed = isinstance(error, YamlError)
        name = "JSON" if path.suffix == ".json" else "YAML"
        remedy = f"correct its {name}" if is_malformed else f"give a file of settings, {_EXAMPLES}"
        raise ArgumentsError(f"{path} cannot be read: {reason_of(error)}: {remedy}") from error
    if not isinstance(values, dict):
        raise ArgumentsError(f"{path}: must be a mapping of settings, such as `limit: 100`: correct it")
    fields = fields_of(cls)
    settings, wrong = split_plain(values, fields)
    known = {name: value for name, value in settings.items() if name in fields}
    message_of = {}
    keys_are = "the keys are the names of the flags"
    if "overrides" in fields:
        keys_are += ", and `overrides`, a list of key=value"
    for name in (name for name in settings if name not in fields):
        hint = did_you_mean(name, map(str, fields)) or keys_are
        message_of[flag_of(name)] = f"unknown key {name}: {hint}"
    wrong |= _wrong_values(cls, known)
    right = {name: value for name, value in known.items() if flag_of(name) not in wrong}
    for name, flag in ((name, flag_of(name)) for name in known.keys() - right.keys()):
        items = known[name] if isinstance(known[name], list) else []
        faults = [_wrong_values(cls, {name: [item]}).get(flag) for item in items]
        wrong[flag] = "; ".join(filter(None, faults)) or wrong[flag]
        if right_items := [item for item, fault in zip(items, faults, strict=True) if fault is None]:
            right[name] = right_items
    message_of |= {flag: _by_key(message, flag) for flag, message in wrong.items()}
    owner = None if command is None else _owner(path)
    if message_of and owner is not None and owner != command:
        raise ArgumentsError(
            f"{path} has the settings of a run of `{owner}`, which `{command}` does not take: give the flags "
            f"of `{command}` themselves, or repeat that run with `{owner} @{path}`"
        )
    if message_of:
        raise SettingsError(path, message_of, right)
    return settings


def _wrong_values(cls: type[BaseSettings], values: Mapping[str, Any]) -> dict[str, str]:
    """Return messages about the values that are wrong by themselves, by flag. The command line may change
    absent and contradictory values."""
    try:
        cls(**values)
    except ArgumentsError as error:
        return error.wrong_values
    return {}


def _by_key(message: str, flag: str) -> str:
    """Return a message about a flag in the words of a file: with the key in place of the flag."""
    return f"{flag[2:].replace('-', '_')}: {message.removeprefix(f'argument {flag}: ')}"


@contextmanager
def recorded_settings(
    command: str,
    args: Any,
    folder: Path | None = None,
    *,
    other: str = "--out OTHER",
    replaces: bool = False,
) -> Iterator[None]:
    """Write `settings.yaml` into the folder of a run, by default `args.out`, and keep it if the block
    succeeds.

    If the block raises an error, the settings file of an earlier invocation is restored. If there was none
    and the folder contains nothing else, the new file is removed, and so is the folder if it is new. After
    Ctrl-C or SIGTERM the new file stays, since the run has begun and the same command resumes it.

    - `command`: the command with its subcommand, such as `rag-r1 eval modes`
    - `args`: the command's Arguments
    - `other`: the argument that selects another folder
    - `replaces`: whether the block replaces the results of a run with other settings, which a note on stderr
      then says

    Raises CommandError if the folder contains a file of that name that is not from a run, and OSError if the
    file cannot be read or written.
    """
    folder = folder or args.out
    path = folder / SETTINGS
    is_new = not folder.exists()
    earlier = path.read_text(encoding="utf-8", errors="surrogateescape") if path.exists() else None
    if earlier is not None and not earlier.startswith(_HEAD):
        raise CommandError(f"{path} was not written by a run: move it away, or choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    command_line = f"{command} {shlex.quote(f'@{path}')} {other}"
    # Lone surrogates, as in a folder's name that is not UTF-8, are escaped, so that the file can be read.
    write_text(path, settings_text(args, command_line), private=True, errors="backslashreplace")
    try:
        yield
    except Exception:
        if earlier is not None:
            write_text(path, earlier, private=True, errors="surrogateescape")
        elif {entry.name for entry in folder.iterdir()} <= {SETTINGS}:
            path.unlink()
            if is_new:
                folder.rmdir()
        raise
    if replaces and earlier is not None and (changed := _changed_keys(earlier, args)):
        note = f"note: the earlier results in {folder} were replaced, of another {', '.join(changed)}"
        print(note, file=sys.stderr)


def _changed_keys(earlier: str, args: BaseSettings) -> list[str]:
    """Return the keys whose values differ between the text of a settings file and the settings of `args`;
    none if the text cannot be read."""
    try:
        before, now = (load_yaml(text) for text in (earlier, settings_text(args, "")))
    except YamlError:
        return []
    names = now.keys() - {"out", "no_progress", "check_only"} if isinstance(before, dict) else ()
    return sorted(name for name in names if now[name] != before.get(name))


def owner_of(folder: Path) -> str | None:
    """Return the command that wrote the settings file in a folder, such as `rag-r1 eval`; None if the folder
    has no settings file of a run that can be read."""
    return _owner(folder / SETTINGS)


def _owner(path: Path) -> str | None:
    """Return the command that wrote a settings file; None if no run did, or if it cannot be read."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            head = file.readline(1000)
    except OSError:
        return None
    return head.removeprefix("# ").partition("@")[0].rstrip(" '") if head.startswith(_HEAD) else None


def settings_text(args: BaseSettings, command: str) -> str:
    """Return the settings of `args`, without secrets, as the text of a settings file that `command`
    reads."""
    settings: dict[str, Any] = {}
    secret: list[str] = []
    for name, field, value in values_of(args):
        is_list = isinstance(value, list | tuple)
        items = [str(item) if isinstance(item, Path) else item for item in (value if is_list else [value])]
        secret_items = [item for item in items if isinstance(item, str) and holds_secret(item)]
        public_items = [item for item in items if item not in secret_items]
        for item in secret_items:
            key, equals, _ = item.partition("=")  # a positional argument is an override
            secret.append(key if is_positional(field) and equals else name)
        if is_list:
            settings[name] = public_items
        elif value is not None and public_items:
            settings[name] = public_items[0]
    notes = [command, f"Relative paths start at {Path.cwd()}"]
    notes += [f"Left out as secret: {', '.join(dict.fromkeys(secret))}"] if secret else []
    lines = [f"# {' '.join(note.splitlines())}" for note in notes]
    return "\n".join([*lines, yaml.safe_dump(settings, sort_keys=False, width=1000)])
