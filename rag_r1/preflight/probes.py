"""Preflight of the probes of a validation (`rag_r1.probes`): that they are played, and that they can be.

Which probes there are is checked with the other keys of the block (rag_r1/config.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from omegaconf import DictConfig, OmegaConf

from rag_r1.config import RagR1Config
from rag_r1.preflight.data import files_of
from rag_r1.preflight.problems import Problem, error
from rag_r1.probes import NEED_GOLD
from rag_r1.rows import QuestionRow, read_rows
from rag_r1.supporting import Evidence

_KEY = "rag_r1.probes"
_DATASET = {"path": "pkg://rag_r1.plugin.dataset", "name": "SearchDataset"}


def check_probes(config: DictConfig, settings: RagR1Config | None) -> list[Problem]:
    """The data set adds their rows, to no training file, and the rows have what the probes need."""
    if settings is None or not settings.probes:
        return []
    problems = []
    named = OmegaConf.select(config, "data.custom_cls") or {}
    if {key: named.get(key) for key in _DATASET} != _DATASET or not config.data.get("probes"):
        what = "only the data set of rag_r1_defaults.yaml adds the rows of probes"
        problems.append(error(_KEY, what, "keep its data.custom_cls and data.probes, or set no probes"))
    trains = not config.trainer.get("val_only")
    if trains and files_of(config.data, "train_files") == files_of(config.data, "val_files"):
        what = "data.train_files and data.val_files are the same, so the probes would be trained on"
        problems.append(error(_KEY, what, "give the validation files of its own, or set no probes"))
    withheld = [probe for probe in settings.probes if probe in NEED_GOLD]
    if withheld and not isinstance(settings.validation_retriever.get("topk", 1), int):
        what = f"{', '.join(withheld)} needs rag_r1.retriever.topk, which is not a whole number"
        problems.append(error(_KEY, what, "set it"))
    return problems + _check_rows(config, bool(withheld))


def _check_rows(config: DictConfig, needs_gold: bool) -> list[Problem]:
    """At least one row can be played under the probes. Files that cannot be read are reported elsewhere."""
    validated = 0
    try:
        for row in _rows(files_of(config.data, "val_files")):
            validated += row.split != "train"
            if row.split != "train" and (not needs_gold or Evidence.of(row.metadata)):
                return []
    except (OSError, pa.ArrowException):
        return []
    if validated:
        what = "no row of data.val_files names its gold passages, which withheld needs"
        remedy = "make the file from a source with extra_info.supporting_titles (docs/guides/data.md)"
        return [error(_KEY, what, remedy)]
    what = "all rows of data.val_files have extra_info.split train, and are played as in training"
    return [error(_KEY, what, "make the file with another split, or set no probes")]


def _rows(paths: Sequence[str]) -> Iterator[QuestionRow]:
    for path in paths:
        yield from map(QuestionRow.from_row, read_rows(path))
