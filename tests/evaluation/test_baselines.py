"""Baselines: each asks in its own way, in the tags of the run's protocol, and within the same limits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rag_r1.evaluation.baselines import agent_condition, baseline
from rag_r1.evaluation.eval_arguments import BASELINES
from rag_r1.protocols import load_protocol
from rag_r1.runs.errors import RunError
from tests.evaluation.scripted_runs import GOLD, SQ, row_of, setup_of

ROW = row_of("a")


def prompt_of(name: str, protocol: str = "rag_r1_sq") -> str:
    setup = baseline(name, replace(setup_of(), protocol=load_protocol(protocol))).setup(ROW)
    text = "".join(m["content"] for m in setup.messages(ROW.question, ROW.prompt))
    return text + setup.protocol.opening


def test_the_run_itself_is_the_agent_unchanged():
    setup = setup_of()
    condition = agent_condition(setup)
    assert condition.setup(ROW) is setup and condition.searches and not condition.search_first


@pytest.mark.parametrize("protocol", ["rag_r1_mq", "search_r1", "r1_searcher", "r1_searcher_instruct"])
@pytest.mark.parametrize("name", ["direct", "cot", "one_shot"])
def test_a_prompt_names_the_tags_of_the_protocol_and_ends_with_the_question(name, protocol):
    prompt = prompt_of(name, protocol)
    tags = load_protocol(protocol).tags
    assert tags.answer.open in prompt and tags.answer.close in prompt
    assert (tags.think.close in prompt) == (name != "direct")
    assert tags.search.open not in prompt and tags.information.open not in prompt
    assert "{answer}" not in prompt and "{think}" not in prompt and "{/" not in prompt
    assert prompt.rstrip().endswith(("Question: What is a?", "<think>"))


def test_only_a_chain_of_thought_begins_within_a_thought_where_the_protocol_does():
    assert prompt_of("cot", "r1_searcher").endswith("What is a?\n <think>")
    assert prompt_of("direct", "r1_searcher").endswith("What is a?\n")


@pytest.mark.parametrize("name", BASELINES)
def test_no_baseline_may_search_by_itself_and_other_limits_stay(name):
    budget = setup_of().budget
    assert baseline(name, setup_of()).setup(ROW).budget == replace(budget, max_turns=0, final_turn=True)


def test_without_search_the_agent_keeps_its_own_prompt():
    condition = baseline("no_search", setup_of())
    assert condition.setup(ROW).messages(ROW.question, ROW.prompt) == SQ.messages(ROW.question)
    assert not condition.searches and not condition.search_first


def test_only_one_shot_needs_the_retrieval_server():
    conditions = {name: baseline(name, setup_of()) for name in BASELINES}
    assert [name for name, condition in conditions.items() if condition.searches] == ["one_shot"]
    assert conditions["one_shot"].search_first


def with_prompt(text: str):
    setup = setup_of()
    return replace(setup, protocol=replace(setup.protocol, user_prompt=text), own_prompt=True)


def test_a_prompt_of_the_users_own_takes_the_place_of_ours():
    setup = baseline("direct", with_prompt("Say it: {question}")).setup(ROW)
    message = {"role": "user", "content": f"Say it: {ROW.question}"}
    assert setup.messages(ROW.question, ROW.prompt) == [message]
    assert GOLD not in str(setup.messages(ROW.question))


def test_a_prompt_without_a_place_for_the_passages_is_refused():
    with pytest.raises(RunError, match=r"--prompt has no \{documents\}"):
        baseline("one_shot", with_prompt("Say it: {question}"))
    baseline("one_shot", with_prompt("{documents} Say it: {question}"))
