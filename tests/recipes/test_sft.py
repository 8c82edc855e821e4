"""The recipes for SFT compose and hold the published numbers, and `rag-r1 sft` checks what it can first."""

from __future__ import annotations

import json
from pathlib import Path
from subprocess import CompletedProcess
from unittest.mock import Mock

import pytest
import yaml
from omegaconf import OmegaConf

from rag_r1.config.recipes import Recipe
from rag_r1.data.sft_rows import Piece, SftRow, write_sft_rows
from rag_r1.inference.model_folders import TRACKER
from rag_r1.options.command_exit import CommandError
from rag_r1.options.problems import PreflightReport
from rag_r1.sft import train_command
from rag_r1.training.checkpoint_steps import saved_checkpoints
from rag_r1.training.preflight import preflight_sft
from rag_r1.training.preflight.settings import check_numbers
from rag_r1.training.stages import lock_folder
from tests.recipes.called_scripts import call_script, make_project
from tests.recipes.composed_recipes import compose_quickly
from tests.recipes.test_published import PUBLISHED

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ["recipes/rag_r1/sft/qwen_7b", "recipes/rag_r1/sft/demo"]
MICRO_BATCH = "data.micro_batch_size_per_gpu"


def rows(count: int, words: str = "a") -> list[SftRow]:
    message = {"role": "user", "content": "q"}
    target = Piece(f"<answer> {words} </answer>", True, True)
    return [
        SftRow(f"made/{number}", f"q{number}", "rag_r1_mq", "question -> answer", (message,), (target,))
        for number in range(count)
    ]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_sft_rows(tmp_path / "train.parquet", rows(64))
    write_sft_rows(tmp_path / "validation.parquet", rows(16))
    return tmp_path


def checked(data: Path, model: Path, *overrides: str):
    """What the preflight says of the demo's recipe with this data and model: places, and whole texts."""
    overrides_of_data = [*train_command.data_overrides(data), f"model.path='{model}'", *overrides]
    report = preflight_sft(compose_quickly(RECIPES[1], overrides_of_data))
    return [problem.where for problem in report.problems], "\n".join(map(str, report.problems))


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_verls_sft_trainer_with_our_data_set(name):
    config = compose_quickly(name, [])
    assert config.data.custom_cls.name == "SftDataset"
    assert "hf_model" in config.checkpoint.save_contents
    assert config.data.max_token_len_per_gpu >= config.data.max_length
    assert config.model.path is None and config.data.train_files is None


@pytest.mark.slow
def test_the_recipe_for_gpus_is_for_eight():
    config = compose_quickly(RECIPES[0], [])
    assert config.trainer.device == "cuda" and config.trainer.n_gpus_per_node == 8


def test_llama_factory_is_told_the_same():
    settings = yaml.safe_load((ROOT / "recipes" / "rag_r1" / "sft" / "llama_factory.yaml").read_text())
    published = PUBLISHED[RECIPES[0]]
    assert settings["cutoff_len"] == published["data.max_length"]
    assert settings["num_train_epochs"] == published["trainer.total_epochs"]
    expected = {"template": "empty", "mask_history": True, "finetuning_type": "full"}
    expected |= {"dataset": "rag_r1_sft", "eval_dataset": "rag_r1_sft_validation"}
    assert settings == {**settings, **expected}


@pytest.mark.slow
def test_all_is_well_with_data_that_fits(data, model_folder):
    assert checked(data, model_folder) == ([], "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "keys"),
    [
        (["data.train_batch_size=128"], ["data.train_files", "data.val_files"]),
        (["data.train_batch_size=32"], ["data.val_files"]),
        (["trainer.n_gpus_per_node=3"], ["data.train_batch_size"]),
        (["data.use_dynamic_bsz=false", f"{MICRO_BATCH}=3"], [MICRO_BATCH]),
        (["data.max_length=8"], ["data.max_length", "data.max_length"]),
        (["data.max_token_len_per_gpu=100"], ["data.max_token_len_per_gpu"]),
        (["data.val_files=null"], ["trainer.test_freq"]),
        (["data.val_files=null", "trainer.test_freq=-1"], []),
        (["data.val_files=null", "trainer.test_freq=2"], ["trainer.test_freq"]),
        (["trainer.test_freq=0"], ["trainer.test_freq"]),
        (["trainer.test_freq=after_epoch"], ["trainer.test_freq"]),
        (["trainer.save_freq=0", "trainer.test_freq=null"], ["trainer.save_freq", "trainer.test_freq"]),
        (["trainer.total_training_steps=99"], ["trainer.total_training_steps"]),
        (["trainer.total_training_steps=2"], []),
        (["data.protocol=rag_r1_sq"], ["data.protocol"]),
        (["data.protocol=no_such"], ["data.protocol"]),
        (["data.train_files=nowhere.parquet"], ["data.train_files"]),
        (["data.val_files=nowhere.parquet"], ["data.val_files"]),
        (["model.path=null"], ["model.path"]),
        (["model.path=/nowhere"], ["model.path"]),
        (["checkpoint.save_contents=[model]"], ["checkpoint.save_contents"]),
    ],
    ids=lambda given: " ".join(given) if given else None,
)
def test_what_would_fail_later_is_named_before(data, model_folder, overrides, keys):
    assert checked(data, model_folder, *overrides)[0] == keys


@pytest.mark.slow
def test_data_of_another_tokenizer_is_named_with_its_row(data, model_folder):
    write_sft_rows(data / "train.parquet", rows(64, "a <|im_end|> b"))
    keys, text = checked(data, model_folder)
    assert keys == ["data.train_files"] and "made/0" in text and "<|im_end|>" in text


@pytest.mark.slow
def test_the_command_checks_and_starts_nothing(data, model_folder, capsys):
    args = ["--recipe", RECIPES[1], "--data", str(data), "--check-only", f"model.path={model_folder}"]
    assert train_command.main(args) == 0
    assert "preflight: all is well" in capsys.readouterr().out
    (data / "run" / "model").mkdir(parents=True)  # as `scp -r` makes it of a link
    wrong = ["trainer.no_such_key=1", "trainer.nnodes=2", f"trainer.default_local_dir={data / 'run'}"]
    assert train_command.main([*args, *wrong]) == 1
    errors = capsys.readouterr().err
    assert "trainer.no_such_key" in errors and "is in the way of the link" in errors
    assert "--nnodes=2" in errors and "--node-rank=RANK" in errors


@pytest.mark.slow
def test_a_recipe_for_reinforcement_learning_is_refused(capsys):
    assert train_command.main(["--recipe", "recipes/rag_r1/grpo", "--check-only"]) == 1
    assert "not a recipe for SFT" in capsys.readouterr().err
    assert train_command.main(["--recipe", "no/such/recipe"]) == 1
    assert "there is no recipe" in capsys.readouterr().err


def test_on_gpus_verls_own_module_is_started_and_on_a_cpu_ours():
    recipe = Recipe.find(RECIPES[0])
    gpu, cpu = (train_command.training_command(device, 8, recipe, ["a=1"]) for device in ("cuda", "cpu"))
    assert "verl.trainer.sft_trainer" in gpu and "rag_r1.plugin.cpu.sft_trainer" in cpu
    assert "--nproc-per-node=8" in gpu and gpu[-1] == "a=1"


def checkpoint(folder: Path, step: int) -> Path:
    model = folder / f"global_step_{step}" / "huggingface"
    model.mkdir(parents=True)
    (model / "model.safetensors").write_text("weights")
    return model


def logged(path: Path, losses: dict[int, float], end: str = "") -> None:
    lines = [json.dumps({"step": step, "data": {"val/loss": loss}}) for step, loss in losses.items()]
    lines.insert(1, json.dumps({"step": 1, "data": {"train/loss": 0.1}}))
    path.write_text("\n".join(lines) + "\n" + end)


def test_the_model_with_the_lowest_validation_loss_is_chosen(tmp_path):
    models = {step: checkpoint(tmp_path, step) for step in (10, 20, 30)}
    assert train_command.best_model(tmp_path)[0] == models[30], "without validation the last one"
    logged(tmp_path / "metrics.jsonl", {10: 0.9, 15: 0.1, 20: 0.5, 30: 0.7}, '{"step": 3')
    model, text = train_command.best_model(tmp_path)
    assert model == models[20] and "0.5000" in text and "lowest of 3" in text


def test_losses_of_the_runs_before_a_resumption_count_too(tmp_path):
    models = {step: checkpoint(tmp_path, step) for step in (10, 20)}
    logged(tmp_path / "metrics-1.jsonl", {10: 0.2})
    logged(tmp_path / "metrics-2.jsonl", {10: 0.4})
    logged(tmp_path / "metrics.jsonl", {20: 0.3, 10: float("nan")})
    assert train_command.best_model(tmp_path)[0] == models[20]


def test_logs_and_checkpoints_that_a_user_has_set_aside_are_left_alone(tmp_path):
    model = checkpoint(tmp_path, 10)
    (tmp_path / "global_step_20_old" / "huggingface").mkdir(parents=True)
    (tmp_path / "global_step_20_old" / "huggingface" / "model.safetensors").touch()
    logged(tmp_path / "metrics-old.jsonl", {10: 0.1})
    logged(tmp_path / "metrics-3.jsonl", {10: 0.4})
    before = (tmp_path / "metrics-3.jsonl").read_bytes()
    logged(tmp_path / "metrics.jsonl", {10: 0.3})
    assert train_command.run(["true"], tmp_path, NEW) == 0
    assert (tmp_path / "model").resolve() == model
    assert (tmp_path / "metrics-3.jsonl").read_bytes() == before and (tmp_path / "metrics-4.jsonl").exists()


def test_a_training_that_is_running_keeps_its_checkpoints(tmp_path, monkeypatch, capsys):
    for step in (1, 2, 3):
        checkpoint(tmp_path, step)
    (tmp_path / TRACKER).write_text("2")  # the third is being written
    config = OmegaConf.create({"trainer": {"resume_mode": "auto", "max_ckpt_to_keep": 1}})
    checked = (config, ["true"], tmp_path, PreflightReport())
    monkeypatch.setattr(train_command, "_check_recipe", lambda args: checked)
    with lock_folder(tmp_path):
        assert train_command.main(["--recipe", "r", "--hours", "1"]) == 1
    assert "a training is still running" in capsys.readouterr().err
    assert sorted(saved_checkpoints(tmp_path)) == [1, 2, 3]


def test_a_run_without_an_exported_model_is_told(tmp_path):
    with pytest.raises(FileNotFoundError, match="hf_model"):
        train_command.best_model(tmp_path)


#: A training that resumes nothing.
NEW = OmegaConf.create({"trainer": {"resume_mode": "disable"}})


def test_a_training_links_its_model_and_keeps_earlier_logs(tmp_path, monkeypatch):
    """The command that stands in for veRL's leaves what veRL leaves."""
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "elsewhere.jsonl"))
    script = """
        mkdir -p "$1/global_step_$2/huggingface"
        touch "$1/global_step_$2/huggingface/model.safetensors"
        echo "{\\"step\\": $2, \\"data\\": {\\"val/loss\\": 0.$2}}" > "$VERL_FILE_LOGGER_PATH"
    """
    for step in ("2", "3"):
        command = ["bash", "-c", script, "-", str(tmp_path / "run"), step]
        train_command.run(command, tmp_path / "run", NEW)
    assert (tmp_path / "run" / "model").resolve() == tmp_path / "run" / "global_step_2" / "huggingface"
    assert (tmp_path / "run" / "metrics-1.jsonl").exists()
    with monkeypatch.context() as kill, pytest.raises(KeyboardInterrupt):
        kill.setattr(Path, "symlink_to", Mock(side_effect=KeyboardInterrupt))
        train_command.run(["true"], tmp_path / "run", NEW)
    assert (tmp_path / "run" / "model").exists()
    with pytest.raises(CommandError, match="the same command resumes it") as failed:
        train_command.run(["sh", "-c", "exit 7"], tmp_path / "run", NEW)
    assert failed.value.status == 7


def call(folder: Path, *arguments: str, **variables: str) -> CompletedProcess[str]:
    script = "recipes/rag_r1/sft/run.sh"
    return call_script(make_project(folder, script), script, *arguments, **variables)


@pytest.mark.parametrize(("platform", "recipe"), [("gpu", "qwen_7b"), ("cpu", "demo")])
def test_the_script_calls_the_command_with_the_overrides_last(tmp_path, platform, recipe):
    variables = {"MODEL": "/models/it's", "DATA": "data/sft", "OUT": "out", "RAG_R1_PLATFORM": platform}
    done = call(tmp_path, "--check-only", "optim.lr=1", **variables)
    assert done.stdout.splitlines() == [
        f"rag-r1 <sft> <--recipe> <{tmp_path}/recipes/rag_r1/sft/{recipe}> <--data> <data/sft> "
        "<model.path='/models/it\\'s'> <trainer.default_local_dir='out'> <--check-only> <optim.lr=1>"
    ]


@pytest.mark.parametrize(("arguments", "status", "word"), [((), 2, "DATA not set"), (["--help"], 0, "MODEL")])
def test_the_script_names_what_is_not_set(tmp_path, arguments, status, word):
    done = call(tmp_path, *arguments, MODEL="m", RAG_R1_PLATFORM="cpu")
    assert done.returncode == status and word in done.stdout + done.stderr


def test_a_number_that_is_none_is_named_and_so_is_an_unset_one_unless_it_may_be():
    config = OmegaConf.create(
        {"data": {"train_batch_size": "abc", "max_length": None}, "trainer": {"nnodes": 2}}
    )
    keys = ["data.train_batch_size", "data.max_length", "data.val_max_samples", "trainer.nnodes"]
    number, unset = check_numbers(config, keys)
    assert number.where == "data.train_batch_size" and "'abc'" in number.what
    assert unset.where == "data.max_length" and "null" in unset.what


@pytest.mark.slow
def test_a_batch_that_is_no_number_is_a_problem_beside_the_others(data, tmp_path):
    places, _ = checked(data, tmp_path, "data.train_batch_size=abc", "trainer.nnodes=two")
    assert {"data.train_batch_size", "trainer.nnodes", "model.path"} <= set(places)


@pytest.mark.slow
def test_processes_and_machines_that_are_no_numbers_are_problems_of_the_command(data, model_folder, capsys):
    args = ["--recipe", RECIPES[1], "--data", str(data), "--check-only", f"model.path={model_folder}"]
    wrong = {"trainer.nnodes": "two", "trainer.n_gpus_per_node": "one", "trainer.default_local_dir": "null"}
    assert train_command.main([*args, *(f"{key}={value}" for key, value in wrong.items())]) == 1
    errors = capsys.readouterr().err
    assert all(f"error: {key}: " in errors for key in wrong)
