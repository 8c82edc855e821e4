"""Reads data sets from the Hugging Face Hub, through the package `datasets`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from rag_r1.data.files.question_file import QuestionFile, collect
from rag_r1.data.files.questions import KEYS
from rag_r1.io.errors import DataError
from rag_r1.io.hub import hub_answers


def read_hub(dataset: str, config: str | None, split: str) -> QuestionFile:
    """Read one split of a Hub data set. Raises DataError, with the remedy, if it cannot be loaded, and if it
    has no usable question."""
    name = f"{dataset} ({config or 'default'}, {split})"
    remedy = "give local files instead: --train FILE --validation FILE"
    return collect(name, *hub_rows(name, dataset, config, split, KEYS, remedy))


def hub_rows(
    name: str,
    dataset: str,
    config: str | None,
    split: str,
    keys: Collection[str],
    remedy: str,
    files: str | None = None,
) -> tuple[Iterable[tuple[int, Any]], list[str]]:
    """Return the rows of a Hub data set, numbered from 1 and restricted to the columns `keys`, and the names
    of all its columns.

    `files` names the data file in the repository, for a layout that `datasets` does not recognise. If the Hub
    does not answer, `datasets` reads its cache, from then on until the process ends. Raises DataError if the
    package is missing or the data set cannot be loaded; the message contains `name` and `remedy`.
    """
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"cannot load {name}: the package `datasets` is missing (pip install datasets), or {remedy}"
        ) from error
    if not hub_answers():
        datasets.config.HF_HUB_OFFLINE = True  # makes `datasets` use its cache without waiting for time-outs
    try:
        rows = datasets.load_dataset(dataset, config, split=split, data_files=files)
        columns = rows.column_names
        rows = rows.select_columns([key for key in keys if key in columns])
    except Exception as error:  # the package and its HTTP clients raise many kinds
        first_line = str(error).strip().partition("\n")[0]
        why = f"{type(error).__name__}: {first_line}"
        raise DataError(
            f"cannot load {name} from the Hub: {why}. Check name and network. Offline, {remedy}"
        ) from error
    return enumerate(rows, 1), columns
