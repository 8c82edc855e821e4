"""`rag-r1 traces`: records a teacher's trajectories, the first step of RAG-R1 (arXiv 2507.02962).

The teacher is a language model behind any OpenAI-compatible endpoint. It plays the same episodes as a policy
in training, with the same protocol, search and limits. The run can be interrupted and resumed at any time
(rag_r1/rollouts/runner.py). When it ends, or is stopped by a limit, it writes

    traces.jsonl    the trajectory record of each question and sample, in the order of the questions, with
                    `right` (true, false, or null if the infrastructure failed), `golds`, `rewards`, `prompt`
    summary.json    the figures that are printed

The accuracy is the share of right answers among the episodes that could be judged. The number of failed
episodes is printed as well.
"""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Literal

from pydantic import model_validator

from rag_r1.evaluation.provenance import write_provenance
from rag_r1.io.atomic_files import write_json, write_json_lines
from rag_r1.options.command_exit import ExitStatus
from rag_r1.options.command_line import From0, Positive, argument
from rag_r1.options.server_address import Address
from rag_r1.rollouts.agent_arguments import MODEL_SERVER
from rag_r1.rollouts.arguments import RolloutArguments
from rag_r1.rollouts.checks import all_problems, check_known_settings, check_servers
from rag_r1.rollouts.command_run import read_and_run
from rag_r1.rollouts.requests import EpisodeRequest, check_prompt_limit, make_request
from rag_r1.rollouts.session import RunSession, check_only, open_session, prepare, settings_of, usage_line
from rag_r1.runs.cancel_token import stop_message
from rag_r1.runs.folder import check_settings

COMMAND = "rag-r1 traces"
_DESCRIPTION = """\
Let a teacher answer questions with search, for supervised fine-tuning. The teacher is any OpenAI-compatible
endpoint; its key is read from the environment. Run again, the same command goes on where it was interrupted,
and asks nothing twice.

example:
  rag-r1 traces --questions data/mq/train.parquet --base-url https://api.example.org/v1 \\
      --teacher-model big-model --retriever-url http://127.0.0.1:8000 --protocol rag_r1_mq --out traces \\
      --price-in 0.4 --price-out 1.2 --max-cost 50
"""
TRACES = "traces.jsonl"
SUMMARY = "summary.json"
#: Settings that differ from those of other rollouts: teachers write longer turns than small policies.
_DEFAULTS = {"agent": {"max_turn_tokens": 1024}}


class TracesArguments(RolloutArguments):
    """The arguments of `rag-r1 traces`."""

    model_flag: ClassVar[str] = "--teacher-model"
    writes: ClassVar[tuple[str, ...]] = (TRACES, SUMMARY)

    base_url: Address = argument("address of the endpoint, up to and with /v1", "URL", old="teacher_url")
    teacher_model: str = argument("name of the model at the endpoint", "NAME")
    engine: Literal["chat", "completions"] = argument(
        "API of the endpoint: chat, or completions with token ids (vLLM)", default="chat", rare=MODEL_SERVER
    )
    samples: Positive = argument("episodes for each question", "N", default=1)
    temperature: From0 = argument("temperature of the teacher's sampling", "T", default=1.0)

    @model_validator(mode="after")
    def _samples_differ(self) -> TracesArguments:
        if self.samples > 1 and self.temperature == 0:
            raise ValueError("--samples above 1 needs a --temperature above 0: greedy samples are equal")
        return self


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `rag-r1 traces` and return its exit status.

    The status is 0 when all episodes have been played and not all have failed, 3 if the run was stopped early
    (the reason is printed), and 1 if it could not begin or all episodes have failed.
    """
    return read_and_run(COMMAND, TracesArguments, make_traces, arguments, _DESCRIPTION)


async def make_traces(args: TracesArguments) -> int:
    """Play the missing episodes, write the files and print a summary; returns the exit status.

    Raises RunError if a check fails or the run cannot be opened.
    """
    server_check = partial(check_servers, args, _DEFAULTS, args.base_url, args.teacher_model)
    sampling = {"samples": args.samples, "temperature": args.temperature}
    model = args.teacher_model
    settings_check = partial(check_known_settings, args, _DEFAULTS, **sampling, model=model)
    with all_problems(args, _DEFAULTS, [server_check, settings_check]):
        run_setup = prepare(args, _DEFAULTS)
        check_prompt_limit(run_setup.questions.rows, run_setup.setup)
        settings_check()
    settings = settings_of(args, run_setup, "traces", **sampling)
    check_settings(args.out, {**settings, "model": model}, is_complete=False)
    if args.check_only:
        return await check_only(args, run_setup, args.base_url, args.teacher_model)
    protocol, own_prompt = run_setup.config.protocol, run_setup.config.own_prompt
    requests = [
        make_request(
            row, protocol, sample=sample, seed=args.seed, temperature=args.temperature, own_prompt=own_prompt
        )
        for row in run_setup.questions.rows
        for sample in range(args.samples)
    ]
    async with open_session(args, run_setup, args.base_url, args.teacher_model, settings) as run:
        write_provenance(args, run, args.teacher_model, sampling={**sampling, "top_p": args.top_p})
        jobs = (partial(run.runner.play, request) for request in requests)
        await run.runner.run(jobs, len(requests), "trace")
        records = run.folder.records([request.id for request in requests])
        write_json_lines(args.out / TRACES, records, private=True)
        summary = {"settings": settings, **figures(run, requests)}
        write_json(args.out / SUMMARY, summary, ensure_ascii=False, private=True)
        _print_summary(args, run, summary)
        for line in run_setup.questions.bad.left_out():
            print(line, file=sys.stderr)
        if run.stop.reason is not None:
            return ExitStatus.STOPPED
        return ExitStatus.DONE if summary["failed"] < len(requests) else ExitStatus.FAILED


def figures(run: RunSession, requests: Sequence[EpisodeRequest]) -> dict[str, Any]:
    """Return the figures of summary.json for these requests. A share is None if there is nothing to count."""
    played = [(request.question_id, run.folder.outcome(request.id)) for request in requests]
    outcomes = [outcome for _, outcome in played if outcome is not None]
    judged = [outcome for outcome in outcomes if not outcome.failed]
    right = sum(outcome.right is True for outcome in judged)
    questions = {question for question, outcome in played if outcome is not None and not outcome.failed}
    solved = {question for question, outcome in played if outcome is not None and outcome.right}
    statuses = Counter(outcome.status for outcome in outcomes)
    return {
        "asked": len(requests),
        "played": len(outcomes),
        "judged": len(judged),
        "right": right,
        "accuracy": right / len(judged) if judged else None,
        "questions_right_once": len(solved) / len(questions) if questions else None,
        "failed": len(outcomes) - len(judged),
        "failed_and_asked_again": sum(run.runner.is_open(outcome) for outcome in outcomes),
        "statuses": dict(sorted(statuses.items())),
        "tool_failures": sum(outcome.tool_failures > 0 for outcome in outcomes),
        "searches_per_trace": sum(outcome.searches for outcome in judged) / len(judged) if judged else None,
        "usage": vars(run.spending.usage),
        "cost": run.spending.cost,
        "answers": run.answers,
        "stopped": run.stop.reason,
    }


def _print_summary(args: TracesArguments, run: RunSession, summary: dict[str, Any]) -> None:
    """Print accuracy, failures, statuses and usage, and what to do next."""
    if summary["accuracy"] is None:
        print("no trace could be judged")
    else:
        accuracy = f"accuracy {summary['accuracy']:.3f} ({run.run_setup.correctness.term})"
        line = f"{accuracy}: {summary['right']} of {summary['judged']} traces right"
        if args.samples > 1:
            line += f"; {summary['questions_right_once']:.3f} of the questions right at least once"
        print(line)
    if summary["failed"]:
        line = f"failed (the endpoint or a search), and not in the accuracy: {summary['failed']}"
        if count := summary["failed_and_asked_again"]:
            line += f"; the same command, run again, asks {count} of them again"
        print(line)
    for status, count in summary["statuses"].items():
        print(f"  {status:16}{count:8}")
    print(usage_line(run))
    if summary["stopped"]:
        missing = summary["asked"] - summary["played"]
        print(stop_message(summary["stopped"], f"{missing} traces are missing"))
    print(f"traces: {args.out / TRACES}")
    if summary["right"]:
        flags = ["--traces", str(args.out), "--protocol", args.protocol]
        flags += ["--prompt", args.prompt] if args.prompt else []
        print(f"SFT data: rag-r1 sft-data {shlex.join(flags)} --model MODEL --out DIR")


if __name__ == "__main__":
    sys.exit(main())
