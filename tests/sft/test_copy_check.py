"""Which targets count as quoting a document."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.protocols import Document
from rag_r1.sft.copy_check import MIN_WORDS, RUN, find_quotation, words

TEXT = (
    "The Danube rises in the Black Forest and flows past Ulm, Regensburg, Passau, Linz, Vienna and Budapest "
    "before it reaches the Black Sea."
)
DOCUMENT = Document("1", f'"Danube"\n{TEXT}')
CHINESE = "多瑙河发源于黑森林流经乌尔姆和维也纳"
WORDS = st.lists(st.text("abcé", min_size=1, max_size=3), max_size=40)


def test_a_long_run_of_words_is_a_quotation_whatever_its_case_and_punctuation():
    run = words(TEXT)[3 : 3 + RUN]
    assert find_quotation(f"<think> it {' - '.join(run).upper()} </think>", [DOCUMENT]) == " ".join(run)


@pytest.mark.parametrize(
    ("target", "document", "is_quoted"),
    [
        # a shorter run
        (f"<think> {' '.join(words(TEXT)[3 : 2 + RUN])} indeed </think>", DOCUMENT.contents, False),
        # another order
        (" ".join(reversed(words(TEXT))), DOCUMENT.contents, False),
        # a short document as a whole
        ("so Ulm lies on the river Danube.", "Ulm lies on the river Danube", True),
        # a part of a short document
        ("Ulm lies on the river", "Ulm lies on the river Danube", False),
        # a name
        ("<answer> Johann Wolfgang von Goethe </answer>", "Johann Wolfgang von Goethe", False),
        # a short text under a title
        ("<think> Ulm lies on the river Danube </think>", '"Ulm"\nUlm lies on the river Danube', True),
        # each Chinese character is a word
        ("<think> 多瑙河发源于黑森林流经乌尔 </think>", CHINESE, True),
        # a Chinese name
        ("<answer> 乌尔姆 </answer>", CHINESE, False),
        # an empty target
        ("", DOCUMENT.contents, False),
        # an empty document
        ("", "", False),
    ],
)
def test_a_quotation_is_a_long_run_or_a_whole_document_that_is_no_name(target, document, is_quoted):
    assert (find_quotation(target, [Document("1", document)]) is not None) == is_quoted


@given(WORDS, WORDS, WORDS, st.data())
def test_every_run_that_is_long_enough_is_found(document, prefix, suffix, data):
    start = data.draw(st.integers(0, len(document)))
    run = document[start : start + RUN]
    quotation = find_quotation(" ".join([*prefix, *run, *suffix]), [Document("1", " ".join(document))])
    assert quotation or len(run) < min(RUN, max(len(document), MIN_WORDS))


@given(WORDS, WORDS)
def test_what_is_found_stands_in_both(target, document):
    quotation = find_quotation(" ".join(target), [Document("1", " ".join(document))])
    if quotation:
        assert f" {quotation} " in f" {' '.join(words(' '.join(target)))} "
        assert f" {quotation} " in f" {' '.join(words(' '.join(document)))} "
