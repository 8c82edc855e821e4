"""Checks the inputs of `rag-r1 retriever train`.

`check_start` checks all of them before the training begins: the folder, the rows, the corpus, the index and
the files of the model. It reads every row, but only the first passage of a corpus, and loads no model.

The training reads the rows again with `usable_rows`, because their mode may be the model's (dataset.py). Only
then is it known whether the corpus has all passages of the rows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from rag_r1.corpus.inputs import check_first_rows
from rag_r1.corpus.reader import Corpus
from rag_r1.data.files.row_files import refuse_repeated
from rag_r1.inference.model_folders import check_weights, has_weights, local_model
from rag_r1.inference.tokenizer import check_tokenizer
from rag_r1.io.bounded_json import read_json_file
from rag_r1.io.errors import first_line_of
from rag_r1.options.out_folder import check_out
from rag_r1.protocols.retriever_query import Mode
from rag_r1.retriever.records import TrainingRow, read_records
from rag_r1.retriever.training.encoder import check_model, model_folder
from rag_r1.retriever.training.encoder_settings import settings_of_index
from rag_r1.retriever.training.options import TrainOptions
from rag_r1.runs.errors import RunError
from rag_r1.runs.folder import JOURNAL, PROVENANCE
from rag_r1.runs.start_checks import StartChecks, check_packages

#: The folders in OUT that the training writes.
MODEL, CHECKPOINTS = "model", "checkpoints"
#: What to do about a folder with missing or broken files.
_REMEDY = "copy or download the model again, or give another"
#: The files of a model on the Hub without its weights.
_SMALL_FILES = ("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken")


def check_start(options: TrainOptions) -> int:
    """Check all inputs of the training, and return the number of rows. Raises StartError with all
    problems."""
    with StartChecks() as checks:
        # The loggers are veRL's.
        packages = ("sentence_transformers", *(["verl"] if options.logger else []))
        checks.run(check_packages, "rag-r1 retriever train", *packages)
        checks.run(check_out, options.out, "rag-r1 retriever train")
        checks.run(_check_results, options.out)
        checks.run(refuse_repeated, options.rows)
        counts = [checks.run(_count_rows, path, options) for path in options.rows]
        usable = sum(count or 0 for count in counts)
        for path in options.corpus:
            # A training leaves out rows that are no passages, but a first one shows a wrong file.
            checks.run(lambda path: check_first_rows(Corpus([path]), most=1), path)
        index = checks.run(settings_of_index, options.index) if options.index else {}
        checks.run(_check_files, options.model)
        if index is not None:  # otherwise the pooling may be named in the index that could not be read
            checks.run(check_model, options.model, options.pooling or index.get("pooling"))
        if None not in counts:  # else the number of rows is not known
            checks.run(check_batch, usable, options)
    return usable


def _check_results(out: Path) -> None:
    """Raise RunError if a folder without a run contains what the training would take for its own results,
    overwrite or remove."""
    found = [name for name in (MODEL, CHECKPOINTS) if os.path.lexists(out / name)]
    if found and not ((out / PROVENANCE).exists() or (out / JOURNAL).exists()):
        raise RunError(f"--out {out} holds {' and '.join(found)}, not made by a run: choose another folder")


def _check_files(name: str) -> None:
    """Check the configuration and the tokenizer of a model and, if it is a folder, its weights. Of a model on
    the Hub, only the small files are fetched. Raises StartError with all problems, and RunError if there is
    no such model."""
    own_folder = model_folder(name)
    folder = own_folder or local_model(name, _SMALL_FILES, "give a folder with --model")
    transformer = _transformer_folder(folder)
    with StartChecks() as checks:
        if own_folder is not None:
            checks.run(check_weights, transformer or folder)
            if transformer is not None and not has_weights(transformer):
                files = "config.json, and *.safetensors or pytorch_model*.bin"
                checks.add(RunError(f"--model {transformer} holds no model ({files}): {_REMEDY}"))
        if transformer is not None and checks.run(_check_config, transformer):
            checks.run(check_tokenizer, transformer, "--model", _REMEDY)


def _transformer_folder(folder: Path) -> Path | None:
    """Return the folder with the transformer of a model; None if sentence-transformers' modules.json begins
    with another kind of module. Raises RunError if that file cannot be used."""
    path = folder / "modules.json"
    if not path.is_file():
        return folder
    try:
        first = read_json_file(path)[0]
        return folder / first["path"] if first["type"].endswith(".Transformer") else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise RunError(f"{path} does not list modules with `type` and `path`: {_REMEDY}") from error


def _check_config(folder: Path) -> bool:
    """Return True if transformers can use the config.json of a model, and raise RunError otherwise."""
    from transformers import AutoConfig

    try:
        AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # the configuration class of a model may raise anything
        fault = f"{folder / 'config.json'} cannot be used: {first_line_of(error)}"
        raise RunError(f"{fault}: {_REMEDY}") from error
    return True


def _count_rows(path: Path, options: TrainOptions) -> int:
    """Return the number of rows of a file. Raises RunError for the first one that cannot be used, and if
    there are none."""
    ranked = options.rank_weight > 0
    rows = usable_rows([path], options.mode, negatives=options.negatives, ranked=ranked)
    count = sum(1 for _ in rows)
    if not count:
        raise no_rows([path])
    return count


def no_rows(paths: Sequence[Path]) -> RunError:
    """Return the error about files without any row."""
    return RunError(f"no training rows in {', '.join(map(str, paths))}: make them with rag-r1 retriever data")


def check_batch(rows: int, options: TrainOptions) -> None:
    """Raise RunError if there are fewer rows than a batch needs."""
    if rows < options.batch_size:
        message = f"{rows} rows are fewer than a batch of {options.batch_size}"
        remedy = f"give --batch-size {rows} or less, or more rows" if rows else "give files that have rows"
        raise RunError(f"{message}: {remedy}")


def usable_rows(
    paths: Sequence[Path], mode: Mode | None, *, negatives: int, ranked: bool
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
