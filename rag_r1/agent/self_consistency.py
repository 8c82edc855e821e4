"""Self-consistency: plays a question several times and takes the majority answer.

    rag_r1.agent.paths: 3      at most rag_r1.agent.max_turns turns each, and the last turn

The paths start from the same prompt and run concurrently. Each has its own context, limits and samples, and
nothing is shared between them. Then their answers vote. Answers that differ only in letter case, punctuation
or white space count as equal, and paths without an answer have no vote. In a tie, the answer that occurs
first wins. The result is the record of the first path with the winning answer, which also contains the
records of all paths.

`rag-r1 eval` uses this; a chat plays one path. A training does not need it: there the paths of a question are
its group (`actor_rollout_ref.rollout.n`), and each has its own reward. To train on the winner alone would be
to train on selected samples, which the probabilities of the policy do not describe.

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
    """Play the paths concurrently; returns the record that `majority_vote` chooses. `play` is called with the
    index of each path; `masked` are the kinds of failures with which an episode is not judged."""
    return majority_vote(await asyncio.gather(*map(play, range(paths))), masked)


def majority_vote(records: Sequence[Trajectory], masked: Collection[str] = ()) -> Trajectory:
    """Return the record of the path whose answer has most votes. If a path has a failure of a kind in
    `masked`, the first such path is returned instead: without it, the vote would not be the policy's.

    `records` has at least one path. If there are several, `path` is set in all records; the returned one also
    gets the records of all paths, and the time of the longest.
    """
    if len(records) == 1:
        return records[0]
    chosen = next((path for path, record in enumerate(records) if record.masked(masked)), None)
    if chosen is None:
        chosen = _majority([record.answer for record in records])
    best = records[chosen]
    for path, record in enumerate(records):
        record.path = path
    best.paths = [record.to_dict() for record in records]
    best.seconds = max(record.seconds for record in records)
    return best


def _majority(answers: Sequence[str | None]) -> int:
    """Return the index of the first path with the most frequent answer; 0 if no path has an answer."""
    keys = [query_key((answer or "").strip()) for answer in answers]
    votes = Counter(filter(None, keys))
    winner = max(votes, key=votes.__getitem__, default=keys[0])  # the first of several
    return keys.index(winner)
