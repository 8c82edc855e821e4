"""Defines the steps of a loop, each with a folder in OUT.

    start/evaluation           the first agent with the first index
    round1/agent               the agent, trained with the index of the round before    rag-r1 stages
    round1/agent_evaluation    what that has changed                                    rag-r1 eval
    round1/data                which passages help this agent                           rag-r1 retriever data
    round1/retriever           the retriever, trained on that                           rag-r1 retriever train
    round1/index               its index                                                rag-r1 index build
    round1/reload              the server serves it from now on                         POST /reload
    round1/evaluation          what that has changed                                    rag-r1 eval
    ...
    round3/agent               after two rounds: the agent, trained with the last index
    round3/agent_evaluation

So one more round goes on where the last loop has ended. An agent that stays as it is has no steps of its own,
and a control without a retriever has nothing but the agent's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rag_r1.config.recipes import Recipe, find_file
from rag_r1.io.atomic_files import atomic_file
from rag_r1.io.file_hash import names_and_sizes_hash, sha256_of_file
from rag_r1.iterate.commands import StepCommands
from rag_r1.iterate.plan import DataSpec, EvaluationSpec, IndexSpec, LoopPlan, RetrieverSpec
from rag_r1.iterate.results import data_metrics, evaluation_metrics
from rag_r1.protocols.retriever_query import Mode
from rag_r1.runs.errors import RunError
from rag_r1.runs.steps import Step
from rag_r1.training.stages import finished_model

#: Options that decide how fast a step is, what it costs or where it asks, and not what its result is.
_SPEED_KEYS = frozenset(
    {
        *("in_flight", "rpm", "tpm", "timeout_s", "retries", "backoff_s", "tries", "max_cost", "trust_env"),
        *("price_in", "price_out", "base_url", "api_key_env", "vllm_options"),
        *("judge_url", "judge_api_key_env", "judge_in_flight", "judge_rpm", "judge_max_cost"),
        *("judge_price_in", "judge_price_out"),
        *("save_steps", "logging_steps", "logger", "project_name", "experiment_name", "no_progress"),
        "device",
    }
)


@dataclass(frozen=True)
class LoopStep(Step):
    """A step whose `work` follows its command. `index`: the folder of the index that must be served, if it
    searches. `command`: its command for a server's address; None: to serve the index is all. `product`: a
    file in its folder with which the command has no more to do."""

    index: Path | None = None
    command: Callable[[str], list[str]] | None = None
    product: str | None = None


@dataclass
class _LoopState:
    """The agent's model and the served index after the steps so far, and the steps that made them."""

    model: str
    index: Path
    query: Mode
    by_agent: tuple[str, ...] = ()
    by_index: tuple[str, ...] = ()
    retriever: Path | None = None
    by_retriever: tuple[str, ...] = ()


class Loop:
    """The steps of a plan for `rounds` rounds in the folder `out`."""

    def __init__(self, plan: LoopPlan, out: Path, rounds: int):
        self.plan, self.out, self.rounds = plan, out, rounds
        model = plan.agent.model
        self._first = _LoopState(
            model=model if plan.has_fixed_served_agent else str(Path(model).resolve()),
            index=Path(plan.index.first).resolve(),
            query=plan.index.first_query,
        )

    def steps(self) -> list[LoopStep]:
        """All of them. Raises RunError if a file of the plan cannot be read."""
        try:
            return self._steps()
        except OSError as error:
            raise RunError(f"{error.filename} cannot be read: {error.strerror}") from error

    def _steps(self) -> list[LoopStep]:
        state = _LoopState(**vars(self._first))
        steps = [self._evaluation("start/evaluation", state)]
        trains_agent, trains_retriever = self.plan.agent.recipe is not None, self.plan.retriever is not None
        last_round = self.rounds + 1 if trains_agent and trains_retriever else self.rounds
        for number in range(1, last_round + 1):
            if trains_agent:
                steps.append(self._agent(number, state))
                steps.append(self._evaluation(f"round{number}/agent_evaluation", state))
            if trains_retriever and number <= self.rounds:
                steps += self._new_retriever(number, state)
                steps.append(self._evaluation(f"round{number}/evaluation", state))
        return steps

    def _agent(self, number: int, state: _LoopState) -> LoopStep:
        plan, agent, name = self.plan, self.plan.agent, f"round{number}/agent"
        assert agent.recipe is not None
        continues = agent.start == "previous"
        start = state.model if continues else self._first.model
        needs = (state.by_agent if continues else ()) + state.by_index
        query, training = state.query, self.out / name / "training"
        settings = {
            "recipe": _content(Recipe.find(agent.recipe).path),
            "overrides": list(agent.overrides),
            **self._playing(state),
            **({} if continues and state.by_agent else {"start": self._first_agent}),
        }
        state.model, state.by_agent = str(self.out / name / "model"), (name,)
        return LoopStep(
            name,
            settings,
            _link_model,
            ("model",),
            needs,
            state.index,
            lambda url: StepCommands(plan, url).agent(start, query, number, training),
        )

    def _evaluation(self, name: str, state: _LoopState) -> LoopStep:
        section, results = self.plan.evaluation, ("run/report.json",)
        return self._play(name, section, evaluation_metrics, results, state, StepCommands.evaluation)

    def _play(
        self,
        name: str,
        section: DataSpec | EvaluationSpec,
        work: Callable[[Path], Mapping[str, Any]],
        results: Sequence[str],
        state: _LoopState,
        command: Callable[[StepCommands, str, Mode, Path], list[str]],
    ) -> LoopStep:
        """A step in which the agent plays a section's questions. `command`: a method of StepCommands."""
        plan, model, query, run = self.plan, state.model, state.query, self.out / name / "run"
        settings = {
            "questions": [_content(path) for path in section.questions],
            "options": _decisive(section.options),
            **self._playing(state),
            **({} if state.by_agent else {"agent": self._first_agent}),
        }
        return LoopStep(
            name,
            settings,
            work,
            results,
            state.by_agent + state.by_index,
            state.index,
            lambda url: command(StepCommands(plan, url), model, query, run),
        )

    def _new_retriever(self, number: int, state: _LoopState) -> list[LoopStep]:
        """Data, retriever, index and reload."""
        plan, spec = self.plan, self.plan.retriever
        assert plan.data is not None and spec is not None
        data, retriever, index, reload = (
            f"round{number}/{name}" for name in ("data", "retriever", "index", "reload")
        )
        results = ("run/train.jsonl", "run/passages.jsonl")
        data_step = self._play(data, plan.data, data_metrics, results, state, StepCommands.data)
        start = state.retriever if spec.start == "previous" else None
        needs = (data, *(state.by_retriever if start else ()))
        rows, run = self.out / data / "run", self.out / retriever / "run"
        model, folder = run / "model", self.out / index / "index"
        state.retriever, state.by_retriever = model, (retriever,)
        state.index, state.by_index, state.query = folder, (index,), spec.query
        return [
            data_step,
            LoopStep(
                retriever,
                _retriever_settings(spec),
                _no_facts,
                ("run/model",),
                needs,
                command=lambda url: StepCommands(plan, url).retriever(rows, start, run),
            ),
            LoopStep(
                index,
                _index_settings(plan.index),
                _no_facts,
                ("index/manifest.json",),
                (retriever,),
                command=lambda url: StepCommands(plan, url).index(model, folder),
                product="index/manifest.json",  # an index that is there would be refused
            ),
            LoopStep(reload, {}, _no_facts, ("served.json",), (index,), folder),
        ]

    @property
    def _first_agent(self) -> str:
        """The first agent, for settings."""
        return self._first.model if self.plan.has_fixed_served_agent else _files(self._first.model)

    def _playing(self, state: _LoopState) -> dict[str, Any]:
        """Settings of a step that plays: the agent's, and the index if that is not another step's result."""
        agent = self.plan.agent
        settings = {"protocol": agent.protocol, "keys": list(agent.keys), "query": state.query}
        if state.by_index:
            return settings
        return settings | {"index": _content(state.index / "manifest.json")}


def _retriever_settings(spec: RetrieverSpec) -> dict[str, Any]:
    recipe = _content(find_file(spec.recipe, ".yaml"))
    return {"recipe": recipe, "options": _decisive(spec.options), "query": spec.query}


def _index_settings(spec: IndexSpec) -> dict[str, Any]:
    return {"corpus": [_files(path) for path in spec.corpus], "options": _decisive(spec.options)}


def _no_facts(folder: Path) -> dict[str, Any]:
    return {}


def _link_model(folder: Path) -> dict[str, Any]:
    """Link the model that the training in this folder has left as `model`."""
    stage = folder / "training" / "stage1"
    try:
        model = finished_model(stage)
    except (OSError, ValueError) as error:
        raise RunError(f"{stage / 'finished'} names no model ({error}): remove {folder}") from error
    with atomic_file(folder / "model") as part:
        part.unlink(missing_ok=True)
        part.symlink_to(os.path.relpath(model, folder))
    return {"model": os.path.relpath(model, folder)}


def _decisive(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in sorted(options.items()) if name not in _SPEED_KEYS}


def _content(path: str | Path) -> str:
    """A file by its content: the first 16 digits of its hash. For files that are read in moments."""
    return sha256_of_file(Path(path))[:16]


def _files(name: str) -> str:
    """A large file, or a folder of such, by names and sizes; a name that is none of these as it is."""
    path = Path(name)
    return names_and_sizes_hash(path) if path.exists() else name
