"""Measures what the presets of a dense index lose in recall, and how much memory they need for each vector.

    python retrieval_server/build_index.py --corpus FILE --out indexes/exact --backend dense --encoder minilm
    python benchmarks/index_presets.py recall --index indexes/exact --work outputs/presets
    python benchmarks/index_presets.py memory --work outputs/presets --passages 1000000 --dimension 768

`recall` takes the vectors of an exact index, builds an index of each preset from them, and searches for all
questions. It compares the first ten and the first three results with exact search of the 32-bit vectors; the
table that a build prints cannot do this, since it compares with the stored rows. There is a row for several
numbers of searched cells and of candidates; a row "as built" has the settings that the build would choose by
the first sentences of passages. Nothing is timed, so the load of the machine does not matter.

`memory` builds an index of random vectors (their values do not change its size), opens it in a separate
process as a server does, and makes 500 searches. Before that, the process does the same with an index of
1,000 vectors. The table has the growth of the resident set, divided by the number of vectors. In a separate
column it has the peak of the resident rows on disk, which does not grow with the index, since their pages are
released again and again. Both ways of opening the index are measured: mapped, and read into memory. Linux
only.

Under --work each preset has a folder for each corpus and encoder, or for each number and dimension of random
vectors. Finished files are used again; unfinished ones are continued or made again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

# This folder has its own retrieval_server.py: look for packages in the project's root instead.
_here = Path(__file__).resolve().parent
sys.path[:] = [str(_here.parent)] + [entry for entry in sys.path if Path(entry).resolve() != _here]

from benchmarks.random_vectors import RandomVectors  # noqa: E402
from benchmarks.retrieval_load import QUESTIONS, read_questions  # noqa: E402
from rag_r1.runs.markdown import print_table, table_row  # noqa: E402

if TYPE_CHECKING:
    import faiss

    from retrieval_server.encode.vector_files import VectorFiles
    from retrieval_server.folder.manifest import Manifest

#: Number of searches of `memory`.
SEARCHES = 500
#: Number of random vectors on which the cells of `memory` are trained; their quality does not matter there.
_TRAINED_ON = 20_000
#: Number of vectors of the index that is used first, so that the memory of the process itself is not counted.
_TINY = 1000


def compressed() -> list[str]:
    """Return the names of the presets that compress the vectors."""
    from retrieval_server.indexing.presets import PRESETS

    return [preset.name for preset in PRESETS.values() if preset.rescoring is not None]


def folder_for(work: Path, name: str, manifest: Manifest) -> Path:
    """Return the folder of a preset's files for the vectors of this corpus, encoder and encoder settings."""
    assert manifest.dense is not None
    encoder = json.dumps(manifest.dense.encoder.model_dump(exclude={"name"}), sort_keys=True)
    settings = hashlib.sha256(encoder.encode()).hexdigest()
    return work / f"{name}-{manifest.corpus.sha256[:16]}-{settings[:16]}"


def make_files(
    name: str, vectors: VectorFiles | RandomVectors, folder: Path, train_sample: int | None = None
) -> None:
    """Write the index file and the rows of a preset, without text and manifest.

    The index is trained on `train_sample` vectors (None: as many as a build takes). A finished index is kept,
    and unfinished rows are continued, so the folder must belong to these vectors only.
    """
    from retrieval_server.folder.manifest import FAISS_INDEX, ROWS
    from retrieval_server.indexing.dense_build import write_rows
    from retrieval_server.indexing.faiss_build import write_faiss_index
    from retrieval_server.indexing.presets import PRESETS

    preset = PRESETS[name]
    folder.mkdir(parents=True, exist_ok=True)
    rows = write_rows(vectors, folder / ROWS, preset.rescoring.rows, progress=True)
    if not (folder / FAISS_INDEX).exists():
        factory, part = preset.factory(len(rows), rows.dimension), folder / f"{FAISS_INDEX}.part"
        write_faiss_index(rows, factory, part, train_sample, progress=True)
        part.replace(folder / FAISS_INDEX)


class Opened:
    """The files of a preset, opened as a server opens them."""

    def __init__(self, folder: Path, name: str, dimension: int, mapped: bool):
        from retrieval_server.folder.manifest import FAISS_INDEX, ROWS
        from retrieval_server.folder.row_layout import RowLayout
        from retrieval_server.indexing.presets import PRESETS
        from retrieval_server.search.vectors.faiss_files import open_index
        from retrieval_server.search.vectors.faiss_search import cell_count
        from retrieval_server.search.vectors.stored_rows import StoredRows

        rescoring = PRESETS[name].rescoring
        self.index = open_index(folder / FAISS_INDEX, mapped=mapped)
        self.stored = StoredRows(folder / ROWS, RowLayout(dimension, rescoring.rows), self.index.ntotal)
        self.cells = cell_count(self.index)

    def find(self, queries: np.ndarray, k: int, nprobe: int, candidates: int) -> list[list[int]]:
        """Return the rows of the `k` best vectors for each query."""
        from retrieval_server.search.vectors.faiss_search import ApproximateSearch, SearchParameters

        SearchParameters(nprobe=nprobe).apply(self.index, compressed=True)
        search = ApproximateSearch(self.index, threads=1, stored=self.stored, candidates=candidates)
        rows = [[hit.row for hit in hits] for hits in search.find(queries, k)]
        search.close()
        return rows


def write_vectors(index: faiss.IndexFlat, path: Path) -> VectorFiles:
    """Write the vectors of an exact index into a file, and return them."""
    import faiss

    from retrieval_server.encode.vector_files import VectorFiles

    path.parent.mkdir(parents=True, exist_ok=True)
    faiss.rev_swig_ptr(index.get_xb(), index.ntotal * index.d).tofile(path)
    return VectorFiles([path], index.d)


def built_nprobe(name: str, folder: Path, opened: Opened, sentences: np.ndarray) -> int:
    """Return the number of cells that a build of this preset would search.

    It is chosen by `sentences`, the vectors of the first sentences of passages: (sentences, dimension).
    """
    from retrieval_server.encode.vector_files import VectorFiles
    from retrieval_server.folder.manifest import FAISS_INDEX, ROWS
    from retrieval_server.indexing import faiss_recall
    from retrieval_server.indexing.presets import PRESETS
    from retrieval_server.search.vectors.faiss_search import SearchParameters

    preset = PRESETS[name]
    table = faiss_recall.measure_recall(
        folder / FAISS_INDEX,
        VectorFiles([folder / ROWS], sentences.shape[1], preset.rescoring.rows),
        sentences,
        "sentences",
        SearchParameters(),
        faiss_recall.RescoringRows(opened.stored, preset.rescoring.candidates),
    )
    return faiss_recall.choose_default(table.rows, preset.target_recall).nprobe


def measure_recall(args: argparse.Namespace) -> None:
    """Print the table of recall, with a row for each preset and setting.

    Raises SystemExit if `--index` is not exact, and UserError if it cannot be opened.
    """
    from retrieval_server.encode.cpu_settings import set_mkl_reproducible

    set_mkl_reproducible()  # must be before the imports that load MKL

    from retrieval_server.encode.encoder import Encoder
    from retrieval_server.folder.manifest import FAISS_INDEX, PASSAGES, read_manifest
    from retrieval_server.folder.passages import PassageStore
    from retrieval_server.indexing.faiss_recall import sample_queries
    from retrieval_server.indexing.presets import PRESETS, cells_for
    from retrieval_server.search.vectors.faiss_files import open_index
    from retrieval_server.search.vectors.faiss_search import FlatSearch

    manifest = read_manifest(args.index)
    if manifest.dense is None or manifest.dense.factory != "Flat":
        raise SystemExit(f"error: {args.index}: give an exact dense index (--preset exact)")
    whole = open_index(args.index / FAISS_INDEX, mapped=True)
    questions = list(dict.fromkeys(read_questions(args.questions)))
    encoder = Encoder.open(manifest.dense.encoder)
    queries = encoder.encode_queries(questions)
    sentences = encoder.encode_queries(sample_queries(PassageStore(args.index / PASSAGES)))
    exact = [[hit.row for hit in hits] for hits in FlatSearch(whole).find(queries, 10)]
    vectors = write_vectors(whole, folder_for(args.work, "exact", manifest) / "vectors.f32")
    print(f"{whole.ntotal} passages of {whole.d} dimensions, {len(questions)} questions")
    print_table(["preset", "nprobe", "candidates", "recall@10", "the same first three"], ())
    for name in compressed():
        folder = folder_for(args.work, name, manifest)
        make_files(name, vectors, folder)
        opened = Opened(folder, name, whole.d, mapped=True)
        n_cells, usual = cells_for(whole.ntotal), PRESETS[name].rescoring.candidates
        built = built_nprobe(name, folder, opened, sentences)
        probes = sorted({n_cells, *(nprobe for nprobe in args.nprobe if nprobe < n_cells)})
        settings = [(built, usual, " (as built)"), *((nprobe, usual, "") for nprobe in probes)]
        settings += [(n_cells, count, "") for count in args.candidates if count != usual]
        for nprobe, candidates, note in settings:
            nearest = opened.find(queries, 10, nprobe, candidates)
            pairs = list(zip(nearest, exact, strict=True))
            recall = sum(len(set(ours) & set(best)) for ours, best in pairs) / sum(map(len, exact))
            same = sum(ours[:3] == best[:3] for ours, best in pairs) / len(pairs)
            cells = [f"{nprobe} of {n_cells}", str(candidates), f"{recall:.2%}", f"{same:.2%}"]
            print(table_row([name + note, *cells]))


def resident(mapped_file: str = "") -> int:
    """Return the resident bytes of this process: all, or those of one mapped file."""
    if not mapped_file:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return 1024 * int(status.partition("VmRSS:")[2].split()[0])
    is_matching, total = False, 0
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        fields = line.split()
        if "-" in fields[0]:
            is_matching = fields[-1].endswith(mapped_file)
        elif is_matching and fields[0] == "Rss:":
            total += 1024 * int(fields[1])
    return total


def measure_in_process(args: argparse.Namespace) -> None:
    """Use a tiny index and then the measured one, in a separate process; print the bytes as JSON."""
    from retrieval_server.encode.malloc import trim_heap

    use_index(args, _TINY)
    trim_heap()  # as a server does every minute
    before = resident()
    opened, rows = use_index(args, args.passages)
    trim_heap()
    print(json.dumps({"index": resident() - before, "rows": rows}))
    del opened


def use_index(args: argparse.Namespace, passages: int) -> tuple[Opened, int]:
    """Open the preset's files and search; returns them, and the peak of the resident bytes of the rows."""
    from retrieval_server.folder.manifest import ROWS
    from retrieval_server.indexing.presets import PRESETS, cells_for

    queries = RandomVectors(SEARCHES, args.dimension)[:]
    folder = args.work / f"{args.only}-{passages}x{args.dimension}"
    opened = Opened(folder, args.only, args.dimension, args.mapped)
    candidates, n_cells = PRESETS[args.only].rescoring.candidates, cells_for(passages)
    peak = 0
    for first in range(0, SEARCHES, 10):
        # The first search uses all cells, so that every page of a mapped index is resident.
        nprobe = n_cells if first == 0 else min(64, n_cells)
        opened.find(queries[first : first + 10], 10, nprobe, candidates)
        peak = max(peak, resident(f"{folder.name}/{ROWS}"))
    opened.stored.release()
    return opened, peak


def measure_memory(args: argparse.Namespace) -> None:
    """Print the table of memory, with two rows for each preset."""

    def process(*flags: str) -> dict[str, int]:
        size = ("--passages", str(args.passages), "--dimension", str(args.dimension))
        command = [sys.executable, __file__, "process", "--work", str(args.work), *size, *flags]
        return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)

    names = args.preset or compressed()
    for name in names:
        for passages in (_TINY, args.passages):
            folder = args.work / f"{name}-{passages}x{args.dimension}"
            make_files(name, RandomVectors(passages, args.dimension), folder, _TRAINED_ON)
    print(f"{args.passages} random vectors of {args.dimension} dimensions")
    head = ["preset", "index", "bytes of memory a vector", "rows on disk, resident at most"]
    print_table(head, (), "llrr")
    for name in names:
        for label, flags in (("mapped", ["--mapped"]), ("read", [])):
            output = process("--only", name, *flags)
            per_vector = output["index"] / args.passages
            print(table_row([name, label, f"{per_vector:.1f}", f"{output['rows'] / 1e6:.0f} MB"]), flush=True)


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the arguments of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    recall = commands.add_parser("recall", help="recall and ids against exact search")
    memory = commands.add_parser("memory", help="resident bytes of a vector")
    process = commands.add_parser("process", help="the process that `memory` starts and measures")
    recall.add_argument("--index", type=Path, required=True, metavar="DIR", help="an exact dense index")
    recall.add_argument("--questions", type=Path, default=QUESTIONS, help="JSONL with 'question'")
    recall.add_argument("--nprobe", type=int, nargs="*", default=[16, 32, 64], help="(default 16 32 64)")
    recall.add_argument(
        "--candidates", type=int, nargs="*", default=[100, 200, 400], help="(default 100 200 400)"
    )
    for command in (recall, memory, process):
        command.add_argument("--work", type=Path, required=True, metavar="DIR", help="folder for the indexes")
    for command in (memory, process):
        command.add_argument("--passages", type=int, default=1_000_000, help="(default %(default)s)")
        command.add_argument("--dimension", type=int, default=768, help="(default %(default)s)")
    memory.add_argument("--preset", nargs="*", choices=["balanced", "small"], help="(default: both)")
    process.add_argument("--only", metavar="PRESET", required=True)
    process.add_argument("--mapped", action="store_true")
    args = parser.parse_args(argv)
    if args.command == "recall" and not args.questions.is_file():
        parser.error(f"{args.questions}: no such file; give your questions with --questions FILE")
    return args


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark and print its tables; returns the exit status."""
    args = parse_args(argv)
    from retrieval_server.errors import UserError

    run = {"recall": measure_recall, "memory": measure_memory, "process": measure_in_process}[args.command]
    try:
        run(args)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
