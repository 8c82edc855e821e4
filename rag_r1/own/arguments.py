"""The command-line arguments of `rag-r1 own`, and their conversion to keys of a plan (plan_file.py)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import model_validator
from pydantic_settings import CliPositionalArg

from rag_r1.options.arguments.overrides import is_override
from rag_r1.options.command_line import Above0, Arguments, Filled, From0, Positive, argument
from rag_r1.options.server_address import Address
from rag_r1.own.artifacts import STEP_NAMES
from rag_r1.runs.start_checks import CHECK_ONLY

#: The steps that `--skip` accepts.
SKIPPABLE_STEPS = ("sft", "filter", "grpo", "evaluation")


class OwnArguments(Arguments):
    """The arguments of `rag-r1 own`: the most common keys of a plan, and how it is run."""

    words: CliPositionalArg[list[str]] = argument(
        "the folder of documents, and section.key=value for any key of the plan", "FOLDER", default=[]
    )
    out: Path = argument("folder of the run; the same command resumes an interrupted run", "DIR")
    plan: Path | None = argument("a plan of yours, in the form of OUT/plan.yaml", "FILE", default=None)
    model: Filled | None = argument("the model that is trained: a folder, or a name on the Hub", default=None)
    teacher: Address | None = argument(
        "address of the model that writes questions and plays traces, an OpenAI-compatible server, up to and "
        "including /v1; its key is read from OPENAI_API_KEY",
        "URL",
        default=None,
    )
    teacher_model: str | None = argument(
        "name of the model at --teacher (default: the only one that the server lists)", "NAME", default=None
    )
    reader: Address | None = argument(
        "address of the model that verifies the questions (default: the teacher's); its key is read from "
        "READER_API_KEY",
        "URL",
        default=None,
    )
    reader_model: str | None = argument("model at --reader (default: the teacher)", "NAME", default=None)
    price_in: From0 | None = argument("the teacher's price of a million prompt tokens", "P", default=None)
    price_out: From0 | None = argument("the teacher's price of a million generated tokens", "P", default=None)
    max_cost: Above0 | None = argument(
        "stop writing questions and traces at this cost, in the currency of the prices", "COST", default=None
    )
    questions: list[Path] = argument(
        "questions of your own to train on, instead of the teacher's (any form that `rag-r1 eval` reads)",
        ("FILE", ...),
        default=[],
    )
    test_questions: list[Path] = argument("held-out questions of your own", ("FILE", ...), default=[])
    per_kind: Positive | None = argument("most questions of each kind", "N", default=None)
    platform: Literal["cpu", "gpu", "gpu_sdpa"] | None = argument(
        "what it trains on (default: this machine's); gpu_sdpa: a GPU without flash-attn", default=None
    )
    recipe: str | None = argument(
        "recipe of the reinforcement learning (default: by the size of the model)", "RECIPE", default=None
    )
    sft_recipe: str | None = argument("recipe of SFT (default: by the model's size)", "RECIPE", default=None)
    steps: Positive | None = argument("steps of the reinforcement learning", "N", default=None)
    skip: list[Literal[SKIPPABLE_STEPS]] = argument("steps to leave out", ("STEP", ...), default=[])
    evaluate_only: bool = argument(
        "train nothing: evaluate the model as it is, with a search card", default=False
    )
    seed: int | None = argument("seed of everything that is chosen at random", "N", default=None)
    until: Literal[STEP_NAMES] = argument("last step to run", default=STEP_NAMES[-1])
    check_only: bool = argument(f"{CHECK_ONLY}; with the forecast of cost and time", default=False)

    @model_validator(mode="after")
    def _one_folder(self) -> OwnArguments:
        if len(self.folders) > 1:
            raise ValueError(f"{', '.join(self.folders)}: give one FOLDER, or quote its name")
        if not all(map(str.strip, self.folders)):
            raise ValueError("FOLDER must be a path, not ''")
        return self

    @model_validator(mode="after")
    def _last_step_is_run(self) -> OwnArguments:
        if self.until in self.skipped and self.until != STEP_NAMES[-1]:  # the default may be skipped
            flag = "--skip" if self.until in self.skip else "--evaluate-only"
            raise ValueError(f"--until {self.until}: {flag} leaves out that step: give another step")
        return self

    @property
    def skipped(self) -> set[str]:
        """The steps that the flags leave out."""
        return {*self.skip, *(("sft", "filter", "grpo") if self.evaluate_only else ())}

    @property
    def folders(self) -> list[str]:
        """The words that are no `section.key=value`: the folder of documents, if there is one."""
        return [word for word in self.words if not is_override(word)]

    @property
    def changes(self) -> list[str]:
        """The words `section.key=value`, each of which changes a key of the plan."""
        return [word for word in self.words if is_override(word)]

    def flags(self) -> dict[str, dict[str, Any]]:
        """Return the values that the flags and FOLDER set, by section and key of the plan. The words in
        `changes` are not among them."""
        sections: dict[str, Mapping[str, Any]] = {
            "documents": {"folder": next(filter(str.strip, self.folders), None)},
            "teacher": {
                "url": self.teacher,
                "model": self.teacher_model,
                "price_in": self.price_in,
                "price_out": self.price_out,
                "max_cost": self.max_cost,
            },
            "reader": {"url": self.reader, "model": self.reader_model},
            "questions": {
                "train": [*map(str, self.questions)] or None,
                "test": [*map(str, self.test_questions)] or None,
                "per_kind": self.per_kind,
            },
            "policy": {"model": self.model, "platform": self.platform},
            "grpo": {"recipe": self.recipe, "steps": self.steps},
            "sft": {"recipe": self.sft_recipe},
            "run": {"seed": self.seed},
        }
        flags = {
            section: {key: value for key, value in values.items() if value is not None}
            for section, values in sections.items()
        }
        for step in self.skipped:  # each of these steps has a section with its name
            flags.setdefault(step, {})["skip"] = True
        return {section: values for section, values in flags.items() if values}
