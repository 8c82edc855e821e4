"""Compares the neighbourhoods of synthetic vectors with those of the real ones that they are made of.

    python retrieval_server/build_index.py --corpus FILE --out indexes/exact --backend dense --encoder minilm
    python benchmarks/vector_structure.py --index indexes/exact --passages 200000 2000000

Three questions, three tables (synthetic_vectors.py says how the vectors are made):

- as many synthetic as real vectors: are they alike? Of passages and of questions are printed the similarity
  to the 1st, 10th and 100th neighbour, the local intrinsic dimension (the maximum-likelihood estimate of
  Levina and Bickel, NIPS 2004, from the distances to the nearest 20 and 100, averaged over places as MacKay
  and Ghahramani propose), hubness (how often a passage is among the first ten of others: the skewness of
  that number, Radovanovic et al., JMLR 2010), and the spectrum (share of the variance in the first 10
  and 100 directions);
- does the generator extrapolate? It is given a quarter, and a sixteenth, of the real passages, and makes as
  many as there really are;
- what becomes of the similarities in a larger corpus (`--passages`)? Beside them are those that the real
  corpus lets expect: a k-th neighbour among N is as far as a first one among N / k, and the distance to the
  first falls with a power of the number, which is fitted to halves of the real corpus.
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

from benchmarks.synthetic_vectors import (  # noqa: E402
    RealVectors,
    SyntheticVectors,
    synthetic_questions,
)
from rag_r1.runs import markdown  # noqa: E402

QUESTIONS = _here.parents[1] / "shared" / "data" / "qa" / "hotpotqa.jsonl"
RANKS = (1, 10, 100)
ASKED = 1000  # passages whose neighbours are looked for
_ASKED_OF_LARGE = 200


def nearest(vectors, questions: np.ndarray, k: int) -> np.ndarray:
    """The `k` highest similarities of each vector (asked, d) to `vectors`, best first."""
    from retrieval_server.indexing.faiss_recall import exact_best

    return exact_best(vectors, questions, k)[0]


def local_dimension(similarities: np.ndarray, k: int) -> float:
    """The estimate from the first `k` neighbours, (points, at least k) similarities, best first."""
    distances = np.sqrt(np.maximum(2 - 2 * similarities[:, :k].astype(np.float64), 1e-12))
    inverse = np.log(distances[:, -1:] / distances[:, :-1]).mean(axis=1)
    return float(1 / inverse.mean())


def hubness(vectors: np.ndarray) -> tuple[float, float]:
    """Skewness of the number of times that a vector is among the first ten of others; the share that never
    is."""
    from retrieval_server.indexing.faiss_recall import exact_best

    _, rows = exact_best(vectors, vectors, 11)
    others = rows[rows != np.arange(len(vectors))[:, None]]
    times = np.bincount(others, minlength=len(vectors)).astype(np.float64)
    return float((((times - times.mean()) / times.std()) ** 3).mean()), float((times == 0).mean())


def spectrum(vectors: np.ndarray) -> tuple[float, float]:
    """The shares of the variance in the first 10 and the first 100 directions."""
    centred = vectors - vectors.mean(axis=0)
    values = np.linalg.eigvalsh(centred.T @ centred)[::-1]
    return float(values[:10].sum() / values.sum()), float(values[:100].sum() / values.sum())


def of_passages(vectors: np.ndarray) -> list[float]:
    """The figures of a table's column."""
    some = np.random.default_rng(0).permutation(len(vectors))[:ASKED]
    similarities = nearest(vectors, vectors[some], RANKS[-1] + 1)[:, 1:]
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


def of_questions(vectors, questions: np.ndarray, to_gold: np.ndarray) -> list[float]:
    """Returns the row of real questions; `to_gold`: similarities to the passages that answer."""
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
    """Distance of the 1st neighbour in the whole real corpus, and the dimension with which it falls.

    The dimension is that of a power law through random quarters, halves and the whole.
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
    """The similarity to the `rank`-th neighbour that the power law gives for so many passages."""
    distance = first * (real * rank / passages) ** (1 / dimension)
    return 1 - distance**2 / 2


def table(names: tuple[str, ...], columns: list[list[float]], head: list[str]) -> str:
    rows = [
        [name, *(f"{value:.3f}" for value in values)] for name, *values in zip(names, *columns, strict=True)
    ]
    return "\n".join(markdown.table(["", *head], rows))


def compare(real: RealVectors, passages: list[int]) -> None:
    """Print the three tables."""
    there = len(real.passages)
    alike = SyntheticVectors(real.passages, there)
    columns = [of_passages(real.passages), of_passages(alike[:])]
    heads = [f"real, {there:,}", f"synthetic, {there:,}"]
    order = np.random.default_rng(0).permutation(there)
    for share in (4, 16):
        few = real.passages[order[: there // share]]
        columns.append(of_passages(SyntheticVectors(few, there)[:]))
        heads.append(f"synthetic, from {len(few):,} real")
    print(table(OF_PASSAGES, columns, heads), end="\n\n", flush=True)
    pairs = [(question, row) for question, gold in enumerate(real.gold) for row in gold]
    to_gold = [real.questions[question] @ real.passages[row] for question, row in pairs]
    questions, rows = synthetic_questions(alike, real, len(real.questions))
    to_row = (questions * np.concatenate([alike[row : row + 1] for row in rows.tolist()])).sum(axis=1)
    columns = [of_questions(real.passages, real.questions, np.array(to_gold))]
    columns.append(of_questions(alike, questions, to_row))
    print(table(OF_QUESTIONS, columns, heads[:2]), end="\n\n", flush=True)
    first, dimension = power_of_first(real.passages)
    print(f"distance to the 1st of {there:,}: {first:.3f}; falls with a dimension of {dimension:.1f}")

    def rows() -> Iterator[list[str]]:
        """Yields a row of the table for each number of passages."""
        for many in passages:
            large = SyntheticVectors(real.passages, many)
            similarities = nearest(large, large[:_ASKED_OF_LARGE], RANKS[-1] + 1)[:, 1:]
            pairs = [
                (similarities[:, rank - 1].mean(), expected(there, first, dimension, many, rank))
                for rank in RANKS
            ]
            yield [f"{many:,}", *(f"{value:.3f}" for pair in pairs for value in pair)]

    head = ["passages", "1st", "expected", "10th", "expected", "100th", "expected"]
    markdown.print_table(head, rows(), "r" * len(head))


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The arguments of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--index", type=Path, required=True, metavar="DIR", help="an exact dense index")
    parser.add_argument(
        "--questions", type=Path, default=QUESTIONS, help="JSONL with 'question' and 'supporting_ids'"
    )
    parser.add_argument("--passages", type=int, nargs="*", default=[100_000], help="(default %(default)s)")
    args = parser.parse_args(argv)
    if not args.questions.is_file():
        parser.error(f"{args.questions}: no such file; give your questions with --questions FILE")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    compare(RealVectors.of_index(args.index, args.questions), args.passages)
    return 0


if __name__ == "__main__":
    sys.exit(main())
