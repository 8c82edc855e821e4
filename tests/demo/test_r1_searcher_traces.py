"""The SFT data of the policy that has never seen a search: what it shows, and that it shows no search."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch

from rag_r1.agent import TokenizerCodec
from rag_r1.demo import policy, r1_searcher_traces, warm_start, world
from rag_r1.demo.search import WorldSearch
from rag_r1.demo.simulate import TorchEngine, run_rollouts
from rag_r1.protocols import Answer, Search

from .conftest import check_same_tokens

pytestmark = pytest.mark.slow  # each test samples from a model, or makes one

PROTOCOL = world.demo_protocol(r1_searcher_traces.NAME)
SMALL = world.make_world(0, "train", people=20, places=10, words=12)
SEARCH = WorldSearch(SMALL.passages, r1_searcher_traces.TOPK)
QUESTIONS = world.make_questions(SMALL, 40, 0)
QUERY_TAGS = (PROTOCOL.tags.search.open, PROTOCOL.tags.search.close)


@pytest.fixture(scope="module")
def tokenizer():
    return r1_searcher_traces.no_search_tokenizer()


@pytest.fixture(scope="module")
def written(tokenizer):
    """(prompt, what the policy writes, what it is shown) of many rows of the base and of the warm start."""
    rows = []
    for mix in (r1_searcher_traces.BASE_MIX, r1_searcher_traces.WARM_MIX):
        for batch in r1_searcher_traces.batches(tokenizer, 12, mix, "test", Counter()):
            for ids, mask in batch:
                start = mask.index(1) if 0 not in mask[mask.index(1) :] else None
                assert start is not None, "what the policy writes ends the row, and nothing answers it"
                before = tokenizer.decode(ids[:start])
                prompt, _, reading = before.partition("<think>")
                rows.append((prompt, tokenizer.decode(ids[start:]), reading))
    return rows


def test_no_row_holds_a_search_nor_a_prompt_that_names_one_and_no_documents(written):
    for prompt, text, reading in written:
        assert not any(tag in text for tag in QUERY_TAGS)
        assert not isinstance(PROTOCOL.parse(text), Search)
        # The prompt of reinforcement learning alone is never answered by a guess.
        assert QUERY_TAGS[0] not in prompt or reading


def test_every_row_ends_in_an_answer_in_the_dialects_own_ending(written):
    for _, text, _ in written:
        assert isinstance(PROTOCOL.parse(text), Answer) and text.endswith(PROTOCOL.stop)
        assert text.count("</think>") == 1 and "<think>" not in text


def test_a_note_is_in_the_form_that_the_prompt_names(written):
    notes = [(prompt, text) for prompt, text, _ in written if "I take a note" in text]
    assert len(notes) > 20
    for prompt, text in notes:
        form = text.partition("<|begin_of_")[2].partition("|>")[0]
        assert form in r1_searcher_traces.FORMS
        assert f"<|begin_of_{form}|> and <|end_of_{form}|>" in prompt and f" <|end_of_{form}|>" in text


def test_a_note_says_what_it_takes_of_the_question():
    rng, taken = random.Random(0), Counter()
    for question in QUESTIONS * 10:
        note = r1_searcher_traces.write_guess_row(question, SMALL, rng, "memo")[0].text
        label = note.partition("I take a note of ")[2].partition(".")[0]
        noted = note.partition("<|begin_of_memo|> ")[2].partition(" <|end_of_memo|>")[0]
        names = [lookup.entity for lookup in question.lookups if lookup.entity in question.text]
        allowed = {"a name": names, "every name": [" ".join(names)]}
        words = question.text.replace(",", "").rstrip("?")
        assert noted in allowed[label] if label in allowed else noted in words
        taken[label] += 1
    for label, share in r1_searcher_traces.NOTE_CONTENTS.items():
        assert abs(taken[label] / taken.total() - share) < 0.1


def test_documents_that_nobody_asked_for_hold_every_fact_of_the_answer():
    rng = random.Random(0)
    for question in QUESTIONS:
        form = rng.choice([None, "memo"])
        reading, turn = r1_searcher_traces.write_reading_row(question, SMALL, SEARCH, rng, form)
        assert not reading.generated and all(lookup.value in reading.text for lookup in question.lookups)
        assert PROTOCOL.parse(turn.text).text == question.gold


def test_documents_that_do_not_help_hold_no_fact_of_the_answer_and_are_answered_by_a_guess():
    rng, with_documents = random.Random(0), 0
    for question in QUESTIONS:
        reading, turn = r1_searcher_traces.write_unrelated_row(question, SMALL, SEARCH, rng)
        titles = [f'"{lookup.entity}"\n' for lookup in question.lookups]
        assert not reading.generated and not any(title in reading.text for title in titles)
        assert "I can guess." in turn.text and isinstance(PROTOCOL.parse(turn.text), Answer)
        with_documents += "(1)" in reading.text
    assert 0 < with_documents < len(QUESTIONS)


@pytest.mark.full
def test_the_warm_start_takes_a_note_about_as_often_as_it_says(tokenizer):
    counts: Counter = Counter()
    for _ in r1_searcher_traces.batches(tokenizer, 60, r1_searcher_traces.WARM_MIX, "shares", counts):
        pass
    share = counts["note"] / (counts["note"] + counts["guess"])
    assert r1_searcher_traces.NOTE_SHARE / 2 < share < 2 * r1_searcher_traces.NOTE_SHARE < 0.2


def test_sft_auto_tokenizer_and_rollout_segments_give_the_same_tokens(tokenizer, tmp_path):
    rng = random.Random(0)
    traces = [
        (question.text, trace)
        for question in QUESTIONS[:12]
        for trace in (
            r1_searcher_traces.write_reading_row(question, SMALL, SEARCH, rng),
            r1_searcher_traces.write_unrelated_row(question, SMALL, SEARCH, rng),
            r1_searcher_traces.write_guess_row(question, SMALL, rng, "memo"),
        )
    ]
    check_same_tokens(tokenizer, tmp_path, PROTOCOL, traces)


def test_a_tag_is_put_together_from_parts_and_words_are_whole(tokenizer):
    codec = TokenizerCodec(tokenizer)
    for form in (*r1_searcher_traces.FORMS, r1_searcher_traces.QUERY):
        parts = codec.encode(f" <|begin_of_{form}|> Mara")
        assert [codec.decode([part]) for part in parts] == [" ", "<|begin_of", f"_{form}", "|>", " Mara"]
    assert [codec.decode([i]) for i in codec.encode("<|end_of_query|>")] == ["<|end_of", "_query", "|>"]


def test_only_repeated_tokens_and_the_policys_own_carry_the_bases_loss(tokenizer):
    batch = next(warm_start.no_search_base_batches(tokenizer, 1, world.KINDS, "weights"))
    for _, weights in batch:
        assert set(weights) <= {0.0, warm_start.COPY_WEIGHT, 1.0} and weights[0] == 0.0 and weights[-1] == 1.0
    _, weights = next(warm_start.no_search_warm_batches(tokenizer, 0, Counter()))[0]
    assert set(weights) == {0.0, 1.0}


def test_the_simulated_engine_stops_at_stop_strings_of_several_tokens(tokenizer):
    engine = TorchEngine(policy.make_policy(tokenizer, 0), tokenizer, 0.0)
    stop = TokenizerCodec(tokenizer).encode("<|end_of_query|>")
    engine.stops = (tuple(stop),)
    rows = torch.tensor([[1, *stop], [*stop, 1], [1, stop[0], 1, stop[2]]])
    taken = [rows[:, i] for i in range(rows.shape[1])]
    assert engine._end_with_stop(taken).tolist() == [True, False, False]
    assert engine._end_with_stop(taken[:3]).tolist() == [False, True, False]


def test_a_warm_start_that_may_not_search_has_no_ceiling_of_right_searches(capsys, tmp_path):
    with pytest.raises(SystemExit):
        warm_start.main(["--protocol", r1_searcher_traces.NAME, "--gold", "--out", str(tmp_path)])
    assert "--gold needs traces that search" in capsys.readouterr().err
    assert warm_start.main(["--out", __file__]) == 1 and "is a file" in capsys.readouterr().err


COMMITTED = (policy.POLICIES / r1_searcher_traces.NAME / "config.json").exists()


@pytest.mark.skipif(
    not COMMITTED, reason="left out: no policy yet (python -m rag_r1.demo.warm_start --protocol r1_searcher)"
)
def test_the_committed_policy_reads_but_searches_in_less_than_one_trajectory_of_ten():
    data = world.demo_data(0, train=4, val=160)
    model, tokenizer = policy.load_policy(policy.policy_path(r1_searcher_traces.NAME))
    torch.manual_seed(0)
    search = WorldSearch(data.passages, r1_searcher_traces.TOPK)
    rollouts = run_rollouts(model, tokenizer, PROTOCOL, data.val, search, 1.0)
    searched = sum(rollout.trajectory.n_searches > 0 for rollout in rollouts)
    assert 0 < searched < 16
