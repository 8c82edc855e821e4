"""Fills up a dense index with invented passages, to measure search in a large index without encoding one.

    python benchmarks/filled_index.py --index indexes/minilm --passages 200000 --out indexes/minilm-200k

The passages of `--index` are kept; the new ones get random unit vectors and a hundred invented words.
Encoding real passages would take an hour on a laptop, and the speed of exact search does not depend on the
vectors. Questions still find the real passages, because random directions are not close to any question.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

import numpy as np
from tqdm import tqdm

# This folder has its own retrieval_server.py: look for packages in the project's root instead.
_here = Path(__file__).resolve().parent
sys.path[:] = [str(_here.parent)] + [entry for entry in sys.path if Path(entry).resolve() != _here]

#: Number of passages that are added at once.
_BLOCK = 8192


def fill(source: Path, out: Path, passages: int, progress: bool = True) -> None:
    """Write the index folder `out` with `passages` passages, the first of which are those of `source`.

    Raises SystemExit if `source` is not a dense Flat index with normalised vectors, or has more passages, and
    UserError if `source` cannot be read or `out` exists.
    """
    import faiss

    from retrieval_server.folder.manifest import (
        FAISS_INDEX,
        PASSAGES,
        describe_files,
        read_manifest,
        write_manifest,
    )
    from retrieval_server.folder.passages import Passage, PassageStore, PassageWriter
    from retrieval_server.folder.publication import check_target, work_folder

    manifest = read_manifest(source)
    if manifest.dense is None or manifest.dense.factory != "Flat" or not manifest.dense.encoder.normalize:
        raise SystemExit(f"error: {source}: give a dense index with --factory Flat and normalised vectors")
    if passages < manifest.count:
        raise SystemExit(f"error: --passages {passages} is less than the {manifest.count} of {source}")
    check_target(out, overwrite=False)
    draw, vectors = random.Random(0), np.random.default_rng(0)
    words = ["".join(draw.choices("aeioustrnlmdkp", k=draw.randint(2, 9))) for _ in range(30_000)]
    index = faiss.read_index(str(source / FAISS_INDEX))
    with work_folder(out) as work:
        with PassageWriter(work / PASSAGES) as writer, tqdm(total=passages, disable=not progress) as bar:
            for passage in PassageStore(source / PASSAGES):
                writer.add(passage, writer.count + 1)
            while writer.count < passages:
                bar.update(writer.count - bar.n)
                count = min(_BLOCK, passages - writer.count)
                block = vectors.standard_normal((count, index.d), dtype=np.float32)
                index.add(block / np.linalg.norm(block, axis=1, keepdims=True))
                for row in range(writer.count, writer.count + count):
                    text = f'"Filler {row}"\n{" ".join(draw.choices(words, k=100))}'
                    writer.add(Passage(f"filler-{row}", text), row + 1)
            bar.update(writer.count - bar.n)
        faiss.write_index(index, str(work / FAISS_INDEX))
        corpus = manifest.corpus.model_copy(update={"source": "filled up", "sha256": writer.sha256})
        files = describe_files(work)
        write_manifest(
            work, manifest.model_copy(update={"count": passages, "corpus": corpus, "files": files})
        )


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--index", type=Path, required=True, metavar="DIR", help="a dense Flat index")
    parser.add_argument("--passages", type=int, default=200_000, help="in all (default %(default)s)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the index folder to make")
    args = parser.parse_args(argv)
    fill(args.index, args.out, args.passages)
    return 0


if __name__ == "__main__":
    sys.exit(main())
