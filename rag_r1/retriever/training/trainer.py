"""Trains a retriever with sentence-transformers, and resumes after a kill.

    OUT/journal/        the settings, and the lock: a start with other settings or other data is refused
    OUT/checkpoints/    the trainer's; the newest one that is whole is where a new start goes on
    OUT/model/          the trained model with retriever.json; once it is there, nothing is left to do

A checkpoint has the weights, the optimizer, the schedule, the state of the random numbers and the place in
the data, so a training that was killed ends as one that was not. One whose `trainer_state.json`, which is
written last, is missing or cut off was being written during a kill, and is removed.

On several GPUs it is started by torchrun: `torchrun --nproc-per-node 8 -m rag_r1.cli retriever train ...`.
Each process computes its share of a batch, and all passages of the batch are negatives of every query.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from transformers import PrinterCallback, ProgressCallback, TrainerCallback

from rag_r1.options.settings_file import recorded_settings
from rag_r1.retriever.training.dataset import PassageCollator, TrainingData, load
from rag_r1.retriever.training.encoder import (
    add_lora,
    average_weights,
    freeze_unused,
    merge_lora,
    open_model,
    save_model,
    weights_of,
)
from rag_r1.retriever.training.encoder_settings import EncoderSettings, read_settings, settings_of_index
from rag_r1.retriever.training.loss import RetrieverLoss
from rag_r1.retriever.training.options import TrainOptions
from rag_r1.runs.errors import RunError
from rag_r1.runs.folder import RunFolder
from rag_r1.system.installation import setup_command

MODEL, CHECKPOINTS = "model", "checkpoints"
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
_STATE = "trainer_state.json"


def train(given: TrainOptions) -> Path:
    """Train, or go on; returns the folder of the model. Raises RunError, and the errors of what is read:
    EncoderSettingsError, RecordsError, CorpusError."""
    args = training_arguments(given)
    is_main = args.process_index == 0
    of_index = settings_of_index(given.index) if given.index else {}
    model, settings = open_model(given.model, given.encoder, of_index, args.device.type)
    data = load(
        given.rows,
        given.corpus,
        settings,
        negatives=given.negatives,
        ranked=given.rank_weight > 0,
        progress=is_main and not given.no_progress,
    )
    if len(data.queries) < given.batch_size:
        what = f"{len(data.queries)} rows are fewer than a batch of {given.batch_size}"
        raise RunError(f"{what}: give --batch-size {len(data.queries)} or less, or more rows")
    about = {
        "encoder": settings.model_dump(exclude={"trained"}),
        "training": given.result_settings,
        "data": data.fingerprint,
    }
    folder = given.out / MODEL
    with _held(given, about) if is_main else nullcontext():
        if read_settings(folder) is not None:
            return folder
        _fit(model, settings, data, given, args)
        if is_main:
            trained = {"base": Path(given.model).name, "rows": len(data.queries), "data": data.fingerprint}
            trained |= {name: str(value) for name, value in given.result_settings.items() if name != "model"}
            save_model(model, settings.model_copy(update={"trained": trained}), folder)
            shutil.rmtree(given.out / CHECKPOINTS, ignore_errors=True)
    return folder


@contextmanager
def _held(given: TrainOptions, about: Mapping[str, Any]) -> Iterator[None]:
    """Holds the folder, with the settings in it."""
    with recorded_settings("rag-r1 retriever train", given), RunFolder(given.out, about):
        yield


def training_arguments(given: TrainOptions) -> Any:
    """The trainer's arguments. Raises RunError if the batch cannot be shared out."""
    from sentence_transformers import SentenceTransformerTrainingArguments

    args = SentenceTransformerTrainingArguments(
        output_dir=str(given.out / CHECKPOINTS),
        num_train_epochs=given.epochs,
        learning_rate=given.learning_rate,
        warmup_steps=given.warmup,
        weight_decay=given.weight_decay,
        fp16=given.precision == "fp16",
        bf16=given.precision == "bf16",
        gradient_checkpointing=given.gradient_checkpointing,
        use_cpu=given.device == "cpu",
        dataloader_pin_memory=given.device != "cpu",
        seed=given.seed,
        logging_steps=given.logging_steps,
        save_steps=given.save_steps,
        save_total_limit=2,
        report_to="none",
        disable_tqdm=given.no_progress,
        ddp_find_unused_parameters=False,
    )
    if args.n_gpu > 1:
        raise RunError(
            f"{args.n_gpu} GPUs, but one process: start with torchrun --nproc-per-node {args.n_gpu} "
            "-m rag_r1.cli retriever train ..., or show it one GPU (CUDA_VISIBLE_DEVICES=0)"
        )
    if given.batch_size % args.world_size:
        raise RunError(f"--batch-size {given.batch_size} cannot be shared by {args.world_size} devices")
    args.per_device_train_batch_size = given.batch_size // args.world_size
    # All devices must have equally many rows in every step.
    args.dataloader_drop_last = args.world_size > 1
    return args


def last_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint; those that a kill has left incomplete are removed."""
    found = {path: match for path in folder.glob("*") if (match := _CHECKPOINT.fullmatch(path.name))}
    for path in sorted(found, key=lambda path: int(found[path][1]), reverse=True):
        try:
            json.loads((path / _STATE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            shutil.rmtree(path)
            continue
        return path
    return None


def _fit(model: Any, settings: EncoderSettings, data: TrainingData, given: TrainOptions, args: Any) -> None:
    from sentence_transformers import SentenceTransformerTrainer
    from sentence_transformers.sentence_transformer.model_card import SentenceTransformerModelCardCallback

    model.model_card_data.generate_widget_examples = False
    start = weights_of(model) if given.average_weights < 1 else None
    if given.lora:
        add_lora(model, given.lora_rank, given.lora_alpha, given.lora_dropout)
    else:
        freeze_unused(model)
    loss = RetrieverLoss(
        model,
        data.table,
        temperature=given.temperature,
        rank_weight=given.rank_weight,
        rank_temperature=given.rank_temperature,
        mini_batch=given.mini_batch,
    )
    trainer = SentenceTransformerTrainer(
        model=model,
        args=args,
        train_dataset=data.dataset(),
        loss=loss,
        data_collator=PassageCollator(model.preprocess, texts=data.texts),
        callbacks=[_LoggerCallback(given, settings)],
    )
    for unwanted in (ProgressCallback, PrinterCallback, SentenceTransformerModelCardCallback):
        trainer.remove_callback(unwanted)
    if not given.no_progress:
        trainer.add_callback(_ProgressBar)
    checkpoint = last_checkpoint(given.out / CHECKPOINTS) if args.process_index == 0 else None
    if args.world_size > 1:
        from accelerate.utils import broadcast_object_list

        checkpoint = broadcast_object_list([checkpoint])[0]
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    if given.lora:
        merge_lora(model)
    if start is not None:
        average_weights(model, start, given.average_weights)


class _ProgressBar(ProgressCallback):
    """The progress bar alone: the loggers show the numbers."""

    def on_log(self, *unused: Any, **others: Any) -> None:
        pass


class _LoggerCallback(TrainerCallback):
    """veRL's loggers, of the main process."""

    def __init__(self, given: TrainOptions, settings: EncoderSettings):
        self.args, self.settings = given, settings
        self.tracking: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        if not state.is_world_process_zero:
            return
        try:
            from verl.utils.tracking import Tracking
        except ImportError as error:
            what = f"--logger: the loggers are veRL's, which is not installed ({error})"
            raise RunError(f"{what}: {setup_command()}") from error
        config = {"trainer": {}, "retriever": {**self.args.result_settings, **self.settings.model_dump()}}
        name = self.args.experiment_name or self.args.out.resolve().name
        self.tracking = Tracking(self.args.project_name, name, list(self.args.logger), config)

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any], **unused: Any) -> None:
        if self.tracking is not None:
            numbers = {f"retriever/{k}": float(v) for k, v in logs.items() if isinstance(v, int | float)}
            self.tracking.log(numbers, state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        if self.tracking is not None and callable(finish := getattr(self.tracking, "finish", None)):
            finish()
