"""The options of the engine: batching, cache, and the limits of the queue."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from retrieval_server.options import AtLeastOne, Flag, Group, Options


class EngineOptions(Options):
    """The options of one engine, that is, of one index."""

    group = Group("batching", "The queries of all requests are encoded and searched together.")

    max_batch: Annotated[AtLeastOne, Flag("queries in a batch; 1: each alone")] = 64
    max_wait_ms: Annotated[
        float,
        Field(ge=0, allow_inf_nan=False),
        Flag(
            "milliseconds without a new query after which a batch starts although it could be larger; a "
            "client that is alone never waits"
        ),
    ] = 4.0
    #: None overlaps the stages unless both run on the CPU.
    overlap: Annotated[
        bool | None,
        Flag(
            "encode one batch while another is searched (default: yes, unless both run on the CPU, where "
            "they would take the cores from each other)"
        ),
    ] = None
    cache_size: Annotated[
        int, Field(ge=0), Flag("answers to remember; the least recently used go first; 0: none")
    ] = 10_000
    single_flight: Annotated[bool, Flag("compute equal queries under way only once (default: yes)")] = True
    max_queue: Annotated[
        int,
        Flag(
            "queries accepted and not yet answered; a request that does not fit gets 503 with Retry-After at "
            "once; at least --max-queries"
        ),
    ] = 4096
    deadline_s: Annotated[
        float,
        Field(gt=0, allow_inf_nan=False),
        Flag(
            "a request that is not answered within this time gets 504; one that might not be gets 503 "
            "at once",
            names=("--deadline",),
            metavar="SECONDS",
        ),
    ] = 60.0
    #: None sets the limit to the deadline.
    max_delay_s: Annotated[
        float | None,
        Field(gt=0, allow_inf_nan=False),
        Flag(
            "a request that could be answered later than this, as batches take and scatter at present, gets "
            "503 with Retry-After at once, unless nothing else is under way; choose more than the largest "
            "request takes alone (default: as --deadline)",
            names=("--max-delay",),
            metavar="SECONDS",
        ),
    ] = None
