"""Reranks the best hits of a search with a cross-encoder.

A cross-encoder is far slower than an index and far better at the first few ranks, so it scores only the first
`depth` passages of a search, and a request gets at most that many. Scores are computed in groups of equal
token length, without padding, so that the score of a pair does not depend on the other pairs, as far as the
CPU's matrix products allow (retrieval_server/determinism.py). Equal scores keep the order of the search.

A reranked search has the two stages of the underlying search, with the same number of batches at once in
each, and one more in the second stage: while the model scores one batch, the next one is searched. So neither
an index nor the replicas of a Ray cluster are idle while the model works. The model serves one caller at a
time, in order of arrival: the searches of several threads, and POST /rerank.

torch is imported only when the model is loaded.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from retrieval_server.determinism import Determinism, weakest_determinism
from retrieval_server.encode.batch_probe import probe_model
from retrieval_server.encode.model_folder import resolve_model
from retrieval_server.encode.model_import import model_load_lock, pause_collector
from retrieval_server.errors import UserError
from retrieval_server.folder.passages import Passage
from retrieval_server.source import ScoredPassage, SourceDescription, StagedSource

_BATCH_PAIRS = 32  # pairs of equal length that are scored at once
_MAX_PAIR_TOKENS = 512  # for a model that has no limit of its own


class Reranker:
    """A sentence-transformers cross-encoder, which is loaded on first use. It is thread-safe."""

    def __init__(self, name: str, device: str | None = None):
        self.name = name
        self._device = device
        self._model: Any = None
        self._activation: Any = None
        self._guarantee = Determinism.NONE
        # A single thread for tokenizer and model. Unlike a lock it serves callers in order of arrival.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="cross-encoder")

    def load(self) -> None:
        """Load the model now. Raises UserError if it is not a cross-encoder with one score."""
        self._thread.submit(self._load).result()

    def _load(self) -> None:
        """Load the model, unless it is loaded. Runs in the thread of the model. Raises UserError."""
        if self._model is not None:
            return
        _, folder = resolve_model(self.name, "--rerank")

        with pause_collector("sentence_transformers"):
            from sentence_transformers import CrossEncoder

        try:
            with model_load_lock:
                model = CrossEncoder(
                    str(folder), device=self._device, local_files_only=True, trust_remote_code=False
                )
            labels = model.config.num_labels
        except Exception as error:  # three libraries raise any error for a damaged or hostile folder
            raise UserError(
                f"--rerank {self.name}: the model does not load as a cross-encoder ({error!r}). Fetch it "
                "again, or take another."
            ) from error
        if labels != 1:
            raise UserError(f"--rerank {self.name}: {labels} labels, not one score for a pair. Take another.")
        self._guarantee = probe_model(model).guarantee
        import torch

        # The activation is applied to each score separately. For several scores at once the CPU would use
        # vector instructions for some of them, which round the last bit differently from scalar ones.
        attribute = "activation_fn" if hasattr(model, "activation_fn") else "default_activation_function"
        self._activation = getattr(model, attribute)
        setattr(model, attribute, torch.nn.Identity())
        self._model = model

    @property
    def guarantee(self) -> Determinism:
        """What holds for the score of a pair, whatever else is scored. Loads the model if necessary."""
        self.load()
        return self._guarantee

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Return the score of each pair (query, passage); larger is better.

        Loads the model if necessary, and raises UserError as `load` does.
        """
        return self._thread.submit(self._score, pairs).result()

    def _score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Return the scores as `score` does. Runs in the thread of the model."""
        self._load()
        scores = [0.0] * len(pairs)
        for members in self._groups(pairs):
            logits = self._model.predict(
                [pairs[position] for position in members],
                batch_size=_BATCH_PAIRS,
                show_progress_bar=False,
                convert_to_tensor=True,
            ).cpu()
            for position, logit in zip(members, logits.split(1), strict=True):
                scores[position] = self._activation(logit).item()
        return scores

    def _groups(self, pairs: Sequence[tuple[str, str]]) -> list[list[int]]:
        """Return the positions of the pairs, in groups of equal length in tokens."""
        if not pairs:
            return []
        max_tokens = min(self._model.max_length or _MAX_PAIR_TOKENS, 10**6)  # some tokenizers have 10**30
        encoded = self._model.tokenizer(
            [query for query, _ in pairs], [text for _, text in pairs], truncation=True, max_length=max_tokens
        )
        groups: dict[int, list[int]] = {}
        for position, ids in enumerate(encoded["input_ids"]):
            groups.setdefault(len(ids), []).append(position)
        return list(groups.values())


class RerankedSource(StagedSource):
    """Returns the `depth` best documents of another source in the order and with the scores of a reranker."""

    def __init__(self, source: StagedSource, reranker: Reranker, depth: int):
        self._source, self._reranker, self._depth = source, reranker, depth
        self.overlaps = source.overlaps
        self.encoders = source.encoders
        self.searchers = source.searchers + 1  # the model scores the passages of the additional one
        self._searching = threading.BoundedSemaphore(source.searchers)
        self._guarantee = reranker.guarantee  # stored, because the property waits for the model

    @property
    def description(self) -> SourceDescription:
        inner = self._source.description
        guarantee = inner.guarantee and weakest_determinism([inner.guarantee, self._guarantee])
        return replace(inner, backend=f"{inner.backend}+rerank", guarantee=guarantee)

    def prepare(self, queries: Sequence[str]) -> tuple[list[str], Any]:
        return list(queries), self._source.prepare(queries)

    def find(self, prepared: tuple[list[str], Any], topks: Sequence[int]) -> list[tuple[ScoredPassage, ...]]:
        """Return at most `topks[i]` documents for query `i`, best first by the cross-encoder."""
        queries, inner = prepared
        with self._searching:  # at most as many at once as the source allows
            results = self._source.find(inner, [self._depth] * len(queries))
        searches = zip(queries, results, strict=True)
        pairs = [(query, hit.passage.contents) for query, hits in searches for hit in hits]
        scores = iter(self._reranker.score(pairs))
        answers = []
        for hits, topk in zip(results, topks, strict=True):
            scored = [ScoredPassage(hit.passage, next(scores)) for hit in hits]
            answers.append(tuple(sorted(scored, key=lambda hit: -hit.score)[:topk]))
        return answers

    def documents(self, ids: Sequence[str]) -> list[Passage | None]:
        return self._source.documents(ids)

    def warm_up(self) -> None:
        self._source.warm_up()
        self._reranker.score([("Is it warm?", "It is.")])

    def close(self) -> None:
        self._source.close()
