"""`rag-r1 eval`: evaluates a policy on all questions of a data set and writes a report.

    rag-r1 eval --model CHECKPOINT --questions test.parquet --retriever-url URL --out DIR
    rag-r1 eval RUN
    rag-r1 eval report DIR
    rag-r1 eval compare DIR DIR
    rag-r1 eval modes --model BEFORE --trained AFTER ...
    rag-r1 eval groups --model MODEL ...
    rag-r1 eval sigma DIR

The agent is the agent of training: the same core, protocol and search, with the limits of a validation
(validation_limits.py). This module reads the arguments; evaluation_run.py then starts the servers that are
needed and plays the questions, and condition_run.py describes the files of a run's folder.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

from rag_r1.evaluation.eval_arguments import EvalArguments
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import names_flag, read_arguments
from rag_r1.options.suggestions import did_you_mean
from rag_r1.rollouts.arguments import doubled_settings
from rag_r1.runs.errors import RunError

#: The modules of the subcommands. Like the modules that play episodes, they are imported only when they are
#: needed, so that `--help` and errors in the arguments appear at once.
_SUBCOMMANDS = {
    "report": "rag_r1.evaluation.report.report",
    "compare": "rag_r1.evaluation.report.compare_command",
    "modes": "rag_r1.evaluation.modes",
    "groups": "rag_r1.evaluation.groups",
    "sigma": "rag_r1.evaluation.report.state_threshold",
}

COMMAND = "rag-r1 eval"
_DESCRIPTION = """\
Evaluate a policy on questions: EM, cover-EM, F1, a judge if there is one, searches, time, failures, with
intervals. The policy is a folder (Hugging Face's, or a checkpoint of veRL), which is served here with vLLM,
or a model behind --base-url. Run again, the same command goes on where it was interrupted, and repeats no
request.

example:
  rag-r1 eval --model outputs/rag-r1/grpo-mq --questions data/mq/test.parquet \\
      --retriever-url http://127.0.0.1:8000 --answerable checks/wiki-18/answerable_ids.json --out evals/grpo
  rag-r1 eval --baseline one_shot --model Qwen/Qwen2.5-7B-Instruct --base-url http://127.0.0.1:8001/v1 \\
      --questions data/mq/test.parquet --retriever-url http://127.0.0.1:8000 --out evals/one_shot

  rag-r1 eval --card --corpus wiki-18.jsonl.gz --model outputs/rag-r1/grpo-mq \\
      --questions data/mq/test.parquet --retriever-url http://127.0.0.1:8000 --out evals/card

  rag-r1 eval outputs/demo/grpo --out evals/demo

RUN, the folder of a training or of an earlier evaluation, stands first: model, questions, protocol, prompt,
limits and search are that run's, unless flags replace them.

also: rag-r1 eval report RUN         make the report of a finished run again
      rag-r1 eval compare RUN RUN    compare runs on the questions that they share
      rag-r1 eval modes              a model before and after training, without and with search, in one table
      rag-r1 eval groups             the share of groups with right and wrong answers, by temperature
      rag-r1 eval sigma RUN          propose rag_r1.agent.max_state from the states of right and wrong answers
"""


@command_main()
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command or its subcommand. Returns 0 after the report was written, 3 if the run was stopped
    before its end (the reason is printed), and 1 if it could not begin or all episodes have failed."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments and arguments[0] in _SUBCOMMANDS:
        return import_module(_SUBCOMMANDS[arguments[0]]).main(arguments[1:])
    parse = partial(read_arguments, EvalArguments, prog=COMMAND, description=_DESCRIPTION)
    is_run = bool(arguments) and _is_run(arguments[0])
    remaining = arguments[1:] if is_run else arguments
    faults = doubled_settings(remaining)
    # Not among the checks of EvalArguments, because a settings file names an address beside every index.
    if all(names_flag(remaining, flag) for flag in ("--serve-index", "--retriever-url")):
        faults.append("--serve-index starts a retrieval server: leave out --retriever-url, or --serve-index")
    if not is_run:
        args = parse(remaining, check=_check, faults=faults)
        # An address on the command line replaces the index of a settings file.
        return run(args.changed(serve_index=None) if names_flag(remaining, "--retriever-url") else args)
    from rag_r1.evaluation.run_defaults import defaults_of

    try:
        defaults = defaults_of(Path(arguments[0]))
    except RunError as error:
        hint = did_you_mean(arguments[0], _SUBCOMMANDS)
        faults.append(f"{error}; {hint}" if hint else str(error))
        parse(remaining, check=_check_without_run, faults=faults)  # it ends the process
        raise
    values = defaults.values
    if names_flag(remaining, "--base-url"):  # a server that runs already, in place of that of the run
        values = {name: value for name, value in values.items() if name != "vllm_options"}
    args = parse(remaining, check=_check, settings=values, faults=faults)
    args = defaults.complete(args, remaining)
    print("\n".join(defaults.lines(args)), flush=True)
    return run(args)


def _is_run(argument: str) -> bool:
    """Return whether the first argument is meant as a run's folder, rather than as a flag, a settings file or
    a key."""
    return Path(argument).is_dir() or not (argument.startswith(("-", "@")) or "=" in argument)


def run(args: EvalArguments) -> int:
    """Evaluate, and return the exit status. Errors that a user can correct are printed."""
    from rag_r1.evaluation.evaluation_run import evaluate
    from rag_r1.rollouts.command_run import run_command

    return run_command(COMMAND, evaluate, args)


def _check(args: EvalArguments) -> None:
    """Run all checks of an evaluation. Raises StartError with all problems."""
    from rag_r1.evaluation.evaluation_run import evaluate
    from rag_r1.rollouts.command_run import check_command

    check_command(COMMAND, evaluate, args)


def _check_without_run(args: EvalArguments) -> None:
    """Run all checks that are possible if RUN cannot be read. The search is checked only if its address is an
    argument, since otherwise it would be the run's. Raises StartError with all problems."""
    _check(args if "retriever_url" in args.model_fields_set else args.changed(baseline="no_search"))


if __name__ == "__main__":
    sys.exit(main())
