"""The rollout benchmark: its schedules play the same turns, and each waits as it says and no more."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))  # at the end: that folder has a retrieval_server.py of its own

rollout = pytest.importorskip("rollout", reason="needs the `demo` and `cpu` extras (transformers, torch)")
import agent_overhead  # noqa: E402
import schedules  # noqa: E402
import simulated  # noqa: E402

from rag_r1.protocols import Document  # noqa: E402

from .conftest import run_script  # noqa: E402

LOAD = simulated.Load(trajectories=12, most_turns=3, decode_s=0.5, seed=3)
FAST = 200.0


@pytest.fixture(scope="module")
def bench():
    return simulated.Bench.over("rag_r1_mq", ["Mara Torval", "Belin Vesmer"], simulated.Rates())


@dataclass
class Watched:
    """An engine or a searcher that notes who is inside, and in which order they came."""

    inner: object
    inside: dict = field(default_factory=lambda: {"generate": 0, "search": 0})
    calls: list = field(default_factory=list)  # (what, how many of each were inside, queries)

    async def _call(self, method, *args):
        self.inside[method] += 1
        self.calls.append((method, dict(self.inside), args[0]))
        try:
            return await getattr(self.inner, method)(*args)
        finally:
            self.inside[method] -= 1

    async def generate(self, *args):
        return await self._call("generate", *args)

    async def search(self, *args):
        return await self._call("search", *args)


class Finds:
    """Finds one document, after a moment."""

    async def search(self, queries):
        await asyncio.sleep(0.002)
        return [[Document("1", f"About {query}\ntext")] for query in queries]


def played(bench, name, slots=None, capacity=None):
    """The outcome of a schedule, and what its engines and its searcher saw."""
    plans = simulated.draw(LOAD, bench.queries)

    async def main():
        searcher = Watched(Finds())
        jobs = simulated.make_jobs(plans, [1, 2], bench.protocol, bench.codec, bench.rates, FAST, slots)
        engine = Watched(None, searcher.inside)
        watched = []
        for job in jobs:
            engine_ = Watched(job.engine, searcher.inside, engine.calls)
            watched.append(schedules.Job(job.id, job.question, job.prompt_ids, engine_, job.pause))
        budget = simulated.roomy(LOAD.most_turns)
        args = (watched, searcher, bench.protocol, budget, bench.codec, slots, capacity)
        return await schedules.play(name, *args), engine.calls, searcher.calls, jobs

    return asyncio.run(main())


@pytest.mark.slow
def test_all_schedules_play_the_turns_that_were_drawn(bench):
    plans = simulated.draw(LOAD, bench.queries)
    texts = set()
    for name in schedules.NAMES:
        outcome, *_ = played(bench, name)
        assert outcome.statuses == {"answered": LOAD.trajectories}
        assert [len(record.turns) for record in outcome.records] == [len(plan) for plan in plans]
        for record, plan in zip(outcome.records, plans, strict=True):
            queries = [query for turn in record.turns for query in turn.queries]
            assert queries == [turn.query for turn in plan if turn.query]
        texts.add(json.dumps([record.generated_text for record in outcome.records]))
    assert len(texts) == 1


@pytest.mark.slow
def test_in_lock_step_nobody_searches_while_another_generates(bench):
    for name in ("lockstep", "serial"):
        _, generated, searched, _ = played(bench, name)
        assert not any(inside["search"] for _, inside, _ in generated)
        assert not any(inside["generate"] for _, inside, _ in searched)
    _, generated, searched, _ = played(bench, "async")
    assert any(inside["generate"] for _, inside, _ in searched), "async is to overlap the two"


@pytest.mark.slow
def test_lock_step_asks_for_a_whole_turn_in_one_request_and_serial_one_by_one(bench):
    plans = simulated.draw(LOAD, bench.queries)
    _, _, searched, _ = played(bench, "lockstep")
    by_turn = [sum(len(plan) > turn + 1 for plan in plans) for turn in range(LOAD.most_turns - 1)]
    assert [len(queries) for _, _, queries in searched] == [count for count in by_turn if count]
    _, _, searched, _ = played(bench, "serial")
    assert len(searched) == sum(by_turn)
    assert {inside["search"] for _, inside, _ in searched} == {1}


def test_a_load_is_the_same_for_the_same_seed_and_its_queries_all_differ(bench):
    plans = simulated.draw(LOAD, bench.queries)
    assert plans == simulated.draw(LOAD, bench.queries)
    assert plans != simulated.draw(simulated.Load(**{**vars(LOAD), "seed": 4}), bench.queries)
    queries = [turn.query for plan in plans for turn in plan if turn.query]
    assert len(set(queries)) == len(queries) > 0
    assert {len(plan) for plan in plans} == {1, 2, 3}


def test_draws_have_the_means_that_were_asked_for():
    plans = simulated.draw(simulated.Load(trajectories=4000, search_sigma=0.5), ["q"])
    turns = [turn for plan in plans for turn in plan]
    assert sum(turn.decode_s for turn in turns) / len(turns) == pytest.approx(2.0, rel=0.05)
    assert sum(turn.search_s for turn in turns) / len(turns) == pytest.approx(0.15, rel=0.05)


def test_a_trajectorys_own_time_is_its_tokens_over_the_rates(bench):
    outcome, _, _, jobs = played(bench, "async")
    for job, record in zip(jobs, outcome.records, strict=True):
        # All but the last turn's own tokens are prefilled when the observation after them has come.
        prefilled = record.prompt_tokens + record.observed_tokens
        seconds = record.generated_tokens / bench.rates.decode + prefilled / bench.rates.prefill
        assert job.engine.own_s == pytest.approx(seconds)


@pytest.mark.slow
def test_the_engines_slots_and_the_retrievers_capacity_are_kept(bench):
    outcome, _, _, jobs = played(bench, "async", slots=2)
    # Two slots cannot have done the work in less time; a sleep is never too short.
    assert outcome.wall_s * FAST >= 0.999 * sum(job.engine.own_s for job in jobs) / 2
    _, _, searched, _ = played(bench, "async", capacity=2)
    assert max(inside["search"] for _, inside, _ in searched) <= 2


@pytest.mark.slow
def test_cost_is_shown_against_trajectories_and_turns(capsys, tmp_path):
    out = tmp_path / "rows.json"
    small = ["--scale-trajectories", "2", "4", "--scale-turns", "2", "--speed", "400"]
    assert rollout.main(["scale", *small, "--json", str(out)]) == 0
    output = capsys.readouterr().out
    assert "4 trajectories" in output and "64 trajectories x 2 turns" in output
    rows = json.loads(out.read_text())
    assert [row["schedule"] for row in rows] == ["async", "lockstep"] * 3
    assert all(row["turns"] == 128 for row in rows[-2:])


@pytest.mark.full
def test_the_schedules_are_compared_against_a_real_retrieval_server():
    flags = ["--trajectories", 8, "--speed", 20, "--slots", 0]
    output = run_script("benchmarks/rollout.py", *flags)
    lines = [line for line in output.splitlines() if line.startswith("sigma")]
    assert [line.split()[4] for line in lines] == list(schedules.NAMES) * 2
    assert "failed" not in output


@pytest.mark.parametrize(
    "args", [["--turns", "3", "2"], ["--speed", "0"], ["--trajectories", "0"], ["--sigma", "-1"], ["grow"]]
)
def test_arguments_out_of_range_are_refused(args):
    with pytest.raises(SystemExit):
        rollout.parse_args(args)


@pytest.mark.slow
def test_overhead_is_measured_with_and_without_verls_loop(capsys):
    for more in ([], ["--plugin"]):
        assert agent_overhead.main(["--turns", "2", "3", "--rounds", "1", "--turn-tokens", "128", *more]) == 0
        header, two, three = capsys.readouterr().out.splitlines()[-3:]
        assert header.split()[:2] == ["tokens", "turns"]
        assert (two.split()[1], three.split()[1]) == ("2", "3")
        assert 150 < int(two.split()[0]) < int(three.split()[0]) < 600
