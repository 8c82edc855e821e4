"""Says where the steps of a pipeline leave their results for each other: prompt, models, the world's index.

Each has one place in the pipeline's folder, under the name of the step that makes it (steps.py).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from rag_r1.demo.pipeline.arguments import PipelineArguments
from rag_r1.demo.pipeline.pretraining_data import pipeline_protocol
from rag_r1.protocols import Protocol
from rag_r1.runs.errors import RunError
from rag_r1.tools.retrieval.local_server import retrieval_process
from rag_r1.training.stages import finished_model


@dataclass(frozen=True)
class PipelineArtifacts:
    """The results of a pipeline with these arguments in the folder `out`."""

    args: PipelineArguments
    out: Path

    @property
    def protocol(self) -> Protocol:
        """The dialect, with the pipeline's prompt."""
        return pipeline_protocol(self.args.protocol)

    @property
    def prompt(self) -> Path:
        """The prompt as a file, for the commands."""
        return self.out / "world" / "prompt.txt"

    @property
    def base(self) -> Path:
        """The base, a Hugging Face folder."""
        return self.out / "base" / "policy"

    @property
    def sft_model(self) -> Path:
        """The fine-tuned model; a link to the best checkpoint's."""
        return self.out / "sft" / "run" / "model"

    def trained(self, step: str) -> Path:
        """The model of a finished reinforcement learning. Raises RunError if there is none."""
        stage = self.out / step / "stage1"
        try:
            return finished_model(stage)
        except (OSError, ValueError) as error:
            raise RunError(f"{stage / 'finished'} does not name a model ({error}): remove {stage}") from error

    @property
    def trainings(self) -> list[str]:
        """The names of the steps that are reinforcement learnings."""
        return ["grpo", "grpo_without_sft"] if self.args.without_sft == "yes" else ["grpo"]

    @property
    def models(self) -> dict[str, Path]:
        """The models that are compared, by the step that makes them."""
        trained = {step: self.trained(step) for step in self.trainings}
        return {"base": self.base, "sft": self.sft_model, **trained}

    def retriever(self, step: Path) -> AbstractContextManager[str]:
        """A retrieval server for the world, which runs for the length of a `with` block and gives its
        address."""
        return retrieval_process(self.out / "world" / "index", step / "retrieval.log")
