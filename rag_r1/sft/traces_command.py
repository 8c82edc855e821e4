"""`rag-r1 traces`: records a teacher's trajectories (RAG-R1's first step, arXiv 2507.02962).

The teacher is a language model behind any OpenAI-compatible endpoint. It plays the same episodes as a policy
in training: protocol, search, limits. The run can be killed and started again at any time;
rag_r1/rollouts/runner.py says how. At its end, and whenever it stops by itself, the folder has

    traces.jsonl    a trajectory record of each question and sample, in the order of the questions, with
                    `right` (true, false, or null if the infrastructure failed), `golds`, `rewards`, `prompt`
    summary.json    the figures that are printed

The accuracy is that of the episodes that could be judged; how many could not is told beside it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

from rag_r1.io.atomic_files import write_json, write_json_lines
from rag_r1.options.command_line import Positive, argument, read_arguments
from rag_r1.options.server_address import Address
from rag_r1.rollouts.agent_arguments import MODEL_SERVER
from rag_r1.rollouts.arguments import From0, RolloutArguments
from rag_r1.rollouts.checks import all_problems
from rag_r1.rollouts.requests import EpisodeRequest, make_request
from rag_r1.rollouts.session import (
    RunSession,
    check_only,
    open_session,
    prepare,
    run_command,
    settings_of,
    usage_line,
)

_DESCRIPTION = """\
Let a teacher answer questions with search, for supervised fine-tuning. The teacher is any OpenAI-compatible
endpoint; its key is read from the environment. Run again, the same command goes on where it was interrupted,
and asks nothing twice.

example:
  rag-r1 traces --questions data/mq/train.parquet --base-url https://api.example.org/v1 \\
      --teacher-model big-model --retriever-url http://127.0.0.1:8000 --protocol rag_r1_mq --out traces \\
      --price-in 0.4 --price-out 1.2 --max-cost 50
"""
TRACES, SUMMARY = "traces.jsonl", "summary.json"
#: Teachers write more in a turn than small policies.
_DEFAULTS = {"agent": {"max_turn_tokens": 1024}}


class TracesArguments(RolloutArguments):
    """Who is asked, and how often."""

    base_url: Address = argument("address of the endpoint, up to and with /v1", "URL", old="teacher_url")
    teacher_model: str = argument("the model's name there", "NAME")
    engine: Literal["chat", "completions"] = argument(
        "which API of the endpoint is used: chat, or completions with token ids (vLLM)",
        default="chat",
        rare=MODEL_SERVER,
    )
    samples: Positive = argument("episodes for each question", "N", default=1)
    temperature: From0 = argument("of the teacher's sampling", "T", default=1.0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 when all questions are answered or have failed, 3 if the run was stopped before (the reason
    is printed), 1 if it could not begin."""
    args = read_arguments(TracesArguments, arguments, prog="rag-r1 traces", description=_DESCRIPTION)
    return run_command("rag-r1 traces", make_traces, args)


async def make_traces(args: TracesArguments) -> int:
    """Play what is missing, write the files, print the figures; returns the exit status. Raises RunError."""
    with all_problems(args, _DEFAULTS):
        ready = prepare(args, _DEFAULTS)
    if args.check_only:
        return await check_only(args, ready, args.base_url, args.teacher_model)
    protocol, own_prompt = ready.config.protocol, ready.config.own_prompt
    asks = [
        make_request(
            row,
            protocol,
            sample=sample,
            seed=args.seed,
            temperature=args.temperature,
            own_prompt=own_prompt,
        )
        for row in ready.questions.rows
        for sample in range(args.samples)
    ]
    settings = settings_of(args, ready, "traces", samples=args.samples, temperature=args.temperature)
    async with open_session(args, ready, args.base_url, args.teacher_model, settings) as run:
        await run.runner.run((partial(run.runner.play, ask) for ask in asks), len(asks), "trace")
        ids = [ask.id for ask in asks]
        write_json_lines(args.out / TRACES, run.folder.records(ids), private=True)
        summary = {"settings": settings, **figures(run, asks)}
        write_json(args.out / SUMMARY, summary, ensure_ascii=False, private=True)
        _tell(args, run, summary)
        for line in ready.questions.bad.left_out():
            print(line, file=sys.stderr)
        return 0 if run.stop.reason is None else 3


def figures(run: RunSession, asks: Sequence[EpisodeRequest]) -> dict[str, Any]:
    """What came out of these asks, as summary.json has it. Shares are None if there is nothing to count."""
    outcomes = [outcome for ask in asks if (outcome := run.folder.outcome(ask.id)) is not None]
    judged = [outcome for outcome in outcomes if not outcome.failed]
    right = sum(outcome.right is True for outcome in judged)
    solved: dict[str, bool] = {}
    for ask in asks:
        outcome = run.folder.outcome(ask.id)
        if outcome is not None and not outcome.failed:
            solved[ask.question_id] = solved.get(ask.question_id, False) or outcome.right is True
    statuses = Counter(outcome.status for outcome in outcomes)
    usage = run.spending.usage
    return {
        "asked": len(asks),
        "played": len(outcomes),
        "judged": len(judged),
        "right": right,
        "accuracy": right / len(judged) if judged else None,
        "questions_right_once": sum(solved.values()) / len(solved) if solved else None,
        "failed": len(outcomes) - len(judged),
        "failed_and_asked_again": sum(run.runner.is_open(outcome) for outcome in outcomes),
        "statuses": dict(sorted(statuses.items())),
        "tool_failures": sum(outcome.tool_failures > 0 for outcome in outcomes),
        "searches_per_trace": sum(o.searches for o in judged) / len(judged) if judged else None,
        "usage": vars(usage),
        "cost": run.spending.cost,
        "answers": run.answers,
        "stopped": run.stop.reason,
    }


def _tell(args: TracesArguments, run: RunSession, told: dict[str, Any]) -> None:
    """Print the figures, and what to do next."""
    if told["accuracy"] is None:
        print("no trace could be judged")
    else:
        at_least_once = ""
        if args.samples > 1:
            at_least_once = f"; {told['questions_right_once']:.3f} of the questions right at least once"
        term = run.ready.right.term
        print(
            f"accuracy {told['accuracy']:.3f} ({term}): {told['right']} of {told['judged']} traces right"
            + at_least_once
        )
    if told["failed"]:
        again = told["failed_and_asked_again"]
        print(
            f"failed (the endpoint or a search), and not in the accuracy: {told['failed']}"
            + (f"; the same command, run again, asks {again} of them again" if again else "")
        )
    for status, count in told["statuses"].items():
        print(f"  {status:16}{count:8}")
    print(usage_line(run))
    if told["stopped"]:
        left = told["asked"] - told["played"]
        print(f"stopped: {told['stopped']}")
        print(f"{left} traces are missing: run the same command again to go on")
    print(f"traces: {args.out / TRACES}")
    if told["right"]:
        protocol = f"--protocol {args.protocol}" + (f" --prompt {args.prompt}" if args.prompt else "")
        print(f"SFT data: rag-r1 sft-data --traces {args.out} {protocol} --model MODEL --out DIR")


if __name__ == "__main__":
    sys.exit(main())
