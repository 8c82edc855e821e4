"""Compares the neighbourhoods of synthetic vectors with those of the real vectors from which they are made.

    python retrieval_server/build_index.py --corpus FILE --out indexes/exact --backend dense --encoder minilm
    python benchmarks/vector_structure.py --index indexes/exact --passages 200000 2000000

The tables answer three questions (synthetic_vectors.py explains how the vectors are made):

- Does a synthetic corpus of the same size resemble the real one? For passages and for questions the table has
  the similarity to the 1st, 10th and 100th neighbour; the local intrinsic dimension (the maximum-likelihood
  estimate of Levina and Bickel, NIPS 2004, from the distances to the nearest 20 and 100, averaged over places
  as MacKay and Ghahramani propose); hubness (the skewness of the number of times that a passage is among the
  first ten of others, Radovanovic et al., JMLR 2010); and the spectrum (the share of the variance in the
  first 10 and 100 directions).
- Does the generator extrapolate? It gets a quarter, or a sixteenth, of the real passages, and makes as many
  as the real corpus has.
- How do the similarities change in a larger corpus (`--passages`)? The table also has the values that the
  real corpus predicts: a k-th neighbour among N is as far as a first one among N / k, and the distance to the
  first neighbour falls with a power of the number, which is fitted to quarters and halves of the real corpus.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

# This folder has its own retrieval_server.py: look for packages in the project's root instead.
_here = Path(__file__).resolve().parent
sys.path[:] = [str(_here.parent)] + [entry for entry in sys.path if Path(entry).resolve() != _here]

from benchmarks.retrieval_load import QUESTIONS  # noqa: E402
from benchmarks.synthetic_vectors import (  # noqa: E402
    RealVectors,
    SyntheticVectors,
    synthetic_questions,
)
from rag_r1.runs import markdown  # noqa: E402

#: Vectors (n, d): an array, or drawn when they are read.
Vectors = np.ndarray | SyntheticVectors
#: The neighbours whose similarity is measured.
RANKS = (1, 10, 100)
#: Number of passages whose neighbours are searched: in a corpus of the real size, and in a larger one.
ASKED, _ASKED_OF_LARGE = 1000, 200


def nearest(vectors: Vectors, questions: np.ndarray, k: int) -> np.ndarray:
    """Return the `k` highest similarities of each question (m, d) to `vectors`, best first: (m, k)."""
    from retrieval_server.indexing.faiss_recall import exact_best

    return exact_best(vectors, questions, k)[0]


def local_dimension(similarities: np.ndarray, k: int) -> float:
    """Estimate the local intrinsic dimension from the first `k` neighbours.

    `similarities` has at least k columns, best first.
    """
    distances = np.sqrt(np.maximum(2 - 2 * similarities[:, :k].astype(np.float64), 1e-12))
    inverse = np.log(distances[:, -1:] / distances[:, :-1]).mean(axis=1)
    return float(1 / inverse.mean())


def hubness(vectors: np.ndarray) -> tuple[float, float]:
    """Return the skewness of the number of times that a vector is among the first ten of others.

    Also returns the share of vectors that never are.
    """
    from retrieval_server.indexing.faiss_recall import exact_best

    _, rows = exact_best(vectors, vectors, 11)
    others = rows[rows != np.arange(len(vectors))[:, None]]
    times = np.bincount(others, minlength=len(vectors)).astype(np.float64)
    return float((((times - times.mean()) / times.std()) ** 3).mean()), float((times == 0).mean())


def spectrum(vectors: np.ndarray) -> tuple[float, float]:
    """Return the shares of the variance in the first 10 and the first 100 directions."""
    centred = vectors - vectors.mean(axis=0)
    values = np.linalg.eigvalsh(centred.T @ centred)[::-1]
    return float(values[:10].sum() / values.sum()), float(values[:100].sum() / values.sum())


def of_passages(vectors: np.ndarray) -> list[float]:
    """Return the figures of passages, in the order of OF_PASSAGES."""
    sample = np.random.default_rng(0).permutation(len(vectors))[:ASKED]
    similarities = nearest(vectors, vectors[sample], RANKS[-1] + 1)[:, 1:]
    near = [float(similarities[:, rank - 1].mean()) for rank in RANKS]
    spread = [float(similarities[:, 0].std()), float(similarities[:, 99].std())]
    mean = float(np.linalg.norm(vectors.mean(axis=0)) ** 2)
    dimensions = [local_dimension(similarities, 20), local_dimension(similarities, 100)]
    return [*near, *spread, mean, *dimensions, *hubness(vectors), *spectrum(vectors)]


OF_PASSAGES = (
    "similarity to the 1st neighbour, mean",
    "... to the 10th",
    "... to the 100th",
    "1st: standard deviation",
    "100th: standard deviation",
    "similarity of any two, mean",
    "local intrinsic dimension, 20 neighbours",
    "... 100 neighbours",
    "hubness: skewness",
    "never among the first ten",
    "variance in 10 directions",
    "... in 100",
)


def of_questions(vectors: Vectors, questions: np.ndarray, to_gold: np.ndarray) -> list[float]:
    """Return the figures of questions, in the order of OF_QUESTIONS.

    `to_gold` has the similarities of the questions to the passages that answer them.
    """
    similarities = nearest(vectors, questions, RANKS[-1])
    near = [float(similarities[:, rank - 1].mean()) for rank in RANKS]
    return [*near, float(to_gold.mean()), float(to_gold.std()), local_dimension(similarities, 100)]


OF_QUESTIONS = (
    "question: similarity to the 1st passage, mean",
    "... to the 10th",
    "... to the 100th",
    "... to a gold passage, mean",
    "... to a gold passage, standard deviation",
    "local intrinsic dimension, 100 passages",
)


def power_of_first(real: np.ndarray) -> tuple[float, float]:
    """Return the distance of the 1st neighbour in the real corpus, and the dimension with which it falls.

    The dimension is that of a power law, fitted to a random quarter, a half and the whole.
    """
    order = np.random.default_rng(0).permutation(len(real))
    sizes = [len(real) // 4, len(real) // 2, len(real)]
    distances = []
    for size in sizes:
        part = real[order[:size]]
        similarities = nearest(part, part[:ASKED], 2)[:, 1]
        distances.append(np.sqrt(2 - 2 * similarities.astype(np.float64).mean()))
    slope = np.polyfit(np.log(sizes), np.log(distances), 1)[0]
    return float(distances[-1]), float(-1 / slope)


def expected(real: int, first: float, dimension: float, passages: int, rank: int) -> float:
    """Return the similarity to the `rank`-th neighbour that the power law predicts for so many passages."""
    distance = first * (real * rank / passages) ** (1 / dimension)
    return 1 - distance**2 / 2


def table(names: tuple[str, ...], columns: list[list[float]], head: list[str]) -> str:
    """Return a Markdown table of these columns, with a name for each row."""
    rows = [
        [name, *(f"{value:.3f}" for value in values)] for name, *values in zip(names, *columns, strict=True)
    ]
    return "\n".join(markdown.table(["", *head], rows))


def compare(real: RealVectors, passages: list[int]) -> None:
    """Print the three tables; `passages` are the sizes of the larger corpora."""
    count = len(real.passages)
    synthetic = SyntheticVectors(real.passages, count)
    columns = [of_passages(real.passages), of_passages(synthetic[:])]
    heads = [f"real, {count:,}", f"synthetic, {count:,}"]
    order = np.random.default_rng(0).permutation(count)
    for share in (4, 16):
        sample = real.passages[order[: count // share]]
        columns.append(of_passages(SyntheticVectors(sample, count)[:]))
        heads.append(f"synthetic, from {len(sample):,} real")
    print(table(OF_PASSAGES, columns, heads), end="\n\n", flush=True)
    pairs = [(question, row) for question, gold in enumerate(real.gold) for row in gold]
    to_gold = [real.questions[question] @ real.passages[row] for question, row in pairs]
    questions, rows = synthetic_questions(synthetic, real, len(real.questions))
    to_row = (questions * np.concatenate([synthetic[row : row + 1] for row in rows.tolist()])).sum(axis=1)
    columns = [of_questions(real.passages, real.questions, np.array(to_gold))]
    columns.append(of_questions(synthetic, questions, to_row))
    print(table(OF_QUESTIONS, columns, heads[:2]), end="\n\n", flush=True)
    first, dimension = power_of_first(real.passages)
    print(f"distance to the 1st of {count:,}: {first:.3f}; falls with a dimension of {dimension:.1f}")

    def large_rows() -> Iterator[list[str]]:
        """Yield a row of the table for each number of passages."""
        for size in passages:
            large = SyntheticVectors(real.passages, size)
            similarities = nearest(large, large[:_ASKED_OF_LARGE], RANKS[-1] + 1)[:, 1:]
            pairs = [
                (similarities[:, rank - 1].mean(), expected(count, first, dimension, size, rank))
                for rank in RANKS
            ]
            yield [f"{size:,}", *(f"{value:.3f}" for pair in pairs for value in pair)]

    head = ["passages", "1st", "expected", "10th", "expected", "100th", "expected"]
    markdown.print_table(head, large_rows(), "r" * len(head))


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the arguments of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--index", type=Path, required=True, metavar="DIR", help="an exact dense index")
    parser.add_argument(
        "--questions", type=Path, default=QUESTIONS, help="JSONL with 'question' and 'supporting_ids'"
    )
    parser.add_argument("--passages", type=int, nargs="*", default=[100_000], help="(default 100000)")
    args = parser.parse_args(argv)
    if not args.questions.is_file():
        parser.error(f"{args.questions}: no such file; give your questions with --questions FILE")
    return args


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark and print its tables; returns the exit status."""
    args = parse_args(argv)
    compare(RealVectors.of_index(args.index, args.questions), args.passages)
    return 0


if __name__ == "__main__":
    sys.exit(main())
