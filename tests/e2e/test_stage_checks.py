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
from tests.e2e.made_runs import (
    change_tensors,
    copied,
    copy_tokenizer,
    fields,
    lines,
    play,
    proofs,
    write_lines,
)
from tests.e2e.stage_checks import CHECKS, TwoStages, the_first_stage_is_finished_and_the_second_is_not

STEPS, SAMPLES, FINISHED_NS = {1: 1, 2: 3}, 4, 10**18


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> TwoStages:
    out, start = tmp_path_factory.mktemp("stages"), policy_path(NAME)
    run = TwoStages(out, start, STEPS, SAMPLES, FINISHED_NS, saved_before=1)
    records = play(sum(STEPS.values()), SAMPLES).records
    for stage, steps in STEPS.items():
        for step in range(1, steps + 1):
            own = [{**records.pop(), "step": step} for _ in range(SAMPLES)]
            dumps = {f"step_{step:06d}-9.jsonl": own}
            if (stage, step) == (2, 2):
                dumps[f"step_{step:06d}-8.jsonl"] = own[:2]  # cut off
            for name, dumped in dumps.items():
                write_lines(run.trajectories(stage) / name, dumped)
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


def trained_again(run: TwoStages) -> None:
    run.finished(1).touch()


def an_older_checkpoint(run: TwoStages) -> None:
    (run.out / "stage2" / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("2")


def no_checkpoint(run: TwoStages) -> None:
    (run.out / "stage2" / "checkpoints" / "latest_checkpointed_iteration.txt").unlink()


def one_step_more(run: TwoStages) -> None:
    write_lines(run.trajectories(1) / "step_000002-9.jsonl", [{"id": "q#0", "step": 2}] * SAMPLES)


def one_step_less(run: TwoStages) -> None:
    (run.trajectories(2) / "step_000003-9.jsonl").unlink()


def played_again(same_questions: bool) -> Callable[[TwoStages], None]:
    """The step that was saved is trained on once more after the kill."""

    def spoil(run: TwoStages) -> None:
        first = run.trajectories(2) / "step_000001-9.jsonl"
        second = shutil.copy(first, first.with_name("step_000001-10.jsonl"))
        if not same_questions:
            second.write_text(second.read_text().replace('"id": "', '"id": "other-'))

    return spoil


def another_tokenizer(stage: int) -> Callable[[TwoStages], None]:
    return lambda run: copy_tokenizer("rag_r1_mq", run.model(stage))


def another_vocabulary(run: TwoStages) -> None:
    model = AutoModelForCausalLM.from_pretrained(run.model(2))
    model.resize_token_embeddings(model.config.vocab_size + 8)
    model.save_pretrained(run.model(2))


def without_a_tensor(run: TwoStages) -> None:
    change_tensors(run.model(2), lambda tensors: tensors.pop("model.norm.weight"))


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
NOT_AGAIN, ALL_STEPS, SAVED, LOADS = CHECKS
#: What goes wrong, and the check that must notice it.
SPOILINGS = {
    "the first stage is trained again": (trained_again, NOT_AGAIN),
    "the last checkpoint is not that of the last step": (an_older_checkpoint, ALL_STEPS),
    "there is no checkpoint": (no_checkpoint, ALL_STEPS),
    "a stage goes beyond its steps": (one_step_more, ALL_STEPS),
    "a step is left out": (one_step_less, ALL_STEPS),
    "a record of the first stage is lost": (lines(FIRST, lambda r: r.pop()), ALL_STEPS),
    "a record after the kill is lost": (lines(LAST, lambda r: r.pop()), ALL_STEPS),
    "a record too many": (lines(LAST, lambda r: r.append({**r[0], "id": "q9#9"})), ALL_STEPS),
    "a record is that of another step": (lines(LAST, lambda r: r[0].update(step=2)), ALL_STEPS),
    "a step that was saved is trained on again, with other questions": (played_again(False), ALL_STEPS),
    "a step that was saved is trained on again, with the same": (played_again(True), SAVED),
    "more was saved than was trained on once": (fields(saved_before=2), SAVED),
    "a model of another vocabulary": (another_vocabulary, LOADS),
    "a model without a tensor": (without_a_tensor, LOADS),
    "a model with embeddings that are not tied": (untied, LOADS),
    "the first stage exports another tokenizer": (another_tokenizer(1), LOADS),
    "the second stage exports another tokenizer": (another_tokenizer(2), LOADS),
}  # fmt: skip


def test_the_first_stage_is_finished_and_the_second_is_not_when_it_is_killed(written, tmp_path):
    run = own_copy(written, tmp_path)
    run.finished(2).unlink()
    the_first_stage_is_finished_and_the_second_is_not(run)


@pytest.mark.parametrize("unfinished", [(), (1,), (1, 2)], ids=["none unfinished", "the first", "both"])
def test_a_kill_at_another_moment_is_noticed(written, tmp_path, unfinished):
    run = own_copy(written, tmp_path)
    for stage in unfinished:
        run.finished(stage).unlink()
    with pytest.raises(AssertionError):
        the_first_stage_is_finished_and_the_second_is_not(run)


def killed_too_late(run: TwoStages, folder: Path) -> list[BaseException]:
    with pytest.raises(AssertionError) as failure:
        the_first_stage_is_finished_and_the_second_is_not(run)
    return [failure.value]


alone = {the_first_stage_is_finished_and_the_second_is_not: killed_too_late}
globals().update(proofs(stage_checks, CHECKS, SPOILINGS, own_copy, alone=alone))
