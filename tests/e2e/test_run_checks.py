"""The checks of a finished training notice when something in it is wrong.

The run here is made by hand, of the demo's traces: two steps of eight trajectories, as files of the same form
as those of a real training.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rag_r1.demo import policy
from tests.e2e import run_checks
from tests.e2e.made_runs import copied, expect_failure, lines, never_failing, play, write_lines
from tests.e2e.run_checks import CHECKS, Run

STEPS, SAMPLES, VALIDATED = 2, 8, 4


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Run:
    out = tmp_path_factory.mktemp("run")
    tokenizer = policy.demo_tokenizer()
    played = play(STEPS * SAMPLES, tokenizer=tokenizer)
    write_lines(out / "corpus.jsonl", played.passages)
    records = [{**record, "step": 1 + i // SAMPLES} for i, record in enumerate(played.records)]
    rows = played.rows
    write_lines(out / "actor.jsonl", rows)
    for step in range(1, STEPS + 1):
        write_lines(
            out / "trajectories" / "train" / f"step_{step:06d}-1.jsonl",
            [record for record in records if record["step"] == step],
        )
    for step in (0, STEPS):
        validated = [{"id": f"v{i}", "step": step, "turns": []} for i in range(VALIDATED)]
        write_lines(out / "trajectories" / "val" / f"step_{step:06d}-1.jsonl", validated)
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
    metrics = [(0, held_out), (1, trained), (2, {**trained, **held_out})]
    write_lines(out / "metrics.jsonl", [{"step": step, "data": data} for step, data in metrics])
    policy.save_policy(out / "policy", policy.make_policy(tokenizer, 0), tokenizer)
    return Run(out, out / "policy", out / "corpus.jsonl", STEPS, SAMPLES, "val", VALIDATED)


ACTOR, METRICS = "actor.jsonl", "metrics.jsonl"
TRAIN = "trajectories/train/step_000002-1.jsonl"
VAL = "trajectories/val/step_000002-1.jsonl"


def unmask_observation(rows: list[dict]) -> None:
    rows[0]["response_mask"] = [1] * len(rows[0]["response_mask"])


def shift_mask(rows: list[dict]) -> None:
    """The mask slips by one token, as with an off-by-one at a seam."""
    rows[0]["response_mask"] = [1, *rows[0]["response_mask"][:-1]]


def unmask_everything(rows: list[dict]) -> None:
    for row in rows:
        row["response_mask"] = [1] * len(row["responses"])


def unmask_whole(rows: list[dict]) -> None:
    """All of these rows is trained on, in the loss too."""
    for row in rows:
        row["response_mask"] = [1] * len(row["responses"])
        row["loss_mask"] = [0] * len(row["prompts"]) + row["response_mask"]


def unmask_one_whole(rows: list[dict]) -> None:
    unmask_whole([next(row for row in rows if not all(row["response_mask"]))])


def end_with_an_observation(rows: list[dict]) -> None:
    """A row without what the policy wrote last."""
    row = next(row for row in rows if not all(row["response_mask"]))
    while row["response_mask"][-1]:
        for column in ("responses", "response_mask", "loss_mask", "input_ids"):
            row[column].pop()


def other_token(rows: list[dict]) -> None:
    rows[0]["responses"][1] += 1


def changes(**values) -> Callable[[list[dict]], None]:
    """Sets metrics of step 2; None takes them away."""

    def change(entries: list[dict]) -> None:
        for name, value in values.items():
            found = next(key for key in entries[2]["data"] if key.endswith(name))
            entries[2]["data"].pop(found) if value is None else entries[2]["data"].update({found: value})

    return change


ONCE, VALIDATED_CHECK, WRITTEN, OBSERVED, CORPUS, LOGGED, AGREE = CHECKS
#: What goes wrong, in which file, and the check that must notice it.
TAMPERINGS = {
    "a row is not trained on": (ACTOR, lambda rows: rows.pop(), ONCE),
    "a row is trained on twice": (ACTOR, lambda rows: rows.append(rows[0]), ONCE),
    "one row in the place of another": (ACTOR, lambda rows: rows.__setitem__(1, rows[0]), WRITTEN),
    "a trajectory is lost": (TRAIN, lambda records: records.pop(), ONCE),
    "a trajectory is dumped twice": (TRAIN, lambda records: records.append(records[0]), ONCE),
    "a step plays another's sample": (TRAIN, lambda records: records[0].update(step=1), ONCE),
    "a sample has no score": (TRAIN, lambda records: records[0].update(rewards={"score": None}), ONCE),
    "a validation is short": (VAL, lambda records: records.pop(), VALIDATED_CHECK),
    "a validation is not scored": (METRICS, changes(**{"em/mean@1": None}), VALIDATED_CHECK),
    "the actor gets another token": (ACTOR, other_token, WRITTEN),
    "the record holds another text": (TRAIN, lambda r: r[0]["turns"][0].update(text="else"), WRITTEN),
    "an observation is trained on": (ACTOR, unmask_observation, WRITTEN),
    "the mask slips by a token": (ACTOR, shift_mask, OBSERVED),
    "the loss has another mask": (ACTOR, lambda rows: rows[0]["loss_mask"].__setitem__(-1, 0), OBSERVED),
    "the actor's context is another": (ACTOR, lambda rows: rows[0]["input_ids"].__setitem__(0, 7), OBSERVED),
    "the masks are those of other texts": (ACTOR, unmask_everything, OBSERVED),
    "nothing was searched": (ACTOR, unmask_whole, OBSERVED),
    "an observation is in the loss": (ACTOR, unmask_one_whole, OBSERVED),
    "a row ends with an observation": (ACTOR, end_with_an_observation, OBSERVED),
    "a document is not of the corpus": (
        TRAIN, lambda r: r[0]["turns"][0]["calls"][0]["documents"][0].update(id="elsewhere"), CORPUS,
    ),
    "a search failed": (METRICS, changes(**{"tool_failures": 1 / 8}), LOGGED),
    "a row was bad": (METRICS, changes(**{"bad_row": 1 / 8}), LOGGED),
    "a term is not logged": (METRICS, changes(**{"search/em": None}), LOGGED),
    "veRL trained on another reward": (METRICS, changes(**{"critic/score/mean": 0.9}), LOGGED),
    "engine and actor disagree": (METRICS, changes(**{"ppo_kl": -3e-4}), AGREE),
    "a token's ratio is clipped": (METRICS, changes(**{"pg_clipfrac": 0.01}), AGREE),
    "a step made no update": (METRICS, changes(**{"ppo_kl": None}), AGREE),
}  # fmt: skip


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_run_in_order_passes(written, check):
    check(written)


@pytest.mark.parametrize("what", TAMPERINGS)
def test_what_is_wrong_is_noticed(written, tmp_path, what):
    name, tamper, check = TAMPERINGS[what]
    expect_failure(check, lines(name, tamper), copied(written, tmp_path), AssertionError)


def test_every_assertion_of_a_check_fails_at_some_tampering(written, tmp_path):
    failures = [
        expect_failure(check, lines(name, tamper), copied(written, tmp_path / str(i)))
        for i, (name, tamper, check) in enumerate(TAMPERINGS.values())
    ]
    assert not never_failing(run_checks, failures)


def test_every_check_has_a_tampering():
    assert {check for *_, check in TAMPERINGS.values()} == set(CHECKS)


def test_the_checks_are_all_of_the_module():
    named = [f for n, f in vars(run_checks).items() if getattr(f, "__annotations__", {}).get("run") == "Run"]
    assert set(named) == set(CHECKS)
