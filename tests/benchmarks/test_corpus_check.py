"""The benchmark of the corpus check: what it prints, on a corpus of a few towns."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOWNS = "Ulm Trier Kassel Bremen Passau Worms Jena Celle Halle Soest".split()


@pytest.fixture
def printed(tmp_path) -> list[str]:
    """What the benchmark prints without a retrieval server, two passages deleted."""
    corpus = [{"id": str(n), "contents": f'"{town}"\n{town} is town {n}.'} for n, town in enumerate(TOWNS)]
    questions = [
        {"id": town, "question": f"Where is {town}?", "golden_answers": [town], "supporting_ids": [str(n)]}
        for n, town in enumerate(TOWNS)
    ]
    for name, rows in (("corpus.jsonl", corpus), ("questions.jsonl", questions)):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = ["--corpus", "corpus.jsonl", "--questions", "questions.jsonl", "--work", "work", "--deleted", "2"]
    command = [sys.executable, str(ROOT / "benchmarks" / "corpus_check.py"), *given, "--no-server"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_it_prints_how_many_affected_questions_each_kind_of_evidence_finds(printed):
    assert printed[0] == "10 questions, 2 affected by 2 deleted passages"
    rows = [line for line in printed if line.startswith(("| ids", "| titles"))]
    assert len(rows) == 9 and all(row.endswith("| 2 (100.0%) | 0 | 0 |") for row in rows)
    assert printed[-1].endswith(" passages scanned in a second of processor time")
