"""Commands on other machines, and options as flags."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.iterate.commands import Commands, flags, launched, query_keys
from rag_r1.iterate.plan import read_plan

WORDS = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1), max_size=4)


@given(WORDS)
def test_a_command_for_a_shell_arrives_as_it_was(words):
    (program, host, line) = launched((["ssh", "gpu1", "cd /x && {command}"], "py"), "rag_r1.stages", words)
    assert (program, host) == ("ssh", "gpu1") and line.startswith("cd /x && ")
    assert shlex.split(line.removeprefix("cd /x && ")) == ["py", "-m", "rag_r1.stages", *words]


@given(WORDS)
def test_without_a_place_for_it_a_command_follows_its_launcher(words):
    assert launched((["srun", "-N1"], "py"), "m", words) == ["srun", "-N1", "py", "-m", "m", *words]


def test_options_are_flags_with_their_values():
    assert flags({"judge_url": "http://x", "lora": True}) == ["--judge-url=http://x", "--lora"]
    assert flags({"logger": ["console", "wandb"]}) == ["--logger=console", "--logger=wandb"]
    assert flags({"device": None, "lora": False}) == []


@pytest.mark.parametrize(
    ("query", "agentic", "mode"),
    [("plain", "false", None), ("agentic", "true", None), ("history", "true", "history")],
)
def test_an_index_decides_what_its_queries_are_sent_with(query, agentic, mode):
    keys = dict(key.split("=") for key in query_keys(query))
    assert keys["rag_r1.retriever.agentic_input"] == agentic and keys.get("rag_r1.retriever.mode") == mode


def test_retriever_and_agent_run_on_their_own_machines(loop):
    loop.plan["agent"]["launcher"] = ["ssh", "one", "{command}"]
    loop.plan["retriever"] |= {"launcher": ["ssh", "two", "{command}"], "processes": 4, "python": "python3"}
    loop.plan["agent"]["overrides"] = ["trainer.experiment_name=agent{round}"]
    loop.words()
    commands, out = Commands(read_plan(loop.recipe), "http://server"), Path("/out")
    played = [commands.data("m", "plain", out), commands.evaluation("m", "plain", out)]
    for words in (commands.agent("m", "plain", 2, out), *played):
        assert words[:2] == ["ssh", "one"] and "http://server" in words[2]
    assert "trainer.experiment_name=agent2" in commands.agent("m", "plain", 2, out)[2]
    trained = shlex.split(commands.retriever(out, None, out)[2])
    assert trained[:5] == ["python3", "-m", "torch.distributed.run", "--nproc-per-node", "4"]
    assert trained[5:7] == ["-m", "rag_r1.retriever.train"]
    assert shlex.split(commands.index(out, out)[2])[:3] == ["python3", "-m", "retrieval_server.build_index"]
