"""The flags of ``build_index.py import``, and what they say of the others."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_import_flags(parser: argparse.ArgumentParser) -> None:
    """Add what names a ready-made index or embeddings."""
    ready = parser.add_argument_group("import", "what was built elsewhere; row i is passage i of --corpus")
    ready.add_argument(
        "--faiss",
        type=Path,
        metavar="FILE",
        help="an inner-product index of FAISS: Flat, HNSW, IVF, ...; linked, not copied, where that can be",
    )
    ready.add_argument(
        "--embeddings",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="vectors: .npy, .fbin, or bare (.memmap, .f32, .raw); several files in their order. They become "
        "an index of --factory; Flat needs no memory for it",
    )
    ready.add_argument(
        "--trust",
        action="store_true",
        help="take ids that are not 0 to n - 1, and vectors that are unlike the encoder's (with a warning)",
    )


def check_import_flags(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """End the process with a sentence where the flags of the import do not fit the others."""
    if args.step != "import":
        if args.faiss or args.embeddings or args.trust:
            parser.error("--faiss, --embeddings and --trust belong to: build_index.py import ...")
        return
    if (args.faiss is None) == (args.embeddings is None):
        parser.error("import needs either --faiss FILE or --embeddings FILE ...")
    if args.skip_bad_rows:
        parser.error("--skip-bad-rows: a row left out would shift all vectors behind it; repair the corpus")
    if args.faiss and (args.factory != "Flat" or args.recall_queries or args.train_sample):
        parser.error("--factory, --recall-queries, --train-sample: the index of --faiss is built already")
