"""What two stages, killed in the second and given again, must have left behind: each check raises
AssertionError.

Read are the folders of the stages: the files `finished`, the checkpoints, the trajectories and the exported
models. What was so when the command was killed is handed over.
tests/e2e/test_stage_checks.py spoils each of them and sees that a check notices.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

from rag_r1.agent.records import records_by_step
from rag_r1.demo.r1_searcher_traces import NAME
from rag_r1.demo.world import demo_protocol


@dataclass(frozen=True)
class TwoStages:
    """The stages, at some moment."""

    out: Path
    start: Path  # the model with which stage 1 began
    steps: Mapping[int, int]  # of each stage
    samples: int  # trajectories of a step
    first_finished_ns: int = 0  # when stage 1 was finished, as the command was killed
    saved_before: int = 0  # the last whole checkpoint of stage 2, as the command was killed

    def finished(self, stage: int) -> Path:
        return self.out / f"stage{stage}" / "finished"

    def model(self, stage: int) -> Path:
        """The model that a finished stage has exported."""
        return Path(self.finished(stage).read_text().strip())

    def saved(self, stage: int) -> int:
        """The step of the last whole checkpoint; 0: none."""
        tracker = self.out / f"stage{stage}" / "checkpoints" / "latest_checkpointed_iteration.txt"
        return int(tracker.read_text() or 0) if tracker.exists() else 0

    def trajectories(self, stage: int) -> Path:
        return self.out / f"stage{stage}" / "trajectories" / "train"


def the_first_stage_is_finished_and_the_second_is_not(run: TwoStages) -> None:
    """For the moment at which the command was killed."""
    assert run.finished(1).exists() and not run.finished(2).exists()


def a_finished_stage_is_not_trained_again(run: TwoStages) -> None:
    assert run.finished(1).stat().st_mtime_ns == run.first_finished_ns


def every_step_is_done_and_has_all_of_its_samples(run: TwoStages) -> None:
    assert run.saved(2) == run.steps[2]
    for stage, steps in run.steps.items():
        records = records_by_step(run.trajectories(stage))
        assert sorted(records) == list(range(1, steps + 1))
        assert all(len(played) == run.samples for played in records.values())


def a_step_that_was_saved_is_not_played_again(run: TwoStages) -> None:
    for step in range(1, run.saved_before + 1):
        assert len(list(run.trajectories(2).glob(f"step_{step:06d}-*.jsonl"))) == 1


def the_model_loads_and_has_the_vocabulary_of_the_start(run: TwoStages) -> None:
    models = {stage: run.model(stage) for stage in run.steps}
    before = AutoModelForCausalLM.from_pretrained(run.start)
    after, loading = AutoModelForCausalLM.from_pretrained(models[2], output_loading_info=True)
    assert not loading["missing_keys"], "weights that are not there are made up when a model is loaded"
    assert after.config.vocab_size == before.config.vocab_size
    text = demo_protocol(NAME).observation(["q"], [[]]) + " <|begin_of_query|> Mara Torval <|end_of_query|>"
    folders = (run.start, models[1], models[2])
    ids = [AutoTokenizer.from_pretrained(folder)(text).input_ids for folder in folders]
    assert ids[0] == ids[1] == ids[2]
    assert json.loads((models[2] / "config.json").read_text())["tie_word_embeddings"]


#: Those for the end; `the_first_stage_is_finished_and_the_second_is_not` is one for the moment before.
CHECKS = (
    a_finished_stage_is_not_trained_again,
    every_step_is_done_and_has_all_of_its_samples,
    a_step_that_was_saved_is_not_played_again,
    the_model_loads_and_has_the_vocabulary_of_the_start,
)
