"""Where veRL's logger `file` writes when `rag-r1 train` starts it: below the run's folder, a file for each
start.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from rag_r1.config.guard import GuardOptions
from rag_r1.training.guard.guard import Guard
from rag_r1.training.metrics_files import MetricsFile, metrics_file, metrics_override
from rag_r1.training.progress import train

KEY = "ray_kwargs.ray_init.runtime_env.env_vars.VERL_FILE_LOGGER_PATH"


@pytest.fixture(autouse=True)
def _no_place_of_the_users(monkeypatch):
    for name in ("VERL_FILE_LOGGER_PATH", "VERL_FILE_LOGGER_ROOT"):
        monkeypatch.delenv(name, raising=False)


def log_overrides(config) -> list[str]:
    path = metrics_file(config)
    return [] if path is None else [metrics_override(path)]


def config(folder: Path | str, logger=("console", "file"), **variables):
    ray = {"ray_init": {"runtime_env": {"env_vars": variables}}}
    return OmegaConf.create(
        {"trainer": {"logger": logger, "default_local_dir": str(folder)}, "ray_kwargs": ray}
    )


def test_the_file_is_below_the_folder_of_the_run(tmp_path):
    folder = tmp_path / "it's a run"
    (override,) = log_overrides(config(folder))
    assert override == f"++{KEY}='{tmp_path}/it\\'s a run/metrics-1.jsonl'"
    assert folder.is_dir()  # veRL makes none


def test_each_start_has_a_file_of_its_own(tmp_path):
    for number in (1, 2, 9):
        (tmp_path / f"metrics-{number}.jsonl").touch()
    (tmp_path / "metrics-old.jsonl").touch()
    (override,) = log_overrides(config(tmp_path))
    assert override.endswith("/metrics-10.jsonl'")


def test_a_relative_folder_is_passed_on_whole_because_rays_processes_may_run_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (override,) = log_overrides(config("outputs/run"))
    assert f"'{tmp_path}/outputs/run/metrics-1.jsonl'" in override


@pytest.mark.parametrize("logger", ["file", ["file"], ["wandb", "file"]])
def test_the_logger_may_be_one_or_several(tmp_path, logger):
    assert len(log_overrides(config(tmp_path, logger))) == 1


@pytest.mark.parametrize("logger", ["console", ["console", "wandb"], None, []])
def test_without_the_logger_nothing_is_set_and_no_folder_is_made(tmp_path, logger):
    assert log_overrides(config(tmp_path / "run", logger)) == [] and not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["VERL_FILE_LOGGER_PATH", "VERL_FILE_LOGGER_ROOT"])
def test_a_place_that_the_user_names_is_kept(tmp_path, monkeypatch, name):
    assert log_overrides(config(tmp_path, **{name: "mine"})) == []
    monkeypatch.setenv(name, "mine")
    assert log_overrides(config(tmp_path)) == []


@pytest.mark.slow  # imports veRL
@pytest.mark.parametrize("gradient", [math.nan, math.inf])
def test_the_guard_sees_a_number_that_is_none_as_verl_writes_it(tmp_path, monkeypatch, gradient):
    from verl.utils.tracking import FileLogger

    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "metrics-1.jsonl"))
    log = FileLogger("project", "experiment")
    log.log({"search/score": 0.5, "actor/grad_norm": gradient}, 3)
    log.finish()
    [(step, metrics)] = MetricsFile(tmp_path / "metrics-1.jsonl").new_lines()
    [sign] = Guard(GuardOptions()).see(step, metrics)
    assert sign.name == "not_finite" and "actor/grad_norm" in sign.cause


def test_a_line_that_is_too_long_for_verls_is_skipped_and_those_after_it_are_read(tmp_path):
    path = tmp_path / "metrics-1.jsonl"
    path.write_bytes(b'{"step": 1, "data": {"text": "' + b"x" * (5 << 19))
    file = MetricsFile(path)
    assert [*file.new_lines()] == []
    with path.open("ab") as lines:
        lines.write(b'"}}\n{"step": 2, "data": {"search/score": 0.5}}\n{"step": 3, "da')
    assert [*file.new_lines()] == [(2, {"search/score": 0.5})]


WRITES = """
import os
with open(os.environ["VERL_FILE_LOGGER_PATH"], "w") as file:
    file.write('{"step": 1, "data": {"search/score": null, "search/searches": 1.5}}\\nno JSON\\n')
"""


def test_a_step_without_a_score_and_a_line_of_anothers_end_no_training(tmp_path, capsys):
    train([sys.executable, "-c", WRITES], tmp_path, timeout_s=60)
    assert "step   1  reward nan, 1.5 searches per question" in capsys.readouterr().out


@pytest.mark.slow
def test_a_recipe_takes_the_override(tmp_path):
    from rag_r1.config.recipes import Recipe
    from rag_r1.training.composition import compose_recipe

    recipe, overrides = Recipe.find("demo/grpo"), [f"trainer.default_local_dir={tmp_path}"]
    overrides += log_overrides(compose_recipe(recipe, overrides))
    path = OmegaConf.select(compose_recipe(recipe, overrides), KEY)
    assert path == f"{tmp_path}/metrics-1.jsonl"
