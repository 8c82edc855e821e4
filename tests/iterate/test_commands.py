"""Commands on other machines, and options as flags."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.iterate.commands import StepCommands, flags_of, launch_command, query_keys
from rag_r1.iterate.plan import read_plan
from rag_r1.options.arguments.errors import ArgumentsError
from rag_r1.options.command_line import read_arguments
from rag_r1.training.stages import StagesArguments
from retrieval_server.build_options import BuildCommand
from retrieval_server.command_line import parse

WORDS = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1), max_size=4)


@given(WORDS)
def test_a_command_for_a_shell_arrives_as_it_was(words):
    (program, host, line) = launch_command((["ssh", "gpu1", "cd /x && {command}"], "py"), "m", words)
    assert (program, host) == ("ssh", "gpu1") and line.startswith("cd /x && ")
    assert shlex.split(line.removeprefix("cd /x && ")) == ["py", "-m", "m", *words]


@given(WORDS)
def test_without_a_place_for_it_a_command_follows_its_launcher(words):
    assert launch_command((["srun", "-N1"], "py"), "m", words) == ["srun", "-N1", "py", "-m", "m", *words]


def test_options_are_flags_with_their_values():
    assert flags_of({"judge_url": "http://x", "lora": True}) == ["--judge-url=http://x", "--lora"]
    assert flags_of({"logger": ["console", "wandb"]}) == ["--logger=console", "--logger=wandb"]
    assert flags_of({"device": None, "lora": False}) == []


@pytest.mark.parametrize(
    ("query", "agentic", "mode"),
    [
        ("plain", "false", None),
        ("agentic", "true", None),
        ("history", "true", "history"),
        ("reasoning", "true", "reasoning"),
    ],
)
def test_an_index_decides_what_its_queries_are_sent_with(query, agentic, mode):
    keys = dict(key.split("=") for key in query_keys(query))
    assert keys["rag_r1.retriever.agentic_input"] == agentic and keys.get("rag_r1.retriever.mode") == mode


def test_an_option_with_a_hyphen_replaces_that_of_the_recipe(loop):
    recipe = loop.folder / "mine.yaml"
    recipe.write_text("model: minilm\nbatch_size: 8\n")
    loop.plan["retriever"] |= {"recipe": str(recipe), "options": {"batch-size": 4}}
    loop.words()
    commands = StepCommands(read_plan(loop.recipe), "http://server")
    assert commands.retriever_options(Path("/out"), None, Path("/out")).batch_size == 4
    commands.plan.retriever.options["batch_size"] = 2
    with pytest.raises(ArgumentsError, match="--batch-size: given twice"):
        commands.retriever_options(Path("/out"), None, Path("/out"))


def test_retriever_and_agent_run_on_their_own_machines(loop):
    loop.plan["agent"]["launcher"] = ["ssh", "one", "{command}"]
    loop.plan["retriever"] |= {"launcher": ["ssh", "two", "{command}"], "processes": 4, "python": "python3"}
    loop.plan["agent"]["overrides"] = ["trainer.experiment_name=agent{round}"]
    loop.words()
    commands, out = StepCommands(read_plan(loop.recipe), "http://server"), Path("/out")
    commands_of_agent = [commands.data("m", "plain", out), commands.evaluation("m", "plain", out)]
    for words in (commands.agent("m", "plain", 2, out), *commands_of_agent):
        assert words[:2] == ["ssh", "one"] and "http://server" in words[2]
    assert "trainer.experiment_name=agent2" in commands.agent("m", "plain", 2, out)[2]
    trained = shlex.split(commands.retriever(out, None, out)[2])
    assert trained[:5] == ["python3", "-m", "torch.distributed.run", "--nproc-per-node", "4"]
    assert trained[5:9] == ["-m", "rag_r1.cli", "retriever", "train"]
    assert shlex.split(commands.index(out, out)[2])[:3] == ["python3", "-m", "retrieval_server.build_index"]


def test_the_commands_that_a_check_does_not_read_take_their_words_too(loop):
    loop.plan["index"]["options"] = {"preset": "small", "device": "cpu"}
    loop.words()
    commands, out = StepCommands(read_plan(loop.recipe), "http://server"), Path("/out")
    words = commands.agent("it's", "history", 1, out)
    assert words[1:4] == ["-m", "rag_r1.cli", "stages"]
    stage = read_arguments(StagesArguments, words[4:], description="")
    assert stage.recipe == ["recipes/demo/grpo"] and stage.out == out
    assert stage.overrides[-1] == "actor_rollout_ref.model.path='it\\'s'"
    assert stage.overrides[-3] == f"rag_r1.protocol='{commands.plan.agent.protocol}'"
    build = parse(BuildCommand, "", commands.index(out / "model", out / "index")[3:])
    assert (build.backend, build.dense.preset, build.dense.device) == ("dense", "small", "cpu")
    assert build.build_options().encoder == "/out/model"


def test_the_retriever_of_the_round_before_takes_the_place_of_the_recipes_model(loop):
    loop.plan["retriever"]["options"] = {"model": "base", "epochs": 1}
    loop.words()
    commands, out = StepCommands(read_plan(loop.recipe), "http://server"), Path("/out")
    models = [commands.retriever_options(out, start, out).model for start in (None, Path("/before"))]
    assert models == ["base", "/before"]
