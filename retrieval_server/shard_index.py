"""Splits an index into shards, which `rag-r1 index serve --serve ray` searches on several machines.

    rag-r1 index split --index indexes/wiki --shards 3 --out indexes/wiki-3
    rag-r1 index serve --serve ray --index indexes/wiki-3

Together the shards give exactly the answers of the whole index. Those of a compressed index (--preset
balanced or small) may also have a passage that the whole index misses.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

# Run as a script: find the package beside this file, and let no module here shadow one from elsewhere.
# Each script does this itself, since it can import nothing of the package before.
if __package__ in (None, ""):
    _here = Path(__file__).resolve().parent
    sys.path[:] = [str(_here.parent)] + [p for p in sys.path if Path(p).resolve() != _here]

from retrieval_server.command_line import parse
from retrieval_server.errors import UserError, check_all, disk_errors
from retrieval_server.options import Flag, Options


class ShardCommand(Options):
    """The options of `rag-r1 index split`."""

    index: Annotated[Path, Flag("the whole index", metavar="DIR")]
    shards: Annotated[int, Flag("number of shards", metavar="N")]
    out: Annotated[Path, Flag("folder to make, of N indexes", metavar="DIR")]
    check_only: Annotated[bool, Flag("check the index and the folder, report all problems, and stop")] = False


def main(argv: Sequence[str] | None = None, prog: str = "rag-r1 index split") -> int:
    """Split an index by a command line. Returns the exit status."""
    command = parse(ShardCommand, __doc__, argv, prog, check=_check_command)
    from retrieval_server.folder.shard_set import read_shards
    from retrieval_server.indexing.split_index import check_split, split_index

    try:
        if command.check_only:
            manifest = check_split(command.index, command.out, command.shards)
            summary = f"{command.shards} shards of {manifest.count} passages into {command.out}"
            print(f"all checks passed: would write {summary}")
            return 0
        with disk_errors(command.out):
            split_index(command.index, command.out, command.shards)
        for path, manifest in read_shards(command.out):
            print(f"{path}: {manifest.count} passages, {manifest.backend}")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _check_command(command: ShardCommand) -> None:
    """Raise UserError for options that cannot be used. Missing and invalid options are None."""
    from retrieval_server.indexing.split_index import check_out, check_shard_count, check_splittable

    checks = (
        (check_splittable, command.index),
        (check_out, command.out),
        (partial(check_shard_count, command.index), command.shards),
    )
    check_all(*(partial(check, value) for check, value in checks if value is not None))


if __name__ == "__main__":
    sys.exit(main(prog="python retrieval_server/shard_index.py"))
