"""Checks a supervised fine-tuning with veRL's SFT trainer before it starts.

veRL's SFT trainer checks little itself. A row that is too long ends the run only when it is drawn, a
validation set that is smaller than a batch has the loss NaN, and if the epochs have fewer steps than
configured, the run ends without a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from tqdm import tqdm

from rag_r1.data.sft_rows import SftRow, read_sft_rows
from rag_r1.data.sft_tokens import SftTokens, protocol_of_rows
from rag_r1.io.errors import DataError
from rag_r1.options.problems import PreflightReport, Problem, error, found, plain, warning, without
from rag_r1.training.config_facts import gpu_count
from rag_r1.training.loggers import check_loggers
from rag_r1.training.preflight.cluster import check_cpu_rows
from rag_r1.training.preflight.data import check_paths, files_of
from rag_r1.training.preflight.model import check_model, check_tags
from rag_r1.training.preflight.resume import check_resume_path, check_resumed_sft_rate
from rag_r1.training.preflight.settings import check_verls_keys, is_blank, wrong_types
from rag_r1.training.preflight.verls_keys.validation import check_verls_blocks
from rag_r1.training.preflight.verls_keys.values import check_values

#: The largest number of rows whose tokens are counted: those with the most characters.
COUNTED = 512
#: The class of our data set, in `data.custom_cls.name`.
DATASET = "SftDataset"
#: Keys with whole numbers, with which the checks calculate.
NUMBERS = (
    *("data.train_batch_size", "data.max_length"),
    *("data.max_token_len_per_gpu", "data.micro_batch_size_per_gpu"),
    *("trainer.nnodes", "trainer.n_gpus_per_node", "trainer.total_epochs", "trainer.total_training_steps"),
    "trainer.max_ckpt_to_keep",
)
#: Keys that must be given -> an example.
_REQUIRED = {
    "model.path": "a model folder or its name on the Hub",
    "data.train_files": "train.parquet, made by `rag-r1 sft-data`",
    "trainer.default_local_dir": "the folder of the run",
}


def preflight_sft(config: DictConfig) -> PreflightReport:
    """Run every check on a composed configuration. Problems are reported and never raised."""
    report = PreflightReport()
    for key, example in _REQUIRED.items():
        if is_blank(config, key):
            report.problems.append(error(key, "is not given", f"set it to {example}"))
    if missing := list(check_verls_keys(config, _REQUIRED)):
        report.problems += missing
        return report  # the other checks read these
    report.problems += (wrong := [*check_paths(config), *wrong_types(config, NUMBERS)])
    config = without(config, wrong)
    tokenizer, problems = check_model(config, "model")
    report.problems += problems
    rows = {key: _read_rows(config, key, report) for key in ("train_files", "val_files")}
    names_protocol = config.data.custom_cls.name == DATASET and config.data.get("protocol") is not None
    if rows["train_files"] or names_protocol:
        _check_rows(config, rows, tokenizer, report)
        if rows["train_files"]:
            report.problems += found(check_batches, config, *_row_counts(rows, report))
    for check in (
        *(_check_export, check_loggers, check_resumed_sft_rate, check_resume_path, check_values),
        *(check_verls_blocks, _check_truncation),
    ):
        report.problems += found(check, config)
    report.problems += found(check_cpu_rows, config, "model", "engine")
    return report


def _check_export(config: DictConfig) -> Iterator[Problem]:
    """Check that a model is exported."""
    if "hf_model" not in config.checkpoint.save_contents:
        text = "has no hf_model, so no model is exported that `rag-r1 train` could start from"
        yield warning("checkpoint.save_contents", text, "add hf_model")


def _check_truncation(config: DictConfig) -> Iterator[Problem]:
    """Check that our data set is not asked to cut rows, which it refuses, nor veRL's in an unknown way."""
    known = ("error",) if config.data.custom_cls.name == DATASET else ("error", "left", "right")
    if (value := config.data.get("truncation", "error")) not in known:
        yield error("data.truncation", f"is {value!r}", f"set it to {' or '.join(known)}")


def _check_rows(
    config: DictConfig, rows: Mapping[str, list[SftRow]], tokenizer: Any | None, report: PreflightReport
) -> None:
    """Check that all rows were made for one protocol and, if there is a tokenizer, that it suits them.
    `rows` has the rows of each key of `data`. Without rows, the protocol alone is checked."""
    try:
        protocol = protocol_of_rows(list(chain.from_iterable(rows.values())), config.data.get("protocol"))
    except DataError as fault:
        remedy = "set it to the protocol that the rows were made for"
        report.problems.append(error("data.protocol", str(fault).removeprefix("data.protocol: "), remedy))
        return
    if tokenizer is None:
        return
    report.problems += check_tags(protocol, tokenizer, "model.path")
    tokens = SftTokens(tokenizer, protocol, plain(config.data.get("apply_chat_template_kwargs")))
    for key, key_rows in rows.items():
        report.problems += found(_check_lengths, config, key, key_rows, tokens, report)


def _read_rows(config: DictConfig, key: str, report: PreflightReport) -> list[SftRow]:
    """Return the rows of the files under a key of `data`; none if the data set is not ours. Files that cannot
    be read are reported and left out."""
    rows: list[SftRow] = []
    for file in files_of(config.data, key) if config.data.custom_cls.name == DATASET else ():
        try:
            new_rows = list(read_sft_rows(Path(file)))
        except (DataError, OSError) as fault:
            report.problems.append(error(f"data.{key}", str(fault), "give files made by `rag-r1 sft-data`"))
            continue
        if not new_rows:
            report.problems.append(error(f"data.{key}", f"{file}: no rows", "make it with `rag-r1 sft-data`"))
        report.notes.append(f"{file}: {len(new_rows)} rows")
        rows += new_rows
    return rows


def _row_counts(rows: Mapping[str, list[SftRow]], report: PreflightReport) -> list[int | None]:
    """Return the number of rows of each key of `data`; None if a file of it could not be used."""
    wrong_keys = {problem.where for problem in report.problems}
    return [None if f"data.{key}" in wrong_keys else len(key_rows) for key, key_rows in rows.items()]


def _check_lengths(
    config: DictConfig, key: str, rows: list[SftRow], tokens: SftTokens, report: PreflightReport
) -> Iterator[Problem]:
    """Check that the longest row fits into `data.max_length`, and that the rows were made for this
    tokenizer."""
    counted = sorted(rows, key=lambda row: -sum(len(piece.text) for piece in row.pieces))[:COUNTED]
    bar = tqdm(counted, desc=f"data.{key}", unit="row", mininterval=5, disable=len(counted) < COUNTED)
    try:
        max_tokens = max((len(tokens(row).ids) for row in bar), default=0)
    except ValueError as fault:
        yield error(f"data.{key}", str(fault), "make the data with this model's tokenizer")
        return
    if rows:
        extent = "all" if len(counted) == len(rows) else f"the {COUNTED} longest by characters"
        report.notes.append(f"data.{key}: longest row {max_tokens} tokens ({extent} counted)")
    if max_tokens > config.data.max_length:
        text = f"is {config.data.max_length}, but the longest row of data.{key} has {max_tokens} tokens"
        remedy = f"raise it to at least {max_tokens}, or make data with shorter rows"
        yield error("data.max_length", text, remedy)


def check_batches(
    config: DictConfig, train_rows: int | None, validation_rows: int | None
) -> Iterator[Problem]:
    """Check that batches can be filled and divided among processes, and that all steps can be made. Numbers
    of rows that are not known are not checked."""
    data, trainer = config.data, config.trainer
    for key in ("save_freq", "test_freq"):
        if (value := trainer[key]) != "after_each_epoch" and not (isinstance(value, int) and value):
            # veRL divides the step by it.
            yield error(f"trainer.{key}", f"is {value!r}", "give steps, after_each_epoch, or -1 for never")
    if not (isinstance(trainer.test_freq, int) and trainer.test_freq <= 0) and validation_rows == 0:
        remedy = "give data.val_files, or set trainer.test_freq=-1"
        yield error("trainer.test_freq", "there is nothing to validate on", remedy)
    batch = int(data.train_batch_size)
    for key, rows in (("train_files", train_rows), ("val_files", validation_rows)):
        if rows is not None and 0 < rows < batch:
            text = f"{rows} rows are fewer than data.train_batch_size={batch}; veRL drops incomplete batches"
            yield error(f"data.{key}", text, "give more rows, or lower data.train_batch_size")
    processes = gpu_count(config)
    if batch % processes:
        text = f"{batch} rows cannot be divided among {processes} processes"
        remedy = f"make it a multiple of {processes} (trainer.nnodes x trainer.n_gpus_per_node)"
        yield error("data.train_batch_size", text, remedy)
    steps, configured = (train_rows or 0) // batch * int(trainer.total_epochs), trainer.total_training_steps
    if configured is not None and 0 < steps < int(configured):
        text = f"is {configured}, but {trainer.total_epochs} epochs have {steps} steps"
        remedy = "raise trainer.total_epochs: veRL saves the last checkpoint only when it gets there"
        yield error("trainer.total_training_steps", text, remedy)
    if not data.use_dynamic_bsz:
        if (rows := batch // processes) % int(data.micro_batch_size_per_gpu):
            text = f"{rows} rows of a process cannot be divided into micro-batches of this size"
            yield error("data.micro_batch_size_per_gpu", text, f"set it to a divisor of {rows}")
    elif int(data.max_token_len_per_gpu) < int(data.max_length):
        text = f"{data.max_token_len_per_gpu} tokens cannot hold a row of data.max_length={data.max_length}"
        yield error("data.max_token_len_per_gpu", text, "raise it to at least data.max_length")
