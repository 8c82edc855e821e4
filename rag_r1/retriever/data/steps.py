"""Implements the steps of `rag-r1 retriever data`, each of which can be resumed.

    trajectories_of      plays the questions, whose searches are the rounds
    find_candidates      repeats each search for more passages
    score_correctness    plays continuations with each candidate alone (GAC)
    score_relevance      asks the judge about each candidate, or applies the rule (LR)

The two steps that need the agent's model, the trajectories and the continuations, write a note when they are
complete: `steps/trajectories.json` and `steps/correctness.json`, each with the settings and the input of the
step (rag_r1/runs/state_file.py). A later run of the command that only has to ask the judge, or to select rows
again, finds the notes and does not load the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from rag_r1.data.rows import step_answers_of
from rag_r1.evaluation.baselines import agent_condition
from rag_r1.evaluation.condition_run import TRAJECTORIES, run_condition
from rag_r1.evaluation.judge import judge_endpoint
from rag_r1.evaluation.target import serve_model
from rag_r1.io.terminal_text import terminal_text
from rag_r1.protocols import Document
from rag_r1.retriever.data.arguments import DataArguments
from rag_r1.retriever.data.candidates import CandidateStore
from rag_r1.retriever.data.correctness import MAX_POOL_PASSAGES, CorrectnessScorer
from rag_r1.retriever.data.cost_estimate import CostEstimate, estimate_cost
from rag_r1.retriever.data.judge import ListJudge
from rag_r1.retriever.data.relevance import RelevanceScorer, rule_records
from rag_r1.retriever.data.trajectories import REASONS, TrajectoryReader
from rag_r1.retriever.records import CANDIDATES, CORRECTNESS, PASSAGES, RELEVANCE, SUB_ANSWERS, write_records
from rag_r1.rollouts.session import RunSetup, open_session, settings_of, usage_line
from rag_r1.runs.cancel_token import stop_message
from rag_r1.runs.errors import RunError
from rag_r1.runs.state_file import StateFile

#: The notes in `steps/` that all trajectories, or all continuations, have been played.
PLAYED_NOTE, SCORED_NOTE = "trajectories.json", "correctness.json"


@dataclass(frozen=True)
class StepCounts:
    """The counts of a scoring step."""

    #: Number of searches that have been scored.
    searches: int
    #: Number of unscored searches that the next run of the command tries again.
    again: int
    #: The usage of the step's requests.
    usage: dict[str, int]

    @classmethod
    def of(cls, note: Mapping[str, Any]) -> StepCounts:
        """Read the counts from the note of a completed step."""
        return cls(note["searches"], note["again"], note["usage"])


@dataclass
class DataRun:
    """The state that the steps share."""

    args: DataArguments
    run_setup: RunSetup
    #: The result of `retriever_settings`.
    retriever: dict[str, Any]
    #: Stops the model's server, if one was started, when it is closed.
    servers: ExitStack
    #: The figures of summary.json, to which each step adds its own.
    summary: dict[str, Any] = field(default_factory=dict)

    def result_path(self, name: str) -> Path:
        """Return the path of a result file."""
        return self.args.out / name

    def step_path(self, name: str) -> Path:
        """Return the path of a file or folder in `steps/`."""
        return self.args.out / "steps" / name

    def serve(self) -> DataArguments:
        """Start the model's server, unless --base-url names one, and return the arguments with its
        address."""
        self.args = self.servers.enter_context(serve_model(self.args))
        return self.args

    def settings(self, command: str, **extra_settings: Any) -> dict[str, Any]:
        """Return the settings on which the episodes of a step depend. They include the sizes and times of the
        files in the model's folder, because a training may have overwritten the model."""
        model = Path(self.args.model)
        stats = {path.name: path.stat() for path in sorted(model.iterdir())} if model.is_dir() else {}
        files = {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}
        return settings_of(
            self.args, self.run_setup, command, files=files, served=self.retriever["served"], **extra_settings
        )

    def completion_note(self, name: str, settings: dict[str, Any]) -> StateFile:
        """Return the file for the note that a step with these settings is complete."""
        return StateFile(self.step_path(name), {"settings": settings})

    def is_done(self, note: Mapping[str, Any] | None) -> bool:
        """Return whether the content of a note shows that the step is complete: nothing failed, or everything
        that failed has been tried --tries times."""
        return note is not None and (not note["tries"] or self.args.tries <= note["tries"])


async def trajectories_of(run: DataRun) -> TrajectoryReader | None:
    """Play the missing trajectories of the agent, and return a reader of all of them; None if the run was
    stopped. Raises RunError if they cannot be read, or if none has a search that can be scored."""
    args, setup = run.args, run.run_setup.setup
    folder = args.trajectories or run.result_path("trajectories")
    note = run.completion_note(PLAYED_NOTE, run.settings("trajectories", model=args.model))
    if args.trajectories is None and not await _play_trajectories(run, note, folder):
        return None
    rows = run.run_setup.questions.rows
    step_answers = {row.id: answers for row in rows if (answers := step_answers_of(row.metadata))}
    trajectories = TrajectoryReader(folder, setup, step_answers)
    if args.trajectories is None and not any(o.is_open(args.tries) for o in trajectories.failed):
        note.write({"tries": args.tries if trajectories.failed else None}, private=True)
    excluded = dict(sorted(trajectories.excluded.items()))
    run.summary["trajectories"] = {
        "used": len(trajectories),
        "searches": trajectories.rounds,
        "left_out": excluded,
        "usage": vars(trajectories.usage),
    }
    print(f"trajectories with searches: {len(trajectories):,}, searches: {trajectories.rounds:,}")
    for reason, count in excluded.items():
        print(f"  left out: {count:,} trajectories, {REASONS[reason]}")
    if not len(trajectories):
        raise RunError(
            f"no trajectory of {folder} has a search that can be scored: give a model that searches, and the "
            "protocol that it was trained with"
        )
    return trajectories


async def _play_trajectories(run: DataRun, note: StateFile, folder: Path) -> bool:
    """Play the missing trajectories, greedily and without a judge. Returns False if the run was stopped."""
    questions = len(run.run_setup.questions.rows)
    setup = run.run_setup.setup
    most_candidates = questions * setup.budget.max_turns * run.args.candidates
    print(
        f"trajectories: {questions:,} questions; at most {most_candidates:,} candidates, if each turn makes "
        "one search"
    )
    if note.read(run.is_done) and (folder / TRAJECTORIES / "records.jsonl").is_file():
        return True
    greedy = {"samples": 1, "temperature": 0.0, "judge_url": None, "judge_model": None}
    args = run.serve().model_copy(update=greedy)
    return await run_condition(args, run.run_setup, agent_condition(setup), folder) == 0


async def find_candidates(
    run: DataRun, candidates: CandidateStore, trajectories: TrajectoryReader
) -> CostEstimate | None:
    """Find and write the candidates, and print the estimated cost of scoring them. Returns the estimate, or
    None if all searches failed."""
    args = run.args
    failed = await candidates.find(trajectories, args.in_flight)
    if failed:
        problem = terminal_text(candidates.last_failure)
        print(f"searches that failed: {failed:,} ({problem}); the same command sends them again")
    if failed == trajectories.rounds:
        return None
    write_records(run.result_path(CANDIDATES), candidates.records(trajectories))
    write_records(run.result_path(PASSAGES), candidates.passages(trajectories))
    cost = estimate_cost(
        trajectories,
        candidates,
        args.utility,
        samples=args.samples,
        in_characters=run.run_setup.tokens.tokenizer is None,
        has_judge=args.judge_url is not None,
    )
    run.summary["candidates"] = {"searches": cost.rounds, "passages": cost.passages, "failed": failed}
    run.summary["continuations"] = cost.continuations
    for line in cost.lines(args, args.price_in, args.price_out):
        print(line)
    return cost


async def score_correctness(
    run: DataRun, candidates: CandidateStore, trajectories: TrajectoryReader, cost: CostEstimate
) -> bool:
    """Play the continuations and write their scores, unless an earlier run has done so. Returns False if the
    run was stopped."""
    args = run.args
    settings = run.settings(
        "continuations", samples=args.samples, temperature=args.temperature, beside=args.beside
    )
    inputs = {"model": args.model, "candidates": candidates.fingerprint(trajectories)}
    note = run.completion_note(SCORED_NOTE, {**settings, **inputs})
    counts = note.read(lambda content: StepCounts.of(content) if run.is_done(content) else None)
    if counts is None or not run.result_path(CORRECTNESS).is_file():
        note.remove()  # it describes the file that is now replaced
        counts = await _play_continuations(run, candidates, trajectories, settings, cost.continuations)
        if counts is None:
            return False
        if not counts.again:
            tries = args.tries if counts.searches < cost.rounds else None
            note.write({"tries": tries, **vars(counts)}, private=True)
    run.summary["correctness"] = {"searches": counts.searches, "usage": counts.usage}
    _print_scored("correctness", counts, cost.rounds, "since a continuation of each has failed --tries times")
    return True


async def _play_continuations(
    run: DataRun,
    candidates: CandidateStore,
    trajectories: TrajectoryReader,
    settings: dict[str, Any],
    total: int,
) -> StepCounts | None:
    """Play the missing ones of `total` continuations, and write the scores. The cost of the
    trajectories counts towards --max-cost. Returns the counts, or None if the run was stopped."""
    args = run.args
    if args.max_cost is not None and args.trajectories is None:
        budget = args.max_cost - trajectories.usage.cost(args.price_in, args.price_out)
        if budget <= 0:
            print(stop_message("the trajectories cost --max-cost already", "the continuations are missing"))
            return None
        args = args.model_copy(update={"max_cost": budget})
    url = run.serve().base_url
    assert url is not None  # serve() starts a server if there is none
    out = run.step_path("correctness")
    async with open_session(args, run.run_setup, url, args.model, settings, out=out) as session:
        passages = candidates.passages(trajectories) if args.beside else ()
        pool = [Document(record.id, record.contents) for record in islice(passages, MAX_POOL_PASSAGES)]
        scorer = CorrectnessScorer(session, candidates, args, pool)
        is_complete = await scorer.play(trajectories, total)
        print(usage_line(session))
        if not is_complete:
            print(stop_message(str(session.stop.reason), "continuations are missing"))
            return None
        searches = write_records(run.result_path(CORRECTNESS), scorer.records(trajectories))
        return StepCounts(searches, scorer.open_rounds(trajectories), vars(session.spending.usage))


async def score_relevance(
    run: DataRun, candidates: CandidateStore, trajectories: TrajectoryReader, cost: CostEstimate
) -> bool:
    """Score the relevance of all candidates and write the scores. Returns False if the judging was
    stopped."""
    args = run.args
    if args.judge_url is None:
        _score_relevance_by_rule(run, candidates, trajectories, cost)
        return True
    with RelevanceScorer(args, candidates, run.step_path("relevance")) as relevance:
        cache = relevance.folder.cache
        async with judge_endpoint(args, cache, args) as endpoint:
            judge = ListJudge(args, endpoint, cache)
            await relevance.score(judge, trajectories)
            if endpoint.stop.reason is not None:
                print(stop_message(endpoint.stop.reason, "the judge has not scored all candidates"))
                return False
        write_records(run.result_path(SUB_ANSWERS), relevance.sub_answers(trajectories))
        scored = write_records(run.result_path(RELEVANCE), relevance.records(trajectories))
        for outcome, count in sorted(judge.counts.items()):
            print(f"  requests to the judge that were {outcome}: {count:,}")
    counts = StepCounts(scored, cost.rounds - scored, vars(cache.usage))
    run.summary["relevance"] = {"searches": scored, "judge": args.judge_model, "usage": counts.usage}
    _print_scored("relevance", counts, cost.rounds, "")
    return True


def _score_relevance_by_rule(
    run: DataRun, candidates: CandidateStore, trajectories: TrajectoryReader, cost: CostEstimate
) -> None:
    """Score the relevance of all candidates by the rule, without a judge, and write the scores."""
    print("relevance: no --judge-url, so a passage is relevant if an accepted answer stands in it")
    with_steps = trajectories.with_steps
    print(f"  or the answer of a step, which {with_steps:,} of {len(trajectories):,} questions name")
    scored = write_records(run.result_path(RELEVANCE), rule_records(candidates, trajectories))
    run.summary["relevance"] = {"searches": scored, "judge": None, "questions_with_steps": with_steps}
    reason = "since their answer (yes, no, or no word) could stand in any passage: give --judge-url"
    _print_scored("relevance", StepCounts(scored, 0, {}), cost.rounds, reason)


def _print_scored(score: str, counts: StepCounts, searches: int, reason: str) -> None:
    """Print how many searches are scored, how many of the others the next run tries again, and why the
    remaining ones (`reason`) have no score."""
    print(f"{score}: {counts.searches:,} of {searches:,} searches scored")
    if counts.again:
        print(f"  the same command tries {counts.again:,} of the others again")
    if unscored := searches - counts.searches - counts.again:
        print(f"  not tried again: {unscored:,}, {reason}")
