"""The search agent from Python: the same agent as the chat's, without an event loop of the caller's."""

from __future__ import annotations

import subprocess
import sys

import pytest

import rag_r1
from rag_r1.options.arguments.errors import ArgumentsError
from rag_r1.runs.errors import RunError
from tests.serving.running_chat import GOLD, PASSAGES, QUESTION, policy_of, policy_path


def test_every_name_of_the_api_is_there_and_there_are_at_most_ten():
    assert len(rag_r1.__all__) <= 10
    assert all(getattr(rag_r1, name).__name__ == name for name in rag_r1.__all__)
    assert set(rag_r1.__all__) <= set(dir(rag_r1))
    with pytest.raises(AttributeError, match="no_such_name"):
        rag_r1.no_such_name  # noqa: B018


def test_to_import_the_package_imports_nothing_heavy():
    code = (
        "import rag_r1, sys; print([m for m in ('pydantic', 'aiohttp', 'torch', 'verl') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


@pytest.mark.parametrize("settings", [{}, {"model": "m", "no_such_setting": 1}, {"demo": True, "model": "m"}])
def test_settings_that_are_unknown_or_contradict_each_other_are_a_value_error(settings):
    with pytest.raises(ArgumentsError):
        rag_r1.SearchAgent(**settings)


def test_an_agent_that_is_not_open_says_so():
    with pytest.raises(RuntimeError, match="with"):
        rag_r1.SearchAgent(model="m", base_url="http://127.0.0.1:9/v1").ask("Who?")


@pytest.mark.slow  # loads a tokenizer
def test_questions_are_answered_one_by_one_many_at_a_time_and_inside_a_running_loop(tmp_path):
    import asyncio

    with policy_of() as policy:
        settings = {
            "model": "policy",
            "base_url": f"{policy.url}/v1",
            "retriever_url": policy.url,
            "tokenizer": str(policy_path("rag_r1_mq")),
            "out": tmp_path,
        }
        with rag_r1.SearchAgent(**settings) as agent:
            record = agent.ask(QUESTION)
            assert (record.answer, record.status) == (GOLD, "answered")
            assert record.turns[0].calls[0].documents[0].id == PASSAGES[0][0]
            assert [one.answer for one in agent.ask_all([QUESTION] * 3)] == [GOLD] * 3

            async def notebook() -> str | None:
                return agent.ask(QUESTION).answer

            assert asyncio.run(notebook()) == GOLD
        with pytest.raises(RuntimeError):
            agent.ask(QUESTION)


@pytest.mark.slow
def test_a_dead_server_is_named_when_the_agent_is_opened(tmp_path):
    agent = rag_r1.SearchAgent(
        model="m",
        base_url="http://127.0.0.1:9/v1",
        tokenizer=str(policy_path("rag_r1_mq")),
        retriever_url="http://127.0.0.1:9",
        out=tmp_path,
    )
    with pytest.raises(RunError, match=r"no model server answers at http://127\.0\.0\.1:9/v1.*--base-url"):
        agent.__enter__()
