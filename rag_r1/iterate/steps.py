"""Defines the steps of a loop. Each step has its own folder in OUT.

    start/evaluation           evaluates the first agent with the first index
    round1/agent               trains the agent with the current index               rag-r1 stages
    round1/agent_evaluation    evaluates this agent with the same index              rag-r1 eval
    round1/data                determines which passages help this agent             rag-r1 retriever data
    round1/retriever           trains the retriever on these passages                rag-r1 retriever train
    round1/index               builds the retriever's index                          rag-r1 index build
    round1/reload              makes the server serve that index                     POST /reload
    round1/evaluation          evaluates the same agent with the new index           rag-r1 eval
    ...
    round3/agent               after two rounds: trains the agent with the last index
    round3/agent_evaluation

The last step evaluates the last agent, so that a loop with one more round continues exactly where this one
ends. An agent that is not trained has no steps of its own, and a control experiment without a retriever has
only the agent's steps.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rag_r1.config.recipes import Recipe, find_file
from rag_r1.io.atomic_files import atomic_file
from rag_r1.io.file_hash import names_and_sizes_hash, sha256_of_file
from rag_r1.iterate.commands import StepCommands
from rag_r1.iterate.plan import DataSpec, EvaluationSpec, IndexSpec, LoopPlan, RetrieverSpec, option_name
from rag_r1.iterate.results import data_metrics, evaluation_metrics
from rag_r1.protocols.retriever_query import Mode
from rag_r1.runs.errors import RunError
from rag_r1.runs.steps import Step
from rag_r1.training.stages import finished_model

#: The result of a step `reload`: the facts about the index that the server serves.
SERVED = "served.json"
#: Options that affect the speed or cost of a step, or the server it uses, but not its result.
_SPEED_KEYS = frozenset(
    "in_flight rpm tpm timeout_s retries backoff_s tries max_cost trust_env price_in price_out base_url "
    "api_key_env vllm_options judge_url judge_api_key_env judge_in_flight judge_rpm judge_max_cost "
    "judge_price_in judge_price_out save_steps logging_steps logger project_name experiment_name "
    "no_progress device".split()
)


@dataclass(frozen=True)
class LoopStep(Step):
    """A step of a loop, whose `work` is called after its command has ended."""

    #: The folder of the index that must be served during the step; None if the step does not search.
    index: Path | None = None
    #: Returns the step's command for a server's address; None for a step that only has its index served.
    command: Callable[[str], list[str]] | None = None
    #: A file in the step's folder whose existence shows that the command has succeeded.
    product: str | None = None


@dataclass
class _LoopState:
    """The agent's model, the served index and the retriever after the steps so far. For each of them there
    are the names of the steps that produced it, or () if it was given."""

    model: str
    index: Path
    #: The form of the queries that the index expects.
    query: Mode
    agent_steps: tuple[str, ...] = ()
    index_steps: tuple[str, ...] = ()
    retriever: Path | None = None
    retriever_steps: tuple[str, ...] = ()


class Loop:
    """Builds the steps of a plan with `rounds` rounds in the folder `out`."""

    def __init__(self, plan: LoopPlan, out: Path, rounds: int):
        self.plan, self.out, self.rounds = plan, out, rounds
        model = plan.agent.model
        self._initial = _LoopState(
            model=model if plan.has_fixed_served_agent else str(Path(model).resolve()),
            index=Path(plan.index.first).resolve(),
            query=plan.index.first_query,
        )

    def steps(self) -> list[LoopStep]:
        """Return all steps in order. Raises RunError if a file of the plan cannot be read."""
        try:
            return self._steps()
        except OSError as error:
            raise RunError(f"{error.filename} cannot be read: {error.strerror}") from error

    def _steps(self) -> list[LoopStep]:
        """Return all steps in order. Raises OSError if a file cannot be read."""
        state = replace(self._initial)  # a copy, which the steps change
        steps = [self._evaluation("start/evaluation", state)]
        trains_agent = self.plan.agent.recipe is not None
        trains_retriever = self.plan.retriever is not None
        last_round = self.rounds + 1 if trains_agent and trains_retriever else self.rounds
        for round_number in range(1, last_round + 1):
            if trains_agent:
                steps.append(self._agent(round_number, state))
                steps.append(self._evaluation(f"round{round_number}/agent_evaluation", state))
            if trains_retriever and round_number <= self.rounds:
                steps += self._new_retriever(round_number, state)
                steps.append(self._evaluation(f"round{round_number}/evaluation", state))
        return steps

    def _agent(self, round_number: int, state: _LoopState) -> LoopStep:
        """Return the step that trains a round's agent, and put the new model into `state`."""
        plan, agent, name = self.plan, self.plan.agent, f"round{round_number}/agent"
        assert agent.recipe is not None  # else there is no such step
        continues = agent.start == "previous"
        start = state.model if continues else self._initial.model
        needs = (state.agent_steps if continues else ()) + state.index_steps
        query, training = state.query, self.out / name / "training"
        settings = {
            "recipe": _file_hash(Recipe.find(agent.recipe).path),
            "overrides": list(agent.overrides),
            **self._play_settings(state),
            **({} if continues and state.agent_steps else {"start": self._initial_agent}),
        }
        state.model, state.agent_steps = str(self.out / name / "model"), (name,)
        return LoopStep(
            name,
            settings,
            work=_link_model,
            results=("model",),
            needs=needs,
            index=state.index,
            command=lambda url: StepCommands(plan, url).agent(start, query, round_number, training),
        )

    def _evaluation(self, name: str, state: _LoopState) -> LoopStep:
        """Return the step that evaluates the current agent with the current index."""
        section, results = self.plan.evaluation, ("run/report.json",)
        return self._play(name, section, evaluation_metrics, results, state, StepCommands.evaluation)

    def _play(
        self,
        name: str,
        section: DataSpec | EvaluationSpec,
        read_metrics: Callable[[Path], Mapping[str, Any]],
        results: Sequence[str],
        state: _LoopState,
        command: Callable[[StepCommands, str, Mode, Path], list[str]],
    ) -> LoopStep:
        """Return a step in which the current agent plays a section's questions.

        `read_metrics` returns the step's metrics from its folder, and `command` is the method of StepCommands
        that builds its command.
        """
        plan, model, query, run = self.plan, state.model, state.query, self.out / name / "run"
        settings = {
            "questions": [_file_hash(path) for path in section.questions],
            "options": _decisive(section.options),
            **self._play_settings(state),
            **({} if state.agent_steps else {"agent": self._initial_agent}),
        }
        return LoopStep(
            name,
            settings,
            read_metrics,
            results,
            needs=state.agent_steps + state.index_steps,
            index=state.index,
            command=lambda url: command(StepCommands(plan, url), model, query, run),
        )

    def _new_retriever(self, round_number: int, state: _LoopState) -> list[LoopStep]:
        """Return the steps data, retriever, index and reload of a round, and put the new retriever and its
        index into `state`."""
        plan, spec = self.plan, self.plan.retriever
        assert plan.data is not None and spec is not None  # else there are no such steps
        data, retriever = f"round{round_number}/data", f"round{round_number}/retriever"
        results = ("run/train.jsonl", "run/passages.jsonl")
        data_step = self._play(data, plan.data, data_metrics, results, state, StepCommands.data)
        start = state.retriever if spec.start == "previous" else None
        needs = (data, *(state.retriever_steps if start else ()))
        data_run, run = self.out / data / "run", self.out / retriever / "run"
        state.retriever, state.retriever_steps = run / "model", (retriever,)
        training_step = LoopStep(
            retriever,
            _retriever_settings(spec),
            work=_no_facts,
            results=("run/model",),
            needs=needs,
            command=lambda url: StepCommands(plan, url).retriever(data_run, start, run),
        )
        return [data_step, training_step, *self._new_index(round_number, run / "model", spec.query, state)]

    def _new_index(self, round_number: int, encoder: Path, query: Mode, state: _LoopState) -> list[LoopStep]:
        """Return the steps index and reload of a round, and put the new index into `state`."""
        plan, name = self.plan, f"round{round_number}/index"
        folder = self.out / name / "index"
        state.index, state.index_steps, state.query = folder, (name,), query
        return [
            LoopStep(
                name,
                _index_settings(plan.index),
                work=_no_facts,
                results=("index/manifest.json",),
                needs=state.retriever_steps,
                command=lambda url: StepCommands(plan, url).index(encoder, folder),
                product="index/manifest.json",  # the command refuses to write over a finished index
            ),
            LoopStep(f"round{round_number}/reload", {}, _no_facts, (SERVED,), needs=(name,), index=folder),
        ]

    @property
    def _initial_agent(self) -> str:
        """The first agent as a setting: the name of a served model, or a hash of the names and sizes of the
        files of a local one."""
        return self._initial.model if self.plan.has_fixed_served_agent else _files_hash(self._initial.model)

    def _play_settings(self, state: _LoopState) -> dict[str, Any]:
        """Return the settings of a step that plays the agent: those of the agent, and a hash of the index
        unless a step built it."""
        agent = self.plan.agent
        settings = {"protocol": agent.protocol, "keys": list(agent.keys), "query": state.query}
        if state.index_steps:
            return settings
        return settings | {"index": _file_hash(state.index / "manifest.json")}


def _retriever_settings(spec: RetrieverSpec) -> dict[str, Any]:
    """Return the settings of a step that trains the retriever."""
    recipe = _file_hash(find_file(spec.recipe, ".yaml"))
    return {"recipe": recipe, "options": _decisive(spec.options), "query": spec.query}


def _index_settings(spec: IndexSpec) -> dict[str, Any]:
    """Return the settings of a step that builds an index."""
    return {"corpus": [_files_hash(path) for path in spec.corpus], "options": _decisive(spec.options)}


def _no_facts(folder: Path) -> dict[str, Any]:
    """Return no facts: the work of a step whose command does everything."""
    return {}


def _link_model(folder: Path) -> dict[str, Any]:
    """Create the link `model` in a step's folder, which points to the model of its training. Returns the
    facts of the step. Raises RunError if the training did not record a model."""
    stage = folder / "training" / "stage1"
    try:
        model = finished_model(stage)
    except (OSError, ValueError) as error:
        message = f"{stage / 'finished'} names no model ({error})"
        raise RunError(f"{message}: remove {folder} to train it again") from error
    with atomic_file(folder / "model") as part:
        part.unlink(missing_ok=True)
        part.symlink_to(os.path.relpath(model, folder))
    return {"model": os.path.relpath(model, folder)}


def _decisive(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a step's result depends on, sorted by name."""
    return {key: value for key, value in sorted(options.items()) if option_name(key) not in _SPEED_KEYS}


def _file_hash(path: str | Path) -> str:
    """Return the first 16 digits of the hash of a small file's content."""
    return sha256_of_file(Path(path))[:16]


def _files_hash(name: str) -> str:
    """Return a hash of the names and sizes of a large file, or of the files in a folder; the name itself if
    there is no such path."""
    path = Path(name)
    return names_and_sizes_hash(path) if path.exists() else name
