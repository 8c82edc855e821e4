"""The benchmark of reading in workers measures both ways, and they read the same."""

import re
import sys

import pytest

from benchmarks import limited_reading
from rag_r1.tools.documents import parsers

pytest.importorskip("pypdf")


def test_both_ways_read_the_same_files_to_the_same_corpus(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["limited_reading.py", "--files", "8", "--rounds", "1"])
    for pool, name in ((parsers.file_workers, "start"), (parsers.batch_workers, "try_start")):
        monkeypatch.setattr(pool, name, getattr(pool, name))  # put back afterwards
    limited_reading.main()
    output = capsys.readouterr().out
    assert (
        "8 files: 2 .txt, 2 .md, 2 .html, 2 .pdf" in output and "median seconds of processor time" in output
    )
    here, there = re.findall(r"([\d,]+) bytes of corpus", output)
    assert here == there != "0"
