"""Chats are rendered as transformers renders them, and a template or a tokenizer without end is ended."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.demo.policy import policy_path
from rag_r1.io.errors import DataError
from rag_r1.rollouts.engine_factory import TokenUnit
from rag_r1.runs.errors import RunError
from rag_r1.sandbox import chat_renderer, chat_template
from rag_r1.sandbox.chat_template import ChatTemplate
from rag_r1.sandbox.worker_pool import JobLimits
from rag_r1.serving.agent import _prompt_ids
from rag_r1.tools import schemas
from tests.agent.chat_templates import USABLE, tokenizer_with

pytestmark = pytest.mark.slow  # imports transformers

LOOPS = "{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3
CHAT = [
    {"role": "system", "content": "Be <brief> & \u201cgood\u201d.\n"},
    {"role": "user", "content": "Who?\ud800 \U0001f600"},
]
#: What templates do with the parts of the environment.
USES = (
    "{%- for m in messages %}\n  {% if loop.first %}\n{% continue %}{% endif %}\n{{ m.content }}{% endfor %}",
    "{{ messages | tojson(indent=2) }}{{ tools | tojson }}{{ documents is none }}{{ eos_token }}{{ more }}",
    "a{% generation %} {{ messages[1]['content'] | trim }} {% endgeneration %}b{{ add_generation_prompt }}",
    "{% set s = namespace(n=0) %}{% for m in messages %}{% set s.n = s.n + 1 %}{% break %}{% endfor %}",
    "{{ strftime_now('%Y') }} {{ strftime_now(format='%Y') }}",
)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Less processor time, and nothing remembered from one test to the next."""
    monkeypatch.setattr(chat_template, "LIMITS", JobLimits(cpu_s=1.0, answer_bytes=1 << 20))
    monkeypatch.setattr(chat_template, "_endings", type(chat_template._endings)())


def both(tokenizer, messages, tools, **more) -> tuple[str, str]:
    theirs = tokenizer.apply_chat_template(
        messages, tools=tools, tokenize=False, add_generation_prompt=True, **more
    )
    return ChatTemplate(tokenizer, **more).text(messages, tools), theirs


@pytest.mark.parametrize("name", [*USABLE, *USES])
def test_a_chat_is_rendered_as_by_transformers(name):
    tokenizer = tokenizer_with(name)
    for tools in (None, schemas({})):
        ours, theirs = both(tokenizer, CHAT, tools, more="x", enable_thinking=False)
        assert ours == theirs
    sayable = [{"role": "user", "content": "Who?"}]
    ids = tokenizer.apply_chat_template(sayable * 2, add_generation_prompt=True, return_dict=False)
    assert ChatTemplate(tokenizer).ids(sayable * 2) == ids


@given(st.text(), st.text())
def test_whatever_is_said_is_rendered_as_by_transformers(system, question):
    chat = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    ours, theirs = both(tokenizer_with("plain"), chat, None)
    assert ours == theirs


def test_a_template_finds_the_environment_that_transformers_gives_it():
    from transformers.utils.chat_template_utils import _compile_jinja_template

    theirs, ours = _compile_jinja_template("").environment, chat_renderer.environment()
    for part in ("filters", "globals", "tests", "policies"):
        assert set(getattr(ours, part)) == set(getattr(theirs, part)), part
    for part in ("trim_blocks", "lstrip_blocks", "autoescape", "keep_trailing_newline", "undefined"):
        assert getattr(ours, part) == getattr(theirs, part), part
    assert type(ours) is type(theirs) and set(ours.policies) == set(theirs.policies)
    assert {tag for one in ours.extensions.values() for tag in one.tags} == {
        tag for one in theirs.extensions.values() for tag in one.tags
    }


def test_what_a_template_says_of_a_chat_that_it_refuses_is_told():
    template = ChatTemplate(tokenizer_with("{{ raise_exception('no system, please') }}"))
    with pytest.raises(ValueError, match="^no system, please"):
        template.text(CHAT)


ENCODINGS = (
    {"truncation": True, "max_length": 3},
    {"max_length": 3},
    {"padding": "max_length", "max_length": 99},
    {"tokenizer_kwargs": {"stride": 1, "truncation_side": "left"}, "continue_final_message": False},
)


@pytest.mark.parametrize("arguments", ENCODINGS)
def test_a_chat_is_encoded_as_by_transformers_and_rendered_within_the_limits(arguments):
    tokenizer, chat = tokenizer_with("plain"), [{"role": "user", "content": "Who?"}] * 3
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False, **arguments)
    assert ChatTemplate(tokenizer, **arguments).ids(chat) == ids
    with pytest.raises(DataError, match="processor time"):
        ChatTemplate(tokenizer_with(LOOPS), **arguments).ids(chat)


@pytest.mark.parametrize("name", ["continue_final_message", "return_assistant_tokens_mask"])
def test_arguments_that_do_not_go_with_a_prompt_are_refused_before_a_template_is_rendered(name):
    template = ChatTemplate(tokenizer_with(LOOPS), **{name: True})
    for render in (template.ids, template.text):
        with pytest.raises(ValueError, match=name):
            render(CHAT[:1])


@pytest.mark.parametrize(
    ("template", "why"),
    [
        (LOOPS, "more than 1 s of processor time"),
        ("{{ 'x' * 10**10 }}", "MiB of memory"),
        ("{{ messages[0].content | center(10**10) }}", "MiB of memory"),
        ("{{ 'x' * 10**7 }}", "gives more than 1 MiB"),
        ("{{ 7 ** (10 ** 8) % 2 }}", "more than 1 s of processor time"),  # calculated in compiling it
    ],
)
def test_a_models_folder_with_such_a_template_is_refused_when_it_is_loaded(tmp_path, template, why):
    shutil.copytree(policy_path("rag_r1_mq"), tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text(template)
    with pytest.raises(RunError, match=f"cannot be loaded: DataError: the chat template .*{why}"):
        TokenUnit.of(str(tmp_path / "model"))


@pytest.mark.parametrize(
    "template", ["{{ nope(", "{% for x in messages %}", "{{ messages | no_such_filter }}"]
)
def test_a_models_folder_whose_template_is_no_jinja_is_refused_when_it_is_loaded(tmp_path, template):
    shutil.copytree(policy_path("rag_r1_mq"), tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text(template)
    with pytest.raises(RunError, match="cannot be loaded: DataError: the chat template is not valid Jinja"):
        TokenUnit.of(str(tmp_path / "model"))


def test_a_template_that_hangs_at_some_question_holds_up_nobody_else(monkeypatch):
    tokenizer = tokenizer_with("{% if 'evil' in messages[0].content %}" + LOOPS + "{% endif %}x")
    template, order = ChatTemplate(tokenizer), []

    class Setup:
        def prompt_ids(self, question):
            try:
                return template.ids([{"role": "user", "content": question}])
            finally:
                order.append(question)

    async def main():
        evil = asyncio.create_task(_prompt_ids(Setup(), "evil"))
        await asyncio.sleep(0.05)
        for number in range(3):
            await _prompt_ids(Setup(), f"{number}")
        with pytest.raises(DataError):
            await evil

    asyncio.run(main())
    assert order == ["0", "1", "2", "evil"]


def test_a_template_that_was_ended_three_times_is_not_begun_again(monkeypatch):
    template = ChatTemplate(tokenizer_with("{{ 'x' * 10**10 }}"))
    begun: list[str] = []
    call = chat_template._workers.call
    monkeypatch.setattr(
        chat_template._workers, "call", lambda job, *more: begun.append(job) or call(job, *more)
    )
    for _ in range(6):
        with pytest.raises(DataError):
            template.text(CHAT)
    assert len(begun) == chat_template.MAX_ENDINGS == 3


def changed(tmp_path: Path, **parts) -> Path:
    folder = tmp_path / "model"
    shutil.copytree(policy_path("rag_r1_mq"), folder)
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **parts}))
    return folder


def test_a_tokenizer_that_makes_millions_of_tokens_of_a_line_is_not_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(chat_template, "_TRIAL", JobLimits(cpu_s=2.0, memory_bytes=4 << 30))
    token = {"x": {"id": "x", "ids": [1] * 1000, "tokens": ["x"] * 1000}}
    one = [{"Sequence": {"id": "A", "type_id": 0}}]
    more = {
        "type": "TemplateProcessing",
        "single": one + [{"SpecialToken": {"id": "x", "type_id": 0}}] * 100_000,
    }
    folder = changed(tmp_path, post_processor={**more, "pair": one * 2, "special_tokens": token})
    with pytest.raises(RunError, match=r"ValueError: .*tokenizer\.json cannot be loaded: it "):
        TokenUnit.of(str(folder))


def test_a_file_of_a_tokenizer_that_is_none_or_too_large_is_not_opened(tmp_path):
    folder = changed(tmp_path)
    for name in ("vocab.json", "tokenizer.model"):
        with (folder / name).open("wb") as file:
            file.truncate(1 << 40)
        with pytest.raises(RunError, match=f"{name} has more than 256 MiB"):
            TokenUnit.of(str(folder))
        (folder / name).unlink()
    os.mkfifo(folder / "merges.txt")
    with pytest.raises(RunError, match=r"merges\.txt is not a file"):
        TokenUnit.of(str(folder))
    (folder / "merges.txt").unlink()
    assert TokenUnit.of(str(folder)).tokenizer
