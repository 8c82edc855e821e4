"""Lines that are appended whole or not at all, for the owner only."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rag_r1.io.appended_files import append_whole, json_line, open_to_append


def test_what_does_not_fit_leaves_nothing_behind(tmp_path: Path, monkeypatch):
    path = tmp_path / "lines"
    file, line = open_to_append(path), json_line({"name": "half \ud83d"})
    append_whole(file, line, 0)
    write = os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda file, data: write(file, data[:3]))
        with pytest.raises(OSError, match="No space left"):
            append_whole(file, line, len(line))
    os.close(file)
    assert path.read_bytes() == line == b'{"name": "half \xed\xa0\xbd"}\n'
    assert path.stat().st_mode & 0o777 == 0o600
