"""Declares the options of `rag-r1 index build`.

Contradictory options are refused, and so is a step without an option that it needs. Other options that have
no effect, such as `--k1` for a dense index, are named in a warning (`BuildCommand.unused_flags`).
`command_line.py` creates the flags, the help and the error messages from this declaration.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from retrieval_server.encode.options import EncoderOptions
from retrieval_server.errors import UserError
from retrieval_server.indexing.options import BM25Options, BuildOptions, DenseOptions
from retrieval_server.options import AtLeastOne, Flag, Group, Options, given_flags

#: The fields that each step needs.
_REQUIRED = {
    "all": ("corpus", "out", "backend"),
    "passages": ("corpus", "parts"),
    "encode": ("parts", "part", "encoder"),
    "merge": ("parts", "out"),
    "import": ("corpus", "out", "encoder"),
}
#: The options without effect on an index of each back end, and for steps of a dense index (`given_flags`).
_UNUSED_BY_BACKEND = {
    "dense": ("bm25", "hybrid"),
    "bm25": ("dense", "encoding", "hybrid"),
    "lucene": ("dense", "encoding", "hybrid"),
    "hybrid": ("dense", "encoding", "bm25", "skip_bad_rows"),
}
_UNUSED_BY_STEP = {
    "passages": ("out", "overwrite", "dense", "encoding"),
    "encode": (
        *("corpus", "out", "skip_bad_rows"),
        *(f"dense.{name}" for name in ("factory", "nprobe", "ef_search", "recall_queries", "train_sample")),
    ),
    "merge": ("corpus", "part", "skip_bad_rows", "encoding"),
}


class ImportOptions(Options):
    """An existing index, or existing vectors, to be imported."""

    group = Group("import", "An index or vectors from elsewhere; row i is passage i of --corpus.")

    faiss: Annotated[
        Path | None,
        Flag(
            "an inner-product index of FAISS: Flat, HNSW, IVF, ...; linked, or copied where the file system "
            "cannot link",
            metavar="FILE",
        ),
    ] = None
    embeddings: Annotated[
        tuple[Path, ...] | None,
        Flag(
            "vectors: .npy, .fbin, or bare (.memmap, .f32, .raw); several files in their order. They become "
            "an index of --factory; Flat needs no memory for it",
            metavar="FILE",
            in_a_row=True,
        ),
    ] = None
    trust: Annotated[
        bool, Flag("accept ids that are not 0 to n - 1, and vectors unlike the encoder's (with a warning)")
    ] = False


class HybridOptions(Options):
    """Several indexes of one corpus whose results are merged by rank."""

    group = Group("hybrid")

    of: Annotated[
        tuple[Path, ...], Flag("an index of the same corpus; give it twice or more", metavar="DIR")
    ] = ()
    rrf_k: Annotated[AtLeastOne, Flag("rank fusion: a rank adds 1 / (k + rank) to a score")] = 60
    depth: Annotated[AtLeastOne, Flag("passages taken from each index")] = 100


class BuildCommand(Options):
    """All options of `rag-r1 index build`."""

    step: Annotated[
        Literal["all", "passages", "encode", "merge", "import"],
        Flag(
            "all: from corpus to index; passages, encode, merge: the steps of an index that is encoded in "
            "parts; import: an index or embeddings from elsewhere",
            positional=True,
        ),
    ] = "all"
    corpus: Annotated[
        tuple[Path, ...] | None,
        Flag(
            ".jsonl or .tsv, plain or .gz, or .parquet; several files or a folder of them are one corpus",
            metavar="PATH",
            in_a_row=True,
        ),
    ] = None
    out: Annotated[Path | None, Flag("index folder to make", metavar="DIR")] = None
    backend: Annotated[
        Literal["dense", "bm25", "lucene", "hybrid"] | None,
        Flag(
            "dense: vectors of an encoder; bm25: words; lucene: words, for tens of millions of passages "
            "(needs Java); hybrid: several indexes at once"
        ),
    ] = None
    parts: Annotated[
        Path | None,
        Flag(
            "passages, encode, merge: folder of the text and of the encoded parts",
            names=("--parts", "--shards"),
            metavar="DIR",
        ),
    ] = None
    part: Annotated[
        str | None,
        Flag(
            "encode: the part, 1/8 to 8/8; N is the same for all", names=("--part", "--shard"), metavar="I/N"
        ),
    ] = None
    skip_bad_rows: Annotated[
        bool, Flag("leave rows that cannot be used out, and count them (default: such a row is an error)")
    ] = False
    overwrite: Annotated[bool, Flag("replace an index that exists; encode: start the part over")] = False
    check_only: Annotated[bool, Flag("check files and encoder, report all problems, and stop")] = False
    dense: DenseOptions = DenseOptions()
    encoding: EncoderOptions = EncoderOptions()
    imported: ImportOptions = ImportOptions()
    bm25: BM25Options = BM25Options()
    hybrid: HybridOptions = HybridOptions()

    def build_options(self) -> BuildOptions:
        """Return the options of a build for every back end except `hybrid`. Without `out` they can only be
        checked."""
        assert self.backend != "hybrid"
        return BuildOptions.model_construct(  # without validation: all options have been checked before
            corpus=self.corpus or (),
            out=self.out,
            backend=self.backend or "dense",
            encoder_options=self.encoding,
            bm25=self.bm25.section(),
            skip_bad_rows=self.skip_bad_rows,
            overwrite=self.overwrite,
            **dict(self.dense),
        )

    @property
    def target(self) -> Path:
        """The folder that the step writes; the working directory if its option is missing."""
        return (self.parts if self.step in ("passages", "encode") else self.out) or Path()

    def unused_flags(self) -> list[str]:
        """Return the flags that were given and have no effect with this back end and step."""
        names = {*_UNUSED_BY_BACKEND[self.backend or "dense"], *_UNUSED_BY_STEP.get(self.step, ())}
        return given_flags(self, names)

    def contradictions(self) -> Iterator[UserError]:
        """Yield an error for each option that is missing, and for options that contradict each other."""
        if self.backend == "hybrid":
            if self.corpus or len(self.hybrid.of) < 2 or not self.out:
                text = "--backend hybrid needs --of DIR --of DIR and --out, and no corpus"
                yield UserError(text, "--of", "--out")
        elif self.hybrid.of:
            yield UserError("--of belongs to --backend hybrid", "--backend")
        else:
            values = {**dict(self), "encoder": self.dense.encoder}
            for name in _REQUIRED[self.step]:
                if values[name] is None:
                    step = "a build" if self.step == "all" else self.step
                    yield UserError(f"{step} needs --{name}", f"--{name}")
            if self.backend == "dense" and self.step == "all" and self.dense.encoder is None:
                text = "--backend dense needs --encoder NAME_OR_PATH (--encoder minilm needs no download)"
                yield UserError(text)
        if self.step == "all" and self.dense.encoder and self.backend not in (None, "dense"):
            yield UserError(f"--encoder is for --backend dense, not {self.backend}")
        if self.step != "all" and self.backend not in (None, "dense"):
            yield UserError(f"{self.step} is a step of a dense index; {self.backend} is built in one go")
        if self.step in ("all", "import") and (self.parts or self.part):
            text = "--parts and --part belong to: rag-r1 index build passages|encode|merge ..."
            yield UserError(text, "step")
        yield from self._import_contradictions()
        if self.dense.preset and "factory" in self.dense.model_fields_set:
            yield UserError("--preset and --factory both say how FAISS searches; give one of them")
        if self.dense.preset and self.backend not in (None, "dense"):
            yield UserError(f"--preset is for --backend dense, not {self.backend}")

    def _import_contradictions(self) -> Iterator[UserError]:
        """Yield an error for each option that an import lacks, or that does not belong to the step."""
        imported = self.imported
        if self.step != "import":
            if imported.faiss or imported.embeddings or imported.trust:
                text = "--faiss, --embeddings and --trust belong to: rag-r1 index import ..."
                yield UserError(text, "step")
            return
        if (imported.faiss is None) == (imported.embeddings is None):
            text = "import needs either --faiss FILE or --embeddings FILE ..."
            yield UserError(text, "--faiss", "--embeddings")
        if self.skip_bad_rows:
            yield UserError("--skip-bad-rows: a row left out would shift later vectors; repair the corpus")
        dense = self.dense
        chooses_index = (
            dense.factory != DenseOptions().factory
            or dense.preset
            or dense.recall_queries
            or dense.train_sample
        )
        if imported.faiss and chooses_index:
            flags = "--factory, --preset, --recall-queries, --train-sample"
            yield UserError(f"{flags}: the index of --faiss is built already; drop them")
