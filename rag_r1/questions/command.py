"""`rag-r1 questions`: writes questions from the user's own corpus with a model, and verifies each of them.

The teacher model writes a question for each seed, which is one passage or a chain of passages. The reader,
which is another model or the same one, verifies the question. Refused questions are counted by reason; the
others form a training set in which each question lists the passages that it needs.

This module checks files and servers before the run, and prints the result. arguments.py declares the
arguments, run.py has the run itself, and readings.py says what the reader verifies.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rag_r1.corpus.inputs import check_first_rows
from rag_r1.corpus.reader import Corpus
from rag_r1.data.files.near_duplicates import require_library
from rag_r1.evaluation.report.summary import stop_message
from rag_r1.inference.client import base_address
from rag_r1.io.terminal_text import terminal_text
from rag_r1.options.command_exit import ExitStatus
from rag_r1.protocols import load_with_prompt
from rag_r1.questions.arguments import QuestionsArguments
from rag_r1.questions.documents import SPLITS
from rag_r1.questions.run import QuestionsResult, plan_questions, retriever_of, write_questions
from rag_r1.questions.spec import QuestionsSpec
from rag_r1.rollouts.checks import try_first_search
from rag_r1.rollouts.command_run import read_and_run
from rag_r1.rollouts.server_check import check_endpoint, check_replies
from rag_r1.runs.start_checks import StartChecks, try_servers

COMMAND = "rag-r1 questions"
_DESCRIPTION = """\
Write questions from a corpus of your own, for training a search agent, and verify each of them. Teacher and
reader are any OpenAI-compatible endpoints; keys are read from the environment. An interrupted run is resumed
by the same command, which repeats no finished request.

example:
  rag-r1 questions --corpus corpus.jsonl --retriever-url http://127.0.0.1:8000 --out own \\
      --base-url https://api.example.org/v1 --teacher-model big-model \\
      --reader-url http://127.0.0.1:8001/v1 --reader-model small-model --estimate

With --estimate it only prints what the run would take; without, it writes the questions.
"""
_EPILOG = """\
The output is train.parquet and test.parquet, whose questions come from different documents; questions.jsonl,
the same in readable form; refused.jsonl, each refused draft with its reason; data_card.md and data_card.json.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `rag-r1 questions` and return its exit status.

    The status is 0 when all questions are written, 3 if the run was stopped early or a server did not answer
    (the reason is printed), and 1 if the run could not begin.
    """
    return read_and_run(COMMAND, QuestionsArguments, make_questions, arguments, _DESCRIPTION, _EPILOG)


async def make_questions(args: QuestionsArguments) -> int:
    """Check files and servers, write the missing questions, and print a summary; returns the exit status.

    With --estimate only the forecast is printed, for which the model servers need not run. --check-only ends
    after the checks, also beside --estimate. Raises RunError if a check fails or the run cannot be opened.
    """
    spec = args.spec()
    if args.check_only:
        await check_start(spec, check_replies)
        print(f"all checks passed: questions would be written into {args.out}, all servers answer")
        return 0
    await check_start(spec, None if args.estimate else check_endpoint)
    if args.estimate:
        await plan_questions(spec)
        return 0
    result = await write_questions(spec)
    _print_summary(args.out, result)
    return ExitStatus.STOPPED if result.stopped or result.card["open"] else ExitStatus.DONE


async def check_start(spec: QuestionsSpec, check_server: Callable[..., Any] | None) -> None:
    """Check files and settings first, and then all servers.

    `check_server` is called for each model server; None leaves these unchecked. Raises RunError with all
    problems of files and settings; if there are none, with all servers that do not answer.
    """
    with StartChecks() as checks:
        checks.run_on_all(lambda paths: check_first_rows(Corpus(paths)), spec.corpus)
        checks.run(load_with_prompt, spec.protocol, None)
        if spec.prompt is not None:  # a wrong protocol must not hide a fault of the prompt
            checks.run(load_with_prompt, "rag_r1_mq", spec.prompt)
        if spec.verification.similarity:
            checks.run(require_library)
    models = {"--base-url": spec.teacher, **({"--reader-url": spec.reader} if spec.reader else {})}
    attempts = [
        asyncio.to_thread(
            check_server, base_address(model.url), model.key_variable, "model server", flag, model.model
        )
        for flag, model in models.items()
        if check_server is not None
        and not spec.limits.trust_env  # a host name may be known to the proxy only
    ]
    retriever = {"url": spec.retriever_url, "wire": spec.wire, "topk": retriever_of(spec).topk}
    await try_servers(*attempts, try_first_search(retriever, spec.retriever_url))


def _print_summary(out: Path, result: QuestionsResult) -> None:
    """Print what was refused and kept, the usage of the models, and what to do next."""
    card = result.card
    for name, step in card["steps"].items():
        if step["refused"]:
            print(f"{name}: {step['refused']:,} of {step['reached']:,} refused")
    counts = ", ".join(f"{card['rows'][split]:,} in {split}" for split in SPLITS)
    print(f"kept: {card['kept']:,} of {card['seeds']:,} ({counts})")
    for name, usage in card["usage"].items():
        cost = f", cost {usage['cost']:.4g}" if usage["cost"] else ""
        tokens = f"{usage['prompt_tokens']:,} prompt tokens, {usage['completion_tokens']:,} generated tokens"
        print(f"{name}: {usage['requests']:,} answers, {tokens}{cost}")
    print(f"{out}: data_card.md says what the questions are made of and what nobody has verified")
    if result.stopped:
        print(stop_message(result.stopped, f"{card['open']:,} drafts are open"))
    elif card["open"]:
        reason = terminal_text(min(outcome.detail for outcome in result.outcomes if outcome.is_open))
        print(f"{card['open']:,} drafts are open ({reason}); the same command goes on with them")


if __name__ == "__main__":
    sys.exit(main())
