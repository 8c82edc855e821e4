"""Compares the encoder on a CPU with torch and with OpenVINO, in speed, recall and returned ids.

    python benchmarks/encoder_runtimes.py speed  --questions questions.jsonl --corpus corpus.jsonl.gz
    python benchmarks/encoder_runtimes.py recall --questions questions.jsonl --corpus corpus.jsonl.gz \\
        --passages 3000

Questions are JSONL with {"question", "supporting_ids": [corpus id, ...]} per line.

`speed` encodes the same texts with each runtime in turn, round by round, so that other work on the machine
affects all of them. It prints processor time: the median milliseconds per text, and the median over the
rounds of torch's time divided by that of the runtime.

`recall` encodes questions and passages, and searches exactly. It prints the share of the supporting passages
among the first k; the share of the questions with the same first three ids, in the same order, as with torch
in float32; and the number of questions whose first ten ids change if they are encoded alone instead of 64 at
once. With --passages the corpus is cut to the supporting passages and some others. With --index the passages
are not encoded: the vectors of that index, exact and in float32, replace those of torch, and only the
encodings of the questions are compared.
"""

from __future__ import annotations

import gzip
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

# This folder has its own retrieval_server.py: look for packages in the project's root instead.
_here = Path(__file__).resolve().parent
sys.path[:] = [str(_here.parent)] + [entry for entry in sys.path if Path(entry).resolve() != _here]

import numpy as np  # noqa: E402

from rag_r1.runs.markdown import print_table  # noqa: E402
from retrieval_server.command_line import parse  # noqa: E402
from retrieval_server.encode.cpu_settings import set_mkl_reproducible  # noqa: E402
from retrieval_server.options import AtLeastOne, Flag, Options  # noqa: E402

if TYPE_CHECKING:
    from retrieval_server.encode.encoder import Encoder

#: Name -> data type and runtime (None: torch); all others are compared with the first.
_ENCODERS = {
    "torch float32": ("float32", None),
    "OpenVINO float32": ("float32", "openvino"),
    "OpenVINO bfloat16": ("bfloat16", "openvino"),
    "OpenVINO int8": ("int8", "openvino"),
}
#: The loaded encoders by name, the first of which is the reference.
Encoders = dict[str, "Encoder"]
_KS = (1, 3, 5, 10)
#: Number of questions that `recall` encodes at once.
_BATCH = 64


class Command(Options):
    """The options of this script."""

    what: Annotated[Literal["speed", "recall"], Flag("what to measure", positional=True)] = "speed"
    questions: Annotated[Path, Flag("JSONL", metavar="FILE")]
    corpus: Annotated[Path, Flag(".jsonl.gz with id and contents", metavar="FILE")]
    passages: Annotated[AtLeastOne | None, Flag("cut the corpus to so many passages", metavar="N")] = None
    index: Annotated[
        Path | None, Flag("recall: an index of --corpus, with --factory Flat", metavar="DIR")
    ] = None
    encoder: Annotated[str, Flag("a model folder, or minilm", metavar="NAME_OR_PATH")] = "minilm"
    threads: Annotated[AtLeastOne, Flag("threads of the encoder")] = 1
    rounds: Annotated[AtLeastOne, Flag("speed: rounds in which all encoders take turns")] = 7
    encoder_cache: Annotated[Path | None, Flag("where conversions are kept", metavar="DIR")] = None


def load(command: Command) -> Encoders:
    """Load each encoder that this machine supports, by name; the others are reported and left out."""
    import torch

    from retrieval_server.encode.encoder import Encoder
    from retrieval_server.encode.options import EncoderOptions, openvino_options
    from retrieval_server.errors import UserError

    torch.set_num_threads(command.threads)
    loaded: Encoders = {}
    for name, (dtype, runtime) in _ENCODERS.items():
        cache = command.encoder_cache if runtime == "openvino" else None
        openvino = openvino_options(dtype, runtime, "cpu", cache, command.threads)
        try:
            encoder = Encoder.create(command.encoder, EncoderOptions(), "cpu", dtype, openvino)
        except UserError as error:
            print(f"without {name}: {error}")
            continue
        print(f"{name}: guarantee {encoder.probed.guarantee}", flush=True)
        loaded[name] = encoder
    return loaded


def speed(encoders: Encoders, questions: list[str], passages: list[str], rounds: int) -> None:
    """Print the milliseconds per text of each encoder, and torch's time divided by its time."""
    works: dict[str, tuple[list[str], Callable[[Encoder, list[str]], object]]] = {
        "one question": (questions[:16], lambda encoder, texts: in_batches(encoder, texts, 1)),
        "8 questions": (questions[:64], lambda encoder, texts: in_batches(encoder, texts, 8)),
        "64 questions": (questions[:128], lambda encoder, texts: in_batches(encoder, texts, 64)),
        "32 passages": (passages[:32], lambda encoder, texts: encoder.encode_passages(texts, 32)),
    }
    times: dict[tuple[str, str], list[float]] = {}
    for round_number in range(rounds + 1):  # round 0 warms up
        for size, (texts, work) in works.items():
            for name, encoder in encoders.items():
                started = time.process_time()
                work(encoder, texts)
                if round_number:
                    spent = 1000 * (time.process_time() - started) / len(texts)
                    times.setdefault((size, name), []).append(spent)
    rows = []
    for size in works:
        cells = []
        for name in encoders:
            pairs = zip(times[size, next(iter(encoders))], times[size, name], strict=True)
            ratio = statistics.median(first / this for first, this in pairs)
            cells.append(f"{statistics.median(times[size, name]):.2f} ms, {ratio:.2f} x")
        rows.append([f"{size} at once", *cells])
    print_table(["", *encoders], rows)


def in_batches(encoder: Encoder, texts: list[str], size: int) -> np.ndarray:
    """Encode texts as queries, `size` at a time: (texts, dimensions)."""
    return np.concatenate([encoder.encode_queries(texts[i : i + size]) for i in range(0, len(texts), size)])


def first_ids(queries: np.ndarray, passages: np.ndarray) -> np.ndarray:
    """Return the rows of the ten best passages of each query, best first, by exact search in float64.

    The result has the shape (queries, 10).
    """
    scores = queries.astype(np.float64) @ passages.astype(np.float64).T
    return np.argsort(-scores, axis=1, kind="stable")[:, : max(_KS)]


def vectors_of(index: Path, corpus: dict[str, str]) -> np.ndarray:
    """Return the vectors of these passages in an index, in the order of `corpus`."""
    from retrieval_server.folder.manifest import FAISS_INDEX, PASSAGES
    from retrieval_server.folder.passages import PassageStore
    from retrieval_server.search.vectors.faiss_files import open_index

    rows = {passage.id: row for row, passage in enumerate(PassageStore(index / PASSAGES))}
    return open_index(index / FAISS_INDEX).reconstruct_batch([rows[key] for key in corpus])


def recall(encoders: Encoders, rows: list[dict], corpus: dict[str, str], index: Path | None) -> None:
    """Print the recall of each encoder, and how many questions get the same ids as with the first encoder.

    `rows` are questions with `supporting_ids`, and `corpus` has the contents of the passages by id.
    """
    row_of, questions = {key: row for row, key in enumerate(corpus)}, [row["question"] for row in rows]
    golds = [{row_of[key] for key in row["supporting_ids"]} for row in rows]
    query_vectors, alone, stored = {}, {}, {}
    for name, encoder in encoders.items():
        query_vectors[name] = in_batches(encoder, questions, _BATCH)
        alone[name] = in_batches(encoder, questions, 1)
        if index is None:
            stored[name] = encoder.encode_passages(list(corpus.values()), 32)
        print(f"{name}: encoded", flush=True)
    first = next(iter(encoders))
    if index is not None:
        stored[first] = vectors_of(index, corpus)
    reference = first_ids(query_vectors[first], stored[first])
    columns = [*(f"recall@{k}" for k in _KS), "the same first 3", "ids that change with the batch"]
    print(f"{len(questions)} questions, {len(corpus)} passages")
    table_rows = []
    pairs = [(encoder_name, encoder_name) for encoder_name in stored] + [
        (encoder_name, first) for encoder_name in encoders if encoder_name != first
    ]
    for of_questions, of_passages in pairs:
        nearest = first_ids(query_vectors[of_questions], stored[of_passages])
        shares = [
            np.mean([len(gold & set(row[:k])) / len(gold) for gold, row in zip(golds, nearest, strict=True)])
            for k in _KS
        ]
        same = (nearest[:, :3] == reference[:, :3]).all(axis=1).mean()
        changed = (nearest != first_ids(alone[of_questions], stored[of_passages])).any(axis=1).sum()
        cells = [*(f"{share:.1%}" for share in shares), f"{same:.1%}", f"{changed} of {len(questions)}"]
        table_rows.append([of_questions, of_passages, *cells])
    print_table(["questions in", "passages in", *columns], table_rows, "ll" + "r" * len(columns))


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark and print its tables; returns the exit status."""
    command = parse(Command, __doc__, argv)
    set_mkl_reproducible()
    with command.questions.open(encoding="utf-8") as lines:
        rows = [row for row in map(json.loads, lines) if row["supporting_ids"]]
    with gzip.open(command.corpus, "rt", encoding="utf-8") as stream:
        corpus = {row["id"]: row["contents"] for row in map(json.loads, stream)}
    if command.passages is not None:
        needed = {key for row in rows for key in row["supporting_ids"]}
        others = [key for key in corpus if key not in needed][: max(0, command.passages - len(needed))]
        corpus = {key: corpus[key] for key in [*sorted(needed), *others]}
    encoders = load(command)
    if command.what == "speed":
        texts = list(corpus.values())
        speed(encoders, [row["question"] for row in rows], texts, command.rounds)
    else:
        recall(encoders, rows, corpus, command.index)
    return 0


if __name__ == "__main__":
    sys.exit(main())
