"""The checks of trainings with a memory notice when something is wrong.

The run here is made by the script of the warm start in real episodes, two steps of two updates. Its rows are
the ledger's; the columns that a trainer would add are calculated, for each estimator.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, pstdev, stdev
from typing import Any

import pytest

from examples.memory.traces import ScriptedMemory
from examples.memory.warm_start import add_memory_tokens, memory_protocol, memory_setup
from examples.memory.world import KINDS, fresh_pages
from rag_r1.demo.search import WorldSearch
from rag_r1.demo.world import make_questions
from rag_r1.tools import search_tools
from tests.e2e import memory_checks
from tests.e2e.made_runs import (
    copied,
    expect_failure,
    lines,
    never_failing,
    proofs,
    write_lines,
    write_records,
)
from tests.e2e.memory_checks import CHECKS, MemoryRun

pytestmark = pytest.mark.slow  # a policy is loaded, and episodes are played

STEPS, QUESTIONS, GROUP, UPDATES = 2, 2, 8, 2
#: Half of the decisions go on with the episode.
HABITS = ({"summary": 0.6, "early": 0.4}, {"backtrack": 0.6, "guess": 0.4})
ESTIMATORS = ("grpo", "gae", "reinforce_plus_plus")


@pytest.fixture(scope="module")
def episodes(tmp_path_factory) -> tuple[Any, list[list[tuple[list[dict], dict]]]]:
    """The policy's folder, and of each update the rows and the record of each trajectory."""
    protocol = memory_protocol("agentic_rag_en")
    _, tokenizer = add_memory_tokens(protocol)
    folder = tmp_path_factory.mktemp("policy")
    tokenizer.save_pretrained(folder)
    rng = random.Random(3)
    pages = fresh_pages(rng)
    tools = partial(search_tools, WorldSearch(pages.world.passages, topk=1))
    setup = replace(memory_setup(tokenizer, protocol), tools=tools)

    async def play() -> list[list[tuple[list[dict], dict]]]:
        updates = []
        for i, question in enumerate(make_questions(pages.world, STEPS * QUESTIONS, 0, KINDS)):
            played = []
            for number in range(GROUP):
                script = ScriptedMemory(question, pages, setup.protocol, setup.codec, rng, HABITS)
                episode = setup.episode(script)
                ids = setup.prompt_ids(question.text)
                record = await episode.run(f"{question.id}#{number}", question.text, ids)
                em = float(record.answer == question.gold)
                rows = [row_of(row, f"uid{i}", number) for row in episode.ledger.rows()]
                played.append((rows, {**record.to_dict(), "rewards": {"em": em}}))
            updates.append(played)
        return updates

    return folder, asyncio.run(play())


def row_of(row: Any, uid: str, number: int) -> dict[str, Any]:
    sampled = [-0.25 * bit for bit in row.response_mask]
    return {
        "uid": uid,
        "session_id": number,
        "prompts": row.prompt_ids,
        "responses": row.response_ids,
        "response_mask": row.response_mask,
        "rollout_log_probs": sampled,
        "old_log_probs": [value + 1e-6 for value in sampled],
    }


def with_advantages(updates: list, estimator: str) -> None:
    """Add the columns of an estimator: GRPO over each group, REINFORCE++ over the tokens of each step."""
    for step in range(STEPS):
        of_step = updates[step * UPDATES : (step + 1) * UPDATES]
        tokens = [
            record["rewards"]["em"] for played in of_step for rows, record in played for row in rows
            for bit in row["response_mask"] if bit
        ]  # fmt: skip
        for played in of_step:
            scores = [record["rewards"]["em"] for _, record in played]
            for rows, record in played:
                em = record["rewards"]["em"]
                value = (em - fmean(scores)) / (stdev(scores) + 1e-6)
                if estimator == "reinforce_plus_plus":
                    value = (em - fmean(tokens)) / pstdev(tokens)
                for row in rows:
                    row["returns"] = [em * bit for bit in row["response_mask"]]
                    row["advantages"] = [value * bit for bit in row["response_mask"]]


def run_by(estimator: str, episodes: Any, out: Any) -> MemoryRun:
    policy, updates = episodes
    with_advantages(updates, estimator)
    write_lines(out / "updates.jsonl", [[row for rows, _ in played for row in rows] for played in updates])
    for step in range(STEPS):
        of_step = updates[step * UPDATES : (step + 1) * UPDATES]
        write_records(out, [record for played in of_step for _, record in played], step + 1)
    return MemoryRun(out, policy, STEPS, QUESTIONS, GROUP, UPDATES, 7, 0, estimator)


@pytest.fixture(scope="module")
def written(episodes, tmp_path_factory) -> MemoryRun:
    return run_by("grpo", episodes, tmp_path_factory.mktemp("grpo"))


Updates = list[list[dict[str, Any]]]


updates, records = partial(lines, "updates.jsonl"), partial(lines, "trajectories/train/*.jsonl")


def without(action: str) -> Callable[[list[dict]], None]:
    def change(found: list[dict]) -> None:
        for record in found:
            for turn in record["turns"]:
                turn["action"] = "think" if turn["action"] == action else turn["action"]

    return change


def rewritten(cut: Updates) -> dict[str, Any]:
    """The row with the longest prompt."""
    return max((row for rows in cut for row in rows), key=lambda row: len(row["prompts"]))


def one_row_each(cut: Updates) -> None:
    """Only the first row of each trajectory is left."""
    for rows in cut:
        seen: set[tuple] = set()
        rows[:] = [r for r in rows if not ((k := (r["uid"], r["session_id"])) in seen or seen.add(k))]


def all_wrong(found: list[dict]) -> None:
    for record in found:
        record["rewards"]["em"] = 0.0


def scaled(name: str, factor: float) -> Callable[[Updates], None]:
    """A column of one row that has a value in it."""

    def change(cut: Updates) -> None:
        row = next(row for rows in cut for row in rows if any(row[name]))
        row[name] = [factor * value for value in row[name]]

    return change


def no_log_probs(cut: Updates) -> None:
    for rows in cut:
        for row in rows:
            row["rollout_log_probs"] = row["old_log_probs"] = [0.0] * len(row["responses"])


def nothing_removed(found: list[dict]) -> None:
    for record in found:
        for turn in record["turns"]:
            turn["row"] = 0


MADE, COUNTED, AGREE, STAYS = CHECKS
SPOILINGS = {
    "no summary": (records(without("summary")), MADE),
    "no backtrack": (records(without("backtrack")), MADE),
    "a rewriting made no row": (updates(one_row_each), MADE),
    "all answers are wrong": (records(all_wrong), COUNTED),
    "a row has another advantage": (updates(scaled("advantages", 2.0)), COUNTED),
    "another log-prob": (updates(scaled("old_log_probs", 1.01)), AGREE),
    "log-probs are zeros": (updates(no_log_probs), AGREE),
    "a context keeps something else": (updates(lambda cut: rewritten(cut)["prompts"].pop()), STAYS),
    "no context is rewritten": (records(nothing_removed), STAYS),
}

#: Estimator, and the column of a row in which its score would be wrong.
OTHERS = {
    "half a return": ("gae", "returns", 0.5),
    "a return more": ("reinforce_plus_plus", "returns", 2.0),
    "an advantage that counts rows": ("reinforce_plus_plus", "advantages", 1.5),
}


def by_other_estimator(what: str, episodes: Any, folder: Path) -> BaseException:
    """How the check of scores fails when this is wrong."""
    estimator, column, factor = OTHERS[what]
    run = run_by(estimator, episodes, folder / "made")
    return expect_failure(COUNTED, updates(scaled(column, factor)), copied(run, folder))


tests = proofs(memory_checks, CHECKS, SPOILINGS)
del tests["test_every_assertion_of_a_check_fails_at_some_spoiling"]  # some only with other estimators
globals().update(tests)


@pytest.mark.parametrize("what", OTHERS)
def test_a_score_that_counts_otherwise_is_noticed_with_the_other_estimators(what, episodes, tmp_path):
    by_other_estimator(what, episodes, tmp_path)


@pytest.mark.full  # the spoilings once more
def test_every_assertion_of_a_check_fails_at_some_spoiling(written, episodes, tmp_path):
    failures = [
        expect_failure(check, spoil, copied(written, tmp_path / str(i)))
        for i, (spoil, check) in enumerate(SPOILINGS.values())
    ]
    failures += [by_other_estimator(what, episodes, tmp_path / what) for what in OTHERS]
    assert not never_failing(memory_checks, failures)
