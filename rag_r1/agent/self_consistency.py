"""Self-consistency: plays a question several times and takes the majority answer.

    rag_r1.agent.paths: 3      at most rag_r1.agent.max_turns turns each, and the last turn

The paths start from the same prompt and run at the same time. Each has its own context, its own limits and
its own samples; nothing goes from one to another. Their answers vote: equal but for letter case, punctuation
and white space is the same answer, paths without an answer have no vote, and of answers with as many votes
the one wins whose first path comes first. The record is that of this path, with the records of all in it.

This is for `rag-r1 eval`; a chat plays one path. A training has the same without it: the paths of a question
are its group (`actor_rollout_ref.rollout.n`), of which each has a reward of its own. Training on the winner
alone would train on samples that were selected, and which the policy's probabilities do not describe.

Source: self-consistency (arXiv 2203.11171). The paths of Agentic RAG-R1 (branch verl_dev, `spr1_agent`) are
something else, see docs/guides/tool_calls.md.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence

from rag_r1.agent.trajectory import Trajectory, query_key


async def sample_paths(
    play: Callable[[int], Awaitable[Trajectory]], paths: int, masked: Collection[str] = ()
) -> Trajectory:
    """Plays the paths and returns the record that `majority_vote` chooses. `play(n)` plays the nth path, from
    0; `masked`: kinds of failure that leave an episode unjudged."""
    return majority_vote(await asyncio.gather(*map(play, range(paths))), masked)


def majority_vote(records: Sequence[Trajectory], masked: Collection[str] = ()) -> Trajectory:
    """Returns the path whose answer has most votes, with `path` and `paths` set if there are several. If a
    path has a failure of a kind in `masked`, that path is returned: a vote without it would not be the
    policy's."""
    if len(records) == 1:
        return records[0]
    number = next((number for number, record in enumerate(records) if record.masked(masked)), None)
    if number is None:
        number = _majority([record.answer for record in records])
    best = records[number]
    for path, record in enumerate(records):
        record.path = path
    best.paths = [record.to_dict() for record in records]
    best.seconds = max(record.seconds for record in records)
    return best


def _majority(answers: Sequence[str | None]) -> int:
    """The number of the first path with the most frequent answer; 0 without any answer."""
    keys = [query_key((answer or "").strip()) for answer in answers]
    votes = Counter(filter(None, keys))
    winner = max(votes, key=votes.__getitem__, default=keys[0])  # of several the first
    return keys.index(winner)
