"""Checks a supervised fine-tuning with veRL's SFT trainer before it starts.

veRL's SFT trainer checks little itself: a row that is too long ends the run when it is drawn, a validation
set smaller than a batch gives the loss NaN, and more steps than the epochs have end without a checkpoint.
"""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig, ListConfig
from tqdm import tqdm

from rag_r1.data.errors import DataError
from rag_r1.data.sft_rows import SftRow, SftTokens, protocol_of_rows, read_sft_rows
from rag_r1.options.problems import PreflightReport, Problem, error, is_unset, plain, warning
from rag_r1.protocols import Protocol
from rag_r1.training.preflight.model import check_model, check_tags
from rag_r1.training.preflight.resume import check_resumed_sft_rate

#: Rows of a file whose tokens are counted: the longest by characters.
COUNTED = 512
DATASET = "SftDataset"


def preflight_sft(config: DictConfig) -> PreflightReport:
    """Run every check on a composed configuration. Faults in what is checked are reported, never raised."""
    report = PreflightReport()
    for key, what in (("model.path", "a model folder or its name on the Hub"),
                      ("data.train_files", "train.parquet, made by `rag-r1 sft-data`")):  # fmt: skip
        if is_unset(config, key):
            report.problems.append(error(key, "is not given", f"set it to {what}"))
    tokenizer, problems = check_model(config, "model")
    report.problems += problems
    train = _rows(config, "train_files", report)
    validation = _rows(config, "val_files", report)
    if train:
        protocol, problems = _protocol(config, [*train, *validation])
        report.problems += problems
        if protocol is not None and tokenizer is not None:
            report.problems += check_tags(protocol, tokenizer, "model.path")
            tokens = SftTokens(tokenizer, protocol, plain(config.data.get("apply_chat_template_kwargs")))
            for key, rows in (("train_files", train), ("val_files", validation)):
                report.problems += _lengths(config, key, rows, tokens, report)
        report.problems += check_batches(config, len(train), len(validation))
    report.problems += check_output(config) + check_resumed_sft_rate(config)
    return report


def _rows(config: DictConfig, key: str, report: PreflightReport) -> list[SftRow]:
    files = config.data.get(key)
    if files is None or config.data.custom_cls.name != DATASET:
        return []
    rows: list[SftRow] = []
    for file in list(files) if isinstance(files, ListConfig) else [files]:
        try:
            found = list(read_sft_rows(Path(file).expanduser()))
        except (DataError, OSError) as fault:
            report.problems.append(error(f"data.{key}", str(fault), "give files made by `rag-r1 sft-data`"))
            continue
        if not found:
            report.problems.append(error(f"data.{key}", f"{file}: no rows", "make it with `rag-r1 sft-data`"))
        report.notes.append(f"{file}: {len(found)} rows")
        rows += found
    return rows


def _protocol(config: DictConfig, rows: list[SftRow]) -> tuple[Protocol | None, list[Problem]]:
    try:
        return protocol_of_rows(rows, config.data.get("protocol")), []
    except DataError as fault:
        remedy = "set it to the protocol that the rows were made for"
        return None, [error("data.protocol", str(fault), remedy)]


def _lengths(
    config: DictConfig, key: str, rows: list[SftRow], tokens: SftTokens, report: PreflightReport
) -> list[Problem]:
    """The longest row fits `data.max_length`, and the rows were made for this tokenizer."""
    longest = sorted(rows, key=lambda row: -sum(len(piece.text) for piece in row.pieces))[:COUNTED]
    most = 0
    for row in tqdm(longest, desc=f"data.{key}", unit="row", mininterval=5, disable=len(longest) < COUNTED):
        try:
            most = max(most, len(tokens(row).ids))
        except (DataError, ValueError) as fault:
            return [error(f"data.{key}", str(fault), "make the data with this model's tokenizer")]
    if rows:
        which = "all" if len(longest) == len(rows) else f"the {COUNTED} longest by characters"
        report.notes.append(f"data.{key}: longest row {most} tokens ({which} counted)")
    if most > config.data.max_length:
        what = f"is {config.data.max_length}, but the longest row of data.{key} has {most} tokens"
        return [error("data.max_length", what, f"raise it, or make data with shorter rows (at least {most})")]
    return []


def check_batches(config: DictConfig, train: int, validation: int) -> list[Problem]:
    """Batches can be formed and divided, and all steps can be taken."""
    data, trainer, problems = config.data, config.trainer, []
    batch, processes = int(data.train_batch_size), int(trainer.nnodes) * int(trainer.n_gpus_per_node)
    if batch % processes:
        remedy = f"make it a multiple of {processes} (trainer.nnodes x trainer.n_gpus_per_node)"
        problems.append(error("data.train_batch_size", f"{batch} rows cannot be divided", remedy))
    for key, rows in (("train_files", train), ("val_files", validation)):
        if 0 < rows < batch:
            what = f"{rows} rows are fewer than data.train_batch_size={batch}; veRL drops incomplete batches"
            remedy = "give more rows, or lower data.train_batch_size"
            problems.append(error(f"data.{key}", what, remedy))
    tests = trainer.test_freq == "after_each_epoch" or int(trainer.test_freq) > 0
    if tests and not validation:
        remedy = "give data.val_files, or set trainer.test_freq=-1"
        problems.append(error("trainer.test_freq", "there is nothing to validate on", remedy))
    steps = train // batch * int(trainer.total_epochs)
    if trainer.total_training_steps is not None and 0 < steps < int(trainer.total_training_steps):
        what = f"is {trainer.total_training_steps}, but {trainer.total_epochs} epochs have {steps} steps"
        remedy = "raise trainer.total_epochs: veRL saves the last checkpoint only when it gets there"
        problems.append(error("trainer.total_training_steps", what, remedy))
    if data.use_dynamic_bsz and int(data.max_token_len_per_gpu) < int(data.max_length):
        what = f"{data.max_token_len_per_gpu} tokens cannot hold a row of data.max_length={data.max_length}"
        problems.append(error("data.max_token_len_per_gpu", what, "raise it to at least data.max_length"))
    return problems


def check_output(config: DictConfig) -> list[Problem]:
    """A model is exported that `rag-r1 train` can take."""
    if "hf_model" in config.checkpoint.save_contents:
        return []
    what = "has no hf_model, so no model is exported that `rag-r1 train` could start from"
    return [warning("checkpoint.save_contents", what, "add hf_model")]
