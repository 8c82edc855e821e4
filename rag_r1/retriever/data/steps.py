"""The steps of `rag-r1 retriever data`, each resumable.

A step that has an end is marked when nothing of it is left to do: the trajectories by
`steps/trajectories.json`, the continuations by `steps/correctness.json`, with the settings and the input that
this was found for. A marked step needs no model, so a start that has only to select again, or to ask the
judge, does not load one.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from rag_r1.data.rows import step_answers_of
from rag_r1.evaluation.baselines import agent_condition
from rag_r1.evaluation.condition_run import run_condition
from rag_r1.evaluation.judge import judge_endpoint
from rag_r1.evaluation.report.summary import stop_message
from rag_r1.evaluation.target import serve_model
from rag_r1.io.atomic_files import write_json
from rag_r1.io.bounded_json import read_json_file
from rag_r1.io.terminal_text import terminal_text
from rag_r1.protocols import Document
from rag_r1.retriever.data.arguments import DataArguments
from rag_r1.retriever.data.candidates import CandidateStore
from rag_r1.retriever.data.check_run import check_run
from rag_r1.retriever.data.correctness import POOL, CorrectnessScorer
from rag_r1.retriever.data.cost_estimate import estimate_cost
from rag_r1.retriever.data.judge import RelevanceJudge
from rag_r1.retriever.data.relevance import RelevanceScorer, rule_records
from rag_r1.retriever.data.trajectories import REASONS, TrajectoryReader
from rag_r1.retriever.records import CANDIDATES, CORRECTNESS, PASSAGES, RELEVANCE, SUB_ANSWERS, write_records
from rag_r1.rollouts.session import RunSetup, open_session, settings_of, usage_line
from rag_r1.runs.errors import RunError
from rag_r1.runs.settings import changed_settings, json_roundtrip

#: In `steps/`: that nothing is left to play.
PLAYED, SCORED = "trajectories.json", "correctness.json"


@dataclass
class DataRun:
    """The data under way. `search`: the settings of the retriever; `opened`: closes the model's server, if
    one is started; `told`: the figures of summary.json."""

    args: DataArguments
    ready: RunSetup
    search: dict[str, Any]
    opened: ExitStack
    told: dict[str, Any] = field(default_factory=dict)

    def out(self, name: str) -> Path:
        """A file of the result."""
        return self.args.out / name

    def step(self, name: str) -> Path:
        """A file or folder of the steps."""
        return self.args.out / "steps" / name

    def serve(self) -> DataArguments:
        """The arguments with the address of the model's server, which is started if it has none."""
        self.args = self.opened.enter_context(serve_model(self.args))
        return self.args

    def settings(self, what: str, **more: Any) -> dict[str, Any]:
        """What decides how episodes are played. Of a model in a folder its files count, too, which a training
        may have written anew."""
        model, files = Path(self.args.model), {}
        if model.is_dir():
            facts = ((path.name, path.stat()) for path in sorted(model.iterdir()))
            files = {name: [fact.st_size, fact.st_mtime_ns] for name, fact in facts}
        return settings_of(self.args, self.ready, what, files=files, served=self.search["served"], **more)

    def mark(self, name: str, settings: dict[str, Any], **found: Any) -> None:
        """Note that with these settings nothing is left to do, and what was found."""
        write_json(self.step(name), {"settings": json_roundtrip(settings), **found}, private=True)

    def marked(self, name: str, settings: dict[str, Any]) -> dict[str, Any] | None:
        """What was noted with these settings, or None. Failures are left as they are for as many --tries."""
        try:
            noted = read_json_file(self.step(name))
            same = not changed_settings(noted["settings"], json_roundtrip(settings))
            return noted if same and self.args.tries <= (noted["tries"] or self.args.tries) else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def print_missing(self, what: str, scored: int, again: int, why: str) -> None:
        """Print how many searches are scored, how many of the others the same command tries `again`, and
        what is the matter with the rest."""
        searches = self.told["candidates"]["searches"]
        print(f"{what}: {scored:,} of {searches:,} searches scored")
        if again:
            print(f"  the same command tries {again:,} of the others again")
        if rest := searches - scored - again:
            print(f"  not tried again: {rest:,}, {why}")


async def trajectories_of(making: DataRun) -> TrajectoryReader | None:
    """The agent's trajectories; None if their run was stopped."""
    given, run, rows = making.args, making.args.trajectories, making.ready.questions.rows
    settings = making.settings("trajectories", model=given.model)
    if run is None:
        run = making.out("trajectories")
        most = len(rows) * making.ready.setup.budget.max_turns * given.candidates
        told = f"at most {most:,} candidates, if each turn makes one search"
        print(f"trajectories: {len(rows):,} questions; {told}")
        agent = agent_condition(making.ready.setup)
        if making.marked(PLAYED, settings) is None:
            alone = {"samples": 1, "temperature": 0.0, "judge_url": None, "judge_model": None}
            played = making.serve().model_copy(update=alone)
            if await run_condition(played, making.ready, agent, run):
                return None
    steps = {row.id: named for row in rows if (named := step_answers_of(row.metadata))}
    trajectories = TrajectoryReader(run, making.ready.setup, steps)
    if given.trajectories is not None:
        check_run(run, given.model, making.ready.setup)
    elif not any(outcome.is_open(given.tries) for outcome in trajectories.failed):
        making.mark(PLAYED, settings, tries=given.tries if trajectories.failed else None)
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


async def find_candidates(
    making: DataRun, candidates: CandidateStore, trajectories: TrajectoryReader
) -> bool:
    """Find and write the candidates, and tell what their scores will cost; whether there are any."""
    args = making.args
    failed = await candidates.find(trajectories, args.in_flight)
    if failed:
        why = terminal_text(candidates.problem)
        print(f"searches that failed: {failed:,} ({why}); the same command asks them again")
    if failed == trajectories.rounds:
        return False
    candidates.write(trajectories, making.out(CANDIDATES), making.out(PASSAGES))
    cost = estimate_cost(
        trajectories,
        candidates,
        args.utility,
        samples=args.samples,
        in_characters=making.ready.tokens.tokenizer is None,
        has_judge=args.judge_url is not None,
    )
    making.told["candidates"] = {"searches": cost.rounds, "passages": cost.passages, "failed": failed}
    making.told["continuations"] = cost.continuations
    for line in cost.lines(args, args.price_in, args.price_out):
        print(line)
    return True


async def score_correctness(
    making: DataRun, candidates: CandidateStore, trajectories: TrajectoryReader
) -> bool:
    """Play and write the continuations; whether all were played."""
    args = making.args
    more = {"samples": args.samples, "temperature": args.temperature, "beside": args.beside}
    settings = making.settings("continuations", **more)
    noted = {**settings, "model": args.model, "candidates": candidates.fingerprint(trajectories)}
    marked = making.marked(SCORED, noted)
    if marked is None or not making.out(CORRECTNESS).is_file():
        making.step(SCORED).unlink(missing_ok=True)  # it is about a file that is written anew
        found = await _played(making, candidates, trajectories, settings)
        if found is None:
            return False
        if not found["again"]:
            tries = args.tries if found["searches"] < making.told["candidates"]["searches"] else None
            making.mark(SCORED, noted, tries=tries, **found)
    else:
        found = {name: marked[name] for name in ("searches", "again", "usage")}
    making.told["correctness"] = {name: found[name] for name in ("searches", "usage")}
    why = "of which a continuation has failed --tries times"
    making.print_missing("correctness", found["searches"], found["again"], why)
    return True


async def _played(
    making: DataRun, candidates: CandidateStore, trajectories: TrajectoryReader, settings: dict[str, Any]
) -> dict[str, Any] | None:
    """Play what is missing and write the scores; what was found, or None if the run was stopped."""
    args = making.args
    if args.max_cost is not None and args.trajectories is None:
        left = args.max_cost - trajectories.usage.cost(args.price_in, args.price_out)
        if left <= 0:
            print(stop_message("the trajectories have cost --max-cost", "the continuations are missing"))
            return None
        args = args.model_copy(update={"max_cost": left})
    url, out = making.serve().base_url, making.step("correctness")
    assert url is not None
    async with open_session(args, making.ready, url, args.model, settings, out=out) as run:
        texts = candidates.passages(trajectories) if args.beside else ()
        others = [Document(passage.id, passage.contents) for passage in islice(texts, POOL)]
        scores = CorrectnessScorer(
            run, candidates, args.samples, args.temperature, args.seed, others, args.beside
        )
        done = await scores.play(trajectories, making.told["continuations"])
        print(usage_line(run))
        if not done:
            print(stop_message(str(run.stop.reason), "continuations are missing"))
            return None
        scored = write_records(making.out(CORRECTNESS), scores.records(trajectories))
        again = scores.open_rounds(trajectories)
        return {"searches": scored, "again": again, "usage": vars(run.spending.usage)}


async def score_relevance(
    making: DataRun, candidates: CandidateStore, trajectories: TrajectoryReader
) -> bool:
    """Score and write the relevance of all candidates; whether the judge was asked about all."""
    args = making.args
    searches = making.told["candidates"]["searches"]
    if args.judge_url is None:
        named = trajectories.with_steps
        print("relevance: no --judge-url, so a passage is relevant if an accepted answer stands in it")
        print(f"  or the answer of a step, which {named:,} of {len(trajectories):,} questions name")
        scored = write_records(making.out(RELEVANCE), rule_records(candidates, trajectories))
        making.told["relevance"] = {"searches": scored, "judge": None, "questions_with_steps": named}
        why = "whose answer (yes, no, or no word) could stand in any passage: give --judge-url"
        making.print_missing("relevance", scored, 0, why)
        return True
    ways = {name: getattr(args, name) for name in ("retries", "timeout_s", "backoff_s", "trust_env")}
    with RelevanceScorer(args, candidates, making.step("relevance")) as relevance:
        tape = relevance.results.folder.tape
        async with judge_endpoint(args, tape, **ways) as endpoint:
            judge = RelevanceJudge(args, endpoint, tape)
            await relevance.score(judge, trajectories)
            if endpoint.stop.reason is not None:
                print(stop_message(endpoint.stop.reason, "the judge has not scored all candidates"))
                return False
        write_records(making.out(SUB_ANSWERS), relevance.sub_answers(trajectories))
        scored = write_records(making.out(RELEVANCE), relevance.records(trajectories))
        making.told["relevance"] = {
            "searches": scored,
            "judge": args.judge_model,
            "usage": vars(tape.usage),
        }
        for what, count in sorted(judge.counts.items()):
            print(f"  requests to the judge that were {what}: {count:,}")
    making.print_missing("relevance", scored, searches - scored, "")
    return True
