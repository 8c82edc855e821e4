"""`rag-r1 own`: runs the unfinished steps of a plan, writes the report, and prints the command that chats.

    OUT/plan.yaml    the plan (plan_file.py), which is read again when the run is resumed
    OUT/<step>/      the files of a step, and a marker that says whether it is finished (rag_r1/runs/steps.py)
    OUT/report.*     the results (results/report.py)

The command can be interrupted at any time and run again: finished steps are skipped, and each unfinished one
resumes from its own files.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from os.path import realpath
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from pydantic import model_validator
from pydantic_settings import CliPositionalArg

from rag_r1.io.atomic_files import write_text
from rag_r1.io.unknown_value import UNKNOWN
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import (
    Above0,
    Arguments,
    From0,
    Positive,
    argument,
    is_override,
    read_arguments,
)
from rag_r1.options.import_path import add_working_directory
from rag_r1.options.out_folder import check_out
from rag_r1.options.sections import PlanError
from rag_r1.options.server_address import Address
from rag_r1.options.settings_file import recorded_settings
from rag_r1.own.artifacts import STEP_NAMES, OwnArtifacts
from rag_r1.own.plan import OwnPlan
from rag_r1.own.plan_file import PLAN, plan_text, read_plan
from rag_r1.runs.start_checks import CHECK_ONLY, StartChecks, StartError
from rag_r1.runs.step_loop import run_steps
from rag_r1.runs.steps import PipelineFolder, Step

COMMAND = "rag-r1 own"
#: The steps that `--skip` accepts.
SKIPPABLE_STEPS = ("sft", "filter", "grpo", "evaluation")
_DESCRIPTION = """\
From a folder of documents to an agent that was trained on it: passages, an index, questions that a teacher
writes and a reader verifies, the teacher's traces, SFT, a filter by difficulty, GRPO, and an evaluation
against the untrained model and plain RAG. The last line printed is the command that chats with the result.
Run again, the same command goes on where it was interrupted.

example:
  rag-r1 own manuals --teacher https://api.example.org/v1 --teacher-model big-model \\
      --model models/smollm2-135m --out outputs/own --check-only

The whole plan stands in OUT/plan.yaml, which the first start writes from the flags; words section.key=value
change any key of it: grpo.steps=60, sft.overrides=[trainer.total_epochs=2].
"""


class OwnArguments(Arguments):
    """The arguments of `rag-r1 own`: the most common keys of a plan, and how it is run."""

    words: CliPositionalArg[list[str]] = argument(
        "the folder of documents, and section.key=value for any key of the plan", "FOLDER", default=[]
    )
    out: Path = argument("folder of the run; the same command resumes an interrupted run", "DIR")
    plan: Path | None = argument("a plan of yours, in the form of OUT/plan.yaml", "FILE", default=None)
    model: str | None = argument("the model that is trained: a folder, or a name on the Hub", default=None)
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
        return self

    @model_validator(mode="after")
    def _last_step_is_run(self) -> OwnArguments:
        if self.until in self.skipped and self.until != STEP_NAMES[-1]:  # the default
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
        """Return the values of the other arguments by section and key of the plan, if they were set."""
        sections: dict[str, Mapping[str, Any]] = {
            "documents": {"folder": self.folders[0] if self.folders else None},
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


@command_main(RuntimeError, OSError, ValueError, resumable=True)
def main(arguments: Sequence[str] | None = None) -> int:
    """Run `rag-r1 own`; returns 0 when all steps are finished, 1 after an error, and 130 after Ctrl-C."""
    args = read_arguments(OwnArguments, arguments, prog=COMMAND, description=_DESCRIPTION, check=check_start)
    artifacts = check_start(args)
    from rag_r1.own.forecast import forecast_of

    folder = PipelineFolder(artifacts.out)
    check_settings(artifacts, folder)
    for line in forecast_of(artifacts, folder).lines:
        print(line)
    if args.check_only:
        print(f"all checks passed: the steps to {args.until} would be taken in {args.out}")
        return 0
    with recorded_settings(COMMAND, args):
        run(artifacts, args.until)
    return 0


def check_start(args: OwnArguments) -> OwnArtifacts:
    """Read the plan and check it; returns it with its paths. Raises StartError with all problems."""
    if args.out is UNKNOWN:  # then what is checked is a run that has not begun
        with TemporaryDirectory() as folder:
            return check_start(args.changed(out=Path(folder) / "run"))
    # Imported here, because it needs optional packages, and `--help` must work without them.
    from rag_r1.own.checks import check_documents, check_plan, with_teacher_name

    add_working_directory()
    with StartChecks() as checks:
        checks.run(check_out, args.out, COMMAND)
        if (plan := checks.run(plan_of, args)) is not None:
            named_plan = checks.run(with_teacher_name, plan)
            artifacts = OwnArtifacts(named_plan or plan, Path(realpath(args.out)))
            folder = PipelineFolder(artifacts.out)
            checks.run(check_plan, artifacts, folder, knows_teacher=named_plan is not None)
            # The forecast reads the documents, too, but only if nothing is wrong and questions are written.
            if checks.problems or args.is_partial or (args.check_only and not plan.writes_questions):
                checks.run(check_documents, artifacts, folder)
    return artifacts  # always bound here: without a plan, StartChecks has raised at the end of the block


def plan_of(args: OwnArguments) -> OwnPlan:
    """Read the plan that the arguments describe.

    The plan comes from the user's file (`--plan`), or from the plan.yaml of an interrupted run, or consists
    of the defaults. The flags and words of the command line then change it, and if it names a model, its
    recipes are chosen. Raises StartError with all problems.
    """
    from rag_r1.own.checks import other_problems
    from rag_r1.own.sizes import with_recipes

    earlier_plan = args.out / PLAN
    path = args.plan or (earlier_plan if earlier_plan.is_file() else None)
    try:
        plan = read_plan(path, args.flags(), args.changes)
    except PlanError as error:
        problems = error.problems
        if error.readable is not None:
            artifacts = OwnArtifacts(error.readable, Path(realpath(args.out)))
            problems = [*problems, *other_problems(artifacts, error.wrong_sections)]
        raise StartError(problems) from error
    return plan if plan.policy.model is None else with_recipes(plan)


def check_settings(artifacts: OwnArtifacts, folder: PipelineFolder) -> None:
    """Raise RunError with the name of the key if a setting of a step has changed since it was begun."""
    for step in steps_until(artifacts, folder, STEP_NAMES[-1]):
        folder.status(step)


def run(artifacts: OwnArtifacts, until: str) -> None:
    """Run the unfinished steps up to and including `until`.

    After the last step of all, write the report and print the command that chats. Raises RunError, and the
    errors of the steps.
    """
    from rag_r1.own.chat import chat_lines
    from rag_r1.own.results.report import REPORT, make_report

    out, plan = artifacts.out, artifacts.plan
    with PipelineFolder.held(out) as folder:
        write_text(out / PLAN, plan_text(plan), private=True)
        run_steps(folder, steps_until(artifacts, folder, until))
        if until != STEP_NAMES[-1]:
            print(f"ended after {until}: without --until the same command goes on")
            return
        if not plan.evaluation.skip:
            make_report(artifacts, folder)
            print(f"\n{(out / REPORT).read_text(encoding='utf-8')}\nreport: {out / REPORT}")
    print("\n".join(chat_lines(artifacts)))


def steps_until(artifacts: OwnArtifacts, folder: PipelineFolder, until: str) -> list[Step]:
    """Return the steps of the plan up to and including `until`, which is one of STEP_NAMES."""
    from rag_r1.own.data_steps import data_steps
    from rag_r1.own.evaluation_steps import evaluation_steps
    from rag_r1.own.training_steps import training_steps

    steps = [*data_steps(artifacts, folder), *training_steps(artifacts), *evaluation_steps(artifacts)]
    names = STEP_NAMES[: STEP_NAMES.index(until) + 1]
    return [step for step in steps if step.name.partition("/")[0] in names]


if __name__ == "__main__":
    sys.exit(main())
