"""Knows where the steps of a pipeline keep their results: the prompt, the models and the index.

Each step writes into the folder with its name in the folder of the pipeline (steps.py). `retriever` serves
the index to a step.
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
    """The arguments of a pipeline, with the paths of the results in the folder `out`."""

    args: PipelineArguments
    out: Path

    @property
    def protocol(self) -> Protocol:
        """The protocol of the policy, with the pipeline's prompt."""
        return pipeline_protocol(self.args.protocol)

    @property
    def prompt(self) -> Path:
        """The file with the prompt, which the commands read."""
        return self.out / "world" / "prompt.txt"

    @property
    def base(self) -> Path:
        """The Hugging Face folder of the base model."""
        return self.out / "base" / "policy"

    @property
    def sft_model(self) -> Path:
        """The fine-tuned model, which is a link to the best checkpoint."""
        return self.out / "sft" / "run" / "model"

    def trained(self, step: str) -> Path:
        """Return the model of a finished reinforcement learning. Raises RunError if there is none."""
        stage = self.out / step / "stage1"
        try:
            return finished_model(stage)
        except (OSError, ValueError) as error:
            raise RunError(f"{stage / 'finished'} does not name a model ({error}): remove {stage}") from error

    @property
    def trainings(self) -> list[str]:
        """The names of the steps that train by reinforcement learning."""
        return ["grpo", "grpo_without_sft"] if self.args.without_sft == "yes" else ["grpo"]

    @property
    def models(self) -> dict[str, Path]:
        """The models that are compared, by the step that makes them. Raises RunError as `trained` does."""
        trained = {step: self.trained(step) for step in self.trainings}
        return {"base": self.base, "sft": self.sft_model, **trained}

    def retriever(self, step: Path) -> AbstractContextManager[str]:
        """Run a retrieval server for the world for the length of a `with` block, which gets its address.

        The log of the server is written into the folder `step`.
        """
        return retrieval_process(self.out / "world" / "index", step / "retrieval.log")
