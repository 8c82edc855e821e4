"""The scripts at the root choose between the demo and a training, and say what is missing.

The scripts are real; the environment is not (called_scripts.py).
"""

from __future__ import annotations

from pathlib import Path
from subprocess import CompletedProcess

import pytest

from rag_r1.demo.run import DemoArguments
from rag_r1.options.arguments.fields import flag_of
from rag_r1.training.command import TrainArguments
from tests.recipes.called_scripts import call_script, make_project

DOORS = {"train_ppo.sh": "ppo_sq", "train_ppo_mq.sh": "ppo_mq", "train_grpo.sh": "grpo"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    setup = 'echo "setup $RAG_R1_PLATFORM ${VENV:-default}"'
    made = make_project(tmp_path, "scripts/train.sh", *DOORS, setup=setup)
    (made / ".venv").mkdir()
    (made / ".venv" / "bin").symlink_to(made / "bin")
    return made


def call(project: Path, door: str, *arguments: str, **variables: str) -> CompletedProcess[str]:
    return call_script(project, door, *arguments, **{"RAG_R1_PLATFORM": "cpu", **variables})


@pytest.mark.parametrize(("door", "recipe"), DOORS.items())
def test_nothing_set_without_a_gpu_is_the_demo(project: Path, door: str, recipe: str):
    done = call(project, door, "trainer.total_training_steps=5")
    assert done.stdout.splitlines() == [
        "setup cpu default",
        "rag-r1 <doctor>",
        f"python <-m> <rag_r1.demo.run> <--recipe> <{recipe}> <trainer.total_training_steps=5>",
    ]


@pytest.mark.parametrize(("door", "recipe"), DOORS.items())
def test_all_set_is_a_training_with_the_overrides_last(project: Path, door: str, recipe: str):
    (project / "my data").mkdir()
    variables = {"MODEL": "org/name", "DATA": "my data", "RETRIEVER_URL": "http://10.0.0.1:8000"}
    done = call(project, door, "a=b", RAG_R1_PLATFORM="gpu", **variables)
    assert done.stdout.splitlines()[-1] == (
        f"rag-r1 <train> <--recipe> <{project}/recipes/rag_r1/{recipe}> <platform=gpu>"
        " <actor_rollout_ref.model.path='org/name'>"
        f" <data.train_files='{project}/my data/train.parquet'>"
        f" <data.val_files='{project}/my data/test.parquet'>"
        " <rag_r1.retriever.url='http://10.0.0.1:8000'> <a=b>"
    )


def test_a_dead_retriever_is_left_to_the_preflight_which_reports_all_problems_together(project: Path):
    (project / "bin" / "rag-r1").write_text('#!/bin/sh\necho "$1 knows <$RETRIEVER_URL>"\n')
    done = call(project, "train_grpo.sh", MODEL="m", DATA="d", RETRIEVER_URL="http://127.0.0.1:1")
    assert done.stdout.splitlines()[1:] == ["doctor knows <>", "train knows <http://127.0.0.1:1>"]


@pytest.mark.parametrize("variables", [{"MODEL": "x"}, {"DATA": "x", "RETRIEVER_URL": "y"}])
def test_partly_set_names_what_is_missing_beside_other_wrong_inputs_and_installs_nothing(
    project: Path, variables: dict[str, str]
):
    done = call(project, "train_grpo.sh", "word", "--step=3", "a.b=1", **variables)
    assert done.returncode == 2 and done.stdout == ""
    missing = [name for name in ("MODEL", "DATA", "RETRIEVER_URL") if name not in variables]
    assert f"but not {' '.join(missing)}: " in done.stderr
    assert "'word'" in done.stderr and "--step" in done.stderr and "unbound" not in done.stderr


def test_before_the_first_installation_all_wrong_inputs_are_named_and_nothing_is_installed(project: Path):
    (project / ".venv" / "bin").unlink()
    (project / "model").mkdir()
    wrong = {"MODEL": "model", "DATA": "none", "RETRIEVER_URL": "nourl", "PATH": "/usr/bin:/bin"}
    done = call(project, "train_grpo.sh", "--check-only", "word", "a.b=1", "--hours", "3", **wrong)
    assert done.returncode == 2 and done.stdout == ""
    named = (
        "'word'",
        "MODEL=model",
        "none has no train.parquet",
        "none has no test.parquet",
        "RETRIEVER_URL",
    )
    assert [name for name in named if name not in done.stderr] == [] and "'3'" not in done.stderr


@pytest.mark.parametrize("variables", [{}, {"MODEL": "org/m", "DATA": "data", "RETRIEVER_URL": "http://h:1"}])
def test_before_the_first_installation_a_flag_that_the_command_does_not_have_is_named(
    project: Path, variables
):
    (project / ".venv" / "bin").unlink()
    command = TrainArguments if variables else DemoArguments
    words = [flag_of(name) for name in command.model_fields if name != "overrides"]
    done = call(project, "train_grpo.sh", *words, "--step=3", "-x", PATH="/usr/bin:/bin", **variables)
    assert done.returncode == 2 and done.stdout == ""
    named = [line for line in done.stderr.splitlines() if "none of the flags" in line]
    assert [line.split()[1] for line in named] == ["--step", "-x"]
    assert all(word in named[0] for word in words)


@pytest.mark.parametrize("variables", [{}, {"DEMO": "1"}, {"MODEL": "x"}])
def test_a_platform_that_there_is_not_is_refused_also_for_the_demo(project: Path, variables):
    done = call(project, "train_grpo.sh", RAG_R1_PLATFORM="tpu", **variables)
    assert done.returncode == 2 and "RAG_R1_PLATFORM is 'tpu'" in done.stderr and done.stdout == ""


def test_without_a_recipe_those_that_there_are_are_named(project: Path):
    done = call(project, "scripts/train.sh")
    assert done.returncode == 2 and "ppo_sq" in done.stderr and "unbound" not in done.stderr


def test_nothing_set_on_a_gpu_machine_says_what_to_set(project: Path):
    done = call(project, "train_ppo.sh", RAG_R1_PLATFORM="gpu")
    assert done.returncode == 2 and done.stdout == ""
    assert "MODEL DATA RETRIEVER_URL are not set" in done.stderr
    assert "DEMO=1 bash train_ppo.sh" in done.stderr


def test_the_demo_on_a_gpu_machine_leaves_the_gpu_environment_alone(project: Path):
    done = call(project, "train_ppo.sh", RAG_R1_PLATFORM="gpu", DEMO="1")
    assert done.stdout.splitlines()[0] == f"setup cpu {project}/.venv-cpu"
    assert "rag_r1.demo.run" in done.stdout


def test_a_doctor_that_finds_something_missing_ends_the_script(project: Path):
    done = call(project, "train_grpo.sh", FAIL="3")
    assert done.returncode == 3
    assert "rag_r1.demo.run" not in done.stdout


@pytest.mark.parametrize("door", DOORS)
def test_help_explains_the_variables_and_installs_nothing(project: Path, door: str):
    done = call(project, door, "--help")
    assert done.returncode == 0 and "setup" not in done.stdout
    for word in ("MODEL", "DATA", "RETRIEVER_URL", "DEMO=1", "VENV", f"bash {door}"):
        assert word in done.stdout
