"""`rag-r1 retriever data`: training data for a retriever, from what helps the agent (Agentic-R).

    trajectories   the agent plays the questions, greedily: an evaluation             trajectories/
    candidates     the best passages of the current retriever for each search         candidates.jsonl
    correctness    with one candidate alone, does the agent answer rightly? (GAC)     correctness.jsonl
    relevance      a judge's, or a rule's, score of each candidate (LR)               relevance.jsonl
    selection      positives and negatives by these two                               train.jsonl

`passages.jsonl` has the text of all candidates, `sub_answers.jsonl` what the judge took each search to be
for, and `summary.json` the figures. Each step keeps what it has found out in `steps/` (results.py), so the
command can be killed at any moment: run again, it goes on, asks nothing twice, and ends with the same files.
What is random depends on the seed and the round alone. A failed search, continuation or request of the judge
leaves its round out until the next start has tried it again; the rounds that are complete are written all the
same.

The selection reads the written scores, so another rule needs no new ones: run the same command with it, or
`rag-r1 retriever select`, which needs no server.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from rag_r1.command_line import Positive, argument, read_arguments
from rag_r1.evaluation.arguments import From0
from rag_r1.evaluation.conditions import agent_condition
from rag_r1.evaluation.evaluate import PolicyArguments, run_condition, validation_limits
from rag_r1.evaluation.evaluated_model import resolved, served
from rag_r1.evaluation.evaluation_text import stopped_line
from rag_r1.evaluation.judge import judge_endpoint
from rag_r1.evaluation.run_folder import RunError, as_json, write_whole
from rag_r1.evaluation.session import Prepared, prepare, run_command, session, settings_of
from rag_r1.evaluation.traces import usage_line
from rag_r1.options import Must
from rag_r1.protocols import Document
from rag_r1.retriever.candidates import Candidates, retriever_settings
from rag_r1.retriever.correctness import POOL, Correctness
from rag_r1.retriever.estimate import estimate
from rag_r1.retriever.judge import Judge
from rag_r1.retriever.records import (
    CANDIDATES,
    CORRECTNESS,
    PASSAGES,
    RELEVANCE,
    SUB_ANSWERS,
    TRAIN,
    RecordsError,
    write_records,
)
from rag_r1.retriever.relevance import Relevance, rule_records
from rag_r1.retriever.scores import ScoreFiles
from rag_r1.retriever.select_command import SelectionArguments, write_rows
from rag_r1.retriever.trajectories import REASONS, Trajectories

_DESCRIPTION = """\
Make training data for a retriever: which passages help the agent? The agent plays questions; for each of its
searches the retriever's best passages are tried out one by one, and a judge scores them. Run again, the same
command goes on where it was interrupted, and asks nothing twice.

example:
  rag-r1 retriever data --model outputs/agent --data data/hotpotqa/train.parquet --protocol search_r1 \\
      --retriever-url http://127.0.0.1:8000 --judge-url http://127.0.0.1:8001/v1 --judge-model judge \\
      --out data/agentic_r/round1 --estimate

With --estimate it ends when it is known what the scores will cost; without, it goes on to train.jsonl.
"""
SUMMARY = "summary.json"
From0Count = Annotated[int, Field(ge=0), Must("a whole number of at least 0")]
#: In `steps/`: the settings with which the trajectories were played.
PLAYED = "trajectories.json"


class DataArguments(SelectionArguments, PolicyArguments):
    """Whose searches are scored, and how."""

    candidates: Positive = argument("passages of each search that are scored", "N", default=20)
    samples: Positive = argument("continuations for each candidate", "N", default=1)
    temperature: From0 = argument("of the continuations; 0: greedy, as the trajectories", "T", default=0.0)
    beside: From0Count = argument(
        "unrelated passages shown behind each candidate, for an agent that cannot read a single one",
        "N",
        default=0,
    )
    trajectories: Path | None = argument(
        "a finished run of `rag-r1 eval` with this agent, whose searches are scored (default: it is played "
        "here)",
        "DIR",
        default=None,
    )
    estimate: bool = argument("end when it is known what the scores will cost", default=False)


@dataclass
class _Making:
    """The data under way. `told`: the figures of summary.json."""

    given: DataArguments
    ready: Prepared
    search: dict[str, Any]
    told: dict[str, Any] = field(default_factory=dict)

    def out(self, name: str) -> Path:
        return self.given.out / name

    def step(self, name: str) -> Path:
        return self.given.out / "steps" / name

    @property
    def settings(self) -> dict[str, Any]:
        """What decides how the trajectories are played. Of a model in a folder its files count, too, which a
        training may have written anew."""
        model, files = Path(self.given.model), {}
        if model.is_dir():
            facts = ((path.name, path.stat()) for path in sorted(model.iterdir()))
            files = {name: [fact.st_size, fact.st_mtime_ns] for name, fact in facts}
        more = {"model": self.given.model, "files": files, "served": self.search["served"]}
        return as_json(settings_of(self.given, self.ready, "trajectories", **more))

    def has_played(self) -> bool:
        """Were all of them played, with these settings and without a failure?"""
        try:
            before = json.loads(self.step(PLAYED).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        return before == self.settings


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 when the rows are written, 3 if the run was stopped before (the reason is printed), 1 if it
    could not begin."""
    given = read_arguments(DataArguments, arguments, prog="rag-r1 retriever data", description=_DESCRIPTION)
    return run_command(partial(make_data, given))


async def make_data(given: DataArguments) -> int:
    """Take all steps that are not done; returns the exit status. Raises RunError."""
    given = resolved(given)
    ready = prepare(given, validation_limits(given.protocol), validation=True)
    budget = ready.setup.budget
    if budget.paths > 1 or budget.max_state is not None:
        raise RunError(
            "rag_r1.agent.paths above 1, and max_state, do not go with continuations: leave them out"
        )
    making = _Making(given, ready, retriever_settings(ready))
    continues = not given.estimate and given.utility != "relevance"
    needs_model = continues or (given.trajectories is None and not making.has_played())
    with Candidates(ready, making.search, given.candidates, making.step("candidates")) as candidates:
        with served(given) if needs_model else nullcontext(given) as at_server:
            making.given = at_server
            trajectories = await _trajectories(making)
            if trajectories is None or not await _candidates(making, candidates, trajectories):
                return 3
            if given.estimate:
                return 0
            if given.utility != "relevance" and not await _correctness(making, candidates, trajectories):
                return 3
        if given.utility != "correctness" and not await _relevance(making, candidates, trajectories):
            return 3
    _select(making)
    return 0


async def _trajectories(making: _Making) -> Trajectories | None:
    """The agent's trajectories; None if their run was stopped."""
    given, run = making.given, making.given.trajectories
    if run is None:
        run = making.out("trajectories")
        rows = len(making.ready.questions.rows)
        turns, topk = making.ready.setup.budget.max_turns, given.candidates
        most = rows * turns * topk
        print(f"trajectories: {rows:,} questions; at most {most:,} candidates, if each turn makes one search")
        played = given.model_copy(
            update={"samples": 1, "temperature": 0.0, "judge_url": None, "judge_model": None}
        )
        agent = agent_condition(making.ready.setup)
        if not making.has_played() and await run_condition(played, making.ready, agent, run):
            return None
    trajectories = Trajectories(run, making.ready.setup)
    if given.trajectories is None and not trajectories.left_out["failed"]:
        write_whole(making.step(PLAYED), json.dumps(making.settings, indent=2) + "\n")
    making.told["trajectories"] = {
        "used": len(trajectories),
        "searches": trajectories.rounds,
        "left_out": dict(sorted(trajectories.left_out.items())),
        "usage": vars(trajectories.usage),
    }
    print(f"trajectories with searches: {len(trajectories):,}, searches: {trajectories.rounds:,}")
    for why, count in sorted(trajectories.left_out.items()):
        print(f"  left out: {count:,} trajectories, {REASONS[why]}")
    if not len(trajectories):
        raise RunError(f"no trajectory of {run} has a search that can be scored")
    return trajectories


async def _candidates(making: _Making, candidates: Candidates, trajectories: Trajectories) -> bool:
    """Find and write the candidates, and tell what their scores will cost; whether there are any."""
    given = making.given
    failed = await candidates.find(trajectories, given.in_flight)
    if failed:
        print(f"searches that failed: {failed:,} ({candidates.problem}); the same command asks them again")
    if failed == trajectories.rounds:
        return False
    candidates.write(trajectories, making.out(CANDIDATES), making.out(PASSAGES))
    cost = estimate(
        trajectories,
        candidates,
        given.utility,
        samples=given.samples,
        in_characters=making.ready.tokens.tokenizer is None,
        has_judge=given.judge_url is not None,
    )
    making.told["candidates"] = {"searches": cost.rounds, "passages": cost.passages, "failed": failed}
    making.told["continuations"] = cost.continuations
    for line in cost.lines(given, given.price_in, given.price_out):
        print(line)
    return True


async def _correctness(making: _Making, candidates: Candidates, trajectories: Trajectories) -> bool:
    """Play and write the continuations; whether all were played."""
    given, ready = making.given, making.ready
    assert given.base_url is not None
    if given.max_cost is not None and given.trajectories is None:
        left = given.max_cost - trajectories.usage.cost(given.price_in, given.price_out)
        if left <= 0:
            print(stopped_line("the trajectories have cost --max-cost", "the continuations are missing"))
            return False
        given = given.model_copy(update={"max_cost": left})
    settings = settings_of(
        given,
        ready,
        "continuations",
        samples=given.samples,
        temperature=given.temperature,
        served=making.search["served"],
        beside=given.beside,
    )
    out = making.step("correctness")
    async with session(given, ready, given.base_url, given.model, settings, out=out) as run:
        texts = candidates.passages(trajectories) if given.beside else ()
        others = [Document(passage.id, passage.contents) for passage in islice(texts, POOL)]
        scores = Correctness(
            run, candidates, given.samples, given.temperature, given.seed, others, given.beside
        )
        done = await scores.play(trajectories, making.told["continuations"])
        print(usage_line(run))
        if not done:
            print(stopped_line(str(run.stop.reason), "continuations are missing"))
            return False
        scored = write_records(making.out(CORRECTNESS), scores.records(trajectories))
        making.told["correctness"] = {"searches": scored, "usage": vars(run.spending.usage)}
    _tell_missing(making, "correctness", scored)
    return True


async def _relevance(making: _Making, candidates: Candidates, trajectories: Trajectories) -> bool:
    """Score and write the relevance of all candidates; whether the judge was asked about all."""
    given = making.given
    if given.judge_url is None:
        print("relevance: no --judge-url, so a passage is relevant if an accepted answer stands in it")
        scored = write_records(making.out(RELEVANCE), rule_records(candidates, trajectories))
        making.told["relevance"] = {"searches": scored, "judge": None}
        return True
    ways = {name: getattr(given, name) for name in ("retries", "timeout_s", "backoff_s", "trust_env")}
    with Relevance(given, candidates, making.step("relevance")) as relevance:
        tape = relevance.results.folder.tape
        async with judge_endpoint(given, tape, **ways) as endpoint:
            judge = Judge(given, endpoint, tape)
            await relevance.score(judge, trajectories)
            if endpoint.stop.reason is not None:
                print(stopped_line(endpoint.stop.reason, "the judge has not scored all candidates"))
                return False
        write_records(making.out(SUB_ANSWERS), relevance.sub_answers(trajectories))
        scored = write_records(making.out(RELEVANCE), relevance.records(trajectories))
        making.told["relevance"] = {
            "searches": scored,
            "judge": given.judge_model,
            "usage": vars(tape.usage),
        }
        for what, count in sorted(judge.counts.items()):
            print(f"  requests to the judge that were {what}: {count:,}")
    _tell_missing(making, "relevance", scored)
    return True


def _tell_missing(making: _Making, what: str, scored: int) -> None:
    searches = making.told["candidates"]["searches"]
    print(f"{what}: {scored:,} of {searches:,} searches scored")
    if scored < searches:
        print("  the same command tries the others again")


def _select(making: _Making) -> None:
    """Write the rows and the summary."""
    given, uses = making.given, making.given.utility
    files = ScoreFiles(
        candidates=making.out(CANDIDATES),
        relevance=None if uses == "correctness" else making.out(RELEVANCE),
        correctness=None if uses == "relevance" else making.out(CORRECTNESS),
    )
    rule = given.rule(given.seed)
    try:
        selection = write_rows(files, rule, making.out(TRAIN))
    except RecordsError as error:
        raise RunError(str(error)) from error
    making.told["selection"] = {
        **vars(rule),
        "rounds": selection.rounds,
        "rows": selection.rows,
        "left_out": dict(sorted(selection.left_out.items())),
    }
    write_whole(making.out(SUMMARY), json.dumps(making.told, indent=2, ensure_ascii=False) + "\n")
    for line in selection.told():
        print(line)
    print(f"training rows: {making.out(TRAIN)}; text of their passages: {making.out(PASSAGES)}")
