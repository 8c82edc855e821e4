"""The options for opening and searching an index."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import model_validator

from retrieval_server.encode.options import (
    Device,
    DType,
    EncoderCache,
    OpenVinoOptions,
    Runtime,
    openvino_options,
)
from retrieval_server.options import AtLeastOne, Flag, Group, Options

_FAISS = Group("search of a FAISS index")
_THREADS = Group(
    "threads",
    "On a CPU, in each process that encodes or searches. The encoder's and FAISS's threads share the cores; "
    "fewer for a query alone may be faster. With different numbers for the encoder, /ready promises at most "
    "`order`.",
)


class OpenOptions(Options):
    """The options that can be chosen each time an index is opened, to suit the machine."""

    group = Group("encoder")

    #: None takes the encoder that the manifest names.
    encoder: Annotated[
        str | None,
        Flag("the encoder of the indexes, if its folder was moved since the build", metavar="NAME_OR_PATH"),
    ] = None
    backend: Annotated[
        str | None,
        Flag(
            "a search of your own over the passages of the index: a function that is called with the index "
            "folder and its manifest and returns a Backend (an example: the module "
            "retrieval_server.search.custom_backend)",
            metavar="MODULE:FUNCTION",
        ),
    ] = None
    device: Device = None
    dtype: DType = "float32"
    runtime: Runtime = None
    encoder_cache: EncoderCache = None
    nprobe: Annotated[
        AtLeastOne | None,
        Flag("IVF: number of cells searched (default: as in the manifest)", metavar="N", group=_FAISS),
    ] = None
    ef_search: Annotated[
        AtLeastOne | None,
        Flag("HNSW: length of the candidate list (default: as in the manifest)", metavar="N", group=_FAISS),
    ] = None
    gpu: Annotated[
        Literal["auto", "off", "on"],
        Flag(
            "auto: search on all GPUs that faiss-gpu finds, the index divided among them; on: refuse to "
            "start without one",
            group=_FAISS,
        ),
    ] = "auto"
    gpu_fp16: Annotated[bool, Flag("keep vectors on the GPU in 16 bits: half the memory", group=_FAISS)] = (
        False
    )
    candidates: Annotated[
        AtLeastOne | None,
        Flag(
            "presets balanced and small: candidates of each query that are scored from the stored rows "
            "(default: as in the manifest)",
            metavar="N",
            group=_FAISS,
        ),
    ] = None
    #: None maps the indexes of the presets balanced and small.
    mmap: Annotated[
        bool | None,
        Flag(
            "map the index file instead of reading it into memory: the server starts at once, shares the "
            "pages with other servers, and reads the file ahead in the background if it fits into memory; "
            "what does not fit is read again for every batch (default: for the presets balanced and small)",
            group=_FAISS,
        ),
    ] = None
    encode_threads: Annotated[
        AtLeastOne | None,
        Flag("threads of the encoder for a batch (default: torch's own number)", metavar="N", group=_THREADS),
    ] = None
    encode_threads_alone: Annotated[
        AtLeastOne | None,
        Flag("threads of the encoder for one query (default: as for a batch)", metavar="N", group=_THREADS),
    ] = None
    search_threads: Annotated[
        AtLeastOne | None,
        Flag(
            "threads of FAISS for a batch (default: FAISS's own number); in an approximate index, queries "
            "searched at once",
            metavar="N",
            group=_THREADS,
        ),
    ] = None
    search_threads_alone: Annotated[
        AtLeastOne | None,
        Flag(
            "threads of FAISS for one query in an exact index (default: as for a batch)",
            metavar="N",
            group=_THREADS,
        ),
    ] = None

    @property
    def openvino(self) -> OpenVinoOptions | None:
        """The settings of OpenVINO if it computes the encoder; None if torch does."""
        return openvino_options(
            self.dtype, self.runtime, self.device, self.encoder_cache, self.encode_threads
        )

    @model_validator(mode="after")
    def _check_runtime(self) -> OpenOptions:
        if self.openvino is not None and self.encode_threads_alone is not None:
            raise ValueError("--encode-threads-alone: OpenVINO has one thread count; give --encode-threads")
        return self
