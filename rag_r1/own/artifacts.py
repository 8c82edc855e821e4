"""The paths of the files that the steps of `rag-r1 own` read and write.

Every step writes into the folder with its name in the folder of the run. The modules of the steps get an
`OwnArtifacts`, from which they read the plan and the paths of what earlier steps have made, and they build
their steps with `own_step`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rag_r1.inference.model_folders import local_model
from rag_r1.io.file_hash import names_and_sizes_hash
from rag_r1.own.episodes import Episodes
from rag_r1.own.plan import OwnPlan
from rag_r1.runs.errors import RunError
from rag_r1.runs.settings import flatten, json_roundtrip
from rag_r1.runs.steps import Step
from rag_r1.tools.documents.corpus import CORPUS
from rag_r1.tools.retrieval.local_server import retrieval_process
from rag_r1.training.stages import finished_model

#: The work of a step: gets the step's folder, writes the results there, and returns facts for the report
#: (rag_r1/runs/steps.py).
Work = Callable[[Path], Mapping[str, Any]]
#: The steps in their order. `evaluation` stands for several steps, such as `evaluation/trained`.
STEP_NAMES = ("documents", "index", "questions", "traces", "sft_data", "sft", "filter", "grpo", "evaluation")


@dataclass(frozen=True)
class OwnArtifacts:
    """A plan, with the paths of the files that its steps write into the folder `out`."""

    plan: OwnPlan
    out: Path

    @cached_property
    def episodes(self) -> Episodes:
        """The arguments and limits of episodes, which are the same in all steps."""
        return Episodes(self.plan)

    @property
    def corpus(self) -> list[Path]:
        """The files with the passages."""
        return [Path(path) for path in self.plan.documents.corpus] or [self.out / "documents" / CORPUS]

    @property
    def index(self) -> Path:
        """The index of the passages."""
        return self.out / "index" / "index"

    def questions(self, split: str) -> Path:
        """The file with the questions of a split, `train` or `test`."""
        return self.out / "questions" / f"{split}.parquet"

    @property
    def sft_model(self) -> Path:
        """The fine-tuned model: a link to the best checkpoint, which is there when the step is finished."""
        return self.out / "sft" / "run" / "model"

    @property
    def grpo_stage(self) -> Path:
        """The folder of the reinforcement learning."""
        return self.out / "grpo" / "stage1"

    @property
    def grpo_model(self) -> Path:
        """The model that came out of the reinforcement learning. Raises RunError if there is none."""
        try:
            return finished_model(self.grpo_stage)
        except (OSError, ValueError) as error:
            marker, folder = self.grpo_stage / "finished", self.grpo_stage.parent
            raise RunError(f"{marker} names no model ({error}): remove {folder}, and run again") from error

    @cached_property
    def untrained_model(self) -> Path:
        """The folder of the untrained model. A model on the Hub is downloaded. Raises RunError if that
        fails."""
        return local_model(str(self.plan.model)).resolve()

    @property
    def grpo_start_model(self) -> Path:
        """The model from which the reinforcement learning starts. Raises RunError like `untrained_model`."""
        return self.untrained_model if self.plan.sft.skip else self.sft_model.resolve()

    @property
    def final_model(self) -> Path:
        """The model that results from the run. Raises RunError if the reinforcement learning has left none,
        and like `untrained_model`."""
        return self.grpo_start_model if self.plan.grpo.skip else self.grpo_model

    @cached_property
    def model_hash(self) -> str:
        """What identifies the untrained model in the settings of steps: a hash of the names and sizes of its
        files or, for a model on a server or on the Hub, its name."""
        if self.plan.policy.url is None and self.plan.model.exists():
            return names_and_sizes_hash(self.untrained_model)
        return str(self.plan.policy.model)

    def retriever(self, step: Path) -> AbstractContextManager[str]:
        """Run a retrieval server with the index for the length of a `with` block, which gets its address.

        The log of the server is written into the folder `step`.
        """
        return retrieval_process(self.index, step / "retrieval.log")


def own_step(
    name: str, settings: Mapping[str, Any], work: Work, results: Sequence[str], needs: Sequence[str] = ()
) -> Step:
    """Make a step with this work. `results` are its files, relative to the folder of the step, and `needs`
    the names of the steps that must be finished before.

    The settings are flattened and converted to JSON types, so that an error about a changed setting can name
    its key.
    """
    return Step(name, flatten(json_roundtrip(settings)), work, results, needs)
