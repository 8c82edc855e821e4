"""Imports an index that was built elsewhere: a FAISS file, or the vectors of the passages.

    rag-r1 index import --faiss e5_Flat.index --corpus wiki-18.jsonl \\
        --encoder intfloat/e5-base-v2 --out indexes/wiki-18
    rag-r1 index import --embeddings emb-0.npy emb-1.npy --corpus wiki-18.jsonl \\
        --encoder intfloat/e5-base-v2 --out indexes/wiki-18 --preset small

Row i is passage i of the corpus, whose ids must be 0 to n - 1. Some passages are encoded again and compared
with the vectors in their rows, so a wrong corpus or encoder is refused. `--trust` accepts other ids and, with
a warning, other vectors.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

# Run as a script: find the package beside this file, and let no module here shadow one from elsewhere.
# Each script does this itself, since it can import nothing of the package before.
if __package__ in (None, ""):
    _here = Path(__file__).resolve().parent
    sys.path[:] = [str(_here.parent)] + [p for p in sys.path if Path(p).resolve() != _here]

from retrieval_server.build_index import check, run
from retrieval_server.build_options import BuildCommand
from retrieval_server.command_line import parse

#: The options of a build that have no meaning for an import. They keep their defaults and have no flags.
_UNUSED = ("backend", "parts", "part", "skip_bad_rows", "bm25", "hybrid")
_SETTLED = {"step": "import"} | {name: BuildCommand.model_fields[name].default for name in _UNUSED}


def main(argv: Sequence[str] | None = None, prog: str = "rag-r1 index import") -> int:
    """Import an index by a command line. Returns the exit status."""
    return run(parse(BuildCommand, __doc__, argv, prog, _SETTLED, check))


if __name__ == "__main__":
    sys.exit(main(prog="python retrieval_server/import_index.py"))
