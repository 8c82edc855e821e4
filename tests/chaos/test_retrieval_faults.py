"""Many trajectories at once against a real retrieval server that is spoilt or killed: none is lost, none
hangs.

The policy is a script, so that a trajectory without a failure can be compared, token by token, with the one
that is played in peace.
"""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from rag_r1.agent import Budget, Episode, FailurePolicy, Generation
from rag_r1.protocols import load_protocol
from rag_r1.tools import RetrievalClient, RetrieverConfig, search_tools

PROTOCOL = load_protocol("rag_r1_mq")
MASKED = ("retriever", "tool", "engine")


class Characters:
    """A token is a character."""

    def encode(self, text):
        return [ord(character) for character in text]

    def decode(self, ids):
        return "".join(map(chr, ids))


class Script:
    """A policy that says its lines, some of them after a while."""

    def __init__(self, lines, pause_s):
        self.lines, self.pause_s, self.said = lines, pause_s, 0

    async def generate(self, context, max_tokens, stop):
        await asyncio.sleep(self.pause_s)
        self.said += 1
        ids = [ord(character) for character in self.lines[self.said - 1]]
        return Generation(ids, [-float(self.said)] * len(ids))


def scripts(folder, n):
    """n scripts of three searches and an answer, with queries of the demo's corpus, many of them shared."""
    rows = [json.loads(line) for line in (folder / "data" / "corpus.jsonl").read_text().splitlines()]
    titles = [row["contents"].partition("\n")[0].strip('"') for row in rows]
    turns = []
    for i in range(n):
        queries = [f"{titles[(5 * i + j) % 60]}, {titles[(i + 7 * j) % len(titles)]}" for j in range(3)]
        turns.append([*(f"<search> {query} </search>" for query in queries), f"<answer> {i} </answer>"])
    return turns


async def play_all(url, lines, policy, pause_s=0.0, within_s=600, **client):
    """(record, row) of every script, all at once."""
    searcher = RetrievalClient(RetrieverConfig(url=url, topk=2, **client))

    async def play(i):
        engine = Script(lines[i], pause_s * (1 + i % 5))
        budget = Budget(max_response_tokens=20_000)
        episode = Episode(PROTOCOL, budget, engine, search_tools(searcher), Characters(), policy)
        return await episode.run(str(i), "Q?", [i]), episode.ledger.row()

    try:
        return await asyncio.wait_for(asyncio.gather(*map(play, range(len(lines)))), within_s), searcher
    finally:
        await searcher.close()


def account(played, peaceful):
    """Every trajectory is either as in peace or ended by a failure of the retriever; returns how many are."""
    assert [record.id for record, _ in played] == [record.id for record, _ in peaceful]
    failed = 0
    for (record, row), (_, whole) in zip(played, peaceful, strict=True):
        if record.masked(MASKED):
            failed += 1
            assert (record.status, record.answer) == ("tool_failure", None)
            assert [note.kind for note in record.failures] == ["retriever"] and record.failures[0].detail
            assert row.response_ids == whole.response_ids[: len(row.response_ids)]
        else:
            assert (record.status, record.failures, row) == ("answered", [], whole)
    return failed


@pytest.mark.slow
@pytest.mark.parametrize(("retries", "gather_s"), [(0, 0.0), (1, 0.0), (1, 0.002)])
def test_with_a_third_of_the_answers_spoilt_every_trajectory_is_whole_or_flagged(
    demo_index, make_server, make_proxy, retries, gather_s
):
    lines, server = scripts(demo_index, 96), make_server()
    with make_proxy(server.url, rate=0.0, delay_s=0.0) as proxy:
        begin = time.monotonic()
        (peaceful, _) = asyncio.run(play_all(proxy.url, lines, FailurePolicy(), cache_size=0, timeout_s=120))
    # A time limit that only a delayed answer exceeds, on this machine and as busy as it is.
    limit_s = max(2.0, 8 * (time.monotonic() - begin))
    assert account(peaceful, peaceful) == 0
    policy = FailurePolicy(retries=2 * retries, wait_s=0.01, mask=MASKED)
    # The client's retries are few and its cache is off, so faults come through.
    options = {
        "retries": retries,
        "backoff_s": 0.0,
        "timeout_s": limit_s,
        "cache_size": 0,
        "gather_s": gather_s,
    }
    with make_proxy(server.url, rate=0.3, delay_s=1.25 * limit_s) as proxy:
        played, client = asyncio.run(play_all(proxy.url, lines, policy, **options))
    failed = account(played, peaceful)
    if retries == 0:
        assert 0 < failed < 96
    else:  # a query has six attempts; one that fails in all ends every trajectory that shares it
        assert client.stats.retried > 0 and failed < 20
    if not gather_s:  # shared requests are too few for faults of all kinds
        assert all(proxy.counts[fault] for fault in ("none", "delayed", "500", "truncated", "shape"))
        assert retries == 0 or sum(record.retries for record, _ in played) > 0


@pytest.mark.slow
def test_a_server_killed_and_restarted_three_times_loses_no_trajectory(demo_index, make_server):
    lines, server = scripts(demo_index, 48), make_server()
    (peaceful, _) = asyncio.run(play_all(server.url, lines, FailurePolicy()))

    async def main():
        policy = FailurePolicy(retries=8, wait_s=0.2, mask=MASKED)
        playing = asyncio.create_task(
            play_all(server.url, lines, policy, 0.1, 200, backoff_s=0.1, retries=3, cache_size=0)
        )
        for _ in range(3):
            await asyncio.sleep(0.3)
            server.kill()
            await asyncio.to_thread(server.start)
        return await playing

    played, client = asyncio.run(main())
    assert server.kills == 3 and client.stats.retried > 0
    assert account(played, peaceful) == 0


@pytest.mark.slow
def test_a_server_that_stays_away_ends_every_trajectory_with_a_flag(demo_index, make_server):
    lines, server = scripts(demo_index, 32), make_server()
    (peaceful, _) = asyncio.run(play_all(server.url, lines, FailurePolicy()))
    server.kill()
    policy = FailurePolicy(retries=1, wait_s=0.01, mask=MASKED)
    played, client = asyncio.run(play_all(server.url, lines, policy, backoff_s=0.01, retries=2))
    assert account(played, peaceful) == 32
    assert client.stats.requests <= 32 * 2 * 3


@pytest.mark.slow
def test_without_masking_a_dead_server_is_shown_to_the_policy(demo_index, make_server):
    lines, server = scripts(demo_index, 8), make_server()
    server.kill()
    played, _ = asyncio.run(play_all(server.url, lines, FailurePolicy(), backoff_s=0.01, retries=0))
    assert [(record.status, len(record.failures)) for record, _ in played] == [("answered", 3)] * 8
