"""R1-Searcher's recipes compose, pass veRL's validation, hold the published numbers; run.sh chains them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from rag_r1.config.recipes import RECIPES
from rag_r1.config.schema import RagR1Config
from rag_r1.rewards import RewardSum
from rag_r1.training.preflight.settings import (
    check_lengths,
    check_rag_r1_keys,
    check_required_keys,
    check_verl,
)
from tests.recipes.composed_recipes import composed, given

pytestmark = pytest.mark.slow  # a composed recipe takes most of a second, and there are forty

ROOT = RECIPES.parent
STAGES = [f"recipes/r1_searcher/stage{stage}_{model}" for stage in (1, 2) for model in ("qwen", "llama")]
ALGORITHMS = sorted(path.stem for path in (RECIPES / "r1_searcher" / "algorithm").glob("*.yaml"))
REWARDS = sorted(path.stem for path in (RECIPES / "r1_searcher" / "reward").glob("*.yaml"))

PUBLISHED = {
    "rag_r1.agent.max_turns": 8,
    "rag_r1.agent.max_turn_tokens": 512,
    "rag_r1.retriever.topk": 3,
    "rag_r1.validation_retriever.topk": 5,
    "actor_rollout_ref.actor.optim.lr": 2e-6,
    "actor_rollout_ref.actor.clip_ratio": 0.2,
    "actor_rollout_ref.rollout.n": 16,
    "actor_rollout_ref.rollout.temperature": 1.0,
    "actor_rollout_ref.rollout.top_p": 0.95,
    "algorithm.gamma": 1.0,
}
QWEN = {
    **PUBLISHED,
    "rag_r1.protocol": "r1_searcher",
    "data.train_batch_size": 64,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 256 // 16,
    "algorithm.use_kl_in_reward": False,
    "actor_rollout_ref.actor.use_kl_loss": False,
}
LLAMA = {
    **PUBLISHED,
    "rag_r1.protocol": "r1_searcher_instruct",
    "algorithm.use_kl_in_reward": True,
    "algorithm.kl_ctrl.kl_coef": 1e-4,
}
NUMBERS = {
    "recipes/r1_searcher/stage1_qwen": {**QWEN, "algorithm.adv_estimator": "grpo"},
    "recipes/r1_searcher/stage2_qwen": {**QWEN, "algorithm.adv_estimator": "reinforce_plus_plus_baseline"},
    "recipes/r1_searcher/stage1_llama": {
        **LLAMA,
        "algorithm.adv_estimator": "grpo",
        "data.train_batch_size": 65,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 13,
    },
    "recipes/r1_searcher/stage2_llama": {
        **LLAMA,
        "algorithm.adv_estimator": "reinforce_plus_plus_baseline",
        "data.train_batch_size": 15,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 3,
    },
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    "name", [STAGES[0], *(pytest.param(name, marks=pytest.mark.full) for name in STAGES[1:])]
)
def test_passes_verls_own_validation_with_every_algorithm(name: str, algorithm: str, model_folder: Path):
    config = composed(name, *given(model_folder), f"r1_searcher/algorithm={algorithm}")
    assert check_required_keys(config) + check_rag_r1_keys(config)[1] + check_lengths(config) == []
    assert check_verl(config, model_is_there=True) == []
    estimators = {
        "reinforce_pp": "reinforce_plus_plus",
        "reinforce_pp_baseline": "reinforce_plus_plus_baseline",
    }
    assert config.algorithm.adv_estimator == estimators.get(algorithm, "grpo")


@pytest.mark.parametrize("name", STAGES)
def test_runs_on_a_cpu_by_one_override(name: str, model_folder: Path):
    config = composed(name, *given(model_folder), "platform=cpu")
    assert (config.trainer.device, config.actor_rollout_ref.actor.strategy) == ("cpu", "fsdp2")
    assert check_verl(config, model_is_there=True) == []


@pytest.mark.parametrize("name", STAGES)
def test_holds_the_published_numbers(name: str, model_folder: Path):
    config = composed(name, *given(model_folder))
    assert {key: OmegaConf.select(config, key) for key in NUMBERS[name]} == NUMBERS[name]


@pytest.mark.parametrize("name", STAGES)
def test_an_update_is_a_whole_number_of_prompts_and_of_rows_for_each_of_eight_gpus(name: str):
    config = composed(name)
    batch, mini = config.data.train_batch_size, config.actor_rollout_ref.actor.ppo_mini_batch_size
    n = config.actor_rollout_ref.rollout.n
    assert batch % mini == 0 and mini * n % 8 == 0 and batch * n % 8 == 0


@pytest.mark.parametrize("reward", REWARDS)
@pytest.mark.parametrize("name", STAGES)
def test_the_reward_is_switched_by_configuration_and_validation_always_tells_the_three_figures(
    name: str, reward: str
):
    config = composed(name, f"r1_searcher/reward={reward}", "rag_r1.retriever.url=http://127.0.0.1:8000")
    settings = RagR1Config.from_config(OmegaConf.to_container(config.rag_r1, resolve=True))
    terms = {
        term.name: term.weight for term in RewardSum.from_config(settings.reward, settings.protocol).terms
    }
    assert {"em", "f1", "cover_em", "searched"} <= set(terms)
    assert sum(map(abs, terms.values())) in (1.0, 2.0)


@pytest.mark.parametrize("name", STAGES)
def test_stage_1_pays_for_searching_and_stage_2_for_answers(name: str):
    terms = {item.term: item.weight for item in composed(name).rag_r1.reward}
    paid = {term for term, weight in terms.items() if weight}
    assert paid == ({"searched", "r1_searcher_format"} if "stage1" in name else {"f1", "r1_searcher_format"})


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_qwen_has_no_kl_penalty_and_llama_has_one_in_one_place(algorithm: str, model_folder: Path):
    for name, penalties in (("stage1_qwen", 0), ("stage1_llama", 1)):
        config = composed(f"recipes/r1_searcher/{name}", f"r1_searcher/algorithm={algorithm}")
        used = [config.algorithm.use_kl_in_reward, config.actor_rollout_ref.actor.use_kl_loss]
        assert sum(used) == penalties
    assert config.actor_rollout_ref.actor.use_kl_loss == (algorithm == "grpo")
    if algorithm == "grpo":
        assert config.actor_rollout_ref.actor.kl_loss_coef == 1e-4


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_exports_the_model_that_the_next_one_starts_from_and_resumes(name: str):
    config = composed(name)
    assert "hf_model" in config.actor_rollout_ref.actor.checkpoint.save_contents
    assert config.trainer.resume_mode == "auto" and config.trainer.save_freq > 0
    assert config.trainer.max_actor_ckpt_to_keep == 2


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The real script in an environment whose `rag-r1` writes down how it is called."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "bin").mkdir()
    shutil.copytree(RECIPES / "r1_searcher", tmp_path / "recipes" / "r1_searcher")
    (tmp_path / "scripts" / "setup_env.sh").write_text('export PATH="$root/bin:$PATH"\n')
    tool = tmp_path / "bin" / "rag-r1"
    tool.write_text('#!/bin/sh\nprintf "%s" "rag-r1"; printf " <%s>" "$@"; echo\n')
    tool.chmod(0o755)
    return tmp_path


def call(project: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LANG")}
    return subprocess.run(
        ["bash", str(project / "recipes" / "r1_searcher" / "run.sh"), *arguments],
        env={"RAG_R1_PLATFORM": "gpu", **clean, **variables},
        cwd=project,
        capture_output=True,
        text=True,
        timeout=60,
    )


GIVEN = {"MODEL": "org/name", "DATA": "my data", "RETRIEVER_URL": "http://10.0.0.1:8000"}


@pytest.mark.parametrize(("arguments", "model"), [([], "qwen"), (["qwen"], "qwen"), (["llama"], "llama")])
def test_one_command_runs_both_stages_of_a_model(project: Path, arguments: list[str], model: str):
    (project / "my data").mkdir()
    done = call(project, *arguments, "stage1:a=b", **GIVEN)
    here = project / "recipes" / "r1_searcher"
    assert done.stdout.splitlines() == [
        "rag-r1 <doctor>",
        f"rag-r1 <stages> <--out> <outputs/r1_searcher/{model}>"
        f" <--recipe> <{here}/stage1_{model}> <--recipe> <{here}/stage2_{model}> <platform=gpu>"
        " <actor_rollout_ref.model.path='org/name'>"
        f" <data.train_files='{project}/my data/stage{{stage}}/train.parquet'>"
        f" <data.val_files='{project}/my data/stage{{stage}}/test.parquet'>"
        " <rag_r1.retriever.url='http://10.0.0.1:8000'> <stage1:a=b>",
    ]


@pytest.mark.parametrize("name", GIVEN)
def test_what_is_missing_is_named_and_nothing_is_started(project: Path, name: str):
    done = call(project, **{key: value for key, value in GIVEN.items() if key != name})
    assert done.returncode == 2 and done.stdout == ""
    assert f"{name} not set" in done.stderr


def test_help_explains_the_variables(project: Path):
    done = call(project, "--help")
    assert done.returncode == 0
    for word in (*GIVEN, "OUT", "llama", "stage1:", "resume"):
        assert word in done.stdout


def test_the_recipes_that_run_sh_names_are_there():
    for name in STAGES:
        assert (ROOT / f"{name}.yaml").is_file()


@pytest.mark.parametrize("stage", [1, 2])
def test_the_miniature_passes_verls_validation_on_a_cpu_and_pays_as_the_large_recipes_do(
    stage: int, model_folder: Path
):
    config = composed(f"recipes/demo/r1_stage{stage}", *given(model_folder))
    assert check_required_keys(config) + check_rag_r1_keys(config)[1] + check_lengths(config) == []
    assert check_verl(config, model_is_there=True) == []
    large = composed(f"recipes/r1_searcher/stage{stage}_qwen")
    assert config.rag_r1.reward == large.rag_r1.reward
    assert config.algorithm.adv_estimator == large.algorithm.adv_estimator
    assert "hf_model" in config.actor_rollout_ref.actor.checkpoint.save_contents
