"""A recipe's band is made from several runs; a run is as expected, or the signal that left is named."""

from __future__ import annotations

import json
import math
import random

import pytest

from rag_r1.config.recipes import RECIPES, Recipe
from rag_r1.io.atomic_files import write_json
from rag_r1.runs.errors import RunError
from rag_r1.training.guard.bands import BandCheck, main, make_band, read_band
from rag_r1.training.guard.history import History


def history(seed: int, steps: int = 12) -> History:
    noise, made = random.Random(seed), History()
    for step in range(1, steps + 1):
        made.add(step, {"search/right": 0.5 + 0.03 * step + noise.gauss(0, 0.02), "search/searches": 1.5})
    return made


@pytest.fixture
def band(tmp_path):
    path = tmp_path / "band.json"
    write_json(path, {"signals": make_band([history(seed) for seed in range(5)])})
    return read_band(path)


def line(known: History, step: int, **others: float) -> dict[str, float]:
    values = {"search/right": known.right.values[step - 1], "search/searches": 1.5}
    return {**values, **{name.replace("__", "/"): value for name, value in others.items()}}


@pytest.mark.parametrize("seed", range(10, 30))
def test_a_run_of_another_seed_is_as_expected(band, seed):
    check, known = BandCheck(band), history(seed)
    assert [check.see(step, line(known, step)) for step in range(1, 13)] == [[]] * 12
    assert check.summary() == "as expected: 2 signals at 12 steps are in the band of this recipe"


def test_the_signal_that_leaves_is_named_once_with_its_step(band):
    check, known = BandCheck(band), history(10)
    lines = [
        check.see(step, line(known, step, search__searches=0.5 if step > 6 else 1.5)) for step in range(1, 13)
    ]
    assert [bool(said) for said in lines] == [False] * 6 + [True] + [False] * 5
    assert lines[6][0].startswith("step 7: search/searches is 0.500, expected 1.350 to 1.650")
    assert check.summary().endswith("left the band of this recipe: search/searches (step 7)")


def test_a_finished_run_of_a_recipe_with_a_band_is_compared_with_it(tmp_path):
    folder, metrics = tmp_path / "mine.yaml", tmp_path / "metrics.jsonl"
    folder.write_text("defaults: [rag_r1/grpo, _self_]\n")
    assert BandCheck.summary_of_run(Recipe.find(folder), metrics) == ""  # there is none
    signals = make_band([history(seed) for seed in range(5)])
    write_json(tmp_path / "mine.band.json", {"signals": signals})
    values = {"search/right": 0.53, "search/searches": 9.0}
    metrics.write_text(json.dumps({"step": 1, "data": values}) + "\n")
    assert BandCheck.summary_of_run(Recipe.find(folder), metrics).endswith("search/searches (step 1)")


def test_a_run_without_a_step_of_the_band_is_not_judged(band):
    check = BandCheck(band)
    check.see(99, {"search/right": 0.0})
    assert check.summary() == ""


def test_a_signal_that_a_run_has_not_logged_is_not_counted(band):
    check, known = BandCheck(band), history(10)
    for step in (1, 2):
        check.see(step, {"search/right": known.right.values[step - 1]})
    assert check.summary() == "as expected: 1 signals at 2 steps are in the band of this recipe"


def test_a_band_of_two_runs_is_refused():
    with pytest.raises(RunError, match="three"):
        make_band([history(0), history(1)])


def test_a_step_without_a_number_in_one_run_has_no_band():
    histories = [history(seed) for seed in range(5)]
    histories[2].right.values[6] = math.nan
    histories[3].right.values[7] = math.inf
    made = make_band(histories)["right"]
    assert set(made) == {str(step) for step in range(1, 13)} - {"7", "8"}
    assert all(math.isfinite(end) for ends in made.values() for end in ends)


@pytest.mark.parametrize("ends", ["[0]", f"[0, 1{'0' * 400}]", "null"])
def test_a_file_that_is_no_band_is_named(tmp_path, ends):
    (tmp_path / "x.band.json").write_text(f'{{"signals": {{"a": {{"1": {ends}}}}}}}')
    with pytest.raises(RunError, match="x.band.json is not a band"):
        read_band(tmp_path / "x.band.json")


def test_the_command_says_which_run_has_no_metrics(tmp_path, capsys):
    assert main(["--runs", str(tmp_path), "--out", str(tmp_path / "b.json")]) == 1
    assert f"{tmp_path} has no metrics" in capsys.readouterr().err


def test_a_run_that_is_a_file_and_a_band_without_a_folder_are_named(tmp_path, capsys):
    run = tmp_path / "run.jsonl"
    run.touch()
    assert main(["--runs", str(run), "--out", str(tmp_path / "b.json")]) == 1
    assert str(run) in capsys.readouterr().err
    runs = [tmp_path / str(number) for number in range(3)]
    for path in runs:
        path.mkdir()
        (path / "metrics.jsonl").write_text(json.dumps({"step": 1, "data": {"search/right": 0.5}}) + "\n")
    assert main(["--runs", *map(str, runs), "--out", str(tmp_path / "none" / "b.json")]) == 1
    assert "none/b.json" in capsys.readouterr().err


@pytest.mark.parametrize("path", sorted(RECIPES.rglob("*.band.json")), ids=lambda path: path.name)
def test_a_shipped_band_lies_beside_its_recipe(path):
    recipe = Recipe.find(path.with_name(path.name.replace(".band.json", ".yaml")))
    check = BandCheck.of_recipe(recipe)
    assert check is not None and {"right", "held_out", "search/searches"} <= set(check.signals)
