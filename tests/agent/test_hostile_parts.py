"""An episode whose engine, searcher and codec do what they must not, at random and one fault at a time.

Whatever they do, there is a record with a status, a ledger whose lists fit together and the budget, and a
failure of the right kind, once. What is good in between is as if nothing had happened.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field, replace
from random import Random

import pytest
import virtual_time
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rag_r1.agent import (
    KINDS,
    STATUSES,
    Budget,
    Episode,
    FailureNote,
    FailurePolicy,
    Generation,
    TokenizerCodec,
    Trajectory,
    UnknownToken,
)
from rag_r1.agent.boundary import NO_ANSWER, TIMED_OUT
from rag_r1.demo.tokenizer import make_tokenizer
from rag_r1.protocols import Document, Failure, load_protocol

PROTOCOLS = [load_protocol(name) for name in ("rag_r1_mq", "rag_r1_sq", "r1_searcher")]
PROTOCOL = PROTOCOLS[0]
SEARCH, ANSWER = "<search> a, b </search>", "<answer> Rome </answer>"
VOCABULARY = 0x110000
NAN = float("nan")
LIMITS = {"max_turn_tokens": 60, "max_response_tokens": 400, "max_query_observation_tokens": 400}
MASKED = ("retriever", "tool", "engine", "row", "error")
QUICK = FailurePolicy(retries=1, wait_s=0.0, tool_timeout_s=0.01, engine_timeout_s=0.01, mask=MASKED)


class Unspeakable(Exception):
    """An error that cannot be shown."""

    def __str__(self):
        raise RuntimeError("not even this")


async def hang(stubborn=False):
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        if not stubborn:
            raise
        await asyncio.sleep(0.05)  # does not end where it is cancelled, but later


async def cancelled():
    raise asyncio.CancelledError


# --- Parts that are told when to do what ---


@dataclass
class Codec:
    """A token is a character. `faults`: by the number of the call of `encode` or `decode`."""

    encode_faults: dict = field(default_factory=dict)
    decode_faults: dict = field(default_factory=dict)
    encoded: int = 0
    decoded: int = 0

    def encode(self, text):
        self.encoded += 1
        fault = self.encode_faults.get(self.encoded - 1, "good")
        return CODEC_ENCODE[fault](text)

    def decode(self, ids):
        self.decoded += 1
        if any(i >= VOCABULARY for i in ids):
            raise UnknownToken("no such character")
        fault = self.decode_faults.get(self.decoded - 1, "good")
        return CODEC_DECODE[fault](ids)


def raise_(error):
    raise error


CODEC_ENCODE = {
    "good": lambda text: [ord(c) for c in text],
    "raises": lambda text: raise_(RuntimeError("no encoding")),
    "unspeakable": lambda text: raise_(Unspeakable()),
    "None": lambda text: None,
    "text": lambda text: text,
    "strings": lambda text: list(text),
    "floats": lambda text: [float(ord(c)) for c in text],
    "negative": lambda text: [-1],
    "generator": lambda text: iter([1, 2]),
}
CODEC_DECODE = {
    "good": lambda ids: "".join(map(chr, ids)),
    "raises": lambda ids: raise_(RuntimeError("no decoding")),
    "unspeakable": lambda ids: raise_(Unspeakable()),
    "None": lambda ids: None,
    "bytes": lambda ids: b"<answer> x </answer>",
    "list": lambda ids: ["<answer> x </answer>"],
}


def good(ids):
    return Generation(ids, [-1.0] * len(ids))


#: What an engine may do instead of `good`; each is a failure of the engine.
ENGINE_FAULTS = {
    "raises": lambda ids: raise_(OSError("gone")),
    "unspeakable": lambda ids: raise_(Unspeakable()),
    "hangs": lambda ids: hang(),
    "hangs on": lambda ids: hang(stubborn=True),
    "cancelled": lambda ids: cancelled(),
    "None": lambda ids: None,
    "ids alone": lambda ids: ids,
    "no ids": lambda ids: Generation(None),
    "text": lambda ids: Generation("text"),
    "generator": lambda ids: Generation(iter(ids)),
    "strings": lambda ids: replace(good(ids), token_ids=["a"] * len(ids)),
    "floats": lambda ids: replace(good(ids), token_ids=[1.5] * len(ids)),
    "holes": lambda ids: Generation([*ids, None]),
    "negative": lambda ids: Generation([*ids[:-1], -1]),
    "unknown": lambda ids: Generation([*ids[:-1], VOCABULARY]),
    "enormous": lambda ids: Generation([*ids[:-1], 1 << 70]),
    "too few log-probs": lambda ids: Generation(ids, [-1.0] * (len(ids) - 1)),
    "too many log-probs": lambda ids: Generation(ids, [-1.0] * (len(ids) + 1)),
    "no log-probs in the list": lambda ids: Generation(ids, []),
    "NaN": lambda ids: Generation(ids, [NAN] * len(ids)),
    "one NaN": lambda ids: Generation(ids, [*[-1.0] * (len(ids) - 1), NAN]),
    "infinite": lambda ids: Generation(ids, [-float("inf")] * len(ids)),
    "text for log-probs": lambda ids: Generation(ids, ["-1.0"] * len(ids)),
    "a number for log-probs": lambda ids: Generation(ids, -1.0),
    "aborted": lambda ids: replace(good(ids[:3]), aborted=True, detail=None),
    "aborted with half": lambda ids: Generation(ids[:3], [-1.0], aborted=True),
}
DOCUMENT = Document("1", "A\nfact", 0.5)


def found(queries):
    return [[DOCUMENT] for _ in queries]


#: What a searcher may do instead of `found`; each is a failed search.
SEARCH_FAULTS = {
    "raises": lambda queries: raise_(OSError("gone")),
    "unspeakable": lambda queries: raise_(Unspeakable()),
    "its own time-out": lambda queries: raise_(asyncio.TimeoutError()),
    "hangs": lambda queries: hang(),
    "hangs on": lambda queries: hang(stubborn=True),
    "cancelled": lambda queries: cancelled(),
    "None": lambda queries: None,
    "a number": lambda queries: 5,
    "too few": lambda queries: found(queries)[1:],
    "too many": lambda queries: [*found(queries), []],
    "generator": lambda queries: iter(found(queries)),
    "no list": lambda queries: [None for _ in queries],
    "no documents": lambda queries: [["a fact"] for _ in queries],
    "one no document": lambda queries: [[DOCUMENT, None] for _ in queries],
    "a document alone": lambda queries: [DOCUMENT for _ in queries],
    "a score of text": lambda queries: [[replace(DOCUMENT, score="good")] for _ in queries],
    "failures": lambda queries: [Failure("away", "retriever", "HTTP 503") for _ in queries],
    "failures of a wrong kind": lambda queries: [Failure("away", "budget") for _ in queries],
    "failures of no kind": lambda queries: [Failure("away", None) for _ in queries],
}


@dataclass
class Parts:
    """Engine and searcher: `lines` are said in turn, unless the next fault for a call is not "good"."""

    lines: list
    engine_faults: list = field(default_factory=list)
    search_faults: list = field(default_factory=list)
    surplus: int = 0  # tokens more than asked for
    contexts: list = field(default_factory=list)
    asked: list = field(default_factory=list)
    turn: int = 0

    async def generate(self, context, max_tokens, stop):
        self.contexts.append(list(context))
        line = self.lines[self.turn % len(self.lines)]
        ids = [ord(c) for c in line][:max_tokens]
        fault = self.engine_faults.pop(0) if self.engine_faults else "good"
        if fault != "good":
            out = ENGINE_FAULTS[fault](ids or [ord("x")])  # of nothing, nothing can be wrong
            return await out if asyncio.iscoroutine(out) else out
        self.turn += 1
        if self.surplus:
            ids = (ids + [ord("x")] * (max_tokens + self.surplus))[: max_tokens + self.surplus]
        return Generation(ids, [-float(i) for i in range(len(ids))])

    async def search(self, queries):
        self.asked.append(list(queries))
        fault = self.search_faults.pop(0) if self.search_faults else "good"
        out = SEARCH_FAULTS[fault](queries) if fault != "good" else found(queries)
        return await out if asyncio.iscoroutine(out) else out


def play(parts, codec=None, policy=QUICK, protocol=PROTOCOL, prompt=(1, 2), question="Q?", **budget):
    """(record, ledger) of an episode that must end by itself."""
    budget = Budget(**{**LIMITS, **budget})
    episode = Episode(protocol, budget, parts, parts, codec or Codec(), policy)
    record = virtual_time.run(asyncio.wait_for(episode.run("id", question, prompt), 60))
    check(record, episode)
    return record, episode.ledger


def check(record, episode):
    """What holds for every episode."""
    ledger, budget = episode.ledger, episode.budget
    ids, mask, logprobs = ledger.response_ids, ledger.mask, ledger.logprobs
    assert record.status in STATUSES
    assert (record.status == "answered") == (record.answer is not None)
    assert len(ids) == len(mask) and (logprobs is None or len(logprobs) == len(ids))
    assert ledger.context() == ledger.prompt_ids + ids
    assert all(type(i) is int and 0 <= i < VOCABULARY for i in ledger.context())
    assert all(value == value and abs(value) < float("inf") for value in logprobs or [])
    assert len(ids) <= budget.max_response_tokens
    assert all(turn.generated_tokens <= budget.max_turn_tokens for turn in record.turns)
    assert len(record.turns) <= budget.max_turns + budget.final_turn
    assert record.generated_tokens == sum(turn.generated_tokens for turn in record.turns) == sum(mask)
    assert record.observed_tokens == sum(turn.observed_tokens for turn in record.turns)
    assert record.observed_tokens + record.generated_tokens == len(ids)
    assert record.prompt_tokens == len(ledger.prompt_ids)
    assert all(note.kind in KINDS and len(note.detail) <= 200 for note in record.failures)
    # Once: at most one failure a turn, and one for the limit in which the episode ended.
    turns = [note.turn for note in record.failures if note.kind != "budget"]
    assert len(turns) == len(set(turns)) and all(turn <= len(record.turns) for turn in turns)
    expected = {"engine_failure": "engine", "error": "error", "bad_row": "row"}
    if record.status in expected:
        assert record.failures[-1].kind == expected[record.status]
    if record.status == "tool_failure":
        assert {note.kind for note in record.failures} & {"tool", "retriever"}
    if record.masked(episode.failures.mask):
        assert record.answer is None, "nothing is answered after a failure that is masked"
    assert Trajectory.from_dict(json.loads(json.dumps(record.to_dict(), allow_nan=False))) == record


# --- At random ---


def some(random, faults, n, share):
    names = sorted(set(faults) - {"hangs on"})
    return [random.choice(names) if random.random() < share else "good" for _ in range(n)]


def random_parts(random, share=0.25):
    protocol = random.choice(PROTOCOLS)
    search = f"<think> t </think>{protocol.tags.search.open} a, b {protocol.tags.search.close}"
    lines = random.choices([search, "hm", ANSWER, "<answer> " + "x" * 90, ""], weights=[6, 2, 2, 1, 1], k=5)
    parts = Parts(
        lines,
        some(random, ENGINE_FAULTS, 8, share),
        some(random, SEARCH_FAULTS, 8, share),
        surplus=random.choice([0, 0, 1, 70]) if share else 0,
    )
    return protocol, parts


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 2**32), st.integers(0, 2), st.booleans())
def test_whatever_the_parts_do_the_record_and_the_ledger_hold(seed, retries, masking):
    random = Random(seed)
    protocol, parts = random_parts(random)
    codec = Codec(
        {random.randrange(12): random.choice(sorted(CODEC_ENCODE))} if random.random() < 0.3 else {},
        {random.randrange(6): random.choice(sorted(CODEC_DECODE))} if random.random() < 0.3 else {},
    )
    policy = replace(QUICK, retries=retries, mask=MASKED if masking else ())
    record, _ = play(parts, codec, policy, protocol, max_response_tokens=random.choice([400, 90, 20, 1]))
    assert record.retries <= retries * 2 * max(len(record.turns), 1)


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 2**32))
@example(116522)  # a number for the log-probs of a single token
def test_what_retries_mend_leaves_no_trace_but_their_number(seed):
    random = Random(seed)
    protocol, parts = random_parts(random)
    parts.surplus = 0
    peaceful = Parts(list(parts.lines))
    undisturbed, whole = play(peaceful, protocol=protocol)
    record, ledger = play(parts, policy=replace(QUICK, retries=9), protocol=protocol)
    assert not record.masked(MASKED)
    assert ledger == whole
    assert untimed(record) == {**untimed(undisturbed), "retries": record.retries}
    assert len(parts.contexts) + len(parts.asked) >= len(peaceful.contexts) + len(peaceful.asked)


def untimed(record):
    record = record.to_dict()
    record["seconds"] = 0.0
    for turn in record["turns"]:
        turn["generate_s"] = turn["tool_s"] = 0.0
    return record


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32))
def test_with_good_parts_only_nothing_fails_and_the_row_is_what_they_said(seed):
    protocol, parts = random_parts(Random(seed), share=0)
    record, ledger = play(parts, protocol=protocol)
    assert record.retries == 0 and {note.kind for note in record.failures} <= {"budget"}
    for turn, context, line in zip(record.turns, parts.contexts, parts.lines, strict=False):
        assert line.startswith(turn.text) and ledger.context()[: len(context)] == context
    said = [i for i, mine in zip(ledger.response_ids, ledger.mask, strict=True) if mine]
    assert "".join(map(chr, said)) == record.generated_text


# --- One fault at a time ---


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
    assert record.turns[-1].generated_tokens == kept == sum(ledger.mask) - len(SEARCH)


@pytest.mark.parametrize("fault", sorted(SEARCH_FAULTS))
def test_a_fault_of_the_searcher_is_retried_and_then_a_failed_search(fault):
    record, ledger = play(Parts([SEARCH, ANSWER], [], [fault]))
    assert (record.status, record.retries, record.failures) == ("answered", 1, [])
    assert ledger == play(Parts([SEARCH, ANSWER]))[1]
    record, ledger = play(Parts([SEARCH, ANSWER], [], [fault, fault]))
    assert (record.status, record.answer, len(record.turns)) == ("tool_failure", None, 1)
    kind = "retriever" if fault == "failures" else "tool"
    assert [(note.kind, note.turn) for note in record.failures] == [(kind, 0)]
    assert len(ledger.response_ids) == len(SEARCH)


@pytest.mark.parametrize("fault", sorted(SEARCH_FAULTS))
def test_unless_it_is_masked_a_failed_search_is_shown_in_one_fixed_sentence(fault):
    record, ledger = play(Parts([SEARCH, ANSWER], [], [fault]), policy=replace(QUICK, retries=0, mask=()))
    assert (record.status, record.answer, record.turns[0].status) == ("answered", "Rome", "tool_failure")
    shown = "".join(map(chr, ledger.response_ids))
    late = fault in ("hangs", "hangs on")
    sentence = "away" if fault.startswith("failures") else TIMED_OUT if late else NO_ANSWER
    assert sentence in shown and "gone" not in shown and len(record.failures) == 1


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
    assert sum(ledger.mask) == len(SEARCH), "what cannot be read is not trained on"


@pytest.mark.parametrize("line", [SEARCH, "hm"])
@pytest.mark.parametrize("fault", sorted(set(CODEC_ENCODE) - {"good"}))
def test_a_codec_that_cannot_encode_is_a_fault_in_code(fault, line):
    record, ledger = play(Parts([line, ANSWER]), Codec(encode_faults={0: fault}), max_turn_tokens=30)
    assert (record.status, record.failures[0].kind, len(record.failures)) == ("error", "error", 1)
    assert len(ledger.response_ids) == len(line)


def test_the_engines_surplus_is_cut_with_its_log_probs_and_is_no_failure():
    record, ledger = play(Parts(["hm"], surplus=500), max_turns=1, max_turn_tokens=7)
    assert [turn.generated_tokens for turn in record.turns] == [7, 7]
    assert [turn.text for turn in record.turns] == ["hmxxxxx"] * 2
    assert [turn.status for turn in record.turns] == ["truncated"] * 2
    generated = [lp for lp, mine in zip(ledger.logprobs, ledger.mask, strict=True) if mine]
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
    async def made(ids):
        return ids if ids else raise_(KeyError("raw_prompt"))

    assert play(Parts([ANSWER]), prompt=made([7]))[1].prompt_ids == [7]
    record, _ = play(Parts([ANSWER]), prompt=made([]))
    assert record.failures == [FailureNote("row", 0, "no prompt: KeyError: 'raw_prompt'")]


def test_an_engine_that_hangs_is_as_late_as_the_policy_says():
    record, _ = play(Parts([ANSWER], ["hangs"] * 2))
    assert record.failures == [FailureNote("engine", 0, "no answer within 0.01 s")]


@pytest.mark.parametrize("waits", ["engine", "searcher", "retry", "prompt"])
def test_a_cancelled_episode_ends_as_cancelled_and_ends_what_it_waits_for(waits):
    ended = []

    async def main():
        begun = asyncio.Event()

        async def forever(*unused):
            begun.set()
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
        episode = Episode(PROTOCOL, Budget(**LIMITS), parts, parts, Codec(), policy)
        task = asyncio.create_task(episode.run("id", "Q?", prompt))
        if waits == "retry":
            while not parts.asked:
                await asyncio.sleep(0)
        else:
            await begun.wait()
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
    with pytest.raises(UnknownToken, match=str(wrong)):
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
