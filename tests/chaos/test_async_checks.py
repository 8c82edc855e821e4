"""The checks of an asynchronous training notice when something in what it has left behind is wrong."""

from __future__ import annotations

from functools import partial

import pytest

from rag_r1.demo.policy import policy_path
from tests.chaos import async_checks
from tests.chaos.async_checks import CHECKS, AsyncRun, held
from tests.e2e.left_behind import json_lines
from tests.e2e.mutations import each, lines, metrics, proofs, rows_changed, searched, unmask, unpack

STEPS, SAMPLES = 3, 32
METRICS, JOURNAL = "run.jsonl", "journal.jsonl"


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> AsyncRun:
    out = unpack("async", tmp_path_factory.mktemp("async"))
    return AsyncRun(out, policy_path("rag_r1_mq"), STEPS, SAMPLES)


actor, step2 = partial(lines, "actor.jsonl"), partial(lines, "trajectories/train/step_000002-*.jsonl")
logged = partial(metrics, METRICS)


def other_token(rows: list[dict]) -> None:
    rows[0]["responses"][1] += 1


def other_observed_token(rows: list[dict]) -> None:
    row = searched(rows)
    row["responses"][row["response_mask"].index(0)] += 1


def no_span(entry: dict) -> None:
    entry["data"]["training/off_policy/trajectory_spans/max"] = 1


def at_call(change):
    """Changes the list of events of the trajectory whose call was held; `change` is given it, and the place
    of the call."""

    def find(journal: list[dict]) -> None:
        events, place = next(
            (line["events"], i) for line in journal for i, event in enumerate(line["events"]) if held(event)
        )
        change(events, place)

    return lines(JOURNAL, find)


def held_row(rows: list[dict], journal: list[dict]) -> int:
    """The place among the actor's rows of the trajectory whose call was held."""
    last = next(line["events"][-1] for line in journal if any(map(held, line["events"])))
    whole = last["context"] + last["ids"]
    return next(i for i, row in enumerate(rows) if row["prompts"] + row["responses"] == whole)


def without_the_held_row(run: AsyncRun) -> None:
    journal = json_lines(run.out / JOURNAL)
    actor(lambda rows: rows.pop(held_row(rows, journal)))(run)


def failed_call(run: AsyncRun) -> None:
    ((name, _),) = run.held

    def fail(record: dict) -> None:
        if record["id"] == name:
            next(turn for turn in record["turns"] if turn["calls"])["calls"][-1]["status"] = "failed"

    lines("trajectories/train/*.jsonl", each(fail))(run)


ALL, SAME, SPANS, WRITTEN, UNDER_WAY, VERSIONS, ONCE, GOES_ON, TOKENS = CHECKS
#: What goes wrong, and the check that must notice it.
MUTATIONS = {
    "a step is missing": (lines(METRICS, list.pop), ALL),
    "a step too many": (lines(METRICS, lambda e: e.append({**e[-1], "step": 4})), ALL),
    "a trajectory is lost": (logged(2, lost=1.0), ALL),
    "a trajectory is left out": (logged(2, left_out=1.0), ALL),
    "the engine failed": (logged(3, failed_engine=0.25), ALL),
    "an episode failed by a bug": (logged(3, failed_error=0.25), ALL),
    "what was lost is not counted": (logged(1, lost=None), ALL),
    "a log-probability belongs to another token": (logged(3, probs_diff_max=0.9), SAME),
    "the probabilities could not be compared": (logged(1, diff_valid=0.0), SAME),
    "the probabilities were not compared": (logged(1, probs_diff_max=None, diff_valid=None), SAME),
    "no step has probabilities": (lines(METRICS, list.clear), SAME),
    "no trajectory spans an update": (lines(METRICS, each(no_span)), SPANS),
    "a trajectory has no weight version": (logged(2, **{"spans/min": 0}), SPANS),
    "a trajectory is of weights that are still to come": (logged(2, **{"staleness/min": -1}), SPANS),
    "the versions are not logged": (logged(2, **{"spans/max": None}), SPANS),
    "the staleness is not logged": (logged(2, **{"staleness/min": None}), SPANS),
    **rows_changed(WRITTEN),
    "the actor gets another token": (actor(other_token), WRITTEN),
    "an observation is trained on": (actor(lambda r: unmask(searched(r))), WRITTEN),
    "a record is lost": (step2(list.pop), WRITTEN),
    "a record in the place of another": (step2(lambda r: r.__setitem__(1, {**r[0], "id": "q5#0"})), WRITTEN),
    "a record holds another text": (step2(lambda r: r[0]["turns"][0].update(text="else")), WRITTEN),
    "no call was held back": (at_call(lambda e, i: e[i].update(held=False)), UNDER_WAY),
    "two calls were held back": (
        lines(JOURNAL, lambda journal: journal.append({**journal[0], "id": "x", "events": [{"held": True}]})),
        UNDER_WAY,
    ),
    "the call was let go before the update": (at_call(lambda e, i: e[i].update(updated=False)), UNDER_WAY),
    "the call did not end": (at_call(lambda e, i: e[i].update(ended=False)), UNDER_WAY),
    "the call failed": (failed_call, UNDER_WAY),
    "the turn after the call is of the old weights": (
        at_call(lambda e, i: e[i + 1].update(first=0)), VERSIONS,
    ),
    "the turn before the call is of the new weights": (
        at_call(lambda e, i: e[i - 1].update(last=1)), VERSIONS,
    ),
    "a trajectory is not in the journal": (lines(JOURNAL, list.pop), ONCE),
    "the call was made twice": (at_call(lambda e, i: e.insert(i, e[i])), ONCE),
    "the call was not made": (at_call(lambda e, i: e.pop(i)), ONCE),
    "the turn before it was generated twice": (at_call(lambda e, i: e.insert(i, e[i - 1])), ONCE),
    "it was called with other words": (at_call(lambda e, i: e[i].update(queries=["else"])), ONCE),
    "something was tried again": (step2(lambda r: r[0].update(retries=1)), ONCE),
    "a token before the call is lost": (at_call(lambda e, i: e[i + 1]["context"].pop(0)), GOES_ON),
    "another token before the call": (at_call(lambda e, i: e[i + 1]["context"].__setitem__(0, -1)), GOES_ON),
    "the observation is there twice": (at_call(lambda e, i: e[i + 1]["context"].append(7)), GOES_ON),
    "the actor gets another token of an observation": (actor(other_observed_token), TOKENS),
    "that trajectory is not trained on": (without_the_held_row, TOKENS),
}  # fmt: skip


globals().update(proofs(async_checks, CHECKS, MUTATIONS))
