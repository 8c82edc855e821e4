"""The checks of trajectories with several rows notice when something is wrong.

The run here is made by hand: two steps of two updates, each of one question with four trajectories. Of these
one answers at once, one thinks first and is two rows, and two think twice and are three.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from transformers import AutoTokenizer

from rag_r1.demo.policy import policy_path
from tests.e2e import rewriting_checks
from tests.e2e.made_runs import (
    lines,
    metrics,
    proofs,
    searched,
    unmask,
    write_lines,
    write_metrics,
    write_records,
)
from tests.e2e.rewriting_checks import CHECKS, RewritingRun

STEPS, QUESTIONS, GROUP, UPDATES, TURNS, VALIDATED = 2, 2, 4, 2, 4, 3
POLICY = policy_path("rag_r1_mq")
LOGGED = {
    "search/samples": float(QUESTIONS * GROUP),
    "search/em": 0.25,
    "search/left_out": 0.0,
    "search/lost": 0.0,
    "search/masked": 0.0,
    "sessions/rows": (1 + 2 + 3 + 3) / 4,
    "training/rollout_probs_diff_max": 1e-6,
    "actor/grad_norm": 0.1,
}


class Writer:
    """Makes one trajectory after the other, each with a year of its own in its texts."""

    def __init__(self):
        self.tokenizer, self.year = AutoTokenizer.from_pretrained(POLICY), 1800

    def ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False).input_ids

    def trajectory(self, uid: str, number: int) -> tuple[list[dict], dict]:
        """Its rows, and its record."""
        self.year += 1
        thought = f"<think> I know {self.year} </think>"
        search, seen = f"<search> {self.year} </search>", "\n<information>\nDoc 1\n</information>\n"
        answer = f"<answer> {self.year} </answer>"
        # A row is what precedes it after the prompt, and its pieces; those at odd places are observations.
        parts = {
            0: [("", [answer])],
            1: [("", [thought]), (thought, [answer])],
        }.get(number, [("", [thought]), (thought, [search, seen, thought]), (thought, [answer])])
        rows, turns = [], []
        for place, (kept, pieces) in enumerate(parts):
            prompt, responses, mask = self.ids(f"Who was {uid}?") + self.ids(kept), [], []
            for i, piece in enumerate(pieces):
                responses += self.ids(piece)
                mask += [(i + 1) % 2] * len(self.ids(piece))
                if i % 2 == 0:
                    text = self.tokenizer.decode(self.ids(piece), skip_special_tokens=True)
                    turns.append({"text": text, "row": place})
            rows.append(
                {
                    "uid": uid,
                    "session_id": number,
                    "prompts": prompt,
                    "responses": responses,
                    "response_mask": mask,
                    "loss_mask": [0] * len(prompt) + mask,
                    "advantages": [(0.75 if number == 0 else -0.25) * bit for bit in mask],
                }
            )
        em = float(number == 0)
        return rows, {"id": f"{uid}#{number}", "turns": turns, "rewards": {"em": em}}


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> RewritingRun:
    out, writer = tmp_path_factory.mktemp("rewriting"), Writer()
    updates = []
    for step in range(1, STEPS + 1):
        records = []
        for number in range(QUESTIONS):
            made = [writer.trajectory(f"q{step}{number}", n) for n in range(GROUP)]
            records += [record for _, record in made]
            rows = [row for own, _ in made for row in own]
            padding = {**rows[0], "uid": "pad", "response_mask": [0] * len(rows[0]["responses"])}
            updates.append([*rows, padding])
        write_records(out, records, step)
    write_lines(out / "updates.jsonl", updates)
    for step in (0, STEPS):
        write_records(out, [{"id": f"v{i}", "turns": []} for i in range(VALIDATED)], step, split="val")
    write_metrics(out / "metrics.jsonl", {0: {"val": 1.0}, 1: LOGGED, 2: LOGGED})
    return RewritingRun(out, POLICY, STEPS, QUESTIONS, GROUP, UPDATES, TURNS, VALIDATED)


METRICS, EVERY_STEP = "metrics.jsonl", "trajectories/train/*.jsonl"
step2, validation = (partial(lines, f"trajectories/{part}/step_000002-1.jsonl") for part in ("train", "val"))
Updates = list[list[dict[str, Any]]]


updates = partial(lines, "updates.jsonl")
logged = partial(metrics, METRICS)


def never_learning(run: RewritingRun) -> None:
    for step in (1, 2):
        logged(step, grad_norm=0.0)(run)


def one_row_for_each(records: list[dict]) -> None:
    for record in records:
        for turn in record["turns"]:
            turn["row"] = 0


def three_rows_for_each(records: list[dict]) -> None:
    for record in records:
        record["turns"] = [{"text": f"t{row}", "row": row} for row in range(3)]


def six_rows(records: list[dict]) -> None:
    records[0]["turns"] = [{"text": f"t{row}", "row": row} for row in range(6)]


def rows_apart(cut: Updates) -> None:
    """A row of a trajectory is in the next update; the sizes stay."""
    cut[1].append(cut[0].pop(1))
    cut[0].append(dict(cut[0][-1]))


def in_two_updates(cut: Updates) -> None:
    """A trajectory of the first update takes the place of one of the second."""
    cut[1][0] = dict(cut[0][0])


def own_sessions(cut: Updates) -> None:
    """Every row is a trajectory of its own."""
    for i, row in enumerate(cut[0]):
        row["session_id"] = i


def two_advantages(cut: Updates) -> None:
    cut[0][1]["advantages"] = [0.5] * len(cut[0][1]["advantages"])


def no_advantages(cut: Updates) -> None:
    for rows in cut:
        for row in rows:
            row["advantages"] = [0.0] * len(row["advantages"])


def other_token(cut: Updates) -> None:
    cut[0][0]["responses"][1] += 1


def searched_row(cut: Updates) -> dict[str, Any]:
    return searched(row for row in cut[0] if row["uid"] != "pad")


def unmask_observation(cut: Updates) -> None:
    row = searched_row(cut)
    unmask(row)
    row["loss_mask"][-len(row["responses"]) :] = row["response_mask"]


def not_rewritten(cut: Updates) -> None:
    for rows in cut:
        for row in rows:
            row["prompts"] = row["prompts"][:3]


def more_than_the_thought(cut: Updates) -> None:
    row = searched_row(cut)
    row["prompts"] = row["prompts"] + row["responses"][:2]


def another_prompt(cut: Updates) -> None:
    searched_row(cut)["prompts"][0] += 1


DIFFERENT, UPDATED, TOGETHER, WRITTEN, BEGINS, AGREE, COUNT = CHECKS
#: What goes wrong, and the check that must notice it.
SPOILINGS = {
    "trajectories have one row each": (lines(EVERY_STEP, one_row_for_each), DIFFERENT),
    "all trajectories have three rows": (lines(EVERY_STEP, three_rows_for_each), DIFFERENT),
    "a trajectory has more rows than turns": (step2(six_rows), DIFFERENT),
    "an update is missing": (updates(list.pop), UPDATED),
    "an update too many": (updates(lambda cut: cut.append(cut[0])), UPDATED),
    "an update lacks a trajectory": (updates(lambda cut: cut[0].pop(0)), UPDATED),
    "rows count as trajectories": (updates(own_sessions), UPDATED),
    "mini-batches are of different sizes": (updates(lambda cut: cut[0].pop()), UPDATED),
    "rows of a trajectory are in two updates": (updates(rows_apart), TOGETHER),
    "a trajectory is in two updates": (updates(in_two_updates), TOGETHER),
    "a trajectory is in no update": (updates(lambda cut: cut[0].pop(0)), TOGETHER),
    "a row has an advantage of its own": (updates(two_advantages), TOGETHER),
    "no trajectory has an advantage": (updates(no_advantages), TOGETHER),
    "a row is not trained on": (updates(lambda cut: cut[0].pop(1)), WRITTEN),
    "a row is trained on twice": (updates(lambda cut: cut[0].append(cut[0][1])), WRITTEN),
    "the actor gets another token": (updates(other_token), WRITTEN),
    "an observation is trained on": (updates(unmask_observation), WRITTEN),
    "the loss has another mask": (updates(lambda cut: cut[0][0]["loss_mask"].__setitem__(-1, 0)), WRITTEN),
    "padding is trained on": (updates(lambda cut: unmask(cut[0][-1])), WRITTEN),
    "a record is lost": (step2(list.pop), WRITTEN),
    "a turn is recorded in another row": (step2(lambda r: r[1]["turns"][1].update(row=0)), WRITTEN),
    "no context is rewritten": (updates(not_rewritten), BEGINS),
    "a rewritten context keeps more than the thought": (updates(more_than_the_thought), BEGINS),
    "a rewritten context begins with another prompt": (updates(another_prompt), BEGINS),
    "engine and actor disagree": (logged(2, diff_max=0.1), AGREE),
    "the probabilities were not compared": (logged(2, diff_max=None), AGREE),
    "nothing is learned": (never_learning, AGREE),
    "a step is missing": (lines(METRICS, list.pop), AGREE),
    "metrics count rows": (logged(2, samples=18.0), COUNT),
    "a metric is a mean over rows": (logged(2, em=2 / 18), COUNT),
    "the number of rows is another": (logged(2, **{"sessions/rows": 1.0}), COUNT),
    "a trajectory is left out": (logged(2, left_out=1.0), COUNT),
    "a trajectory is lost": (logged(2, lost=1.0), COUNT),
    "a trajectory is masked": (logged(2, masked=1 / 8), COUNT),
    "no step is logged": (lines(METRICS, list.clear), COUNT),
    "a record is that of another step": (step2(lambda r: r[0].update(step=1)), COUNT),
    "a validated trajectory is recorded twice": (validation(lambda r: r.append(r[0])), COUNT),
    "a validated trajectory is lost": (validation(list.pop), COUNT),
}  # fmt: skip


globals().update(proofs(rewriting_checks, CHECKS, SPOILINGS))
