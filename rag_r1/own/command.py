"""`rag-r1 own`: runs the unfinished steps of a plan, writes the report, and prints the command that chats.

    OUT/plan.yaml    the plan (plan_file.py), which is read again when the run is resumed
    OUT/<step>/      the files of a step, and a marker that says whether it is finished (rag_r1/runs/steps.py)
    OUT/report.*     the results (results/report.py)

The command can be interrupted at any time and run again: finished steps are skipped, and each unfinished one
resumes from its own files.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from os.path import realpath
from pathlib import Path
from tempfile import TemporaryDirectory

from rag_r1.io.atomic_files import write_text
from rag_r1.io.unknown_value import UNKNOWN
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import read_arguments
from rag_r1.options.import_path import add_working_directory
from rag_r1.options.out_folder import check_out
from rag_r1.options.sections import PlanError
from rag_r1.options.settings_file import recorded_settings
from rag_r1.own.arguments import OwnArguments
from rag_r1.own.artifacts import STEP_NAMES, OwnArtifacts
from rag_r1.own.plan import OwnPlan
from rag_r1.own.plan_file import PLAN, plan_text, read_plan
from rag_r1.runs.start_checks import StartChecks, StartError
from rag_r1.runs.step_loop import check_steps, run_steps
from rag_r1.runs.steps import PipelineFolder, Step

COMMAND = "rag-r1 own"
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


@command_main(RuntimeError, OSError, ValueError, resumable=True)
def main(arguments: Sequence[str] | None = None) -> int:
    """Run `rag-r1 own`. Returns 0 when the steps up to --until are finished or, with --check-only, when the
    checks have passed; 1 after an error, and 130 after Ctrl-C."""
    args = read_arguments(OwnArguments, arguments, prog=COMMAND, description=_DESCRIPTION, check=check_start)
    artifacts = check_start(args)
    from rag_r1.own.forecast import forecast_of

    for line in forecast_of(artifacts, PipelineFolder(artifacts.out)).lines:
        print(line)
    if args.check_only:
        print(f"all checks passed: the steps to {args.until} would be taken in {args.out}")
        return 0
    with recorded_settings(COMMAND, args):
        run(artifacts, args.until)
    return 0


def check_start(args: OwnArguments) -> OwnArtifacts:
    """Read the plan and check it. Returns it with the paths of its files; raises StartError with all
    problems."""
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
            checks.run(check_steps, artifacts.out, *step_makers(artifacts, folder))
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


def run(artifacts: OwnArtifacts, until: str) -> None:
    """Run the unfinished steps up to and including `until`.

    After the last step of all, write the report and print the command that chats. Raises RunError, and the
    errors of the steps.
    """
    from rag_r1.own.chat import chat_lines
    from rag_r1.own.results.report import REPORT, make_report

    out, plan = artifacts.out, artifacts.plan
    with PipelineFolder.locked(out) as folder:
        write_text(out / PLAN, plan_text(plan), private=True)
        run_steps(folder, steps_until(artifacts, folder, until))
        if until != STEP_NAMES[-1]:
            print(f"ended after {until}: without --until the same command goes on")
            return
        if not plan.evaluation.skip:
            make_report(artifacts, folder)
            print(f"\n{(out / REPORT).read_text(encoding='utf-8')}\nreport: {out / REPORT}")
    print("\n".join(chat_lines(artifacts)))


def step_makers(artifacts: OwnArtifacts, folder: PipelineFolder) -> list[Callable[[], list[Step]]]:
    """Return the functions that make the steps of the data, of the trainings and of the evaluation."""
    from rag_r1.own.data_steps import data_steps
    from rag_r1.own.evaluation_steps import evaluation_steps
    from rag_r1.own.training_steps import training_steps

    return [
        partial(data_steps, artifacts, folder),
        partial(training_steps, artifacts),
        partial(evaluation_steps, artifacts),
    ]


def steps_until(artifacts: OwnArtifacts, folder: PipelineFolder, until: str) -> list[Step]:
    """Return the steps of the plan up to and including `until`, which is one of STEP_NAMES."""
    data, training, evaluation = (make() for make in step_makers(artifacts, folder))
    by_name = {step.name: [step] for step in (*data, *training)}
    by_name["evaluation"] = evaluation
    return [step for name in STEP_NAMES[: STEP_NAMES.index(until) + 1] for step in by_name.get(name, ())]


if __name__ == "__main__":
    sys.exit(main())
