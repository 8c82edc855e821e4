"""Estimates the memory, disk and time that a preset needs, before the build starts.

Bytes are computed from the sizes of codes, ids and centres in FAISS and of rows in folder/row_layout.py.
Times are extrapolated from a few seconds of the same work on this machine: encoding passages of this corpus,
a matrix product as in the training of the cells, and adding vectors to a small index of the same kind. So
times are accurate only if the machine is otherwise idle.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

import faiss
import numpy as np

from retrieval_server.encode.encoder import Encoder
from retrieval_server.errors import UserError, size_text
from retrieval_server.folder.passages import PassageStore
from retrieval_server.folder.row_layout import RowLayout
from retrieval_server.indexing.faiss_build import make_index, sample_size
from retrieval_server.indexing.presets import GRAPH_FROM, Preset, cells_for
from retrieval_server.search.vectors.faiss_search import widen_cell_search

_ID_BYTES = 8  # for each row in a cell
_LINK_BYTES = 4 * 2 * 32 + 16  # for each centre in a graph of the cells, HNSW32
_KMEANS_ROUNDS = 10  # of FAISS's k-means for the cells of an IVF index
_MIN_TIMED_PASSAGES = 1024  # fewer passages take less time than a measurement
_PROBED_TEXTS = 64
_PROBED_VECTORS = 2048
_PROBED_CELLS = 64
_STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class ResourceEstimate:
    """The resources of a build and of a server, in bytes and seconds."""

    #: A server's memory for the index. The rows on disk need no memory.
    memory_bytes: int
    #: A server's memory that does not depend on the corpus.
    process_bytes: int
    #: The memory of the build for vectors and index.
    build_memory_bytes: int
    #: Everything that the build writes except the text.
    disk_bytes: int
    #: The time to train the index and add the vectors.
    index_s: float
    #: The time to encode the passages; None if they are already encoded.
    encode_s: float | None = None
    #: Whether `process_bytes` include a loaded encoder.
    with_encoder: bool = True


def estimate_bytes(
    preset: Preset,
    passages: int,
    dimension: int,
    *,
    encodes: bool = True,
    with_encoder: bool = True,
    train_sample: int | None = None,
) -> ResourceEstimate:
    """Return the bytes for `passages` vectors of this dimension, without times.

    `encodes` says whether the build itself writes the vectors; otherwise they exist elsewhere and are only
    read. `with_encoder` says whether this process has loaded the encoder, so that its memory is included.
    `train_sample` is the number of vectors to train on, if the user has chosen it.
    """
    flat = 4 * dimension * passages
    process_bytes = _resident_bytes()
    estimate = partial(ResourceEstimate, process_bytes=process_bytes, index_s=0.0, with_encoder=with_encoder)
    if preset.bits is None or preset.rescoring is None:
        # The encoder's vectors and the index are both on the disk; the index is built in memory.
        disk = 2 * flat if encodes else flat
        return estimate(memory_bytes=flat, build_memory_bytes=2 * flat, disk_bytes=disk)
    cells = cells_for(passages)
    code = faiss.extract_index_ivf(make_index(preset.factory(1, dimension), dimension)).code_size
    centre = 4 * dimension + (_LINK_BYTES if cells >= GRAPH_FROM else 0)
    rotation = 4 * dimension**2
    index = passages * (code + _ID_BYTES) + cells * centre + rotation
    rows = RowLayout(dimension, preset.rescoring.rows).row_bytes * passages
    # Training needs the sample and two copies. Cells grow by doubling while vectors are added.
    sample = 4 * dimension * min(passages, train_sample or sample_size(cells))
    # The disk contains the index, and the half-built one until the build is finished.
    return estimate(
        memory_bytes=index, build_memory_bytes=max(3 * sample, 2 * index), disk_bytes=rows + 2 * index
    )


def estimate_times(
    preset: Preset,
    store: PassageStore,
    dimension: int,
    encoder: Encoder | None,
    batch_size: int,
    *,
    encodes: bool,
    train_sample: int | None = None,
) -> ResourceEstimate:
    """Return the bytes of `estimate_bytes`, and times that are extrapolated from some seconds of work.

    `encoder` is the loaded encoder, if any; without one there is no time to encode. For fewer than 1,024
    passages there are no times, since they would be shorter than the measurement.
    """
    passages = len(store)
    with_encoder = encoder is not None
    needs = estimate_bytes(
        preset, passages, dimension, encodes=encodes, with_encoder=with_encoder, train_sample=train_sample
    )
    if passages < _MIN_TIMED_PASSAGES:
        return needs
    encode_s = None
    if encodes and encoder is not None:
        texts = list(islice(store.iter_contents(), _PROBED_TEXTS))
        encoder.encode_passages(texts[:1])  # warm up
        encode_s = _seconds(lambda: encoder.encode_passages(texts, batch_size)) / len(texts) * passages
    index_s = 0.0 if preset.bits is None else _index_seconds(preset, passages, dimension, train_sample)
    return replace(needs, encode_s=encode_s, index_s=index_s)


def print_estimate(
    preset: Preset, passages: int, dimension: int, needs: ResourceEstimate, folder: Path, stored: int = 0
) -> None:
    """Print the resources that the build needs. Raises UserError if the disk of `folder` has too little room.

    `stored` are the bytes of an interrupted build, which are reused or removed.
    """
    free = shutil.disk_usage(folder).free + stored
    lines = [
        f"{passages} passages of {dimension} dimensions, preset {preset.name}: "
        f"{preset.factory(passages, dimension)}",
        f"  memory of a server    {size_text(needs.memory_bytes)} for the index, "
        f"and {size_text(needs.process_bytes)} for the process"
        f"{'' if needs.with_encoder else ' without the encoder'}",
        f"  memory of the build   {size_text(needs.build_memory_bytes)} for the vectors in work, "
        "and the same process",
        f"  disk                  {size_text(needs.disk_bytes)}, beside the text "
        f"({size_text(free)} are free)",
    ]
    if needs.encode_s is not None:
        lines.append(f"  time to encode        about {duration_text(needs.encode_s)} on this machine now")
    if needs.index_s:
        lines.append(f"  time to index         about {duration_text(needs.index_s)}")
    print("\n".join(lines), flush=True)
    refuse_full_disk(folder, needs.disk_bytes, stored, f"--preset {preset.name}: ")


def refuse_full_disk(folder: Path, needed: int, stored: int = 0, subject: str = "") -> None:
    """Raise UserError if the disk of `folder` has fewer free bytes than `needed`.

    The `stored` bytes of an interrupted build count as free, since they are reused. The message begins with
    `subject`.
    """
    free = shutil.disk_usage(folder).free + stored
    if free < needed:
        raise UserError(
            f"{subject}{folder} has {size_text(free)} free, and the build needs {size_text(needed)}. Free "
            "some, choose another --out, or take a smaller index with --preset."
        )


def duration_text(seconds: float) -> str:
    """Return a time, rounded up, with a suitable unit, such as `40 s` or `3 h`."""
    for limit, unit in ((90, "s"), (90, "min"), (48, "h")):
        if seconds < limit:
            return f"{max(1, math.ceil(seconds))} {unit}"
        seconds /= 24 if unit == "h" else 60
    return f"{math.ceil(seconds)} days"


def _index_seconds(preset: Preset, passages: int, dimension: int, train_sample: int | None) -> float:
    """Extrapolate the seconds to train the index and add the vectors from a product and a small index."""
    cells = cells_for(passages)
    generator = np.random.default_rng(0)
    vectors = generator.standard_normal((_PROBED_VECTORS, dimension), dtype=np.float32)
    operation_s = _seconds(lambda: vectors @ vectors.T) / (2 * dimension * _PROBED_VECTORS**2)
    sample = min(passages, train_sample or sample_size(cells))
    train_s = _KMEANS_ROUNDS * sample * cells * 2 * dimension * operation_s
    small = make_index(preset.factory_with_cells(_PROBED_CELLS, dimension), dimension)
    faiss.extract_index_ivf(small).cp.min_points_per_centroid = 1
    small.train(vectors)
    add_s = _seconds(lambda: small.add(vectors)) / len(vectors)
    if cells < GRAPH_FROM:
        assign_s = 2 * dimension * cells * operation_s
    else:
        graph = faiss.index_factory(dimension, f"IVF{_PROBED_CELLS}_HNSW32,Flat", faiss.METRIC_INNER_PRODUCT)
        widen_cell_search(graph)
        graph.quantizer.add(vectors)  # only the graph over the centres is needed
        # The time of a search in a graph grows with the logarithm of its size.
        slowdown = math.log2(cells) / math.log2(_PROBED_VECTORS)
        queries = vectors[:256]
        assign_s = slowdown * _seconds(lambda: graph.quantizer.search(queries, 1)) / len(queries)
    return train_s + passages * (add_s + assign_s)


def _seconds(work: Callable[[], object]) -> float:
    """Return the seconds that `work` takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _resident_bytes() -> int:
    """Return the bytes of memory that this process uses now; 0 if the system does not provide them."""
    try:
        lines = _STATUS.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS:")), 0)
