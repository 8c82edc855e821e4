"""Builds the command line of each step of a loop.

A command runs on the machine of the agent or of the retriever. Its `launcher` is a list of words. If one of
them contains `{command}`, the command stands there, quoted for a shell; otherwise its words follow:

    [ssh, gpu1, "cd /rag-r1 && {command}"]    ssh gpu1 'cd /rag-r1 && python -m rag_r1.cli stages ...'
    [srun, --gres=gpu:8]                      srun --gres=gpu:8 python -m rag_r1.cli stages ...

All machines see the folder OUT and the files of the plan under the same paths; for the retrieval server's
machine `server.paths` can say otherwise.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rag_r1.evaluation.eval_arguments import EvalArguments
from rag_r1.iterate.plan import DataSpec, EvaluationSpec, LoopPlan
from rag_r1.options.command_line import hydra_quoted
from rag_r1.protocols.retriever_query import Mode
from rag_r1.retriever.data.arguments import DataArguments
from rag_r1.retriever.training.options import TrainOptions, read_recipe
from rag_r1.training.stages import StagesArguments

#: The module of the command `rag-r1`: so it belongs to the Python that is named, also on another machine.
_CLI = "rag_r1.cli"
#: Overrides by which every checkpoint has a model for the next step, and a training goes on after a kill.
_TRAINING_KEYS = (
    "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra,hf_model]",
    "trainer.resume_mode=auto",
)


def launch_words(machine: tuple[Sequence[str], str], module: str, words: Sequence[str]) -> list[str]:
    """Returns the command `python -m module words` on a machine, which is (words of its launcher, path of
    Python)."""
    launcher, python = machine
    command = [python, "-m", module, *words]
    if any("{command}" in word for word in launcher):
        return [word.replace("{command}", shlex.join(command)) for word in launcher]
    return [*launcher, *command]


def flag_words(values: Mapping[str, Any]) -> list[str]:
    """Options of the retrieval server's programs, which check them, as words: `{"bits": 4}` is `--bits=4`; a
    list repeats its flag; null and false are left out."""
    words = []
    for name, value in values.items():
        flag = f"--{name.replace('_', '-')}"
        for item in value if isinstance(value, list) else [value]:
            if item is True:
                words.append(flag)
            elif item is not None and item is not False:
                words.append(f"{flag}={item}")
    return words


def query_keys(query: Mode) -> list[str]:
    """Returns the overrides of the block rag_r1 by which queries are sent in this mode."""
    if query == "plain":
        return ["rag_r1.retriever.agentic_input=false"]
    keys = ["rag_r1.retriever.agentic_input=true"]
    return keys if query == "agentic" else [*keys, f"rag_r1.retriever.mode={query}"]


@dataclass(frozen=True)
class StepCommands:
    """Builds the commands of a plan's steps. `url`: the retrieval server's address. In the methods `out` is
    the folder that the command writes, `model` the agent's model, and `query` the mode of its queries."""

    plan: LoopPlan
    url: str

    def agent(self, model: str, query: Mode, number: int, out: Path) -> list[str]:
        """Returns the command that trains the agent of round `number` from a model into `out`/stage1."""
        agent = self.plan.agent
        assert agent.recipe is not None  # else the loop has no such step
        overrides = [override.replace("{round}", str(number)) for override in agent.overrides]
        overrides += [*agent.keys, *_TRAINING_KEYS, *query_keys(query)]
        overrides += [f"rag_r1.protocol={agent.protocol}", f"rag_r1.retriever.url={self.url}"]
        overrides += [f"actor_rollout_ref.model.path={hydra_quoted(model)}"]
        stage = StagesArguments(recipe=[agent.recipe], out=out, overrides=overrides)
        return launch_words(agent.machine, _CLI, ["stages", *stage.to_argv()])

    def data(self, model: str, query: Mode, out: Path) -> list[str]:
        """Returns the command that makes the retriever's training data of a round."""
        words = ["retriever", "data", *self.data_arguments(model, query, out).to_argv()]
        return launch_words(self.plan.agent.machine, _CLI, words)

    def data_arguments(self, model: str, query: Mode, out: Path) -> DataArguments:
        """Returns the arguments of `data`. Raises ArgumentsError for options that the command would
        refuse."""
        return DataArguments.from_plain(self._play_arguments(self.plan.data, model, query, out))

    def evaluation(self, model: str, query: Mode, out: Path) -> list[str]:
        """Returns the command that evaluates an agent with the served index."""
        words = ["eval", *self.evaluation_arguments(model, query, out).to_argv()]
        return launch_words(self.plan.agent.machine, _CLI, words)

    def evaluation_arguments(self, model: str, query: Mode, out: Path) -> EvalArguments:
        """Returns the arguments of `evaluation`. Raises ArgumentsError for options that the command would
        refuse."""
        return EvalArguments.from_plain(self._play_arguments(self.plan.evaluation, model, query, out))

    def retriever(self, rows: Path, start: Path | None, out: Path) -> list[str]:
        """Returns the command that trains a retriever on the data in the folder `rows`, from the model
        `start` (None: the recipe's)."""
        assert self.plan.retriever is not None  # else the loop has no such step
        words = ["retriever", "train", *self.retriever_options(rows, start, out).to_argv()]
        machine, processes = self.plan.retriever.machine, self.plan.retriever.processes
        if processes == 1:
            return launch_words(machine, _CLI, words)
        torchrun = ["--nproc-per-node", str(processes), "-m", _CLI]
        return launch_words(machine, "torch.distributed.run", [*torchrun, *words])

    def retriever_options(self, rows: Path, start: Path | None, out: Path) -> TrainOptions:
        """Returns the arguments of `retriever`, those of the recipe included. Raises RecipeError for a recipe
        that cannot be used, and ArgumentsError for options that the command would refuse."""
        retriever = self.plan.retriever
        assert retriever is not None  # else the loop has no such step
        options = {
            **read_recipe(retriever.recipe),
            **retriever.options,
            "rows": rows / "train.jsonl",
            "corpus": rows / "passages.jsonl",
            "out": out,
            "mode": retriever.query,
        }
        return TrainOptions.from_plain({**options, "model": start} if start else options)

    def index(self, encoder: Path, out: Path) -> list[str]:
        """Returns the command that builds the index of a retriever's encoder."""
        index, retriever = self.plan.index, self.plan.retriever
        assert retriever is not None  # else the loop has no such step
        words = ["--corpus", *index.corpus, "--out", str(out), "--backend", "dense"]
        words += ["--encoder", str(encoder), *flag_words(index.options)]
        return launch_words(retriever.machine, "retrieval_server.build_index", words)

    def _play_arguments(
        self, section: DataSpec | EvaluationSpec | None, model: str, query: Mode, out: Path
    ) -> dict[str, Any]:
        """Returns the arguments of a command that plays a section's questions with this agent and this
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
