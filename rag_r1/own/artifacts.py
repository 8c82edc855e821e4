"""Where the steps of `rag-r1 own` leave their results: the folder of each has its name."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rag_r1.inference.model_folders import local_model
from rag_r1.io.file_hash import names_and_sizes_hash
from rag_r1.own.episodes import Episodes
from rag_r1.own.plan import OwnPlan
from rag_r1.runs.errors import RunError
from rag_r1.tools.documents.corpus import CORPUS
from rag_r1.tools.retrieval.local_server import retrieval_process
from rag_r1.training.stages import finished_model

#: The steps in their order; the evaluations have names of their own below `evaluation`.
STEP_NAMES = ("documents", "index", "questions", "traces", "sft_data", "sft", "filter", "grpo", "evaluation")


@dataclass(frozen=True)
class OwnArtifacts:
    """Those of a plan in the folder `out`."""

    plan: OwnPlan
    out: Path

    @cached_property
    def episodes(self) -> Episodes:
        """How the model plays, in all steps."""
        return Episodes(self.plan)

    @property
    def corpus(self) -> list[Path]:
        """The files with the passages."""
        corpora = [Path(path) for path in self.plan.documents.corpus]
        return corpora or [self.out / "documents" / CORPUS]

    @property
    def index(self) -> Path:
        """The index over them."""
        return self.out / "index" / "index"

    def questions(self, split: str) -> Path:
        """The questions of a split, `train` or `test`."""
        return self.out / "questions" / f"{split}.parquet"

    @property
    def sft_model(self) -> Path:
        """The fine-tuned model; a link to the best checkpoint's."""
        return self.out / "sft" / "run" / "model"

    @property
    def stage(self) -> Path:
        """The folder of the reinforcement learning."""
        return self.out / "grpo" / "stage1"

    @property
    def trained(self) -> Path:
        """The model that the reinforcement learning has left. Raises RunError if there is none."""
        try:
            return finished_model(self.stage)
        except (OSError, ValueError) as error:
            raise RunError(
                f"{self.stage / 'finished'} names no model ({error}): remove {self.stage.parent}"
            ) from error

    @cached_property
    def start(self) -> Path:
        """The folder of the untrained model, which is downloaded if it has a name on the Hub."""
        return local_model(str(self.plan.model)).resolve()

    @property
    def before_grpo(self) -> Path:
        """The model from which the reinforcement learning starts."""
        return self.start if self.plan.sft.skip else self.sft_model.resolve()

    @property
    def final(self) -> Path:
        """The last model."""
        return self.before_grpo if self.plan.grpo.skip else self.trained

    @cached_property
    def model_hash(self) -> str:
        """The untrained model, for settings: by names and sizes of its files, or by its name."""
        if self.plan.policy.url is not None:
            return str(self.plan.policy.model)
        return names_and_sizes_hash(self.start) if self.plan.model.exists() else str(self.plan.policy.model)

    def retriever(self, step: Path) -> AbstractContextManager[str]:
        """The retrieval server over the index, for the length of a block; its address."""
        return retrieval_process(self.index, step / "retrieval.log")
