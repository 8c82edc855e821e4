"""Episodes whose engine, searcher and codec fail at random.

Whatever they do, there is a record with a status, a ledger whose lists fit together and the budget, and a
failure of the right kind, once. What is good in between is as if nothing had happened.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import example, given
from hypothesis import strategies as st

from tests.agent.hostile_parts import (
    ANSWER,
    CODEC_DECODE,
    CODEC_ENCODE,
    ENGINE_FAULTS,
    MASKED,
    PROTOCOLS,
    QUICK,
    SEARCH_FAULTS,
    Codec,
    Parts,
    play,
)
from tests.fakes.scripted_engine import untimed


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


@given(st.integers(0, 2**32), st.integers(0, 2), st.booleans())
@example(602, 2, False)  # a search that fails and is shown, in a turn whose observation cannot be encoded
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


@given(st.integers(0, 2**32))
def test_with_good_parts_only_nothing_fails_and_the_row_is_what_they_said(seed):
    protocol, parts = random_parts(Random(seed), share=0)
    record, ledger = play(parts, protocol=protocol)
    assert record.retries == 0 and {note.kind for note in record.failures} <= {"budget"}
    for turn, context, line in zip(record.turns, parts.contexts, parts.lines, strict=False):
        assert line.startswith(turn.text) and ledger.context()[: len(context)] == context
    reply = [i for i, bit in zip(ledger.row().response_ids, ledger.row().response_mask, strict=True) if bit]
    assert "".join(map(chr, reply)) == record.generated_text
