"""`rag-r1 pipeline`: runs the unfinished steps and writes the report."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from rag_r1.config.recipes import Recipe
from rag_r1.demo.pipeline.arguments import STEP_NAMES, PipelineArguments
from rag_r1.inference.model_folders import check_weights
from rag_r1.options.arguments.overrides import is_override
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import read_arguments
from rag_r1.options.out_folder import check_out
from rag_r1.options.settings_file import recorded_settings
from rag_r1.runs.errors import RunError
from rag_r1.runs.start_checks import StartChecks, check_packages
from rag_r1.runs.step_loop import check_steps, run_steps
from rag_r1.runs.steps import PipelineFolder, Step

_DESCRIPTION = """\
RAG-R1's steps in miniature, on this machine: an invented world, a tiny model that has never seen a search, a
teacher's traces, SFT, a filter by difficulty and GRPO, with GRPO without SFT beside it, and a report of what
each step added. Run again, the same command goes on where it was interrupted.

example:
  rag-r1 pipeline --out outputs/pipeline
"""


# The steps run other commands, whose errors for users are all subclasses of these.
@command_main(RuntimeError, OSError, ValueError, resumable=True)
def main(arguments: Sequence[str] | None = None) -> int:
    """Run `rag-r1 pipeline`; returns 0 when all steps are finished, 1 after an error, 130 after Ctrl-C."""
    args = read_arguments(
        PipelineArguments, arguments, prog="rag-r1 pipeline", description=_DESCRIPTION, check=check_start
    )
    check_start(args)
    if args.check_only:
        print(f"all checks passed: the steps to {args.until} would be taken in {args.out}")
        return 0
    with recorded_settings("rag-r1 pipeline", args):
        run(args)
    return 0


def check_start(args: PipelineArguments) -> None:
    """Check the folder, the base, the overrides of all trainings, and the endpoint of a real teacher.

    Raises StartError with all problems.
    """
    # Imported here and in `run`, because these need optional packages, and `--help` must work without them.
    from rag_r1.demo.pipeline.limits import grpo_overrides
    from rag_r1.rollouts.server_check import ModelServer, check_replies
    from rag_r1.training.composition import check_composition, check_overrides
    from rag_r1.training.stages import check_stage_keys

    # A malformed override is refused by the arguments, and the others are checked here.
    overrides = {name: [*filter(is_override, getattr(args, name))] for name in ("sft_set", "grpo_set")}
    args = args.model_copy(update=overrides)
    with StartChecks() as checks:
        checks.run(check_packages, "rag-r1 pipeline", "verl", "vllm", "bm25s")
        checks.run(check_out, args.out, "rag-r1 pipeline")
        checks.run(_check_base, args)
        checks.run(_check_world, args)
        checks.run(check_overrides, Recipe.find("rag_r1/sft/demo"), args.sft_set)
        # Types are checked for the user's overrides only, since that takes an import of veRL.
        check_grpo = check_overrides if args.grpo_set else check_composition
        checks.run(check_grpo, Recipe.find("demo/grpo"), grpo_overrides(args))
        checks.run(check_stage_keys, args.grpo_set)
        checks.run(check_steps, args.out, partial(_steps, args))
        if args.teacher_url is not None and args.teacher_model is not None:
            flags = {"name": "teacher", "flag": "--teacher-url", "model_flag": "--teacher-model"}
            server = ModelServer(args.teacher_url, args.api_key_env, args.teacher_model, **flags)
            checks.run(check_replies, server)


def _check_world(args: PipelineArguments) -> None:
    """Raise RunError if the worlds have fewer questions than `args` asks for."""
    from rag_r1.demo.world import demo_data

    try:
        demo_data(args.seed, args.questions, args.held_out)
    except ValueError as error:
        raise RunError(f"--questions or --held-out: {error}") from error


def _check_base(args: PipelineArguments) -> None:
    """Raise RunError if the folder of `--base` has no usable weights, or no usable tokenizer."""
    from rag_r1.inference.tokenizer import check_tokenizer

    folder = args.base_folder
    if folder is None:
        return
    if not (folder / "config.json").is_file():
        raise RunError(
            f"--base {args.base}: no policy in {folder} (config.json is missing): give the folder of one, or "
            "leave it out"
        )
    check_weights(folder)
    check_tokenizer(folder, "give another folder", "--base")


def _steps(args: PipelineArguments) -> list[Step]:
    """Return the steps that the arguments require. Raises the errors of `Pipeline.steps`."""
    from rag_r1.demo.pipeline.steps import Pipeline

    return Pipeline(args, args.out.resolve()).steps()


def run(args: PipelineArguments) -> None:
    """Run the unfinished steps, and write the report after the last one.

    Raises RunError, and the errors of the steps.
    """
    from rag_r1.demo.pipeline.report import make_report, markdown

    out = args.out.resolve()
    with PipelineFolder.locked(out) as folder:
        run_steps(folder, _steps(args))
        if args.until == STEP_NAMES[-1]:
            report = make_report(folder, {"protocol": args.protocol, "seed": args.seed})
            picture = out / "report.png"  # is not drawn without matplotlib
            print(f"\n{markdown(report)}" + (f"\n\nPicture: {picture}" if picture.exists() else ""))


if __name__ == "__main__":
    sys.exit(main())
