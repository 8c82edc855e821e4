"""R1-Searcher's format rules as reward terms.

Together with `searched`, and with `f1` and `cover_em` with `normaliser: r1_searcher`, they make up its
rewards. The paper describes two stages. The published code has three reward servers, which differ from the
paper and from each other. For each of these five rewards there is a list of terms in
recipes/r1_searcher/reward/:

    paper_stage1   0.5 for a search + 0.5 for the format
    paper_stage2   F1, -2 for a wrong format
    llama_stage1   cover-EM +-1, + 0.5 for balanced blocks, at least one, + 0.5 for the ending
    llama_stage2   F1, -1 for a wrong format or Chinese
    qwen_zero      F1, -2 for a wrong format, Chinese, "assistant", or an answer with tags or over ten words

The format of a trajectory is right if its blocks are balanced and its ending is right:

    blocks   equal numbers of opened queries, closed queries and answered searches; no made-up documents
    ending   one thought and one answer, each opened and closed once

The published code counts tags in the whole text, including documents. Here only the policy's text is checked,
and searches are counted when they are made, because what the environment writes is always right: it numbers
the documents, closes the block, and neutralises tags inside. The values are the same except where the
published count can be deceived. A policy cannot make up for an unanswered query with a block of documents
that it writes itself, and it is not penalised for a search without results or a failed search engine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from rag_r1.agent import Trajectory
from rag_r1.protocols import Protocol, Tag
from rag_r1.rewards.registry import register, zero_to_one
from rag_r1.rewards.trajectory_protocol import trajectory_protocol

_CHINESE = re.compile(r"[\u4e00-\u9fff]")
_ASSISTANT = re.compile(r"[Aa]ssistant")


@register("r1_searcher_blocks", values=zero_to_one)
def r1_searcher_blocks(
    trajectory: Trajectory, golds: list[str], *, least: int = 0, protocol: Protocol | None = None
) -> float:
    """Return 1 if every query was opened, closed and answered, there are at least `least` queries, and no
    documents were made up; else 0."""
    tags = trajectory_protocol(trajectory, protocol).tags
    text = trajectory.generated_text
    searches = sum(bool(turn.queries) for turn in trajectory.turns)
    is_balanced = text.count(tags.search.open) == text.count(tags.search.close) == searches
    has_made_up_documents = tags.information.open in text or tags.information.close in text
    return float(is_balanced and not has_made_up_documents and searches >= least)


@register("r1_searcher_ending", values=zero_to_one)
def r1_searcher_ending(
    trajectory: Trajectory, golds: list[str], *, protocol: Protocol | None = None
) -> float:
    """Return 1 if exactly one thought and one answer are opened and closed, else 0. The prompt may have
    opened the thought."""
    dialect = trajectory_protocol(trajectory, protocol)
    text = trajectory.generated_text
    think, answer = dialect.tags.think, dialect.tags.answer
    thoughts = dialect.opening.count(think.open) + text.count(think.open)
    return float(
        thoughts == text.count(think.close) == text.count(answer.open) == text.count(answer.close) == 1
    )


def _format_values(*, right: float = 1.0, wrong: float = 0.0, **options: object) -> tuple[float, float]:
    """Return the range of `r1_searcher_format`, whose values are `right` and `wrong`."""
    return min(right, wrong), max(right, wrong)


@register("r1_searcher_format", values=_format_values)
def r1_searcher_format(
    trajectory: Trajectory,
    golds: list[str],
    *,
    right: float = 1.0,
    wrong: float = 0.0,
    no_chinese: bool = False,
    no_assistant: bool = False,
    no_tags_in_answer: bool = False,
    most_answer_words: int = 0,
    protocol: Protocol | None = None,
) -> float:
    """Return `right` if blocks and ending are right and the enabled rules hold, else `wrong`.

    `no_chinese` and `no_assistant` forbid these in the policy's text: a base model that writes "assistant"
    has begun to write the whole conversation. `no_tags_in_answer` forbids the tags of searches and documents
    in the answer, also without their `<|` and `|>`. `most_answer_words` limits the words of the answer; 0 is
    no limit.
    """
    dialect = trajectory_protocol(trajectory, protocol)
    text, answer = trajectory.generated_text, trajectory.answer or ""
    blocks = (dialect.tags.search, dialect.tags.information)
    faults = (
        not r1_searcher_blocks(trajectory, golds, protocol=dialect),
        not r1_searcher_ending(trajectory, golds, protocol=dialect),
        no_chinese and _CHINESE.search(text),
        no_assistant and _ASSISTANT.search(text),
        no_tags_in_answer and any(name in answer for name in _tag_names(blocks)),
        0 < most_answer_words < len(answer.split()),
    )
    return wrong if any(faults) else right


def _tag_names(blocks: Iterable[Tag]) -> list[str]:
    """Return the strings of the tags; of `<|name|>` only the name, which is no ordinary word."""
    parts = [part for tag in blocks for part in (tag.open, tag.close)]
    return [part.removeprefix("<|").removesuffix("|>") if part.startswith("<|") else part for part in parts]
