"""Checks that the keys of a protocol are consistent with each other.

loader.py calls this when it has read all keys and checked each of them on its own. Every check raises
ProtocolError with the file and the key.
"""

from __future__ import annotations

from rag_r1.protocols.blocks import ONE_CALL
from rag_r1.protocols.key_reader import ProtocolError
from rag_r1.protocols.protocol import Protocol


def check_protocol(protocol: Protocol, source: str) -> None:
    """Raise ProtocolError, with the file `source` and the key, if keys contradict each other."""
    _check_tags(protocol, source)
    _check_template(protocol, source)
    _check_max_queries(protocol, source)
    _check_opening(protocol, source)
    if protocol.turns == "chat":
        _check_chat(protocol, source)
    else:
        _check_nothing_found(protocol, source)


def _check_tags(protocol: Protocol, source: str) -> None:
    """Check that all tags differ, since the parser recognises a block by its tags."""
    strings = [string for block in protocol.blocks for string in (block.open, block.close)]
    for string in strings:
        if strings.count(string) > 1:
            raise ProtocolError(f"{source}: tags: {string!r} is used for two tags: make them differ")


def _check_template(protocol: Protocol, source: str) -> None:
    """Check that the template has the tags around the documents, so that the policy sees where these begin
    and end."""
    information = protocol.tags.information
    opening, _, closing = protocol.format.template.partition("{body}")
    if information.open not in opening or information.close not in closing:
        raise ProtocolError(f"{source}: observation.template must put {{body}} between the tags.information")


def _check_nothing_found(protocol: Protocol, source: str) -> None:
    """Check that the text has both tags, since it replaces a whole observation. With chat turns it is the
    text of a message, which has no tags."""
    text, information = protocol.format.nothing_found, protocol.tags.information
    if text is not None and not 0 <= text.find(information.open) < text.find(information.close):
        raise ProtocolError(f"{source}: observation.nothing_found must contain both tags.information")


def _check_max_queries(protocol: Protocol, source: str) -> None:
    """Check that the limit is at least 1, and not more with a syntax that cannot express a second query."""
    if protocol.max_queries < 1 or (protocol.queries.syntax in ONE_CALL and protocol.max_queries != 1):
        raise ProtocolError(
            f"{source}: max_queries is {protocol.max_queries}; {' and '.join(ONE_CALL)} take 1, the other "
            "syntaxes 1 or more"
        )


def _check_opening(protocol: Protocol, source: str) -> None:
    """Check that the opening, which the policy does not write, contains no action."""
    if any(block.close in protocol.opening for block in protocol.acting):
        raise ProtocolError(
            f"{source}: prompt.opening must not contain an action: the policy has to write it"
        )


def _check_chat(protocol: Protocol, source: str) -> None:
    """Check the keys that must have a certain value if turns are messages of the model's chat template."""
    requirements = {
        "prompt.form": (protocol.prompt_form, "chat"),
        "prompt.opening": (protocol.opening, ""),
        "observation.body": (protocol.format.body, "text"),
        "own_observations": (protocol.own_observations, False),
    }
    for key, (value, required) in requirements.items():
        if value != required:
            raise ProtocolError(f"{source}: {key} must be {required!r} with `turns: chat`, not {value!r}")
    for block in protocol.blocks:
        if block.call is not None and block.call.syntax != "json":
            key = "query_syntax" if block.name == "search" else f"blocks.{block.name}.syntax"
            raise ProtocolError(f"{source}: {key} must be json with `turns: chat`")
