"""The term `search_r1_format`: exact match, graded by the structure of the trajectory (Search-R1 v0.3).

    answer   structure   reward                    with the defaults
    right    valid       1                         1
    right    invalid     1 - structure             0.8
    wrong    valid       structure                 0.2   (+ `retrieval` if a retrieved document has a gold)
    wrong    invalid     final                     0.1
    none     -           0                         0

A structure is valid if it is  think -> search -> information -> think -> ... -> answer  with only white space
between the blocks, none of them missing and none inside another. The environment writes the information
blocks, so only the policy's turns are checked: each must consist of one think block and one search or answer
block.

The defaults are those of Search-R1's published v0.3 runs, where `retrieval` is 0 (0.1 in its comments). Two
bugs of that code are not reproduced: the example in the prompt never counts as an answer, and a document
contains a gold only as whole words.
"""

from __future__ import annotations

import re
from functools import lru_cache

from rag_r1.agent import Trajectory
from rag_r1.protocols import Protocol, Tag, Tags
from rag_r1.rewards.answer_metrics import cover_exact_match, exact_match
from rag_r1.rewards.registry import register
from rag_r1.rewards.trajectory_protocol import trajectory_protocol


@register("search_r1_format")
def search_r1_format(
    trajectory: Trajectory,
    golds: list[str],
    *,
    structure: float = 0.2,
    final: float = 0.1,
    retrieval: float = 0.0,
    protocol: Protocol | None = None,
) -> float:
    """Return the reward in the table at the top of the module, from 0 to 1 with the defaults."""
    if trajectory.answer is None:
        return 0.0
    is_well_formed = is_valid(trajectory, trajectory_protocol(trajectory, protocol).tags)
    if exact_match(trajectory.answer, golds):
        return 1.0 if is_well_formed else 1.0 - structure
    if not is_well_formed:
        return final
    return structure + retrieval * found_gold(trajectory, golds)


def is_valid(trajectory: Trajectory, tags: Tags) -> bool:
    """Whether every turn but the last is a thought and a search, and the last one a thought and an answer."""
    if not trajectory.turns:
        return False
    *searches, last = trajectory.turns
    return (
        all(turn.action == "search" and _is_pair(turn.text, tags, tags.search) for turn in searches)
        and last.action == "answer"
        and _is_pair(last.text, tags, tags.answer)
    )


def found_gold(trajectory: Trajectory, golds: list[str]) -> bool:
    """Whether a document shown to the policy contains a gold answer, as consecutive whole words."""
    documents = (doc for turn in trajectory.turns for result in turn.documents for doc in result)
    return any(cover_exact_match(doc.contents, golds, ordered=True) for doc in documents)


def _is_pair(text: str, tags: Tags, action: Tag) -> bool:
    """Whether a text is a think block and an action block, with only white space around them and no tag
    inside."""
    parts = _tag_pattern(tags).split(text)  # text, tag, text, tag, ..., text
    expected = [tags.think.open, tags.think.close, action.open, action.close]
    return parts[1::2] == expected and not any(part.strip() for part in parts[0::4])


@lru_cache(maxsize=64)
def _tag_pattern(tags: Tags) -> re.Pattern[str]:
    """Return a pattern with which `split` cuts a text at all tags and keeps these."""
    strings = [string for tag in vars(tags).values() for string in (tag.open, tag.close)]
    return re.compile("(" + "|".join(re.escape(string) for string in strings) + ")")
