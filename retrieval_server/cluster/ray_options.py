"""The options of an index on a Ray cluster. Reading and checking them does not need Ray."""

from __future__ import annotations

import re
import socket
from typing import Annotated

from pydantic import Field

from retrieval_server.errors import UserError, reason_of
from retrieval_server.options import Flag, Group, Options

#: Seconds in which a cluster has to accept a connection.
_CONNECT_S = 5.0
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def _replica_range(text: str) -> tuple[int, int]:
    """Return the smallest and the largest number of replicas in "2" or "1:4". Raises ValueError."""
    match = re.fullmatch(r"([0-9]+)(?::([0-9]+))?", text)
    lower, upper = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= lower <= upper:
        raise ValueError(f"{text!r} is neither a number of replicas from 1 on nor a range such as 1:4")
    return lower, upper


class RayOptions(Options):
    """The cluster, and the replicas, CPU cores and GPUs of each deployment."""

    group = Group(
        "several machines",
        "With --serve ray the encoders and the shards of an index (`rag-r1 index split` makes them) run as "
        "Ray Serve deployments; this process queues, batches and merges. Index folders must be at the same "
        "path on every machine. Needs the extra rag-r1[ray].",
    )

    #: "local" starts Ray on this machine and stops it with the server.
    ray_address: Annotated[
        str,
        Flag(
            "local: a Ray of this server's own, on this machine; auto or HOST:PORT: a running cluster",
            metavar="ADDRESS",
        ),
    ] = "local"
    #: Smallest and largest number of replicas; Ray scales between them by load.
    encoder_replicas: Annotated[
        tuple[int, int],
        Flag(
            "replicas of each encoder; 1:4 lets Ray scale between one and four by load",
            metavar="N[:MOST]",
            read=_replica_range,
            default="1",
        ),
    ] = (1, 1)
    shard_replicas: Annotated[
        tuple[int, int],
        Flag("replicas of each shard, also a range", metavar="N[:MOST]", read=_replica_range, default="1"),
    ] = (1, 1)
    replica_cpus: Annotated[
        NotNegative, Flag("CPU cores that Ray reserves for a replica", metavar="CPUS")
    ] = 1.0
    encoder_gpus: Annotated[
        NotNegative, Flag("GPUs for each replica of an encoder; 0.5: two share one", metavar="GPUS")
    ] = 0.0


def check_cluster(address: str) -> None:
    """Raise UserError if an address has a wrong form, or if no cluster answers there: Ray would try for
    minutes."""
    if address in ("local", "auto"):
        return
    # ray:// stands before the address of a Ray Client server, to which `ray.init` connects as well.
    match = re.fullmatch(r"(?:ray://)?\[?(.+?)\]?:([0-9]{1,5})", address)
    if match is None or int(match[2]) > 65535:
        raise UserError(f"--ray-address {address}: give local, auto or the HOST:PORT of a running cluster.")
    try:
        socket.create_connection((match[1], int(match[2])), _CONNECT_S).close()
    except (OSError, UnicodeError) as error:  # UnicodeError: no host can have this name
        raise UserError(
            f"--ray-address {address}: nothing answers there ({reason_of(error)}). Start a cluster with "
            "`ray start --head`, or correct the address."
        ) from None
