"""The last lines of a training: they name what is there, and every command in them can be parsed."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from rag_r1.config.guard import GuardOptions
from rag_r1.config.recipes import Recipe
from rag_r1.evaluation.eval_arguments import EvalArguments
from rag_r1.evaluation.report.report import ReportArguments
from rag_r1.explorer.command import ViewArguments
from rag_r1.inference.model_folders import newest_checkpoint
from rag_r1.inference.nf4.export import ExportArguments
from rag_r1.options.command_line import read_arguments
from rag_r1.training import launch
from rag_r1.training.added_overrides import config_overrides
from rag_r1.training.composition import compose_recipe
from rag_r1.training.guard.signs import TrainingFacts
from rag_r1.training.guard.watched_run import WatchedRun
from rag_r1.training.next_steps import after_demo, after_sft, after_training


def config(folder: Path, **ours):
    """What these lines read of a composed configuration."""
    return OmegaConf.create(
        {
            "rag_r1": {
                "protocol": "rag_r1_mq",
                "prompt": None,
                "agent": {"max_turns": 4, "max_turn_tokens": 500, "min_turn_tokens": 16},
                "validation_agent": {"max_turns": 5},
                "retriever": {
                    "tool": "retrieval",
                    "wire": "retrieve",
                    "url": "http://localhost:8000",
                    "topk": 3,
                },
                "validation_retriever": {},
                "trajectory_dir": "${trainer.default_local_dir}/trajectories",
                **ours,
            },
            "data": {
                "val_files": str(folder / "a b.parquet"),
                "max_prompt_length": 512,
                "max_response_length": 4096,
            },
            "actor_rollout_ref": {"actor": {"strategy": "fsdp2"}},
            "trainer": {"default_local_dir": str(folder / "run"), "save_freq": 50},
        }
    )


def checkpoint(folder: Path, step: int = 7, exported: bool = False) -> Path:
    folder_of_step = folder / "run" / f"global_step_{step}"
    (folder_of_step / "actor" / "huggingface").mkdir(parents=True)
    if exported:
        (folder_of_step / "actor" / "huggingface" / "model.safetensors").write_text("")
    (folder / "run" / "latest_checkpointed_iteration.txt").write_text(str(step))
    return folder_of_step


def records(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / "run" / "trajectories" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")


def commands(lines: list[str]) -> list[list[str]]:
    """The commands: lines of their own, indented."""
    return [shlex.split(line) for line in lines if line.startswith("  ")]


def test_a_policy_that_learnt_with_tools_is_evaluated_with_them(tmp_path):
    checkpoint(tmp_path)
    [evaluation, *_] = commands(after_training(config(tmp_path, tools={"calculator": "calculator"})))
    assert 'rag_r1.tools={"calculator": "calculator"}' in evaluation


def test_after_a_training_over_nf4_the_export_comes_before_the_evaluation(tmp_path):
    settings = config(tmp_path)
    settings.actor_rollout_ref.model = {"path": "models/qwen", "external_lib": "rag_r1.plugin.nf4.register"}
    step = checkpoint(tmp_path)
    export, evaluation, *_ = commands(after_training(settings))
    args = read_arguments(ExportArguments, export[3:], prog="", description="")
    assert (args.checkpoint, args.base, args.merged) == (step, "models/qwen", True)
    assert evaluation[:2] == ["rag-r1", "eval"] and str(args.out) in evaluation


def test_the_newest_checkpoint_is_evaluated_inspected_and_exported(tmp_path):
    newest = checkpoint(tmp_path)
    records(tmp_path, "train/step_000007-1.jsonl", "val/step_000005-1.jsonl", "val/step_000007-2.jsonl")
    lines = after_training(config(tmp_path))
    assert lines[0] == f"checkpoint: {newest}"
    evaluate, view, report, export = commands(lines)

    args = read_arguments(EvalArguments, evaluate[2:], description="")
    assert evaluate[:2] == ["rag-r1", "eval"] and args.model == str(newest)
    assert args.questions == [tmp_path / "a b.parquet"] and args.protocol == "rag_r1_mq"
    assert (args.max_prompt_tokens, args.max_response_tokens) == (512, 4096)
    assert set(args.overrides) == {
        "rag_r1.agent.max_turns=5", "rag_r1.agent.max_turn_tokens=500", "rag_r1.retriever.topk=3"
    }, "the limits and the search of the validation"  # fmt: skip

    view_args = read_arguments(ViewArguments, view[2:], description="")
    assert view[:2] == ["rag-r1", "view"] and view_args.paths == [tmp_path / "run"]

    report_args = read_arguments(ReportArguments, report[3:], description="")
    assert report[:3] == ["rag-r1", "eval", "report"]
    assert (report_args.run, report_args.step) == (tmp_path / "run" / "trajectories" / "val", 7)

    assert export[0] == "TORCH_FORCE_WEIGHTS_ONLY_LOAD=1"
    assert export[1:5] == ["python", "-m", "verl.model_merger", "merge"]
    assert export[export.index("--backend") + 1] == "fsdp"
    assert export[export.index("--local_dir") + 1] == str(newest / "actor")


def test_the_validations_under_probes_are_named_in_one_line(tmp_path):
    checkpoint(tmp_path)
    records(tmp_path, *(f"{split}/step_000007-1.jsonl" for split in ("val", "val_empty", "val_withheld")))
    lines = after_training(config(tmp_path))
    assert "the same under probes: val_empty, val_withheld" in lines
    assert sum("report" in command for command in commands(lines)) == 1


def test_an_exported_model_is_named_and_not_exported_again(tmp_path):
    newest = checkpoint(tmp_path, exported=True)
    assert after_training(config(tmp_path))[-1].endswith(str(newest / "actor" / "huggingface"))


def test_megatrons_checkpoints_are_merged_by_its_own_backend(tmp_path):
    checkpoint(tmp_path)
    cfg = config(tmp_path)
    cfg.actor_rollout_ref.actor.strategy = "megatron"
    assert "--backend megatron" in after_training(cfg)[-1]


@pytest.mark.parametrize("tracker", [None, "", "9"])
def test_without_a_checkpoint_the_key_is_named_that_saves_one(tmp_path, tracker):
    if tracker is not None:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "latest_checkpointed_iteration.txt").write_text(tracker)
    assert newest_checkpoint(tmp_path / "run") is None
    lines = after_training(config(tmp_path, trajectory_dir=None))
    assert len(lines) == 1 and "trainer.save_freq is 50" in lines[0]


def test_after_a_training_of_adapters_the_checkpoint_is_not_evaluated_as_it_is(tmp_path):
    checkpoint(tmp_path)
    settings = config(tmp_path)
    settings.actor_rollout_ref.model = {"lora_rank": 32}
    lines = after_training(settings)
    assert "verl.model_merger" in lines[2] and "merge_and_unload" in lines[3]
    assert [words[:2] for words in commands(lines[3:])] == [["rag-r1", "view"]]


def test_a_search_and_a_prompt_of_ones_own_are_part_of_the_command(tmp_path):
    checkpoint(tmp_path)
    retriever = {"tool": "mine:search", "wire": "queries", "url": "http://localhost:1"}
    [evaluate, *_] = commands(after_training(config(tmp_path, retriever=retriever, prompt="p.txt")))
    assert {"rag_r1.retriever.tool=mine:search", "rag_r1.retriever.wire=queries"} <= set(evaluate)
    assert evaluate[evaluate.index("--prompt") + 1] == "p.txt"


def test_after_sft_its_model_is_evaluated_and_trained_further():
    evaluate, train = commands(after_sft(Path("outputs/sft/model")))
    assert read_arguments(EvalArguments, evaluate[2:], description="").model == "outputs/sft/model"
    assert "actor_rollout_ref.model.path=outputs/sft/model" in train
    assert Recipe.find(train[train.index("--recipe") + 1]).path.is_file()


def test_after_the_demo_its_folder_is_evaluated_also_with_a_search_card(tmp_path):
    found = checkpoint(tmp_path, exported=True)
    lines = after_demo(tmp_path, found)
    view, plain, card = commands(lines)
    assert view == ["rag-r1", "view", str(tmp_path)]
    assert plain == ["rag-r1", "eval", str(tmp_path)] == card[:3]
    card_args = read_arguments(
        EvalArguments, card[3:], description="", settings={"model": "m", "questions": ["q"]}
    )
    assert card_args.card and card_args.corpus == [tmp_path / "data" / "corpus.jsonl"]
    assert after_demo(tmp_path, None) == lines[:2]


def test_a_training_whose_configuration_is_in_its_folder_is_evaluated_by_that(tmp_path):
    checkpoint(tmp_path)
    (tmp_path / "run" / "hydra" / ".hydra").mkdir(parents=True)
    (tmp_path / "run" / "hydra" / ".hydra" / "config.yaml").write_text(OmegaConf.to_yaml(config(tmp_path)))
    [evaluate, *_] = commands(after_training(config(tmp_path)))
    assert evaluate == ["rag-r1", "eval", str(tmp_path / "run")]


def test_the_configuration_is_written_into_the_folder_unless_another_is_named(tmp_path):
    [override] = config_overrides(config(tmp_path), ["a=1"])
    assert override == f"hydra.run.dir='{tmp_path / 'run' / 'hydra'}'"
    assert config_overrides(config(tmp_path), ["+hydra.run.dir=x"]) == []


@pytest.mark.slow
def test_the_lines_are_made_from_what_a_recipe_composes(tmp_path):
    checkpoint(tmp_path)
    recipe = Recipe.find("recipes/rag_r1/ppo_mq")
    composed = compose_recipe(
        recipe,
        [
            f"trainer.default_local_dir={tmp_path / 'run'}",
            "data.val_files=[a.parquet,b.parquet]",
            "rag_r1.retriever.url=http://127.0.0.1:1",
        ],
    )
    [evaluate, *_] = commands(after_training(composed))
    args = read_arguments(EvalArguments, evaluate[2:], description="")
    assert args.questions == [Path("a.parquet"), Path("b.parquet")]
    assert args.retriever_url == "http://127.0.0.1:1"


@pytest.mark.slow
@pytest.mark.parametrize(("code", "printed"), [("pass", True), ("raise SystemExit(3)", False)])
def test_a_training_that_has_ended_well_ends_with_the_lines(tmp_path, monkeypatch, capfd, code, printed):
    trained = [sys.executable, "-c", f"print('training', flush=True); {code}"]
    monkeypatch.setattr(Recipe, "command", lambda self, overrides: trained)
    recipe = Recipe.find("recipes/rag_r1/ppo_mq")
    words = [f"trainer.default_local_dir={tmp_path}", "rag_r1.retriever.url=http://127.0.0.1:1"]
    run = WatchedRun(tmp_path, GuardOptions(), TrainingFacts(), 1e-6).to_json()
    assert launch.main([run, str(recipe.folder), recipe.name, *words]) == (0 if printed else 3)
    # Before it, there may be a warning of another training on this machine.
    before, training, after = capfd.readouterr().out.partition("training\n")
    assert training and "no checkpoint was saved" not in before
    assert ("no checkpoint was saved" in after) == printed
