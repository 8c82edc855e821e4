"""`rag-r1 retriever train`: trains a retriever on the rows of `rag-r1 retriever data`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rag_r1.io.errors import DataError
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import read_arguments
from rag_r1.retriever.training.options import TrainOptions, split_recipe
from rag_r1.runs.errors import RunError

COMMAND = "rag-r1 retriever train"
_DESCRIPTION = """\
Train a retriever: InfoNCE over hard and in-batch negatives, without passages that are known to answer the
query. Run again, the same command goes on from the last checkpoint.

example:
  rag-r1 retriever train --recipe agentic_r/retriever_cpu \\
      --rows data/round1/train.jsonl --corpus corpus.jsonl.gz --out outputs/retriever1

On several GPUs:
  torchrun --nproc-per-node 8 -m rag_r1.cli retriever train --recipe agentic_r/retriever_gpu ...
"""
_EPILOG = """\
OUT/model is the trained encoder, with its settings in retriever.json. Build an index of it, whose manifest
gets the same settings, and serve that with rag_r1.retriever.agentic_input=true:
  rag-r1 index build --corpus FILE --out DIR --backend dense --encoder OUT/model
"""


@command_main(RunError, DataError, OSError, resumable=True)
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0 when the model is saved, or all checks have passed with --check-only, and 1
    after an error, which is printed."""
    split = split_recipe(sys.argv[1:] if arguments is None else arguments, COMMAND)
    arguments = split.words
    options = read_arguments(
        TrainOptions,
        arguments,
        prog=COMMAND,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        settings=split.settings,
        check=_check_start,
        faults=split.faults,
    )
    rows = _check_start(options)
    if options.check_only:
        print(f"all checks passed: {options.model} would be trained on {rows:,} rows into {options.out}")
        return 0
    from rag_r1.retriever.training.trainer import train

    folder = train(options)
    print(f"model: {folder}")
    return 0


def _check_start(options: TrainOptions) -> int:
    """Check all inputs, and return the number of rows. The checks are imported here because they need
    packages that `--help` does not."""
    from rag_r1.retriever.training.checks import check_start

    return check_start(options)


if __name__ == "__main__":
    sys.exit(main())
