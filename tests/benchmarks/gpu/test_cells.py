"""Cells and their files, provenance, peaks, estimates and the page: what needs no process of its own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gpu import memory_use
from benchmarks.gpu.cells import Cell, CellStore
from benchmarks.gpu.machine import begin, recorded_plan
from benchmarks.gpu.made import made_once
from benchmarks.gpu.memory_use import PeakMeter
from benchmarks.gpu.models import check_models, model_folder, shape_for
from benchmarks.gpu.phases import PHASES
from benchmarks.gpu.plan import Plan
from benchmarks.gpu.report import BEGIN, END, section, write_section
from benchmarks.gpu.runner import cells_of
from rag_r1.runs.errors import RunError

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "results" / "gpu.md"


@pytest.fixture
def plan(tmp_path) -> Plan:
    return Plan.of(tmp_path / "out", miniature=True, random_weights=True)


@pytest.fixture
def store(plan) -> CellStore:
    return CellStore(plan.out)


CELL = Cell("memory", "one", "one cell", {"tokens": 64})


def test_a_cell_is_read_as_it_was_written(store):
    assert store.read(CELL) is None
    store.write(CELL, {"peak": 1.5})
    assert store.read(CELL).figures == {"peak": 1.5} and store.read(CELL).error is None


def test_a_failed_cell_has_the_last_lines_of_its_log(store, tmp_path):
    log = tmp_path / "log"
    log.write_text("\n".join(map(str, range(100))) + "\n")
    store.fail(CELL, log)
    assert store.read(CELL).error.splitlines() == [str(number) for number in range(88, 100)]


def test_a_cell_with_other_settings_is_refused(store):
    store.write(CELL, {})
    with pytest.raises(RunError, match="settings.tokens was 64 and is now 128"):
        store.read(replace(CELL, settings={"tokens": 128}))


def test_a_file_that_was_cut_off_is_as_none(store, plan):
    store.write(CELL, {"peak": 1.5})
    file = plan.out / "cells" / "memory" / "one.json"
    file.write_text(file.read_text()[:-10])
    assert store.read(CELL) is None


@given(st.booleans(), st.booleans(), st.sampled_from([None, Path("/a/model")]), st.floats(1e9, 1e12))
def test_a_plan_comes_back_from_json(miniature, random_weights, model, gpu):
    plan = Plan(Path("/out"), Path("/models"), miniature, random_weights, model, gpu_bytes=gpu)
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("miniature", [True, False])
def test_names_of_cells_are_unique_and_settings_go_through_json(tmp_path, miniature):
    plan = Plan.of(tmp_path, miniature=miniature)
    cells = [cell for phase in PHASES.values() for cell in cells_of(phase, plan)]
    assert len({(cell.phase, cell.name) for cell in cells}) == len(cells)
    for cell in cells:
        assert json.loads(json.dumps(cell.settings)) == dict(cell.settings)
        assert cell.phase in PHASES


def test_full_training_is_in_the_grid_only_where_its_state_fits(tmp_path):
    def full(gpu: float) -> set[str]:
        cells = cells_of(PHASES["memory"], Plan(tmp_path, tmp_path, gpu_bytes=gpu))
        return {cell.settings["size"] for cell in cells if cell.settings["trained"] == "full"}

    assert full(80e9) == {"1.5B", "3B"}
    assert full(140e9) == {"1.5B", "3B", "7B"}


@pytest.mark.parametrize(
    "changed", ["machine.cores", "driver", "miniature", "random_weights", "versions.torch"]
)
def test_another_machine_or_setting_is_refused_by_its_key(plan, changed):
    plan.out.mkdir()
    begin(plan)
    begin(plan)  # the same: nothing is said
    path = plan.out / "provenance.json"
    provenance = json.loads(path.read_text())
    *parents, key = changed.split(".")
    values = provenance["settings"]
    for parent in parents:
        values = values[parent]
    values[key] = "another"
    path.write_text(json.dumps(provenance))
    with pytest.raises(RunError, match=f"{changed} was 'another'"):
        begin(plan)


def test_a_report_on_another_machine_has_the_sizes_of_the_one_that_measured(plan):
    plan.out.mkdir()
    begin(plan)
    assert recorded_plan(replace(plan, miniature=False, gpu_bytes=1e9)) == plan


def test_a_missing_model_is_refused_unless_it_may_be_made(plan):
    with pytest.raises(RunError, match="no model tiny.*--random-weights"):
        check_models(replace(plan, random_weights=False), {"tiny"})


@pytest.mark.parametrize("corpus", [None, Path("/no/such/file")])
def test_real_small_without_its_corpus_is_refused_before_anything_starts(plan, corpus):
    with pytest.raises(RunError, match="--corpus"):
        PHASES["real_small"].check(replace(plan, miniature=False, corpus=corpus))


def test_what_a_killed_start_has_left_of_a_folder_does_not_get_into_it(tmp_path):
    part = tmp_path / "folder.part"
    part.mkdir()
    (part / "left").write_text("1")
    with made_once(tmp_path / "folder") as folder:
        folder.mkdir()
        (folder / "new").write_text("2")
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["new"]


def test_a_made_model_has_the_shape_of_its_size_and_is_made_once(plan):
    from safetensors import safe_open

    folder = model_folder(plan, "tiny")
    with safe_open(folder / "model.safetensors", "pt") as weights:
        count = sum(weights.get_tensor(name).numel() for name in weights.keys())
    assert count == shape_for("tiny").parameters
    made = (folder / "config.json").stat().st_mtime_ns
    assert model_folder(replace(plan, random_weights=False), "tiny") == folder
    assert (folder / "config.json").stat().st_mtime_ns == made


def test_the_meter_sees_what_a_block_holds_and_not_what_was_there_before():
    kept = bytearray(b"1") * (64 << 20)
    meter = PeakMeter()
    with meter.peak() as before:
        pass
    with meter.peak() as peak:
        held = bytearray(b"1") * (64 << 20)
    assert before["used"] < 32 << 20 < 60 << 20 < peak["used"] < 100 << 20
    assert len(kept) == len(held)


def test_the_page_keeps_everything_outside_of_its_section(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"# A\n\nfigures: 1.5\n\n{BEGIN}\n\nold\n\n{END}\n\nthe end\n")
    write_section(page, r"new \1 text")
    assert page.read_text() == f"# A\n\nfigures: 1.5\n\n{BEGIN}\n\nnew \\1 text\n\n{END}\n\nthe end\n"


@pytest.mark.parametrize("text", ["no marks", BEGIN, f"{BEGIN}{END}{BEGIN}{END}"])
def test_a_page_without_one_section_is_refused_and_left(tmp_path, text):
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(RunError):
        write_section(page, "new")
    assert page.read_text() == text


def test_a_section_names_what_was_not_run_what_failed_and_that_a_miniature_is_none_of_a_gpu(plan, store):
    plan.out.mkdir()
    begin(plan)
    first, second, *_ = cells_of(PHASES["retrieval"], plan)
    store.write(first, {"queries_per_s": {"1": 1234.5}, "on_gpu": False})
    store.fail(second, "Traceback\nCUDA out of memory")
    text = section(plan)
    assert text.startswith("In miniature, on a CPU: no figure is one of a GPU.")
    assert "| encoder minilm, float32 | 1,234 | – | – | – | no |" in text
    assert f"- {second.label}: failed: CUDA out of memory" in text
    assert text.index("Not run:") < text.index("exact search in 2,000 x 64")


def test_the_published_section_is_what_the_command_writes(tmp_path):
    """Until a GPU has run the cells: that none was run."""
    text = PAGE.read_text(encoding="utf-8")
    published = text.partition(BEGIN)[2].partition(END)[0].strip()
    if "###" not in published:
        assert published == section(Plan(tmp_path, tmp_path))


def test_a_cell_whose_process_wrote_nothing_has_failed_too(store, tmp_path):
    """A process that is killed before its first line leaves no log, whose end could be the error."""
    (tmp_path / "log").write_text("\n")
    store.fail(CELL, tmp_path / "log")
    assert store.read(CELL).error


def test_a_gpu_that_does_not_answer_once_has_the_memory_of_its_last_reading(monkeypatch):
    """The driver is read a hundred times a second, and one failed reading is no free GPU."""
    readings = iter([3e9, 3e9, None, 5e9])
    monkeypatch.setattr(memory_use, "gpu_memory_used", lambda: next(readings))
    monkeypatch.setattr(memory_use, "_resident_of_children", lambda: 9e9)
    meter = memory_use.TrainingMeter()
    for _ in range(3):
        meter.values.append((0.0, meter._used()))
    assert [value for _, value in meter.values] == [3e9, 3e9, 5e9]
