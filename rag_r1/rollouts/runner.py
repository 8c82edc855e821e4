"""Runs many episodes concurrently, each question exactly once, across kills and restarts.

An `EpisodeRunner` has everything that episodes share: the setup (a request may have one of its own), a
function that makes the engine of a request, the reward, and the run's folder. `play(request)` plays one
episode, scores it, writes its record to the folder and returns its outcome; a request that the folder has
already is not played again. `run` works on many jobs at a time (concurrency.py), of which each awaits `play`
once (traces) or several times in turn (the filter stops a question at its first right answer). The runner
itself draws nothing at random, so the order in which episodes end changes nothing.

With `rag_r1.agent.paths` a request is several episodes, whose answers vote
(rag_r1/agent/self_consistency.py).

An episode with a failure of the infrastructure (the endpoint, the retrieval server) is neither right nor
wrong: it is not scored. It is played once in each start of the command, until `tries` are used up.

A run ends early if `stop` is called (cost, a wrong key), or after too many failures in a row; the next start
plays the episodes that were cancelled to their end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

from rag_r1.agent import Trajectory, sample_paths
from rag_r1.config.agent_setup import AgentSetup
from rag_r1.inference.cost_limit import CostTracker
from rag_r1.rewards import RewardSum
from rag_r1.rollouts.concurrency import Job, JobPool, T
from rag_r1.rollouts.engine_factory import MakeEngine, MeteredEngine
from rag_r1.rollouts.one_shot import OneShotRequest, prepare_one_shot
from rag_r1.rollouts.requests import EpisodeRequest, seeded_fraction
from rag_r1.runs.cancel_token import CancelToken
from rag_r1.runs.folder import EpisodeOutcome, RunFolder
from rag_r1.runs.response_cache import Usage

#: Failures of the engine in a row after which a run ends, since the endpoint is gone.
MAX_CONSECUTIVE_FAILURES = 50


@dataclass(frozen=True)
class CorrectnessRule:
    """When an answer counts as right: if the value of a reward term is at least `least`."""

    term: str = "em"
    least: float = 1.0

    def of(self, rewards: dict[str, float | None]) -> bool | None:
        """Whether an answer with these rewards is right; None if the term has no value."""
        value = rewards.get(self.term)
        return None if value is None else value >= self.least


@dataclass
class RunCounts:
    """The episodes of a run so far, counted for its progress bar."""

    played: int = 0
    judged: int = 0
    right: int = 0
    failed: int = 0
    tool_failures: int = 0
    statuses: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: EpisodeOutcome) -> None:
        """Count an outcome in."""
        self.played += 1
        self.judged += outcome.right is not None
        self.right += outcome.right is True
        self.failed += outcome.failed
        self.tool_failures += outcome.tool_failures > 0
        self.statuses[outcome.status] += 1

    def bar_fields(self, cost: float | None, share: float) -> dict[str, str]:
        """Returns the texts of the progress bar by name: accuracy, failed episodes, the share of episodes
        with a failed tool, and the cost so far and, at this rate, of all jobs (`share`: the part that is
        done)."""
        figures = {"right": f"{self.right / self.judged:.3f}" if self.judged else "-"}
        figures["failed"] = str(self.failed)
        figures["tool_failures"] = f"{self.tool_failures / (self.played or 1):.3f}"
        if cost is not None:
            figures["cost"] = f"{cost:.2f}" + (f" of {cost / share:.2f}" if share else "")
        return figures


@dataclass
class EpisodeRunner:
    """Plays requests into a run's folder. `tries`: starts of the command that play a failed episode again,
    the first included; `idle`: see concurrency.py; `spending`: its cost is shown in the progress bar."""

    setup: AgentSetup
    make_engine: MakeEngine
    reward: RewardSum
    folder: RunFolder
    _: KW_ONLY
    right: CorrectnessRule = CorrectnessRule()
    in_flight: int = 64
    tries: int = 3
    stop: CancelToken = field(default_factory=CancelToken)
    idle: Callable[[], Awaitable[None]] | None = None
    spending: CostTracker | None = None
    #: Chooses the fields of a record that are written; by default all.
    written_fields: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
    counts: RunCounts = field(default_factory=RunCounts, init=False)
    _played: set[str] = field(default_factory=set, init=False)
    _failures_in_a_row: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.pool = JobPool(self.in_flight, self.stop, self.idle)

    async def play(self, request: EpisodeRequest) -> EpisodeOutcome:
        """Returns the outcome of a request, from the folder or from an episode that is played now."""
        outcome = self.folder.outcome(request.id)
        is_retry = outcome is not None and self.is_open(outcome) and request.id not in self._played
        if outcome is None or is_retry:
            outcome = await self._episode(request, 1 if outcome is None else outcome.tries + 1)
            self._played.add(request.id)
        self.counts.add(outcome)
        self._update_bar()
        return outcome

    def is_open(self, outcome: EpisodeOutcome) -> bool:
        """Whether the next start of the command plays the episode again."""
        return outcome.is_open(self.tries)

    async def run(self, jobs: Iterable[Job[T]], total: int, unit: str) -> list[T | None]:
        """Runs `total` jobs; returns their results in their order, None for those that were stopped."""
        return await self.pool.run(jobs, total, unit)

    async def _episode(self, request: EpisodeRequest, try_number: int) -> EpisodeOutcome:
        """Play and score an episode for the `try_number`th time, and write its record."""
        setup = request.setup or self.setup
        one_shot = await prepare_one_shot(request, setup) if request.search_first else None
        if one_shot:
            request, setup = one_shot.request, one_shot.setup
        engines: list[MeteredEngine] = []
        if one_shot and one_shot.is_masked:
            trajectory = one_shot.failed_trajectory()
        else:
            trajectory = await self._play_paths(request, setup, engines, one_shot)
        has_score = await self.reward.score(trajectory, list(request.golds), setup.failures.mask)
        context = {
            "question_id": request.question_id,
            "sample": request.sample,
            "data_source": request.data_source,
            "golds": list(request.golds),
            "prompt": setup.messages(request.question, request.messages),
            "right": self.right.of(trajectory.rewards) if has_score else None,
            "reward_weights": self.reward.weights,
            "try": try_number,
            "usage": _usage(engines),
            **({"metadata": dict(request.metadata)} if request.metadata else {}),
        }
        outcome = self.folder.write(self.written_fields({**context, **trajectory.to_dict()}))
        self._count_failures(trajectory)
        return outcome

    async def _play_paths(
        self,
        request: EpisodeRequest,
        setup: AgentSetup,
        engines: list[MeteredEngine],
        one_shot: OneShotRequest | None,
    ) -> Trajectory:
        """Play all paths of a request, and return the best one; adds their engines to `engines`. A path that
        `one_shot` has searched for begins with the turn of that search."""

        async def play_path(number: int) -> Trajectory:
            engines.append(self.make_engine(_path_request(request, number)))
            prompt_ids = _prompt_ids(request, setup)
            episode = setup.episode(engines[-1])
            trajectory = await episode.resume(request.id, request.question, prompt_ids, request.past)
            if one_shot:
                one_shot.prepend_search_turn(trajectory)
            return trajectory

        return await sample_paths(play_path, setup.budget.paths, setup.failures.mask)

    def _count_failures(self, trajectory: Trajectory) -> None:
        """End the run after too many episodes in a row without an answer of the engine."""
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
            share = bar.n / bar.total if bar.total else 0.0
            bar.set_postfix(self.counts.bar_fields(cost, share), refresh=False)


def _path_request(request: EpisodeRequest, number: int) -> EpisodeRequest:
    """The request with the seed of its nth path; the first has the request's own."""
    if number == 0:
        return request
    return replace(request, seed=int(seeded_fraction(request.seed, "path", str(number)) * (1 << 31)))


def _usage(engines: Sequence[MeteredEngine]) -> dict[str, int]:
    """Returns the requests and tokens of all paths; empty without an engine."""
    total = Usage()
    for engine in engines:
        total.add(engine.usage)
    return dict(vars(total)) if engines else {}


async def _prompt_ids(request: EpisodeRequest, setup: AgentSetup) -> list[int]:
    """Makes the prompt when it is awaited, within the episode, so that one that cannot be made is the row's
    failure."""
    return setup.prompt_ids(request.question, request.messages)
