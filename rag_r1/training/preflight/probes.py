"""Checks the probes of a validation (`rag_r1.probes`).

The names of the probes, and that a file of passages is given if a probe shows some, are checked with the
other keys of the block (rag_r1/config/schema.py). Here the file and the rows of the validation are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from omegaconf import DictConfig, OmegaConf

from rag_r1.config.schema import SHOW_PASSAGES, RagR1Config
from rag_r1.data.evidence import GoldEvidence
from rag_r1.data.rows import QuestionRow, read_rows
from rag_r1.io.errors import DataError
from rag_r1.options.problems import Problem, error, error_of, warning
from rag_r1.probes.passages import HOW_TO_MAKE, Passages, read_passages
from rag_r1.probes.probes import NEED_GOLD, NEED_PASSAGES, applies, enough_random, topk_of
from rag_r1.training.preflight.data import files_of

_KEY, _FILE = "rag_r1.probes", "rag_r1.probe_passages"
_DATASET = {"path": "pkg://rag_r1.plugin.dataset", "name": "SearchDataset"}


def check_probes(config: DictConfig, settings: RagR1Config | None) -> Iterator[Problem]:
    """Check that the data set adds the rows of the probes, but not to a training file, and that the rows and
    passages are those that the probes need."""
    if settings is None or not settings.probes:
        if settings is not None and settings.probe_passages is not None:
            yield warning(_FILE, f"is not read, since {_KEY} names no probes", "name some, or leave it out")
        return
    data, dataset = config.data, OmegaConf.select(config, "data.custom_cls") or {}
    is_ours = {key: dataset.get(key) for key in _DATASET} == _DATASET and data.get("probes")
    if not is_ours or data.get("probe_passages") != settings.probe_passages:
        text = "only the data set of rag_r1_defaults.yaml adds the rows of probes"
        remedy = "keep its data.custom_cls, data.probes and data.probe_passages, or set no probes"
        yield error(_KEY, text, remedy)
    files = files_of(data, "val_files")
    if files and not config.trainer.get("val_only") and files_of(data, "train_files") == files:
        text = "data.train_files and data.val_files are the same, so the probes would be trained on"
        yield error(_KEY, text, "give the validation files of its own, or set no probes")
    probes_with_topk = [probe for probe in settings.probes if probe in NEED_PASSAGES]
    if probes_with_topk and not topk_of(settings.validation_retriever):
        text = f"{', '.join(probes_with_topk)} needs rag_r1.retriever.topk, which is not a whole number"
        remedy = "set it to the number of documents that a search shows, or leave these probes out"
        yield error(_KEY, text, remedy)
    passages, unreadable = _passages(settings)
    yield from unreadable
    if files:
        yield from _check_rows(files, settings, passages)


def _passages(settings: RagR1Config) -> tuple[Passages | None, list[Problem]]:
    """Return the passages that the probes show, or None if they cannot be read, and the problems of their
    file. If no file is named, this is reported with the other keys of the block."""
    if not any(probe in NEED_PASSAGES for probe in settings.probes):
        return Passages(), []
    if settings.probe_passages is None:
        needs_file = any(probe in SHOW_PASSAGES for probe in settings.probes)
        return None if needs_file else Passages(), []
    try:
        return read_passages(settings.probe_passages), []
    except DataError as fault:
        return None, [error_of(_FILE, fault)]


def _check_rows(files: Iterable[str], settings: RagR1Config, passages: Passages | None) -> Iterator[Problem]:
    """Check that each probe can be played with at least one row of the validation files, and `random` with
    all rows. Files that cannot be read are reported by `check_data`."""
    try:
        # `golds` and `topk` only choose among the gold passages, which does not matter here.
        evidence: list[GoldEvidence] = [
            (passages or Passages()).evidence(row.metadata, golds=(), topk=1)
            for path in files
            for row in map(QuestionRow.from_row, read_rows(path))
            if row.split != "train"
        ]
    except (OSError, DataError, pa.ArrowException):
        return
    if not evidence:
        text = "all rows of data.val_files have extra_info.split train, and are played as in training"
        yield error(_KEY, text, "make the file with another split, or set no probes")
        return
    shows_gold = any(applies("gold", item) for item in evidence)
    gold_probes = [probe for probe in settings.probes if probe in NEED_GOLD]
    if gold_probes and not any(evidence):
        text = f"no row of data.val_files names its gold passages, which {', '.join(gold_probes)} needs"
        remedy = "make the file with `rag-r1 data`, from a source with supporting titles, e.g. hotpotqa"
        yield error(_KEY, text, remedy)
    elif "gold" in gold_probes and passages is not None and not shows_gold:
        text = f"{settings.probe_passages} has the gold passages of no row of data.val_files"
        yield error(_FILE, text, HOW_TO_MAKE)
    topk = topk_of(settings.validation_retriever)
    if "random" in settings.probes and passages is not None and not enough_random(passages, evidence, topk):
        text = (
            f"{settings.probe_passages} has {len(passages.random)} random passages, and random needs more "
            f"than {2 * topk} beside each question's gold ones"
        )
        yield error(_FILE, text, HOW_TO_MAKE)
