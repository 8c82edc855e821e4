"""Declares the arguments of `rag-r1 pipeline`.

They are separate from the steps, which need torch, so that `--help` works without it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from rag_r1.demo.policy import PROTOCOLS
from rag_r1.options.arguments.overrides import is_override
from rag_r1.options.command_line import Above0, Arguments, Positive, Share, Variable, argument
from rag_r1.options.server_address import Address
from rag_r1.options.types import Constraint
from rag_r1.runs.start_checks import CHECK_ONLY

#: The steps in their order. Each writes into a folder with its name.
STEP_NAMES = tuple("world base traces sft_data sft filter grpo grpo_without_sft evaluation".split())
#: The value of `--base` with which the base is pretrained.
SCRATCH = "scratch"
#: The same number as pretrain.STEPS, which cannot be imported here without torch.
BASE_STEPS = 2100


class PipelineArguments(Arguments):
    """The arguments of `rag-r1 pipeline`."""

    out: Path = argument("folder of the run; the same command resumes an interrupted run", "DIR")
    seed: int = argument("seed of the world, the base, the teacher and every training", default=0)
    protocol: Literal[PROTOCOLS] = argument("protocol of the policy", default="rag_r1_mq")
    questions: Positive = argument("number of training questions", "N", default=4000)
    held_out: Positive = argument(
        "number of held-out questions, about names that do not occur in training", "N", default=240
    )
    base: str = argument(
        "base model: `scratch` pretrains it from random weights, which takes half an hour on a core; or "
        "the folder of an existing one, such as RUN/base/policy",
        "BASE",
        default=SCRATCH,
    )
    base_steps: Annotated[int, Field(ge=2), Constraint("a whole number of at least 2")] = argument(
        "number of pretraining steps", "N", default=BASE_STEPS
    )
    wrong: Share = argument("share of questions that the embedded teacher answers wrongly", default=0.3)
    teacher_url: Address | None = argument(
        "address of a real teacher, an OpenAI-compatible endpoint, up to and including /v1",
        "URL",
        default=None,
    )
    teacher_model: str | None = argument("name of the teacher's model at --teacher-url", "NAME", default=None)
    api_key_env: Variable = argument(
        "environment variable with the endpoint's key", "NAME", default="OPENAI_API_KEY"
    )
    sft_epochs: Positive = argument("passes over the SFT samples", "N", default=2)
    sft_batch: Positive = argument("SFT samples in a step", "N", default=32)
    sft_set: list[str] = argument(
        "a Hydra override for SFT (keys of the recipe rag_r1/sft/demo); may be repeated",
        "key=value",
        default=[],
    )
    filter_questions: Positive = argument("number of training questions that are filtered", "N", default=1200)
    filter_share: Share = argument(
        "share that is kept of the questions answered right at the first try", default=0.25
    )
    grpo_steps: Positive = argument("steps of each reinforcement learning", "N", default=18)
    grpo_set: list[str] = argument(
        "a Hydra override for both GRPO trainings (keys of the recipe demo/grpo); may be repeated",
        "key=value",
        default=[],
    )
    without_sft: Literal["yes", "no"] = argument(
        "whether to train GRPO from the base too, without SFT", default="yes"
    )
    until: Literal[STEP_NAMES] = argument("last step to run", default=STEP_NAMES[-1])
    timeout: Above0 = argument("time limit of a reinforcement learning", "SECONDS", default=7200.0)
    check_only: bool = argument(CHECK_ONLY, default=False)

    @property
    def base_folder(self) -> Path | None:
        """The folder of an existing base; None if it is to be pretrained."""
        return None if self.base == SCRATCH else Path(self.base)

    @model_validator(mode="after")
    def _checked(self) -> PipelineArguments:
        faults = []
        if (self.teacher_url is None) != (self.teacher_model is None):
            faults.append("--teacher-url and --teacher-model belong together")
        for flag, overrides in (("--sft-set", self.sft_set), ("--grpo-set", self.grpo_set)):
            wrong = (override for override in overrides if not is_override(override))
            faults += [f"{flag} {override!r} is not key=value or ~key" for override in wrong]
        if faults:
            raise ValueError("; ".join(faults))
        return self

    @model_validator(mode="after")
    def _flags_fit_teacher(self) -> PipelineArguments:
        if self.teacher_url is None:
            self.refuse_unused(["api_key_env"], "the embedded teacher has no key")
        else:
            self.refuse_unused(["wrong"], "only the embedded teacher answers wrongly on purpose")
        return self

    @model_validator(mode="after")
    def _flags_fit_base(self) -> PipelineArguments:
        if self.base_folder is not None:
            self.refuse_unused(["base_steps"], "--base names a model that is pretrained already")
        return self
