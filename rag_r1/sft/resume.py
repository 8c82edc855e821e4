"""Repairs a checkpoint at the end of an epoch before veRL resumes from it.

veRL saves the state of its data loader within the loop over an epoch's batches (verl 0.9.1,
trainer/sft_trainer.py, `fit`: the checkpoint of a step is written before the loop asks for the next batch).
Saved with the last step of an epoch, that state has no batches left. A start from such a checkpoint begins
the next epoch, restores the state, gets no batch, and the whole epoch is skipped. Checkpoints are at the ends
of epochs here (`trainer.save_freq=after_each_epoch`), so this is so for every resumption.

Without the file of that state veRL begins the epoch from its first batch, in the order that the epoch's
number gives, which is what an uninterrupted training does.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from rag_r1.inference.model_folders import TRACKER


def drop_exhausted_loader_state(folder: Path, config: Any) -> bool:
    """Remove the data loader's state from the checkpoint that veRL will resume from, if that is at the end of
    an epoch. Returns whether a state was removed. `folder`: `trainer.default_local_dir`; `config`: the
    training's, whose files have been checked."""
    checkpoint = _resumed_from(folder, config)
    if checkpoint is None or not (steps := steps_of_epoch(config.data)):
        return False
    if int(checkpoint.name.rpartition("_")[2]) % steps:
        return False
    states = list(checkpoint.glob("data_*.pt"))
    for state in states:
        state.unlink()
    return bool(states)


def steps_of_epoch(data: Any) -> int:
    """The number of whole batches in the training files, as veRL's data loader counts them (the last, partial
    one is dropped)."""
    # Here, because it needs omegaconf, and `rag-r1 sft --help` does not.
    from rag_r1.training.preflight.data import files_of

    rows = sum(pq.ParquetFile(name).metadata.num_rows for name in files_of(data, "train_files"))
    if 0 < (data.get("train_max_samples") or -1) < rows:
        rows = data.train_max_samples
    return rows // data.train_batch_size


def _resumed_from(folder: Path, config: Any) -> Path | None:
    """The folder of the checkpoint from which veRL resumes, None if there is none, as veRL finds it
    (utils/checkpoint/checkpoint_handler.py, `_determine_resume_path`, `_find_latest_checkpoint`)."""
    if config.trainer.get("resume_mode", "auto") == "disable":
        return None
    if configured := config.trainer.get("resume_from_path"):
        checkpoint = Path(configured).expanduser()
    else:
        tracker = folder / TRACKER
        step = tracker.read_text(encoding="utf-8").strip() if tracker.is_file() else ""
        checkpoint = folder / f"global_step_{step}"
    return checkpoint if re.fullmatch(r"global_step_\d+", checkpoint.name) and checkpoint.is_dir() else None
