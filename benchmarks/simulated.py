"""A simulated engine and retriever, for rollouts in which every duration is known in advance.

A load is drawn once from a seed: the number of turns of each trajectory, the tokens of each turn, and the
duration of each search. Every schedule then plays the same load. A turn of n tokens occupies one of the
engine's batch slots for (new context tokens / prefill rate + n / decode rate) seconds; context that is cached
from earlier turns of the trajectory is not prefilled again. Time is real time (`asyncio.sleep`), accelerated
by the factor `speed`. The computation between the sleeps is not accelerated, so a run at speed 10 shows ten
times the overhead.

The tokens are real: a turn is a thought of the drawn length and a search or an answer, in ids of the
tokenizer, and the agent core processes it like the turn of a policy.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from schedules import Job, Outcome, closing, play
from transformers import AutoTokenizer

from rag_r1.agent import Budget, Codec, Generation, TokenizerCodec
from rag_r1.demo.policy import policy_path
from rag_r1.demo.world import demo_protocol
from rag_r1.protocols import Document, Protocol, control_tokens


@dataclass(frozen=True)
class Load:
    """Parameters of the load; durations are log-normal."""

    trajectories: int = 256
    least_turns: int = 1
    most_turns: int = 4
    #: Arithmetic mean of the decoding time of a turn, in seconds.
    decode_s: float = 2.0
    #: Sigma of the decoding times.
    sigma: float = 0.6
    #: Arithmetic mean of the duration of a search, in seconds.
    search_s: float = 0.15
    search_sigma: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Rates:
    """Rates of the engine, in tokens per second."""

    #: In each slot.
    decode: float = 50.0
    prefill: float = 10_000.0


@dataclass(frozen=True)
class TurnDraw:
    """A turn of the load."""

    #: Seconds of decoding.
    decode_s: float
    #: Seconds of the search after it.
    search_s: float
    #: Query of the search; None if the turn answers.
    query: str | None


def draw(load: Load, queries: Sequence[str]) -> list[list[TurnDraw]]:
    """Draw the turns of every trajectory; all queries differ, so that no cache can answer one."""
    rng = random.Random(load.seed)
    plans = []
    for index in range(load.trajectories):
        turns = rng.randint(load.least_turns, load.most_turns)
        plan = []
        for turn in range(turns):
            query = f"{queries[rng.randrange(len(queries))]} {index}-{turn}" if turn < turns - 1 else None
            times = (
                _log_normal(rng, load.decode_s, load.sigma),
                _log_normal(rng, load.search_s, load.search_sigma),
            )
            plan.append(TurnDraw(*times, query))
        plans.append(plan)
    return plans


def _log_normal(rng: random.Random, mean: float, sigma: float) -> float:
    """Draw from the log-normal distribution with this arithmetic mean."""
    return rng.lognormvariate(math.log(mean) - sigma * sigma / 2, sigma) if mean > 0 else 0.0


class SimulatedEngine:
    """The engine of one trajectory; all engines of a run share `slots` (None: no limit).

    `own_s` is the sum of the simulated seconds without waiting for a slot.
    """

    def __init__(
        self,
        plan: Sequence[TurnDraw],
        protocol: Protocol,
        codec: Codec,
        rates: Rates,
        speed: float,
        slots: asyncio.Semaphore | None,
    ):
        self.rates, self.speed, self.slots = rates, speed, slots
        self.turns = iter([_tokens(turn, protocol, codec, rates.decode) for turn in plan])
        self.cached, self.own_s = 0, 0.0

    async def generate(self, context: list[int], max_tokens: int, stop: Sequence[str]) -> Generation:
        """Return the next drawn turn after its duration."""
        ids = next(self.turns)[:max_tokens]
        seconds = (len(context) - self.cached) / self.rates.prefill + len(ids) / self.rates.decode
        self.cached = len(context) + len(ids)
        self.own_s += seconds
        async with self.slots or nullcontext():
            await asyncio.sleep(seconds / self.speed)
        return Generation(ids, [-0.5] * len(ids))


def _tokens(turn: TurnDraw, protocol: Protocol, codec: Codec, rate: float) -> list[int]:
    """Return the ids of a turn, as many as are decoded in its time."""
    think, action = protocol.tags.think, protocol.tags.search if turn.query else protocol.tags.answer
    opening = codec.encode(think.open)
    ending = codec.encode(f"{think.close}\n{action.open} {turn.query or 'known'} {action.close}")
    word = codec.encode(" born")
    length = max(round(turn.decode_s * rate) - len(opening) - len(ending), 0)
    return opening + (word * (length // len(word) + 1))[:length] + ending


class SomeDocuments:
    """A retriever that returns arbitrary documents at once; the schedule adds the time of a search."""

    def __init__(self, documents: Sequence[Document], topk: int):
        self.documents, self.topk = documents, topk

    async def search(self, queries: Sequence[str]) -> list[list[Document]]:
        """Return `topk` documents for each query, chosen by its text."""
        last = max(len(self.documents) - self.topk, 0)
        starts = [random.Random(query).randint(0, last) for query in queries]
        return [list(self.documents[start : start + self.topk]) for start in starts]


def make_jobs(
    plans: Sequence[Sequence[TurnDraw]],
    prompt_ids: Sequence[int],
    protocol: Protocol,
    codec: Codec,
    rates: Rates,
    speed: float,
    slots: int | None,
) -> list[Job]:
    """Return a job for each plan; they share the engine's `slots` (None: no limit).

    It must be called in the event loop, once for each run, since the jobs are used up.
    """
    shared = asyncio.Semaphore(slots) if slots else None
    return [
        Job(
            f"simulated-{index}",
            "Where?",
            prompt_ids,
            SimulatedEngine(plan, protocol, codec, rates, speed, shared),
            iter([turn.search_s / speed for turn in plan]).__next__,
        )
        for index, plan in enumerate(plans)
    ]


def roomy(most_turns: int) -> Budget:
    """Return a budget whose limits no drawn turn reaches."""
    return Budget(
        max_turns=most_turns,
        final_turn=False,
        max_turn_tokens=1_000_000,
        max_query_observation_tokens=1000,
        max_response_tokens=100_000_000,
    )


@dataclass(frozen=True)
class Bench:
    """The setup that all simulated runs share."""

    protocol: Protocol
    codec: TokenizerCodec
    prompt_ids: list[int]
    rates: Rates
    queries: list[str]

    @classmethod
    def over(cls, protocol_name: str, queries: list[str], rates: Rates) -> Bench:
        """Make a setup with the demo's tokenizer and prompt; `queries` are made unique for each search."""
        tokenizer = AutoTokenizer.from_pretrained(policy_path(protocol_name))
        protocol = demo_protocol(protocol_name).with_special_tokens(control_tokens(tokenizer))
        codec = TokenizerCodec(tokenizer, cache_size=0)  # otherwise all schedules but the first would profit
        prompt = codec.encode(protocol.messages("Where was Mara Torval born?")[0]["content"])
        return cls(protocol, codec, prompt, rates, queries)

    def run(
        self,
        name: str,
        plans: Sequence[Sequence[TurnDraw]],
        make_searcher: Callable[[], Any],
        speed: float,
        slots: int | None = None,
        capacity: int | None = None,
    ) -> tuple[Outcome, float]:
        """Play the plans under the schedule `name`; `make_searcher` is called in the event loop.

        Returns its outcome, and the simulated seconds of the longest trajectory on its own. Raises SystemExit
        if a trajectory was not played as drawn.
        """
        budget = roomy(max(map(len, plans)))

        async def main() -> tuple[Outcome, float]:
            jobs = make_jobs(plans, self.prompt_ids, self.protocol, self.codec, self.rates, speed, slots)
            async with closing(make_searcher()) as searcher:
                outcome = await play(name, jobs, searcher, self.protocol, budget, self.codec, slots, capacity)
            seconds = (
                job.engine.own_s + waited * speed
                for job, waited in zip(jobs, outcome.search_wait_s, strict=True)
            )
            return outcome, max(seconds)

        outcome, critical = asyncio.run(main())
        wrong = sum(len(r.turns) != len(plan) for r, plan in zip(outcome.records, plans, strict=True))
        if wrong or set(outcome.statuses) != {"answered"}:
            raise SystemExit(f"error: {wrong} trajectories were not played as drawn ({outcome.statuses})")
        return outcome, critical
