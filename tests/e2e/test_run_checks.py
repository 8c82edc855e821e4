"""The checks of a finished training notice when something in it is wrong.

The run here is made by hand, of the demo's traces: two steps of eight trajectories, as files of the same form
as those of a real training.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rag_r1.agent import Turn
from rag_r1.demo import policy, world
from rag_r1.demo.search import WorldSearch
from rag_r1.demo.traces import writer
from tests.e2e import run_checks
from tests.e2e.mutations import each, lines, metrics, proofs, rows_changed, searched, unmask, write_lines
from tests.e2e.run_checks import CHECKS, Run

STEPS, SAMPLES, VALIDATED = 2, 8, 4
PROTOCOL = world.demo_protocol("rag_r1_mq")
WORLD = world.make_world(0, "train", people=20, places=10, words=12)


def play(tokenizer: Any) -> tuple[list[dict], list[dict]]:
    """Trajectories with different texts: the row on which the actor is trained, and the record, of each."""
    search, rng = WorldSearch(WORLD.passages), random.Random(0)
    rows, records = [], []
    for i, question in enumerate(world.make_questions(WORLD, STEPS * SAMPLES, 0)):
        strategy = rng.choice(["sequential", "parallel", "early"])
        trace = writer.write_trace(question, strategy, WORLD, PROTOCOL, search.results, rng)
        ids, mask = policy.encode_trace(tokenizer, PROTOCOL, PROTOCOL.messages(question.text), trace)
        start = mask.index(1)
        row = {"prompts": ids[:start], "responses": ids[start:], "response_mask": mask[start:]}
        rows.append({**row, "loss_mask": mask, "input_ids": ids})
        texts = [segment.text for segment in trace if segment.generated]
        queries = [PROTOCOL.parse(text).queries for text in texts[:-1]]
        turns = [
            Turn.searched(text, *search_of_turn).to_dict()
            for text, search_of_turn in zip(
                texts, [*((words, search.results(words)) for words in queries), ((), ())], strict=True
            )
        ]
        record = {"id": f"q{i}#0", "protocol": PROTOCOL.name, "turns": turns}
        records.append({**record, "rewards": {"score": 1.0}, "failures": [], "retries": 0})
    return rows, records


def write_records(out: Path, split: str, step: int, records: Iterable[dict]) -> None:
    path = out / "trajectories" / split / f"step_{step:06d}-1.jsonl"
    write_lines(path, [{**record, "step": step} for record in records])


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Run:
    out, tokenizer = tmp_path_factory.mktemp("run"), policy.demo_tokenizer()
    rows, records = play(tokenizer)
    write_lines(out / "corpus.jsonl", WORLD.passages)
    write_lines(out / "actor.jsonl", rows)
    for step in (1, 2):
        write_records(out, "train", step, records[(step - 1) * SAMPLES : step * SAMPLES])
    for step in (0, STEPS):
        write_records(out, "val", step, [{"id": f"v{i}", "turns": []} for i in range(VALIDATED)])
    held_out = {"val-core/demo/bridge/em/mean@1": 0.5}
    trained = {
        "search/samples": float(SAMPLES),
        "search/em": 1.0,
        "search/score": 1.0,
        "critic/score/mean": 1.0,
        "search/tool_failures": 0.0,
        "search/bad_row": 0.0,
        "actor/ppo_kl": 1e-7,
        "actor/pg_clipfrac": 0.0,
    }
    logged = {0: held_out, 1: trained, 2: {**trained, **held_out}}
    write_lines(out / "metrics.jsonl", [{"step": step, "data": data} for step, data in logged.items()])
    policy.save_policy(out / "policy", policy.make_policy(tokenizer, 0), tokenizer)
    return Run(out, out / "policy", out / "corpus.jsonl", STEPS, SAMPLES, "val", VALIDATED)


actor, logged = partial(lines, "actor.jsonl"), partial(metrics, "metrics.jsonl", 2)
train = partial(lines, "trajectories/train/step_000002-1.jsonl")
validation = partial(lines, "trajectories/val/step_000002-1.jsonl")


def shift_mask(rows: list[dict]) -> None:
    """The mask slips by one token, as with an off-by-one at a seam."""
    rows[0]["response_mask"] = [1, *rows[0]["response_mask"][:-1]]


def unmask_whole(row: dict) -> None:
    """All of the row is trained on, in the loss too."""
    unmask(row)
    row["loss_mask"] = [0] * len(row["prompts"]) + row["response_mask"]


def end_with_an_observation(rows: list[dict]) -> None:
    """A row without what the policy wrote last."""
    row = searched(rows)
    while row["response_mask"][-1]:
        for column in ("responses", "response_mask", "loss_mask", "input_ids"):
            row[column].pop()


def other_token(rows: list[dict]) -> None:
    rows[0]["responses"][1] += 1


ONCE, VALIDATED_CHECK, WRITTEN, OBSERVED, CORPUS, LOGGED, AGREE = CHECKS
#: What goes wrong, and the check that must notice it.
MUTATIONS = {
    **rows_changed(ONCE, replaced=WRITTEN),
    "a trajectory is lost": (train(list.pop), ONCE),
    "a trajectory is dumped twice": (train(lambda r: r.append(r[0])), ONCE),
    "a step plays another's sample": (train(lambda r: r[0].update(step=1)), ONCE),
    "a sample has no score": (train(lambda r: r[0].update(rewards={"score": None})), ONCE),
    "a validation is short": (validation(list.pop), VALIDATED_CHECK),
    "a validation is not scored": (logged(**{"em/mean@1": None}), VALIDATED_CHECK),
    "the actor gets another token": (actor(other_token), WRITTEN),
    "the record holds another text": (train(lambda r: r[0]["turns"][0].update(text="else")), WRITTEN),
    "an observation is trained on": (actor(lambda r: unmask(r[0])), WRITTEN),
    "the mask slips by a token": (actor(shift_mask), OBSERVED),
    "the loss has another mask": (actor(lambda r: r[0]["loss_mask"].__setitem__(-1, 0)), OBSERVED),
    "the actor's context is another": (actor(lambda r: r[0]["input_ids"].__setitem__(0, 7)), OBSERVED),
    "the masks are those of other texts": (actor(each(unmask)), OBSERVED),
    "nothing was searched": (actor(each(unmask_whole)), OBSERVED),
    "an observation is in the loss": (actor(lambda r: unmask_whole(searched(r))), OBSERVED),
    "a row ends with an observation": (actor(end_with_an_observation), OBSERVED),
    "a document is not of the corpus": (
        train(lambda r: r[0]["turns"][0]["calls"][0]["documents"][0].update(id="elsewhere")), CORPUS,
    ),
    "a search failed": (logged(tool_failures=1 / 8), LOGGED),
    "a row was bad": (logged(bad_row=1 / 8), LOGGED),
    "a term is not logged": (logged(**{"search/em": None}), LOGGED),
    "veRL trained on another reward": (logged(**{"critic/score/mean": 0.9}), LOGGED),
    "engine and actor disagree": (logged(ppo_kl=-3e-4), AGREE),
    "a token's ratio is clipped": (logged(pg_clipfrac=0.01), AGREE),
    "a step made no update": (logged(ppo_kl=None), AGREE),
}  # fmt: skip


globals().update(proofs(run_checks, CHECKS, MUTATIONS, fails=AssertionError))
