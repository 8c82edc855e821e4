"""Each preset of a released checkpoint composes, fits its own numbers, and renders its prompt."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from rag_r1.config.recipes import RECIPES, Recipe
from rag_r1.config.schema import RagR1Config
from rag_r1.training.composition import compose_recipe
from rag_r1.training.preflight.settings import check_rag_r1_keys
from retrieval_server.encode.encoder_settings import find_family
from tests.recipes.composed_recipes import composed, refusals

PRESETS = sorted(path.stem for path in (RECIPES / "checkpoints" / "released").glob("[!_]*.yaml"))
#: One of each kind; Search-R1's others differ from it in name and model only.
KINDS = [name for name in PRESETS if not name.startswith("search_r1")] + ["search_r1_7b_ppo"]
QUESTION = "Which river flows through Paris?"

pytestmark = pytest.mark.slow  # a composed recipe takes most of a second


def evaluating(name: str, *more: str):
    overrides = ("data.val_files=test.parquet", "rag_r1.retriever.url=http://127.0.0.1:8000")
    return composed("recipes/checkpoints/evaluate", f"checkpoints/released={name}", *overrides, *more)


def settings_of(name: str) -> RagR1Config:
    settings, problems = check_rag_r1_keys(evaluating(name))
    assert problems == [] and settings is not None
    return settings


@pytest.mark.parametrize("name", KINDS)
def test_a_preset_passes_verls_own_validation_and_leaves_nothing_open(name: str, model_folder: Path):
    config = evaluating(name, f"actor_rollout_ref.model.path={model_folder}")
    assert refusals(config) == []
    assert config.trainer.val_only and config.trainer.val_before_train
    assert config.data.train_files == config.data.val_files


@pytest.mark.parametrize("name", PRESETS)
def test_the_row_holds_the_longest_episode_that_the_numbers_allow(name: str):
    config, settings = evaluating(name), settings_of(name)
    budget = settings.budget(config.data.max_response_length)
    observed = budget.max_query_observation_tokens * settings.protocol.max_queries
    longest = budget.max_turns * (budget.max_turn_tokens + observed) + budget.max_turn_tokens
    assert config.data.max_response_length == longest
    assert config.actor_rollout_ref.rollout.max_model_len == config.data.max_prompt_length + longest


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_says_what_its_checkpoint_was_made_with(name: str):
    config = evaluating(name)
    assert config.checkpoint.name == config.trainer.experiment_name == name
    assert re.fullmatch(r"[\w.-]+/[\w.-]+", config.actor_rollout_ref.model.path), "a name on the Hub"
    assert find_family(config.checkpoint.encoder) is not None, "the server knows its pooling and prefixes"
    assert config.checkpoint.prompt and config.checkpoint.source and config.checkpoint.corpus
    theirs = "r1_searcher" if name.startswith("r1_searcher") else "squad"
    assert {term["normaliser"] for term in settings_of(name).reward} == {theirs}


@pytest.mark.parametrize("name", PRESETS)
def test_the_prompt_puts_the_question_in_the_checkpoints_form(name: str):
    protocol = settings_of(name).protocol
    messages = protocol.messages(QUESTION)
    text = "".join(message["content"] for message in messages) + protocol.opening
    assert text.count(QUESTION) == 1 and protocol.tags.search.open in text
    roles = [message["role"] for message in messages]
    if name == "r1_searcher_llama_8b":
        assert (protocol.prompt_form, roles, protocol.opening) == ("chat", ["system", "user"], "<think>")
    elif name == "r1_searcher_qwen_7b":
        assert (protocol.prompt_form, roles) == ("text", ["user"])
        assert text.endswith(f"User:{QUESTION}\nAssistant: <think>")
    else:
        assert (protocol.prompt_form, roles, protocol.opening) == ("chat", ["user"], "")
        assert text.endswith(f"Question: {QUESTION}\n")


def test_the_table_lists_every_preset_with_its_values():
    rows = {}
    for line in (RECIPES / "checkpoints" / "README.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        if len(cells) == 9 and cells[0] in PRESETS:
            rows[cells[0]] = cells[1:]
    assert sorted(rows) == PRESETS
    for name, row in rows.items():
        config, settings = evaluating(name), settings_of(name)
        agent, retriever = settings.agent, settings.validation_retriever
        assert row == [
            config.actor_rollout_ref.model.path,
            settings.protocol.name,
            settings.protocol.prompt_form,
            str(agent.max_turns),
            f"{agent.max_turn_tokens:,}",
            str(retriever["topk"]),
            config.checkpoint.encoder,
            settings.reward[0]["normaliser"],
        ]


def test_the_recipe_of_the_readme_trains_a_checkpoint_further(model_folder: Path, tmp_path: Path):
    text = (RECIPES / "checkpoints" / "README.md").read_text(encoding="utf-8")
    (tmp_path / "further.yaml").write_text(text.partition("```yaml\n")[2].partition("```")[0])
    overrides = (
        "data.train_files=a.parquet",
        "data.val_files=b.parquet",
        "rag_r1.retriever.url=http://127.0.0.1:1",
    )
    recipe = Recipe.find(str(tmp_path / "further.yaml"))
    config = compose_recipe(recipe, overrides)
    assert config.actor_rollout_ref.model.path == config.critic.model.path == "yaoyueduzhen/RAG-R1-sq-7b"
    assert (config.rag_r1.agent.max_turns, config.data.max_response_length) == (5, 11144)
    assert (config.algorithm.adv_estimator, config.trainer.val_only) == ("gae", False)
    config = compose_recipe(recipe, [*overrides, f"actor_rollout_ref.model.path={model_folder}"])
    assert refusals(config) == []


def test_search_r1s_checkpoints_differ_in_name_and_model_only():
    def but_for_these(name: str) -> dict:
        config = OmegaConf.to_container(evaluating(name), resolve=False)
        del config["checkpoint"]["name"], config["actor_rollout_ref"]["model"]["path"]
        return config

    others = [name for name in PRESETS if name.startswith("search_r1")]
    assert len(others) == 8 and len({evaluating(n).actor_rollout_ref.model.path for n in others}) == 8
    assert all(but_for_these(name) == but_for_these("search_r1_7b_ppo") for name in others)
