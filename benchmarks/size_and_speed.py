"""Measures memory and speed of a preset's index with the size of a whole Wikipedia, at 768 dimensions.

    python benchmarks/size_and_speed.py --work outputs/whole --passages 29000000

Encoding, training and adding 29 million vectors would take days on two cores, and memory and speed depend
little on the values of the vectors. Therefore a *block* of random unit vectors is added to an index with
random centres and as many cells as the preset has at this size. Then the block is repeated as if each
repetition were other passages: codes and rows are copies, ids are not. A search compares as many codes,
fetches as many rows from as many places of the disk, and needs as much memory as with 29 million different
passages; its results mean nothing. The cells have about equal sizes. With real vectors the larger cells are
searched more often, so that more codes are compared. large_preset.py measures an index of vectors that
resemble real ones, and its recall.

The encoder has the size of BERT base (twelve layers, 768 dimensions), with random weights and the tokenizer
of `minilm`. The mean of its vectors for the questions is subtracted, so that questions search different
cells; the number of these cells is printed.

The report has the rate of adding the block; the search alone, one question at a time; and the server over
HTTP, one question at a time. In the beginning neither index nor encoder are in the page cache; then the index
has been read ahead, but the rows have not; finally the same questions are repeated. Searches and server run
under a limit of memory (`--limit-gb`), which includes the encoder and the page cache. The texts are short (67
bytes on disk); those of a Wikipedia in passages of 100 words need about 15 GB more of disk, of which only the
hits of a question are read. Finished steps are not repeated. 29 million passages need 28 GB of disk, which
`--remove` frees at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
from tqdm import tqdm

# This folder has its own retrieval_server.py: look for packages in the project's root instead.
_here = Path(__file__).resolve().parent
sys.path[:] = [str(_here.parent)] + [entry for entry in sys.path if Path(entry).resolve() != _here]

from benchmarks.large_preset import QUESTIONS, K, Work  # noqa: E402
from benchmarks.measured_steps import limited, measure  # noqa: E402
from benchmarks.repeated_block import DIMENSION, make_index  # noqa: E402

#: Number of different vectors, by default.
BLOCK = 1_000_000
#: Number of questions for the searches without a server.
ASKED = 500
WAYS = ("cold", "rows cold")


def write_encoder(folder: Path, questions: list[str], layers: int = 12) -> None:
    """Write a random BERT with `layers` layers of base size, whose vectors have mean 0 over the questions."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Pooling, Transformer
    from transformers import AutoTokenizer, BertConfig, BertModel

    from retrieval_server.encode.model_folder import resolve_model

    torch.manual_seed(0)
    bert = folder.with_name(folder.name + ".bert")
    BertModel(BertConfig(num_hidden_layers=layers)).save_pretrained(bert)
    AutoTokenizer.from_pretrained(resolve_model("minilm")[1]).save_pretrained(bert)
    modules = [Transformer(str(bert)), Pooling(DIMENSION, pooling_mode="mean")]
    plain = SentenceTransformer(modules=modules, device="cpu")
    mean = plain.encode(questions, convert_to_tensor=True).mean(0)
    centred = Dense(DIMENSION, DIMENSION, activation_function=torch.nn.Identity())
    with torch.no_grad():
        centred.linear.weight.copy_(torch.eye(DIMENSION))
        centred.linear.bias.copy_(-mean)
    SentenceTransformer(modules=[*modules, centred], device="cpu").save(str(folder.with_suffix(".part")))
    shutil.rmtree(bert)
    folder.with_suffix(".part").rename(folder)


def write_passages(path: Path, passages: int) -> str:
    """Write the passages of an index, numbers with a few words, and return their hash."""
    from retrieval_server.folder.passages import Passage, PassageWriter

    with PassageWriter(path) as writer:
        for row in tqdm(range(passages), desc="writing passages", unit=" passages", mininterval=5):
            writer.add(Passage(str(row), f'"Passage {row}"\na few words that nobody reads'), row + 1)
    return writer.sha256


def build(args: argparse.Namespace, work: Work) -> None:
    """Build the encoder and the index folder, and record the figures of the index."""
    from retrieval_server.encode.encoder import Encoder
    from retrieval_server.encode.options import EncoderOptions
    from retrieval_server.folder.manifest import (
        FAISS_INDEX,
        FORMAT_VERSION,
        PASSAGES,
        CorpusSection,
        DenseSection,
        Manifest,
        SearchSection,
        describe_files,
        write_manifest,
    )
    from retrieval_server.folder.publication import work_folder
    from retrieval_server.indexing.presets import PRESETS, cells_for

    encoder = work.folder / "encoder"
    if not encoder.exists():
        write_encoder(encoder, work.questions(), args.layers)
    n_cells, preset = args.cells or cells_for(args.passages), PRESETS[args.preset]
    with work_folder(work.index) as folder:
        corpus = CorpusSection(source="invented", sha256=write_passages(folder / PASSAGES, args.passages))
        rate = make_index(args.preset, args.passages, min(args.block, args.passages), folder, n_cells)
        section = DenseSection(
            encoder=Encoder.create(str(encoder), EncoderOptions(), "cpu").section,
            metric="inner_product",
            factory=preset.factory_with_cells(n_cells, DIMENSION),
            preset=args.preset,
            rescoring=preset.rescoring,
            search=SearchSection(nprobe=min(args.nprobe, n_cells)),
        )
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            backend="dense",
            count=args.passages,
            corpus=corpus,
            dense=section,
            files=describe_files(folder, progress=True),
            built_with={},
        )
        write_manifest(folder, manifest)
        vectors = Encoder.open(section.encoder, device="cpu").encode_queries(work.questions())
        sizes = {name: entry.bytes for name, entry in manifest.files.items()}
        built = {"factory": section.factory, "nprobe": section.search.nprobe, "sizes": sizes, "rate": rate}
        built["candidates"] = section.rescoring.candidates
        built["cells asked"] = cells_searched(folder / FAISS_INDEX, vectors, section.search.nprobe)
        work.keep("index", built)  # before the index is published, since a published one is not built again


def cells_searched(path: Path, vectors: np.ndarray, nprobe: int) -> int:
    """Return the number of different cells that are searched for all questions together."""
    import faiss

    from retrieval_server.search.vectors.faiss_files import open_index

    index = open_index(path, mapped=True)
    rotation = faiss.downcast_VectorTransform(faiss.downcast_index(index).chain.at(0))
    _, cells = faiss.extract_index_ivf(index).quantizer.search(rotation.apply(vectors), nprobe)
    return len(np.unique(cells))


def search(args: argparse.Namespace, work: Work) -> dict:
    """Measure the search alone, for random questions that are not passages."""
    from benchmarks import large_search
    from benchmarks.random_vectors import RandomVectors
    from retrieval_server.indexing.presets import MAX_CELLS

    first_unused = args.block + MAX_CELLS  # the rows before are passages and centres
    vectors = RandomVectors(first_unused + ASKED, DIMENSION)[first_unused:]
    with work.exact.open("wb") as stream:
        np.savez(stream, queries=vectors, rows=np.zeros((ASKED, K), np.int64))  # recall is meaningless here
    return large_search.search(work.index, work.shards, work.exact, args.way)


def report(args: argparse.Namespace, results: dict) -> str:
    """Return the report of the measurements, as Markdown."""
    from benchmarks.large_report import STATES, limit_held, milliseconds
    from rag_r1.runs.markdown import Page

    index, cold, rows, served = (results[name] for name in ("index", *WAYS, "serve"))
    text = f"{args.passages:,} passages of {DIMENSION} dimensions, {index['factory']}, "
    text += f"{index['nprobe']} cells searched, {index['candidates']} candidates"
    sizes = {f"{name}, on disk": f"{size / 1e6:,.0f} MB" for name, size in sorted(index["sizes"].items())}
    alone = {name: milliseconds(cold[state]) for state, name in STATES.items()}
    alone["rows dropped from the page cache each time"] = milliseconds(rows["all"])
    served_times = {name: milliseconds(served[state]) for state, name in STATES.items() if state in served}
    figures = {
        "added in a second, by the clock": f"{index['rate']:,.0f} vectors",
        "memory of the index, mapped and searched": f"{cold['resident'] / args.passages:.1f} bytes a vector",
        **{f"search alone, {name}: p50, p95": value for name, value in alone.items()},
        "search alone, limit of memory": limit_held(cold),
        "server, index and encoder cold: start to ready": f"{served['ready']:.1f} s",
        **{f"server, one question over HTTP, {name}": value for name, value in served_times.items()},
        "server, different cells that the questions ask": f"{index['cells asked']:,}",
        "server, resident, with encoder and mapped index": f"{served['resident']:,.0f} MB",
        "server, ... of which mapped index": f"{served['index resident']:,.0f} MB",
        "server, limit of memory": limit_held(served),
    }
    return str(Page().text(text).table(["", ""], [*sizes.items(), *figures.items()]))


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the arguments of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="folder for everything")
    parser.add_argument("--passages", type=int, default=29_000_000, help="(default %(default)s)")
    parser.add_argument("--preset", choices=["small", "balanced"], default="small", help="(default small)")
    parser.add_argument("--block", type=int, default=BLOCK, help="different vectors (default %(default)s)")
    parser.add_argument("--cells", type=int, help="of the index (default: as many as the preset has)")
    parser.add_argument("--nprobe", type=int, default=128, help="cells searched (default %(default)s)")
    parser.add_argument("--layers", type=int, default=12, help="of the encoder (default %(default)s)")
    parser.add_argument("--limit-gb", type=float, default=8.0, help="of memory, in GiB (default %(default)g)")
    parser.add_argument("--questions", type=Path, default=QUESTIONS, help="JSONL with 'question'")
    parser.add_argument("--remove", action="store_true", help="remove the index at the end")
    parser.add_argument("--step", choices=["build", "search", "serve"], help=argparse.SUPPRESS)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if not args.questions.is_file():
        parser.error(f"{args.questions}: no such file; give your questions with --questions FILE")
    if min(args.passages, args.block, args.nprobe, args.layers, args.cells or 1) < 1 or args.cells == 0:
        parser.error("--passages, --block, --cells, --nprobe and --layers must be at least 1")
    args.work, args.questions = args.work.resolve(), args.questions.resolve()
    return args


def main(argv: list[str] | None = None) -> int:
    """Build and measure the index and print the report, or run one step as a child; returns the status."""
    args = parse_args(argv)
    args.work.mkdir(parents=True, exist_ok=True)
    work = Work(args.work, 1)
    if args.step:
        from benchmarks.large_search import serve

        steps = {
            "build": lambda: build(args, work),
            "search": lambda: print(json.dumps(search(args, work))),
            "serve": lambda: print(json.dumps(serve(work.index, work.questions(), work.folder / "encoder"))),
        }
        steps[args.step]()
        return 0
    names = ("passages", "preset", "block", "cells", "nprobe", "layers", "limit_gb")
    settings = {name: getattr(args, name) for name in names}
    if (recorded := work.results.setdefault("run", settings)) != settings:
        raise SystemExit(
            f"error: --work {args.work} was measured with {recorded}: give the same, or choose another folder"
        )
    work.keep("run", settings)
    work.write_questions(args.questions)
    arguments = [Path(__file__).resolve(), "--work", args.work, "--questions", args.questions]
    for name in filter(settings.get, names):  # --cells may be missing
        arguments += [f"--{name.replace('_', '-')}", settings[name]]
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded
    if not work.index.exists() and not {*WAYS, "serve"} <= work.results.keys():
        measure("build", *arguments, "--step", "build")
        work = Work(args.work, 1)
    for way in WAYS:
        if way not in work.results:
            work.keep(way, limited(args.limit_gb, *arguments, "--step", "search", "--way", way))
    if "serve" not in work.results:
        work.keep("serve", limited(args.limit_gb, *arguments, "--step", "serve"))
    print(report(args, work.results))
    if args.remove:
        shutil.rmtree(work.index, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
