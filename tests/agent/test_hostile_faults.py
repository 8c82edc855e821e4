"""Episodes whose engine, searcher or codec has one fault: what is retried and shown, how it ends."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from rag_r1.agent import Budget, Episode, FailurePolicy, FailureRecord, TokenizerCodec, UnknownTokenError
from rag_r1.demo.tokenizer import make_tokenizer
from rag_r1.protocols.actions import NO_ANSWER, TIMED_OUT
from rag_r1.tools import search_tools
from tests.agent.hostile_parts import (
    ANSWER,
    CODEC_DECODE,
    CODEC_ENCODE,
    DOCUMENT,
    ENGINE_FAULTS,
    LIMITS,
    MASKED,
    NAN,
    PROTOCOL,
    QUICK,
    SEARCH,
    SEARCH_FAULTS,
    Codec,
    Parts,
    play,
    raise_,
)


@pytest.mark.parametrize("fault", sorted(ENGINE_FAULTS))
def test_a_fault_of_the_engine_is_retried_and_then_its_failure(fault):
    parts = Parts([SEARCH, ANSWER], ["good", fault])
    record, ledger = play(parts)
    assert (record.status, record.retries, record.failures) == ("answered", 1, [])
    assert parts.contexts[1] == parts.contexts[2]
    assert ledger == play(Parts([SEARCH, ANSWER]))[1]
    record, ledger = play(Parts([SEARCH, ANSWER], ["good", fault, fault]))
    assert (record.status, len(record.turns), record.retries) == ("engine_failure", 2, 1)
    assert [(note.kind, note.turn) for note in record.failures] == [("engine", 1)]
    kept = 3 if fault == "aborted" else 0  # an abort in good form has sampled what it has
    assert record.turns[-1].generated_tokens == kept == sum(ledger.row().response_mask) - len(SEARCH)


@pytest.mark.parametrize("fault", sorted(SEARCH_FAULTS))
def test_a_fault_of_the_searcher_is_retried_and_then_a_failed_search(fault):
    record, ledger = play(Parts([SEARCH, ANSWER], [], [fault]))
    assert (record.status, record.retries, record.failures) == ("answered", 1, [])
    assert ledger == play(Parts([SEARCH, ANSWER]))[1]
    record, ledger = play(Parts([SEARCH, ANSWER], [], [fault, fault]))
    assert (record.status, record.answer, len(record.turns)) == ("tool_failure", None, 1)
    kind = "retriever" if fault == "failures" else "tool"
    assert [(note.kind, note.turn) for note in record.failures] == [(kind, 0)]
    assert len(ledger.row().response_ids) == len(SEARCH)


@pytest.mark.parametrize("fault", sorted(SEARCH_FAULTS))
def test_unless_it_is_masked_a_failed_search_is_shown_in_one_fixed_sentence(fault):
    record, ledger = play(Parts([SEARCH, ANSWER], [], [fault]), policy=replace(QUICK, retries=0, mask=()))
    assert (record.status, record.answer, record.turns[0].status) == ("answered", "Rome", "tool_failure")
    output = "".join(map(chr, ledger.row().response_ids))
    late = fault in ("hangs", "hangs on")
    sentence = "away" if fault.startswith("failures") else TIMED_OUT if late else NO_ANSWER
    assert sentence in output and "gone" not in output and len(record.failures) == 1


def test_only_the_result_that_is_none_fails():
    class Half(Parts):
        async def search(self, queries):
            self.asked.append(list(queries))
            return [[DOCUMENT] if query == "a" else [None] for query in queries]

    parts = Half([SEARCH, ANSWER])
    record, _ = play(parts, policy=replace(QUICK, mask=()))
    assert parts.asked == [["a", "b"], ["b"]]
    assert record.turns[0].documents == [[DOCUMENT], []]


@pytest.mark.parametrize("fault", sorted(set(CODEC_DECODE) - {"good"}))
def test_a_codec_that_cannot_decode_is_a_fault_in_code_and_is_not_asked_again(fault):
    codec = Codec(decode_faults={1: fault})
    record, ledger = play(Parts([SEARCH, ANSWER]), codec)
    assert (record.status, record.retries, codec.decoded) == ("error", 0, 2)
    assert [(note.kind, note.turn) for note in record.failures] == [("error", 1)]
    assert sum(ledger.row().response_mask) == len(SEARCH), "what cannot be read is not trained on"


@pytest.mark.parametrize("line", [SEARCH, "hm"])
@pytest.mark.parametrize("fault", sorted(set(CODEC_ENCODE) - {"good"}))
def test_a_codec_that_cannot_encode_is_a_fault_in_code(fault, line):
    record, ledger = play(Parts([line, ANSWER]), Codec(encode_faults={0: fault}), max_turn_tokens=30)
    assert (record.status, record.failures[0].kind, len(record.failures)) == ("error", "error", 1)
    assert len(ledger.row().response_ids) == len(line)


def test_the_engines_surplus_is_cut_with_its_log_probs_and_is_no_failure():
    record, ledger = play(Parts(["hm"], surplus=500), max_turns=1, max_turn_tokens=7)
    assert [turn.generated_tokens for turn in record.turns] == [7, 7]
    assert [turn.text for turn in record.turns] == ["hmxxxxx"] * 2
    assert [turn.status for turn in record.turns] == ["truncated"] * 2
    generated = [
        lp for lp, bit in zip(ledger.row().response_logprobs, ledger.row().response_mask, strict=True) if bit
    ]
    assert generated == [-float(i) for i in range(7)] * 2
    assert [note.kind for note in record.failures] == ["budget"]


@pytest.mark.parametrize(
    ("prompt", "question"),
    [
        (None, "Q?"),
        ([], "Q?"),
        (5, "Q?"),
        ("text", "Q?"),
        (["a"], "Q?"),
        ([1.5], "Q?"),
        ([-1], "Q?"),
        (iter([1]), "Q?"),
        (range(1, 12), "Q?"),
        ([1], ""),
        ([1], None),
        ([1], 5),
    ],
)
def test_what_is_no_prompt_or_question_is_a_bad_row_and_nothing_is_played(prompt, question):
    parts = Parts([ANSWER])
    record, ledger = play(parts, prompt=prompt, question=question, max_prompt_tokens=10)
    assert (record.status, record.turns, parts.contexts) == ("bad_row", [], [])
    assert [note.kind for note in record.failures] == ["row"] and record.failures[0].detail
    assert ledger.row().prompt_ids == ledger.row().response_ids == []


def test_the_context_bounds_prompt_and_response_together():
    record, ledger = play(Parts([SEARCH]), prompt=range(1, 31), max_context_tokens=50)
    assert (record.status, len(ledger.context())) == ("token_limit", 50)
    record, _ = play(Parts([SEARCH]), prompt=range(1, 51), max_context_tokens=50)
    assert (record.status, record.failures[0].detail) == ("bad_row", "50 prompt tokens (at most 49)")


def test_a_prompt_is_awaited_and_one_that_cannot_be_made_is_a_bad_row():
    async def built(ids):
        return ids if ids else raise_(KeyError("raw_prompt"))

    assert play(Parts([ANSWER]), prompt=built([7]))[1].first_prompt == [7]
    record, _ = play(Parts([ANSWER]), prompt=built([]))
    assert record.failures == [FailureRecord("row", 0, "no prompt: KeyError: 'raw_prompt'")]


def test_an_engine_that_hangs_is_as_late_as_the_policy_says():
    record, _ = play(Parts([ANSWER], ["hangs"] * 2))
    assert record.failures == [FailureRecord("engine", 0, "no answer within 0.01 s")]


@pytest.mark.parametrize("waits", ["engine", "searcher", "retry", "prompt"])
def test_a_cancelled_episode_ends_as_cancelled_and_ends_what_it_waits_for(waits):
    ended = []

    async def main():
        started = asyncio.Event()

        async def forever(*unused):
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(waits)

        parts = Parts([SEARCH, ANSWER], [], ["raises"])
        if waits == "engine":
            parts.generate = forever
        elif waits == "searcher":
            parts.search = forever
        policy = FailurePolicy(retries=1, wait_s=1000.0, mask=MASKED)
        prompt = forever() if waits == "prompt" else [1]
        episode = Episode(PROTOCOL, Budget(**LIMITS), parts, search_tools(parts), Codec(), policy)
        task = asyncio.create_task(episode.run("id", "Q?", prompt))
        if waits == "retry":
            while not parts.asked:
                await asyncio.sleep(0)
        else:
            await started.wait()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(main(), 20))
    assert ended == ([] if waits == "retry" else [waits])


def test_scores_are_what_json_can_hold():
    import numpy as np

    class Scored(Parts):
        async def search(self, queries):
            scores = [np.float32(0.5), NAN, float("inf"), 3]
            return [[replace(DOCUMENT, score=score) for score in scores] for _ in queries]

    record, _ = play(Scored(["<search> a </search>", ANSWER]))
    assert [document.score for document in record.turns[0].documents[0]] == [0.5, None, None, 3]


# --- The tokenizer's codec ---

TOKENIZER = make_tokenizer(["<answer> Rome </answer>"], ["<think>"])


@pytest.mark.parametrize("wrong", [-1, 500, 1 << 31, 1 << 33])
def test_a_tokenizers_codec_refuses_ids_that_the_model_does_not_have(wrong):
    with pytest.raises(UnknownTokenError, match=str(wrong)):
        TokenizerCodec(TOKENIZER, vocabulary_size=500).decode([1, wrong, 2])


def test_an_id_of_a_padded_embedding_is_an_empty_text():
    codec = TokenizerCodec(TOKENIZER, vocabulary_size=len(TOKENIZER) + 100)
    ids = codec.encode("Rome")
    assert codec.decode([*ids, len(TOKENIZER) + 99]) == "Rome" and codec.decode([]) == ""


def test_ids_outside_the_models_vocabulary_are_the_engines_failure():
    parts = Parts([SEARCH], ["unknown"] * 2)
    record, _ = play(parts, TokenizerCodec(TOKENIZER, vocabulary_size=len(TOKENIZER)))
    assert record.status == "engine_failure"
    assert "is not in the vocabulary" in record.failures[0].detail
