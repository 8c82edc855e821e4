"""Engine, searcher and codec that do what they must not, when they are told to, and what holds all the same.

`Parts` is engine and searcher in one, `Codec` a codec of characters; the tables name each fault. `play` runs
an episode with them in virtual time and checks it.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field, replace

from rag_r1.agent import (
    KINDS,
    STATUSES,
    Budget,
    Episode,
    FailurePolicy,
    Generation,
    Trajectory,
    UnknownTokenError,
)
from rag_r1.protocols import Document, Failure, load_protocol
from rag_r1.tools import search_tools
from tests.fakes import virtual_time

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
            raise UnknownTokenError("no such character")
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
    "a set of ids": lambda ids: Generation(set(ids)),
    "a dict of ids": lambda ids: Generation(dict.fromkeys(ids)),
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


def results(queries):
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
    "too few": lambda queries: results(queries)[1:],
    "too many": lambda queries: [*results(queries), []],
    "generator": lambda queries: iter(results(queries)),
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
        out = SEARCH_FAULTS[fault](queries) if fault != "good" else results(queries)
        return await out if asyncio.iscoroutine(out) else out


def play(parts, codec=None, policy=QUICK, protocol=PROTOCOL, prompt=(1, 2), question="Q?", **budget):
    """(record, ledger) of an episode that must end by itself."""
    budget = Budget(**{**LIMITS, **budget})
    episode = Episode(protocol, budget, parts, search_tools(parts), codec or Codec(), policy)
    record = virtual_time.run(asyncio.wait_for(episode.run("id", question, prompt), 60))
    check(record, episode)
    return record, episode.ledger


def check(record, episode):
    """What holds for every episode."""
    ledger, budget = episode.ledger, episode.budget
    ids, mask, logprobs = (
        ledger.row().response_ids,
        ledger.row().response_mask,
        ledger.row().response_logprobs,
    )
    assert record.status in STATUSES
    assert (record.status == "answered") == (record.answer is not None)
    assert len(ids) == len(mask) and (logprobs is None or len(logprobs) == len(ids))
    assert ledger.context() == ledger.first_prompt + ids
    assert all(type(i) is int and 0 <= i < VOCABULARY for i in ledger.context())
    assert all(value == value and abs(value) < float("inf") for value in logprobs or [])
    assert len(ids) <= budget.max_response_tokens
    assert all(turn.generated_tokens <= budget.max_turn_tokens for turn in record.turns)
    assert len(record.turns) <= budget.max_turns + budget.final_turn
    assert record.generated_tokens == sum(turn.generated_tokens for turn in record.turns) == sum(mask)
    assert record.observed_tokens == sum(turn.observed_tokens for turn in record.turns)
    assert record.observed_tokens + record.generated_tokens == len(ids)
    assert record.prompt_tokens == len(ledger.first_prompt)
    assert all(note.kind in KINDS and len(note.detail) <= 200 for note in record.failures)
    # Once: one failed search or generation a turn, and at the end the limit or the fault of the codec.
    ends = [note for note in record.failures if note.kind in ("error", "budget")]
    assert ends == record.failures[-1:] or not ends
    turns = [note.turn for note in record.failures if note not in ends]
    assert len(turns) == len(set(turns)) and all(note.turn <= len(record.turns) for note in record.failures)
    expected = {"engine_failure": "engine", "error": "error", "bad_row": "row"}
    if record.status in expected:
        assert record.failures[-1].kind == expected[record.status]
    if record.status == "tool_failure":
        assert {note.kind for note in record.failures} & {"tool", "retriever"}
    if record.masked(episode.failures.mask):
        assert record.answer is None, "nothing is answered after a failure that is masked"
    assert Trajectory.from_dict(json.loads(json.dumps(record.to_dict(), allow_nan=False))) == record
