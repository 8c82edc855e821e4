"""Copies a FAISS index to the GPUs, if faiss-gpu finds any.

The GPUs choose candidates, and the index in main memory provides their exact scores, so that answers do not
depend on how a GPU rounds. With several GPUs each one holds a part of the rows. FAISS has no HNSW for GPUs.
"""

from __future__ import annotations

import logging

import faiss

from retrieval_server.errors import UserError
from retrieval_server.search.options import OpenOptions

log = logging.getLogger(__name__)


def gpu_count() -> int:
    """Return the number of GPUs that this build of FAISS can use; 0 for faiss-cpu."""
    return faiss.get_num_gpus() if hasattr(faiss, "GpuMultipleClonerOptions") else 0


def place_on_gpus(index: faiss.Index, options: OpenOptions) -> faiss.Index:
    """Return a copy of the index on the GPUs, or `index` itself if it is searched on the CPU.

    This is so if `options.gpu` is `off`, or if it is `auto` and there is no GPU or FAISS cannot put this
    index on it. With `on`, these two raise UserError.
    """
    if options.gpu == "off" or (options.gpu == "auto" and not gpu_count()):
        return index
    if not gpu_count():
        raise UserError("--gpu on: FAISS finds no GPU. Install faiss-gpu, or take --gpu auto.")
    cloning = faiss.GpuMultipleClonerOptions()
    cloning.shard = True
    cloning.useFloat16 = options.gpu_fp16
    try:
        return faiss.index_cpu_to_all_gpus(index, co=cloning)
    except RuntimeError as error:
        if options.gpu == "auto":
            log.warning("FAISS cannot hold this index on a GPU; searching on the CPU: %s", error)
            return index
        raise UserError(
            "--gpu on: FAISS cannot hold this index on the GPUs (kind or memory). Start with --gpu auto or "
            f"--gpu-fp16, or build it as Flat or IVF. FAISS says: {error}"
        ) from None
