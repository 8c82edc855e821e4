"""The checks of two stages notice when something in what they have left behind is wrong.

The stages here are made by hand: one step, then three, of four trajectories each. The second was killed when
its first step was saved, in the middle of its second. The exported models are the demo's warm start.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from rag_r1.demo.policy import policy_path
from rag_r1.demo.r1_searcher_traces import NAME
from tests.e2e import stage_checks
from tests.e2e.mutations import change_tensors, copied, copy_tokenizer, fields, lines, proofs, write_lines
from tests.e2e.stage_checks import CHECKS, TwoStages, the_first_stage_is_finished_and_the_second_is_not

STEPS, SAMPLES, FINISHED_NS = {1: 1, 2: 3}, 4, 10**18


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> TwoStages:
    out, start = tmp_path_factory.mktemp("stages"), policy_path(NAME)
    run = TwoStages(out, start, STEPS, SAMPLES, FINISHED_NS, saved_before=1)
    for stage, steps in STEPS.items():
        for step in range(1, steps + 1):
            records = [{"id": f"q{stage}{step}#{number}", "step": step} for number in range(SAMPLES)]
            write_lines(run.trajectories(stage) / f"step_{step:06d}-9.jsonl", records)
            if (stage, step) == (2, 2):
                write_lines(run.trajectories(stage) / f"step_{step:06d}-8.jsonl", records[:2])  # cut off
        checkpoints = run.trajectories(stage).parents[1] / "checkpoints"
        model = checkpoints / f"global_step_{steps}" / "actor" / "huggingface"
        shutil.copytree(start, model)
        (checkpoints / "latest_checkpointed_iteration.txt").write_text(str(steps))
        finish(run, stage, model)
    return run


def finish(run: TwoStages, stage: int, model: Path) -> None:
    run.finished(stage).write_text(f"{model}\n")
    os.utime(run.finished(stage), ns=(FINISHED_NS, FINISHED_NS))


def own_copy(run: TwoStages, folder: Path) -> TwoStages:
    """A copy, whose stages name the models of the copy."""
    copy = copied(run, folder)
    for stage in STEPS:
        finish(copy, stage, copy.out / run.model(stage).relative_to(run.out))
    return copy


TRACKER = "stage2/checkpoints/latest_checkpointed_iteration.txt"


def one_step_more(run: TwoStages) -> None:
    write_lines(run.trajectories(1) / "step_000002-9.jsonl", [{"id": "q#0", "step": 2}] * SAMPLES)


def played_again(same_questions: bool) -> Callable[[TwoStages], None]:
    """The step that was saved is trained on once more after the kill."""

    def spoil(run: TwoStages) -> None:
        first = run.trajectories(2) / "step_000001-9.jsonl"
        second = shutil.copy(first, first.with_name("step_000001-10.jsonl"))
        if not same_questions:
            second.write_text(second.read_text().replace('"id": "', '"id": "other-'))

    return spoil


def unfinished(stage: int) -> Callable[[TwoStages], None]:
    return lambda run: run.finished(stage).unlink()


def finished_again(run: TwoStages) -> None:
    run.finished(2).touch()


def without_a_norm(run: TwoStages) -> None:
    change_tensors(run.model(2), lambda tensors: tensors.pop("model.norm.weight"))


def another_tokenizer(stage: int) -> Callable[[TwoStages], None]:
    return lambda run: copy_tokenizer("rag_r1_mq", run.model(stage))


def another_vocabulary(run: TwoStages) -> None:
    model = AutoModelForCausalLM.from_pretrained(run.model(2))
    model.resize_token_embeddings(model.config.vocab_size + 8)
    model.save_pretrained(run.model(2))


def untied(run: TwoStages) -> None:
    head = "lm_head.weight"
    change_tensors(
        run.model(2), lambda tensors: tensors.update({head: tensors["model.embed_tokens.weight"].clone()})
    )
    path = run.model(2) / "config.json"
    text = path.read_text()
    path.write_text(text.replace('"tie_word_embeddings": true', '"tie_word_embeddings": false'))
    assert path.read_text() != text


LAST, FIRST = "stage2/trajectories/train/step_000003-9.jsonl", "stage1/trajectories/train/*.jsonl"
AT_THE_KILL = the_first_stage_is_finished_and_the_second_is_not
NOT_AGAIN, ALL_STEPS, SAVED, LOADS = CHECKS
#: What goes wrong, and the check that must notice it.
MUTATIONS = {
    "the first stage is trained again": (lambda run: run.finished(1).touch(), NOT_AGAIN),
    "the last checkpoint is not that of the last step": (
        lines(TRACKER, lambda step: step.__setitem__(0, 2)), ALL_STEPS,
    ),
    "there is no checkpoint": (lambda run: (run.out / TRACKER).unlink(), ALL_STEPS),
    "a stage goes beyond its steps": (one_step_more, ALL_STEPS),
    "a step is left out": (lambda run: (run.out / LAST).unlink(), ALL_STEPS),
    "a record of the first stage is lost": (lines(FIRST, list.pop), ALL_STEPS),
    "a record after the kill is lost": (lines(LAST, list.pop), ALL_STEPS),
    "a record too many": (lines(LAST, lambda r: r.append({**r[0], "id": "q9#9"})), ALL_STEPS),
    "a record is that of another step": (lines(LAST, lambda r: r[0].update(step=2)), ALL_STEPS),
    "a step that was saved is trained on again, with other questions": (played_again(False), ALL_STEPS),
    "a step that was saved is trained on again, with the same": (played_again(True), SAVED),
    "more was saved than was trained on once": (fields(saved_before=2), SAVED),
    "killed before the first stage was finished": (unfinished(1), AT_THE_KILL, unfinished(2)),
    "killed after the second stage was finished": (finished_again, AT_THE_KILL, unfinished(2)),
    "a model of another vocabulary": (another_vocabulary, LOADS),
    "a model without a tensor": (without_a_norm, LOADS),
    "a model with embeddings that are not tied": (untied, LOADS),
    "the first stage exports another tokenizer": (another_tokenizer(1), LOADS),
    "the second stage exports another tokenizer": (another_tokenizer(2), LOADS),
}  # fmt: skip


globals().update(proofs(stage_checks, CHECKS, MUTATIONS, own_copy))
