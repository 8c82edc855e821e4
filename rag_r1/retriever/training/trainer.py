"""Trains a retriever with sentence-transformers, and resumes after a kill.

    OUT/provenance.json    the settings and a hash of the data; a run with others is refused
    OUT/journal/           the lock
    OUT/checkpoints/       the trainer's checkpoints; a new run resumes from the newest complete one
    OUT/model/             the trained model with retriever.json; once it exists, only checkpoints are removed

A checkpoint has the weights, the optimizer, the schedule, the state of the random numbers and the position in
the data, so a training that was killed and resumed gives the same model as one that was not. The trainer
writes `trainer_state.json` last: a checkpoint in which it is missing or cut off is incomplete, and is
removed.

On several GPUs the command is started by torchrun: `torchrun --nproc-per-node 8 -m rag_r1.cli retriever train
...`. Each process computes its share of a batch, and the passages of the whole batch are negatives of every
query.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import PrinterCallback, ProgressCallback, TrainerCallback

from rag_r1.options.settings_file import recorded_settings
from rag_r1.retriever.training.checks import CHECKPOINTS, MODEL, check_batch
from rag_r1.retriever.training.dataset import PassageCollator, TrainingData, load_training_data
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

if TYPE_CHECKING:
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )

_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
#: The file of a checkpoint that the trainer writes last.
_STATE = "trainer_state.json"


def train(options: TrainOptions) -> Path:
    """Train a retriever, or resume its training, and return the folder of the model. Raises RunError if the
    model, the index, the rows, the loggers or the folder cannot be used, DataError if the corpus cannot be
    read, and OSError if a file cannot be read or written."""
    args = training_arguments(options)
    is_main = args.process_index == 0
    from_index = settings_of_index(options.index) if options.index else {}
    model, settings = open_model(options.model, options.encoder, from_index, args.device.type)
    data = load_training_data(
        options.rows,
        options.corpus,
        settings,
        negatives=options.negatives,
        ranked=options.rank_weight > 0,
        progress=is_main and not options.no_progress,
    )
    check_batch(len(data.queries), options)
    run_settings = {
        "encoder": settings.model_dump(exclude={"trained"}),
        "training": options.result_settings,
        "data": data.fingerprint,
    }
    folder = options.out / MODEL
    with ExitStack() as stack:
        stack.callback(_leave_process_group)
        if is_main:
            stack.enter_context(recorded_settings("rag-r1 retriever train", options))
            stack.enter_context(RunFolder(options.out, run_settings))
        if read_settings(folder) is None:
            _fit(model, settings, data, options, args)
            if is_main:
                trained = settings.model_copy(update={"trained": _training_facts(options, data)})
                save_model(model, trained, folder)
        if is_main:  # also of a run that was killed after it had saved the model
            shutil.rmtree(options.out / CHECKPOINTS, ignore_errors=True)
    return folder


def _leave_process_group() -> None:
    """Leave the group of processes of torchrun, if there is one. A process that ends while the threads of its
    group run can be aborted after its work is done."""
    import torch.distributed

    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _training_facts(options: TrainOptions, data: TrainingData) -> dict[str, str | int]:
    """Return the base model, the data and the options of the training, to be recorded in retriever.json."""
    settings = {name: str(value) for name, value in options.result_settings.items() if name != "model"}
    return {"base": Path(options.model).name, "rows": len(data.queries), "data": data.fingerprint, **settings}


def training_arguments(options: TrainOptions) -> SentenceTransformerTrainingArguments:
    """Return the arguments of sentence-transformers' trainer. Raises RunError if the device lacks the number
    format, if a single process sees several GPUs, or if the batch cannot be divided among the devices."""
    from sentence_transformers import SentenceTransformerTrainingArguments

    names = {"learning_rate", "weight_decay", "gradient_checkpointing", "seed", "logging_steps", "save_steps"}
    try:
        args = SentenceTransformerTrainingArguments(
            output_dir=str(options.out / CHECKPOINTS),
            num_train_epochs=options.epochs,
            warmup_steps=options.warmup,  # the trainer takes a number below 1 for a share of the steps
            fp16=options.precision == "fp16",
            bf16=options.precision == "bf16",
            use_cpu=options.device == "cpu",
            dataloader_pin_memory=options.device != "cpu",
            **options.model_dump(include=names),
            save_total_limit=2,  # one more than is needed, in case the newest one is damaged
            report_to="none",
            disable_tqdm=options.no_progress,
            ddp_find_unused_parameters=False,  # there are none, since `freeze_unused` froze them
        )
    except ValueError as error:
        message = f"--precision {options.precision} cannot be used with --device {options.device} ({error})"
        raise RunError(f"{message}: give --precision fp32, or --device cpu") from error
    if args.n_gpu > 1:
        raise RunError(
            f"{args.n_gpu} GPUs, but one process: start with torchrun --nproc-per-node {args.n_gpu} "
            "-m rag_r1.cli retriever train ..., or show it one GPU (CUDA_VISIBLE_DEVICES=0)"
        )
    if options.batch_size % args.world_size:
        message = f"--batch-size {options.batch_size} cannot be divided among {args.world_size} devices"
        raise RunError(f"{message}: give a multiple of {args.world_size}")
    args.per_device_train_batch_size = options.batch_size // args.world_size
    # All devices must have the same number of rows in every step.
    args.dataloader_drop_last = args.world_size > 1
    return args


def remove_incomplete_checkpoints(folder: Path) -> Path | None:
    """Remove incomplete checkpoints, which a kill has left, until the newest complete one is found. Returns
    it, or None if there is none. Raises OSError for a checkpoint that cannot be read, which is kept."""
    matches = {path: match for path in folder.glob("*") if (match := _CHECKPOINT.fullmatch(path.name))}
    for path in sorted(matches, key=lambda path: int(matches[path][1]), reverse=True):
        try:
            json.loads((path / _STATE).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            shutil.rmtree(path)
            continue
        return path
    return None


def _fit(
    model: SentenceTransformer,
    settings: EncoderSettings,
    data: TrainingData,
    options: TrainOptions,
    args: SentenceTransformerTrainingArguments,
) -> None:
    """Train `model` in place, from the newest checkpoint on. Afterwards, merge the LoRA adapters and average
    the weights, as far as the options say so."""
    initial_weights = weights_of(model) if options.average_weights < 1 else None
    if options.lora:
        add_lora(model, options.lora_rank, options.lora_alpha, options.lora_dropout)
    else:
        freeze_unused(model)
    trainer = _make_trainer(model, settings, data, options, args)
    checkpoint = _resume_point(options, args)
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    if options.lora:
        merge_lora(model)
    if initial_weights is not None:
        average_weights(model, initial_weights, options.average_weights)


def _make_trainer(
    model: SentenceTransformer,
    settings: EncoderSettings,
    data: TrainingData,
    options: TrainOptions,
    args: SentenceTransformerTrainingArguments,
) -> SentenceTransformerTrainer:
    """Return the trainer of a model, with the loss, collator, loggers and progress bar of this package."""
    from sentence_transformers import SentenceTransformerTrainer
    from sentence_transformers.sentence_transformer.model_card import SentenceTransformerModelCardCallback

    model.model_card_data.generate_widget_examples = False
    loss_options = {"temperature", "rank_weight", "rank_temperature", "mini_batch"}
    loss = RetrieverLoss(model, data.table, **options.model_dump(include=loss_options))
    trainer = SentenceTransformerTrainer(
        model=model,
        args=args,
        train_dataset=data.dataset(),
        loss=loss,
        data_collator=PassageCollator(model.preprocess, texts=data.texts),
        callbacks=[_LoggerCallback(options, settings)],
    )
    for unwanted in (ProgressCallback, PrinterCallback, SentenceTransformerModelCardCallback):
        trainer.remove_callback(unwanted)
    if not options.no_progress:
        trainer.add_callback(_ProgressBar)
    return trainer


def _resume_point(options: TrainOptions, args: SentenceTransformerTrainingArguments) -> Path | None:
    """Return the checkpoint from which the training resumes, the same in all processes; None if the training
    begins."""
    # Only the main process may delete checkpoints; it broadcasts its result to the others.
    checkpoint = remove_incomplete_checkpoints(options.out / CHECKPOINTS) if args.process_index == 0 else None
    if args.world_size > 1:
        from accelerate.utils import broadcast_object_list

        checkpoint = broadcast_object_list([checkpoint])[0]
    return checkpoint


class _ProgressBar(ProgressCallback):
    """The progress bar without the logged figures, which the loggers show."""

    def on_log(self, *unused: Any, **others: Any) -> None:
        """Do nothing."""


class _LoggerCallback(TrainerCallback):
    """Sends the trainer's figures to veRL's loggers, in the main process only."""

    def __init__(self, options: TrainOptions, settings: EncoderSettings):
        self.options, self.settings = options, settings
        self.tracking: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        """Open the loggers. Raises RunError if veRL is not installed."""
        if not state.is_world_process_zero:
            return
        try:
            from verl.utils.tracking import Tracking
        except ImportError as error:
            message = f"--logger: the loggers are veRL's, which is not installed ({error})"
            raise RunError(f"{message}: {setup_command()}") from error
        config = {"trainer": {}, "retriever": {**self.options.result_settings, **self.settings.model_dump()}}
        name = self.options.experiment_name or self.options.out.resolve().name
        self.tracking = Tracking(self.options.project_name, name, list(self.options.logger), config)

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any], **unused: Any) -> None:
        """Send the figures of a step to the loggers; texts among them are left out."""
        if self.tracking is not None:
            numbers = {f"retriever/{k}": float(v) for k, v in logs.items() if isinstance(v, int | float)}
            self.tracking.log(numbers, state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        """Close the loggers, so that those that send in the background send the rest."""
        if self.tracking is not None and callable(finish := getattr(self.tracking, "finish", None)):
            finish()
