"""Runs many episodes concurrently, each question exactly once, across kills and restarts.

An `EpisodeRunner` holds what all episodes share: the agent's setup (which a request may replace), a factory
of engines, the reward, and the run's folder. `play(request)` plays one episode, scores it, writes its record
to the folder and returns its outcome; a request whose outcome is already in the folder is not played again.
`run` executes many jobs concurrently (concurrency.py). A job awaits `play` once (traces), or several times
one after the other (the filter, which stops at a question's first right answer). The runner draws nothing at
random, so results do not depend on the order in which episodes end.

With `rag_r1.agent.paths` above 1, a request is played as several episodes, whose answers vote
(rag_r1/agent/self_consistency.py).

An episode that failed because of the infrastructure (the endpoint, the retrieval server) is not scored. It
is played again, once in each run of the command, until `tries` are used up.

A run ends early if `stop` is called (the cost limit, a wrong key) or after too many failures in a row. The
next run of the command plays the episodes that were cancelled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

from rag_r1.agent import Trajectory, sample_paths
from rag_r1.config.agent_setup import AgentSetup
from rag_r1.inference.cost_limit import CostTracker
from rag_r1.rewards import RewardSum
from rag_r1.rollouts.concurrency import Job, JobPool, Result
from rag_r1.rollouts.engine_factory import MakeEngine, MeteredEngine
from rag_r1.rollouts.one_shot import OneShotRequest, prepare_one_shot
from rag_r1.rollouts.requests import EpisodeRequest, seeded_fraction
from rag_r1.runs.cancel_token import CancelToken
from rag_r1.runs.folder import EpisodeOutcome, RunFolder
from rag_r1.runs.response_cache import Usage

#: Consecutive failures of the engine after which a run ends, since the endpoint is probably gone.
MAX_CONSECUTIVE_FAILURES = 50


@dataclass(frozen=True)
class CorrectnessRule:
    """Decides which answers are right: those whose value of a reward term reaches a threshold."""

    term: str = "em"
    threshold: float = 1.0

    def is_right(self, rewards: dict[str, float | None]) -> bool | None:
        """Return whether an answer with these rewards is right; None if the term has no value."""
        value = rewards.get(self.term)
        return None if value is None else value >= self.threshold


@dataclass
class RunCounts:
    """Counts of a run's episodes so far, for its progress bar. Those that an earlier run of the command has
    played are counted, too."""

    episodes: int = 0
    #: Episodes with a verdict, right or wrong.
    judged: int = 0
    right: int = 0
    #: Episodes without a verdict because the infrastructure failed.
    failed: int = 0
    #: Episodes with at least one failed tool call.
    tool_failures: int = 0
    #: Episodes by the status with which they ended.
    statuses: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: EpisodeOutcome) -> None:
        """Add an outcome to the counts."""
        self.episodes += 1
        self.judged += outcome.right is not None
        self.right += outcome.right is True
        self.failed += outcome.failed
        self.tool_failures += outcome.tool_failures > 0
        self.statuses[outcome.status] += 1

    def bar_fields(self, cost: float | None, share_done: float) -> dict[str, str]:
        """Return the texts of the progress bar by name: accuracy, failed episodes, the share of episodes
        with a failed tool, and the cost so far with the total to expect at this rate. `share_done` is the
        share of the jobs that are done, from 0 to 1."""
        figures = {"right": f"{self.right / self.judged:.3f}" if self.judged else "-"}
        figures["failed"] = str(self.failed)
        figures["tool_failures"] = f"{self.tool_failures / (self.episodes or 1):.3f}"
        if cost is not None:
            figures["cost"] = f"{cost:.2f}" + (f" of {cost / share_done:.2f}" if share_done else "")
        return figures


@dataclass
class EpisodeRunner:
    """Plays requests and writes their records into a run's folder."""

    setup: AgentSetup
    make_engine: MakeEngine
    reward: RewardSum
    folder: RunFolder
    _: KW_ONLY
    correctness: CorrectnessRule = CorrectnessRule()
    #: The most jobs that run at the same time.
    in_flight: int = 64
    #: How many runs of the command play an episode that keeps failing, the first run included.
    tries: int = 3
    stop: CancelToken = field(default_factory=CancelToken)
    #: Waits until no request to the endpoint is open (concurrency.py).
    wait_until_idle: Callable[[], Awaitable[None]] | None = None
    #: The spending whose cost the progress bar shows.
    spending: CostTracker | None = None
    #: Selects the fields of a record that are written; by default all of them.
    written_fields: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
    counts: RunCounts = field(default_factory=RunCounts, init=False)
    #: Runs the jobs, and has the progress bar.
    pool: JobPool = field(init=False)
    #: The ids of the requests that this run of the command has played.
    _played: set[str] = field(default_factory=set, init=False)
    _failures_in_a_row: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.pool = JobPool(self.in_flight, self.stop, self.wait_until_idle)

    async def play(self, request: EpisodeRequest) -> EpisodeOutcome:
        """Return the outcome of a request, from the folder or by playing its episode now. Raises RewardError
        if a reward term fails, and RunError if the disk is full."""
        outcome = self.folder.outcome(request.id)
        is_retry = outcome is not None and self.is_open(outcome) and request.id not in self._played
        if outcome is None or is_retry:
            outcome = await self._play_episode(request, 1 if outcome is None else outcome.tries + 1)
            self._played.add(request.id)
        self.counts.add(outcome)
        self._update_bar()
        return outcome

    def is_open(self, outcome: EpisodeOutcome) -> bool:
        """Return whether the next run of the command plays the episode again."""
        return outcome.is_open(self.tries)

    async def run(self, jobs: Iterable[Job[Result]], total: int, unit: str) -> list[Result | None]:
        """Run `total` jobs and return their results in order, None for jobs that were cancelled."""
        return await self.pool.run(jobs, total, unit)

    async def _play_episode(self, request: EpisodeRequest, try_number: int) -> EpisodeOutcome:
        """Play and score an episode, and write its record. `try_number` counts its attempts from 1."""
        setup = request.setup or self.setup
        one_shot = await prepare_one_shot(request, setup) if request.search_first else None
        if one_shot:
            request, setup = one_shot.request, one_shot.setup
        if one_shot is None or not one_shot.is_masked:
            trajectory, usage = await self._play_paths(request, setup, one_shot)
        else:
            trajectory, usage = one_shot.search, {}
        has_score = await self.reward.score(trajectory, list(request.golds), setup.failures.mask)
        context = {
            "question_id": request.question_id,
            "sample": request.sample,
            "data_source": request.data_source,
            "golds": list(request.golds),
            "prompt": setup.messages(request.question, request.messages),
            "right": self.correctness.is_right(trajectory.rewards) if has_score else None,
            "reward_weights": self.reward.weights,
            "try": try_number,
            "usage": usage,
            **({"metadata": dict(request.metadata)} if request.metadata else {}),
        }
        outcome = self.folder.write(self.written_fields({**context, **trajectory.to_dict()}))
        self._count_failures(trajectory)
        return outcome

    async def _play_paths(
        self, request: EpisodeRequest, setup: AgentSetup, one_shot: OneShotRequest | None
    ) -> tuple[Trajectory, dict[str, int]]:
        """Play all paths of a request. Returns the path that won the vote, and the numbers of requests and
        tokens of all paths. If `one_shot` has searched, every path begins with the turn of that search."""
        engines: list[MeteredEngine] = []

        async def play_path(index: int) -> Trajectory:
            engine = self.make_engine(_path_request(request, index))
            engines.append(engine)
            prompt_ids = _prompt_ids(request, setup)
            episode = setup.episode(engine)
            trajectory = await episode.resume(request.id, request.question, prompt_ids, request.past)
            if one_shot:
                one_shot.prepend_search_turn(trajectory)
            return trajectory

        winner = await sample_paths(play_path, setup.budget.paths, setup.failures.mask)
        usage = Usage()
        for engine in engines:
            usage.add(engine.usage)
        return winner, dict(vars(usage))

    def _count_failures(self, trajectory: Trajectory) -> None:
        """Stop the run after too many consecutive episodes that failed because of the engine."""
        engine_failed = trajectory.masked(("engine",))
        self._failures_in_a_row = self._failures_in_a_row + 1 if engine_failed else 0
        if self._failures_in_a_row >= MAX_CONSECUTIVE_FAILURES:
            detail = next(failure.detail for failure in trajectory.failures if failure.kind == "engine")
            self.stop(f"{self._failures_in_a_row} episodes in a row got no answer; the last: {detail}")

    def _update_bar(self) -> None:
        """Show the counts and the cost in the progress bar."""
        if (bar := self.pool.bar) is not None:
            has_cost = self.spending is not None and self.spending.has_prices
            cost = self.spending.cost if has_cost else None
            share_done = bar.n / bar.total if bar.total else 0.0
            bar.set_postfix(self.counts.bar_fields(cost, share_done), refresh=False)


def _path_request(request: EpisodeRequest, index: int) -> EpisodeRequest:
    """Return the request with the seed of the path with this index; the first path keeps that of the
    request."""
    if index == 0:
        return request
    return replace(request, seed=int(seeded_fraction(request.seed, "path", str(index)) * (1 << 31)))


async def _prompt_ids(request: EpisodeRequest, setup: AgentSetup) -> list[int]:
    """Make the prompt when it is awaited. The episode awaits it, so a prompt that cannot be made fails this
    row only."""
    return setup.prompt_ids(request.question, request.messages)
