"""Tries out a `tokenizer.json` in a sandbox worker.

Such a file can take minutes and gigabytes to load, or turn an empty text into millions of tokens.
`refuse_endless_files` (chat_template.py) runs this job before the tokenizer is loaded.
"""

from __future__ import annotations

from rag_r1.sandbox.job_paths import path_of

#: A text with letters, digits, punctuation, spaces and several scripts, repeated and mixed.
_SAMPLE = (
    "Who was born in Zürich?\n\n\t" + "a" * 64 + " " * 64 + "".join(map(chr, range(32, 127))) + "北京 Ωж é"
)


def try_out(path: str) -> int:
    """A job: loads the file, encodes a text of a few hundred characters, and returns the number of tokens.
    `path` comes from `path_argument`. Raises the errors of the package tokenizers."""
    from tokenizers import Tokenizer

    return len(Tokenizer.from_file(path_of(path)).encode(_SAMPLE))
