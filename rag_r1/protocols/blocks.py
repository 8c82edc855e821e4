"""The blocks of a protocol: their tags, their roles and who writes them.

A block has a role, which determines what happens when the block is closed:

    think, plan     text of the policy; with `stop: true` the generation ends there and the next turn begins
    call            calls of tools; the environment answers with an observation
    answer          the final answer, which ends the episode
    summary         replaces the turns that it summarises in the context; `span: everything` (all turns, the
                    default) or `span: last_call` (those from the last call)
    backtrack       takes turns out of the context: those from the last one with a role in `pops`; by default
                    the last turn, whatever it was. The text of the block stays, as a reflection
    observation     written by the environment, as the only block

Plans stay in the context when other turns are taken out of it (rag_r1/agent/memory.py).

The roles are fixed, the names and the number of blocks are not: a protocol file may declare any number of
blocks under `blocks:`, e.g. a `<plan>` or a second call block for another tool.
"""

from __future__ import annotations

from dataclasses import dataclass

from rag_r1.protocols.actions import SEARCH

ROLES = ("think", "plan", "call", "observation", "answer", "summary", "backtrack")
#: Roles at whose closing tag a generation always stops.
ACTING = ("call", "answer", "summary", "backtrack")
#: Roles of turns that a backtrack can take out; `invalid` is a turn without an action.
POPPED = ("call", "think", "summary", "backtrack", "invalid")
#: What a summary can replace.
SPANS = ("everything", "last_call")
#: How calls can be written, as `parser.read_calls` describes.
SYNTAXES = ("single", "list", "named", "json")


@dataclass(frozen=True)
class Tag:
    """An opening and a closing string, e.g. `<search>` and `</search>`."""

    open: str
    close: str


@dataclass(frozen=True)
class CallFormat:
    """How calls are written in a block.

    `syntax`: one of SYNTAXES, which `parser.read_calls` describes; `max_calls`: most calls in a turn; `tool`:
    the tool that a `single` or `list` block calls; `removed_characters`: characters that are left out of a
    query; `fold_white_space`: white space in a query becomes single spaces; `names`: pairs (name, tool) for
    calls that do not name a tool as it is registered.
    """

    syntax: str
    max_calls: int
    removed_characters: str = ""
    fold_white_space: bool = False
    tool: str = SEARCH
    names: tuple[tuple[str, str], ...] = ()

    def registered(self, name: str) -> str:
        """The registered name of the tool that a call names `name`."""
        return dict(self.names).get(name, name)


@dataclass(frozen=True)
class Block(Tag):
    """A tag with its name and role. `stop`: a generation ends at its closing tag; `call`: how calls are
    written, for the role `call`; `pops` (backtrack) and `span` (summary): the turns that it takes out of the
    context."""

    name: str
    role: str
    stop: bool = False
    call: CallFormat | None = None
    pops: tuple[str, ...] = POPPED
    span: str = SPANS[0]

    @property
    def author(self) -> str:
        """Who writes the block: `policy` or `environment`."""
        return "environment" if self.role == "observation" else "policy"


@dataclass(frozen=True)
class Tags:
    """The four blocks that every protocol has: the policy writes think, search, answer; the environment,
    information."""

    think: Tag
    search: Tag
    information: Tag
    answer: Tag
