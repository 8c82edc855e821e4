"""The hash of a file, block by block."""

from __future__ import annotations

import hashlib
from pathlib import Path

from rag_r1.io.file_hash import sha256_of_file


def test_a_file_of_several_blocks(tmp_path: Path):
    data, read = b"ab" * (1 << 20), []
    (tmp_path / "file").write_bytes(data)
    assert sha256_of_file(tmp_path / "file", read.append) == hashlib.sha256(data).hexdigest()
    assert read == [1 << 20, 1 << 20]
