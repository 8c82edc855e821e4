"""Plays many episodes at once, each question once, whenever the process is killed.

A `Runner` has everything that episodes share: the setup, a function that makes the engine of an ask, the
reward, and the run's folder. `play(ask)` plays one episode, scores it, writes its record to the folder and
returns its Outcome; an ask that the folder has already is not played again. `run` works on many jobs, of
which each awaits `play` once (traces) or several times in turn (the filter stops a question at its first
right answer), with a fixed number of them under way. What it returns is in the order of the jobs, and
nothing is drawn at random on the way, so the order in which episodes end changes nothing.

An episode with a failure of the infrastructure (the endpoint, the retrieval server) is neither right nor
wrong: it is not scored. It is played once in each start of the command, until `tries` are used up.

A run ends early if `stop` is called (cost, a wrong key), or after too many failures in a row. Then nothing
is sent any more, the answers under way are waited for and taped, and the episodes are given up; the next
start plays them to their end.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tqdm import tqdm

from rag_r1.agent import Engine, Trajectory
from rag_r1.agent_setup import AgentSetup
from rag_r1.evaluation.asks import Ask
from rag_r1.evaluation.pacing import Spending, Stop
from rag_r1.evaluation.run_folder import Outcome, RunFolder
from rag_r1.rewards import RewardSum

T = TypeVar("T")
Job = Callable[[], Awaitable[T]]

#: Failures of the engine in a row after which a run ends: the endpoint is gone.
MOST_FAILURES_IN_A_ROW = 50


@dataclass(frozen=True)
class Right:
    """When an answer counts as right: the value of a reward term, from `least` on."""

    term: str = "em"
    least: float = 1.0

    def of(self, rewards: dict[str, float | None]) -> bool | None:
        """Right or wrong; None if the term has no value."""
        value = rewards.get(self.term)
        return None if value is None else value >= self.least


@dataclass
class Counts:
    """What a run has seen so far, for its progress bar."""

    played: int = 0
    judged: int = 0
    right: int = 0
    failed: int = 0
    tool_failures: int = 0
    statuses: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> None:
        """Count an outcome in."""
        self.played += 1
        self.judged += outcome.right is not None
        self.right += outcome.right is True
        self.failed += outcome.failed
        self.tool_failures += outcome.tool_failures > 0
        self.statuses[outcome.status] += 1

    def shown(self, cost: float | None, share: float) -> dict[str, str]:
        """For the progress bar: accuracy, shares of episodes with failures, and the cost so far and, at this
        rate, of all (`share`: the part of the jobs that is done)."""
        told = {"right": f"{self.right / self.judged:.3f}" if self.judged else "-"}
        told["failed"] = str(self.failed)
        told["tool_failures"] = f"{self.tool_failures / (self.played or 1):.3f}"
        if cost is not None:
            told["cost"] = f"{cost:.2f}" + (f" of {cost / share:.2f}" if share else "")
        return told


class Runner:
    """See the top of the module. `idle` waits until no request is under way; `spending`: shown while the run
    goes on."""

    def __init__(
        self,
        setup: AgentSetup,
        make_engine: Callable[[Ask], Engine],
        reward: RewardSum,
        folder: RunFolder,
        *,
        right: Right | None = None,
        in_flight: int = 64,
        tries: int = 3,
        stop: Stop | None = None,
        idle: Callable[[], Awaitable[None]] | None = None,
        spending: Spending | None = None,
    ):
        self.setup, self.make_engine, self.reward, self.folder = setup, make_engine, reward, folder
        self.right, self.in_flight, self.tries = right or Right(), in_flight, tries
        self.stop, self.idle, self.spending = stop or Stop(), idle, spending
        self.counts = Counts()
        self._played: set[str] = set()
        self._failures_in_a_row = 0
        self._bar: tqdm | None = None

    async def play(self, ask: Ask) -> Outcome:
        """The outcome of an ask, from the folder or from an episode that is played now."""
        outcome = self.folder.outcome(ask.id)
        again = outcome is not None and self.is_open(outcome) and ask.id not in self._played
        if outcome is None or again:
            outcome = await self._episode(ask, 1 if outcome is None else outcome.tries + 1)
            self._played.add(ask.id)
        self.counts.add(outcome)
        self._show()
        return outcome

    def is_open(self, outcome: Outcome) -> bool:
        """Will the next start play it again? A row that cannot be played is not tried again."""
        return outcome.failed and outcome.tries < self.tries and outcome.status != "bad_row"

    async def run(self, jobs: Iterable[Job[T]], total: int, unit: str) -> list[T | None]:
        """The results of `total` jobs, in their order; None for those that did not end because the run was
        stopped (`stop.reason` says why). Raises what a job raises, after the answers under way are taped."""
        results: list[T | None] = [None] * total
        waiting = enumerate(jobs)
        with tqdm(total=total, unit=unit, mininterval=1.0) as self._bar:
            workers = [
                asyncio.create_task(self._work(waiting, results)) for _ in range(min(self.in_flight, total))
            ]
            stopped = asyncio.create_task(self.stop.wait())
            try:
                pending: set[Any] = set(workers)
                while pending and not stopped.done():
                    done, pending = await asyncio.wait(
                        {*pending, stopped}, return_when=asyncio.FIRST_COMPLETED
                    )
                    pending.discard(stopped)
                    for task in done - {stopped}:
                        task.result()
            except BaseException:
                self.stop("an error")
                raise
            finally:
                if self.stop.reason is not None and self.idle is not None:
                    self._bar.write("waiting for the answers that are under way", file=sys.stderr)
                    await self.idle()
                for task in (*workers, stopped):
                    task.cancel()
                await asyncio.gather(*workers, stopped, return_exceptions=True)
                self._bar = None
        return results

    async def _work(self, jobs: Iterator[tuple[int, Job[T]]], results: list[T | None]) -> None:
        for place, job in jobs:
            if self.stop.reason is not None:
                return
            results[place] = await job()
            if self._bar is not None:
                self._bar.update()

    async def _episode(self, ask: Ask, number: int) -> Outcome:
        engine = self.make_engine(ask)
        episode = self.setup.episode(engine)
        record = await episode.run(ask.id, ask.question, self._prompt_ids(ask))
        right = await self._judge(record, ask)
        usage = getattr(getattr(engine, "exchanges", None), "usage", None)
        context = {
            "question_id": ask.question_id,
            "sample": ask.sample,
            "data_source": ask.data_source,
            "golds": list(ask.golds),
            "prompt": self.setup.messages(ask.question, ask.messages),
            "right": right,
            "try": number,
            "usage": vars(usage) if usage else {},
        }
        outcome = self.folder.write({**context, **record.to_dict()})
        engine_failed = record.masked(("engine",))
        self._failures_in_a_row = self._failures_in_a_row + 1 if engine_failed else 0
        if self._failures_in_a_row >= MOST_FAILURES_IN_A_ROW:
            detail = next(failure.detail for failure in record.failures if failure.kind == "engine")
            self.stop(f"{self._failures_in_a_row} episodes in a row got no answer; the last: {detail}")
        return outcome

    async def _prompt_ids(self, ask: Ask) -> list[int]:
        """Within the episode, so that a prompt that cannot be made is the row's failure."""
        return self.setup.prompt_ids(ask.question, ask.messages)

    async def _judge(self, record: Trajectory, ask: Ask) -> bool | None:
        """Score the record; returns whether the answer is right, None if it is not judged."""
        mask = self.setup.failures.mask
        if not record.masked(mask):
            judgement = await self.reward.judge(record, list(ask.golds))
            record.rewards, record.turn_scores = judgement.rewards, judgement.turn_scores
            if judgement.missing:
                names = (f"{name} ({why})" if why else name for name, why in judgement.missing.items())
                record.failed("judge", f"no value for {', '.join(names)}")
        if record.masked(mask):
            record.rewards = {**self.reward.unjudged(), **record.rewards, "score": None}
            record.turn_scores = []
            return None
        return self.right.of(record.rewards)

    def _show(self) -> None:
        if self._bar is not None:
            known = self.spending is not None and self.spending.has_prices
            cost = self.spending.cost if known else None
            share = self._bar.n / self._bar.total if self._bar.total else 0.0
            self._bar.set_postfix(self.counts.shown(cost, share), refresh=False)
