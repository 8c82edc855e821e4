"""The blocks of a protocol: who writes what between which tags, and what it means.

A block has a role, which determines what happens when the block is closed:

    think, plan     text of the policy; with `stop: true` the generation ends there and the next turn begins
    call            calls of tools; the environment answers with an observation
    answer          the final answer, which ends the episode
    summary         the context is rewritten to the prompt and the turn that wrote the summary
    observation     written by the environment, as the only block

The roles are fixed, the names and the number of blocks are not: a protocol file may declare any number of
blocks under `blocks:`, e.g. a `<plan>` or a second call block for another tool.
"""

from __future__ import annotations

from dataclasses import dataclass

from rag_r1.protocols.actions import SEARCH

ROLES = ("think", "plan", "call", "observation", "answer", "summary")
#: Roles at whose closing tag a generation always stops.
ACTING = ("call", "answer", "summary")
#: How calls can be written; see parsing.read_calls.
SYNTAXES = ("single", "list", "named", "json")


@dataclass(frozen=True)
class Tag:
    """An opening and a closing string, e.g. `<search>` and `</search>`."""

    open: str
    close: str


@dataclass(frozen=True)
class CallFormat:
    """How calls are written in a block. `syntax`: see `parsing.read_calls`; `most`: most calls in a turn;
    `tool`: the one that a `single` or `list` block calls; `delete`: characters that are removed from a query;
    `fold`: white space in a query becomes single spaces."""

    syntax: str
    most: int
    delete: str = ""
    fold: bool = False
    tool: str = SEARCH


@dataclass(frozen=True)
class Block(Tag):
    """A tag with its name and role. `call`: how calls are written, for the role `call`; `stop`: a generation
    ends at its closing tag."""

    name: str
    role: str
    stop: bool = False
    call: CallFormat | None = None

    @property
    def author(self) -> str:
        """Who writes it: `policy` or `environment`."""
        return "environment" if self.role == "observation" else "policy"


@dataclass(frozen=True)
class Tags:
    """The four blocks that every protocol has: the policy writes think, search, answer; the environment,
    information."""

    think: Tag
    search: Tag
    information: Tag
    answer: Tag
