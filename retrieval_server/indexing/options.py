"""What to build: the options that every step of a build reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from retrieval_server.encode.encoder_settings import EncoderOptions
from retrieval_server.folder.manifest import BM25Section


@dataclass(frozen=True)
class BuildOptions:
    """What to build. The encoder's options matter for ``dense``, ``bm25`` for ``bm25`` and ``lucene``.

    A ``hybrid`` has no corpus of its own; see ``build_hybrid``.
    """

    corpus: Path | Sequence[Path]
    out: Path
    backend: Literal["dense", "bm25", "lucene"]
    encoder: str | None = None
    encoder_options: EncoderOptions = field(default_factory=EncoderOptions)
    factory: str = "Flat"
    train_sample: int | None = None
    nprobe: int | None = None
    ef_search: int | None = None
    recall_queries: Path | None = None
    batch_size: int = 64
    device: str | None = None
    dtype: str = "float32"
    bm25: BM25Section = BM25Section(stemmer="english", stopwords="english", k1=1.2, b=0.75)
    skip_bad_rows: bool = False
    overwrite: bool = False
    progress: bool = True
