"""R1-Searcher's recipes compose, pass veRL's validation, hold the published numbers; run.sh chains them."""

from __future__ import annotations

from pathlib import Path
from subprocess import CompletedProcess

import pytest
from omegaconf import OmegaConf

from rag_r1.config.recipes import RECIPES
from rag_r1.config.schema import RagR1Config
from rag_r1.rewards import RewardSum
from tests.recipes.called_scripts import call_script, make_project
from tests.recipes.composed_recipes import composed, refusals

pytestmark = pytest.mark.slow  # a composed recipe takes most of a second, and there are forty

ROOT = RECIPES.parent
STAGES = [f"recipes/r1_searcher/stage{stage}_{model}" for stage in (1, 2) for model in ("qwen", "llama")]
ALGORITHMS = sorted(path.stem for path in (RECIPES / "r1_searcher" / "algorithm").glob("*.yaml"))
REWARDS = sorted(path.stem for path in (RECIPES / "r1_searcher" / "reward").glob("*.yaml"))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    "name", [STAGES[0], *(pytest.param(name, marks=pytest.mark.full) for name in STAGES[1:])]
)
def test_nothing_is_refused_with_any_algorithm(name: str, algorithm: str, compose):
    config = compose(name, f"r1_searcher/algorithm={algorithm}")
    assert refusals(config) == []
    estimators = {
        "reinforce_pp": "reinforce_plus_plus",
        "reinforce_pp_baseline": "reinforce_plus_plus_baseline",
    }
    assert config.algorithm.adv_estimator == estimators.get(algorithm, "grpo")


@pytest.mark.parametrize("name", STAGES)
def test_runs_on_a_cpu_by_one_override(name: str, compose):
    config = compose(name, "platform=cpu")
    assert (config.trainer.device, config.actor_rollout_ref.actor.strategy) == ("cpu", "fsdp2")
    assert refusals(config) == []


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
def test_qwen_has_no_kl_penalty_and_llama_has_one_in_one_place(algorithm: str):
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
    return make_project(tmp_path, "recipes/r1_searcher")


def call(project: Path, *arguments: str, **variables: str) -> CompletedProcess[str]:
    return call_script(project, "recipes/r1_searcher/run.sh", *arguments, RAG_R1_PLATFORM="gpu", **variables)


VARIABLES = {"MODEL": "org/name", "DATA": "my data", "RETRIEVER_URL": "http://10.0.0.1:8000"}


@pytest.mark.parametrize(("arguments", "model"), [([], "qwen"), (["qwen"], "qwen"), (["llama"], "llama")])
def test_one_command_runs_both_stages_of_a_model(project: Path, arguments: list[str], model: str):
    (project / "my data").mkdir()
    done = call(project, *arguments, "stage1:a=b", **VARIABLES)
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


@pytest.mark.parametrize("name", VARIABLES)
def test_what_is_missing_is_named_and_nothing_is_started(project: Path, name: str):
    done = call(project, **{key: value for key, value in VARIABLES.items() if key != name})
    assert done.returncode == 2 and done.stdout == ""
    assert f"{name} not set" in done.stderr


def test_help_explains_the_variables(project: Path):
    done = call(project, "--help")
    assert done.returncode == 0
    for word in (*VARIABLES, "OUT", "llama", "stage1:", "resume"):
        assert word in done.stdout


@pytest.mark.parametrize("stage", [1, 2])
def test_the_miniature_is_not_refused_on_a_cpu_and_pays_as_the_large_recipes_do(stage: int, compose):
    config = compose(f"recipes/demo/r1_stage{stage}")
    assert refusals(config) == []
    large = composed(f"recipes/r1_searcher/stage{stage}_qwen")
    assert config.rag_r1.reward == large.rag_r1.reward
    assert config.algorithm.adv_estimator == large.algorithm.adv_estimator
    assert "hf_model" in config.actor_rollout_ref.actor.checkpoint.save_contents
