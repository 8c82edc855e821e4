"""`rag-r1 eval`: asks a policy all questions of a data set, as in a validation, and reports how it did.

    rag-r1 eval --model CHECKPOINT --data test.parquet --retriever-url URL --out DIR
    rag-r1 eval report DIR
    rag-r1 eval compare DIR DIR
    rag-r1 eval modes --model BEFORE --trained AFTER ...

The agent is that of training: the same core, protocol and search, with the limits of a validation
(`validation_limits`). `run_condition` plays one condition (conditions.py: the agent, or a baseline) into a
folder, and can be killed and started again at any time; runner.py says how. The folder then has

    trajectories/records.jsonl                    a record of each episode, in the order of the questions
    card.json                                     what the result depends on
    report.json, report.md, report_*.png          the figures
    journal/, judge/                              what a resume needs

Where the model runs (`--base-url`, or a server that is started here) is evaluated_model.py's matter.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import model_validator

from data_process.bad_rows import BadRows
from rag_r1.addresses import Address
from rag_r1.agent_setup import AgentSetup
from rag_r1.command_line import Positive, argument, read_arguments
from rag_r1.evaluation import compare as comparing
from rag_r1.evaluation import report as reporting
from rag_r1.evaluation import sigma as proposing
from rag_r1.evaluation.arguments import AskingArguments, From0
from rag_r1.evaluation.asks import ask_of
from rag_r1.evaluation.card import protocol_part
from rag_r1.evaluation.conditions import BASELINES, BaselineName, Condition, agent_condition, baseline
from rag_r1.evaluation.evaluated_card import write_card
from rag_r1.evaluation.evaluated_model import resolved, served
from rag_r1.evaluation.evaluation_text import headline, stopped_line
from rag_r1.evaluation.judge import JudgeArguments, Verdicts, judge
from rag_r1.evaluation.run_folder import Outcome, RunError, write_lines
from rag_r1.evaluation.search_card import gather, make_search_card
from rag_r1.evaluation.session import Prepared, Session, prepare, run_command, session, settings_of
from rag_r1.evaluation.side_files import (
    SideFileError,
    read_answerable,
    read_supporting,
    with_supporting,
)
from rag_r1.evaluation.traces import usage_line
from rag_r1.rows import QuestionRow
from rag_r1.whole_files import in_words

_DESCRIPTION = """\
Evaluate a policy on questions: EM, cover-EM, F1, a judge if there is one, searches, time, failures, with
intervals. The policy is a folder (Hugging Face's, or a checkpoint of veRL), which is served here with vLLM,
or a model behind --base-url. Run again, the same command goes on where it was interrupted, and asks nothing
twice.

example:
  rag-r1 eval --model outputs/rag-r1/grpo --data data/mq/test.parquet --retriever-url http://127.0.0.1:8000 \\
      --answerable checks/wiki-18/answerable_ids.json --out evals/grpo
  rag-r1 eval --baseline one_shot --model Qwen/Qwen2.5-7B-Instruct --base-url http://127.0.0.1:8001/v1 \\
      --data data/mq/test.parquet --retriever-url http://127.0.0.1:8000 --out evals/one_shot

  rag-r1 eval --card --corpus wiki-18.jsonl.gz --model outputs/rag-r1/grpo --data data/mq/test.parquet \\
      --retriever-url http://127.0.0.1:8000 --out evals/card

also: rag-r1 eval report RUN         make the report of a finished run again
      rag-r1 eval compare RUN RUN    compare runs on the questions that they share
      rag-r1 eval modes              a model before and after training, without and with search, in one table
      rag-r1 eval sigma RUN          propose rag_r1.agent.max_state from the states of right and wrong answers
"""
TRAJECTORIES = "trajectories"
#: Limits of the published evaluations, as in the recipes (rag_r1/_common, checkpoints/released,
#: r1_searcher/_common): RAG-R1's five searches and 1,024 tokens a turn, and those of the other dialects.
_RAG_R1 = {"agent": {"max_turns": 5, "max_turn_tokens": 1024}}
_R1_SEARCHER = {"agent": {"max_turns": 8, "max_turn_tokens": 512}, "retriever": {"topk": 5}}
#: Agentic RAG-R1 generates eight times, at most 500 tokens each: seven turns and the one that answers.
_AGENTIC_RAG = {"agent": {"max_turns": 7, "max_turn_tokens": 500}}
_LIMITS: dict[str, dict[str, dict[str, int]]] = {
    "search_r1": {"agent": {"max_turns": 4, "max_turn_tokens": 500, "max_query_observation_tokens": 500}},
    "r1_searcher": _R1_SEARCHER,
    "r1_searcher_instruct": _R1_SEARCHER,
    "agentic_rag_en": _AGENTIC_RAG,
    "agentic_rag_zh": _AGENTIC_RAG,
    "agentic_rag_ssrl": {"agent": {"max_turns": 7, "max_turn_tokens": 4000}},
    "agentic_rag_tools": {"agent": {"max_turns": 4, "max_turn_tokens": 1024}},
}


class PolicyArguments(JudgeArguments, AskingArguments):
    """A policy, where it runs, and what it is asked."""

    finds_tokenizer: ClassVar[bool] = True

    questions: list[Path] = argument(
        "questions: veRL parquet as `rag-r1 data` writes it, or question and answers as JSON, JSON lines, "
        "CSV, TSV or parquet; may be repeated",
        "FILE",
        flag="data",
    )
    model: str = argument(
        "a folder: Hugging Face's, or a checkpoint of veRL; with --base-url, the model's name there", "MODEL"
    )
    base_url: Address | None = argument(
        "a server with the model, up to and with /v1 (default: vLLM is started here)", "URL", default=None
    )
    engine: Literal["chat", "completions"] = argument(
        "which API of the server is used: completions with token ids (vLLM), as in training, or chat",
        default="completions",
    )
    temperature: From0 = argument("0: greedy", "T", default=0.0)
    samples: Positive = argument("episodes for each question", "N", default=1)
    in_flight: Positive = argument("episodes at a time", "N", default=256)
    answerable: Path | None = argument(
        "ids of the questions that the corpus can answer (`rag-r1 corpus check`)", "FILE", default=None
    )
    supporting: Path | None = argument(
        "the passages that each question needs: for their recall, and what --card shows and withholds",
        "FILE",
        default=None,
    )
    index: Path | None = argument("folder of the retrieval server's index, for the card", "DIR", default=None)
    vllm_options: str = argument(
        'further flags of the server that is started here, "--tensor-parallel-size 2"', "FLAGS", default=""
    )

    @model_validator(mode="after")
    def _samples_differ(self) -> PolicyArguments:
        if self.samples > 1 and self.temperature == 0:
            raise ValueError("--samples above 1 needs a --temperature above 0: greedy samples are equal")
        return self


class EvalArguments(PolicyArguments):
    """How else the policy is asked."""

    baseline: BaselineName | None = argument(
        "ask in another way than the agent: at once, with a chain of thought, with one search for the "
        "question itself, or as the agent without search",
        f"{{{','.join(BASELINES)}}}",
        default=None,
    )
    card: bool = argument(
        "does it search, or does it already know? Also play the questions with a closed book, with other "
        "results of the search, and without the gold passages",
        default=False,
    )
    corpus: list[Path] = argument("the corpus, for --card; may be repeated", "FILE", default=[])

    @model_validator(mode="after")
    def _card_is_the_agents(self) -> EvalArguments:
        if self.card and self.baseline is not None:
            raise ValueError("--card is about the agent: leave out --baseline")
        if self.corpus and not self.card:
            raise ValueError("--corpus is for --card")
        return self


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 when all questions are answered or have failed, 3 if the run was stopped before (the reason
    is printed), 1 if it could not begin."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments[:1] == ["report"]:
        return reporting.main(arguments[1:])
    if arguments[:1] == ["compare"]:
        return comparing.main(arguments[1:])
    if arguments[:1] == ["modes"]:
        from rag_r1.evaluation import modes  # it imports this module

        return modes.main(arguments[1:])
    if arguments[:1] == ["sigma"]:
        return proposing.main(arguments[1:])
    given = read_arguments(EvalArguments, arguments, prog="rag-r1 eval", description=_DESCRIPTION)
    return run_command(partial(evaluate, given))


async def evaluate(given: EvalArguments) -> int:
    """Evaluate as the arguments say; returns the exit status. Raises RunError."""
    given = resolved(given)
    ready = prepare_evaluation(given)
    if given.card:
        passages = gather(given, ready)
        with served(given) as given:
            return await make_search_card(given, ready, passages)
    if given.baseline is None:
        condition = agent_condition(ready.setup)
    else:
        condition = baseline(given.baseline, ready.setup)
    with served(given) as given:
        return await run_condition(given, ready, condition, given.out)


def prepare_evaluation(given: EvalArguments) -> Prepared:
    """Read and check everything that needs no server. Raises RunError."""
    bad, supporting = BadRows(), None
    try:
        if given.answerable:
            read_answerable(given.answerable, bad)
        if given.supporting:
            supporting = read_supporting(given.supporting, bad)
        if bad.count and not given.skip_bad_rows:
            raise RunError(bad.refusal())
        ready = prepare(given, validation_limits(given.protocol), validation=True)
        if given.card and supporting is not None:
            rows = with_supporting(ready.questions.rows, supporting)
            ready = replace(ready, questions=replace(ready.questions, rows=rows))
    except SideFileError as error:
        raise RunError(str(error)) from error
    return ready


def validation_limits(protocol: str) -> dict[str, dict[str, int]]:
    """Keys of the block rag_r1 for a protocol's evaluation; RAG-R1's for a protocol of the user's own."""
    return _LIMITS.get(protocol, _RAG_R1)


async def run_condition(given: PolicyArguments, ready: Prepared, condition: Condition, out: Path) -> int:
    """Play all questions of a condition into the folder `out`, and write its report; returns 0, or 3 if the
    run was stopped before its end.

    `given.base_url` is the server (evaluated_model.py). Raises RunError; a run that was interrupted goes on.
    """
    rows = [row for row in ready.questions.rows if condition.applies(row)]
    if not rows:
        raise RunError(f"no question can be asked under the condition {condition.name}")
    first = _setup_of(condition, rows[0])
    settings = settings_of(
        given,
        ready,
        "eval",
        condition=condition.name,
        condition_options=dict(condition.options),
        prompt_sha256=protocol_part(first.protocol).prompt_sha256,
        samples=given.samples,
        temperature=given.temperature,
    )
    settings["budget"] = vars(first.budget)
    assert given.base_url is not None
    async with session(
        given, ready, given.base_url, given.model, settings, out=out, searches=condition.searches
    ) as run:
        write_card(given, ready, condition, first, run.answers, out)
        jobs = (
            partial(_play, run, condition, row, sample, given)
            for row in rows
            for sample in range(given.samples)
        )
        played = await run.runner.run(jobs, len(rows) * given.samples, "question")
        if run.stop.reason is not None:
            print(usage_line(run))
            print(stopped_line(run.stop.reason, f"{played.count(None)} episodes are missing"))
            return 3
        outcomes = [outcome for outcome in played if outcome is not None]
        verdicts = await _write_records(given, run, outcomes, out)
    _report(given, run, condition, outcomes, verdicts, out)
    return 0 if verdicts is None or verdicts.stopped is None else 3


async def _play(
    run: Session, condition: Condition, row: QuestionRow, sample: int, given: PolicyArguments
) -> Outcome:
    setup = _setup_of(condition, row)
    ask = ask_of(
        row,
        setup.protocol,
        sample=sample,
        seed=given.seed,
        temperature=given.temperature,
        own_prompt=setup.own_prompt,
        setup=setup,
        search_first=condition.search_first,
        metadata=row.metadata,
    )
    return await run.runner.play(ask)


def _setup_of(condition: Condition, row: QuestionRow) -> AgentSetup:
    try:
        return condition.setup(row)
    except ValueError as error:
        raise RunError(f"{row.id} cannot be asked under the condition {condition.name}: {error}") from error


async def _write_records(
    given: PolicyArguments, run: Session, outcomes: Sequence[Outcome], out: Path
) -> Verdicts | None:
    """Write the records in the order of the questions, with the judge's term if there is a judge."""
    ids = [outcome.id for outcome in outcomes]
    verdicts = None
    if given.judge_url is not None:
        verdicts = await judge(
            given,
            run.folder.records(ids),
            out / "judge",
            retries=given.retries,
            timeout_s=given.timeout_s,
            backoff_s=given.backoff_s,
            trust_env=given.trust_env,
        )
    folder = out / TRAJECTORIES
    folder.mkdir(mode=0o700, exist_ok=True)
    records = run.folder.records(ids)
    if verdicts is not None:
        records = map(verdicts.put_into, records)
    write_lines(
        folder / "records.jsonl", (json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    )
    return verdicts


def _report(
    given: PolicyArguments,
    run: Session,
    condition: Condition,
    outcomes: Sequence[Outcome],
    verdicts: Verdicts | None,
    out: Path,
) -> None:
    """Write the report and print its main figures."""
    options = reporting.ReportOptions(
        answerable=given.answerable, supporting=given.supporting, skip_bad_rows=given.skip_bad_rows
    )
    try:
        report: dict[str, Any] = reporting.make_report(out, options)
    except reporting.WRONG_RUN as error:
        raise RunError(f"the records are complete, but not the report: {in_words(error)}") from error
    for line in headline(report, condition.name):
        print(line)
    if failed := sum(outcome.failed for outcome in outcomes):
        again = sum(map(run.runner.is_open, outcomes))
        print(
            f"failed (the endpoint or a search), and not in the figures: {failed}"
            + (f"; the same command, run again, asks {again} of them again" if again else "")
        )
    if verdicts is not None:
        print(verdicts.told())
        if verdicts.stopped is not None:
            print(stopped_line(verdicts.stopped, "the judge has not seen all answers"))
    print(usage_line(run))
    for line in run.ready.questions.bad.left_out():
        print(line, file=sys.stderr)
    print(f"report: {out / reporting.REPORT_MD}")


if __name__ == "__main__":
    sys.exit(main())
