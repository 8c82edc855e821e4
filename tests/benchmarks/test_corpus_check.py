"""The benchmark of the corpus check: what it prints, on a corpus of a few towns."""

import pytest

from .conftest import run_script, write_towns


@pytest.mark.slow
def test_it_prints_how_many_affected_questions_each_kind_of_evidence_finds(tmp_path):
    flags = [*write_towns(tmp_path), "--work", tmp_path / "work", "--deleted", 2, "--no-server"]
    lines = run_script("benchmarks/corpus_check.py", *flags).splitlines()
    assert lines[0] == "10 questions, 2 affected by 2 deleted passages"
    rows = [line for line in lines if line.startswith(("| ids", "| titles"))]
    assert len(rows) == 9 and all(row.endswith("| 2 (100.0%) | 0 | 0 |") for row in rows)
    assert lines[-1].endswith(" passages scanned in a second of processor time")
