"""A build without room on the disk ends with a sentence, and what it leaves is not taken for an index."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from unittest.mock import Mock

import numpy as np
import pytest

from retrieval_server import errors
from retrieval_server.build_index import main
from retrieval_server.encode.vector_files import VectorFiles
from retrieval_server.errors import UserError, disk_errors
from retrieval_server.indexing import faiss_build
from retrieval_server.indexing.faiss_build import write_faiss_index

#: Files of this process may have so many bytes; then it is the command.
LIMITED = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
from retrieval_server.build_index import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.slow  # starts processes
@pytest.mark.parametrize("most", [1000, 300_000])  # the passages do not fit, or only the words
def test_a_build_without_room_tells_the_folder_and_the_remedy_and_can_be_given_again(most, tmp_path):
    corpus, out = tmp_path / "corpus.jsonl", tmp_path / "index"
    rows = [
        {"id": str(i), "contents": f"Row {i} " + " ".join(f"w{i * j % 977}" for j in range(99))}
        for i in range(600)
    ]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["--backend", "bm25", "--corpus", str(corpus), "--out", str(out)]
    command = [sys.executable, "-c", LIMITED, str(most), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert f"error: cannot use {out}" in done.stderr and "make room on that disk" in done.stderr
    assert list(tmp_path.iterdir()) == [corpus]
    assert main(arguments) == 0 and (out / "manifest.json").is_file()


def test_errors_without_a_number_are_the_disks_only_if_it_is_full(tmp_path, monkeypatch):
    """NumPy says `123 requested and 0 written`, FAISS raises RuntimeError."""
    with pytest.raises(RuntimeError, match="another reason"), disk_errors(tmp_path / "index"):
        raise RuntimeError("another reason")
    monkeypatch.setattr(errors, "_free_bytes", lambda folder: 0)
    with pytest.raises(UserError, match="index: No space left on device; make room"):
        with disk_errors(tmp_path / "index"):
            raise OSError("123 requested and 0 written")
    with pytest.raises(UserError, match=r"index: .*\(about 3.2 GB are needed, \d.* are free\); make room"):
        with disk_errors(tmp_path / "index", lambda: 3_210_000_000):
            raise OSError(errno.ENOSPC, "full")
    with pytest.raises(FileNotFoundError), disk_errors(tmp_path / "index"):
        raise FileNotFoundError(errno.ENOENT, "missing", "corpus.jsonl")


@pytest.mark.parametrize("name", ["half", None])
def test_an_index_without_room_is_not_blamed_on_the_factory_string(tmp_path, monkeypatch, name):
    np.ones((4, 8), "<f4").tofile(tmp_path / "vectors.f32")
    vectors = VectorFiles([tmp_path / "vectors.f32"], 8)
    monkeypatch.setattr(faiss_build.faiss, "write_index", Mock(side_effect=RuntimeError("write error")))
    with pytest.raises(OSError, match="write error"):
        write_faiss_index(vectors, "Flat", tmp_path / "index", checkpoint=name and tmp_path / name)
