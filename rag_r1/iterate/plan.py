"""Reads the plan of a loop from YAML: its agent, retriever, questions and machines.

    agent:       {model: models/Qwen2.5-7B, recipe: rag_r1/ppo_sq, protocol: rag_r1_sq}
    data:        {questions: [data/train.parquet], options: {judge_url: ..., judge_model: ...}}
    retriever:   {recipe: agentic_r/retriever_gpu}
    index:       {first: indexes/e5, corpus: [wiki-18.jsonl.gz]}
    server:      {url: http://127.0.0.1:8000}
    evaluation:  {questions: [data/test.parquet]}

Each `options` contains flags of the step's command, with underscores: `judge_url` is `--judge-url`. Only
those of `server` are a list, as on a command line. The classes below declare all keys. On the command line of
the loop, `agent.model=models/other` changes a key of the file, and `~agent.keys` deletes one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from rag_r1.options.declare import options
from rag_r1.options.sections import PlanError, change_key, load_sections, read_sections
from rag_r1.options.server_address import Address
from rag_r1.options.types import Constraint, FilledText, PositiveCount, Text
from rag_r1.protocols.retriever_query import Mode

Texts = Annotated[tuple[Text, ...], Constraint("a list of texts")]
Paths = Annotated[tuple[FilledText, ...], Field(min_length=1), Constraint("a list of at least one path")]
CommandOptions = Annotated[dict[Text, Any], Constraint("a mapping of options")]
Start = Literal["base", "previous"]


class Machine(NamedTuple):
    """A machine on which commands run."""

    #: The arguments before a command that start it there (commands.py); empty for this machine.
    launcher: Sequence[str]
    #: The path of its Python.
    python: str


class _OnMachine:
    """A section that names the machine on which its commands run."""

    launcher: Texts
    python: Text | None

    @property
    def machine(self) -> Machine:
        """The machine of the section; its Python is by default that of this process."""
        return Machine(self.launcher, self.python or sys.executable)


@options("agent")
class AgentSpec(_OnMachine):
    """The agent, and the machine on which it is trained, played and evaluated."""

    #: Folder of the Hugging Face model from which the first training starts; it may be trained already.
    model: Text
    #: A recipe of `rag-r1 train`; null if the agent is not trained.
    recipe: Text | None = None
    #: Hydra overrides for its trainings; {round} is replaced by the number of the round.
    overrides: Texts = ()
    #: The model from which the trainings of later rounds start: `model` (base, as published), or the agent of
    #: the previous round (previous).
    start: Start = "base"
    protocol: Text = "rag_r1_mq"
    #: Overrides of the block rag_r1 for all commands that play the agent: rag_r1.agent.max_turns=5.
    keys: Texts = ()
    #: Starts commands on that machine: [ssh, gpu1, "cd /rag-r1 && {command}"] (commands.py).
    launcher: Texts = ()
    #: Path of Python on that machine; null for the Python of this process.
    python: Text | None = None


@options("data")
class DataSpec:
    """The source of the retriever's training data, which `rag-r1 retriever data` creates."""

    questions: Paths
    options: CommandOptions = field(default_factory=dict)


@options("retriever")
class RetrieverSpec(_OnMachine):
    """The retriever, and the machine on which it is trained and its index is built."""

    #: A recipe of `rag-r1 retriever train`.
    recipe: Text
    options: CommandOptions = field(default_factory=dict)
    #: The model from which the trainings of later rounds start: that of the recipe (base), or the retriever
    #: of the previous round (previous).
    start: Start = "base"
    #: The form of its queries (rag_r1/protocols/retriever_query.py).
    query: Mode = "agentic"
    #: Number of processes, each with one GPU; several are started with torchrun.
    processes: PositiveCount = 1
    launcher: Texts = ()
    python: Text | None = None


@options("index")
class IndexSpec:
    """The index of the first round, and the inputs from which `rag-r1 index build` makes the indexes of later
    rounds."""

    #: Folder of the first round's index.
    first: Text
    #: The form of its queries, as in `retriever.query`.
    first_query: Mode = "plain"
    corpus: Annotated[tuple[FilledText, ...], Constraint("a list of paths")] = ()
    options: CommandOptions = field(default_factory=dict)


@options("server")
class ServerSpec:
    """The retrieval server."""

    #: Its address; null if the loop starts a server on this machine, and stops it at its end.
    url: Address | None = None
    #: Further arguments of start_retrieval.py for a server that the loop starts.
    options: Texts = ()
    #: Folders of this machine, and their paths on the server's machine: {/data/loop: /mnt/loop}.
    paths: Annotated[dict[Text, Text], Constraint("a mapping of folders")] = field(default_factory=dict)


@options("evaluation")
class EvaluationSpec:
    """The questions and options with which `rag-r1 eval` measures each agent and each retriever."""

    #: Held-out questions.
    questions: Paths
    #: Options of `rag-r1 eval`. With `supporting`, the recall of gold passages is measured, too.
    options: CommandOptions = field(default_factory=dict)


@dataclass(frozen=True)
class LoopPlan:
    """The plan of a loop. Without `retriever` and `data` it describes a control experiment: the same
    trainings of the agent, with the first index in all rounds."""

    agent: AgentSpec
    index: IndexSpec
    evaluation: EvaluationSpec
    server: ServerSpec
    data: DataSpec | None = None
    retriever: RetrieverSpec | None = None
    #: The sections, and keys of sections (`agent.model`), that are wrong in the file. For further checks,
    #: placeholders stand in their place; wrong optional sections are None.
    replaced: frozenset[str] = frozenset()

    @property
    def has_fixed_served_agent(self) -> bool:
        """Whether the agent is never trained and all steps use the model served at a `base_url`."""
        sections = [self.evaluation, *([self.data] if self.data else [])]
        return self.agent.recipe is None and all(
            "base_url" in map(option_name, section.options) for section in sections
        )


def option_name(key: str) -> str:
    """Return the name of the option that a key of `options` stands for; commands accept hyphens, too."""
    return key.replace("-", "_")


_SECTIONS: dict[str, Any] = {
    spec.options_key: spec  # type: ignore[attr-defined]
    for spec in (AgentSpec, DataSpec, RetrieverSpec, IndexSpec, ServerSpec, EvaluationSpec)
}
_OPTIONAL = ("data", "retriever")
#: Placeholders for wrong sections in further checks. A wrong `evaluation` may have a `base_url`, with which
#: the model need not be on this machine. So its placeholder has one.
_PLACEHOLDERS = {
    "agent": AgentSpec(model="?"),
    "index": IndexSpec(first="?"),
    "evaluation": EvaluationSpec(questions=("?",), options={"base_url": "?"}),
    "server": ServerSpec(),
}
_OPTIONAL_PLACEHOLDERS = {"data": DataSpec(questions=("?",)), "retriever": RetrieverSpec(recipe="?")}


def read_plan(path: Path, overrides: Sequence[str] = ()) -> LoopPlan:
    """Return the plan in a YAML file, after the changes `overrides`, each `key=value` or `~key`.

    Raises PlanError with all problems and a plan for further checks. In that plan, placeholders replace wrong
    keys and wrong required sections, and wrong optional sections are absent.
    """
    sections = load_sections(path, _SECTIONS)
    problems = [problem for override in overrides if (problem := change_key(sections, override))]
    placeholders = _PLACEHOLDERS | _OPTIONAL_PLACEHOLDERS
    specs, faults, wrong_keys = read_sections(path, sections, _SECTIONS, _OPTIONAL, placeholders)
    replaced = frozenset(placeholders.keys() - specs.keys()) | wrong_keys
    wrong_sections = {key.partition(".")[0] for key in replaced}
    plan = LoopPlan(**_PLACEHOLDERS | specs, replaced=replaced)
    contradictions = [text for names, text in _contradictions(plan) if wrong_sections.isdisjoint(names)]
    problems += [*faults, *(f"{path}: {text}" for text in contradictions)]
    if problems:
        raise PlanError(problems, plan)
    return plan


def _contradictions(plan: LoopPlan) -> Iterator[tuple[Sequence[str], str]]:
    """Yield (names of sections, message) for each contradiction between these sections."""
    agent, retriever = plan.agent, plan.retriever
    if (plan.data is None) != (retriever is None):
        text = "data and retriever are given together: give both, or neither for a fixed retriever"
        yield ["data", "retriever"], text
    if retriever is not None and not plan.index.corpus:
        yield ["retriever", "index"], "index.corpus must be given: the index is built anew for each retriever"
    if plan.server.url is not None and plan.server.options:
        yield ["server"], "server.options are for a server that the loop starts: leave them or server.url out"
    if retriever is None and agent.recipe is None:
        text = "agent.recipe or retriever must be given: otherwise there is nothing to train"
        yield ["retriever", "agent"], text
    elif retriever is None and agent.start == "base":
        text = "agent.start must be previous where there is no retriever: otherwise all rounds train the same"
        yield ["retriever", "agent"], text
