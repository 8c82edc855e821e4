"""Loads a protocol from its YAML file.

A file with `extends: NAME` starts from another protocol, a shipped one or a YAML file (a path relative to its
own folder), and changes some keys. Mappings are merged key by key, and a key that is set to null counts as
missing: `blocks: {plan: null}` removes a block. So another prompt for the same dialect needs only a name and
the prompt. When all keys have been read, protocol_checks.py checks that they are consistent.

`tags:` has the four blocks of every protocol: think, search, information and answer. Further blocks are
declared by name under `blocks:`

    blocks:
      plan: {tags: ["<plan>", "</plan>"], role: plan}
      calculate: {tags: ["<calc>", "</calc>"], role: call, tool: calculator, syntax: json}

blocks.py explains the roles and parser.py (`read_calls`) the syntaxes. `tools: {Wiki_RAG: search}` maps names
in calls to registered tools. With `turns: chat`, turns and results are messages of the model's chat template,
and the prompt contains the schemas of the tools (protocol.py).
"""

from __future__ import annotations

import io
import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from rag_r1.io.bounded_yaml import YamlError, read_yaml
from rag_r1.io.errors import ICONV, reason_of
from rag_r1.io.ordinary_files import open_ordinary
from rag_r1.protocols.actions import SEARCH
from rag_r1.protocols.blocks import ACTING, ONE_CALL, POPPED, ROLES, SPANS, SYNTAXES, Block, CallFormat, Role
from rag_r1.protocols.key_reader import KeyReader, ProtocolError
from rag_r1.protocols.protocol import ObservationFormat, Protocol
from rag_r1.protocols.protocol_checks import check_protocol

_FOLDER = Path(__file__).parent
#: Longest chain of files that extend one another; a longer one may be a cycle.
_MAX_DEPTH = 8
#: The field for the question in a user prompt.
_QUESTION = "{question}"
#: The blocks under `tags:`, which every protocol has, and their roles.
_REQUIRED_BLOCKS: dict[str, Role] = {
    "think": "think",
    "search": "call",
    "information": "observation",
    "answer": "answer",
}


def protocol_names() -> list[str]:
    """Return the names of the shipped protocols."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def load_protocol(name_or_path: str, prompt: str | None = None) -> Protocol:
    """Load a shipped protocol by its name, or any protocol by the path of its YAML file.

    `prompt` is a text with the field `{question}` that replaces the protocol's user prompt and system prompt,
    e.g. the prompt of a published checkpoint. The opening of the policy's first turn is kept; it is not
    repeated if the prompt already ends with it. Raises ProtocolError, which names the file and the key.
    """
    path = _find(name_or_path, Path())
    protocol = _shipped(path) if path.parent == _FOLDER else _from_file(path)
    return protocol if prompt is None else _with_prompt(protocol, prompt, name_or_path)


def load_with_prompt(name_or_path: str, prompt_file: str | Path | None, key: str = "--prompt") -> Protocol:
    """Load a protocol as `load_protocol` does, with the prompt from a text file, if there is one. Error
    messages name that file as the value of the flag or setting `key`."""
    protocol = load_protocol(name_or_path)
    if prompt_file is None:
        return protocol
    source = f"{key} {prompt_file}"
    return _with_prompt(protocol, read_prompt(prompt_file, source), source)


def read_prompt(path: str | Path, source: str) -> str:
    """Return the text of a prompt file; `~` in its path is the home folder. Raises ProtocolError, whose
    message begins with `source`."""
    try:
        with open_ordinary(os.path.expanduser(path)) as file:
            return io.TextIOWrapper(file, encoding="utf-8-sig").read()
    except UnicodeDecodeError as error:
        remedy = f"convert it with {ICONV}"
        raise ProtocolError(f"{source}: not UTF-8 text ({error.reason}): {remedy}") from error
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        raise ProtocolError(f"{source} cannot be read: {reason_of(error)}: give a text file") from error


def _with_prompt(protocol: Protocol, prompt: str, source: str) -> Protocol:
    """Return the protocol with another user prompt and no system prompt. Raises ProtocolError if the prompt
    has no field for the question."""
    if _QUESTION not in prompt:
        raise ProtocolError(f"{source}: the prompt has no {_QUESTION}: write it where the question belongs")
    opening = protocol.opening.strip()
    if opening and prompt.rstrip().endswith(opening):
        prompt = prompt.rstrip().removesuffix(opening).rstrip()
    return replace(protocol, user_prompt=prompt, system_prompt=None)


def _from_file(path: Path) -> Protocol:
    """Return the protocol in a file. Raises ProtocolError."""
    return _from_dict(_read(path), str(path))


#: Shipped protocols are read only once in a process. Other files may change, so they are read each time.
_shipped = cache(_from_file)


def _find(name_or_path: str, folder: Path, key: str = "") -> Path:
    """Return the file of a protocol; a path is relative to `folder`, unless it begins with `~`. Raises
    ProtocolError, whose message begins with `key`, for an unknown name."""
    path = Path(os.path.expanduser(name_or_path))
    if path.suffix in (".yaml", ".yml"):
        return folder / path
    if name_or_path not in protocol_names():
        raise ProtocolError(
            f"{key}unknown protocol {name_or_path!r}: use one of {', '.join(protocol_names())}, "
            "or the path of your own .yaml file"
        )
    return _FOLDER / f"{name_or_path}.yaml"


def _read(path: Path, depth: int = 1) -> dict[str, Any]:
    """Return the keys of a file, including those of the protocols that it extends. `depth` is the place of
    the file in the chain of files that extend one another, from 1. Raises ProtocolError."""
    try:
        data = read_yaml(path)
    except (OSError, ValueError) as error:  # YamlError, or a path with a null character
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
        raise ProtocolError(f"{path}: extends: a cycle, or over {_MAX_DEPTH} files: name a shipped protocol")
    return _merged(_read(_find(parent, path.parent, f"{path}: extends: "), depth + 1), data)


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return `base` with the values of `changes`; mappings in both are merged key by key."""
    merged = dict(base)
    for key, value in changes.items():
        are_mappings = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if are_mappings else value
    return merged


def _from_dict(data: dict[str, Any], source: str) -> Protocol:
    """Return the protocol with these keys. Raises ProtocolError, which names the file `source` and the
    key."""
    keys = KeyReader(data, source)
    prompt, tags, observation = map(keys.section, ("prompt", "tags", "observation"))
    call_format = _call_format(keys)
    blocks = []
    for name, role in _REQUIRED_BLOCKS.items():
        call = call_format if role == "call" else None
        blocks.append(Block(*tags.take_tag(name), name, role, stop=role in ACTING, call=call))
    for name, block in keys.take("blocks", dict, default={}).items():
        if block is not None:  # null removes a block of the extended protocol
            blocks.append(_custom_block(str(name), block, keys, call_format))
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
    keys.raise_faults()
    check_protocol(protocol, source)
    return protocol


def _call_format(keys: KeyReader) -> CallFormat:
    """Return how calls are written in the search block."""
    white_space = keys.take("query_white_space", str, default="keep", one_of=("keep", "fold"))
    return CallFormat(
        syntax=keys.take("query_syntax", str, one_of=SYNTAXES),
        max_calls=keys.take("max_queries", int),
        removed_characters=keys.take("query_delete", str, default=""),
        fold_white_space=white_space == "fold",
        names=_tool_names(keys),
    )


def _observation_format(keys: KeyReader) -> ObservationFormat:
    """Return how results become text, from the keys under `observation:`."""
    return ObservationFormat(
        template=keys.take("template", str, contains=("{body}",)),
        body=keys.take("body", str, one_of=("text", "json")),
        document=keys.take("document", str, contains=("{contents}", "{text}")),
        separator=keys.take("separator", str),
        ascii=keys.take("ascii", bool, default=True),
        trim=keys.take("trim", str, default="ends", one_of=("ends", "starts")),
        nothing_found=keys.take("nothing_found", str, default="") or None,
    )


def _tool_names(keys: KeyReader) -> tuple[tuple[str, str], ...]:
    """Return the pairs (name in calls, registered tool) of the mapping `tools:`."""
    data = {name: tool for name, tool in keys.take("tools", dict, default={}).items() if tool is not None}
    if not all(isinstance(text, str) and text.strip() for pair in data.items() for text in pair):
        keys.add_fault("tools", f"must be {{name in a call: registered tool}}, not {data!r}")
    return tuple(data.items())


def _custom_block(name: str, data: Any, protocol_keys: KeyReader, call_format: CallFormat) -> Block:
    """Return a block under `blocks:`. Its limit of calls and the cleaning of queries are those of the search
    block. Faults are added to those of the protocol."""
    faults = protocol_keys.faults
    if not isinstance(data, dict):
        protocol_keys.add_fault(f"blocks.{name}", f"must be {{tags, role, ...}}, not {data!r}")
        data, faults = {}, []
    if name in _REQUIRED_BLOCKS:
        protocol_keys.add_fault(f"blocks.{name}:", "the name is already used under `tags`; choose another")
    keys = KeyReader(data, protocol_keys.source, f"blocks.{name}.", faults)
    tag = keys.take_tag("tags")
    role = keys.take("role", str, one_of=tuple(role for role in ROLES if role != "observation"))
    stop = keys.take("stop", bool, default=role in ACTING)
    if role in ACTING and not stop:
        keys.add_fault("stop:", f"a generation always ends after a {role}")
    call = None
    if role == "call":
        syntax = keys.take("syntax", str, default="single", one_of=SYNTAXES)
        max_calls = 1 if syntax in ONE_CALL else call_format.max_calls
        tool = keys.take("tool", str, default=SEARCH)
        call = replace(call_format, syntax=syntax, max_calls=max_calls, tool=tool)
    pops = keys.take_subset("pops", POPPED) if role == "backtrack" else POPPED
    span = keys.take("span", str, default=SPANS[0], one_of=SPANS) if role == "summary" else SPANS[0]
    keys.finish()
    return Block(*tag, name=name, role=role, stop=stop, call=call, pops=pops, span=span)
