"""`rag-r1 iterate`: runs the unfinished steps of a loop.

    OUT/<step>/      the step's files, its markers (rag_r1/runs/steps.py), and its command's output in log.txt
    OUT/state.json   the status of each step for people and other programs; the loop does not read it
    OUT/rounds.*     the table of rounds (table.py)
    OUT/server.log   the output of the retrieval server, if it was started here

Only the markers determine which steps are done, so the command can be killed at any time and run again.
Processes that a killed invocation left on this machine are ended first. A step that was interrupted is
resumed by its own command.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rag_r1.config.recipes import fault_of_kind, find_file
from rag_r1.io.atomic_files import write_json
from rag_r1.io.terminal_text import print_error
from rag_r1.iterate.checks import find_problems
from rag_r1.iterate.plan import LoopPlan, read_plan
from rag_r1.iterate.server import UNKNOWN_URL, LoopServer
from rag_r1.iterate.steps import SERVED, Loop, LoopStep
from rag_r1.iterate.table import MARKDOWN, rows_of, write_table
from rag_r1.options.arguments.overrides import CheckedOverrides
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Arguments, Positive, argument, read_arguments
from rag_r1.options.out_folder import check_out
from rag_r1.options.sections import PlanError
from rag_r1.options.settings_file import recorded_settings
from rag_r1.runs.errors import RunError
from rag_r1.runs.processes import run_and_wait
from rag_r1.runs.start_checks import StartChecks, StartError
from rag_r1.runs.step_loop import check_steps, run_steps
from rag_r1.runs.steps import PipelineFolder

STATE, LOG = "state.json", "log.txt"
_DESCRIPTION = """\
Train the agent with the retriever and the retriever with the agent, in rounds (Agentic-R): the agent is
trained, what helps it becomes training data, the retriever is trained on that, its index is built, the
running server takes it, and the next round begins. Each change is evaluated on held-out questions. Run again,
the same command goes on where it was interrupted, at any step.

example:
  rag-r1 iterate --recipe agentic_r/iterate --rounds 2 --out outputs/agentic_r --check-only

With --check-only it checks the recipe, and prints the steps and their commands; without, it runs them. The
recipe is a YAML with the sections agent, data, retriever, index, server and evaluation, as in
`rag-r1 recipes show agentic_r/iterate`. Words key=value change one, agent.model=models/other; ~key
deletes one.
"""


class IterateArguments(Arguments):
    """The recipe of a loop, its folder and its number of rounds."""

    recipe: Path = argument("YAML file of the loop, or a shipped one, e.g. agentic_r/iterate", "RECIPE")
    out: Path = argument("folder of the loop; run again, the command goes on where it was interrupted", "DIR")
    rounds: Positive = argument("number of rounds; a finished loop goes on with a larger one", "K", default=2)
    check_only: bool = argument(
        "check the recipe, print the steps and their commands, and end", default=False, old="dry_run"
    )
    overrides: CheckedOverrides = argument("a key's new value; ~key deletes it", "key=value", default=[])


@command_main(RunError, resumable=True)
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps that are not done. Returns 0 when all are done, 1 after an error, and 130 after
    Ctrl-C."""
    args = read_arguments(
        IterateArguments, arguments, prog="rag-r1 iterate", description=_DESCRIPTION, check=_checked_plan
    )
    try:
        plan = _checked_plan(args)
    except StartError as error:
        for problem in error.problems:
            print_error(problem)
        print(f"{len(error.problems)} error(s): nothing was started", file=sys.stderr)
        return 1
    out = args.out.resolve()
    steps = Loop(plan, out, args.rounds).steps()
    if args.check_only:
        _print_steps(steps, PipelineFolder(out), plan.server.url or UNKNOWN_URL)
        print(f"all checks passed: {len(steps)} steps would be run in {out}")
        return 0
    with (
        recorded_settings("rag-r1 iterate", args),
        PipelineFolder.locked(out) as folder,
        LoopServer(plan.server, out) as service,
    ):
        _run_steps(steps, folder, service)
    return 0


def _checked_plan(args: IterateArguments) -> LoopPlan:
    """Return the plan in the recipe after all checks. Raises StartError with all problems (`_plan_of`)."""
    with StartChecks() as checks:
        checks.run(check_out, args.out, "rag-r1 iterate")
        plan = checks.run(_plan_of, args.recipe, args.overrides, checks, args)
    assert plan is not None  # else StartChecks has raised
    return plan


def _plan_of(recipe: Path, overrides: Sequence[str], checks: StartChecks, args: IterateArguments) -> LoopPlan:
    """Return the plan in a recipe after checking it, with --check-only also whether a server answers at its
    server.url. `checks` gets settings that have changed since a step was begun. Raises StartError with all
    other problems."""
    problems = []
    path = find_file(recipe, ".yaml")
    if fault := fault_of_kind(path, "iterate"):
        raise RunError(f"--recipe {fault}")
    try:
        plan = read_plan(path, overrides)
        checks.run(check_steps, args.out, lambda: Loop(plan, args.out.resolve(), args.rounds).steps())
    except PlanError as error:
        plan, problems = error.readable, error.problems
    if plan is not None:
        problems += [f"{recipe}: {problem}" for problem in find_problems(plan)]
        if args.check_only and plan.server.url is not None:
            try:
                LoopServer(plan.server, Path()).check()
            except RunError as error:
                problems.append(str(error))
    if problems:
        raise StartError(problems)
    return plan


def _run_steps(steps: Sequence[LoopStep], folder: PipelineFolder, service: LoopServer) -> None:
    """Run the steps in order, and write the table of rounds after each new evaluation."""
    names = [step.name for step in steps]
    runnable = [replace(step, work=partial(_run_step, step, service)) for step in steps]

    def show_result(step: LoopStep, is_new: bool) -> None:
        if is_new and "em" in folder.facts(step.name):
            done = names[: names.index(step.name) + 1]  # later steps may still have results of earlier inputs
            print("\n".join(["", *write_table(folder.out, rows_of(folder, done)), ""]), flush=True)

    run_steps(folder, runnable, lambda step: _write_state(folder, steps, step.name), show_result)
    _write_state(folder, steps, None)
    write_table(folder.out, rows_of(folder, names))  # a kill may have happened between a step and its row
    print(f"{len(steps)} steps are done: {folder.out / MARKDOWN}")


def _run_step(step: LoopStep, service: LoopServer, folder: Path) -> Mapping[str, Any]:
    """Run a step in its folder, and return its facts. Raises RunError if the server does not serve the
    step's index, if the command fails (the error names the log), or if its results cannot be read."""
    url = service.serve(step.index) if step.index is not None else ""
    if step.command is None:
        write_json(folder / SERVED, service.index_facts(), private=True)
    elif step.product is None or not (folder / step.product).exists():
        log = folder / LOG
        print(f"  log: {log}", flush=True)
        run_and_wait(step.command(url), log=log, name=f"the command of {step.name}")
    return step.work(folder)


def _write_state(folder: PipelineFolder, steps: Sequence[LoopStep], current: str | None) -> None:
    """Write the status of each step, and the name of the step that is running."""
    states = [
        {"name": step.name, "status": folder.status(step), "seconds": folder.seconds(step.name)}
        for step in steps
    ]
    state = {"format": 1, "now": current, "steps": states}
    write_json(folder.out / STATE, state, private=True)


def _print_steps(steps: Sequence[LoopStep], folder: PipelineFolder, url: str) -> None:
    """Print each step with its command. `url` is the address of the retrieval server."""
    for number, step in enumerate(steps, 1):
        print(f"{number}/{len(steps)} {step.name}{' (done)' if folder.status(step) == 'done' else ''}")
        if step.command is None:
            print(f'  POST {url}/reload {{"path": "{step.index}"}}')
        else:
            print(f"  {shlex.join(step.command(url))}")


if __name__ == "__main__":
    sys.exit(main())
