"""The block `rag_r1:`: every fault is found in one reading, by its key."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.agent.budget import EpisodeLimits
from rag_r1.agent.failures import FOR_TRAINING, FailurePolicy
from rag_r1.config.schema import RagR1Config, SamplerOptions, find_faults
from rag_r1.rewards import RewardError, RewardSum
from rag_r1.tools.retrieval.client import RetrieverConfig

DEFAULTS = yaml.safe_load(
    (Path(__file__).parents[2] / "recipes" / "rag_r1_defaults.yaml").read_text(encoding="utf-8")
)
RIGHT = {"protocol": "rag_r1_mq", "agent": {"max_turns": 3}, "retriever": {"topk": 2}}
#: A wrong entry for many keys; each must be named, whatever else is wrong.
WRONG = {
    ("colour",): "blue",
    ("protocol",): "no_such",
    ("trajectory_dir",): 5,
    ("probe_passages",): 5,
    ("reward",): "em",
    ("agent", "max_turn"): 3,
    ("agent", "max_turns"): -1,
    ("agent", "final_turn"): "yes",
    ("failures", "retry"): 1,
    ("failures", "retries"): -1,
    ("failures", "mask"): ["nothing"],
    ("failures", "wait_s"): "long",
    ("failures", "tool_timeout_s"): 0,
    ("failures", "engine_timeout_s"): 0,
}


def test_a_right_block_has_no_fault():
    settings, faults = RagR1Config.read(RIGHT)
    assert faults == []
    assert settings == RagR1Config.from_config(RIGHT)


@given(st.sets(st.sampled_from(sorted(WRONG)), min_size=1))
def test_every_wrong_key_is_named_whatever_else_is_wrong(keys):
    block = {key: dict(value) if isinstance(value, dict) else value for key, value in RIGHT.items()}
    for path in keys:
        section = block
        for name in path[:-1]:
            section = section.setdefault(name, {})
        section[path[-1]] = WRONG[path]
    _, faults = RagR1Config.read(block)
    assert len(faults) == len(keys)
    for path in keys:
        key = ".".join(("rag_r1", *path))
        assert sum(key in str(fault).replace(":", " ").split() for fault in faults) == 1
    with pytest.raises(ValueError) as caught:
        RagR1Config.from_config(block)
    assert all(str(fault) in str(caught.value) for fault in faults)


@pytest.mark.parametrize("section", ["agent", "retriever", "validation_retriever", "failures"])
def test_a_section_that_is_no_mapping_is_named(section):
    _, [fault] = RagR1Config.read({**RIGHT, section: 5})
    assert str(fault).startswith(f"rag_r1.{section} must be a mapping")


@pytest.mark.parametrize("reward", [0, False, "", {}])
def test_only_an_empty_list_stands_for_the_default_reward(reward):
    assert RagR1Config.read({**RIGHT, "reward": []})[1] == []
    _, [fault] = RagR1Config.read({**RIGHT, "reward": reward})
    assert str(fault).startswith("rag_r1.reward must be a list")


def test_keys_that_are_right_alone_and_wrong_together_are_told_together():
    _, [fault] = RagR1Config.read({**RIGHT, "agent": {"max_turns": 0, "final_turn": False}})
    assert "no turn is left" in str(fault)


def test_faults_of_right_options_are_none():
    assert find_faults(lambda options: dict(**options), {"a": 1}) == []


@pytest.mark.parametrize(
    ("recipe", "declared", "left_open"),
    [
        (DEFAULTS["rag_r1"]["agent"], EpisodeLimits(), set()),
        (DEFAULTS["rag_r1"]["failures"], FailurePolicy(**FOR_TRAINING), set()),
        (DEFAULTS["rag_r1"]["retriever"], RetrieverConfig(), {"tool", "url"}),
        (
            DEFAULTS["trainer"]["v1"]["sampler"]["sampler_kwargs"],
            SamplerOptions(),
            # Taken from veRL's own keys.
            {"group_size", "train_batch_size", "filter_groups", "sync_refill_failed_groups"},
        ),
    ],
)
def test_the_defaults_that_the_recipes_show_are_the_declared_ones(recipe, declared, left_open):
    values = {name: value for name, value in recipe.items() if name not in left_open}
    defaults = {name: getattr(declared, name) for name in values}
    assert values and values == {n: list(v) if isinstance(v, tuple) else v for n, v in defaults.items()}


def test_the_shown_defaults_of_the_block_itself_are_the_declared_ones():
    settings = RagR1Config.from_config({"protocol": "rag_r1_mq"})
    assert list(settings.reward) == DEFAULTS["rag_r1"]["reward"]
    assert settings.validation_agent == settings.agent and not settings.own_prompt


def test_what_is_different_in_validation_is_read_on_top_of_the_training_and_named_as_its_own():
    block = {**RIGHT, "validation_agent": {"max_turn_tokens": 9}}
    settings = RagR1Config.from_config(block)
    assert settings.budget(50) != (budget := settings.budget(60, validation=True))
    assert (budget.max_turns, budget.max_turn_tokens, budget.max_response_tokens) == (3, 9, 60)
    _, [fault] = RagR1Config.read({**RIGHT, "validation_agent": {"max_turn_tokens": 0}})
    assert str(fault).startswith("rag_r1.validation_agent.max_turn_tokens must be a whole number")
    _, faults = RagR1Config.read({**RIGHT, "agent": {"max_turns": -1}, "validation_agent": {"topk": 3}})
    assert [fault.key for fault in faults] == ["rag_r1.agent.max_turns", "rag_r1.validation_agent.topk"]


def test_a_wrong_key_of_the_sampler_is_named_and_verls_own_blocks_may_hold_more():
    with pytest.raises(
        ValueError, match=r"unknown key trainer.v1.sampler.sampler_kwargs.refils: .*refills\?"
    ):
        SamplerOptions.from_config({"refils": 3})
    with pytest.raises(ValueError, match="algorithm.filter_groups.enable must be true or false, not 'yes'"):
        SamplerOptions.from_config({"filter_groups": {"enable": "yes"}})
    block = {"_target_": "verl.trainer.config.FilterGroupsConfig", "enable": True, "metric": "em"}
    chosen = SamplerOptions.from_config({"filter_groups": block}).filter_groups
    assert (chosen.enable, chosen.metric) == (True, "em")
    assert SamplerOptions.from_config({"filter_groups": None}) == SamplerOptions.from_config(None)


def test_all_wrong_terms_and_all_that_is_wrong_with_one_are_told():
    config = [{"term": "no_such"}, {"term": "em", "weight": "x", "ordr": 1, "name": ""}, {"term": "f1"}, 5]
    reward, faults = RewardSum.read(config)
    assert [str(fault).split()[0].rstrip(":") for fault in faults] == [
        "rag_r1.reward[0].term",
        "rag_r1.reward[1].weight",
        "rag_r1.reward[1].name",
        "rag_r1.reward[1].ordr",
        "rag_r1.reward[3]",
    ]
    assert [term.name for term in reward.terms] == ["f1"]
    with pytest.raises(RewardError) as caught:
        RewardSum.from_config(config)
    assert all(str(fault) in str(caught.value) for fault in faults)


@pytest.mark.parametrize("probes", [["real"], ["closed_book", "closed_book"], "empty", [5]])
def test_a_wrong_probe_of_the_validation_is_named_by_its_key(probes):
    _, [fault] = RagR1Config.read({**RIGHT, "probes": probes})
    assert str(fault).startswith("rag_r1.probes must be a list of closed_book, empty, random, gold, withheld")


def test_probes_that_show_passages_need_the_file_and_the_command_that_makes_it_is_named():
    probed = {**RIGHT, "probes": ["empty", "gold", "random"]}
    _, [fault] = RagR1Config.read(probed)
    assert str(fault).startswith("rag_r1.probe_passages must be given for the probes gold, random")
    assert "`rag-r1 probe-passages`" in str(fault)
    _, [fault] = RagR1Config.read({**probed, "probe_passages": 5})
    assert str(fault) == "rag_r1.probe_passages must be a file or null, not 5", "told once"
    assert RagR1Config.from_config({**probed, "probe_passages": "p.json"}).probe_passages == "p.json"
    assert RagR1Config.from_config({**RIGHT, "probes": ["withheld"]}).probe_passages is None
