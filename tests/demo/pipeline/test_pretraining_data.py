"""The pipeline's pretraining data: what it shows, and that it never shows a search."""

from __future__ import annotations

import random

import pytest

from rag_r1.demo import names, world
from rag_r1.demo.pipeline import pretraining_data
from rag_r1.demo.policy import encode_trace
from rag_r1.demo.search import WorldSearch
from rag_r1.demo.traces.writer import write_trace
from rag_r1.protocols import Answer, control_tokens

from ..conftest import check_same_tokens

PROTOCOL = pretraining_data.pipeline_protocol("rag_r1_mq")
TAGS = PROTOCOL.tags
STEPS = range(4)


@pytest.fixture(scope="module")
def tokenizer():
    return pretraining_data.pretraining_tokenizer(PROTOCOL)


@pytest.fixture(scope="module")
def rows(tokenizer):
    """(prompt, what is shown, what the policy writes) of the rows of some steps."""
    rows = []
    for step in STEPS:
        for ids, mask in pretraining_data.batch(tokenizer, PROTOCOL, "test", step):
            first = mask.index(1)
            assert 0 not in mask[first:], "nothing answers what the policy writes"
            prompt, start, reading = tokenizer.decode(ids[:first]).partition("<|im_start|>assistant\n")
            assert start
            rows.append((prompt, reading, tokenizer.decode(ids[first:])))
    return rows


@pytest.mark.slow
def test_no_row_has_a_search_an_observation_or_a_prompt_that_names_one(rows):
    of_a_search = (TAGS.search.open, TAGS.search.close, TAGS.information.open, TAGS.information.close)
    for prompt, reading, text in rows:
        for tag in (*of_a_search, "Doc 1:", '"query"'):
            assert tag not in prompt + reading + text


def test_the_name_of_the_form_of_a_search_is_a_word_of_the_exercises():
    rng = random.Random(0)
    said = [pretraining_data.write_echo_row(rng) for _ in range(100)]
    assert any(f" {pretraining_data.SEARCH}" in trace[0].text for _, trace in said)
    assert any(f"\n{pretraining_data.SEARCH}" in trace[0].text for _, trace in said)
    for request, trace in said:
        assert PROTOCOL.parse(trace[0].text) == Answer(request.removeprefix("Say ").removesuffix("."))


@pytest.mark.slow
def test_every_row_ends_with_an_answer(rows):
    for _, _, text in rows:
        assert isinstance(PROTOCOL.parse(text), Answer) and text.endswith(TAGS.answer.close)


def test_a_note_is_in_the_form_that_the_prompt_names(rows):
    notes = [(prompt, text) for prompt, _, text in rows if "I take a note" in text]
    assert len(notes) >= len(STEPS) * pretraining_data.BASE_MIX["note"]
    for prompt, text in notes:
        form = text.partition("</think>\n<")[2].partition(">")[0]
        assert form in pretraining_data.FORMS and form != pretraining_data.SEARCH
        assert f"<{form}> and </{form}>" in prompt and f" </{form}>\n<think>" in text


def test_what_can_be_read_is_what_is_answered():
    rng, small = random.Random(0), world.fresh_world(random.Random(1))
    search = WorldSearch(small.passages, pretraining_data.SENTENCES)
    for question in world.make_questions(small, 40, 0):
        reading, written = pretraining_data.write_reading_row(question, small, search, rng)
        assert not reading.generated and written.generated
        assert all(fact.entity in reading.text and fact.value in reading.text for fact in question.lookups)
        assert PROTOCOL.parse(written.text) == Answer(question.gold)


def test_held_out_names_never_occur(rows):
    held_out = set(names.names(names.FIRST, names.LAST, "test"))
    text = " ".join(part for row in rows for part in row)
    assert held_out and not [name for name in held_out if name in text]


@pytest.mark.slow
def test_a_step_is_the_same_whatever_came_before_it(tokenizer):
    again = pretraining_data.batch(tokenizer, PROTOCOL, "test", 3)
    assert again == pretraining_data.batch(tokenizer, PROTOCOL, "test", 3)
    assert again != pretraining_data.batch(tokenizer, PROTOCOL, "test", 2)
    assert again != pretraining_data.batch(tokenizer, PROTOCOL, "other", 3)


def test_a_tag_is_its_brackets_and_its_name_and_no_control_token(tokenizer):
    assert control_tokens(tokenizer) == {"<|im_start|>", "<|im_end|>", "<|endoftext|>"}
    for text in (f"{TAGS.search.open} Mara", f"a {TAGS.search.close}", f"\n{TAGS.think.open} I"):
        pieces = [tokenizer.decode(token) for token in tokenizer(text, add_special_tokens=False).input_ids]
        assert "".join(pieces) == text and len(pieces) <= 5
        assert "search" in pieces or "think" in pieces


@pytest.mark.slow
def test_pretraining_trainer_and_rollout_have_the_same_tokens(tokenizer, tmp_path):
    small, rng = world.make_world(0, "train", people=20, places=10, words=12), random.Random(0)
    search = WorldSearch(small.passages)
    traces = [
        (question.text, trace)
        for question in world.make_questions(small, 16, 3)
        for trace in (
            write_trace(question, "parallel", small, PROTOCOL, search.results, rng),
            pretraining_data.write_form_row(question, small, rng, "memo"),
            pretraining_data.write_reading_row(question, small, search, rng),
        )
    ]
    check_same_tokens(tokenizer, tmp_path, PROTOCOL, traces)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rag_r1_sq", "rag_r1_mq"])
def test_episodes_that_search_for_every_fact_fit_the_limits_of_the_pipeline(name):
    from rag_r1.demo.pipeline.limits import BUDGET, TOPK

    protocol = pretraining_data.pipeline_protocol(name)
    tokenizer = pretraining_data.pretraining_tokenizer(protocol)
    small, rng = world.make_world(0, "train", people=60, places=30), random.Random(0)
    search = WorldSearch(small.passages, TOPK).results
    for question in world.make_questions(small, 24, 3):
        for strategy in ("sequential", "parallel"):
            trace = write_trace(question, strategy, small, protocol, search, rng)
            ids, mask = encode_trace(tokenizer, protocol, protocol.messages(question.text), trace)
            prompt = mask.index(1)
            assert prompt <= BUDGET.max_prompt_tokens and len(ids) - prompt <= BUDGET.max_response_tokens
            for segment in trace:
                length = len(tokenizer(segment.text, add_special_tokens=False).input_ids)
                assert not segment.generated or length <= BUDGET.max_turn_tokens
