"""Builds the data set of a retriever's training: rows with the texts of their queries and passages.

Rows refer to passages by their ids in the corpus. The corpus is read once. Only the passages of the rows are
kept, each once, and a row holds their numbers. The collator replaces the numbers by the texts when it makes a
batch.

The text of a query is built by the same code as for a search of the agent (`QueryFormat.query`), so training
and service agree. Two rows have the same query if their query texts are equal, and a passage is known to
answer a query if it is the positive of one of the query's rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator

from rag_r1.corpus.reader import Corpus, Passage
from rag_r1.protocols.retriever_query import CallContext
from rag_r1.retriever.records import TrainingRow
from rag_r1.retriever.training.checks import no_rows, usable_rows
from rag_r1.retriever.training.encoder_settings import EncoderSettings
from rag_r1.retriever.training.loss import BatchTable
from rag_r1.runs.errors import RunError

if TYPE_CHECKING:
    from datasets import Dataset

#: The number of missing passages that an error message names.
_MAX_NAMED = 5


@dataclass(frozen=True)
class TrainingData:
    """The rows and the texts of their passages, as the encoder reads them."""

    #: The text of each row's query, with the encoder's prefix.
    queries: list[str]
    #: The numbers of each row's passages, the positive one first.
    passages: list[list[int]]
    #: The text of each passage, by its number, with the encoder's prefix. It is empty for a passage that is
    #: numbered but not used, since it is only a negative beyond those that the training takes of a row.
    texts: list[str]
    #: The rows as the loss needs them (loss.py).
    table: BatchTable
    #: SHA-256 in hexadecimal of the queries without their prefix, of the passages' numbers, relevance and
    #: texts. A run whose folder was created with other data is refused.
    fingerprint: str

    def dataset(self) -> Dataset:
        """Return the data set for the trainer. Its passages are numbers, which the collator replaces by the
        texts; `label` is the number of the row, by which the loss finds it in `table`."""
        from datasets import Dataset

        labels = list(range(len(self.queries)))
        return Dataset.from_dict({"query": self.queries, "passages": self.passages, "label": labels})


@dataclass
class PassageCollator(SentenceTransformerDataCollator):
    """sentence-transformers' collator for rows whose passages are positions in `texts`."""

    texts: Sequence[str] = ()

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        """Return a batch with the columns query, passage_0 (the positive), passage_1, ..."""
        rows = []
        for row in features:
            passages = {f"passage_{i}": self.texts[number] for i, number in enumerate(row["passages"])}
            rows.append({"query": row["query"], **passages, "label": row["label"]})
        return super().__call__(rows)


def load_training_data(
    row_files: Sequence[Path],
    corpus_paths: Sequence[Path],
    settings: EncoderSettings,
    *,
    negatives: int = 15,
    ranked: bool = False,
    progress: bool = True,
) -> TrainingData:
    """Read rows from files, and the texts of their passages from the corpus.

    The first `negatives` negatives of each row are used. `ranked` says that the loss uses the order of a
    row's passages by local relevance (`local_utility`), whose values must then not all be equal.

    Raises RunError if there are no rows, if a row cannot be used (with file and row), if the mode is
    `reasoning` and no row has a thought, and if the corpus lacks passages. Raises DataError if the corpus
    cannot be read.
    """
    rows = list(usable_rows(row_files, settings.mode, negatives=negatives, ranked=ranked))
    if not rows:
        raise no_rows(row_files)
    if settings.mode == "reasoning" and not any((row.reasoning or "").strip() for row in rows):
        message = f"no row of {', '.join(map(str, row_files))} has a thought in `reasoning`"
        raise RunError(f"{message}, so --mode reasoning would train as plain does: give another mode")
    ids = dict.fromkeys(passage_id for row in rows for passage_id in row.passage_ids[: negatives + 1])
    contents = _read_contents(ids, Corpus(corpus_paths), progress)
    if missing_ids := [passage_id for passage_id in ids if passage_id not in contents]:
        raise RunError(
            f"{len(missing_ids)} of {len(ids)} passages are not in the corpus, such as "
            f"{', '.join(map(repr, missing_ids[:_MAX_NAMED]))}: give the corpus that the rows were made from"
        )
    return training_data(rows, contents, settings, negatives)


def training_data(
    rows: Sequence[TrainingRow], contents: Mapping[str, str], settings: EncoderSettings, negatives: int
) -> TrainingData:
    """Build the training data of these rows with the first `negatives` negatives of each. `contents` maps the
    ids of the passages that they use to the texts."""
    # Unused negatives are numbered as well, so that the fingerprint equals that of earlier releases.
    ids = dict.fromkeys(passage_id for row in rows for passage_id in row.passage_ids)
    numbers = {passage_id: number for number, passage_id in enumerate(ids)}
    queries = [query_text(row, settings) for row in rows]
    # For each query the numbers of its positives; a dict serves as an ordered set.
    positives: dict[str, dict[int, None]] = {}
    for query, row in zip(queries, rows, strict=True):
        positives.setdefault(query, {})[numbers[row.passage_ids[0]]] = None
    query_numbers = {query: number for number, query in enumerate(positives)}
    passages = [[numbers[passage_id] for passage_id in row.passage_ids[: negatives + 1]] for row in rows]
    relevance = [[score.local_utility for score in row.scores[: negatives + 1]] for row in rows]
    texts = [settings.passage_prefix + contents[id_] if id_ in contents else "" for id_ in ids]
    row_queries = [query_numbers[query] for query in queries]
    table = BatchTable.of(passages, row_queries, list(map(list, positives.values())), relevance)
    return TrainingData(
        queries=[settings.query_prefix + query for query in queries],
        passages=passages,
        texts=texts,
        table=table,
        fingerprint=_fingerprint(queries, passages, relevance, texts),
    )


def query_text(row: TrainingRow, settings: EncoderSettings) -> str:
    """Return the text that a retriever is sent for the row's query, without the encoder's prefix."""
    context = CallContext(row.question, row.history_queries, row.reasoning or "")
    return settings.format.query(context, row.query_text, settings.mode)


def _fingerprint(*parts: list[Any]) -> str:
    """Return the SHA-256 hash of the JSON of these values, in hexadecimal."""
    digest = hashlib.sha256()
    for part in parts:
        for chunk in json.JSONEncoder().iterencode(part):  # in chunks, to avoid a second copy of all texts
            digest.update(chunk.encode())
    return digest.hexdigest()


def _read_contents(ids: Iterable[str], corpus: Corpus, progress: bool) -> dict[str, str]:
    """Return the texts of the passages that the corpus has of these, by id. Reading stops once all are found,
    and a row that is not a passage is skipped: if a training row needs it, it is reported as missing."""
    missing = set(ids)
    contents: dict[str, str] = {}
    for passage, _ in corpus.rows(progress=progress, doing="reading passages"):
        if isinstance(passage, Passage) and passage.id in missing:
            contents[passage.id] = passage.contents
            missing.remove(passage.id)
            if not missing:
                break
    return contents
