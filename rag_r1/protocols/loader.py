"""Loads a protocol from its YAML file and validates it.

A file with `extends: NAME` (a shipped protocol, or the path of a YAML file, relative to its own folder) is
that protocol with its own keys on top; mappings are merged key by key, and a key set to null counts as
missing: `blocks: {plan: null}` takes a block away. So a second prompt for the same dialect takes no more than
a name and the prompt.

`tags:` gives the four blocks that every protocol has: think, search, information, answer. Further ones are
declared under `blocks:`, by name:

    blocks:
      plan: {tags: ["<plan>", "</plan>"], role: plan}
      calculate: {tags: ["<calc>", "</calc>"], role: call, tool: calculator, syntax: json}

blocks.py explains the roles, parser.py (`read_calls`) the syntaxes. `tools: {Wiki_RAG: search}` says which
registered tool a call means that names its tool otherwise. With `turns: chat` turns and results are messages
of the model's own chat template, and the tools' schemas stand in its prompt (protocol.py).
"""

from __future__ import annotations

import io
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from rag_r1.io.atomic_files import reason_of
from rag_r1.io.bounded_yaml import YamlError, read_yaml
from rag_r1.io.ordinary_files import open_ordinary
from rag_r1.protocols.actions import SEARCH
from rag_r1.protocols.blocks import ACTING, POPPED, ROLES, SPANS, SYNTAXES, Block, CallFormat
from rag_r1.protocols.key_reader import KeyReader, ProtocolError
from rag_r1.protocols.protocol import ObservationFormat, Protocol

_FOLDER = Path(__file__).parent
#: Longest chain of files that extend one another; a longer one is taken for a cycle.
_MAX_DEPTH = 8
#: What stands for the question in a user prompt.
_QUESTION = "{question}"
#: The blocks under `tags:`, and their roles.
_REQUIRED_BLOCKS = {"think": "think", "search": "call", "information": "observation", "answer": "answer"}


def protocol_names() -> list[str]:
    """The shipped protocols."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def load_protocol(name_or_path: str, prompt: str | None = None) -> Protocol:
    """A shipped protocol by name, or one of your own by the path of its YAML file.

    `prompt` is a text with `{question}` in it that replaces the protocol's user prompt and its system prompt,
    e.g. by the prompt of a published checkpoint. The opening of the policy's first turn is kept; if the
    prompt ends with it as well, it is not repeated.

    Raises ProtocolError, naming the file and the key.
    """
    path = _find(name_or_path, Path())
    protocol = _shipped(path) if path.parent == _FOLDER else _from_file(path)
    return protocol if prompt is None else _with_prompt(protocol, prompt, name_or_path)


def load_with_prompt(name_or_path: str, prompt_file: str | Path | None) -> Protocol:
    """As `load_protocol`, with the prompt in a text file, if there is one: the value of a flag --prompt, by
    which errors name it."""
    protocol = load_protocol(name_or_path)
    if prompt_file is None:
        return protocol
    source = f"--prompt {prompt_file}"
    return _with_prompt(protocol, read_prompt(prompt_file, source), source)


def read_prompt(path: str | Path, source: str) -> str:
    """The text of a prompt's file; errors begin with its `source`. Raises ProtocolError."""
    try:
        with open_ordinary(path) as file:
            return io.TextIOWrapper(file, encoding="utf-8-sig").read()
    except UnicodeDecodeError as error:
        remedy = "convert it with `iconv -t UTF-8`"
        raise ProtocolError(f"{source}: not UTF-8 text ({error.reason}): {remedy}") from error
    except OSError as error:
        raise ProtocolError(f"{source} cannot be read: {error.strerror}: give a text file") from error


def _with_prompt(protocol: Protocol, prompt: str, source: str) -> Protocol:
    if _QUESTION not in prompt:
        raise ProtocolError(f"{source}: the prompt has no {_QUESTION}: the place where the question goes")
    opening = protocol.opening.strip()
    if opening and prompt.rstrip().endswith(opening):
        prompt = prompt.rstrip().removesuffix(opening).rstrip()
    return replace(protocol, user_prompt=prompt, system_prompt=None)


def _from_file(path: Path) -> Protocol:
    return _from_dict(_read(path), str(path))


#: Read once in a process: a file of one's own may change between two loads, a shipped one does not.
_shipped = cache(_from_file)


def _find(name_or_path: str, folder: Path) -> Path:
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml"):
        return folder / path
    if name_or_path not in protocol_names():
        raise ProtocolError(
            f"unknown protocol {name_or_path!r}: use one of {', '.join(protocol_names())}, "
            "or the path of your own .yaml file"
        )
    return _FOLDER / f"{name_or_path}.yaml"


def _read(path: Path, depth: int = 1) -> dict[str, Any]:
    """The keys of a file, including those of the protocols that it extends."""
    try:
        data = read_yaml(path)
    except (OSError, YamlError) as error:
        remedy = "correct its YAML" if isinstance(error, YamlError) else "give another file"
        raise ProtocolError(f"cannot read protocol {path}: {reason_of(error)}: {remedy}") from error
    if not isinstance(data, dict):
        raise ProtocolError(f"{path}: not a mapping of keys")
    parent = data.pop("extends", None)
    if parent is None:
        return data
    if not isinstance(parent, str):
        raise ProtocolError(f"{path}: extends must name a protocol, not {parent!r}")
    if depth == _MAX_DEPTH:
        raise ProtocolError(f"{path}: extends must name a protocol, and not form a cycle")
    return _merged(_read(_find(parent, path.parent), depth + 1), data)


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        are_mappings = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if are_mappings else value
    return merged


def _from_dict(data: dict[str, Any], source: str) -> Protocol:
    keys = KeyReader(data, source)
    prompt, tags, observation = (
        KeyReader(keys.take(name, dict), source, f"{name}.") for name in ("prompt", "tags", "observation")
    )
    call_format = _call_format(keys, source)
    blocks = [
        Block(*tags.take_tag(name), name, role, role in ACTING, call_format if role == "call" else None)
        for name, role in _REQUIRED_BLOCKS.items()
    ]
    for name, block in keys.take("blocks", dict, default={}).items():
        if block is not None:  # the block of a protocol that is extended, taken away
            blocks.append(_block(str(name), block, source, call_format))
    protocol = Protocol(
        name=keys.take("name", str),
        source=keys.take("source", str, default=""),
        system_prompt=prompt.take("system", str, default="") or None,
        user_prompt=prompt.take("user", str, contains=(_QUESTION,)),
        prompt_form=prompt.take("form", str, default="chat", one_of=("chat", "text")),
        opening=prompt.take("opening", str, default=""),
        blocks=tuple(blocks),
        own_observations=keys.take("own_observations", bool, default=False),
        answer_opening=keys.take("answer_opening", str, default="first", one_of=("first", "last")),
        format=_observation_format(observation),
        invalid_hint=keys.take("invalid_hint", str) or None,
        turns=keys.take("turns", str, default="text", one_of=("text", "chat")),
    )
    for reader in (keys, prompt, tags, observation):
        reader.finish()
    _check(protocol, source)
    return protocol


def _call_format(keys: KeyReader, source: str) -> CallFormat:
    fold = ("keep", "fold")
    return CallFormat(
        syntax=keys.take("query_syntax", str, one_of=SYNTAXES),
        max_calls=keys.take("max_queries", int),
        removed_characters=keys.take("query_delete", str, default=""),
        fold_white_space=keys.take("query_white_space", str, default="keep", one_of=fold) == "fold",
        names=_names(keys.take("tools", dict, default={}), source),
    )


def _observation_format(keys: KeyReader) -> ObservationFormat:
    return ObservationFormat(
        template=keys.take("template", str, contains=("{body}",)),
        body=keys.take("body", str, one_of=("text", "json")),
        document=keys.take("document", str, contains=("{contents}", "{text}")),
        separator=keys.take("separator", str),
        ascii=keys.take("ascii", bool, default=True),
        trim=keys.take("trim", str, default="ends", one_of=("ends", "starts")),
        nothing_found=keys.take("nothing_found", str, default="") or None,
    )


def _names(data: dict, source: str) -> tuple[tuple[str, str], ...]:
    """`tools:`, the names that calls use for registered tools."""
    data = {name: tool for name, tool in data.items() if tool is not None}
    if not all(isinstance(text, str) and text.strip() for pair in data.items() for text in pair):
        raise ProtocolError(f"{source}: tools must be {{name in a call: registered tool}}, not {data!r}")
    return tuple(data.items())


def _block(name: str, data: Any, source: str, call_format: CallFormat) -> Block:
    """A custom block. How many calls it can hold and how a query is cleaned are as in the search block."""
    if not isinstance(data, dict):
        raise ProtocolError(f"{source}: blocks.{name} must be {{tags, role, ...}}, not {data!r}")
    if name in _REQUIRED_BLOCKS:
        raise ProtocolError(f"{source}: blocks.{name}: the name is already used under `tags`; choose another")
    keys = KeyReader(data, source, f"blocks.{name}.")
    tag = keys.take_tag("tags")
    role = keys.take("role", str, one_of=tuple(role for role in ROLES if role != "observation"))
    stop = keys.take("stop", bool, default=role in ACTING)
    if role in ACTING and not stop:
        raise ProtocolError(f"{source}: blocks.{name}.stop: a generation always ends after a {role}")
    call = None
    if role == "call":
        syntax = keys.take("syntax", str, default="single", one_of=SYNTAXES)
        max_calls = 1 if syntax == "single" else call_format.max_calls
        tool = keys.take("tool", str, default=SEARCH)
        call = replace(call_format, syntax=syntax, max_calls=max_calls, tool=tool)
    pops, span = POPPED, SPANS[0]
    if role == "backtrack":
        pops = keys.take_subset("pops", POPPED)
    if role == "summary":
        span = keys.take("span", str, default=span, one_of=SPANS)
    keys.finish()
    return Block(*tag, name, role, stop, call, pops, span)


def _check(protocol: Protocol, source: str) -> None:
    """Check everything that involves several keys. Raises ProtocolError."""
    _check_tags(protocol, source)
    _check_template(protocol, source)
    _check_max_queries(protocol, source)
    _check_opening(protocol, source)
    if protocol.turns == "chat":
        _check_chat(protocol, source)
    else:
        _check_nothing_found(protocol, source)


def _check_tags(protocol: Protocol, source: str) -> None:
    """The parser knows a block by its tags alone."""
    strings = [string for block in protocol.blocks for string in (block.open, block.close)]
    for string in strings:
        if strings.count(string) > 1:
            raise ProtocolError(f"{source}: tags: {string!r} is used for two tags")


def _check_template(protocol: Protocol, source: str) -> None:
    """The policy must see where the documents begin and end."""
    information = protocol.tags.information
    opening, _, closing = protocol.format.template.partition("{body}")
    if information.open not in opening or information.close not in closing:
        raise ProtocolError(f"{source}: observation.template must put {{body}} between the tags.information")


def _check_nothing_found(protocol: Protocol, source: str) -> None:
    """It replaces a whole observation. (With chat turns it is the text of a message, which has no tags.)"""
    text, information = protocol.format.nothing_found, protocol.tags.information
    if text is not None and not 0 <= text.find(information.open) < text.find(information.close):
        raise ProtocolError(f"{source}: observation.nothing_found must contain both tags.information")


def _check_max_queries(protocol: Protocol, source: str) -> None:
    """The syntax `single` has no way to write a second query."""
    if protocol.max_queries < 1 or (protocol.queries.syntax == "single" and protocol.max_queries != 1):
        raise ProtocolError(
            f"{source}: max_queries is {protocol.max_queries}; `single` takes 1, `list` 1 or more"
        )


def _check_opening(protocol: Protocol, source: str) -> None:
    """An action in the opening would be the environment's, not the policy's."""
    if any(block.close in protocol.opening for block in protocol.acting):
        raise ProtocolError(
            f"{source}: prompt.opening must not contain an action: the policy has to write it"
        )


def _check_chat(protocol: Protocol, source: str) -> None:
    """Check what turns in the model's chat template need. Raises ProtocolError."""
    requirements = {
        "prompt.form": (protocol.prompt_form, "chat"),
        "prompt.opening": (protocol.opening, ""),
        "observation.body": (protocol.format.body, "text"),
        "own_observations": (protocol.own_observations, False),
    }
    for key, (value, required) in requirements.items():
        if value != required:
            raise ProtocolError(f"{source}: {key} must be {required!r} with `turns: chat`, not {value!r}")
    if block_names := [
        block.name for block in protocol.blocks if block.call is not None and block.call.syntax != "json"
    ]:
        key = "query_syntax" if block_names[0] in _REQUIRED_BLOCKS else f"blocks.{block_names[0]}.syntax"
        raise ProtocolError(f"{source}: {key} must be json with `turns: chat`")
