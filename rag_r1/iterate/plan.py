"""The plan of a loop, read from YAML: agent, retriever, questions and machines.

    agent:       {model: models/Qwen2.5-7B, recipe: rag_r1/ppo_sq, protocol: rag_r1_sq}
    data:        {questions: [data/train.parquet], options: {judge_url: ..., judge_model: ...}}
    retriever:   {recipe: agentic_r/retriever_gpu}
    index:       {first: indexes/e5, corpus: [wiki-18.jsonl.gz]}
    server:      {url: http://127.0.0.1:8000}
    evaluation:  {questions: [data/test.parquet]}

Each `options` holds flags of the command of that step, with underscores: `judge_url` is `--judge-url`. The
classes below say what each key is. Words on the command line change a key of the file, or delete it:
`agent.model=models/other`, `data.options.candidates=10`, `~agent.keys`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from rag_r1.options.declare import Constraint, PositiveCount, Text, options
from rag_r1.options.sections import PlanError, change_key, load_sections, read_sections
from rag_r1.options.server_address import Address
from rag_r1.protocols.retriever_query import Mode

Texts = Annotated[tuple[Text, ...], Constraint("a list of texts")]
Paths = Annotated[tuple[Text, ...], Field(min_length=1), Constraint("a list of at least one path")]
Flags = Annotated[dict[Text, Any], Constraint("a mapping of options")]
Start = Literal["base", "previous"]
#: What a query is sent with (rag_r1/protocols/retriever_query.py).
Query = Mode


class _OnMachine:
    """A section that names the machine of its commands."""

    launcher: Texts
    python: Text | None

    @property
    def machine(self) -> tuple[tuple[str, ...], str]:
        """Launcher and Python."""
        return self.launcher, self.python or sys.executable


@options("agent")
class AgentSpec(_OnMachine):
    """The agent, and the machine on which it is trained, plays and is evaluated."""

    #: The folder of a Hugging Face model, from which the first training starts: a base, or one that is
    #: trained already.
    model: Text
    #: A recipe of `rag-r1 train`; null: the agent stays as it is.
    recipe: Text | None = None
    #: Hydra overrides for its trainings; {round} is replaced by the number of the round.
    overrides: Texts = ()
    #: From what a later round's training starts: `model`, as published, or the agent of the round before.
    start: Start = "base"
    protocol: Text = "rag_r1_mq"
    #: Keys of the block rag_r1, wherever the agent plays: rag_r1.agent.max_turns=5.
    keys: Texts = ()
    #: Words before its commands, or around them (commands.py): [ssh, gpu1, "cd /rag-r1 && {command}"].
    launcher: Texts = ()
    #: Python there; null: this one.
    python: Text | None = None


@options("data")
class DataSpec:
    """What the retriever's training data are made of: `rag-r1 retriever data`."""

    questions: Paths
    options: Flags = field(default_factory=dict)


@options("retriever")
class RetrieverSpec(_OnMachine):
    """The retriever, and the machine on which it is trained and its index built."""

    #: A recipe of `rag-r1 retriever train`.
    recipe: Text
    options: Flags = field(default_factory=dict)
    #: From what a later round's training starts: the recipe's model, or the retriever of the round before.
    start: Start = "base"
    #: What its queries are sent with.
    query: Query = "agentic"
    #: Number of GPUs; above 1 it is started with torchrun.
    processes: PositiveCount = 1
    launcher: Texts = ()
    python: Text | None = None


@options("index")
class IndexSpec:
    """The index of the first round, and how the others are built: `rag-r1 index build`."""

    #: Folder of the first round's index.
    first: Text
    #: What its queries are sent with.
    first_query: Query = "plain"
    corpus: Texts = ()
    options: Flags = field(default_factory=dict)


@options("server")
class ServerSpec:
    """The retrieval server."""

    #: Its address; null: it is started here, for as long as the loop runs.
    url: Address | None = None
    #: More arguments for start_retrieval.py, if it is started here.
    options: Texts = ()
    #: Where its machine has folders of this one: {/data/loop: /mnt/loop}.
    paths: Annotated[dict[Text, Text], Constraint("a mapping of folders to folders")] = field(
        default_factory=dict
    )


@options("evaluation")
class EvaluationSpec:
    """What each agent and each retriever are measured with: `rag-r1 eval`."""

    #: Held-out questions.
    questions: Paths
    #: With `supporting` the recall of gold passages is known, too.
    options: Flags = field(default_factory=dict)


@dataclass(frozen=True)
class LoopPlan:
    """A loop. Without `retriever` and `data` it is a control: the same agent steps with the first index."""

    agent: AgentSpec
    index: IndexSpec
    evaluation: EvaluationSpec
    server: ServerSpec
    data: DataSpec | None = None
    retriever: RetrieverSpec | None = None

    @property
    def has_fixed_served_agent(self) -> bool:
        """Whether the agent is never trained and all its steps reach it at a `base_url`."""
        sections = [self.evaluation, *([self.data] if self.data else [])]
        return self.agent.recipe is None and all("base_url" in section.options for section in sections)


_SECTIONS: dict[str, Any] = {
    declared.options_key: declared  # type: ignore[attr-defined]
    for declared in (AgentSpec, DataSpec, RetrieverSpec, IndexSpec, ServerSpec, EvaluationSpec)
}
_MAY_BE_ABSENT = ("data", "retriever")


def read_plan(path: Path, overrides: Sequence[str] = ()) -> LoopPlan:
    """The loop of a file. Raises PlanError, with all wrong keys and values."""
    sections = load_sections(path, _SECTIONS)
    problems = [problem for override in overrides if (problem := change_key(sections, override))]
    read, faults = read_sections(path, sections, _SECTIONS, _MAY_BE_ABSENT)
    problems += faults
    if not problems:
        problems = [f"{path}: {problem}" for problem in _contradictions(read)]
    if problems:
        raise PlanError(problems)
    return LoopPlan(**read)


def _contradictions(sections: Mapping[str, Any]) -> list[str]:
    problems = []
    if (sections["data"] is None) != (sections["retriever"] is None):
        problems.append("data and retriever are given together, or neither: then the retriever stays")
    if sections["retriever"] is not None and not sections["index"].corpus:
        problems.append("index.corpus must be given: the index is built anew for each retriever")
    if sections["retriever"] is None and sections["agent"].recipe is None:
        problems.append("agent.recipe or retriever must be given: otherwise there is nothing to train")
    if sections["retriever"] is None and sections["agent"].start == "base":
        problems.append(
            "agent.start must be previous where there is no retriever: otherwise all rounds train the same"
        )
    return problems
