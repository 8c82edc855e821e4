"""The checks of a finished training notice when something in it is wrong.

The run here is made by hand, of the demo's traces: two steps of eight trajectories, as files of the same form
as those of a real training.
"""

from __future__ import annotations

from functools import partial

import pytest

from rag_r1.demo import policy
from tests.e2e import run_checks
from tests.e2e.made_runs import (
    by_step,
    lines,
    metrics,
    play,
    proofs,
    rows_spoilt,
    searched,
    unmask,
    write_lines,
    write_records,
    write_run,
)
from tests.e2e.run_checks import CHECKS, Run

STEPS, SAMPLES, VALIDATED = 2, 8, 4


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Run:
    out, tokenizer = tmp_path_factory.mktemp("run"), policy.demo_tokenizer()
    played = play(STEPS * SAMPLES, tokenizer=tokenizer)
    write_lines(out / "corpus.jsonl", played.passages)
    for step in (0, STEPS):
        write_records(out, [{"id": f"v{i}", "turns": []} for i in range(VALIDATED)], step, split="val")
    held_out = {"val-core/demo/bridge/em/mean@1": 0.5}
    trained = {
        "search/em": 1.0,
        "search/score": 1.0,
        "critic/score/mean": 1.0,
        "search/tool_failures": 0.0,
        "search/bad_row": 0.0,
        "actor/ppo_kl": 1e-7,
        "actor/pg_clipfrac": 0.0,
    }
    logged = {0: held_out, 1: trained, 2: {**trained, **held_out}}
    write_run(out, played.rows, by_step(played.records, SAMPLES), logged)
    policy.save_policy(out / "policy", policy.make_policy(tokenizer, 0), tokenizer)
    return Run(out, out / "policy", out / "corpus.jsonl", STEPS, SAMPLES, "val", VALIDATED)


actor, logged = partial(lines, "actor.jsonl"), partial(metrics, "metrics.jsonl", 2)
train = partial(lines, "trajectories/train/step_000002-1.jsonl")
validation = partial(lines, "trajectories/val/step_000002-1.jsonl")


def shift_mask(rows: list[dict]) -> None:
    """The mask slips by one token, as with an off-by-one at a seam."""
    rows[0]["response_mask"] = [1, *rows[0]["response_mask"][:-1]]


def unmask_everything(rows: list[dict]) -> None:
    for row in rows:
        unmask(row)


def unmask_whole(rows: list[dict]) -> None:
    """All of these rows is trained on, in the loss too."""
    unmask_everything(rows)
    for row in rows:
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
SPOILINGS = {
    **rows_spoilt(ONCE, replaced=WRITTEN),
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
    "the masks are those of other texts": (actor(unmask_everything), OBSERVED),
    "nothing was searched": (actor(unmask_whole), OBSERVED),
    "an observation is in the loss": (actor(lambda r: unmask_whole([searched(r)])), OBSERVED),
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


globals().update(proofs(run_checks, CHECKS, SPOILINGS, fails=AssertionError))
