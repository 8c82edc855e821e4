"""Splits an index into shards, for start_retrieval.py --serve ray to search on several machines.

    python retrieval_server/shard_index.py --index indexes/wiki --shards 3 --out indexes/wiki-3
    python retrieval_server/start_retrieval.py --serve ray --index indexes/wiki-3

The shards together answer exactly as the whole index does.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

if __package__ in (
    None,
    "",
):  # run as a script: find the package beside, and do not let its modules shadow others
    _here = Path(__file__).resolve().parent
    sys.path[:] = [str(_here.parent)] + [p for p in sys.path if Path(p).resolve() != _here]

from retrieval_server.errors import RetrievalServerError


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--index", type=Path, required=True, metavar="DIR", help="the whole index")
    parser.add_argument("--shards", type=int, required=True, metavar="N", help="how many")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to make, of N indexes")
    args = parser.parse_args(argv)
    from retrieval_server.folder.shard_set import read_shards
    from retrieval_server.indexing.split_index import split_index

    try:
        split_index(args.index, args.out, args.shards)
        for path, manifest in read_shards(args.out):
            print(f"{path}: {manifest.count} passages, {manifest.backend}")
    except RetrievalServerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
