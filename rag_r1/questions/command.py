"""`rag-r1 questions`: writes questions from the user's own corpus with a model, and verifies each of them.

The teacher model writes a question for each seed, which is one passage or a chain of passages. The reader,
which is another model or the same one, verifies the question. Refused questions are counted by reason; the
others form a training set in which each question lists the passages that it needs.

checks.py checks files and servers before the run, run.py has the run itself, and readings.py says what the
reader verifies.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rag_r1.io.terminal_text import terminal_text
from rag_r1.options.command_exit import ExitStatus
from rag_r1.questions.arguments import QuestionsArguments
from rag_r1.questions.checks import check_start
from rag_r1.questions.results.card import summary_lines
from rag_r1.questions.run import QuestionsResult, plan_questions, write_questions
from rag_r1.rollouts.command_run import read_and_run
from rag_r1.runs.cancel_token import stop_message

COMMAND = "rag-r1 questions"
_DESCRIPTION = """\
Write questions from a corpus of your own, for training a search agent, and verify each of them. Teacher and
reader are any OpenAI-compatible endpoints; keys are read from the environment. An interrupted run is resumed
by the same command, which repeats no finished request.

example:
  rag-r1 questions --corpus corpus.jsonl --retriever-url http://127.0.0.1:8000 --out own \\
      --base-url https://api.example.org/v1 --teacher-model big-model \\
      --reader-url http://127.0.0.1:8001/v1 --reader-model small-model --estimate

With --estimate it only prints what the run would take, and writes nothing; without, it writes the questions.
"""
_EPILOG = """\
The output is train.parquet and test.parquet, whose questions come from different documents; questions.jsonl,
the same in readable form; refused.jsonl, each refused draft with its reason; data_card.md and data_card.json.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `rag-r1 questions` and return its exit status.

    The status is 0 when all questions are written (or the forecast or the checks are done), 3 if the run was
    stopped early or a server did not answer (the reason is printed), and 1 if the run could not begin.
    """
    return read_and_run(COMMAND, QuestionsArguments, make_questions, arguments, _DESCRIPTION, _EPILOG)


async def make_questions(args: QuestionsArguments) -> int:
    """Check files and servers, write the missing questions, and print a summary; returns the exit status.

    With --estimate only the forecast is printed, for which the model servers need not run. --check-only ends
    after the checks; with both, only what the forecast needs is checked. Raises RunError if a check fails or
    the run cannot be opened.
    """
    spec = args.spec()
    opens_run = not (args.estimate or args.is_partial)
    if args.test_share == 1:
        print("warning: --test-share 1 leaves train.parquet empty: give a smaller one", file=sys.stderr)
    pool = check_start(spec, asks_models=not args.estimate, opens_run=opens_run)
    if args.check_only:
        are_asked = not (args.estimate or args.trust_env)
        servers = "all servers answer" if are_asked else "the search answers, the models were not asked"
        work = "the forecast can be made" if args.estimate else f"questions would be written into {args.out}"
        print(f"all checks passed: {work}, {servers}")
        return 0
    if args.estimate:
        await plan_questions(spec, pool=pool)
        return 0
    result = await write_questions(spec, pool=pool)
    _print_summary(args.out, result)
    return ExitStatus.STOPPED if result.stopped or result.card["open"] else ExitStatus.DONE


def _print_summary(out: Path, result: QuestionsResult) -> None:
    """Print what was refused and kept, the usage of the models, and what to do next."""
    card = result.card
    print(*summary_lines(card), sep="\n")
    print(f"{out}: data_card.md says what the questions are made of and what nobody has verified")
    if result.stopped:
        print(stop_message(result.stopped, f"{card['open']:,} drafts are open"))
    elif card["open"]:
        # Any of the reasons would do; the least one is the same whatever the order of the answers.
        reason = terminal_text(min(outcome.detail for outcome in result.outcomes if outcome.is_open))
        print(f"{card['open']:,} drafts are open ({reason}); the same command goes on with them")


if __name__ == "__main__":
    sys.exit(main())
