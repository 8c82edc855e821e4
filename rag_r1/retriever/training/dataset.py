"""The data set of a retriever's training: rows with the texts of their queries and passages.

Rows name passages by the corpus's ids. The corpus is read once, and of it only the passages that rows name
are kept, each once; a row holds their numbers. The collator puts the texts in when a batch is made.

The text of a query is made by `build_retriever_query`, as for a search of the agent, so both are the same.
Two rows are about the same query if that text is the same; a passage is known to answer it if it is the
positive one of such a row.
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
from rag_r1.retriever.training.checks import usable_rows
from rag_r1.retriever.training.encoder_settings import EncoderSettings
from rag_r1.retriever.training.loss import BatchTable
from rag_r1.runs.errors import RunError

if TYPE_CHECKING:
    from datasets import Dataset

#: How many of the missing passages a message names.
_MAX_NAMED = 5


@dataclass(frozen=True)
class TrainingData:
    """Rows and the texts of their passages; texts have the encoder's prefixes.

    queries      the text of each row's query
    passages     the numbers of each row's passages, the positive one first
    texts        the text of each passage, by its number; empty for a passage that no row uses
    table        the rows as the loss needs them (loss.py)
    fingerprint  SHA-256 over texts, numbers and relevance, in hexadecimal: a run that was begun with other
                 data is refused
    """

    queries: list[str]
    passages: list[list[int]]
    texts: list[str]
    table: BatchTable
    fingerprint: str

    def dataset(self) -> Dataset:
        """The data set of the trainer, in which passages are numbers: the collator puts the texts in. `label`
        is the number of the row, by which the loss finds it in `table`."""
        from datasets import Dataset

        rows = {"query": self.queries, "passages": self.passages, "label": list(range(len(self.queries)))}
        return Dataset.from_dict(rows)


@dataclass
class PassageCollator(SentenceTransformerDataCollator):
    """sentence-transformers' collator for rows whose passages are numbers of `texts`."""

    texts: Sequence[str] = ()

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        """A batch with the columns query, passage_0 (the positive), passage_1, ..."""
        rows = []
        for row in features:
            passages = {f"passage_{i}": self.texts[number] for i, number in enumerate(row["passages"])}
            rows.append({"query": row["query"], **passages, "label": row["label"]})
        return super().__call__(rows)


def load_training_data(
    rows: Sequence[Path],
    corpus: Sequence[Path],
    settings: EncoderSettings,
    *,
    negatives: int = 15,
    ranked: bool = False,
    progress: bool = True,
) -> TrainingData:
    """Read rows from files, and the texts of their passages from the corpus. Of a row with more negatives the
    first are used. `ranked`: the loss reads the order of a row's passages by local relevance
    (`local_utility`), so these must not all be the same.

    Raises RunError, with file and row, for a row that cannot be used, if there is none, and for passages that
    the corpus does not have; DataError if the corpus cannot be read.
    """
    training_rows = list(usable_rows(rows, settings.mode, negatives, ranked))
    if not training_rows:
        message = f"no training rows in {', '.join(map(str, rows))}"
        raise RunError(f"{message}: make them with rag-r1 retriever data")
    if settings.mode == "reasoning" and not any((row.reasoning or "").strip() for row in training_rows):
        message = f"no row of {', '.join(map(str, rows))} has a thought in `reasoning`"
        raise RunError(f"{message}, so --mode reasoning would train as plain does: give another mode")
    names = dict.fromkeys(name for row in training_rows for name in row.passage_ids[: negatives + 1])
    contents = _texts(names.keys(), Corpus(corpus), progress)
    if missing := [name for name in names if name not in contents]:
        raise RunError(
            f"{len(missing)} of {len(names)} passages are not in the corpus, such as "
            f"{', '.join(map(repr, missing[:_MAX_NAMED]))}: give the corpus that the rows were made from"
        )
    return training_data(training_rows, contents, settings, negatives)


def training_data(
    rows: Sequence[TrainingRow], contents: Mapping[str, str], settings: EncoderSettings, negatives: int
) -> TrainingData:
    """The training data of these rows, each with `negatives` negatives. `contents`: the text of each passage
    that they use, by its id."""
    # Negatives that are not used have numbers, too, so that the fingerprint is that of earlier releases.
    names = dict.fromkeys(name for row in rows for name in row.passage_ids)
    numbers = {name: number for number, name in enumerate(names)}
    queries = [query_text(row, settings) for row in rows]
    positives: dict[str, dict[int, None]] = {}  # query -> the numbers of its positives, as an ordered set
    for query, row in zip(queries, rows, strict=True):
        positives.setdefault(query, {})[numbers[row.passage_ids[0]]] = None
    query_numbers = {query: i for i, query in enumerate(positives)}
    passages = [[numbers[name] for name in row.passage_ids[: negatives + 1]] for row in rows]
    relevance = [[score.local_utility for score in row.scores[: negatives + 1]] for row in rows]
    texts = [settings.passage_prefix + contents[name] if name in contents else "" for name in numbers]
    return TrainingData(
        [settings.query_prefix + query for query in queries],
        passages,
        texts,
        BatchTable.of(
            passages, [query_numbers[query] for query in queries], [*map(list, positives.values())], relevance
        ),
        _fingerprint(queries, passages, relevance, texts),
    )


def query_text(row: TrainingRow, settings: EncoderSettings) -> str:
    """The text that a retriever is sent for the row's query, without the encoder's prefix."""
    context = CallContext(row.question, row.history_queries, row.reasoning or "")
    return settings.format.query(context, row.query_text, settings.mode)


def _fingerprint(*parts: list[Any]) -> str:
    """SHA-256 over the JSON of these values, in hexadecimal."""
    digest = hashlib.sha256()
    for part in parts:
        for chunk in json.JSONEncoder().iterencode(part):  # at once, it would be a copy of all texts
            digest.update(chunk.encode())
    return digest.hexdigest()


def _texts(names: Iterable[str], corpus: Corpus, progress: bool) -> dict[str, str]:
    """The texts of the named passages that the corpus has, by id; it is read no further than needed."""
    missing = set(names)
    contents: dict[str, str] = {}
    for passage, _ in corpus.rows(progress=progress, doing="reading passages"):
        if isinstance(passage, Passage) and passage.id in missing:
            contents[passage.id] = passage.contents
            missing.remove(passage.id)
            if not missing:
                break
    return contents
