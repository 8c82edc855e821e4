"""Checks the data: the rows and prompts of every file, and the number of steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig

from rag_r1.config.agent_setup import AgentSetup, RowLimits
from rag_r1.config.schema import RagR1Config
from rag_r1.data.rows import QuestionRow
from rag_r1.options.problems import PreflightReport, Problem, error, plain, warning
from rag_r1.training.preflight.parquet import column_problems, scan_parquet, scan_problems

#: A limit on the tokens of a prompt that no prompt reaches.
_ANY_LENGTH = 1 << 40


def check_data(
    config: DictConfig, settings: RagR1Config | None, tokenizer: Any | None, report: PreflightReport
) -> int | None:
    """All data files: columns, rows, protocol, prompt lengths. Returns the number of training rows, if known.

    Without a protocol, which other checks report, only the files and their columns are checked.
    """
    protocol = settings and settings.protocol

    def messages(row: QuestionRow) -> Sequence[Mapping[str, Any]]:
        return protocol.messages(row.question) if settings.own_prompt else row.prompt

    limit, is_filtered = config.data.max_prompt_length, bool(config.data.filter_overlong_prompts)
    count_tokens = None
    if protocol is not None and tokenizer is not None:
        # No limit: the tokens of overlong prompts are counted too, for the report.
        template = plain(config.data.get("apply_chat_template_kwargs")) or {}
        setup = AgentSetup.of(settings, tokenizer, RowLimits(_ANY_LENGTH, 1), template=template)
        count_tokens = partial(_count_tokens, setup)
    train_rows: int | None = 0 if files_of(config.data, "train_files") else None
    for key in ("train_files", "val_files"):
        for path in files_of(config.data, key):
            rows = None  # that can be trained on, as veRL counts them
            if "://" in path or not path.endswith(".parquet"):
                report.problems += (unreadable := list(_check_json_file(path)))
                if not unreadable:
                    report.notes.append(f"{path}: not a local parquet file, so its rows were not checked")
            elif (problems := column_problems(path)) or protocol is None:
                report.problems += problems
            else:
                scan = scan_parquet(path, protocol.name, messages, count_tokens, limit)
                report.problems += scan_problems(path, scan, protocol.name, limit, is_filtered)
                extent = "all" if scan.tokenised >= scan.usable else "the longest by characters"
                note = f", prompt tokens counted for {scan.tokenised} ({extent})" if count_tokens else ""
                report.notes.append(f"{path}: {scan.rows} rows, {scan.usable} usable{note}")
                rows = scan.rows - scan.promptless.count - (scan.overlong.count if is_filtered else 0)
            if key == "train_files":
                train_rows = None if None in (rows, train_rows) else train_rows + rows
    return train_rows


def _check_json_file(path: str) -> Iterator[Problem]:
    """A local file that is no parquet is there, is of a form that veRL reads, and has prompts in it."""
    remedy = "make it with `rag-r1 data`, which reads questions, and give its train.parquet or test.parquet"
    if "://" in path:
        return
    if not Path(path).expanduser().is_file():
        yield error(path, "there is no such file", remedy)
    elif not path.endswith((".json", ".jsonl")):
        yield error(path, "veRL reads .parquet, .json and .jsonl", remedy)
    else:
        with Path(path).expanduser().open("rb") as file:
            head = file.read(1 << 20)
        if b'"prompt"' not in head:
            yield error(path, "has no rows with a prompt", remedy)


def _count_tokens(setup: AgentSetup, row: QuestionRow) -> int:
    """The tokens of a row's prompt, as the agent makes it."""
    return len(setup.prompt_ids(row.question, row.prompt))


def check_steps(config: DictConfig, train_rows: int) -> Iterator[Problem]:
    """A batch can be filled, and the epochs give the required steps (veRL drops a last short batch)."""
    batch, trainer = config.data.train_batch_size, config.trainer
    if 0 < (config.data.get("train_max_samples") or -1) < train_rows:
        train_rows = config.data.train_max_samples
    if train_rows < batch:
        text = f"{batch} is more than the {train_rows} training rows, so there would be no step"
        yield error("data.train_batch_size", text, f"set it to at most {train_rows}")
        return
    steps, epochs, length = trainer.total_training_steps, trainer.total_epochs, train_rows // batch
    if steps is not None and length * epochs < steps:
        text = f"{epochs} epochs of {length} steps end the run at step {length * epochs}, before {steps}"
        yield warning("trainer.total_epochs", text, f"set it to at least {-(-steps // length)}")


def files_of(data: DictConfig, key: str) -> list[str]:
    """The names of the files under a key of `data`."""
    value = data.get(key) or []
    names = list(value) if isinstance(value, list | ListConfig) else [value]
    return [str(name) if "://" in str(name) else str(Path(str(name)).expanduser()) for name in names]
