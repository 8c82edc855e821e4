"""How an index is laid out on a Ray cluster, and the flags that say it. Imports nothing of Ray's."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class RayOptions:
    """How the deployments are laid out; the names are the flags of start_retrieval.py."""

    #: Address of the Ray cluster; "local" starts one in this machine that ends with the server.
    ray_address: str = "local"
    #: Replicas of each index's encoder and of each shard, fewest and most; Ray scales between them by load.
    encoder_replicas: tuple[int, int] = (1, 1)
    shard_replicas: tuple[int, int] = (1, 1)
    #: Processors and GPUs that Ray sets aside for one replica.
    replica_cpus: float = 1.0
    encoder_gpus: float = 0.0


def add_ray_flags(parser: argparse.ArgumentParser) -> None:
    """Add ``--serve`` and what goes with it."""
    defaults = RayOptions()
    ray = parser.add_argument_group(
        "more than one machine",
        "With --serve ray the encoders and the shards of an index (shard_index.py makes them) run as Ray "
        "Serve deployments, and this process queues, batches and merges. Index folders must be at the same "
        "place on every machine. Needs the extra rag-r1[ray].",
    )
    ray.add_argument(
        "--serve",
        choices=["here", "ray"],
        default="here",
        help="where indexes are searched: in this process, or on a Ray cluster (default %(default)s)",
    )
    ray.add_argument(
        "--ray-address",
        default=defaults.ray_address,
        metavar="ADDRESS",
        help="local: a Ray of this server's own, on this machine; auto or HOST:PORT: a cluster that is "
        "already there (default %(default)s)",
    )
    replicas = {"type": _replicas, "metavar": "N[:MOST]"}
    ray.add_argument(
        "--encoder-replicas",
        default=defaults.encoder_replicas,
        help="copies of each encoder; 1:4 lets Ray scale between one and four by load (default 1)",
        **replicas,
    )
    ray.add_argument(
        "--shard-replicas",
        default=defaults.shard_replicas,
        help="copies of each shard (default 1)",
        **replicas,
    )
    ray.add_argument(
        "--replica-cpus",
        type=float,
        default=defaults.replica_cpus,
        metavar="CPUS",
        help="processors that Ray sets aside for a copy (default %(default)g)",
    )
    ray.add_argument(
        "--encoder-gpus",
        type=float,
        default=defaults.encoder_gpus,
        metavar="GPUS",
        help="GPUs for each copy of an encoder; 0.5: two share one (default %(default)g)",
    )


def ray_options(args: argparse.Namespace) -> RayOptions:
    """The options out of the parsed flags."""
    return RayOptions(**{field.name: getattr(args, field.name) for field in fields(RayOptions)})


def _replicas(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([0-9]+)(?::([0-9]+))?", text)
    least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= least <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number from 1 on, nor two, 1:4")
    return least, most
