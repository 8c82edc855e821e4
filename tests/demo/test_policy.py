"""The demo policy: its tokenizer agrees everywhere, its warm starts are what the demo says they are."""

from __future__ import annotations

import random

import pytest
import torch

from rag_r1.agent import Budget, TokenizerCodec
from rag_r1.demo import phase_trainer, policy, warm_start, world
from rag_r1.demo.names import NAME_WORDS, YEARS
from rag_r1.demo.search import WorldSearch
from rag_r1.demo.simulate import run_rollouts, scores_by_kind
from rag_r1.demo.traces import writer

from .conftest import check_same_tokens

pytestmark = pytest.mark.slow  # each test samples from a model, or makes one

SMALL = world.make_world(0, "train", people=20, places=10, words=12)
SEARCH = WorldSearch(SMALL.passages)


@pytest.fixture(scope="module")
def tokenizer():
    return policy.demo_tokenizer()


@pytest.fixture(scope="module")
def held_out():
    data = world.demo_data(0, train=4, val=48)
    return data.val, WorldSearch(data.passages)


def written(name: str):
    """Traces of every kind and strategy in a protocol, with their questions."""
    protocol = world.demo_protocol(name)
    rng = random.Random(1)
    for question in world.make_questions(SMALL, 24, 3):
        for strategy in ("guess", "early", "sequential", *(["parallel"] if protocol.max_queries > 1 else [])):
            trace = writer.write_trace(question, strategy, SMALL, protocol, SEARCH.results, rng)
            yield question.text, trace


@pytest.mark.parametrize("name", policy.PROTOCOLS)
def test_sft_auto_tokenizer_and_rollout_segments_give_the_same_tokens(tokenizer, tmp_path, name):
    check_same_tokens(tokenizer, tmp_path, world.demo_protocol(name), written(name))


def test_every_word_tag_and_year_is_one_token(tokenizer):
    tags = vars(world.demo_protocol("rag_r1_mq").tags).values()
    words = [f" {word}" for word in (*NAME_WORDS, *YEARS)]
    for text in (*words, *(text for tag in tags for text in (tag.open, tag.close))):
        assert len(tokenizer(text, add_special_tokens=False).input_ids) == 1, text


@pytest.mark.parametrize("name", policy.PROTOCOLS)
def test_episodes_that_search_for_every_fact_fit_the_demo_budget(tokenizer, name):
    protocol = world.demo_protocol(name)
    for question, trace in written(name):
        assert len(policy.encode_trace(tokenizer, protocol, protocol.messages(question), trace)[0]) <= 320


def test_prompt_and_passages_are_no_targets_of_the_warm_start(tokenizer):
    protocol = world.demo_protocol("rag_r1_mq")
    counts: dict[str, int] = warm_start.Counter()
    ids, weights = next(warm_start.warm_batches(tokenizer, protocol, gold=False, seed=0, counts=counts))[0]
    targets = tokenizer.decode([token for token, weight in zip(ids, weights, strict=True) if weight])
    assert set(weights) == {0.0, 1.0} and targets.startswith("<think>")
    assert "Doc" not in targets and "Question" not in targets
    assert sum(counts.values()) >= warm_start.BATCH


def test_the_loss_counts_weighted_targets_only_and_padding_never(tokenizer):
    model = policy.make_policy(tokenizer, 0)
    row = ([5, 6, 7, 8], [1.0, 0.0, 1.0, 0.5])
    alone = phase_trainer._loss(model, [row])
    padded = phase_trainer._loss(model, [row, ([5] * 9, [0.0] * 9)])
    logprobs = model(torch.tensor([row[0]])).logits[0].log_softmax(-1)
    assert alone.item() == pytest.approx(-(logprobs[1, 7] + 0.5 * logprobs[2, 8]).item(), rel=1e-5)
    assert padded.item() == pytest.approx(alone.item(), rel=1e-5)


def test_a_missing_warm_start_names_those_that_there_are():
    with pytest.raises(FileNotFoundError, match="for r1_searcher, rag_r1_mq, rag_r1_sq; choose one"):
        policy.policy_path("search_r1")


@pytest.mark.parametrize("name", policy.PROTOCOLS)
def test_a_committed_warm_start_knows_the_format_and_leaves_room_to_learn(name, held_out):
    questions, search = held_out
    model, tokenizer = policy.load_policy(policy.policy_path(name))
    assert sum(weight.numel() for weight in model.parameters()) < 1_500_000
    assert model.config.vocab_size == len(tokenizer)
    rollouts = run_rollouts(model, tokenizer, world.demo_protocol(name), questions, search)
    turns = [turn for rollout in rollouts for turn in rollout.trajectory.turns]
    scores = scores_by_kind(rollouts)
    assert sum(turn.action == "invalid" for turn in turns) <= 0.02 * len(turns)
    assert scores["one_hop"] >= 0.7 and scores["all"] <= 0.65


@pytest.mark.parametrize("name", policy.PROTOCOLS)
def test_a_rollout_is_one_row_of_prompt_turns_and_observations(name, held_out):
    questions, search = held_out
    model, tokenizer = policy.load_policy(policy.policy_path(name))
    torch.manual_seed(0)
    protocol = world.demo_protocol(name)
    codec, budget = TokenizerCodec(tokenizer), Budget(max_turns=3)
    for temperature in (0.0, 1.0):
        rollouts = run_rollouts(model, tokenizer, protocol, questions[:8], search, temperature, budget)
        for rollout in rollouts:
            ids, mask = rollout.row.response_ids, rollout.row.response_mask
            generated = codec.decode([token for token, kept in zip(ids, mask, strict=True) if kept])
            messages = protocol.messages(rollout.question.text)
            assert rollout.row.prompt_ids == policy.prompt_ids(tokenizer, protocol, messages)
            assert generated == rollout.trajectory.generated_text
            logits = model(torch.tensor([rollout.row.prompt_ids + ids])).logits[0].log_softmax(-1)
            start = len(rollout.row.prompt_ids)
            again = [logits[start - 1 + i, token].item() for i, token in enumerate(ids)]
            for i, kept in enumerate(mask):
                assert not kept or again[i] == pytest.approx(rollout.row.response_logprobs[i], abs=1e-3)
