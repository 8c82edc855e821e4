"""Repairs a checkpoint at the end of an epoch before veRL resumes from it.

veRL saves the state of its data loader inside the loop over the batches of an epoch (verl 0.9.1,
trainer/sft_trainer.py, `fit`: the checkpoint of a step is written before the loop requests the next batch).
The state that is saved with the last step of an epoch therefore has no batches left. When veRL resumes from
such a checkpoint, it begins the next epoch, restores the exhausted state, and gets no batch, so that it skips
the whole epoch. The recipes save at the end of each epoch (`trainer.save_freq=after_each_epoch`), so every
resumed training would be affected.

If the file with the state is missing, veRL begins the epoch with its first batch. The order of the batches is
determined by the number of the epoch, so the training continues as if it had not been interrupted.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from rag_r1.inference.model_folders import newest_checkpoint


def drop_exhausted_loader_state(folder: Path, config: Any) -> bool:
    """Remove the data loader's state from the checkpoint that veRL resumes from, if it is at an epoch's end.

    `folder` is `trainer.default_local_dir`, and `config` the configuration of the training, whose data files
    must exist. Returns whether a state was removed.
    """
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
    """Return the number of batches in an epoch. As in veRL's data loader, an incomplete one is dropped."""
    # Imported here, because it needs omegaconf, and `rag-r1 sft --help` must work without it.
    from rag_r1.training.preflight.data import files_of

    rows = sum(pq.read_metadata(name).num_rows for name in files_of(data, "train_files"))
    if 0 < (data.get("train_max_samples") or -1) < rows:
        rows = data.train_max_samples
    return rows // data.train_batch_size


def _resumed_from(folder: Path, config: Any) -> Path | None:
    """Return the folder of the checkpoint from which veRL resumes; None if there is none.

    This follows veRL's utils/checkpoint/checkpoint_handler.py, `_determine_resume_path` and
    `_find_latest_checkpoint`.
    """
    if config.trainer.get("resume_mode", "auto") == "disable":
        return None
    configured = config.trainer.get("resume_from_path")
    if not configured:
        return newest_checkpoint(folder)
    checkpoint = Path(configured).expanduser()
    return checkpoint if re.fullmatch(r"global_step_\d+", checkpoint.name) and checkpoint.is_dir() else None
