"""Tries out a `tokenizer.json` in a worker (rag_r1/sandbox).

Such a file can take minutes and gigabytes to load, or turn an empty text into millions of tokens.
"""

from __future__ import annotations

import os

#: Letters, digits, signs, spaces and a few scripts, in runs and mixed.
_SAMPLE = (
    "Who was born in Zürich?\n\n\t" + "a" * 64 + " " * 64 + "".join(map(chr, range(32, 127))) + "北京 Ωж é"
)


def try_out(path: str) -> int:
    """A job: load the file and encode a text of a few hundred characters. Returns the number of tokens.
    `path`: the bytes of the path as Latin-1. Raises what tokenizers raises."""
    from tokenizers import Tokenizer

    return len(Tokenizer.from_file(os.fsdecode(path.encode("latin-1"))).encode(_SAMPLE))
