"""The files of the steps of `rag-r1 own`, each in the folder with its name, and the steps themselves."""

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

#: Makes the results of a step in its folder, and returns facts for the report (rag_r1/runs/steps.py).
Work = Callable[[Path], Mapping[str, Any]]
#: The steps in their order; the evaluations have names of their own below `evaluation`.
STEP_NAMES = ("documents", "index", "questions", "traces", "sft_data", "sft", "filter", "grpo", "evaluation")


@dataclass(frozen=True)
class OwnArtifacts:
    """A plan, and the files of its steps in the folder `out`."""

    plan: OwnPlan
    out: Path

    @cached_property
    def episodes(self) -> Episodes:
        """The episodes that the model plays, in all steps."""
        return Episodes(self.plan)

    @property
    def corpus(self) -> list[Path]:
        """The files with the passages."""
        corpora = [Path(path) for path in self.plan.documents.corpus]
        return corpora or [self.out / "documents" / CORPUS]

    @property
    def index(self) -> Path:
        """The index of the passages."""
        return self.out / "index" / "index"

    def questions(self, split: str) -> Path:
        """The file with the questions of a split, `train` or `test`."""
        return self.out / "questions" / f"{split}.parquet"

    @property
    def sft_model(self) -> Path:
        """The fine-tuned model; a link to the best checkpoint's."""
        return self.out / "sft" / "run" / "model"

    @property
    def grpo_stage(self) -> Path:
        """The folder of the reinforcement learning."""
        return self.out / "grpo" / "stage1"

    @property
    def grpo_model(self) -> Path:
        """The model that the reinforcement learning has made. Raises RunError if there is none."""
        try:
            return finished_model(self.grpo_stage)
        except (OSError, ValueError) as error:
            marker, folder = self.grpo_stage / "finished", self.grpo_stage.parent
            raise RunError(f"{marker} names no model ({error}): remove {folder}, and run again") from error

    @cached_property
    def untrained_model(self) -> Path:
        """The folder of the untrained model, which is downloaded if it has a name on the Hub."""
        return local_model(str(self.plan.model)).resolve()

    @property
    def grpo_start_model(self) -> Path:
        """The model from which the reinforcement learning starts."""
        return self.untrained_model if self.plan.sft.skip else self.sft_model.resolve()

    @property
    def final_model(self) -> Path:
        """The last model of the run."""
        return self.grpo_start_model if self.plan.grpo.skip else self.grpo_model

    @cached_property
    def model_hash(self) -> str:
        """The untrained model in settings: a hash of the names and sizes of its files, or, for one on a
        server or the Hub, its name."""
        if self.plan.policy.url is None and self.plan.model.exists():
            return names_and_sizes_hash(self.untrained_model)
        return str(self.plan.policy.model)

    def retriever(self, step: Path) -> AbstractContextManager[str]:
        """A context manager: yields the address of a retrieval server over the index. `step`: the folder for
        its log."""
        return retrieval_process(self.index, step / "retrieval.log")


def own_step(
    name: str, settings: Mapping[str, Any], work: Work, results: Sequence[str], needs: Sequence[str] = ()
) -> Step:
    """A step whose settings are flat and as JSON has them, so that a change is named by its key."""
    return Step(name, flatten(json_roundtrip(settings)), work, results, needs)
