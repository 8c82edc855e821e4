"""Vectors in any number whose neighbourhoods are those of a real corpus. Read by other benchmarks.

How well an approximate index finds neighbours depends on how near they are, compared with everything else.
Independent random vectors of 384 dimensions are all equally far from each other, which no text is. So a
synthetic vector here is made of real ones. It is a combination of

- a real passage, its *parent*, drawn at random, with the weight `KEPT`;
- the mean of the parent and its `NEIGHBOURS` nearest passages, with the rest of the weight;
- a random vector with the covariance of that neighbourhood: the members' differences from their mean, each
  times a normal number. Its share of the variance is what the parent gave up, so that the neighbourhood keeps
  its own; it lies in the few dimensions that the neighbours span, as real passages locally do;
- differences of two pairs of passages from anywhere, times a number between 0 and `SPREAD` that is another
  for each vector: some passages are near to many, others lie apart;

and is divided by its length. So direction, spread and density are inherited place by place, and a corpus that
is a thousand times as large is that much denser everywhere. The three constants were fitted by hand to the
9,756 passages of the HotpotQA corpus in MiniLM; benchmarks/vector_structure.py compares the two.

A synthetic question is a real one that has moved with a passage that answers it: if a synthetic passage's
parent is the gold passage of a question, the question is moved by `MOVED` of the difference between the
two, so that it remains about as near to the new passage as it was to the old.

Rows are drawn in blocks, each with its own seed: a row is the same in every slice and in a corpus of any
size, and no more than a block is in memory.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

#: Rows of one seed.
BLOCK = 16_384
NEIGHBOURS = 32
KEPT = 0.6
SPREAD = 0.5
MOVED = 0.8
_AT_ONCE = 1024  # real vectors whose neighbours are looked for at once


@dataclass(frozen=True)
class RealVectors:
    """A real corpus: `passages` (n, d), `questions` (m, d), float32 of length 1; `gold[i]`: the rows of
    the passages that answer question `i`."""

    passages: np.ndarray
    questions: np.ndarray
    gold: list[list[int]]

    @classmethod
    def of_index(cls, folder: Path, questions: Path) -> RealVectors:
        """From an exact dense index, whose encoder encodes the questions: JSONL with `question` and
        `supporting_ids`. Raises SystemExit for an index of another kind."""
        import faiss

        from retrieval_server.encode.encoder import Encoder
        from retrieval_server.folder.manifest import FAISS_INDEX, PASSAGES, read_manifest
        from retrieval_server.folder.passages import PassageStore

        manifest = read_manifest(folder)
        if manifest.dense is None or manifest.dense.factory != "Flat" or not manifest.dense.encoder.normalize:
            raise SystemExit(f"error: {folder}: give an exact dense index of normalised vectors")
        passages = faiss.read_index(str(folder / FAISS_INDEX)).reconstruct_n(0, manifest.count)
        lines = [json.loads(line) for line in questions.read_text(encoding="utf-8").splitlines() if line]
        row_of = {passage.id: row for row, passage in enumerate(PassageStore(folder / PASSAGES))}
        encoder = Encoder.open(manifest.dense.encoder, None, "cpu", "float32")
        vectors = encoder.encode_queries([line["question"] for line in lines])
        gold = [[row_of[name] for name in line["supporting_ids"] if name in row_of] for line in lines]
        return cls(passages, vectors, gold)


class SyntheticVectors:
    """`rows` vectors like the `real` ones (n, d); `vectors[a:b]` is a float32 array (b - a, d).

    Raises ValueError if there are too few real vectors to have neighbours.
    """

    def __init__(self, real: np.ndarray, rows: int, seed: int = 0):
        if len(real) <= NEIGHBOURS:
            raise ValueError(f"{len(real)} real vectors; more than {NEIGHBOURS} are needed")
        self.dimension = real.shape[1]
        self._real = np.ascontiguousarray(real, np.float32)
        self._rows, self._seed = rows, seed
        self._members = neighbourhoods(self._real)
        self._drawn: tuple[int, np.ndarray] = (-1, self._real[:0])  # the last block, for reading in order

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, rows: slice) -> np.ndarray:
        """The vectors of a slice of step 1, (rows, dimension)."""
        start, stop, step = rows.indices(len(self))
        if step != 1:
            raise IndexError("vectors are drawn in slices of step 1")
        parts = [np.empty((0, self.dimension), np.float32)]
        for block in range(start // BLOCK, math.ceil(max(start, stop) / BLOCK)):
            first = block * BLOCK
            parts.append(self._block(block)[max(start - first, 0) : max(stop - first, 0)])
        return np.concatenate(parts)

    def parents(self, block: int) -> np.ndarray:
        """The real passage that each row of a block was made from, (BLOCK,)."""
        return self._generator(block).integers(0, len(self._real), BLOCK)

    def _generator(self, block: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, block])

    def _block(self, block: int) -> np.ndarray:
        if self._drawn[0] != block:
            self._drawn = (block, self._draw(block))
        return self._drawn[1]

    def _draw(self, block: int) -> np.ndarray:
        """The vectors of a block: sums of real ones with neighbours and random others, of length 1."""
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
        of = np.concatenate([self._members[parents], anywhere], axis=1)
        borders = np.arange(0, of.size + 1, of.shape[1])
        drawn = csr_array((weights.ravel(), of.ravel(), borders), (BLOCK, len(self._real))) @ self._real
        return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def neighbourhoods(vectors: np.ndarray) -> np.ndarray:
    """Each vector's own row and those of its NEIGHBOURS nearest, in this order, (n, 1 + NEIGHBOURS)."""
    indices = np.empty((len(vectors), 1 + NEIGHBOURS), np.int64)
    for first in range(0, len(vectors), _AT_ONCE):
        block = np.arange(first, min(first + _AT_ONCE, len(vectors)))
        scores = vectors[block] @ vectors.T
        scores[np.arange(len(block)), block] = -np.inf
        nearest = np.argpartition(-scores, NEIGHBOURS, axis=1)[:, :NEIGHBOURS]
        indices[block] = np.concatenate([block[:, None], np.sort(nearest, axis=1)], axis=1)
    return indices


def synthetic_questions(
    vectors: SyntheticVectors, real: RealVectors, many: int, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """`many` questions (many, d), and for each the row of the synthetic passage that it moved with.

    They belong to rows of up to eight blocks from all over the corpus. Fewer than `many` are returned for a
    corpus that has no more passages with questions.
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
        quota = (number + 1) * many // len(chosen)
        first = block * BLOCK
        parents = vectors.parents(block)[: len(vectors) - first]
        children = vectors[first : first + len(parents)]
        for place in generator.permutation(np.flatnonzero(np.isin(parents, list(answers)))).tolist():
            if len(questions) == quota:
                break
            parent = int(parents[place])
            question = real.questions[generator.choice(answers[parent])]
            questions.append(question + MOVED * (children[place] - real.passages[parent]))
            rows.append(first + place)
    moved = np.array(questions, np.float32).reshape(-1, vectors.dimension)
    return moved / np.linalg.norm(moved, axis=1, keepdims=True), np.array(rows, np.int64)
