"""The blocks of a protocol: tags, and the role that says what a block means.

The role of a block determines what happens when the policy closes it:

    think, plan     text of the policy; with `stop: true` the turn ends here
    call            calls of tools; the environment answers with an observation
    answer          the final answer, which ends the episode
    summary         replaces turns in the context: all of them (`span: everything`, the default), or those
                    from the last call (`span: last_call`)
    backtrack       removes turns from the context, from the last one with a role in `pops`; by default the
                    last turn, whatever its role. The text of the block stays, as a reflection
    observation     the result of calls; the only block that the environment writes

Plans are never removed from the context (rag_r1/agent/memory.py).

The roles are fixed, but a protocol file may declare any number of blocks under `blocks:`, with names of its
choice: for example a `<plan>`, or a second block of calls for another tool.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from rag_r1.protocols.actions import SEARCH, SummarySpan

Role = Literal["think", "plan", "call", "observation", "answer", "summary", "backtrack"]
ROLES: tuple[Role, ...] = get_args(Role)
#: Roles at whose closing tag a generation always stops.
ACTING: tuple[Role, ...] = ("call", "answer", "summary", "backtrack")
#: Roles of turns that a backtrack can remove; `invalid` is a turn without an action.
POPPED = ("call", "think", "summary", "backtrack", "invalid")
SPANS: tuple[SummarySpan, ...] = get_args(SummarySpan)
#: How calls can be written; `parser.read_calls` describes the syntaxes.
Syntax = Literal["single", "list", "named", "json"]
SYNTAXES: tuple[Syntax, ...] = get_args(Syntax)
#: Syntaxes with a single call in a block.
ONE_CALL: tuple[Syntax, ...] = ("single", "named")


@dataclass(frozen=True)
class Tag:
    """An opening and a closing string, e.g. `<search>` and `</search>`."""

    open: str
    close: str


@dataclass(frozen=True)
class CallFormat:
    """How calls are written in a block."""

    syntax: Syntax
    #: Most calls in a turn.
    max_calls: int
    #: Characters that are removed from a query.
    removed_characters: str = ""
    #: Whether white space in a query becomes single spaces.
    fold_white_space: bool = False
    #: The tool that is called with the syntaxes `single` and `list`, which do not name one.
    tool: str = SEARCH
    #: Pairs (name in calls, registered name) of tools that calls name differently.
    names: tuple[tuple[str, str], ...] = ()

    def registered(self, name: str) -> str:
        """Return the registered name of the tool whose name in calls is `name`."""
        return dict(self.names).get(name, name)


@dataclass(frozen=True)
class Block(Tag):
    """A tag with a name and a role."""

    name: str
    role: Role
    #: Whether a generation ends at its closing tag.
    stop: bool = False
    #: How calls are written; None unless the role is `call`.
    call: CallFormat | None = None
    #: For a backtrack: the roles from which on turns are removed.
    pops: tuple[str, ...] = POPPED
    #: For a summary: the turns that it replaces.
    span: SummarySpan = "everything"

    @property
    def author(self) -> Literal["policy", "environment"]:
        """Who writes the block: `policy` or `environment`."""
        return "environment" if self.role == "observation" else "policy"


@dataclass(frozen=True)
class Tags:
    """The tags of the four blocks that every protocol has. The environment writes `information`, the policy
    the others."""

    think: Tag
    search: Tag
    information: Tag
    answer: Tag
