"""Which questions are reported as nearly the same."""

from __future__ import annotations

import errno
import random
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_r1.data.files.near_duplicates import (
    RECALL,
    VALUES,
    _candidates,
    _write_bands,
    bands,
    jaccard,
    near_duplicates,
    require_library,
)
from rag_r1.io.errors import DataError

LONG = "Which river flows through the town in which the composer of the opera Fidelio was born?"
rensa = pytest.mark.skipif(
    not __import__("importlib.util").util.find_spec("rensa"),
    reason="left out: needs the extra `data` (rensa)",
)


def pairs_of(questions: list[str], similarity: float) -> list[tuple[int, int]]:
    return [
        (near.later, near.first) for near in near_duplicates(questions, questions.__getitem__, similarity)
    ]


def test_similarity_is_that_of_the_words_not_of_case_spaces_or_the_last_sign():
    assert jaccard("Who is Ada?", "who is  ADA") == 1
    assert jaccard("abc", "xyz") == 0
    assert 0.8 < jaccard(LONG, LONG.replace("river", "rivers")) < 1


@given(st.floats(0.05, 1))
def test_the_bands_find_the_pairs_that_are_promised_and_fit_into_a_signature(similarity):
    count, values = bands(similarity)
    assert count * values <= VALUES and count >= 1
    assert values == 1 or 1 - (1 - similarity**values) ** count >= RECALL


@given(st.lists(st.integers(0, 5), max_size=40))
def test_candidates_share_a_hash_and_every_later_question_has_the_first_one(hashes):
    pairs = list(_candidates(np.array(hashes, dtype=np.uint64)))
    assert all(later > first and hashes[later] == hashes[first] for later, first in pairs)
    for place, value in enumerate(hashes):
        first = hashes.index(value)
        assert first == place or (place, first) in pairs
    assert len(pairs) <= 4 * len(hashes)


@rensa
def test_a_word_more_or_a_typing_error_is_found_and_another_question_or_the_same_one_is_not():
    questions = [
        LONG,
        "Who wrote Emma?",
        LONG.replace("the town", "the small town"),
        LONG.replace("Fidelio", "Fidello"),
        "What is the capital of the country in which the inventor of the telephone died?",
    ]
    assert sorted(pairs_of(questions, 0.8)) == [(2, 0), (3, 0)]
    assert pairs_of(questions, 0.99) == []
    assert pairs_of([LONG, LONG.upper()], 0.8) == []  # the report of repeated questions has these
    numbers = ["Which town had 10000 people", "Which town had 100000 people"]
    assert jaccard(*numbers) == 1 and pairs_of(numbers, 0.8) == [(1, 0)]  # and not these


@rensa
def test_the_work_is_linear_even_if_all_questions_are_alike():
    questions = [f"{LONG} {number}" for number in range(300)]
    looked = []

    def at(number: int) -> str:
        looked.append(number)
        return questions[number]

    near = list(near_duplicates(questions, at, 0.8))
    assert sorted(later.later for later in near) == list(range(1, 300))
    assert len(looked) < 300 * 2 * 4 * bands(0.8)[0]


@rensa
@pytest.mark.slow
@settings(max_examples=20)
@given(st.integers(0, 10**6))
def test_nearly_all_pairs_of_the_wanted_similarity_are_found_and_no_others(seed):
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefghij", k=6)) for _ in range(400)]
    questions = []
    for _ in range(100):
        words_of_question = draw.choices(words, k=14)
        questions.append(" ".join(words_of_question))
        words_of_question[draw.randrange(14)] = draw.choice(words)
        questions.append(" ".join(words_of_question))
    pairs = {(i + 1, i) for i in range(0, 200, 2) if 0.8 <= jaccard(questions[i], questions[i + 1])}
    reported = pairs_of(questions, 0.8)
    assert all(0.8 <= jaccard(questions[later], questions[first]) for later, first in reported)
    assert all(questions[later] != questions[first] for later, first in reported)
    pairs = {(later, first) for later, first in pairs if questions[later] != questions[first]}
    assert len(pairs & set(reported)) >= 0.8 * len(pairs)


@rensa
@pytest.mark.parametrize("count", [1, 2048])
def test_a_full_disk_is_named(count):
    with pytest.raises(OSError) as raised:
        _write_bands(map(str, range(count)), [Path("/dev/full")], 16)
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, "/dev")


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "rensa", None)
    with pytest.raises(DataError, match=r'install the extra `data` \(pip install "rag-r1\[data\]"\)'):
        require_library()
