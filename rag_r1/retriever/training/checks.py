"""Checks the inputs of `rag-r1 retriever train` before anything is loaded.

Of a corpus only the first passage is read here. To find out whether it has all passages of the rows, the
training reads the whole corpus, after it has opened the model (dataset.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rag_r1.corpus.inputs import passages_of
from rag_r1.corpus.reader import Corpus
from rag_r1.inference.model_folders import check_weights
from rag_r1.io.errors import DataError
from rag_r1.options.out_folder import check_out
from rag_r1.protocols.retriever_query import Mode
from rag_r1.retriever.records import TrainingRow, read_records
from rag_r1.retriever.training.encoder import check_model, model_folder
from rag_r1.retriever.training.encoder_settings import settings_of_index
from rag_r1.retriever.training.options import TrainOptions
from rag_r1.runs.errors import RunError
from rag_r1.runs.start_checks import StartChecks, check_packages


def check_start(options: TrainOptions) -> int:
    """Check all inputs of the training, and return the number of rows. Raises StartError with all
    problems."""
    with StartChecks() as checks:
        checks.run(check_packages, "rag-r1 retriever train", "sentence_transformers")
        checks.run(check_out, options.out, "rag-r1 retriever train")
        counts = [checks.run(_count_rows, path, options) or 0 for path in options.rows]
        for path in options.corpus:
            checks.run(_check_first_passage, path)
        index = checks.run(settings_of_index, options.index) if options.index else {}
        if (folder := checks.run(model_folder, options.model)) is not None:
            checks.run(check_weights, folder)
        if index is not None:  # otherwise the pooling may be named in the index that could not be read
            checks.run(check_model, options.model, options.pooling or index.get("pooling"))
        if not checks.problems:
            checks.run(check_batch, sum(counts), options)
    return sum(counts)


def _check_first_passage(corpus: Path) -> None:
    """Read the first row of a corpus. Raises DataError if it is not a passage, or if there is none."""
    if next(passages_of(Corpus([corpus]), progress=False), None) is None:
        raise DataError(f"{corpus}: no passage in it: give the corpus that the rows were made from")


def _count_rows(path: Path, options: TrainOptions) -> int:
    """Return the number of rows of a file. Raises RunError for the first one that cannot be used, and if
    there are none."""
    count = sum(1 for _ in usable_rows([path], options.mode, options.negatives, options.rank_weight > 0))
    if not count:
        raise no_rows([path])
    return count


def no_rows(paths: Sequence[Path]) -> RunError:
    """Return the error about files of which none has a row."""
    message = f"no training rows in {', '.join(map(str, paths))}"
    return RunError(f"{message}: make them with rag-r1 retriever data")


def check_batch(rows: int, options: TrainOptions) -> None:
    """Raise RunError if there are fewer rows than a batch needs."""
    if rows < options.batch_size:
        message = f"{rows} rows are fewer than a batch of {options.batch_size}"
        raise RunError(f"{message}: give --batch-size {rows} or less, or more rows")


def usable_rows(
    paths: Sequence[Path], mode: Mode | None, negatives: int, ranked: bool
) -> Iterator[TrainingRow]:
    """Yield the rows of files. Raises RunError, with file and row, for the first row that cannot be used.

    `mode` says what a query is sent with, and is None if that is not known yet. `negatives` is the number of
    negatives that each row must have. `ranked` says that the loss uses the order of a row's passages by local
    relevance, so their relevance must not all be equal.
    """
    for path in paths:
        for number, row in enumerate(read_records(TrainingRow, path), 1):
            location = f"{path}, row {number} (query {row.query_id}, round {row.round_index})"
            if len(row.passage_ids) <= negatives:
                count = len(row.passage_ids) - 1
                message = f"{location} has {count} negatives, not {negatives}"
                raise RunError(f"{message}: give --negatives {count}, or less")
            if ranked and len({score.local_utility for score in row.scores[: negatives + 1]}) == 1:
                # The loss would pull the positive down to its negatives.
                message = f"{location} has one LR (`local_utility`) for all passages, and so no order of them"
                raise RunError(
                    f"{message}: leave --rank-weight out, or make the rows with --utility both or relevance"
                )
            if mode == "reasoning" and row.reasoning is None:
                message = f"{location} has no `reasoning`, which --mode reasoning needs"
                raise RunError(
                    f"{message}: make the rows with this version of rag-r1 retriever data, select them with "
                    "--candidates, or give another mode"
                )
            yield row
