"""Builds the command line of each step of a loop.

A command runs on the machine of the agent or on that of the retriever. The machine's `launcher` is a list of
arguments. If one of them contains `{command}`, the command is inserted there, quoted for a shell. Otherwise
the arguments of the command are appended:

    [ssh, gpu1, "cd /rag-r1 && {command}"]    ssh gpu1 'cd /rag-r1 && python -m rag_r1.cli stages ...'
    [srun, --gres=gpu:8]                      srun --gres=gpu:8 python -m rag_r1.cli stages ...

All machines must see the folder OUT and the files of the plan under the same paths. Only the machine of the
retrieval server may have other paths, given by `server.paths`.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rag_r1.evaluation.eval_arguments import EvalArguments
from rag_r1.iterate.plan import DataSpec, EvaluationSpec, LoopPlan, Machine, option_name
from rag_r1.options.arguments.overrides import hydra_quoted
from rag_r1.protocols.retriever_query import Mode
from rag_r1.retriever.data.arguments import DataArguments
from rag_r1.retriever.training.options import TrainOptions, read_recipe
from rag_r1.training.stages import StagesArguments

#: The module of the command `rag-r1`. Commands name it, so that they use the chosen Python on any machine.
_CLI = "rag_r1.cli"
#: Overrides that add an exported model to every checkpoint, for the next step, and resume a killed training.
_TRAINING_KEYS = (
    "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra,hf_model]",
    "trainer.resume_mode=auto",
)


def launch_command(machine: Machine, module: str, arguments: Sequence[str]) -> list[str]:
    """Return the command line that runs `python -m MODULE ARGUMENTS` on a machine."""
    launcher, python = machine
    command = [python, "-m", module, *arguments]
    if any("{command}" in part for part in launcher):
        return [part.replace("{command}", shlex.join(command)) for part in launcher]
    return [*launcher, *command]


def flags_of(options: Mapping[str, Any]) -> list[str]:
    """Return options of the retrieval server's programs as flags of their command line: `{"bits": 4}`
    becomes `--bits=4`, true only adds its flag, and a list repeats it. Null and false are left out. The
    programs check the options themselves."""
    flags = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        for item in value if isinstance(value, list) else [value]:
            if item is True:
                flags.append(flag)
            elif item is not None and item is not False:
                flags.append(f"{flag}={item}")
    return flags


def query_keys(query: Mode) -> list[str]:
    """Return the overrides of the block rag_r1 that make an agent send its queries in this mode."""
    if query == "plain":
        return ["rag_r1.retriever.agentic_input=false"]
    keys = ["rag_r1.retriever.agentic_input=true"]
    return keys if query == "agentic" else [*keys, f"rag_r1.retriever.mode={query}"]


@dataclass(frozen=True)
class StepCommands:
    """Builds the commands of a plan's steps. `url` is the address of the retrieval server.

    In all methods `out` is the folder that the command writes, `model` the path or name of the agent's model,
    and `query` the mode of the agent's queries. Commands are returned as lists of arguments.
    """

    plan: LoopPlan
    url: str

    def agent(self, model: str, query: Mode, round_number: int, out: Path) -> list[str]:
        """Return the command that trains the agent of a round (counted from 1), starting from `model`. The
        result is in `out`/stage1."""
        agent = self.plan.agent
        assert agent.recipe is not None  # else the loop has no such step
        overrides = [override.replace("{round}", str(round_number)) for override in agent.overrides]
        overrides += [*agent.keys, *_TRAINING_KEYS, *query_keys(query)]
        overrides += [f"rag_r1.protocol={hydra_quoted(agent.protocol)}", f"rag_r1.retriever.url={self.url}"]
        overrides += [f"actor_rollout_ref.model.path={hydra_quoted(model)}"]
        stage = StagesArguments(recipe=[agent.recipe], out=out, overrides=overrides)
        return launch_command(agent.machine, _CLI, ["stages", *stage.to_argv()])

    def data(self, model: str, query: Mode, out: Path) -> list[str]:
        """Return the command that creates the training data of the retriever."""
        arguments = ["retriever", "data", *self.data_arguments(model, query, out).to_argv()]
        return launch_command(self.plan.agent.machine, _CLI, arguments)

    def data_arguments(self, model: str, query: Mode, out: Path) -> DataArguments:
        """Return the arguments of the command `data`. Raises ArgumentsError if it would refuse them."""
        return DataArguments.from_plain(self._play_arguments(self.plan.data, model, query, out))

    def evaluation(self, model: str, query: Mode, out: Path) -> list[str]:
        """Return the command that evaluates an agent with the served index."""
        arguments = ["eval", *self.evaluation_arguments(model, query, out).to_argv()]
        return launch_command(self.plan.agent.machine, _CLI, arguments)

    def evaluation_arguments(self, model: str, query: Mode, out: Path) -> EvalArguments:
        """Return the arguments of the command `evaluation`. Raises ArgumentsError if it would refuse
        them."""
        return EvalArguments.from_plain(self._play_arguments(self.plan.evaluation, model, query, out))

    def retriever(self, data: Path, start: Path | None, out: Path) -> list[str]:
        """Return the command that trains a retriever on the output folder `data` of the command `data`,
        starting from the model `start` (None for the model of the recipe)."""
        assert self.plan.retriever is not None  # else the loop has no such step
        arguments = ["retriever", "train", *self.retriever_options(data, start, out).to_argv()]
        machine, processes = self.plan.retriever.machine, self.plan.retriever.processes
        if processes == 1:
            return launch_command(machine, _CLI, arguments)
        torchrun = ["--nproc-per-node", str(processes), "-m", _CLI]
        return launch_command(machine, "torch.distributed.run", [*torchrun, *arguments])

    def retriever_options(self, data: Path, start: Path | None, out: Path) -> TrainOptions:
        """Return the arguments of the command `retriever`, including those of the recipe. Raises RecipeError
        if the recipe cannot be used, and ArgumentsError if the command would refuse the arguments."""
        retriever = self.plan.retriever
        assert retriever is not None  # else the loop has no such step
        own_names = set(map(option_name, retriever.options))
        options = {
            **{name: value for name, value in read_recipe(retriever.recipe).items() if name not in own_names},
            **retriever.options,
            "rows": data / "train.jsonl",
            "corpus": data / "passages.jsonl",
            "out": out,
            "mode": retriever.query,
        }
        return TrainOptions.from_plain({**options, "model": start} if start else options)

    def index(self, encoder: Path, out: Path) -> list[str]:
        """Return the command that builds the index for a retriever's encoder."""
        index, retriever = self.plan.index, self.plan.retriever
        assert retriever is not None  # else the loop has no such step
        arguments = ["--corpus", *index.corpus, "--out", str(out), "--backend", "dense"]
        arguments += ["--encoder", str(encoder), *flags_of(index.options)]
        return launch_command(retriever.machine, "retrieval_server.build_index", arguments)

    def _play_arguments(
        self, section: DataSpec | EvaluationSpec | None, model: str, query: Mode, out: Path
    ) -> dict[str, Any]:
        """Return the arguments of a command that plays a section's questions with this agent and its
        search."""
        assert section is not None  # else the loop has no such step
        agent = self.plan.agent
        return {
            **section.options,
            "questions": section.questions,
            "model": model,
            "protocol": agent.protocol,
            "retriever_url": self.url,
            "out": out,
            "overrides": [*agent.keys, *query_keys(query)],
        }
