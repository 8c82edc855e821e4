"""Builds a preset's index of millions of passages in parts, splits it into shards, searches and serves it.

    python benchmarks/large_preset.py --real indexes/exact --work outputs/large --passages 20000000
    python benchmarks/large_preset.py --real indexes/exact --work outputs/large --passages 20000000 --report

The vectors are synthetic, with neighbourhoods like those of the real vectors in `--real`, an exact index
(synthetic_vectors.py); the texts are a few invented words. Apart from the encoding, all steps use the
project's commands and code. Each step is a separate process, whose wall and processor seconds and peak
resident memory are measured from outside:

- the corpus is written, and read by `build_index.py passages`;
- `--parts` parts are encoded: their vectors are drawn, and stored in the type of the preset's rows;
- `merge` trains the index, adds the vectors, and chooses by the real questions how many cells are searched;
- `shard_index.py` splits the index;
- the synthetic questions are searched exactly in the 32-bit vectors, which are drawn again block by block;
  this is the reference for recall;
- the index, and its shards with merged results, are searched for these questions, one by one;
- a server is started and gets real questions over HTTP, one by one.

The last two steps run under a limit of memory that includes the page cache (`--limit-gb`, see
memory_limit.py). In the beginning the index files are not in the page cache, so the first questions wait for
the disk. Then the index is read ahead, and the other questions wait only for the rows of their candidates;
when all questions are repeated, these are in the cache, too. The index is also searched with the rows dropped
from the cache before every question, which shows the latency of the disk, and with other numbers of cells and
of candidates.

A finished step is not repeated, and a build that was killed continues when the command is repeated. Its
seconds are then those of all attempts, except those that ended because this process was killed. `--report`
prints the measurements so far. At the end, or with `--report`, the script estimates the time for `--estimate`
passages at these rates: steps grow in proportion to the passages, and merging lies between the growth of
adding and that of training.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

# This folder has its own retrieval_server.py: look for packages in the project's root instead.
_here = Path(__file__).resolve().parent
ROOT = _here.parent
sys.path[:] = [str(ROOT)] + [entry for entry in sys.path if Path(entry).resolve() != _here]

from benchmarks.measured_steps import limited, measure, spent_by_children  # noqa: E402
from benchmarks.retrieval_load import QUESTIONS, read_questions  # noqa: E402

if TYPE_CHECKING:
    from benchmarks.synthetic_vectors import SyntheticVectors
    from retrieval_server.folder.manifest import EncoderSection

BUILD = ROOT / "retrieval_server" / "build_index.py"
SHARD = ROOT / "retrieval_server" / "shard_index.py"
#: Passages of a search, and words of a passage.
K, WORDS = 10, 8


class Work:
    """The files of a run, and the measurements of its steps so far.

    `results` has a measurement for each step, by its name.
    """

    def __init__(self, folder: Path, n_parts: int):
        """`n_parts` is the number of parts in which the passages are encoded."""
        self.folder = folder
        self.corpus, self.parts = folder / "corpus", folder / "parts"
        self.index, self.shards = folder / "index", folder / "shards"
        self.exact, self.question_file = folder / "exact.npz", folder / "questions.txt"
        self.n_parts = n_parts
        self._file = folder / "results.json"
        self.results: dict = json.loads(self._file.read_text()) if self._file.exists() else {}

    def keep(self, name: str, value: object) -> None:
        """Record a measurement, also in the file, from which the next run of the command reads it."""
        self.results[name] = value
        part = self._file.with_suffix(".part")
        part.write_text(json.dumps(self.results, indent=1), encoding="utf-8")
        part.replace(self._file)

    def write_questions(self, path: Path) -> None:
        """Write the question file, which has one line for each question in the JSONL file `path`."""
        lines = [" ".join(question.split()) + "\n" for question in read_questions(path)]
        self.question_file.write_text("".join(lines), encoding="utf-8")

    def questions(self) -> list[str]:
        """Return the real questions."""
        return self.question_file.read_text(encoding="utf-8").splitlines()

    def finished(self, name: str) -> bool:
        """Return whether a step is recorded as finished."""
        return name in self.results and self.results[name]["done"]

    def step(self, name: str, *command: object, has_result: bool) -> None:
        """Run and measure a command, unless its result exists (`has_result`).

        The seconds of failed attempts are added. A result that exists without a record, because this process
        was killed, is kept and marked as not measured. Raises SystemExit if the command fails.
        """
        earlier = self.results.get(name, {"wall": 0.0, "cpu": 0.0, "peak": 0.0, "done": False})
        if has_result:
            if not earlier["done"]:
                self.keep(name, {**earlier, "done": True, "measured": False})
            return
        started, cpu_before = time.perf_counter(), spent_by_children()
        try:
            step = measure(name, *command)
        except BaseException:
            wall = earlier["wall"] + time.perf_counter() - started
            cpu = earlier["cpu"] + spent_by_children() - cpu_before
            self.keep(name, {**earlier, "wall": wall, "cpu": cpu, "done": False})
            raise
        wall, cpu = earlier["wall"] + step.wall, earlier["cpu"] + step.cpu
        self.keep(name, {"wall": wall, "cpu": cpu, "peak": max(earlier["peak"], step.peak), "done": True})


def write_corpus(folder: Path, passages: int) -> None:
    """Write a JSONL file of numbered titles and a few words, under another name until it is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    words = ["".join(draw.choices("aeioustrnlmdkp", k=draw.randint(2, 9))) for _ in range(30_000)]
    texts = [" ".join(draw.choices(words, k=WORDS)) for _ in range(50_000)]
    part = folder / "corpus.part"
    with part.open("w", encoding="utf-8") as stream:
        for row in range(passages):
            stream.write(f'{{"id": "{row}", "contents": "\\"{row}\\"\\n{draw.choice(texts)}"}}\n')
    part.replace(folder / "corpus.jsonl")


class SyntheticEncoder:
    """An encoder that returns synthetic vectors; the title of a passage is the row of its vector."""

    def __init__(self, section: EncoderSection, vectors: SyntheticVectors):
        self.section = section
        self._vectors = vectors

    def encode_passages(self, passages: Sequence[str], batch_size: int = 64) -> np.ndarray:
        """Return the vectors of consecutive passages, float32: (passages, dimension)."""
        first = int(passages[0].partition("\n")[0].strip('"'))
        return self._vectors[first : first + len(passages)]


def encode(args: argparse.Namespace, work: Work) -> None:
    """Encode the part `--part` of the passages."""
    from retrieval_server.folder.manifest import read_manifest
    from retrieval_server.indexing.options import BuildOptions
    from retrieval_server.indexing.parts import EncodingPart, encode_part
    from retrieval_server.indexing.presets import row_type

    section = read_manifest(args.real).dense.encoder
    options = BuildOptions(corpus=(), out=work.index, backend="dense", preset=args.preset)
    encoder = SyntheticEncoder(section, synthetic(args))
    encode_part(work.parts, EncodingPart(args.part, work.n_parts), encoder, kind=row_type(options))


def synthetic(args: argparse.Namespace) -> SyntheticVectors:
    """Return the synthetic vectors of the corpus."""
    import faiss

    from benchmarks.synthetic_vectors import SyntheticVectors
    from retrieval_server.folder.manifest import FAISS_INDEX

    real = faiss.read_index(str(args.real / FAISS_INDEX))
    return SyntheticVectors(real.reconstruct_n(0, real.ntotal), args.passages)


def search_exactly(args: argparse.Namespace, work: Work) -> None:
    """Write the synthetic questions and their ten best rows by exact search of the 32-bit vectors."""
    from benchmarks.synthetic_vectors import RealVectors, synthetic_questions
    from retrieval_server.indexing.faiss_recall import exact_best

    real = RealVectors.of_index(args.real, args.questions)
    vectors = synthetic(args)
    questions, _ = synthetic_questions(vectors, real, args.queries)
    scores, rows = exact_best(vectors, questions, K)
    with work.exact.with_suffix(".part").open("wb") as stream:
        np.savez(stream, queries=questions, rows=rows, scores=scores)
    work.exact.with_suffix(".part").replace(work.exact)


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the arguments of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--real", type=Path, required=True, metavar="DIR", help="an exact dense index")
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="folder for everything")
    parser.add_argument("--passages", type=int, default=1_000_000, help="(default %(default)s)")
    parser.add_argument("--preset", choices=["small", "balanced"], default="small", help="(default small)")
    parser.add_argument("--parts", type=int, default=4, help="to encode (default %(default)s)")
    parser.add_argument("--shards", type=int, default=2, help="(default %(default)s)")
    parser.add_argument("--queries", type=int, default=500, help="synthetic questions (default %(default)s)")
    parser.add_argument("--limit-gb", type=float, default=8.0, help="of memory, in GiB (default %(default)g)")
    parser.add_argument("--estimate", type=int, default=20_000_000, help="passages (default %(default)s)")
    parser.add_argument("--report", action="store_true", help="print the measurements so far, run nothing")
    parser.add_argument(
        "--questions", type=Path, default=QUESTIONS, help="JSONL with 'question' and 'supporting_ids'"
    )
    parser.add_argument(
        "--step", choices=["corpus", "encode", "exact", "search", "serve"], help=argparse.SUPPRESS
    )
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if not args.questions.is_file():
        parser.error(f"{args.questions}: no such file; give your questions with --questions FILE")
    if min(args.passages, args.parts, args.shards, args.queries) < 1:
        parser.error("--passages, --parts, --shards and --queries must be at least 1")
    for name in ("real", "work", "questions"):  # absolute, since the steps run in another working directory
        setattr(args, name, getattr(args, name).resolve())
    return args


def run_steps(args: argparse.Namespace, work: Work) -> None:
    """Run all steps that are not finished."""
    from benchmarks import large_search

    arguments = (Path(__file__).resolve(), "--real", args.real, "--work", args.work)
    arguments += ("--passages", args.passages, "--preset", args.preset, "--parts", args.parts)
    arguments += ("--shards", args.shards, "--queries", args.queries)
    arguments += ("--questions", args.questions, "--limit-gb", args.limit_gb, "--step")
    work.write_questions(args.questions)
    text = work.corpus / "corpus.jsonl"
    work.step("corpus", *arguments, "corpus", has_result=text.exists() or work.parts.exists())
    passages = (BUILD, "passages", "--corpus", text, "--parts", work.parts)
    work.step("passages", *passages, has_result=(work.parts / "corpus.json").exists())
    for part in range(1, work.n_parts + 1):
        name = f"part {part} of {work.n_parts}"
        # A part that was interrupted resumes by itself, so only the record tells whether it is finished.
        work.step(name, *arguments, "encode", "--part", part, has_result=work.finished(name))
    merge = (BUILD, "merge", "--parts", work.parts, "--preset", args.preset, "--out", work.index)
    merge += ("--encoder", "minilm", "--recall-queries", work.question_file)
    work.step("merge", *merge, has_result=work.index.exists())
    split = (SHARD, "--index", work.index, "--shards", args.shards, "--out", work.shards)
    work.step("split", *split, has_result=work.shards.exists())
    work.step("exact search", *arguments, "exact", has_result=work.exact.exists())
    for way in large_search.WAYS:
        if way not in work.results:
            work.keep(way, limited(args.limit_gb, *arguments, "search", "--way", way))
    if "serve" not in work.results:
        work.keep("serve", limited(args.limit_gb, *arguments, "serve"))


def identity(args: argparse.Namespace) -> dict:
    """Return the settings that all measurements in a folder must have in common."""
    names = ("passages", "preset", "real", "questions", "parts", "shards", "queries", "limit_gb")
    values = {name.replace("_", "-"): getattr(args, name) for name in names}
    return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}


def main(argv: list[str] | None = None) -> int:
    """Run all missing steps and print the report, or run one step as a child; returns the exit status."""
    args = parse_args(argv)
    args.work.mkdir(parents=True, exist_ok=True)
    work = Work(args.work, args.parts)
    run = identity(args)
    if (recorded := work.results.setdefault("run", run)) != run:
        other = [name for name in {**run, **recorded} if run.get(name) != recorded.get(name)]
        changes = ", ".join(f"--{name} {recorded.get(name)} instead of {run.get(name)}" for name in other)
        raise SystemExit(
            f"error: --work {args.work} was measured with {changes}: give the same, or choose another folder"
        )
    from benchmarks import large_report, large_search
    from retrieval_server.folder.manifest import read_manifest

    files = work.index, work.shards, work.exact
    steps = {
        "corpus": lambda: write_corpus(work.corpus, args.passages),
        "encode": lambda: encode(args, work),
        "exact": lambda: search_exactly(args, work),
        "search": lambda: print(json.dumps(large_search.search(*files, args.way))),
        "serve": lambda: print(json.dumps(large_search.serve(work.index, work.questions()))),
    }
    if args.step:
        steps[args.step]()
        return 0
    if not args.report:
        work.keep("run", run)
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the encoder minilm is in its package
        run_steps(args, work)
    dimension = read_manifest(args.real).dense.encoder.dimension
    print(large_report.report(work.results, work.index, dimension, args.estimate))
    return 0


if __name__ == "__main__":
    sys.exit(main())
