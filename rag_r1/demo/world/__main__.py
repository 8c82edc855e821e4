"""`python -m rag_r1.demo.world`: writes the demo's world.

    python -m rag_r1.demo.world --out DIR --protocol rag_r1_mq --seed 0

The command writes `corpus.jsonl`, which has the passages of the train and the test world for the retrieval
server, and the questions about them as veRL's rows in `train.parquet` and `val.parquet`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rag_r1.demo.world.files import N_TRAIN, N_VAL, write_demo
from rag_r1.demo.world.prompts import demo_protocol
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Arguments, Positive, argument, read_arguments
from rag_r1.protocols import protocol_names


class WorldArguments(Arguments):
    """The arguments of `python -m rag_r1.demo.world`."""

    out: Path = argument("folder for corpus.jsonl, train.parquet and val.parquet")
    protocol: str = argument(f"protocol: {', '.join(protocol_names())}, or a YAML file", default="rag_r1_mq")
    seed: int = argument("seed of the facts and the questions", default=0)
    train: Positive = argument("number of training questions", default=N_TRAIN)
    val: Positive = argument(
        "number of held-out questions, about names that do not occur in training", default=N_VAL
    )


@command_main(ValueError, OSError)
def main(argv: Sequence[str] | None = None) -> int:
    """Write the world, and print its sizes."""
    args = read_arguments(
        WorldArguments,
        argv,
        prog="python -m rag_r1.demo.world",
        description="Write the demo world: a corpus for the retrieval server, questions as veRL parquet.",
    )
    data = write_demo(args.out, demo_protocol(args.protocol), args.seed, args.train, args.val)
    counts = f"{len(data.passages)} passages, {len(data.train)} training, {len(data.val)} held-out questions"
    print(f"{args.out}: {counts}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
