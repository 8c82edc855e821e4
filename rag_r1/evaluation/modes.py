"""`rag-r1 eval modes`: compares a model before and after training, without and with search.

These are the three modes of Agentic RAG-R1's evaluation:

    OUT/before_no_search   the model before training answers alone
    OUT/before             the same model as an agent that searches
    OUT/after              the trained model as the same agent
    OUT/modes.md, .json    the table; OUT/compare.md, .json: differences on the questions that all runs share

Each mode is a run as `rag-r1 eval` makes it, and is resumed where it was interrupted. All modes have the same
questions and the same number of tokens to generate: the model alone may write as much in its only turn as the
agent in all of its turns.

In Agentic RAG-R1 the base model had a single generation of another length. Accuracy was computed over the
answers that could be extracted, so a model that answered less often looked better. The table therefore gives
accuracy over all questions, too.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import model_validator

from rag_r1.config.agent_setup import AgentSetup
from rag_r1.evaluation.baselines import AGENT, Condition, agent_condition, baseline
from rag_r1.evaluation.condition_run import check_condition, check_known_condition, run_condition
from rag_r1.evaluation.eval_arguments import EvalArguments
from rag_r1.evaluation.evaluation_inputs import file_checks, prepare_evaluation
from rag_r1.evaluation.judge import check_judge
from rag_r1.evaluation.report.bootstrap import Bootstrap
from rag_r1.evaluation.report.compare_command import compare, write_comparison
from rag_r1.evaluation.report.episode_metrics import TERM_PREFIX
from rag_r1.evaluation.report.measures import MEASURES, Measure, by_source, column, mean_among, term_measure
from rag_r1.evaluation.report.report import WRONG_RUN, figure
from rag_r1.evaluation.report.run_table import RunTable, read_run
from rag_r1.evaluation.target import check_served_model, resolve_model, serve_model
from rag_r1.io.atomic_files import write_json, write_text
from rag_r1.io.errors import error_text
from rag_r1.options.command_exit import ExitStatus
from rag_r1.options.command_line import argument
from rag_r1.options.server_address import Address
from rag_r1.protocols import ProtocolError, read_prompt
from rag_r1.rollouts.checks import all_problems
from rag_r1.rollouts.command_run import read_and_run
from rag_r1.rollouts.provenance import Provenance
from rag_r1.rollouts.search_check import check_search
from rag_r1.rollouts.session import RunSetup, check_only
from rag_r1.runs.errors import RunError
from rag_r1.runs.markdown import Page, cell, integer, table, with_interval
from rag_r1.runs.start_checks import StartChecks, begin_checks

MODES_JSON, MODES_MD = "modes.json", "modes.md"
#: The modes, which are also the names of their folders.
ALONE, BEFORE, AFTER = "before_no_search", "before", "after"
MODE_NAMES = {
    ALONE: "before training, without search",
    BEFORE: "before training, with search",
    AFTER: "after training, with search",
}
#: Keys of the provenance in which the modes may differ.
_MAY_DIFFER = ("model", "condition", "protocol", "budget", "retriever", "corpus_sha256", "index")
#: The baselines of a model that answers without search.
AloneBaseline = Literal["cot", "direct", "no_search"]
COMMAND = "rag-r1 eval modes"
_DESCRIPTION = """\
Evaluate a model before training without search, before training with search, and after training with search:
the same questions, as many tokens, one table. Run again, the same command goes on where it was interrupted.

example:
  rag-r1 eval modes --model Qwen/Qwen2.5-3B-Instruct --trained outputs/agentic-rag-r1/grpo \\
      --questions data/medqa/test.parquet --protocol agentic_rag_zh --term choice \\
      --retriever-url http://127.0.0.1:8000 --out evals/modes
"""


class ModesArguments(EvalArguments):
    """The arguments of `rag-r1 eval`, with a second model: the trained one."""

    trained: str = argument("the model after training, named as --model names the model before it", "MODEL")
    trained_url: Address | None = argument(
        "server of the trained model, if it differs from --base-url", "URL", default=None
    )
    alone: AloneBaseline = argument(
        "how the model answers without search: as the baseline of that name", default="cot"
    )
    prompt_alone: Path | None = argument(
        "prompt of the model without search: a text file with {question} in it", "FILE", default=None
    )

    # Each check is a validator of its own, since only the first error of one is reported.
    @model_validator(mode="after")
    def _refuse_conditions(self) -> ModesArguments:
        self.refuse_other_conditions()
        return self

    @model_validator(mode="after")
    def _trained_url_has_base_url(self) -> ModesArguments:
        if self.trained_url is not None and self.base_url is None:
            raise ValueError("--trained-url needs --base-url, the server of the model before training")
        return self

    @model_validator(mode="after")
    def _prompt_alone_is_used(self) -> ModesArguments:
        if self.prompt_alone is not None and self.alone == "no_search":
            raise ValueError("--prompt-alone: no_search has the agent's prompt; use --alone cot or direct")
        return self


class _TrainedArguments(ModesArguments):
    """The arguments with the trained model in place of the untrained one."""

    model_flag: ClassVar[str] = "--trained"

    @property
    def url_flag(self) -> str:
        """The flag with the address of the trained model's server, for messages."""
        return "--base-url" if self.trained_url is None else "--trained-url"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns 0 when all runs are complete, 3 if one was stopped, 1 if one could not begin
    or all of its episodes have failed."""
    return read_and_run(COMMAND, ModesArguments, evaluate_modes, arguments, _DESCRIPTION)


async def evaluate_modes(args: ModesArguments) -> int:
    """Play the three runs, write the table and return the exit status. Raises RunError or OSError, and
    RewardError if a reward term cannot judge."""
    untrained_args = args.changed(out=args.out / BEFORE)
    url = args.trained_url or args.base_url
    trained_args = args.as_type(_TrainedArguments, model=args.trained, base_url=url, out=args.out / AFTER)
    model_checks = [partial(resolve_model, untrained_args)]
    # The user may start the server of the trained model only after the first model is done.
    if trained_args.base_url is None or args.check_only:
        model_checks.append(partial(resolve_model, trained_args))
    server_checks = (partial(check_search, untrained_args, defaults={}), partial(check_judge, args))
    checks = begin_checks(*model_checks, *server_checks)
    served_check = partial(check_served_model, untrained_args, checks[0])
    own_checks = [partial(_prompt_alone, args.prompt_alone), *file_checks(args), served_check]
    alone_args = args.changed(out=args.out / ALONE)
    own_checks += [partial(check_known_condition, alone_args, args.alone)]
    own_checks += [partial(check_known_condition, run, AGENT) for run in (untrained_args, trained_args)]
    with all_problems(args, defaults={}, extra_checks=[*checks, *own_checks]):
        untrained_args, *_ = (check() for check in checks)
        run_setup = prepare_evaluation(untrained_args)
    if status := await _play_modes(args, untrained_args, run_setup, (ALONE, BEFORE)):
        return status
    trained_args = resolve_model(trained_args)
    if status := await _play_modes(args, trained_args, prepare_evaluation(trained_args), (AFTER,)):
        return status
    if not args.check_only:
        print("\n".join(write_modes(args.out)))
    return ExitStatus.DONE


async def _play_modes(
    args: ModesArguments, model_args: ModesArguments, run_setup: RunSetup, modes: Sequence[str]
) -> int:
    """Play the modes of the model in `model_args`, with the other arguments of `args`, and return the exit
    status. Raises the errors of `run_condition`."""
    setup = run_setup.setup
    conditions = {mode: agent_condition(setup) for mode in modes}
    if ALONE in conditions:  # made before --check-only ends, since it reads --prompt-alone
        conditions[ALONE] = alone_condition(setup, args.alone, args.prompt_alone)
    with StartChecks() as start_checks:
        for mode, condition in conditions.items():
            start_checks.run(check_condition, model_args, run_setup, condition, args.out / mode)
    if args.check_only:
        return await check_only(model_args, run_setup, model_args.base_url, model_args.model)
    with serve_model(model_args) as served_args:
        for mode, condition in conditions.items():
            print(f"{list(MODE_NAMES).index(mode) + 1}/{len(MODE_NAMES)} {MODE_NAMES[mode]}")
            if status := await run_condition(served_args, run_setup, condition, args.out / mode):
                return status
    return ExitStatus.DONE


def alone_condition(setup: AgentSetup, name: AloneBaseline, prompt: Path | None = None) -> Condition:
    """Return the condition in which the model answers without search, in one turn with as many tokens as the
    agent `setup` may generate in all of its turns. `name` is the baseline, and `prompt` a file that replaces
    its prompt. Raises RunError for a prompt that cannot be read or lacks {question}."""
    budget = setup.budget
    all_turns_tokens = (budget.max_turns + budget.final_turn) * budget.max_turn_tokens
    episode_limits = (budget.max_response_tokens, budget.max_episode_tokens)
    max_tokens = min(all_turns_tokens, *(limit for limit in episode_limits if limit is not None))
    long_turn = replace(setup, budget=replace(budget, max_turn_tokens=max_tokens))
    if (text := _prompt_alone(prompt)) is not None:
        protocol = replace(setup.protocol, user_prompt=text)
        return baseline(name, replace(long_turn, protocol=protocol, own_prompt=True))
    return baseline(name, long_turn if name == "no_search" else replace(long_turn, own_prompt=False))


def _prompt_alone(prompt: Path | None) -> str | None:
    """Return the text of the file --prompt-alone; None if there is none. Raises RunError if it cannot be read
    or lacks {question}."""
    if prompt is None:
        return None
    try:
        text = read_prompt(prompt, f"--prompt-alone {prompt}")
    except ProtocolError as error:
        raise RunError(str(error)) from error
    if "{question}" not in text:
        raise RunError(f"--prompt-alone {prompt} has no {{question}}: write it where the question goes")
    return text


def write_modes(out: Path) -> list[str]:
    """Write the table and the comparison of the three finished runs, and return the lines to be printed.
    Raises RunError if a run cannot be read, and OSError if a file cannot be written."""
    tables = {}
    try:
        for mode in MODE_NAMES:
            card = Provenance.read(out / mode)
            tables[mode] = read_run(out / mode, mask=card.mask if card else None)
        comparison = compare([out / mode for mode in (BEFORE, ALONE, AFTER)], _MAY_DIFFER)
    except WRONG_RUN as error:
        raise RunError(f"the runs are complete, but not the table: {error_text(error)}") from error
    modes = {mode: figures_of(run) for mode, run in tables.items()}
    write_json(out / MODES_JSON, {"format": 1, "modes": modes})
    write_text(out / MODES_MD, markdown(modes) + "\n")
    write_comparison(comparison, out)
    files = f"table: {out / MODES_MD}; differences with intervals: {out / 'compare.md'}"
    return [*table_lines(modes), "", files]


def _accuracies(label: str, score_column: str, *, share: bool) -> list[Measure]:
    """Return three means of a score: over all episodes, those with an answer, and the well-formed ones.
    `share` says whether its values are in [0, 1]."""
    measures = (
        Measure(label, label, "scores", column(score_column)),
        mean_among(label, f"{label} of the answered", "form", score_column, "answered"),
        mean_among(label, f"{label} of the well-formed", "form", score_column, "formatted"),
    )
    return [replace(measure, share=share) for measure in measures]


def figures_of(run: RunTable) -> dict[str, Any]:
    """Return a mode's entry of modes.json: the number of `questions`, the number of `failed` episodes, and
    `figures` over all questions by name, each with its label, its value and an interval."""
    accuracies = _accuracies("EM", "em:squad", share=True)
    for name in run.terms:
        share = term_measure(name, [run]).share
        accuracies += _accuracies(name.removeprefix(TERM_PREFIX), name, share=share)
    measures = [
        *(measure for measure in MEASURES if measure.name in ("answered", "formatted")),
        *accuracies,
        *(measure for measure in MEASURES if measure.name in ("queries", "generated_tokens")),
    ]
    sums, _ = by_source(run, measures)
    _, _, overall = Bootstrap().estimates(sums, [measure.share for measure in measures])
    counts = sum((source.denominators > 0).sum(axis=0) for source in sums.values())
    figures = {
        measure.name: {
            "label": measure.label,
            "decimals": measure.decimals,
            **figure(overall, i, int(counts[i])),
        }
        for i, measure in enumerate(measures)
    }
    return {"questions": len(set(run.question_keys)), "failed": int(np.sum(run.failed)), "figures": figures}


def markdown(modes: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page modes.md."""
    page = Page("Before and after training").text("\n".join(table_lines(modes)))
    page.text(
        "Accuracy is given three times: over all questions, over those that got an answer, as Agentic "
        "RAG-R1 reports it, and over the well-formed episodes. The last two leave out what failed by its "
        "form, so read them beside the first. In brackets: 95 % bootstrap intervals. Failed episodes "
        "have no score. Differences of the modes, with tests, and published figures are in compare.md."
    )
    return str(page)


def table_lines(modes: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the lines of the table, with a row for each figure and a column for each mode."""
    rows = [
        ["questions", *(integer(mode["questions"]) for mode in modes.values())],
        ["failed episodes", *(integer(mode["failed"]) for mode in modes.values())],
    ]
    for name in dict.fromkeys(name for mode in modes.values() for name in mode["figures"]):
        values = [mode["figures"].get(name) for mode in modes.values()]
        label, decimals = next((value["label"], value["decimals"]) for value in values if value)
        rows.append([cell(label), *(with_interval(value, decimals) for value in values)])
    return table(["", *(MODE_NAMES[mode] for mode in modes)], rows)


if __name__ == "__main__":
    sys.exit(main())
