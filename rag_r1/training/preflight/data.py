"""Checks the data: the rows and prompts of every file, and the number of steps.

Prompts are made in the same way as during the training, by an AgentSetup, and their tokens are counted.
parquet.py checks the rows of a file.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from rag_r1.config.agent_setup import AgentSetup, RowLimits
from rag_r1.config.schema import RagR1Config
from rag_r1.data.rows import QuestionRow
from rag_r1.io.errors import DataError
from rag_r1.options.problems import PreflightReport, Problem, error, error_of, is_unset, plain, warning
from rag_r1.training.preflight.parquet import column_problems, missing_file, scan_parquet, scan_problems
from rag_r1.training.preflight.verls_keys.values import agent_loops

#: A limit on the tokens of a prompt that is never reached.
_ANY_LENGTH = 1 << 40
#: Keys with the paths of files and folders, except those whose loader names a wrong path.
_PATHS = (
    *("actor_rollout_ref.model.path", "actor_rollout_ref.model.tokenizer_path", "model.path"),
    *("critic.model.path", "critic.model.tokenizer_path", "model.tokenizer_path", "data.train_files"),
    *("data.val_files", "trainer.default_local_dir", "trainer.resume_from_path", "rag_r1.trajectory_dir"),
)


def check_paths(config: DictConfig) -> Iterator[Problem]:
    """Check that paths, as far as they are given, are texts, and that a home folder with which one begins,
    such as `~name`, is that of a user."""
    for key in _PATHS:
        value = plain(OmegaConf.select(config, key))
        for path in value if isinstance(value, list) else [] if value is None else [value]:
            if not isinstance(path, str):
                yield error(key, f"is {path!r}, which is not a text", "quote it, or give another path")
            elif os.path.expanduser(path).startswith("~"):
                user = f"is {path!r}, and there is no such user on this machine"
                yield error(key, user, "write the whole path, or ./NAME for one in this folder")


def check_data(
    config: DictConfig, settings: RagR1Config | None, tokenizer: Any | None, report: PreflightReport
) -> int | None:
    """Check the columns of all data files, and the protocol and the length of the prompts in their rows.

    Adds the problems to the report, and returns the number of training rows, or None if it is not known.
    Without a protocol, which other checks report, only the files and their columns are checked; without
    `data.max_prompt_length` no tokens are counted.
    """
    report.problems += _check_drawn_rows(config.data)
    count_tokens = None
    has_limit = not is_unset(config, "data.max_prompt_length")
    if settings is not None and settings.protocol is not None and tokenizer is not None and has_limit:
        # Without a limit, since the tokens of overlong prompts are counted as well, for the report.
        template = plain(config.data.get("apply_chat_template_kwargs")) or {}
        limits = RowLimits(prompt_tokens=_ANY_LENGTH, response_tokens=1)
        setup = AgentSetup.of(settings, tokenizer, limits, template=template)
        count_tokens = partial(_count_tokens, setup)

    def check_files(key: str) -> list[int | None]:
        files = files_of(config.data, key)
        return [_check_file(path, config, settings, count_tokens, report) for path in files]

    train_counts = check_files("train_files")
    check_files("val_files")
    return None if not train_counts or None in train_counts else sum(train_counts)


def _check_drawn_rows(data: DictConfig) -> Iterator[Problem]:
    """Check that a part of the rows, if veRL uses only a part, is the same one after a resume."""
    is_drawn_anew = data.get("shuffle") and data.get("seed") is None
    for key in ("train_max_samples", "val_max_samples"):
        if is_drawn_anew and (data.get(key) or -1) > 0:
            text = "with data.shuffle and no data.seed each start draws other rows"
            yield warning(f"data.{key}", text, "set data.seed, or data.shuffle=false")


def _check_file(
    path: str,
    config: DictConfig,
    settings: RagR1Config | None,
    count_tokens: Callable[[QuestionRow], int] | None,
    report: PreflightReport,
) -> int | None:
    """Check one data file, and add the problems to the report. Returns the number of rows that veRL will
    use, or None if it is not known or 0. It is an upper limit for a large file with overlong prompts, of
    which only some are tokenised."""
    if not is_local_parquet(path):
        if problems := list(_check_json_file(path)):
            report.problems += problems
        else:
            report.notes.append(f"{path}: not a local parquet file, so its rows were not checked")
        return None
    if problems := column_problems(path):
        report.problems += problems
        return None
    if settings is None or (protocol := settings.protocol) is None:
        return None

    def messages(row: QuestionRow) -> Sequence[Mapping[str, Any]]:
        return protocol.messages(row.question) if settings.own_prompt else row.prompt

    limit, is_filtered = (
        config.data.get("max_prompt_length"),
        bool(config.data.get("filter_overlong_prompts")),
    )
    try:
        scan = scan_parquet(path, protocol.name, messages, count_tokens, limit, agent_loops(config))
    except DataError as fault:
        report.problems.append(error_of(path, str(fault).removeprefix(path).lstrip(": ")))
        return None
    report.problems += scan_problems(path, scan, protocol.name, limit, is_filtered)
    extent = "all" if scan.tokenised >= scan.usable else "the longest by characters"
    note = f", prompt tokens counted for {scan.tokenised} ({extent})" if count_tokens else ""
    report.notes.append(f"{path}: {scan.rows} rows, {scan.usable} usable{note}")
    return scan.rows - scan.promptless.count - (scan.overlong.count if is_filtered else 0) or None


def _check_json_file(path: str) -> Iterator[Problem]:
    """Check that a local file other than parquet exists, has a format that veRL reads, may be read, and
    contains prompts."""
    remedy = "make it with `rag-r1 data`, which reads questions, and give its train.parquet or test.parquet"
    if "://" in path:
        return
    if not Path(path).expanduser().is_file():
        yield error(path, missing_file(path), remedy)
    elif not path.endswith((".json", ".jsonl")):
        yield error(path, "veRL reads .parquet, .json and .jsonl", remedy)
    elif not os.access(path, os.R_OK):
        yield error(path, "may not be read", "check the rights of the file")
    else:
        with Path(path).expanduser().open("rb") as file:
            head = file.read(1 << 20)
        if b'"prompt"' not in head:
            yield error(path, "has no rows with a prompt", remedy)


def _count_tokens(setup: AgentSetup, row: QuestionRow) -> int:
    """Return the number of tokens in a row's prompt, as the agent makes it."""
    return len(setup.prompt_ids(row.question, row.prompt))


def check_steps(config: DictConfig, train_rows: int) -> Iterator[Problem]:
    """Check that a batch can be filled, and that the epochs have the required number of steps. (veRL drops
    an incomplete last batch.)"""
    batch, trainer = config.data.train_batch_size, config.trainer
    if 0 < (config.data.get("train_max_samples") or -1) < train_rows:
        train_rows = config.data.train_max_samples
    if train_rows < batch:
        text = f"{batch} is more than the {train_rows} training rows, so there would be no step"
        yield error("data.train_batch_size", text, f"set it to at most {train_rows}")
        return
    steps, epochs, epoch_steps = trainer.total_training_steps, trainer.total_epochs, train_rows // batch
    if steps is not None and (last_step := epoch_steps * epochs) < steps:
        text = f"{epochs} epochs of {epoch_steps} steps end the run at step {last_step}, before {steps}"
        yield warning("trainer.total_epochs", text, f"set it to at least {math.ceil(steps / epoch_steps)}")


def is_local_parquet(path: str) -> bool:
    """Return whether a name in `data` is that of a local parquet file, whose rows can be read here."""
    return "://" not in path and path.endswith(".parquet")


def files_of(data: DictConfig, key: str) -> list[str]:
    """Return the names of the files under a key of the block `data`, with `~` expanded."""
    value = data.get(key) or []
    names = list(value) if isinstance(value, list | ListConfig) else [value]
    return [str(name) if "://" in str(name) else str(Path(str(name)).expanduser()) for name in names]
