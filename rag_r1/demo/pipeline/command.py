"""`rag-r1 pipeline`: runs the unfinished steps and writes the report."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rag_r1.demo.pipeline.arguments import STEP_NAMES, PipelineArguments
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import read_arguments
from rag_r1.options.settings_file import recorded_settings
from rag_r1.runs.processes import mark_children, stop_leftovers
from rag_r1.runs.steps import PipelineFolder

_DESCRIPTION = """\
RAG-R1's steps in miniature, on this machine: an invented world, a tiny model that has never seen a search, a
teacher's traces, SFT, a filter by difficulty and GRPO, with GRPO without SFT beside it, and a report of what
each step added. Run again, the same command goes on where it was interrupted.

example:
  rag-r1 pipeline --out outputs/pipeline
"""


@command_main(RuntimeError, OSError, ValueError, resumable=True)
def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 when all steps are done, 1 with the reason if not, 130 after Ctrl-C."""
    args = read_arguments(PipelineArguments, arguments, prog="rag-r1 pipeline", description=_DESCRIPTION)
    with recorded_settings("rag-r1 pipeline", args):
        run(args)
    return 0


def run(args: PipelineArguments) -> None:
    """Run the steps that are not done. Raises RunError, and what the steps raise."""
    # Here, because the steps need what belongs to extras, and `--help` does not.
    from rag_r1.demo.pipeline.report import make_report, markdown
    from rag_r1.demo.pipeline.steps import Pipeline

    out = args.out.resolve()
    with PipelineFolder.held(out) as folder:
        mark_children(out)
        if ended := stop_leftovers(out):
            print(f"ended {ended} processes that an earlier start had left behind")
        steps = Pipeline(args, out).steps()
        for number, step in enumerate(steps, 1):
            print(f"{number}/{len(steps)} {step.name}", flush=True)
            outcome = folder.run(step)
            repeated = outcome == "done"
            status = "was done before" if repeated else f"done in {folder.seconds(step.name):.0f} s"
            print(f"{number}/{len(steps)} {step.name}: {status}", flush=True)
        if args.until == STEP_NAMES[-1]:
            report = make_report(folder, {"protocol": args.protocol, "seed": args.seed})
            picture = out / "report.png"  # is not drawn without matplotlib
            print(f"\n{markdown(report)}" + (f"\n\nPicture: {picture}" if picture.exists() else ""))


if __name__ == "__main__":
    sys.exit(main())
