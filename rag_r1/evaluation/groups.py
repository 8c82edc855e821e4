"""`rag-r1 eval groups`: finds the temperature at which GRPO can learn from groups of answers.

GRPO learns from the differences within a group of answers to one question: if all rewards of a group are
equal, its advantages are zero. This command plays each question several times at several temperatures, before
a training:

    OUT/t0.6, OUT/t1       the run of each temperature, as `rag-r1 eval` makes it
    OUT/groups.md, .json   for each temperature: the shares of mixed, all wrong and all right groups, EM, the
                           best of a group, searches, and the share of episodes with an answer

A run that was interrupted is resumed. Failed episodes count as wrong, as in a training without masks.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field, model_validator

from rag_r1.evaluation.baselines import AGENT, agent_condition
from rag_r1.evaluation.condition_run import check_condition, check_known_condition, run_condition
from rag_r1.evaluation.eval_arguments import EvalArguments
from rag_r1.evaluation.evaluation_inputs import file_checks, prepare_evaluation
from rag_r1.evaluation.judge import check_judge
from rag_r1.evaluation.report.report import WRONG_RUN
from rag_r1.evaluation.report.run_table import RunTable, read_run
from rag_r1.evaluation.target import check_served_model, resolve_model, serve_model
from rag_r1.io.atomic_files import write_json, write_text
from rag_r1.io.errors import error_text
from rag_r1.options.command_exit import ExitStatus
from rag_r1.options.command_line import argument
from rag_r1.options.types import Constraint
from rag_r1.rollouts.checks import all_problems
from rag_r1.rollouts.command_run import read_and_run
from rag_r1.rollouts.search_check import check_search
from rag_r1.rollouts.session import check_only
from rag_r1.runs.errors import RunError
from rag_r1.runs.markdown import Page, number, table
from rag_r1.runs.start_checks import StartChecks, begin_checks

GROUPS_JSON, GROUPS_MD = "groups.json", "groups.md"
_COLUMNS = (
    "temperature",
    "mixed groups",
    "all wrong",
    "all right",
    "EM",
    "best of a group",
    "searches",
    "answered",
)
_LEGEND = (
    "Mixed: the answers of a group are not all equally right, so GRPO has an advantage to learn from. "
    "Best of a group: at least one answer is right."
)
COMMAND = "rag-r1 eval groups"
_DESCRIPTION = """\
Play each question several times at several temperatures, and count the groups in which right and wrong
answers are mixed: only these teach GRPO anything. Run again, the same command goes on.

example:
  rag-r1 eval groups --model outputs/real-small/sft/model --questions data/mq/train.parquet --limit 60 \\
      --temperatures 0.6 --temperatures 1 --retriever-url http://127.0.0.1:8000 --out evals/groups
"""
#: A sampling temperature. With greedy answers, no group is mixed.
Temperature = Annotated[
    float, Field(gt=0, allow_inf_nan=False), Constraint("a number above 0: greedy answers are equal")
]

#: One answer has no other to be compared with.
GroupSize = Annotated[int, Field(ge=2), Constraint("a whole number of at least 2, to compare answers")]


class GroupsArguments(EvalArguments):
    """The arguments of `rag-r1 eval` with several temperatures."""

    samples_at_temperature: ClassVar[bool] = False

    temperatures: list[Temperature] = argument(
        "sampling temperature of a run; may be repeated", "T", default=[0.6, 0.8, 1.0]
    )
    samples: GroupSize = argument("answers in a group, the episodes of a question", "N", default=5)

    # Each check is a validator of its own, since only the first error of one is reported.
    @model_validator(mode="after")
    def _refuse_temperature(self) -> GroupsArguments:
        if self.temperature:
            raise ValueError("--temperature: give --temperatures, which may be repeated")
        return self

    @model_validator(mode="after")
    def _refuse_conditions(self) -> GroupsArguments:
        self.refuse_other_conditions()
        return self

    def runs(self) -> dict[float, EvalArguments]:
        """Return the arguments of `rag-r1 eval` for each temperature, the lowest first."""
        return {
            temperature: self.as_type(
                EvalArguments, temperature=temperature, out=self.out / f"t{_name_of(temperature)}"
            )
            for temperature in sorted(set(self.temperatures))
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns 0 when all runs are complete, 3 if one was stopped, 1 if one could not begin
    or all of its episodes have failed."""
    return read_and_run(COMMAND, GroupsArguments, evaluate_groups, arguments, _DESCRIPTION)


async def evaluate_groups(args: GroupsArguments) -> int:
    """Play the runs, write the table and return the exit status. Raises RunError or OSError, and RewardError
    if a reward term cannot judge."""
    runs = args.runs()
    first_args = next(iter(runs.values()))
    server_checks = (partial(check_search, first_args, defaults={}), partial(check_judge, first_args))
    checks = begin_checks(partial(resolve_model, first_args), *server_checks)
    served_check = partial(check_served_model, first_args, checks[0])
    own_checks = [served_check, *file_checks(args)]
    own_checks += [partial(check_known_condition, run, AGENT) for run in runs.values()]
    with all_problems(args, defaults={}, extra_checks=[*checks, *own_checks]):
        model_args, *_ = (check() for check in checks)
        run_setup = prepare_evaluation(model_args)
    condition = agent_condition(run_setup.setup)
    with StartChecks() as start_checks:
        for temperature, run in runs.items():
            run_args = model_args.model_copy(update={"temperature": temperature})
            start_checks.run(check_condition, run_args, run_setup, condition, run.out)
    if args.check_only:
        return await check_only(model_args, run_setup, model_args.base_url, model_args.model)
    with serve_model(model_args) as served_args:
        for i, (temperature, run) in enumerate(runs.items(), 1):
            print(f"{i}/{len(runs)} temperature {_name_of(temperature)}")
            run_args = served_args.model_copy(update={"temperature": temperature, "out": run.out})
            if status := await run_condition(run_args, run_setup, condition, run.out):
                return status
    print("\n".join(write_groups(args.out, {temperature: run.out for temperature, run in runs.items()})))
    return ExitStatus.DONE


def _name_of(temperature: float) -> str:
    """Return the name of a temperature in folders and tables, such as `0.6` or `1`. No two share one."""
    return repr(temperature).removesuffix(".0")


def write_groups(out: Path, runs: dict[float, Path]) -> list[str]:
    """Write the table of finished runs, whose folders are keyed by temperature, and return the lines to be
    printed. Raises RunError if a run cannot be read, and OSError if the table cannot be written."""
    try:
        figures = {temperature: group_figures(read_run(folder)) for temperature, folder in runs.items()}
    except WRONG_RUN as error:
        raise RunError(f"the runs are complete, but not the table: {error_text(error)}") from error
    by_name = {_name_of(temperature): values for temperature, values in figures.items()}
    write_json(out / GROUPS_JSON, {"format": 1, "temperatures": by_name})
    rows = [[name, *(number(values[column]) for column in _COLUMNS[1:])] for name, values in by_name.items()]
    lines = table(_COLUMNS, rows, "r" * len(_COLUMNS))
    page = Page("Groups of answers, by temperature").text("\n".join(lines))
    write_text(out / GROUPS_MD, f"{page.text(_LEGEND)}\n")
    best = max(figures, key=lambda temperature: figures[temperature]["mixed groups"])
    return [*lines, f"\nmost mixed groups at temperature {_name_of(best)}; table: {out / GROUPS_MD}"]


def group_figures(run: RunTable) -> dict[str, float]:
    """Return a run's figures by the names of the columns: shares of its groups, means of its episodes."""
    questions, indices = run.question_indices()
    is_right = run.columns["em:squad"]  # 0 for an episode without an answer, such as one that failed
    sizes = np.bincount(indices, minlength=len(questions))
    right_counts = np.bincount(indices, weights=is_right, minlength=len(questions))
    shares = {
        "mixed groups": (right_counts > 0) & (right_counts < sizes),
        "all wrong": right_counts == 0,
        "all right": right_counts == sizes,
        "best of a group": right_counts > 0,
    }
    means = {"EM": is_right, "searches": run.columns["queries"], "answered": run.columns["answered"]}
    return {name: float(np.nanmean(values)) for name, values in {**shares, **means}.items()}


if __name__ == "__main__":
    sys.exit(main())
