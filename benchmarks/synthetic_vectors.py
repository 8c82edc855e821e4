"""Generates any number of vectors with neighbourhoods like those of a real corpus, for other benchmarks.

How well an approximate index finds neighbours depends on how near they are, compared with all other vectors.
Independent random vectors of 384 dimensions are all equally far from each other, which is not so for texts.
Therefore a synthetic vector is a combination of real ones:

- a real passage, its *parent*, drawn at random, with the weight `KEPT`;
- the mean of the parent and its `NEIGHBOURS` nearest passages, with the rest of the weight;
- a random vector with the covariance of that neighbourhood: the differences of the members from their mean,
  each times a normal number. Its variance replaces the part that the parent's weight removes, so that the
  variance of the neighbourhood is kept. It lies in the few dimensions that the neighbours span, as real
  passages locally do;
- the differences of two pairs of arbitrary passages, times a number between 0 and `SPREAD` that is drawn for
  each vector, so that some passages are near to many and others are isolated.

The sum is divided by its length. Direction, spread and density thus follow the real corpus everywhere, and a
corpus that is a thousand times as large is that much denser. The constants were fitted by hand to the 9,756
passages of the HotpotQA corpus in MiniLM; benchmarks/vector_structure.py compares synthetic and real vectors.

A synthetic question is a real one that is moved together with a passage that answers it. If the parent of a
synthetic passage is the gold passage of a question, the question is moved by `MOVED` times the difference
between the two passages, so that it is about as near to the new passage as it was to the old one.

Rows are drawn in blocks, each with its own seed. A row is therefore the same in every slice and in a corpus
of any size, and at most one block is in memory.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

#: Number of rows that are drawn with one seed.
BLOCK = 16_384
# The constants of the text above.
NEIGHBOURS = 32
KEPT = 0.6
SPREAD = 0.5
MOVED = 0.8
#: Number of real vectors whose neighbours are searched at once.
_AT_ONCE = 1024


@dataclass(frozen=True)
class RealVectors:
    """The vectors of a real corpus, float32 of length 1."""

    #: (n, d)
    passages: np.ndarray
    #: (m, d)
    questions: np.ndarray
    #: For each question the rows of the passages that answer it.
    gold: list[list[int]]

    @classmethod
    def of_index(cls, folder: Path, questions: Path) -> RealVectors:
        """Read an exact dense index, and encode the questions with its encoder.

        `questions` is JSONL with `question` and `supporting_ids`. Raises SystemExit for an index of another
        kind.
        """
        import faiss

        from retrieval_server.encode.encoder import Encoder
        from retrieval_server.folder.manifest import FAISS_INDEX, PASSAGES, read_manifest
        from retrieval_server.folder.passages import PassageStore

        manifest = read_manifest(folder)
        if manifest.dense is None or manifest.dense.factory != "Flat" or not manifest.dense.encoder.normalize:
            raise SystemExit(f"error: {folder}: give an exact dense index of normalised vectors")
        passages = faiss.read_index(str(folder / FAISS_INDEX)).reconstruct_n(0, manifest.count)
        with questions.open(encoding="utf-8") as file:
            rows = [json.loads(line) for line in file if line.strip()]
        row_of = {passage.id: row for row, passage in enumerate(PassageStore(folder / PASSAGES))}
        encoder = Encoder.open(manifest.dense.encoder, None, "cpu", "float32")
        vectors = encoder.encode_queries([row["question"] for row in rows])
        gold = [[row_of[name] for name in row["supporting_ids"] if name in row_of] for row in rows]
        return cls(passages, vectors, gold)


class SyntheticVectors:
    """A sequence of `rows` vectors that resemble `real` (n, d); `vectors[a:b]` is a float32 array (b - a, d).

    Raises ValueError if there are too few real vectors to have neighbours.
    """

    def __init__(self, real: np.ndarray, rows: int, seed: int = 0):
        if len(real) <= NEIGHBOURS:
            raise ValueError(f"{len(real)} real vectors; more than {NEIGHBOURS} are needed")
        self.dimension = real.shape[1]
        self._real = np.ascontiguousarray(real, np.float32)
        self._rows, self._seed = rows, seed
        self._members = neighbourhoods(self._real)
        # Number and vectors of the last block: slices are usually read in order.
        self._drawn: tuple[int, np.ndarray] = (-1, self._real[:0])

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Return the vectors of a slice: (rows, dimension). Raises IndexError for another step than 1."""
        start, stop, step = rows.indices(len(self))
        if step != 1:
            raise IndexError("vectors are drawn in slices of step 1")
        parts = [np.empty((0, self.dimension), np.float32)]
        for block in range(start // BLOCK, math.ceil(max(start, stop) / BLOCK)):
            first = block * BLOCK
            parts.append(self._block(block)[max(start - first, 0) : max(stop - first, 0)])
        return np.concatenate(parts)

    def parents(self, block: int) -> np.ndarray:
        """Return the row of the real parent of each row in a block: (BLOCK,)."""
        return self._generator(block).integers(0, len(self._real), BLOCK)

    def _generator(self, block: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, block])

    def _block(self, block: int) -> np.ndarray:
        if self._drawn[0] != block:
            self._drawn = (block, self._draw(block))
        return self._drawn[1]

    def _draw(self, block: int) -> np.ndarray:
        """Draw the vectors of a block: combinations of parents, neighbours and random others, of length 1."""
        from scipy.sparse import csr_array

        generator = self._generator(block)
        parents = generator.integers(0, len(self._real), BLOCK)  # first, as in parents()
        size = self._members.shape[1]
        normal = generator.standard_normal((BLOCK, size), dtype=np.float32) / np.sqrt(size)
        inner = np.sqrt(1 - KEPT**2) * (normal - normal.mean(axis=1, keepdims=True)) + (1 - KEPT) / size
        inner[:, 0] += KEPT
        anywhere = generator.integers(0, len(self._real), (BLOCK, 4))
        outer = SPREAD / 2 * generator.random((BLOCK, 1), np.float32) * np.array([1, 1, -1, -1], np.float32)
        weights = np.concatenate([inner, outer], axis=1, dtype=np.float32)
        columns = np.concatenate([self._members[parents], anywhere], axis=1)
        borders = np.arange(0, columns.size + 1, columns.shape[1])
        shape = (BLOCK, len(self._real))
        drawn = csr_array((weights.ravel(), columns.ravel(), borders), shape) @ self._real
        return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def neighbourhoods(vectors: np.ndarray) -> np.ndarray:
    """Return the row of each vector followed by those of its NEIGHBOURS nearest: (n, 1 + NEIGHBOURS)."""
    indices = np.empty((len(vectors), 1 + NEIGHBOURS), np.int64)
    for first in range(0, len(vectors), _AT_ONCE):
        block = np.arange(first, min(first + _AT_ONCE, len(vectors)))
        scores = vectors[block] @ vectors.T
        scores[np.arange(len(block)), block] = -np.inf
        nearest = np.argpartition(-scores, NEIGHBOURS, axis=1)[:, :NEIGHBOURS]
        indices[block] = np.concatenate([block[:, None], np.sort(nearest, axis=1)], axis=1)
    return indices


def synthetic_questions(
    vectors: SyntheticVectors, real: RealVectors, count: int, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Return `count` questions (count, d), and for each the row of the synthetic passage that it belongs to.

    The rows are in up to eight blocks, spread over the corpus. There are fewer questions if these blocks have
    too few passages with questions.
    """
    answers: dict[int, list[int]] = {}
    for question, gold in enumerate(real.gold):
        for row in gold:
            answers.setdefault(row, []).append(question)
    generator = np.random.default_rng([seed, len(vectors)])
    blocks = math.ceil(len(vectors) / BLOCK)
    chosen = np.unique(np.linspace(0, blocks - 1, min(8, blocks)).astype(int)).tolist()
    questions, rows = [], []
    for number, block in enumerate(chosen):
        quota = (number + 1) * count // len(chosen)
        first = block * BLOCK
        parents = vectors.parents(block)[: len(vectors) - first]
        children = vectors[first : first + len(parents)]
        for index in generator.permutation(np.flatnonzero(np.isin(parents, list(answers)))).tolist():
            if len(questions) == quota:
                break
            parent = int(parents[index])
            question = real.questions[generator.choice(answers[parent])]
            questions.append(question + MOVED * (children[index] - real.passages[parent]))
            rows.append(first + index)
    moved = np.array(questions, np.float32).reshape(-1, vectors.dimension)
    return moved / np.linalg.norm(moved, axis=1, keepdims=True), np.array(rows, np.int64)
